//! Contents of blocks: known by hash and compressed size, made into bytes when they are needed.
//!
//! A trace keeps no data, only a hash of each block and the size to which LZ4 shrinks it. A content
//! is made into bytes that have exactly that: the hash itself, noise that follows from it, and a
//! rest that repeats. So the engine under test hashes, compares and compresses real bytes, and two
//! contents are equal exactly when their hashes are. The block of zeroes is itself.

use std::{fmt, sync::OnceLock};

use onefold_core::{
    BLOCK_BYTES, Block,
    compress::{Lz4, WORST_BYTES},
};
use onefold_testbed::rng::{SplitMix, mix};

/// BLAKE2b-128 of a block of zeroes, as traces name it.
const ZERO_HASH: [u8; 16] = [
    0x5f, 0x6d, 0xf6, 0x00, 0x2b, 0xc7, 0x1c, 0xa2, 0xd8, 0x1a, 0x74, 0x92, 0xde, 0x37, 0x02, 0x5d,
];

/// LZ4 size of a block of zeroes.
const ZERO_LZ4: u16 = 26;

/// Bytes of the hash, with which every block begins.
const HASH_BYTES: usize = 16;

/// The byte that fills what does not have to be noise. Not zero: a fingerprint must not be had for
/// less than real data costs.
const FILL: u8 = 0x5a;

/// The content of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Content {
    /// Stands for the bytes: equal hashes, equal bytes.
    pub hash: [u8; 16],
    /// The size to which LZ4 shrinks the block, up to 4096, which says that it does not shrink.
    pub lz4: u16,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Content({:032x}, {})", u128::from_be_bytes(self.hash), self.lz4)
    }
}

impl Content {
    /// The block of zeroes.
    pub const ZERO: Content = Content { hash: ZERO_HASH, lz4: ZERO_LZ4 };

    /// The content number `number` of a workload with this seed. No other number has it, and it is
    /// not the zeroes.
    #[must_use]
    pub fn numbered(seed: u64, number: u64, lz4: u16) -> Content {
        let mut hash = [0; 16];
        hash[..8].copy_from_slice(&mix(!number).to_le_bytes());
        hash[8..].copy_from_slice(&mix(seed ^ 0x6f6e_6566_6f6c_6421).to_le_bytes());
        Content { hash, lz4 }
    }

    /// True for the block of zeroes.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.hash == ZERO_HASH
    }

    /// Makes the bytes.
    pub fn fill(&self, block: &mut Block) {
        if self.is_zero() {
            block.0.fill(0);
            return;
        }
        Recipe { hash: self.hash, noise: noise_for(self.lz4) }.fill(block);
    }

    /// True when the block holds this content.
    #[must_use]
    pub fn is_in(&self, block: &Block) -> bool {
        if self.is_zero() {
            return block.is_zero();
        }
        Recipe::of(block)
            .is_some_and(|recipe| recipe == Recipe { hash: self.hash, noise: noise_for(self.lz4) })
    }
}

/// A block's content in a few bytes instead of 4096, from which it can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    hash: [u8; 16],
    /// Bytes before the rest that repeats, the hash included.
    noise: u16,
}

impl Recipe {
    pub(crate) fn fill(&self, block: &mut Block) {
        let (noise, rest) = block.0.split_at_mut(usize::from(self.noise));
        let (hash, noise) = noise.split_at_mut(HASH_BYTES);
        hash.copy_from_slice(&self.hash);
        let mut rng = self.rng();
        for eight in noise.chunks_mut(8) {
            let bytes = rng.next().to_le_bytes();
            eight.copy_from_slice(&bytes[..eight.len()]);
        }
        // The end of the noise can be told from the rest.
        if let Some(last) = noise.last_mut().filter(|last| **last == FILL) {
            *last = !FILL;
        }
        rest.fill(FILL);
    }

    /// The recipe that makes exactly this block, if there is one.
    pub(crate) fn of(block: &Block) -> Option<Recipe> {
        let fill = block.0.iter().rev().take_while(|&&byte| byte == FILL).count();
        let noise = (BLOCK_BYTES - fill).max(HASH_BYTES);
        let mut hash = [0; 16];
        hash.copy_from_slice(&block.0[..HASH_BYTES]);
        let recipe = Recipe { hash, noise: noise as u16 };
        // Most blocks of other kinds are found out by their first bytes.
        let begins = block.0[HASH_BYTES..noise]
            .first_chunk()
            .is_none_or(|eight| *eight == recipe.rng().next().to_le_bytes());
        if !begins && noise > HASH_BYTES + 8 {
            return None;
        }
        let mut made = Block([0; BLOCK_BYTES]);
        recipe.fill(&mut made);
        (made.0 == block.0).then_some(recipe)
    }

    fn rng(&self) -> SplitMix {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = self.hash;
        SplitMix::new(
            mix(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
                ^ u64::from_le_bytes([i, j, k, l, m, n, o, p]),
        )
    }
}

/// Bytes of noise with which a block shrinks to `lz4` bytes, or as near to that as its hash allows.
fn noise_for(lz4: u16) -> u16 {
    static TABLE: OnceLock<Vec<u16>> = OnceLock::new();
    let table = TABLE.get_or_init(measure);
    table[usize::from(lz4).min(BLOCK_BYTES)]
}

/// Compresses a block of each length of noise once: the size grows with the noise, and does not
/// depend on what the noise is.
fn measure() -> Vec<u16> {
    let mut lz4 = Lz4::default();
    let mut block = Block([0; BLOCK_BYTES]);
    let mut table = vec![BLOCK_BYTES as u16; BLOCK_BYTES + 1];
    let mut smallest = 0;
    let Content { hash, .. } = Content::numbered(0, 0, 0);
    for noise in (HASH_BYTES..=BLOCK_BYTES).rev() {
        Recipe { hash, noise: noise as u16 }.fill(&mut block);
        let size = lz4.compress(&block, WORST_BYTES).map_or(BLOCK_BYTES, <[u8]>::len);
        if size <= BLOCK_BYTES {
            // Sizes that no noise gives are taken for the next greater one.
            table[size] = noise as u16;
            smallest = size;
        }
    }
    table[..smallest].fill(HASH_BYTES as u16);
    for size in smallest + 1..BLOCK_BYTES {
        if table[size] == BLOCK_BYTES as u16 {
            table[size] = table[size - 1];
        }
    }
    table[BLOCK_BYTES] = BLOCK_BYTES as u16;
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LZ4 size of the least block that holds a hash.
    const HASH_LZ4: usize = 44;

    fn made(content: Content) -> Block {
        let mut block = Block([1; BLOCK_BYTES]);
        content.fill(&mut block);
        block
    }

    #[test]
    fn blocks_shrink_to_the_size_that_was_recorded() {
        let mut lz4 = Lz4::default();
        for size in 1..=4096u16 {
            for number in 0..2 {
                let content = Content::numbered(9, u64::from(size) * 2 + number, size);
                let block = made(content);
                let got = lz4.compress(&block, WORST_BYTES).map_or(4096, <[u8]>::len).min(4096);
                // A hash in a block that is the same all over takes this much.
                let wanted = usize::from(size).max(HASH_LZ4);
                assert!(got.abs_diff(wanted) <= 4, "{size}: {got}");
            }
        }
        let zero = lz4.compress(&made(Content::ZERO), WORST_BYTES).unwrap().len();
        assert!(zero.abs_diff(usize::from(ZERO_LZ4)) <= 4, "{zero}");
    }

    #[test]
    fn the_same_hash_gives_the_same_bytes_and_another_gives_others() {
        let mut seen = std::collections::HashSet::new();
        for number in 0..2000 {
            let content = Content::numbered(1, number, 3277);
            let block = made(content);
            assert!(block.0 == made(content).0 && content.is_in(&block));
            assert!(
                !Content::numbered(1, number + 1, 3277).is_in(&block)
                    && !Content::ZERO.is_in(&block)
            );
            assert!(seen.insert(block.0.to_vec()));
        }
        assert!(made(Content::ZERO).is_zero());
        assert!(Content::ZERO.is_in(&made(Content::ZERO)));
    }

    #[test]
    fn recipes_make_their_block_and_no_other() {
        for lz4 in [1, 40, 100, 2048, 3277, 4095, 4096] {
            let mut block = made(Content::numbered(5, 7, lz4));
            let recipe = Recipe::of(&block).unwrap();
            let mut again = Block([0; BLOCK_BYTES]);
            recipe.fill(&mut again);
            assert!(again.0 == block.0);
            block.0[20] ^= 1;
            assert_eq!(Recipe::of(&block), None);
        }
    }
}
