//! A disk that remembers in which order it was written and flushed, so that any moment of it, and
//! any part of what no flush covered, can be had again.

use std::{collections::HashMap, sync::Arc};

use onefold_core::{BLOCK_BYTES, Block, Disk, Error, Kind, Pba, Read, Result, Run};
use onefold_testbed::SplitMix;
use parking_lot::Mutex;

/// Blocks of the medium; those that were never written are zeroes.
pub(super) type Image = HashMap<u64, Arc<Block>>;

/// Bytes that a disk writes as a whole.
const SECTOR_BYTES: usize = 512;

/// A request to a disk.
pub(super) enum Step {
    /// Blocks went into its cache.
    Write(Vec<(u64, Arc<Block>)>),
    /// The write before is durable, and nothing else.
    Durable,
    /// Everything is.
    Flush,
}

/// A disk in memory that keeps its steps.
pub(super) struct Journal {
    blocks: u64,
    state: Mutex<(Image, Vec<Step>)>,
}

impl Journal {
    /// A disk that holds `image`.
    pub(super) fn new(blocks: u64, image: Image) -> Journal {
        Journal { blocks, state: Mutex::new((image, Vec::new())) }
    }

    /// Steps so far.
    pub(super) fn len(&self) -> usize {
        self.state.lock().1.len()
    }

    /// The steps, when nobody needs the disk any more.
    pub(super) fn take(&self) -> Vec<Step> {
        std::mem::take(&mut self.state.lock().1)
    }

    fn keep(&self, runs: &[Run<'_>], durable: bool) -> Result<()> {
        let mut state = self.state.lock();
        let mut written = Vec::new();
        for run in runs {
            if run.at.0 + run.blocks.len() as u64 > self.blocks {
                return Err(Error::new(
                    Kind::InvalidInput,
                    format!("a write at {} reaches beyond the disk", run.at),
                ));
            }
            written.extend(
                (run.at.0..).zip(run.blocks).map(|(at, block)| (at, Arc::new(block.block.clone()))),
            );
        }
        state.0.extend(written.iter().cloned());
        state.1.push(Step::Write(written));
        if durable {
            state.1.push(Step::Durable);
        }
        Ok(())
    }
}

impl Disk for Journal {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        let state = self.state.lock();
        for read in reads {
            for (at, block) in (read.at.0..).zip(read.into.iter_mut()) {
                match state.0.get(&at) {
                    Some(kept) => block.0 = kept.0,
                    None => block.0.fill(0),
                }
            }
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        self.keep(runs, false)
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.keep(&[*run], true)
    }

    fn flush(&self) -> Result<()> {
        self.state.lock().1.push(Step::Flush);
        Ok(())
    }

    fn allocate(&self, _: Pba, _: u64) -> Result<()> {
        Ok(())
    }
}

/// The part of the unflushed writes that a power failure leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    All,
    /// Some, some not, some in part.
    Torn,
}

/// The medium as it is told by the steps.
#[derive(Default)]
pub(super) struct Medium {
    durable: Image,
    cached: Vec<(u64, Arc<Block>)>,
    /// Where the last write begins among those.
    last: usize,
}

impl Medium {
    pub(super) fn step(&mut self, step: &Step) {
        match step {
            Step::Write(blocks) => {
                self.last = self.cached.len();
                self.cached.extend(blocks.iter().cloned());
            }
            Step::Durable => self.durable.extend(self.cached.drain(self.last..)),
            Step::Flush => {
                self.durable.extend(self.cached.drain(..));
                self.last = 0;
            }
        }
    }

    /// True when a power failure can leave different things.
    pub(super) fn is_open(&self) -> bool {
        !self.cached.is_empty()
    }

    /// The medium after a power failure.
    pub(super) fn cut(&self, left: Left, rng: &mut SplitMix) -> Image {
        let mut image = self.durable.clone();
        for (at, block) in &self.cached {
            let sectors = match left {
                Left::Nothing => 0,
                Left::All => u8::MAX,
                Left::Torn => [0, u8::MAX, rng.below(256) as u8][rng.below(3) as usize],
            };
            match sectors {
                0 => {}
                u8::MAX => drop(image.insert(*at, block.clone())),
                some => {
                    let mut torn = image
                        .get(at)
                        .map_or_else(Block::zeroed, |before| Box::new((**before).clone()));
                    let kept =
                        (0..BLOCK_BYTES / SECTOR_BYTES).filter(|sector| some >> sector & 1 == 1);
                    kept.map(|sector| sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES)
                        .for_each(|range| torn.0[range.clone()].copy_from_slice(&block.0[range]));
                    image.insert(*at, Arc::from(torn));
                }
            }
        }
        image
    }
}
