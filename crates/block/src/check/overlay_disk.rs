//! A disk whose writes stay in memory, over one that is never touched: what recovery would do to a
//! store can be looked at without doing it.
//!
//! Threads: any; a read sees each block as it was or as it became.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use onefold_core::{Block, Disk, Error, Kind, Pba, Read, Result, Run};
use parking_lot::RwLock;

/// Reads from a base, writes to memory.
pub(crate) struct OverlayDisk {
    base: Arc<dyn Disk>,
    written: RwLock<BTreeMap<u64, Box<Block>>>,
    blocks_max: usize,
    overflowed: AtomicBool,
}

impl OverlayDisk {
    /// Over `base`, with room for `bytes` bytes of writes.
    pub(crate) fn new(base: Arc<dyn Disk>, bytes: u64) -> OverlayDisk {
        let blocks_max = usize::try_from(bytes / 4096).unwrap_or(usize::MAX);
        OverlayDisk {
            base,
            written: RwLock::default(),
            blocks_max,
            overflowed: AtomicBool::new(false),
        }
    }

    /// True when a block is not the base's.
    pub(crate) fn is_written(&self, pba: Pba) -> bool {
        self.written.read().contains_key(&pba.0)
    }

    /// True when a write failed because there was no room for it.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }
}

impl Disk for OverlayDisk {
    fn blocks(&self) -> u64 {
        self.base.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        self.base.read(reads);
        let written = self.written.read();
        for read in reads {
            let mut covered = 0;
            for (&at, block) in written.range(read.at.0..read.at.0 + read.into.len() as u64) {
                read.into[(at - read.at.0) as usize].0 = block.0;
                covered += 1;
            }
            if covered == read.into.len() {
                read.result = Ok(());
            }
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        let mut written = self.written.write();
        for run in runs {
            if run.at.0 + run.blocks.len() as u64 > self.blocks() {
                return Err(Error::new(
                    Kind::InvalidInput,
                    format!(
                        "a write of {} blocks at {} is beyond the disk",
                        run.blocks.len(),
                        run.at
                    ),
                ));
            }
            for (at, block) in (run.at.0..).zip(run.blocks) {
                if written.len() >= self.blocks_max && !written.contains_key(&at) {
                    self.overflowed.store(true, Ordering::Relaxed);
                    return Err(Error::new(
                        Kind::NoSpace,
                        "no memory is left for what recovery would write",
                    ));
                }
                written.entry(at).or_insert_with(Block::zeroed).0 = block.block.0;
            }
        }
        Ok(())
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.write(std::slice::from_ref(run))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, _: Pba, _: u64) -> Result<()> {
        Ok(())
    }
}
