//! Hashing of addresses and fingerprints for in-memory tables: fast, and the same in every run, so
//! that simulations replay.

use std::hash::{BuildHasher, Hasher};

/// Hash map keyed by addresses or fingerprints.
pub(crate) type MixMap<K, V> = std::collections::HashMap<K, V, MixHash>;

/// Hash set of addresses.
pub(crate) type MixSet<K> = std::collections::HashSet<K, MixHash>;

/// Builds [`MixHasher`]s.
#[derive(Clone, Copy, Default)]
pub(crate) struct MixHash;

impl BuildHasher for MixHash {
    type Hasher = MixHasher;
    fn build_hasher(&self) -> MixHasher {
        MixHasher(0)
    }
}

/// Mixes numbers by multiplication. The keys are chosen by clients only where a long chain costs
/// them alone.
#[derive(Default)]
pub(crate) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            self.write_u64(part.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)));
        }
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
