//! A snapshot's record.

use onefold_core::{Error, Kind, Result};

use super::{backup::BackupRequest, builder::Built};
use crate::{
    format::{
        backup::{Snapshot, TEXT_MAX, TEXTS_MAX},
        record::Record,
    },
    stream::StreamWriter,
};

impl StreamWriter {
    /// Makes a snapshot durable, with its record: it is there when this returns. The session has
    /// been sealed and all containers written.
    ///
    /// # Errors
    /// `InvalidInput` for a text, `Unsupported` when the archive can't have snapshots, `NoSpace`,
    /// and those of the system.
    pub fn commit_snapshot(
        &mut self,
        request: &BackupRequest,
        built: &Built,
    ) -> Result<(Snapshot, Built)> {
        request.check()?;
        let added = self.added();
        let mut made = None;
        self.commit_with(&mut |tables, own, finished| {
            if !tables.trees {
                return Err(Error::new(
                    Kind::Unsupported,
                    "the archive is of a format without snapshots",
                ));
            }
            if tables.snapshots.get(request.id).is_ok() {
                return Err(Error::new(Kind::Exists, "there is a snapshot with this id"));
            }
            let snapshot = request.snapshot(built, added, tables);
            made = Some(snapshot.clone());
            Ok(vec![Record::SnapshotMade {
                snapshot: Box::new(snapshot),
                containers: own.to_vec(),
                finished: finished.to_vec(),
            }])
        })?;
        let made = made.ok_or_else(|| Error::new(Kind::Stopped, "no snapshot was made"))?;
        Ok((made, *built))
    }
}

impl BackupRequest {
    /// Texts that a snapshot can have.
    fn check(&self) -> Result<()> {
        let texts = [&self.set, &self.host].into_iter().chain(&self.tags);
        let mut bad =
            texts.filter(|text| text.len() > TEXT_MAX || text.chars().any(char::is_control));
        if self.set.is_empty() || bad.next().is_some() {
            return Err(Error::new(
                Kind::InvalidInput,
                format!(
                    "a set, a host and a tag have {TEXT_MAX} bytes at most and no control \
                     characters, and a set has one or more"
                ),
            ));
        }
        let paths_fit = self.paths.iter().all(|path| path.len() <= 4 * TEXT_MAX);
        if self.paths.len() > TEXTS_MAX || self.tags.len() > TEXTS_MAX || !paths_fit {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("a snapshot has {TEXTS_MAX} paths and tags at most, each of 16 KiB"),
            ));
        }
        Ok(())
    }
}
