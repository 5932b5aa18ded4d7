//! No deduplication: the baseline of the OrderMergeDedup paper. Each block goes to its own address,
//! each request in one run.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    sync::Arc,
    time::Duration,
};

use onefold_core::{Block, BlockRef, Class, Disk, Lba, Pba, Read, Result, Run};

use super::{Choice, Subject, Tally};
use crate::device::Device;

/// Blocks gathered until they are written, as a block layer's queue does.
const WINDOW_BLOCKS: usize = 256;

/// Blocks that may be answered and not durable: as many as the engine's.
const UNFLUSHED_BLOCKS: usize = 8192;

/// A volume without a store.
pub(super) struct Original {
    device: Arc<Device>,
    window_blocks: usize,
    blocks: u64,
    gathered: RefCell<BTreeMap<u64, Box<Block>>>,
    windows: Cell<u64>,
    zero_blocks: Cell<u64>,
}

impl Original {
    pub(super) fn new(choice: &Choice, volume_blocks: u64, device: Arc<Device>) -> Original {
        let window_blocks = choice.window_blocks.unwrap_or(WINDOW_BLOCKS);
        let (gathered, windows, zero_blocks) =
            (RefCell::default(), Cell::default(), Cell::default());
        Original { device, window_blocks, blocks: volume_blocks, gathered, windows, zero_blocks }
    }

    fn write_gathered(&self) -> Result<()> {
        let gathered = self.gathered.take();
        if gathered.is_empty() {
            return Ok(());
        }
        let refs: Vec<(u64, BlockRef<'_>)> = gathered
            .iter()
            .map(|(&at, block)| (at, BlockRef { block, class: Class::Data }))
            .collect();
        let blocks: Vec<BlockRef<'_>> = refs.iter().map(|&(_, block)| block).collect();
        let mut runs = Vec::new();
        let mut done = 0;
        for run in refs.chunk_by(|a, b| a.0 + 1 == b.0) {
            runs.push(Run { at: Pba(run[0].0), blocks: &blocks[done..done + run.len()] });
            done += run.len();
        }
        self.windows.set(self.windows.get() + 1);
        self.device.write(&runs)
    }
}

impl Subject for Original {
    fn write(&self, first: Lba, blocks: &[Block], taken: &mut usize) -> Result<()> {
        assert!(first.0 + blocks.len() as u64 <= self.blocks, "a source stays within its volume");
        for (n, block) in blocks.iter().enumerate().skip(*taken) {
            self.zero_blocks.set(self.zero_blocks.get() + u64::from(block.is_zero()));
            // Without a store every write reaches the device, also one that is overwritten at once.
            if self.gathered.borrow().contains_key(&(first.0 + n as u64)) {
                self.write_gathered()?;
            }
            self.gathered.borrow_mut().insert(first.0 + n as u64, Box::new(block.clone()));
            *taken += 1;
        }
        Ok(())
    }

    fn drop_blocks(&self, first: Lba, blocks: u64, _: bool) -> Result<()> {
        // The device may do what it likes with a trim, but the range must read as zeroes
        // afterwards.
        self.write_gathered()?;
        let zero = Block::zeroed();
        let refs = [BlockRef { block: &zero, class: Class::Data }];
        for at in first.0..(first.0 + blocks).min(self.blocks) {
            self.device.forget(&Run { at: Pba(at), blocks: &refs })?;
        }
        Ok(())
    }

    fn read(&self, first: Lba, into: &mut [Block]) -> Result<()> {
        let mut reads = [Read::new(Pba(first.0), into)];
        self.device.read(&mut reads);
        let [read] = reads;
        read.result?;
        for (n, block) in read.into.iter_mut().enumerate() {
            if let Some(newer) = self.gathered.borrow().get(&(first.0 + n as u64)) {
                block.0 = newer.0;
            }
        }
        Ok(())
    }

    fn write_out(&self) -> Result<()> {
        if self.gathered.borrow().len() >= self.window_blocks {
            self.write_gathered()
        } else {
            Ok(())
        }
    }

    fn commit(&self) -> Result<()> {
        self.write_gathered()?;
        self.device.flush()
    }

    fn make_room(&self) -> Result<()> {
        self.commit()
    }

    fn requested(&self) {}

    fn background(&self) -> Result<Option<Duration>> {
        Ok(None)
    }

    fn finish(&self) -> Result<()> {
        if self.gathered.borrow().is_empty() { Ok(()) } else { self.commit() }
    }

    fn tally(&self) -> Tally {
        Tally {
            windows: self.windows.get(),
            zero_blocks: self.zero_blocks.get(),
            ..Tally::default()
        }
    }

    fn stored_blocks(&self) -> Option<u64> {
        None
    }

    fn unflushed_blocks(&self) -> usize {
        UNFLUSHED_BLOCKS
    }

    fn window_blocks(&self) -> usize {
        self.window_blocks
    }
}
