//! Estimates the saving by deduplication for objects that are not in a store: counts their chunks,
//! all of them or a sample.
//!
//! The sample is of chunk names, not of objects, so equal chunks are in it together wherever they
//! are. A sample of objects would miss the chunks that they share.

use std::collections::BTreeMap;

use onefold_core::{block::is_zero, checksum, compress};

use crate::{
    format::{BLOCK, catalogue::Cut, entry::ENTRY_BYTES},
    put::cut,
};

/// Most names that are counted; beyond that the share of names in the sample becomes smaller.
const NAMES_MAX: usize = 1 << 20;

/// Bytes of a map entry's key.
const ENTRY_KEY: u64 = 3;

/// Bytes of a reference.
const REFERENCE: u64 = 26;

/// Bytes that the object store needs for an object of its own (the paper: 512 at least).
const OBJECT: u64 = 512;

/// Standard errors to each side of an interval of 95 %.
const NINETY_FIVE: f64 = 1.96;

/// A name that is counted.
#[derive(Clone, Copy)]
struct Count {
    times: u64,
    bytes: u64,
    packed: u64,
}

/// Chunks seen so far.
pub struct Estimate {
    chunk_bytes: u32,
    how: Cut,
    compress: bool,
    /// One of 2^level names is counted.
    level: u32,
    names: BTreeMap<u64, Count>,
    objects: u64,
    bytes: u64,
    zero_bytes: u64,
    chunks: u64,
    most: usize,
}

/// The chunks of an object. They are cut and named without the [`Estimate`], so that several threads can.
pub struct Chunks {
    bytes: u64,
    zero_bytes: u64,
    all: Vec<One>,
}

/// A chunk that is not all zeroes.
struct One {
    name: u64,
    at: u32,
    length: u32,
    packed: Option<u32>,
}

impl Chunks {
    /// Those of an object with this content, of less than 4 GiB.
    #[must_use]
    pub fn of(data: &[u8], how: Cut, chunk_bytes: u32) -> Chunks {
        let mut chunks = Chunks { bytes: data.len() as u64, zero_bytes: 0, all: Vec::new() };
        let mut at = 0;
        for length in cut(data, true, how, chunk_bytes, u32::MAX) {
            let chunk = &data[at as usize..][..length as usize];
            match is_zero(chunk) {
                true => chunks.zero_bytes += u64::from(length),
                false => {
                    let name = checksum::fast(6, chunk);
                    chunks.all.push(One { name, at, length, packed: None });
                }
            }
            at += length;
        }
        chunks
    }

    /// Compresses chunks, by their places in the object.
    pub fn pack(&mut self, data: &[u8], which: &[usize], compress: bool) {
        let blocks = |bytes: usize| bytes.next_multiple_of(BLOCK as usize);
        for one in which.iter().filter_map(|at| compress.then_some(*at)) {
            let one = &mut self.all[one];
            let chunk = &data[one.at as usize..][..one.length as usize];
            one.packed = Some(blocks(compress::pack(chunk).len()).min(chunk.len()) as u32);
        }
    }
}

/// The estimate. Bytes are before replication unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimated {
    /// Objects.
    pub objects: u64,
    /// Bytes of the objects.
    pub bytes: u64,
    /// Bytes of chunks that are all zeroes and need no space.
    pub zero_bytes: u64,
    /// Chunks that are not zeroes, each as often as it is there.
    pub chunks: u64,
    /// Different ones.
    pub different: u64,
    /// Bytes of the different ones; with the bounds of 95 % (all equal where everything was
    /// counted).
    pub different_bytes: (u64, u64, u64),
    /// Of these, after compression.
    pub packed_bytes: u64,
    /// Bytes of map entries, references and objects.
    pub metadata_bytes: u64,
    /// The sampling rate: one of this many names was counted.
    pub one_of: u64,
}

impl Estimated {
    /// Bytes needed with so many copies of metadata, and with so much space for each byte of
    /// chunks.
    #[must_use]
    pub fn stored(&self, metadata_copies: f64, chunk_copies: f64) -> u64 {
        (self.metadata_bytes as f64 * metadata_copies + self.packed_bytes as f64 * chunk_copies)
            as u64
    }
}

impl Estimate {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(chunk_bytes: u32, how: Cut, compress: bool) -> Estimate {
        Estimate {
            chunk_bytes,
            how,
            compress,
            level: 0,
            names: BTreeMap::new(),
            objects: 0,
            bytes: 0,
            zero_bytes: 0,
            chunks: 0,
            most: NAMES_MAX,
        }
    }

    /// Counts the chunks of an object.
    pub fn object(&mut self, data: &[u8]) {
        let mut chunks = Chunks::of(data, self.how, self.chunk_bytes);
        let new = self.new_ones(&chunks);
        chunks.pack(data, &new, self.compress);
        self.count(&chunks);
    }

    /// Objects that were counted so far.
    #[must_use]
    pub fn seen_objects(&self) -> u64 {
        self.objects
    }

    /// How chunks are cut, their size, and whether they are compressed.
    #[must_use]
    pub fn form(&self) -> (Cut, u32, bool) {
        (self.how, self.chunk_bytes, self.compress)
    }

    /// The chunks of an object, by their places in it, whose names are in the sample and were not counted yet:
    /// they are to be [packed](Chunks::pack) before they are [counted](Self::count).
    #[must_use]
    pub fn new_ones(&self, chunks: &Chunks) -> Vec<usize> {
        let (all, mask) = (chunks.all.iter().enumerate(), self.mask());
        let new =
            all.filter(|(_, one)| one.name & mask == 0 && !self.names.contains_key(&one.name));
        new.map(|(at, _)| at).collect()
    }

    /// Counts an object's chunks.
    pub fn count(&mut self, chunks: &Chunks) {
        self.objects += 1;
        self.bytes += chunks.bytes;
        self.zero_bytes += chunks.zero_bytes;
        self.chunks += chunks.all.len() as u64;
        for one in &chunks.all {
            if one.name & self.mask() != 0 {
                continue;
            }
            let bytes = u64::from(one.length);
            let new = Count { times: 0, bytes, packed: one.packed.map_or(bytes, u64::from) };
            self.names.entry(one.name).or_insert(new).times += 1;
            while self.names.len() > self.most {
                self.level += 1;
                let mask = self.mask();
                self.names.retain(|name, _| name & mask == 0);
            }
        }
    }

    fn mask(&self) -> u64 {
        (1 << self.level) - 1
    }

    /// The estimate from all chunks counted so far.
    #[must_use]
    pub fn result(&self) -> Estimated {
        let one_of = 1u64 << self.level;
        let data = (self.bytes - self.zero_bytes) as f64;
        let sum = |of: fn(&Count) -> u64| self.names.values().map(of).sum::<u64>() as f64;
        let (unique, packed, seen) = (
            sum(|count| count.bytes),
            sum(|count| count.packed),
            sum(|count| count.bytes * count.times),
        );
        // All data are counted, so only the share of unique data in the sample must be estimated.
        let share = if seen == 0.0 { 1.0 } else { unique / seen };
        let error = if one_of == 1 { 0.0 } else { self.error(share, seen) };
        let at = |share: f64| (data * share.clamp(0.0, 1.0)) as u64;
        let different = (self.names.len() as u64 * one_of).min(self.chunks);
        Estimated {
            objects: self.objects,
            bytes: self.bytes,
            zero_bytes: self.zero_bytes,
            chunks: self.chunks,
            different,
            different_bytes: (at(share - error), at(share), at(share + error)),
            packed_bytes: if unique == 0.0 { 0 } else { (data * share * packed / unique) as u64 },
            metadata_bytes: self.chunks * (ENTRY_BYTES as u64 + ENTRY_KEY + REFERENCE)
                + different * OBJECT,
            one_of,
        }
    }

    /// Half of the interval of the share of different bytes: the error of a ratio of two sums over
    /// the names of the sample.
    fn error(&self, share: f64, seen: f64) -> f64 {
        let residual = |count: &Count| {
            (count.bytes as f64 - share * (count.bytes * count.times) as f64).powi(2)
        };
        NINETY_FIVE * self.names.values().map(residual).sum::<f64>().sqrt() / seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, bytes: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let step = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        (0..bytes / 8).flat_map(step).collect()
    }

    #[test]
    fn what_objects_share_is_counted_once_and_zeroes_not_at_all() {
        let mut estimate = Estimate::new(32 << 10, Cut::Static, true);
        let one = noise(3, 1 << 20);
        estimate.object(&one);
        estimate.object(&[&one[..512 << 10], &vec![0; 256 << 10][..]].concat());
        let found = estimate.result();
        assert_eq!(
            (found.objects, found.bytes, found.zero_bytes),
            (2, (1 << 20) + (768 << 10), 256 << 10)
        );
        assert_eq!((found.chunks, found.different, found.one_of), (48, 32, 1));
        assert_eq!(
            (found.different_bytes, found.packed_bytes),
            ((1 << 20, 1 << 20, 1 << 20), 1 << 20)
        );
        assert_eq!(found.metadata_bytes, 48 * (62 + 26) + 32 * 512);
        assert_eq!(found.stored(2.0, 1.5), 2 * found.metadata_bytes + (3 << 19));
    }

    #[test]
    fn a_sample_has_the_truth_in_its_interval() {
        let mut estimate = Estimate { most: 200, ..Estimate::new(4 << 10, Cut::Static, false) };
        // Chunk n is there n % 4 + 1 times: 2.5 times on average.
        for n in 0..4000u64 {
            let chunk = noise(n * 0x9e37_79b9 + 1, 4 << 10);
            (0..=n % 4).for_each(|_| estimate.object(&chunk));
        }
        let found = estimate.result();
        let (low, middle, high) = found.different_bytes;
        let truth = 4000 * (4 << 10);
        assert!(found.one_of >= 16 && low < middle && middle < high);
        assert!((low..high).contains(&truth), "{truth} is not between {low} and {high}");
        assert!(high - low < truth / 2);
    }

    #[test]
    fn nothing_is_nothing() {
        let found = Estimate::new(32 << 10, Cut::Content, true).result();
        assert_eq!(
            (found.bytes, found.packed_bytes, found.metadata_bytes, found.different),
            (0, 0, 0, 0)
        );
    }
}
