//! The thin scheme (ThinDedup II-A): the records of a window hide in as few compressed blocks as
//! can hold them.
//!
//! Blocks that look compressible are tried first. A window gives up after four blocks that did not
//! compress: a client whose data is compressed already pays for little. Records that found no room
//! go into carriers of their own, one more block of the same run.

use onefold_core::{Block, compress::Lz4};

use super::{Chosen, Scheme};
use crate::format::{
    carrier::{HEADER_BYTES, room_beside},
    record,
};

/// ThinDedup.
pub(crate) struct Thin;

impl Scheme for Thin {
    fn choose(&self, lz4: &mut Lz4, blocks: &[&Block], records: usize) -> Vec<Chosen> {
        choose(lz4, blocks, records)
    }
}

/// Blocks of a window that may fail to compress before the rest is not tried.
const FAILED_TRIES_MAX: usize = 4;

/// Numbers of distinct bytes, of [`distinct_bytes`], from which on blocks are less and less likely
/// to compress: of noise there are 57.
const LIKELY: [u32; 4] = [16, 28, 40, 53];

/// A block becomes a carrier only for this many records, or for all that are left: fewer would not
/// pay for expanding it at each read.
const RECORDS_WORTH: usize = 8;

/// Blocks of a window that are looked at for their likelihood to compress.
const LOOKED_AT_MAX: usize = 64;

/// Chooses carriers among a window's new blocks for `records` records.
fn choose(lz4: &mut Lz4, blocks: &[&Block], records: usize) -> Vec<Chosen> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    // Of blocks that look alike the first come first: a recovery then finds carriers next to each
    // other.
    order[..blocks.len().min(LOOKED_AT_MAX)].sort_by_cached_key(|&n| {
        LIKELY.partition_point(|&least| least <= distinct_bytes(blocks[n]))
    });
    let mut chosen = Vec::new();
    let (mut left, mut failed) = (records, 0);
    for n in order {
        if left == 0 || failed == FAILED_TRIES_MAX {
            break;
        }
        let worth = left.min(RECORDS_WORTH);
        let most = 4096 - HEADER_BYTES - worth * record::BYTES;
        match lz4.compress(blocks[n], most) {
            Some(payload) => {
                let room = room_beside(payload.len());
                chosen.push(Chosen { block: n, payload: payload.to_vec(), room });
                left -= left.min(room);
            }
            None => failed += 1,
        }
    }
    chosen
}

/// How many different values a few bytes of the block have: blocks with few compress best.
fn distinct_bytes(block: &Block) -> u32 {
    let mut seen = [0u64; 4];
    for n in 0..64 {
        let byte = block.0[n * 64 + 13];
        seen[usize::from(byte / 64)] |= 1 << (byte % 64);
    }
    seen.iter().map(|word| word.count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, zeroes: usize) -> Block {
        let mut state = seed;
        let mut block = Block([0; 4096]);
        for byte in &mut block.0[..4096 - zeroes] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        block
    }

    #[test]
    fn as_few_blocks_as_can_hold_the_records_become_carriers() {
        let blocks: Vec<Block> =
            (0..32).map(|n| noise(n + 1, if n % 5 == 0 { 0 } else { 819 })).collect();
        let refs: Vec<&Block> = blocks.iter().collect();
        let chosen = choose(&mut Lz4::default(), &refs, 32);
        assert_eq!(chosen.len(), 2);
        assert!(chosen.iter().map(|chosen| chosen.room).sum::<usize>() >= 32);
        assert!(chosen.iter().all(|chosen| chosen.block % 5 != 0));
    }

    #[test]
    fn incompressible_windows_give_up_early() {
        let blocks: Vec<Block> = (0..32).map(|n| noise(n + 1, 0)).collect();
        let refs: Vec<&Block> = blocks.iter().collect();
        assert!(choose(&mut Lz4::default(), &refs, 32).is_empty());
    }
}
