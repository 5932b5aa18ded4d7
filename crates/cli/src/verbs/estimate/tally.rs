//! The tally of blocks: every fingerprint while there is room, then a sample of them.
//!
//! A fingerprint belongs to the sample of level k when k bits of it are zero, so that one of 2^k
//! does. When the set is full, the level goes up by one and half of the set is dropped. Whether two
//! blocks are equal does not depend on where they are, so the sample's share of different blocks is
//! that of all.

use std::{
    collections::HashSet,
    hash::{BuildHasherDefault, Hasher},
};

use onefold_core::Fingerprint;

/// Bytes that the set takes for each of its slots.
const SLOT_BYTES: u64 = 9;

/// Fewest slots, so that a sample says something.
const SLOTS_MIN: u64 = 1 << 16;

/// Takes a fingerprint's own bytes, which are random already.
#[derive(Default)]
struct OwnBits(u64);

impl Hasher for OwnBits {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed");
    }

    fn write_u64(&mut self, bits: u64) {
        self.0 = bits;
    }
}

/// The account of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// An equal one was seen before.
    Before,
    /// No equal one was seen before.
    First,
    /// The block is not in the sample.
    Unsampled,
}

/// The fingerprints seen.
pub(super) struct Tally {
    seen: HashSet<u64, BuildHasherDefault<OwnBits>>,
    entries_max: usize,
    level: u32,
}

impl Tally {
    /// A tally that takes at most `memory` bytes.
    pub(super) fn new(memory: u64) -> Tally {
        // The old table and the new one are there together while the set grows, and while it is
        // thinned out.
        let slots = (memory / 2 / SLOT_BYTES).max(SLOTS_MIN);
        let slots = 1_u64 << slots.ilog2();
        Tally { seen: HashSet::default(), entries_max: (slots / 8 * 7) as usize, level: 0 }
    }

    /// Notes a block.
    pub(super) fn note(&mut self, fingerprint: &Fingerprint) -> Seen {
        let bits = fingerprint.prefix();
        if !self.is_sampled(bits) {
            return Seen::Unsampled;
        }
        if self.seen.contains(&bits) {
            return Seen::Before;
        }
        while self.seen.len() >= self.entries_max {
            self.rise();
        }
        if !self.is_sampled(bits) {
            return Seen::Unsampled;
        }
        self.seen.insert(bits);
        Seen::First
    }

    /// Drops about half of the set. The rest moves to a new table, because the places of dropped
    /// entries would make the old one grow.
    fn rise(&mut self) {
        self.level += 1;
        let mut kept =
            HashSet::with_capacity_and_hasher(self.entries_max, BuildHasherDefault::default());
        kept.extend(self.seen.iter().copied().filter(|&bits| sampled(bits, self.level)));
        self.seen = kept;
    }

    fn is_sampled(&self, bits: u64) -> bool {
        sampled(bits, self.level)
    }

    /// Different blocks, exactly or as the sample says.
    pub(super) fn different(&self) -> u64 {
        (self.seen.len() as u64) << self.level
    }

    /// One block of this many was looked at; 1 when the count is exact.
    pub(super) fn one_of(&self) -> u64 {
        1 << self.level
    }
}

/// Bits that neither choose a slot of the set nor mark its entries.
fn sampled(bits: u64, level: u32) -> bool {
    (bits >> 32).trailing_zeros() >= level || level == 0
}

#[cfg(test)]
mod tests {
    use onefold_core::{Algorithm, Block, Fingerprinter};

    use super::*;

    fn fingerprints(n: u32) -> Vec<Fingerprint> {
        let printer = Fingerprinter::new(Algorithm::Blake3, &[5; 32]);
        let block = |n: u32| {
            let mut block = Block::zeroed();
            block.0[..4].copy_from_slice(&n.to_le_bytes());
            block
        };
        (0..n).map(|n| printer.one(&block(n))).collect()
    }

    #[test]
    fn few_blocks_are_counted_exactly() {
        let mut tally = Tally::new(1 << 20);
        for (n, fingerprint) in fingerprints(1000).iter().enumerate() {
            assert_eq!(tally.note(fingerprint), Seen::First);
            assert_eq!(tally.note(fingerprint), Seen::Before);
            assert_eq!(tally.different(), n as u64 + 1);
        }
        assert_eq!(tally.one_of(), 1);
    }

    #[test]
    fn many_blocks_are_sampled_within_the_memory() {
        let mut tally = Tally::new(0);
        let all = fingerprints(400_000);
        for fingerprint in all.iter().chain(&all) {
            tally.note(fingerprint);
        }
        assert!(tally.one_of() >= 8);
        assert!(tally.seen.capacity() <= SLOTS_MIN as usize);
        let error = tally.different().abs_diff(400_000);
        assert!(error < 400_000 / 20, "{error}");
    }
}
