//! The part of the index that is in memory: eight bytes an entry, 24 bits of the fingerprint and
//! the 40 bits of the address.
//!
//! 4,096 segments, chosen by twelve other bits, grow one by one, so that growing never doubles the
//! memory of the whole. Within a segment entries lie near the place that their tag gives, which is
//! therefore kept when a segment grows.

use onefold_core::Pba;

use super::{Entry, HASH_BITS};

const SEGMENT_BITS: u32 = 12;
const TAG_BITS: u32 = 24;
const PBA_BITS: u32 = 40;

/// Slots of a new segment.
const SEGMENT_SLOTS_MIN: usize = 8;

/// Most candidates that are offered for one fingerprint: more agree by chance only in a damaged
/// index.
pub(crate) const CANDIDATES_MAX: usize = 4;

#[derive(Clone, Default)]
struct Segment {
    slots: Vec<u64>,
    used: usize,
}

/// A slot is the tag and the address; 0 is empty (block 0 is a superblock).
fn slot(tag: u64, pba: Pba) -> u64 {
    tag << PBA_BITS | pba.0
}

const _: () = assert!(SEGMENT_BITS + TAG_BITS == HASH_BITS);

fn address(hash: u64) -> (usize, u64) {
    ((hash >> TAG_BITS) as usize, hash & ((1 << TAG_BITS) - 1))
}

impl Segment {
    fn home(&self, tag: u64) -> usize {
        (tag as usize * self.slots.len()) >> TAG_BITS
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn insert(&mut self, entry: u64) {
        let mut at = self.home(entry >> PBA_BITS);
        while self.slots[at] != 0 {
            if self.slots[at] == entry {
                return;
            }
            at = self.next(at);
        }
        self.slots[at] = entry;
        self.used += 1;
    }

    fn grow(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![0; slots]);
        self.used = 0;
        old.into_iter().filter(|&entry| entry != 0).for_each(|entry| self.insert(entry));
    }

    /// Removes an entry and moves those behind it up, so that every search still ends at the first
    /// empty slot.
    fn remove(&mut self, entry: u64) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let mut at = self.home(entry >> PBA_BITS);
        while self.slots[at] != entry {
            if self.slots[at] == 0 {
                return false;
            }
            at = self.next(at);
        }
        self.used -= 1;
        let length = self.slots.len();
        let mut hole = at;
        let mut probe = self.next(at);
        while self.slots[probe] != 0 {
            let home = self.home(self.slots[probe] >> PBA_BITS);
            let distance = |from: usize, to: usize| (to + length - from) % length;
            if distance(home, probe) >= distance(hole, probe) {
                self.slots[hole] = self.slots[probe];
                hole = probe;
            }
            probe = self.next(probe);
        }
        self.slots[hole] = 0;
        true
    }
}

/// Fingerprints to physical blocks.
pub(crate) struct MemoryIndex {
    segments: Vec<Segment>,
    entries: u64,
    slots: u64,
    slots_max: u64,
    /// With more entries than these the index counts as full, a little before it is.
    entries_max: u64,
    /// Entries that found no room.
    pub(crate) refused: u64,
}

impl MemoryIndex {
    /// An empty index of at most `memory` bytes, half a MiB at least.
    pub(crate) fn new(memory: u64) -> MemoryIndex {
        let slots_max = (memory / 8).max((SEGMENT_SLOTS_MIN << (SEGMENT_BITS + 1)) as u64);
        let entries_max = memory / 8 * 4 / 5;
        MemoryIndex {
            segments: vec![Segment::default(); 1 << SEGMENT_BITS],
            entries: 0,
            slots: 0,
            slots_max,
            entries_max,
            refused: 0,
        }
    }

    /// Adds an entry. Returns false, and counts it, when the share of memory is used up.
    pub(crate) fn insert(&mut self, hash: u64, pba: Pba) -> bool {
        let (number, tag) = address(hash);
        let room = self.slots_max - self.slots;
        let segment = &mut self.segments[number];
        let length = segment.slots.len();
        if (segment.used + 1) * 8 > length * 7 {
            // By a quarter: at least seven tenths of the memory are in use.
            let more = (length / 4).max(SEGMENT_SLOTS_MIN);
            if more as u64 <= room {
                segment.grow(length + more);
                self.slots += more as u64;
            } else if segment.used + 1 >= length {
                self.refused += 1;
                return false;
            }
        }
        let before = segment.used;
        segment.insert(slot(tag, pba));
        self.entries += (segment.used - before) as u64;
        true
    }

    /// Removes an entry; returns whether it was there.
    pub(crate) fn remove(&mut self, hash: u64, pba: Pba) -> bool {
        let (number, tag) = address(hash);
        let found = self.segments[number].remove(slot(tag, pba));
        self.entries -= u64::from(found);
        found
    }

    /// True when entries find no room any more, or soon will not.
    pub(crate) fn is_full(&self) -> bool {
        self.refused > 0 || self.entries >= self.entries_max
    }

    /// True when half of the entries are there that make it full.
    pub(crate) fn is_half_full(&self) -> bool {
        self.entries >= self.entries_max / 2
    }

    /// The entries whose hashes begin with the bits of segment `number`, sorted.
    pub(crate) fn segment(&self, number: usize) -> Vec<Entry> {
        let entry = |slot: u64| Entry {
            hash: (number as u64) << TAG_BITS | slot >> PBA_BITS,
            pba: Pba(slot & ((1 << PBA_BITS) - 1)),
        };
        let mut entries: Vec<Entry> = self.segments[number]
            .slots
            .iter()
            .filter(|&&slot| slot != 0)
            .map(|&slot| entry(slot))
            .collect();
        entries.sort_unstable();
        entries
    }

    /// Number of segments.
    pub(crate) const SEGMENTS: usize = 1 << SEGMENT_BITS;

    /// The blocks that may hold a hash, at most [`CANDIDATES_MAX`].
    pub(crate) fn candidates(&self, hash: u64, into: &mut Vec<Pba>) {
        let (number, tag) = address(hash);
        let segment = &self.segments[number];
        if segment.slots.is_empty() {
            return;
        }
        let mut at = segment.home(tag);
        let enough = into.len() + CANDIDATES_MAX;
        while segment.slots[at] != 0 && into.len() < enough {
            if segment.slots[at] >> PBA_BITS == tag {
                into.push(Pba(segment.slots[at] & ((1 << PBA_BITS) - 1)));
            }
            at = segment.next(at);
        }
    }

    /// Entries.
    pub(crate) fn len(&self) -> u64 {
        self.entries
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.slots * 8 + ((size_of::<Segment>() as u64) << SEGMENT_BITS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn hash(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HASH_BITS)
    }

    fn finds(index: &MemoryIndex, n: u64, pba: Pba) -> bool {
        let mut candidates = Vec::new();
        index.candidates(hash(n), &mut candidates);
        candidates.contains(&pba)
    }

    #[test]
    fn what_was_inserted_is_found_until_it_is_removed() {
        let mut index = MemoryIndex::new(64 << 20);
        let mut model = BTreeMap::new();
        for n in 0..200_000u64 {
            assert!(index.insert(hash(n), Pba(n + 1)));
            model.insert(n, Pba(n + 1));
        }
        for n in (0..200_000).step_by(3) {
            index.remove(hash(n), Pba(n + 1));
            model.remove(&n);
        }
        assert_eq!(index.len(), model.len() as u64);
        for n in 0..200_000 {
            assert_eq!(finds(&index, n, Pba(n + 1)), model.contains_key(&n), "{n}");
        }
        assert!(index.memory() < 200_000 * 14 + 200_000);
    }

    #[test]
    fn a_full_index_refuses_and_counts() {
        let mut index = MemoryIndex::new(0);
        let inserted =
            (0..200_000u64).filter(|&n| index.insert(hash(n), Pba(n + 1))).count() as u64;
        assert_eq!(index.refused, 200_000 - inserted);
        assert_eq!(index.len(), inserted);
        assert!(
            (0..200_000).filter(|&n| finds(&index, n, Pba(n + 1))).count() as u64
                >= inserted * 9 / 10
        );
    }
}
