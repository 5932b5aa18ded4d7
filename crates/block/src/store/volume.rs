//! A volume of a served store.

use std::sync::Arc;

use onefold_core::{
    BLOCK_BYTES, BlockRead, Error, Exports, Extent, Kind, Lba, Result, Ticket, Volume, VolumeId,
    VolumeInfo, VolumeLimits,
};

use super::{Store, handles::Handle};

/// One volume; implements the [`Volume`] that servers know.
pub struct BlockVolume {
    store: Arc<Store>,
    id: VolumeId,
    handle: Handle,
    read_only: bool,
}

impl BlockVolume {
    /// The volume, or the snapshot as in `vm1@monday`.
    fn open(store: &Arc<Store>, name: &str) -> Result<BlockVolume> {
        let mut handles = store.handles.lock();
        let id = store.engine.find_volume(name)?;
        let read_only = store.engine.volume(id)?.snapshot.is_some();
        Ok(BlockVolume { store: store.clone(), id, handle: handles.open(id), read_only })
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

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        if let Err(ended) = self.handle.check() {
            return reads.iter_mut().for_each(|read| read.result = Err(ended.clone()));
        }
        self.store.engine.read(self.id, reads);
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        self.handle.check()?;
        let mut taken = 0;
        self.store.data_change(|| self.store.engine.write_from(self.id, offset, data, &mut taken))
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        self.handle.check()?;
        self.store.data_change(|| self.store.engine.trim(self.id, offset, bytes))
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, keep: bool) -> Result<Ticket> {
        self.handle.check()?;
        let mut taken = 0;
        self.store.data_change(|| {
            self.store.engine.write_zeroes(self.id, offset, bytes, keep, &mut taken)
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
        let mut volumes: Vec<VolumeInfo> = self
            .0
            .engine
            .volumes()
            .into_iter()
            .map(|(_, volume)| VolumeInfo {
                name: volume.name,
                size: volume.blocks * BLOCK_BYTES as u64,
            })
            .collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        volumes
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        Ok(Arc::new(BlockVolume::open(&self.0, name)?))
    }

    fn limits(&self, name: &str) -> Option<VolumeLimits> {
        let id = self.0.engine.find_volume(name).ok()?;
        Some(self.0.engine.volume(id).ok()?.limits)
    }
}
