//! Content-defined cuts at multiples of 4 KiB, for volumes: the content of a block decides whether
//! a chunk ends with it.

use onefold_core::checksum;

use crate::format::{BLOCK, CHUNK_MAX, least_cut};

/// The seed of cuts of a plain store.
pub(crate) const SEED: u64 = 7;

/// Length of the chunk that `bytes` begin with; it may depend on `CHUNK_MAX` bytes. A sealed store has
/// a seed of its own.
pub(super) fn first(bytes: &[u8], average: u32, seed: u64) -> u32 {
    let (least, one_in) = (least_cut(average), u64::from((average / BLOCK / 4 + 1).max(2)));
    let blocks = bytes.chunks(BLOCK as usize).take((CHUNK_MAX / BLOCK) as usize);
    let mut length = 0;
    for block in blocks {
        length += block.len() as u32;
        if length >= least && checksum::fast(seed, block).is_multiple_of(one_in) {
            break;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(bytes: &[u8], average: u32) -> Vec<u32> {
        let (mut at, mut lengths) = (0, Vec::new());
        while at < bytes.len() {
            lengths.push(first(&bytes[at..], average, SEED));
            at += lengths[lengths.len() - 1] as usize;
        }
        lengths
    }

    #[test]
    fn what_moved_by_blocks_is_cut_at_the_same_content() {
        let mut state = 7u64;
        let noise = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..8 << 20).map(noise).collect();
        for average in [32 << 10, 64 << 10] {
            let whole = lengths(&bytes, average);
            let inner = &whole[..whole.len() - 1];
            assert!(inner.iter().all(|length| (least_cut(average)..=CHUNK_MAX).contains(length)));
            let mean = (8u32 << 20) / whole.len() as u32;
            assert!((average * 3 / 4..average * 5 / 4).contains(&mean), "{mean}");
            let ends = |lengths: &[u32], from: u32| {
                let mut at = from;
                lengths
                    .iter()
                    .map(|length| {
                        at += length;
                        at
                    })
                    .collect::<std::collections::BTreeSet<u32>>()
            };
            let moved = ends(&lengths(&bytes[3 * BLOCK as usize..], average), 3 * BLOCK);
            let same = ends(&whole, 0).intersection(&moved).count();
            assert!(same * 10 > whole.len() * 9, "{same} of {}", whole.len());
        }
    }
}
