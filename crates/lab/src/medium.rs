//! The medium under a device model: keeps all that is written, and takes little memory for the
//! laboratory's own contents.
//!
//! A block that [`Content`](crate::Content) can make again is kept as its recipe of 18 bytes;
//! whether it can is found out by making it and comparing. All others are kept whole. So stores of
//! many gigabytes can be replayed in memory, and everything can be read back and compared.

use std::collections::HashMap;

use onefold_core::{Block, BlockRef, Disk, Error, Kind, Pba, Read, Result, Run};
use parking_lot::Mutex;

use crate::content::Recipe;

/// Blocks in memory; those that were never written are zeroes.
pub(crate) struct Medium {
    blocks: u64,
    kept: Mutex<HashMap<u64, Kept>>,
}

enum Kept {
    Recipe(Recipe),
    Whole(Box<Block>),
}

impl Medium {
    /// A medium of `blocks` blocks, which takes no memory yet.
    pub(crate) fn new(blocks: u64) -> Medium {
        Medium { blocks, kept: Mutex::default() }
    }

    fn check(&self, at: Pba, blocks: u64) -> Result<()> {
        if at.0.checked_add(blocks).is_some_and(|end| end <= self.blocks) {
            return Ok(());
        }
        Err(Error::new(
            Kind::InvalidInput,
            format!(
                "{blocks} blocks at {at} reach beyond the end of the medium ({} blocks)",
                self.blocks
            ),
        ))
    }

    fn store(&self, at: Pba, blocks: &[BlockRef<'_>]) {
        let mut kept = self.kept.lock();
        for (n, block) in blocks.iter().enumerate() {
            let at = at.0 + n as u64;
            if block.block.is_zero() {
                kept.remove(&at);
                continue;
            }
            kept.insert(
                at,
                Recipe::of(block.block)
                    .map_or_else(|| Kept::Whole(Box::new(block.block.clone())), Kept::Recipe),
            );
        }
    }

    fn load(&self, read: &mut Read<'_>) -> Result<()> {
        self.check(read.at, read.into.len() as u64)?;
        let kept = self.kept.lock();
        for (n, block) in read.into.iter_mut().enumerate() {
            match kept.get(&(read.at.0 + n as u64)) {
                None => block.0.fill(0),
                Some(Kept::Recipe(recipe)) => recipe.fill(block),
                Some(Kept::Whole(whole)) => block.0 = whole.0,
            }
        }
        Ok(())
    }
}

impl Disk for Medium {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.load(read);
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        runs.iter().try_for_each(|run| self.write_durable(run))
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.check(run.at, run.blocks.len() as u64)?;
        self.store(run.at, run.blocks);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.check(at, blocks)
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::Class;

    use super::*;
    use crate::Content;

    #[test]
    fn what_was_written_is_read_again() {
        let medium = Medium::new(10);
        let mut blocks = Block::zeroed_vec(3);
        Content::numbered(1, 1, 3000).fill(&mut blocks[0]);
        blocks[1].0[7] = 9;
        let refs: Vec<BlockRef<'_>> =
            blocks.iter().map(|block| BlockRef { block, class: Class::Data }).collect();
        medium.write(&[Run { at: Pba(4), blocks: &refs }]).unwrap();
        let mut into = Block::zeroed_vec(5);
        into.iter_mut().for_each(|block| block.0.fill(7));
        let mut reads = [Read::new(Pba(3), &mut into)];
        medium.read(&mut reads);
        reads[0].result.clone().unwrap();
        assert!(
            into[1].0 == blocks[0].0
                && into[2].0 == blocks[1].0
                && [0, 3, 4].iter().all(|&n| into[n].is_zero())
        );
        assert_eq!(
            medium.write(&[Run { at: Pba(8), blocks: &refs }]).unwrap_err().kind(),
            Kind::InvalidInput
        );
        let mut reads = [Read::new(Pba(9), &mut into)];
        medium.read(&mut reads);
        assert_eq!(reads[0].result.clone().unwrap_err().kind(), Kind::InvalidInput);
    }
}
