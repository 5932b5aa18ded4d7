//! A snapshot's record.

use onefold_core::{Error, Kind, Result};

use super::{
    backup::BackupRequest,
    builder::Built,
    reader::TreeReader,
    shrunk::{is_half_lost, is_halved},
};
use crate::{
    format::{
        backup::{Completeness, Snapshot, SnapshotId, TEXT_MAX, TEXTS_IN_ALL, TEXTS_MAX},
        damage::is_damage,
        domain::FIRST_DOMAIN,
        record::Record,
    },
    operations_log::{is_put, is_there},
    rules::Rule,
    stream::{StreamWriter, in_another},
    tables::Tables,
};

impl StreamWriter {
    /// Makes a snapshot durable, with its record: it is there when this returns. The session has
    /// been sealed and all containers written.
    ///
    /// # Errors
    /// `InvalidInput` for a text, `Unsupported` when the archive can't have snapshots, `NoSpace`,
    /// and those of the system.
    pub fn commit_snapshot(&mut self, request: &BackupRequest, built: &Built) -> Result<Snapshot> {
        let (added, of_holes) = (self.added(), self.of_holes(request, built)?);
        self.commit_tree(request, &|tables| request.snapshot(built, added, tables, of_holes))
    }

    /// The last whole snapshot, when this one has less than half of its bytes, but not of its data.
    fn of_holes(&self, request: &BackupRequest, built: &Built) -> Result<Option<SnapshotId>> {
        let is_in_doubt = |tables: &Tables| {
            request.last_whole(tables).is_some_and(|last| is_halved(built.bytes, last.bytes))
        };
        if request.accept || is_put(self.archive()) || !is_in_doubt(&self.archive().tables()) {
            return Ok(None);
        }
        let mut reader = TreeReader::new(self.archive())?;
        let tables = reader.tables().clone();
        let Some(last) = request.last_whole(&tables) else { return Ok(None) };
        match is_half_lost(&mut reader, last, built.bytes) {
            // Without that knowledge it counts as shrunk.
            Err(error) if is_damage(&error) => Ok(None),
            lost => lost.map(|lost| (!lost).then_some(last.id)),
        }
    }

    /// Makes durable what a backup has so far, so that a repeat does not begin anew when it is
    /// killed; the id is one of its own. The session has been sealed and all containers written.
    ///
    /// # Errors
    /// As [`commit_snapshot`](Self::commit_snapshot).
    pub fn commit_checkpoint(
        &mut self,
        request: &BackupRequest,
        id: SnapshotId,
        so_far: &Built,
    ) -> Result<Snapshot> {
        let added = self.added();
        let listed = !self.archive().keeps(Rule::CheckpointsUnlisted);
        let made = self.commit_tree(request, &|tables| Snapshot {
            id,
            completeness: if listed { Completeness::Whole } else { Completeness::Checkpoint },
            forgotten: (!listed).then_some((request.now, None)),
            ..request.snapshot(so_far, added, tables, None)
        })?;
        self.count_again(added);
        Ok(made)
    }

    /// Commits what `decide` makes; earlier checkpoints of the same set and host are gone with it.
    fn commit_tree(
        &mut self,
        request: &BackupRequest,
        decide: &dyn Fn(&Tables) -> Snapshot,
    ) -> Result<Snapshot> {
        request.check()?;
        let mut made = None;
        let (only_adds, domain) = (self.archive().settings.append_only, self.domain());
        self.commit_with(&mut |tables, own, finished| {
            BackupRequest { domain: Some(domain), ..request.clone() }.domain_in(tables)?;
            if !tables.trees {
                return Err(Error::new(
                    Kind::Unsupported,
                    "the archive was made by a program without snapshots of directories: `onefold \
                     upgrade` gives it these",
                ));
            }
            let snapshot = Snapshot { domain, ..decide(tables) };
            if tables.snapshots.get(snapshot.id).is_ok() {
                return Err(Error::new(Kind::Exists, "there is a snapshot with this id"));
            }
            have_room(tables, &snapshot)?;
            made = Some(snapshot.clone());
            let earlier = tables.snapshots.checkpoints().filter(|one| request.goes_on_from(one));
            let earlier = earlier.filter(|_| !only_adds);
            let ids: Vec<SnapshotId> = earlier.map(|earlier| earlier.id).collect();
            let made = Record::SnapshotMade {
                snapshot: Box::new(snapshot),
                containers: own.to_vec(),
                finished: finished.to_vec(),
            };
            let expired = (!ids.is_empty()).then_some(Record::Expired { ids });
            Ok([made].into_iter().chain(expired).collect())
        })?;
        made.ok_or_else(|| Error::new(Kind::Stopped, "no snapshot was made"))
    }
}

/// The texts of a snapshot fit beside those of all others. Who fills the room for long ones keeps no
/// snapshot with short ones out.
fn have_room(tables: &Tables, snapshot: &Snapshot) -> Result<()> {
    let own = snapshot.long_texts();
    if own == 0 || tables.snapshots.long_texts().saturating_add(own) <= TEXTS_IN_ALL {
        return Ok(());
    }
    let why = format!(
        "the snapshots of this archive have {} MiB of paths and tags, for which there is no more \
         memory: this one may have a few KiB of them, or others are forgotten first, with gc --trash 0",
        TEXTS_IN_ALL >> 20
    );
    Err(Error::new(Kind::InvalidInput, why))
}

impl BackupRequest {
    /// True for a checkpoint of the same set on the same host.
    #[must_use]
    pub fn goes_on_from(&self, checkpoint: &Snapshot) -> bool {
        checkpoint.set == self.set && checkpoint.host == self.host
    }

    /// The number of the domain that the snapshot belongs to: that of its set, if the archive has a snapshot
    /// of that, also a forgotten one.
    ///
    /// # Errors
    /// `InvalidInput`: its set belongs to another one. `Denied`: it was erased.
    pub fn domain_in(&self, tables: &Tables) -> Result<u32> {
        let of_set = tables.snapshots.values().find(|one| one.set == self.set);
        let domain = match (of_set.map(|one| one.domain), self.domain) {
            (Some(before), Some(now)) if before != now => {
                let what = format!("set '{}'", self.set.escape_debug());
                return Err(in_another(&what, before, now));
            }
            (before, now) => before.or(now).unwrap_or(FIRST_DOMAIN),
        };
        is_there(tables, domain).map(|()| domain)
    }

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
