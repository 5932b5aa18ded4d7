//! A volume of a served store.

use std::{
    ops::Range,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use onefold_core::{
    Attempt, BLOCK_BYTES, BlockRead, Change, Changes, Error, Exports, Extent, Kind, Lba, Result,
    Ticket, Volume, VolumeId, VolumeInfo, VolumeLimits,
};

use super::{Store, handles::Handle};
use crate::{engine::catalogue, traffic::Counters};

/// How long who opens a volume waits for its rollback to end.
const ROLLBACK_WAIT: Duration = Duration::from_secs(10);

/// The blocks that have a byte of the range.
fn blocks_of(offset: u64, bytes: u64) -> Range<u64> {
    let block = BLOCK_BYTES as u64;
    offset / block..offset.saturating_add(bytes).div_ceil(block)
}

/// One volume; implements the [`Volume`] that servers know.
pub struct BlockVolume {
    store: Arc<Store>,
    id: VolumeId,
    handle: Handle,
    read_only: bool,
    traffic: Arc<Counters>,
}

impl BlockVolume {
    /// The volume, or the snapshot as in `vm1@monday`.
    pub(super) fn open(store: &Arc<Store>, name: &str) -> Result<BlockVolume> {
        let until = store.clock.now() + ROLLBACK_WAIT;
        loop {
            let seen = store.commit.progress();
            match BlockVolume::open_now(store, name) {
                Err(busy) if busy.kind() == Kind::Busy && store.clock.now() < until => {
                    store.commit.wait_for_progress(seen, super::ROOM_WAIT);
                }
                opened => return opened,
            }
        }
    }

    /// The same, or `Busy` while the volume is being rolled back.
    fn open_now(store: &Arc<Store>, name: &str) -> Result<BlockVolume> {
        let mut handles = store.handles.lock();
        let id = store.engine.find_volume(name)?;
        let read_only = match store.engine.kernel.state.lock().volumes.check_writable(id) {
            Err(error) if error.kind() == Kind::Denied => true,
            writable => writable.map(|()| false)?,
        };
        let traffic = store.traffic.of(id);
        Ok(BlockVolume { store: store.clone(), id, handle: handles.open(id), read_only, traffic })
    }
}

impl BlockVolume {
    pub(super) fn id(&self) -> VolumeId {
        self.id
    }

    /// A change of these bytes begins.
    fn change(&self, offset: u64, bytes: u64) -> Change<'_> {
        self.handle.changes().begin(blocks_of(offset, bytes))
    }

    /// Reads; what is read ahead is what a client reads in order.
    fn read_checked(&self, reads: &mut [BlockRead<'_>], is_ahead: bool) {
        if let Err(ended) = self.handle.check() {
            return reads.iter_mut().for_each(|read| read.result = Err(ended.clone()));
        }
        // The blocks that a client is about to ask for in order.
        if is_ahead {
            self.store.engine.read_in_order(self.id, reads);
        } else {
            self.store.engine.read(self.id, reads);
        }
        // What was rolled back meanwhile is not what was asked for.
        if let Err(ended) = self.handle.check() {
            reads.iter_mut().for_each(|read| read.result = Err(ended.clone()));
        }
    }

    /// Fails once it may not be used any more.
    pub(super) fn check(&self) -> Result<()> {
        self.handle.check()
    }
}

impl Drop for BlockVolume {
    fn drop(&mut self) {
        self.store.handles.lock().close(self.id, &self.handle);
    }
}

impl Volume for BlockVolume {
    fn size(&self) -> u64 {
        self.store.engine.volume(self.id).map_or(0, |volume| volume.blocks * BLOCK_BYTES as u64)
    }

    fn current_name(&self) -> Option<String> {
        catalogue::name_of(&self.store.engine.kernel, self.id)
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        let blocks: usize = reads.iter().map(|read| read.into.len()).sum();
        self.traffic.read(reads.len() as u64, (blocks * BLOCK_BYTES) as u64);
        self.read_checked(reads, false);
    }

    fn changes(&self) -> Option<&Changes> {
        Some(self.handle.changes())
    }

    fn was_read_ahead(&self, reads: u64, bytes: u64) {
        self.traffic.read(reads, bytes);
    }

    fn read_ahead(&self, reads: &mut [BlockRead<'_>]) {
        self.read_checked(reads, true);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        let mut attempt = Attempt::default();
        self.store.changes().until_there_is_room(|| self.try_write(offset, data, &mut attempt))
    }

    fn try_write(&self, offset: u64, data: &[u8], attempt: &mut Attempt) -> Result<Poll<Ticket>> {
        let written = self.store.changes().attempt_of_data(attempt, |taken| {
            let _inside = self.handle.enter()?;
            let _change = self.change(offset, data.len() as u64);
            self.store.engine.write_from(self.id, offset, data, taken)
        })?;
        if written.is_ready() {
            self.traffic.written(data.len() as u64);
        }
        Ok(written)
    }

    fn acknowledges_late(&self) -> bool {
        self.store.changes().is_strong()
    }

    fn durable(&self) -> Option<Ticket> {
        Some(self.store.engine.durable())
    }

    fn on_progress(&self, waker: &Waker) {
        self.store.changes().on_progress(waker);
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        let mut attempt = Attempt::default();
        self.store.changes().until_there_is_room(|| self.try_trim(offset, bytes, &mut attempt))
    }

    fn try_trim(&self, offset: u64, bytes: u64, attempt: &mut Attempt) -> Result<Poll<Ticket>> {
        self.store.changes().attempt_of_data(attempt, |_| {
            let _inside = self.handle.enter()?;
            let _change = self.change(offset, bytes);
            self.store.engine.trim(self.id, offset, bytes)
        })
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, keep: bool) -> Result<Ticket> {
        let mut attempt = Attempt::default();
        self.store
            .changes()
            .until_there_is_room(|| self.try_zeroes(offset, bytes, keep, &mut attempt))
    }

    fn try_zeroes(
        &self,
        offset: u64,
        bytes: u64,
        keep: bool,
        attempt: &mut Attempt,
    ) -> Result<Poll<Ticket>> {
        self.store.changes().attempt_of_data(attempt, |taken| {
            let _inside = self.handle.enter()?;
            let _change = self.change(offset, bytes);
            self.store.engine.write_zeroes(self.id, offset, bytes, keep, taken)
        })
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.store.commit.wait(ticket)
    }

    fn flush(&self) -> Result<()> {
        self.handle.check()?;
        self.store.commit.flush()
    }

    fn extents(&self, offset: u64, bytes: u64, limit: usize) -> Result<Vec<Extent>> {
        self.handle.check()?;
        let size = BLOCK_BYTES as u64;
        let end = offset.checked_add(bytes).ok_or_else(|| {
            Error::new(Kind::InvalidInput, "the range is beyond the end of the volume")
        })?;
        let (first, last) = (offset / size, end.div_ceil(size));
        let mut extents = self.store.engine.extents(self.id, Lba(first), last - first, limit)?;
        // Cut to the bytes that were asked for.
        if let Some(extent) = extents.first_mut() {
            extent.bytes -= offset - first * size;
        }
        let mut left = bytes;
        extents.retain_mut(|extent| {
            extent.bytes = extent.bytes.min(left);
            left -= extent.bytes;
            extent.bytes > 0
        });
        Ok(extents)
    }

    fn prefetch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The volumes of a store, for servers.
pub struct StoreExports(pub Arc<Store>);

impl Exports for StoreExports {
    fn list(&self) -> Vec<VolumeInfo> {
        let volumes = catalogue::names(&self.0.engine.kernel).into_iter();
        volumes
            .map(|(name, blocks)| VolumeInfo { name, size: blocks * BLOCK_BYTES as u64 })
            .collect()
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        Ok(Arc::new(BlockVolume::open(&self.0, name)?))
    }

    /// Of the snapshots of `vm1` it is `vm1@`, which no volume and no snapshot is called.
    fn shared_name(&self, name: &str) -> String {
        match self.0.find_snapshot(name) {
            Ok(_) => format!("{}@", name.rsplit_once('@').map_or(name, |(volume, _)| volume)),
            Err(_) => name.to_owned(),
        }
    }

    fn limits(&self, name: &str) -> Option<VolumeLimits> {
        let name = name.strip_suffix('@').unwrap_or(name);
        let id = self.0.engine.find_volume(name).ok()?;
        Some(self.0.engine.volume(id).ok()?.limits)
    }
}
