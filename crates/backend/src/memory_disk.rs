//! [`MemoryDisk`]: a disk in memory, for tests and for benches inside one process.
//!
//! Memory is used only for blocks that were written, by pieces of 256 KiB, so that any capacity can
//! be asked for. The content ends with the value; a flush only counts.
//!
//! Threads: pieces are spread over shards, each with its own lock; a read or write that spans
//! pieces is not atomic, like on any disk.

use std::collections::HashMap;

use onefold_core::{BLOCK_BYTES, Block, Read, Result, Run};
use parking_lot::RwLock;

use crate::counted::{Counted, Place};

/// Blocks that get memory together: few enough map entries for large disks, little waste for
/// scattered small ones.
const PIECE_BLOCKS: u64 = 64;

/// Locks, for benches on many cores.
const SHARDS: u64 = 64;

type Shard = RwLock<HashMap<u64, Vec<Block>>>;

/// A disk whose blocks are in memory; unwritten ones are zero.
pub type MemoryDisk = Counted<Pieces>;

/// Pieces of memory, by number.
pub struct Pieces(Vec<Shard>);

impl MemoryDisk {
    /// A disk of `blocks` blocks of zeroes, which takes no memory yet.
    #[must_use]
    pub fn new(blocks: u64) -> MemoryDisk {
        Counted::over(Pieces((0..SHARDS).map(|_| Shard::default()).collect()), blocks)
    }

    /// Bytes of memory taken for blocks.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let pieces: usize = self.place.0.iter().map(|shard| shard.read().len()).sum();
        pieces as u64 * PIECE_BLOCKS * BLOCK_BYTES as u64
    }
}

impl Pieces {
    fn shard(&self, piece: u64) -> &Shard {
        &self.0[(piece % SHARDS) as usize]
    }
}

impl Place for Pieces {
    const NAME: &str = "memory disk";

    fn load(&self, read: &mut Read<'_>) -> Result<()> {
        let mut at = read.at.0;
        let mut into = &mut *read.into;
        while !into.is_empty() {
            let (piece, first) = (at / PIECE_BLOCKS, (at % PIECE_BLOCKS) as usize);
            let n = into.len().min(PIECE_BLOCKS as usize - first);
            let (now, later) = into.split_at_mut(n);
            match self.shard(piece).read().get(&piece) {
                Some(blocks) => now.clone_from_slice(&blocks[first..first + n]),
                None => onefold_core::block::bytes_mut(now).fill(0),
            }
            (at, into) = (at + n as u64, later);
        }
        Ok(())
    }

    fn store(&self, run: &Run<'_>) -> Result<()> {
        let mut at = run.at.0;
        let mut from = run.blocks;
        while !from.is_empty() {
            let (piece, first) = (at / PIECE_BLOCKS, (at % PIECE_BLOCKS) as usize);
            let (now, later) = from.split_at(from.len().min(PIECE_BLOCKS as usize - first));
            let mut shard = self.shard(piece).write();
            let blocks =
                shard.entry(piece).or_insert_with(|| Block::zeroed_vec(PIECE_BLOCKS as usize));
            for (to, from) in blocks[first..].iter_mut().zip(now) {
                to.0 = from.block.0;
            }
            (at, from) = (at + now.len() as u64, later);
        }
        Ok(())
    }
}
