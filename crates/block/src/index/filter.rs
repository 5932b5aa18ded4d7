//! A blocked Bloom filter: which hashes the table on disk may hold. One cache line a lookup.

/// Bits for each entry when memory allows: about one false answer in 120.
const BITS_PER_ENTRY: u64 = 10;

/// Bits that each entry sets.
const PROBES: u32 = 6;

/// Words of a block: one cache line.
const WORDS: usize = 8;

pub(crate) struct Filter {
    blocks: Vec<[u64; WORDS]>,
}

impl Filter {
    /// A filter for `entries`, within `memory` bytes.
    pub(crate) fn new(entries: u64, memory: u64) -> Filter {
        Filter { blocks: vec![[0; WORDS]; (Self::new_memory(entries, memory) / 64) as usize] }
    }

    /// Bytes that [`new`](Self::new) takes.
    pub(crate) fn new_memory(entries: u64, memory: u64) -> u64 {
        (entries * BITS_PER_ENTRY / 8).min(memory).div_ceil(64).max(1) * 64
    }

    fn place(&self, hash: u64) -> (usize, u64) {
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (((u128::from(mixed) * self.blocks.len() as u128) >> 64) as usize, mixed ^ mixed >> 32)
    }

    fn bits(seed: u64) -> impl Iterator<Item = (usize, u64)> {
        let mut state = seed;
        (0..PROBES).map(move |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let bit = (state >> 55) as usize;
            (bit / 64, 1 << (bit % 64))
        })
    }

    /// Adds a hash.
    pub(crate) fn insert(&mut self, hash: u64) {
        let (block, seed) = self.place(hash);
        Self::bits(seed).for_each(|(word, bit)| self.blocks[block][word] |= bit);
    }

    /// False when the hash was certainly not added.
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let (block, seed) = self.place(hash);
        Self::bits(seed).all(|(word, bit)| self.blocks[block][word] & bit != 0)
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.blocks.len() as u64 * 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_held_and_little_else() {
        let mut filter = Filter::new(100_000, u64::MAX);
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 28;
        (0..100_000).for_each(|n| filter.insert(hash(n)));
        assert!((0..100_000).all(|n| filter.may_hold(hash(n))));
        let wrong = (100_000..200_000).filter(|&n| filter.may_hold(hash(n))).count();
        assert!(wrong < 2_000, "{wrong} of 100000");
    }
}
