//! Disks and volumes in memory.

use std::{collections::HashMap, sync::Arc};

use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Disk, Error, Exports, Extent, ExtentKind, Kind, Pba, Read,
    Result, Run, Ticket, Volume, VolumeInfo,
};
use parking_lot::Mutex;

/// A disk that begins as an image, which it does not copy.
pub(crate) struct ImageDisk {
    image: &'static [Block],
    blocks: u64,
    changed: Mutex<HashMap<u64, Block>>,
}

impl ImageDisk {
    /// A disk of the first `blocks` blocks of the image, with some changed.
    pub(crate) fn new(
        image: &'static [Block],
        blocks: u64,
        changed: HashMap<u64, Block>,
    ) -> ImageDisk {
        ImageDisk { image, blocks, changed: Mutex::new(changed) }
    }

    fn check(&self, at: Pba, blocks: usize) -> Result<()> {
        let end = at.0.checked_add(blocks as u64);
        assert!(
            end.is_some_and(|end| end <= self.blocks),
            "the engine reaches beyond its disk: {blocks} blocks at {at}"
        );
        Ok(())
    }

    fn store(&self, run: &Run<'_>) -> Result<()> {
        self.check(run.at, run.blocks.len())?;
        let mut changed = self.changed.lock();
        for (at, block) in (run.at.0..).zip(run.blocks) {
            changed.insert(at, block.block.clone());
        }
        Ok(())
    }
}

impl Disk for ImageDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        let changed = self.changed.lock();
        for read in reads {
            read.result = self.check(read.at, read.into.len());
            for (at, into) in (read.at.0..).zip(read.into.iter_mut()) {
                into.0 = changed
                    .get(&at)
                    .or_else(|| self.image.get(at as usize))
                    .map_or([0; BLOCK_BYTES], |block| block.0);
            }
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        runs.iter().try_for_each(|run| self.store(run))
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.store(run)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.check(at, blocks as usize)
    }
}

/// A volume of bytes.
pub(crate) struct MemoryVolume(Mutex<Vec<u8>>);

impl MemoryVolume {
    fn range(&self, offset: u64, bytes: u64) -> Result<std::ops::Range<usize>> {
        let end = offset.checked_add(bytes).filter(|&end| end <= self.size());
        let end = end.ok_or_else(|| {
            Error::new(Kind::InvalidInput, "the range is beyond the end of the volume")
        })?;
        Ok(offset as usize..end as usize)
    }
}

impl Volume for MemoryVolume {
    fn size(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) {
        for read in reads {
            let bytes = onefold_core::block::bytes_mut(read.into);
            read.result = self
                .range(read.first.0.saturating_mul(BLOCK_BYTES as u64), bytes.len() as u64)
                .map(|range| {
                    bytes.copy_from_slice(&self.0.lock()[range]);
                });
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<Ticket> {
        let range = self.range(offset, data.len() as u64)?;
        self.0.lock()[range].copy_from_slice(data);
        Ok(Ticket(1))
    }

    fn trim(&self, offset: u64, bytes: u64) -> Result<Ticket> {
        self.write_zeroes(offset, bytes, false)
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, _: bool) -> Result<Ticket> {
        let range = self.range(offset, bytes)?;
        self.0.lock()[range].fill(0);
        Ok(Ticket(1))
    }

    fn wait(&self, _: Ticket) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn extents(&self, offset: u64, bytes: u64, limit: usize) -> Result<Vec<Extent>> {
        self.range(offset, bytes)?;
        let half = bytes / 2;
        let mut extents = vec![
            Extent { bytes: bytes - half, kind: ExtentKind::Data },
            Extent { bytes: half, kind: ExtentKind::Hole },
        ];
        extents.retain(|extent| extent.bytes > 0);
        extents.truncate(limit);
        Ok(extents)
    }

    fn prefetch(&self, offset: u64, bytes: u64) -> Result<()> {
        self.range(offset, bytes).map(|_| ())
    }
}

/// One volume called `disk`.
pub(crate) struct OneVolume(Arc<MemoryVolume>);

impl OneVolume {
    /// With a size in bytes.
    pub(crate) fn new(bytes: usize) -> OneVolume {
        OneVolume(Arc::new(MemoryVolume(Mutex::new(vec![7; bytes]))))
    }
}

impl Exports for OneVolume {
    fn list(&self) -> Vec<VolumeInfo> {
        vec![VolumeInfo { name: "disk".into(), size: self.0.size() }]
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Volume>> {
        if name == "disk" {
            Ok(self.0.clone())
        } else {
            Err(Error::new(Kind::NotFound, "there is no such volume"))
        }
    }
}
