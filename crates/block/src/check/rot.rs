//! Telling rot from a tear: a block that one flipped bit makes whole was written whole and rotted
//! later.
//!
//! A write torn at 512 bytes mixes sectors of two versions, which differ in more than one bit: a
//! superblock in its sequence, a page of the zone list in a whole entry, a carrier in its checksum.
//! So one bit is never the mark of a crash, and flipping it back restores exactly what was written:
//! the checksums (64 bits; 128 for carriers) leave no room for chance among 32,768 tries.

use onefold_core::Block;

/// Flips single bits of `block` until it is `whole`. Returns the bit, which stays flipped; without
/// one the block is as before.
pub(crate) fn restore_copy(block: &mut Block, whole: impl Fn(&Block) -> bool) -> Option<usize> {
    for bit in 0..block.0.len() * 8 {
        block.0[bit / 8] ^= 1 << (bit % 8);
        if whole(block) {
            return Some(bit);
        }
        block.0[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// Blocks of a kind whose bits one check or repair tries, at most. Each takes up to 32,768 openings: some
/// 50 ms, in a sealed store 0.1 s. A store that a stranger made has as many damaged blocks as he likes,
/// and rot does not flip single bits of so many.
pub(crate) const TRIED_MAX: u64 = 4096;

/// How many blocks may still be tried.
pub(crate) struct Tries {
    left: u64,
    /// Blocks that were not tried.
    pub(crate) refused: u64,
}

impl Default for Tries {
    fn default() -> Tries {
        Tries { left: TRIED_MAX, refused: 0 }
    }
}

impl Tries {
    /// As [`restore_copy`], while there are tries left.
    pub(crate) fn restore_copy(
        &mut self,
        block: &mut Block,
        whole: impl Fn(&Block) -> bool,
    ) -> Option<usize> {
        if self.left == 0 {
            self.refused += 1;
            return None;
        }
        self.left -= 1;
        restore_copy(block, whole)
    }
}

/// The bit that makes the block whole when it is flipped, if one does.
pub(crate) fn rotten_bit(block: &Block, whole: impl Fn(&Block) -> bool) -> Option<usize> {
    restore_copy(&mut block.clone(), whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_09_a_store_of_damaged_blocks_is_tried_for_a_bounded_time() {
        let calls = std::cell::Cell::new(0u64);
        let whole = |_: &Block| {
            calls.set(calls.get() + 1);
            false
        };
        let mut tries = Tries { left: 3, ..Tries::default() };
        for _ in 0..10 {
            assert_eq!(tries.restore_copy(&mut Block([7; 4096]), whole), None);
        }
        assert_eq!((calls.get(), tries.refused), (3 * 32_768, 7));
    }

    #[test]
    fn one_bit_is_found_and_two_are_not() {
        let good = Block([7; 4096]);
        let whole = |block: &Block| block.0 == good.0;
        let mut bad = good.clone();
        bad.0[100] ^= 4;
        assert_eq!(rotten_bit(&bad, whole), Some(802));
        bad.0[4000] ^= 1;
        assert_eq!(restore_copy(&mut bad, whole), None);
        assert_eq!((bad.0[100], bad.0[4000]), (3, 6));
    }
}
