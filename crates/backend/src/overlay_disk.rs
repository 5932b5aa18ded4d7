//! [`OverlayDisk`]: a disk that is only read, with all writes kept in memory.
//!
//! It lets an engine open a store that must not change, recovery and all: what recovery writes is seen by later reads and is gone with
//! the value. Memory grows with what is written, so it is for looking, not for working.
//!
//! Threads: any number; one lock over what was written, which a read holds only to copy.

use std::{collections::HashMap, sync::Arc};

use onefold_core::{Block, Disk, Pba, Read, Result, Run};
use parking_lot::RwLock;

use crate::range;

/// A disk under which another one stays as it is.
pub struct OverlayDisk {
    base: Arc<dyn Disk>,
    written: RwLock<HashMap<u64, Box<Block>>>,
}

impl OverlayDisk {
    /// A disk with the content of `base`.
    #[must_use]
    pub fn new(base: Arc<dyn Disk>) -> OverlayDisk {
        OverlayDisk { base, written: RwLock::default() }
    }

    /// Blocks that were written, and are kept in memory.
    #[must_use]
    pub fn written_blocks(&self) -> usize {
        self.written.read().len()
    }

    fn check(&self, at: Pba, blocks: u64) -> Result<()> {
        range::offset("the copy in memory", self.base.blocks(), at, blocks).map(|_| ())
    }

    fn keep(&self, run: &Run<'_>) {
        let mut written = self.written.write();
        for (at, from) in (run.at.0..).zip(run.blocks) {
            written.insert(at, Box::new(from.block.clone()));
        }
    }
}

impl Disk for OverlayDisk {
    fn blocks(&self) -> u64 {
        self.base.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        self.base.read(reads);
        let written = self.written.read();
        for read in reads.iter_mut().filter(|read| self.check(read.at, read.into.len() as u64).is_ok()) {
            let mut fresh = 0;
            for (at, into) in (read.at.0..).zip(read.into.iter_mut()) {
                if let Some(block) = written.get(&at) {
                    into.0 = block.0;
                    fresh += 1;
                }
            }
            // What was written over a bad place of the disk below can be read.
            if fresh > 0 && fresh == read.into.len() {
                read.result = Ok(());
            }
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        runs.iter().try_for_each(|run| self.check(run.at, run.blocks.len() as u64))?;
        runs.iter().for_each(|run| self.keep(run));
        Ok(())
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.write(std::slice::from_ref(run))
    }

    /// Nothing outlives the value, so there is nothing to do.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.check(at, blocks)
    }
}
