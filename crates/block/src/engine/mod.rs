//! The engine: what happens to a write, step by step, without threads.
//!
//! Gather (`gather.rs`) → close → fingerprint, look up, place (`prepare.rs`) → write, make durable,
//! publish (verbs of the scheme); checkpoints (`checkpoint/`) carry published records into the
//! tables. Each step is a call, so that the simulator owns the schedule and [`crate::Store`] runs
//! the same steps from threads.
//!
//! An [`Engine`] offers these steps; they are functions over its kernel, which holds the owners
//! behind their locks, and its scheme.
//!
//! After each step of a closed window this is true:
//! 1. *written*: the blocks and carriers of the window may be on the disk, in any part; nobody was
//!    told.
//! 2. *flushed* (or written durably): all of it is on the disk. The window is durable once every
//!    window before it is.
//! 3. *published*: the records are in the active overlay, `durable` has risen, waiting clients are
//!    answered.
//!
//! A crash before 2 leaves records that are believed one by one if the block that they name hashes
//! to their fingerprint; after 2 recovery finds all of them.

pub(crate) mod act_room;
pub(crate) mod acts;
pub(crate) mod admission;
#[cfg(feature = "planted-bugs")]
mod broken;
pub(crate) mod catalogue;
pub(crate) mod checkpoint;
pub(crate) mod close;
pub(crate) mod compact;
pub(crate) mod create;
pub(crate) mod data_keys;
mod domain_limits;
mod domain_room;
pub(crate) mod domains;
pub(crate) mod durable_states;
pub(crate) mod free_blocks;
mod freshness;
pub(crate) mod gather;
pub(crate) mod growth;
pub(crate) mod idle;
mod kept_room;
pub(crate) mod key_changes;
pub(crate) mod keys;
pub(crate) mod lookup;
mod map_pages;
mod moving;
pub(crate) mod offers;
pub(crate) mod opening;
pub(crate) mod prepare;
pub(crate) mod quota;
pub(crate) mod read;

pub(crate) mod resolve;
pub(crate) mod status;
pub(crate) mod tenants;
pub(crate) mod zone_list;
pub(crate) mod zone_list_flush;

use std::sync::Arc;

pub use acts::Asked;
pub use admission::Filled;
pub use catalogue::{NewVolume, Setting};
pub use checkpoint::CheckpointStep;
use onefold_core::{BlockRead, Clock, Disk, Error, Extent, Lba, Result, Ticket, VolumeId};
pub use status::{DomainStatus, Status, VolumeStatus};

use crate::{
    coverage::Mark,
    format::superblock::Fixed,
    kernel::Kernel,
    scheme::verbs::{Durability, Progress, Scheme},
    settings::{Format, Settings},
};
pub use crate::{
    idleness::Idleness,
    kernel::{Receiving, SnapshotOf, VolumeState},
};

/// The block engine over a disk.
pub struct Engine {
    pub(crate) kernel: Kernel,
    pub(crate) scheme: Box<dyn Scheme>,
}

impl Engine {
    /// Opens the store on a disk, recovering what a crash left. Everything that was acknowledged as
    /// durable is there.
    ///
    /// # Errors
    /// `InvalidInput` (not a store), `Unsupported` (too new), `Corrupt` (damaged; `repair`
    /// may help), `Io`.
    pub fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, settings: Settings) -> Result<Engine> {
        opening::open(disk, clock, settings).map(|(kernel, scheme)| Engine { kernel, scheme })
    }

    /// Makes an empty store on a disk. Durable on return.
    ///
    /// # Errors
    /// `InvalidInput` for impossible choices, or a disk that is too small; `Io`.
    pub fn format(disk: &dyn Disk, format: &Format) -> Result<()> {
        create::format(disk, format)
    }

    /// The choices of the store's creation.
    #[must_use]
    pub fn fixed(&self) -> &Fixed {
        &self.kernel.fixed
    }

    /// The settings that it was opened with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.kernel.settings
    }

    /// Everything with this ticket or a lower one is durable.
    #[must_use]
    pub fn durable(&self) -> Ticket {
        self.kernel.durable()
    }

    /// The reason, after the first failed write or flush.
    #[must_use]
    pub fn stopped(&self) -> Option<Error> {
        self.kernel.state.lock().fail_stop.reason().cloned()
    }

    /// How often rare branches were reached since the store was opened, those that were.
    #[must_use]
    pub fn reached(&self) -> Vec<(Mark, u64)> {
        self.kernel.coverage.counts()
    }

    /// The volumes and their numbers.
    #[must_use]
    pub fn volumes(&self) -> Vec<(VolumeId, VolumeState)> {
        catalogue::volumes(&self.kernel)
    }

    /// The number of a volume.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn find_volume(&self, name: &str) -> Result<VolumeId> {
        catalogue::find_volume(&self.kernel, name)
    }

    /// One volume as it is now.
    ///
    /// # Errors
    /// `NotFound` when it was deleted.
    pub fn volume(&self, id: VolumeId) -> Result<VolumeState> {
        catalogue::volume(&self.kernel, id)
    }

    /// Makes a volume. It exists for good when the ticket is durable.
    ///
    /// # Errors
    /// `Exists`, `InvalidInput`, `Busy` (run steps, then ask again), `NoSpace`.
    pub fn create_volume(&self, name: &str, blocks: u64) -> Result<(VolumeId, Ticket)> {
        catalogue::create_volume(&self.kernel, &*self.scheme, name, blocks)
    }

    /// As [`create_volume`](Self::create_volume), with ranges that are not deduplicated, limits for its
    /// clients, and a domain.
    ///
    /// # Errors
    /// As there; `NotFound`: there is no such domain.
    pub fn create_volume_with(
        &self,
        name: &str,
        blocks: u64,
        new: NewVolume,
    ) -> Result<(VolumeId, Ticket)> {
        catalogue::create_volume_with(&self.kernel, &*self.scheme, name, blocks, new)
    }

    /// Changes the size of a volume; shrinking drops what lies beyond.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub fn resize_volume(&self, id: VolumeId, blocks: u64) -> Result<Ticket> {
        catalogue::resize_volume(&self.kernel, &*self.scheme, id, blocks)
    }

    /// Gives a volume another name.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume).
    pub fn rename_volume(&self, id: VolumeId, name: &str) -> Result<Ticket> {
        catalogue::rename_volume(&self.kernel, &*self.scheme, id, name)
    }

    /// Gives a volume another setting.
    ///
    /// # Errors
    /// As [`create_volume`](Self::create_volume); `Unsupported` for a quota where maps are not counted.
    pub fn set(&self, id: VolumeId, setting: Setting) -> Result<Ticket> {
        catalogue::set(&self.kernel, &*self.scheme, id, setting)
    }

    /// Deletes a volume; its blocks become free in the background.
    ///
    /// # Errors
    /// `NotFound`, `Busy`.
    pub fn delete_volume(&self, id: VolumeId) -> Result<Ticket> {
        catalogue::delete_volume(&self.kernel, &*self.scheme, id)
    }

    /// From now on the volumes are those of several tenants, as long as there is more than one:
    /// what a client writes is admitted as if it were new, and refused at a free space that is
    /// drawn from `secret`. Nothing of it is durable.
    pub fn keep_tenants_apart(&self, secret: [u8; 32]) {
        tenants::keep_tenants_apart(&self.kernel, secret)
    }

    /// Writes bytes of any alignment. Acknowledge it when it returns (weak persistence), or when
    /// its ticket is durable.
    ///
    /// # Errors
    /// `Busy` when steps must be run first: a part of the data may have been taken, and the same
    /// call may be made again; see [`write_from`](Self::write_from). `NoSpace` when the store
    /// is full. `InvalidInput` beyond the end.
    pub fn write(&self, volume: VolumeId, offset: u64, data: &[u8]) -> Result<Ticket> {
        gather::write(&self.kernel, &*self.scheme, volume, offset, data)
    }

    /// As [`write`](Self::write), for callers that ask again when it is `Busy`: `taken` counts the
    /// bytes that were taken already, from 0 on. A call that began anew each time could fill
    /// with its beginning what it waits for to become empty.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_from(
        &self,
        volume: VolumeId,
        offset: u64,
        data: &[u8],
        taken: &mut u64,
    ) -> Result<Ticket> {
        gather::write_from(&self.kernel, &*self.scheme, volume, offset, data, taken)
    }

    /// Makes bytes read as zeroes; the blocks that they fill become free. With `keep` they show as
    /// written zeroes, else as a hole. `taken` counts the bytes that were taken already; see
    /// [`write_from`](Self::write_from).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_zeroes(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        keep: bool,
        taken: &mut u64,
    ) -> Result<Ticket> {
        gather::write_zeroes(&self.kernel, &*self.scheme, volume, offset, bytes, keep, taken)
    }

    /// Drops bytes. Blocks that are not filled by them are left as they are: trimming is advice.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn trim(&self, volume: VolumeId, offset: u64, bytes: u64) -> Result<Ticket> {
        gather::trim(&self.kernel, &*self.scheme, volume, offset, bytes)
    }

    /// Closes the open window, if it holds anything: the next step is
    /// [`prepare_window`](Self::prepare_window).
    pub fn close_window(&self) -> bool {
        self.kernel.state.lock().windows.close()
    }

    /// The counters since the store was opened.
    #[must_use]
    pub fn counts(&self) -> crate::counters::Counts {
        self.kernel.counters.counts()
    }

    /// Reads block ranges of a volume; the device reads of the whole batch are issued together.
    /// Every block that comes from the disk is compared with its fingerprint.
    pub fn read(&self, volume: VolumeId, reads: &mut [BlockRead<'_>]) {
        read::read(&self.kernel, volume, reads);
    }

    /// As [`read`](Self::read), for a client that reads in order. What lies scattered is kept for a while,
    /// so that idle work moves it together and reads it no second time.
    pub fn read_in_order(&self, volume: VolumeId, reads: &mut [BlockRead<'_>]) {
        moving::read_in_order(&self.kernel, &*self.scheme, volume, reads);
    }

    /// The extents of a range of blocks: at most `limit` of them in bytes, neighbours differing in
    /// kind; it may cover less than asked.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end; `Corrupt` or `Io` when the map can't be read.
    pub fn extents(
        &self,
        volume: VolumeId,
        first: Lba,
        blocks: u64,
        limit: usize,
    ) -> Result<Vec<Extent>> {
        read::extents(&self.kernel, volume, first, blocks, limit)
    }

    /// Prepares the oldest closed window: decides which blocks are duplicates, where the others go,
    /// and builds the carriers. Windows are prepared one at a time, in order. Returns whether
    /// there was one.
    ///
    /// # Errors
    /// `Corrupt` or `Io` when a table page that it needs can't be read; writes are stopped then.
    pub fn prepare_window(&self) -> Result<bool> {
        prepare::prepare_window(&self.kernel, &*self.scheme)
    }

    /// Writes the oldest prepared window, and pages of the zone list that are due. Returns whether
    /// there was one.
    ///
    /// # Errors
    /// The first failed write stops all writes.
    pub fn write_window(&self) -> Result<bool> {
        self.scheme.write(&self.kernel, Durability::Cached).map(Progress::advanced)
    }

    /// Writes the oldest prepared window durably in one go and publishes it, when it is one run and
    /// nothing else waits for a flush: one device write and no flush. Returns false, having
    /// done nothing, when that is not so.
    ///
    /// # Errors
    /// As [`write_window`](Self::write_window).
    pub fn write_window_durably(&self) -> Result<bool> {
        self.scheme.write(&self.kernel, Durability::AtOnce).map(Progress::advanced)
    }

    /// Makes the windows that were written durable, and publishes them, as far as none before them
    /// is missing: by one flush, or by the writes and flushes that the scheme needs. Returns
    /// whether anything waited for it.
    ///
    /// # Errors
    /// A failed flush stops all writes; it is never tried again.
    pub fn make_durable(&self) -> Result<bool> {
        let mut advanced = false;
        loop {
            let progress = self.scheme.make_durable(&self.kernel)?;
            advanced |= progress.advanced();
            if progress != Progress::Again {
                break;
            }
        }
        advanced |= checkpoint::commit_by_checkpoint(&self.kernel, &*self.scheme)?;
        Ok(checkpoint_for_windows(&self.kernel, &*self.scheme)? || advanced)
    }

    /// Runs the steps until everything gathered so far is durable.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn flush(&self) -> Result<()> {
        self.close_window();
        let newest = self.kernel.newest();
        loop {
            while self.prepare_window()? {}
            let single = self.kernel.has_one_closed_window();
            if !(single && self.write_window_durably()?) {
                while self.write_window()? {}
            }
            // A window may wait for leaves that only a checkpoint makes; the others need one round.
            let advanced = self.make_durable()?;
            let published = self.kernel.state.lock().windows.closed() == 0;
            if !advanced || self.durable() >= newest || published {
                return Ok(());
            }
        }
    }

    /// True when a checkpoint should begin: three quarters of a limit are used, or somebody waits
    /// for one.
    #[must_use]
    pub fn checkpoint_due(&self) -> bool {
        checkpoint::checkpoint_due(&self.kernel, &*self.scheme)
    }

    /// True when a checkpoint would change anything.
    #[must_use]
    pub fn checkpoint_useful(&self) -> bool {
        checkpoint::checkpoint_useful(&self.kernel, &*self.scheme)
    }

    /// True between the steps of a checkpoint.
    #[must_use]
    pub fn checkpoint_running(&self) -> bool {
        checkpoint::checkpoint_running(&self.kernel)
    }

    /// Makes one step of a checkpoint; begins one when anything was published since the last.
    ///
    /// # Errors
    /// The first failed write or damaged page stops all writes.
    pub fn checkpoint_step(&self) -> Result<CheckpointStep> {
        checkpoint::checkpoint_step(&self.kernel, &*self.scheme)
    }

    /// Runs the steps of a checkpoint to its end, flushing as needed. Does not wait for readers.
    ///
    /// # Errors
    /// As [`checkpoint_step`](Self::checkpoint_step).
    pub fn checkpoint(&self) -> Result<()> {
        checkpoint::checkpoint(&self.kernel, &*self.scheme)
    }

    /// Makes everything durable, carries it into the tables, and marks the store clean: the next
    /// opening has nothing to recover. Nobody may be reading. The engine takes no more writes
    /// afterwards.
    ///
    /// # Errors
    /// `Stopped`, or `Busy` when somebody is reading.
    pub fn close(&self) -> Result<()> {
        self.flush()?;
        close::close(&self.kernel, &*self.scheme)
    }

    /// Does a little idle work. Returns whether there may be more.
    ///
    /// # Errors
    /// The first failed write stops all writes.
    pub fn idle_step(&self, idleness: Idleness) -> Result<bool> {
        idle::idle_step(&self.kernel, &*self.scheme, idleness)
    }

    /// Tells how full the structures with limits are.
    #[must_use]
    pub fn filled(&self) -> Filled {
        admission::filled(&self.kernel)
    }

    /// The store at this moment.
    #[must_use]
    pub fn status(&self) -> Status {
        status::status(&self.kernel)
    }
}

/// Checkpoints as long as a closed window waits for one. Returns whether it did anything; it stops
/// where a reader is in the way.
fn checkpoint_for_windows(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let mut made = false;
    while kernel.state.lock().checkpoint_awaited {
        match checkpoint::forced_checkpoint_step(kernel, scheme)? {
            CheckpointStep::NeedsFlush => drop(scheme.make_durable(kernel)?),
            CheckpointStep::NeedsReaders => break,
            CheckpointStep::Advanced | CheckpointStep::Idle => {}
        }
        made = true;
    }
    Ok(made)
}
