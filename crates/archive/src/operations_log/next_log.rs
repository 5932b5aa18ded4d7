//! The next snapshot of the tables, and the empty log behind it.
//!
//! *Crash argument:* everything but the label is durable before the label names it. Until then the
//! snapshot and the log before count, and what is there of the next ones is made anew.

use std::sync::Arc;

use onefold_core::{Kind, Result};

use super::{
    archive::{Archive, label_now},
    heads,
    position::LogPosition,
    snapshot::write_snapshot,
};
use crate::{
    erasure::ONE_DIRECTORY,
    format::{
        label::Label,
        names::{LABEL, fresh, log_name, snapshot_name},
    },
    rules::Rule,
    tables::{Tables, write_leaves},
};

/// The log that comes after the present one. The commit lock is held.
pub(super) struct NextLog<'a> {
    archive: &'a Archive,
    position: &'a mut LogPosition,
}

impl<'a> NextLog<'a> {
    /// The log that comes after the one at this position.
    pub(super) fn of(archive: &'a Archive, position: &'a mut LogPosition) -> NextLog<'a> {
        NextLog { archive, position }
    }

    /// Takes the snapshot and begins the log. A full disk only puts it off. Any error stops this
    /// process: the frame before may have been appended.
    pub(super) fn begin(&mut self, may_use_reserve: bool) -> Result<()> {
        let before = self.position.snapshot;
        let done = self.begin_or_put_off(may_use_reserve);
        let is_put_off = self.position.snapshot == before;
        self.position.maps_put_off =
            if is_put_off { self.position.tables.volumes.changed_leaves() } else { 0 };
        if let Err(error) = &done {
            self.position.stopped = Some(error.clone());
        }
        done
    }

    fn begin_or_put_off(&mut self, may_use_reserve: bool) -> Result<()> {
        let archive = self.archive;
        let reserve = if archive.label.leaves { archive.reserve().bytes()? } else { 0 };
        let is_unknown = self.await_unknown_snapshot()?;
        loop {
            match self.try_to_begin() {
                Err(error) if error.kind() == Kind::NoSpace => {
                    if !may_use_reserve || !archive.reserve().spend()? {
                        break;
                    }
                }
                done => return done,
            }
        }
        // The log goes on in the space that was taken for it; what is half made makes room.
        let name = snapshot_name(self.position.snapshot + 1);
        if is_unknown {
            // Without bytes, it tells the next process that somebody may look at its leaves.
            if_possible(archive.files.open(&name).and_then(|file| file.set_bytes(0)))?;
        } else {
            if_possible(archive.files.remove(&name))?;
        }
        if_possible(archive.files.remove(&log_name(self.position.snapshot + 1)))?;
        if archive.label.leaves {
            if_possible(self.position.tables.leaf_file.cut(&*archive.files))?;
            // The frames to come need what the snapshot could not use.
            archive.reserve().restore(reserve)?;
        }
        Ok(())
    }

    /// All pages of the file of leaves wait where the next snapshot is there already; true when it
    /// is. Somebody made it, and died, or its label was lost: then others may have read it, and look
    /// at leaves that it names. Asked before anything is written for that snapshot.
    ///
    /// On several nodes the first leaves of an archive are made anew all the same: a crash may have
    /// left their file on some nodes only. Who reads such a snapshot is told of damage.
    pub(super) fn await_unknown_snapshot(&mut self) -> Result<bool> {
        let archive = self.archive;
        let are_first = self.position.tables.leaf_file.is_empty();
        if !self.position.tables.on_demand || (are_first && archive.files.spread() != ONE_DIRECTORY)
        {
            return Ok(false);
        }
        match archive.files.open(&snapshot_name(self.position.snapshot + 1)) {
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            Err(error) => Err(error),
            Ok(_) => {
                let mut tables = Tables::clone(&self.position.tables);
                let epoch = tables.epoch;
                tables.leaf_file.await_all(&*archive.files, epoch)?;
                self.position.tables = Arc::new(tables);
                Ok(true)
            }
        }
    }

    fn try_to_begin(&mut self) -> Result<()> {
        let archive = self.archive;
        let number = self.position.snapshot + 1;
        let mut tables = Tables::clone(&self.position.tables);
        if tables.heads && archive.keeps(Rule::HashesBeforeSnapshot) {
            heads::write(&*archive.files, tables.sequence, &self.position.hashes)?;
        }
        tables.volumes.write_maps(&*archive.files, &archive.identity, number, &archive.settings)?;
        write_leaves(
            &*archive.files,
            &archive.identity,
            &archive.settings,
            number,
            &mut tables,
            &mut |_, _| (),
        )?;
        write_snapshot(&*archive.files, &archive.identity, number, &tables)?;
        tables.derived.moved.forget();
        let log = fresh(&*archive.files, &log_name(number))?;
        log.reserve(0, archive.settings.log_ahead_bytes)?;
        log.sync()?;
        archive.files.sync_names()?;
        let label = Label {
            generation: self.position.generation + 1,
            snapshot: number,
            ..label_now(archive)
        };
        let file = archive.files.open(LABEL)?;
        file.write_at(label.place(), &label.encode(&archive.identity)?)?;
        file.sync()?;
        archive.files.confirm()?;
        (
            self.position.generation,
            self.position.snapshot,
            self.position.log,
            self.position.end,
            self.position.label_durable,
        ) = (label.generation, number, log, 0, true);
        self.position.tables = Arc::new(tables);
        self.position.hashes.clear();
        self.position.frames_of_others = 0;
        self.position.snapshot_lost = None;
        if_possible(archive.files.remove(&snapshot_name(number.saturating_sub(2))))?;
        if_possible(archive.files.remove(&log_name(number.saturating_sub(2))))
    }
}

/// A file that is not there need not be removed; one that a full disk does not let go of stays.
fn if_possible(removed: Result<()>) -> Result<()> {
    match removed {
        Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::NoSpace) => Err(error),
        _ => Ok(()),
    }
}
