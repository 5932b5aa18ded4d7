//! Checkpoints: the published records go into the structured tables.
//!
//! 1. *freeze*: what is published so far is set aside; new windows are published beside it.
//! 2. *build*: changed pages are written to new places, leaves first: maps, references,
//!    fingerprints, catalogue, discards, the index on disk, the zone table.
//! 3. *flush*, which a window's flush does as well.
//! 4. *superblock*, to the place of the older one.
//! 5. *flush*, again a window's. From here on the checkpoint is true.
//! 6. *twin*: the same superblock, as the next version, to the other place; *flush*, once more a
//!    window's.
//! 7. *release*, when nobody reads the version before: old pages, blocks without references and
//!    carriers become free.
//!
//! Because of 6 one superblock is enough at any time: when the other one rots, the store that it
//! names is whole.
//!
//! | crash after | what is found |
//! |---|---|
//! | 1–3 | the old superblock and the carriers since it; new pages lie in free blocks |
//! | 4 | either superblock; with the old one as before; with the new one, its pages are whole, because 3 came first |
//! | 5–7 | the new superblock; nothing that it, or the old one while there is one, names was released |

mod build;
mod maps;
mod references;
mod spill;
mod zones;

use std::sync::Arc;

use onefold_core::{BlockRef, Class, Error, Kind, Pba, Result, Run, ZoneId};

pub(crate) use self::build::Build;
use super::{Engine, Snapshot};
use crate::{
    counters::add,
    coverage::Mark,
    format::{
        geometry::SUPERBLOCKS,
        superblock::{self, Superblock},
        zone_bitmap::ZoneBitmap,
    },
    index::Filter,
    scheme::{Records, ordermerge::Reclaimed},
    settings::PlantedBug,
};

/// How far a checkpoint has come.
#[derive(Default)]
enum Phase {
    #[default]
    Idle,
    /// Pages written; a flush that begins after number `.1` makes them durable.
    Built(Box<NextCheckpoint>, u64),
    /// Superblock written; a flush that begins after number `.1` makes it durable.
    Named(Box<NextCheckpoint>, u64),
    /// True, and its twin written; a flush that begins after number `.2` makes that durable. With
    /// leaves in place it counts as true only then: what is written to leaves that only one
    /// superblock names could be lost with that one. `.1` is the version before, if it is.
    Twinned(Box<NextCheckpoint>, Option<Arc<Snapshot>>, u64),
    /// Durable twice; readers of the old version are waited for.
    Releasing(Box<NextCheckpoint>, Arc<Snapshot>),
}

/// What a checkpoint leaves.
struct NextCheckpoint {
    snapshot: Arc<Snapshot>,
    /// Blocks that are free in it and were not before, pages among them.
    freed: Vec<Pba>,
    zones: Vec<(ZoneId, ZoneBitmap)>,
    /// Of the index on disk, when it was written anew.
    filter: Option<Filter>,
    /// With leaves in place: blocks whose last link went.
    reclaimed: Reclaimed,
    /// Likewise: it made the leaves that windows waited for.
    leaves_wanted: bool,
}

/// The state of checkpoints.
#[derive(Default)]
pub(crate) struct Checkpointer {
    phase: Phase,
    /// Blocks that the last checkpoint found free, but newer records name.
    deferred: Vec<Pba>,
}

impl Checkpointer {
    /// With blocks that recovery found in use: the next checkpoint decides on them.
    pub(crate) fn new(deferred: Vec<Pba>) -> Checkpointer {
        Checkpointer { phase: Phase::Idle, deferred }
    }
}

/// Why a checkpoint is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Something was published.
    Changes,
    /// A superblock is due although nothing was.
    Forced,
    /// The store is closed cleanly.
    Clean,
}

/// What a checkpoint step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// There is nothing to do.
    Idle,
    /// A step was made.
    Advanced,
    /// A flush is needed first; any will do.
    NeedsFlush,
    /// A reader of the version before is still at work.
    NeedsReaders,
}

impl Engine {
    /// True when a checkpoint should begin: three quarters of a limit are used, or somebody waits
    /// for one.
    #[must_use]
    pub fn checkpoint_due(&self) -> bool {
        if self.scheme.records() == Records::Nowhere {
            return false;
        }
        let state = self.state.lock();
        state.checkpoint_wanted
            || state.active.records >= self.settings.records_max / 4 * 3
            || state.active.carriers >= self.settings.limits.carriers / 4 * 3
            || self.discards_crowded(&state)
            || state.allocator.uncommitted_zones() >= state.allocator.list.limit() / 4 * 3
            || state.active.records > 0 && self.spill(&state).is_some()
    }

    /// True when a checkpoint would change anything.
    #[must_use]
    pub fn checkpoint_useful(&self) -> bool {
        if self.scheme.records() == Records::Nowhere {
            return false;
        }
        let state = self.state.lock();
        !state.active.is_empty()
            || state.frozen.is_some()
            || !state.snapshot.discards.is_empty()
            || state.leaves_wanted
    }

    /// True between the steps of a checkpoint.
    #[must_use]
    pub fn checkpoint_running(&self) -> bool {
        !matches!(self.checkpointing.lock().phase, Phase::Idle)
    }

    /// Makes one step of a checkpoint; begins one when anything was published since the last.
    ///
    /// # Errors
    /// The first failed write or damaged page stops all writes.
    pub fn checkpoint_step(&self) -> Result<CheckpointStep> {
        self.checkpoint_advance(Reason::Changes)
    }

    /// As [`checkpoint_step`](Self::checkpoint_step), also when nothing was published: windows wait
    /// for leaves.
    pub(crate) fn checkpoint_for_leaves(&self) -> Result<CheckpointStep> {
        self.checkpoint_advance(Reason::Forced)
    }

    /// As [`checkpoint_step`](Self::checkpoint_step), for a reason.
    fn checkpoint_advance(&self, reason: Reason) -> Result<CheckpointStep> {
        let mut checkpointer = self.checkpointing.lock();
        self.state.lock().check_running()?;
        let flushed_after = |note: u64| self.state.lock().flushes.has_followed(note);
        match std::mem::take(&mut checkpointer.phase) {
            Phase::Idle => {
                let Some(next) =
                    self.build(&mut checkpointer.deferred, reason).map_err(|e| self.stop(&e))?
                else {
                    return Ok(CheckpointStep::Idle);
                };
                checkpointer.phase = Phase::Built(Box::new(next), self.want_flush());
            }
            Phase::Built(next, note) => {
                if !flushed_after(note) && !self.settings.has(PlantedBug::SuperblockBeforePages) {
                    checkpointer.phase = Phase::Built(next, note);
                    return Ok(CheckpointStep::NeedsFlush);
                }
                self.write_superblock(&next.snapshot, 1).map_err(|e| self.stop(&e))?;
                checkpointer.phase = Phase::Named(next, self.want_flush());
                if self.settings.has(PlantedBug::ReleasedEarly) {
                    self.end_early(&mut checkpointer);
                }
            }
            Phase::Named(next, note) => {
                if !flushed_after(note) {
                    checkpointer.phase = Phase::Named(next, note);
                    return Ok(CheckpointStep::NeedsFlush);
                }
                let (next, old) = match self.in_place() {
                    true => (next, None),
                    false => self.make_current(next),
                };
                self.write_superblock(&next.snapshot, 0).map_err(|e| self.stop(&e))?;
                checkpointer.phase = Phase::Twinned(next, old, self.want_flush());
            }
            Phase::Twinned(next, old, note) => {
                if !flushed_after(note) {
                    checkpointer.phase = Phase::Twinned(next, old, note);
                    return Ok(CheckpointStep::NeedsFlush);
                }
                let (next, old) = if old.is_some() { (next, old) } else { self.make_current(next) };
                checkpointer.phase = old.map_or(Phase::Idle, |old| Phase::Releasing(next, old));
            }
            Phase::Releasing(next, old) => {
                if Arc::strong_count(&old) > 1 {
                    checkpointer.phase = Phase::Releasing(next, old);
                    return Ok(CheckpointStep::NeedsReaders);
                }
                self.forget_counts(&next.reclaimed.blocks).map_err(|e| self.stop(&e))?;
                self.release(&mut checkpointer.deferred, *next);
            }
        }
        Ok(CheckpointStep::Advanced)
    }

    /// Runs the steps of a checkpoint to its end, flushing as needed. Does not wait for readers.
    ///
    /// # Errors
    /// As [`checkpoint_step`](Self::checkpoint_step).
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_to_end(Reason::Changes).map(|_| ())
    }

    /// Returns whether the checkpoint ended; it has not when a reader is in the way.
    pub(crate) fn checkpoint_to_end(&self, mut reason: Reason) -> Result<bool> {
        loop {
            match self.checkpoint_advance(reason)? {
                CheckpointStep::Idle => return Ok(true),
                CheckpointStep::NeedsReaders => return Ok(false),
                CheckpointStep::NeedsFlush => {
                    self.flush_and_publish()?;
                }
                CheckpointStep::Advanced
                    if matches!(self.checkpointing.lock().phase, Phase::Idle) =>
                {
                    return Ok(true);
                }
                CheckpointStep::Advanced => reason = Reason::Changes,
            }
        }
    }

    /// Checkpoints until all published windows are durable; returns whether it did anything. It
    /// stops where a reader is in the way.
    pub(crate) fn commit_by_checkpoint(&self) -> Result<bool> {
        let published = {
            let state = self.state.lock();
            if state.acknowledged >= state.durable {
                return Ok(false);
            }
            state.durable
        };
        while self.state.lock().acknowledged < published {
            match self.checkpoint_advance(Reason::Changes)? {
                CheckpointStep::NeedsFlush => drop(self.flush_and_publish()?),
                CheckpointStep::NeedsReaders => break,
                // Nothing came of the windows.
                CheckpointStep::Idle => self.state.lock().acknowledged = published,
                CheckpointStep::Advanced => {}
            }
        }
        Ok(true)
    }

    /// Makes everything durable, carries it into the tables, and marks the store clean: the next
    /// opening has nothing to recover. Nobody may be reading. The engine takes no more writes
    /// afterwards.
    ///
    /// # Errors
    /// `Stopped`, or `Busy` when somebody is reading.
    pub fn close(&self) -> Result<()> {
        self.flush()?;
        // One that is under way, one for what was published since, and as many as the discards
        // take.
        while self.checkpoint_useful() || !matches!(self.checkpointing.lock().phase, Phase::Idle) {
            if !self.checkpoint_to_end(Reason::Changes)? {
                return Err(Error::new(Kind::Busy, "a reader is still at work"));
            }
        }
        if self.scheme.records() != Records::Nowhere {
            self.checkpoint_to_end(Reason::Clean)?;
        }
        self.state.lock().fail_stop.close();
        Ok(())
    }

    /// Asks for a flush, and gives the number of the last one that began too early for what was
    /// written just now.
    fn want_flush(&self) -> u64 {
        self.state.lock().flushes.want()
    }

    /// Writes the superblock of a version: as the one `before` its number, which is the number of
    /// its twin. Versions go to the two places by turns, so that none is written over the only
    /// good one.
    pub(crate) fn write_superblock(&self, snapshot: &Snapshot, before: u64) -> Result<()> {
        let sequence = snapshot.state.sequence - before;
        let superblock = Superblock {
            fixed: self.fixed.clone(),
            state: superblock::State { sequence, ..snapshot.state.clone() },
        };
        let place = (sequence % 2) as u32;
        let block = superblock.encode(place);
        let refs = [BlockRef { block: &block, class: Class::Super }];
        self.disk.write(&[Run { at: SUPERBLOCKS[place as usize], blocks: &refs }])?;
        add(&self.counters.super_blocks, 1);
        Ok(())
    }

    /// The superblock is durable: reads go to the new version.
    fn make_current(
        &self,
        mut next: Box<NextCheckpoint>,
    ) -> (Box<NextCheckpoint>, Option<Arc<Snapshot>>) {
        add(&self.counters.checkpoints, 1);
        let mut state = self.state.lock();
        let old = std::mem::replace(&mut state.snapshot, next.snapshot.clone());
        state.frozen = None;
        state.built = false;
        state.acknowledged = state.acknowledged.max(next.snapshot.state.committed);
        if self.in_place() && !state.catalogue_waits() {
            state.acknowledged = state.durable;
        }
        state.leaves_wanted &= !next.leaves_wanted;
        state.releasing = true;
        if let Some(filter) = next.filter.take() {
            self.index.lock().finish_spill(filter);
        }
        (next, Some(old))
    }

    /// Makes free what the new version does not need, but for blocks that newer records name.
    fn release(&self, deferred: &mut Vec<Pba>, next: NextCheckpoint) {
        let mut state = self.state.lock();
        let pinned = state.pinned();
        let named = |pba: &&Pba| {
            !self.in_place() && (pinned.contains(pba) || state.active.pins.contains(*pba))
        };
        let (kept, freed): (Vec<Pba>, Vec<Pba>) = next.freed.iter().partition(named);
        state.allocator.release(
            &freed,
            &next.zones,
            next.snapshot.state.committed,
            kept.iter().copied().collect(),
        );
        state.zone_table = next.snapshot.state.zones;
        state.releases += 1;
        state.releasing = false;
        state.checkpoint_wanted = false;
        self.coverage.add(Mark::BlocksKept, kept.len());
        *deferred = kept;
        deferred.extend(next.reclaimed.put_off);
        state.deferred = deferred.len();
    }

    /// Releases before the superblock is durable: a planted bug.
    fn end_early(&self, checkpointer: &mut Checkpointer) {
        if let Phase::Named(next, _) = std::mem::take(&mut checkpointer.phase) {
            let (next, _) = self.make_current(next);
            // A failure stops the store at its next write.
            let _ = self.write_superblock(&next.snapshot, 0);
            self.release(&mut checkpointer.deferred, *next);
        }
    }
}
