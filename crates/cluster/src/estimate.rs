//! Estimates the saving by deduplication for objects that are not in a store: counts their chunks,
//! all of them or a sample.
//!
//! Where names do not fit into memory a sample of chunk names is counted, not of objects, so equal chunks
//! are in it together wherever they are.
//!
//! Where only some of the objects are read, what they share with the others is not seen. Chunks that only
//! one of the objects has tell how much that is, within bounds ([`Estimate::whole`]).

use std::collections::BTreeMap;

use onefold_core::{Error, Kind, Result, block::is_zero, checksum, compress};

use crate::{
    format::{BLOCK, catalogue::Cut, entry::ENTRY_BYTES},
    put::cut,
    sealing::hashing::Hashing,
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

/// Groups of objects, by which the error of a sample of objects is found.
const GROUPS: usize = 16;

/// What a saved estimate begins with, and its version.
const SAVED: &[u8; 8] = b"ONEFEST1";

/// Bytes of its head, and of a name.
const SAVED_HEAD: usize = 8 + 4 + 1 + 1 + 4 + 5 * 8;
const SAVED_NAME: usize = 8 + 8 + 4 + 4 + 4 + 8;

/// A name that is counted.
#[derive(Clone, Copy)]
struct Count {
    times: u64,
    bytes: u64,
    packed: u64,
    /// Objects that have it.
    objects: u32,
    /// The last of these, by its number.
    last: u64,
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
        let plain = Hashing::plain([0; 32]);
        for length in cut(data, true, (how, chunk_bytes, u32::MAX), &plain) {
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

/// What all objects of a pool would need, by those that were read. The truth lies between the two bounds
/// with a probability of 95 %; they are equal where everything was read and counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole {
    /// The share of the pool's bytes that was read.
    pub read_share: f64,
    /// Bytes of the objects.
    pub bytes: u64,
    /// Bytes of different chunks.
    pub different_bytes: (u64, u64),
    /// Percent that are saved, maps, references and the records of objects included.
    pub saved_percent: (f64, f64),
}

impl Estimated {
    /// Percent that are saved when different chunks have so many bytes.
    fn saved_percent(&self, different_bytes: f64) -> f64 {
        if self.bytes == 0 {
            return 0.0;
        }
        let (_, middle, _) = self.different_bytes;
        let share = if middle == 0 { 0.0 } else { different_bytes / middle as f64 };
        let packed = self.packed_bytes as f64 * share;
        let objects = self.different as f64 * OBJECT as f64;
        let metadata = self.metadata_bytes as f64 - objects + objects * share;
        100.0 - 100.0 * (packed + metadata) / self.bytes as f64
    }

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
            let packed = one.packed.map_or(bytes, u64::from);
            let new = Count { times: 0, bytes, packed, objects: 0, last: 0 };
            let count = self.names.entry(one.name).or_insert(new);
            count.times += 1;
            if count.last != self.objects {
                count.last = self.objects;
                count.objects = count.objects.saturating_add(1);
            }
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

    /// The estimate for a pool of so many bytes of which the objects that were counted are a random sample;
    /// for them alone when they have no fewer bytes.
    ///
    /// The chunks that the sample lacks have no more bytes than `Q1 (1/q - 1)`, and no fewer than
    /// `Q1² / (2 Q2 + Q1 q/(1 - q))` on average, where `q` is the share that was read, and `Q1` and `Q2` are
    /// the bytes of chunks that one or two of its objects have (Chao and Lin, 2012). Both are widened by the
    /// errors of `Q1` and `Q2`, as groups of objects show them, and of the sample of names.
    #[must_use]
    pub fn whole(&self, pool_bytes: u64) -> Whole {
        let found = self.result();
        let (low, middle, high) = found.different_bytes;
        let q = if pool_bytes <= self.bytes { 1.0 } else { self.bytes as f64 / pool_bytes as f64 };
        let (mut least, mut most) = (low as f64, high as f64);
        if q > 0.0 && q < 1.0 {
            let mut groups = [[0.0; GROUPS]; 2];
            for count in self.names.values().filter(|count| count.objects <= 2) {
                let group = (count.last % GROUPS as u64) as usize;
                groups[count.objects as usize - 1][group] += count.bytes as f64;
            }
            let [(once, once_error), (twice, twice_error)] = groups.map(|groups| {
                let sum: f64 = groups.iter().sum();
                let mean = sum / GROUPS as f64;
                let spread: f64 = groups.iter().map(|group| (group - mean).powi(2)).sum();
                (sum, NINETY_FIVE * (spread * GROUPS as f64 / (GROUPS - 1) as f64).sqrt())
            });
            // From bytes of the names that are counted to bytes of all.
            let counted = self.names.values().map(|count| count.bytes).sum::<u64>() as f64;
            let scale = if counted == 0.0 { 0.0 } else { middle as f64 / counted };
            let (few, many) = ((once - once_error).max(0.0), once + once_error);
            // What none of so many objects was seen to have, up to three of them may have (the rule of three).
            let unseen = 3.0 * counted / self.objects as f64;
            let pairs = twice + twice_error + unseen;
            least += few * few / (2.0 * pairs + few * q / (1.0 - q)).max(1.0) * scale;
            most += many * (1.0 / q - 1.0) * scale;
            // No more than all of it, as far as it is not zeroes.
            most = most.min((self.bytes - self.zero_bytes) as f64 / q);
        }
        // In the units of what was read.
        let saved = |different: f64| found.saved_percent(different * q);
        Whole {
            read_share: q,
            bytes: pool_bytes.max(self.bytes),
            different_bytes: (least as u64, most as u64),
            saved_percent: (saved(most), saved(least)),
        }
    }

    /// The state, for [`restored`](Self::restored) in another process.
    #[must_use]
    pub fn saved(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SAVED_HEAD + self.names.len() * SAVED_NAME + 8);
        bytes.extend(SAVED);
        bytes.extend(self.chunk_bytes.to_le_bytes());
        bytes.push(u8::from(self.how == Cut::Content));
        bytes.push(u8::from(self.compress));
        bytes.extend(self.level.to_le_bytes());
        for number in
            [self.objects, self.bytes, self.zero_bytes, self.chunks, self.names.len() as u64]
        {
            bytes.extend(number.to_le_bytes());
        }
        for (name, count) in &self.names {
            bytes.extend(name.to_le_bytes());
            bytes.extend(count.times.to_le_bytes());
            bytes.extend((count.bytes as u32).to_le_bytes());
            bytes.extend((count.packed as u32).to_le_bytes());
            bytes.extend(count.objects.to_le_bytes());
            bytes.extend(count.last.to_le_bytes());
        }
        bytes.extend(checksum::fast(8, &bytes).to_le_bytes());
        bytes
    }

    /// The estimate whose state was [`saved`](Self::saved).
    ///
    /// # Errors
    /// `Corrupt`: the bytes are no such state, or damaged.
    pub fn restored(saved: &[u8]) -> Result<Estimate> {
        let bad = || Error::new(Kind::Corrupt, "the state of the estimate is damaged");
        let end = saved.len().checked_sub(8).filter(|end| *end >= SAVED_HEAD).ok_or_else(bad)?;
        let (bytes, sum) = saved.split_at(end);
        if sum != checksum::fast(8, bytes).to_le_bytes() || !bytes.starts_with(SAVED) {
            return Err(bad());
        }
        let number = |bytes: &[u8]| {
            let mut number = [0; 8];
            number[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(number)
        };
        let head = |n: usize| number(&bytes[18 + n * 8..][..8]);
        let (names, level) = (&bytes[SAVED_HEAD..], number(&bytes[14..18]));
        if head(4) > NAMES_MAX as u64
            || names.len() as u64 != head(4) * SAVED_NAME as u64
            || level > 63
        {
            return Err(bad());
        }
        let how = if bytes[12] == 0 { Cut::Static } else { Cut::Content };
        let mut estimate = Estimate::new(number(&bytes[8..12]) as u32, how, bytes[13] != 0);
        estimate.level = level as u32;
        (estimate.objects, estimate.bytes) = (head(0), head(1));
        (estimate.zero_bytes, estimate.chunks) = (head(2), head(3));
        estimate.names = names
            .chunks_exact(SAVED_NAME)
            .map(|one| {
                let count = Count {
                    times: number(&one[8..16]),
                    bytes: number(&one[16..20]),
                    packed: number(&one[20..24]),
                    objects: number(&one[24..28]) as u32,
                    last: number(&one[28..]),
                };
                (number(&one[..8]), count)
            })
            .collect();
        Ok(estimate)
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
    fn an_estimate_goes_on_in_another_process() {
        let data: Vec<Vec<u8>> = (0..60).map(|n| noise(n % 40 * 2 + 1, 20 << 10)).collect();
        let nothing = || Estimate { most: 100, ..Estimate::new(4 << 10, Cut::Content, true) };
        let mut whole = nothing();
        data.iter().for_each(|object| whole.object(object));
        let mut portions = nothing();
        for some in data.chunks(7) {
            portions = Estimate { most: 100, ..Estimate::restored(&portions.saved()).unwrap() };
            some.iter().for_each(|object| portions.object(object));
        }
        assert_eq!(portions.saved(), whole.saved());
        assert!(whole.result().one_of > 1 && portions.result() == whole.result());
        let saved = whole.saved();
        for at in 0..saved.len() {
            let mut damaged = saved.clone();
            damaged[at] ^= 4;
            assert!(
                Estimate::restored(&damaged).is_err() && Estimate::restored(&saved[..at]).is_err()
            );
        }
    }

    /// Pools of 400 objects of 8 chunks: chunks of which each object shares some with few, and some with
    /// many others.
    #[test]
    fn the_truth_of_a_pool_lies_within_what_a_sample_of_its_objects_says() {
        let (mut within, mut wide) = (0, 0.0);
        for seed in 0..40u64 {
            let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut chance = |of: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % of
            };
            let kinds = [20, 300, 2000][(seed % 3) as usize];
            let objects: Vec<Vec<u64>> = (0..400)
                .map(|n| {
                    (0..8)
                        .map(|at| match chance(3) {
                            0 => 1 << 40 | n << 8 | at,
                            1 => chance(kinds),
                            _ => 1 << 30 | chance(20_000),
                        })
                        .collect()
                })
                .collect();
            let content = |object: &Vec<u64>| -> Vec<u8> {
                object.iter().flat_map(|chunk| noise(chunk * 2 + 1, 4 << 10)).collect()
            };
            let (mut all, mut some) = (
                Estimate::new(4 << 10, Cut::Static, false),
                Estimate::new(4 << 10, Cut::Static, false),
            );
            for object in &objects {
                all.object(&content(object));
                if chance(8) == 0 {
                    some.object(&content(object));
                }
            }
            let (truth, said) = (all.whole(0), some.whole(all.bytes));
            let (low, high) = said.different_bytes;
            assert_eq!(truth.different_bytes.0, truth.different_bytes.1);
            within += u64::from((low..=high).contains(&truth.different_bytes.0));
            let (least, most) = said.saved_percent;
            assert!(least < most);
            wide += (most - least) / 40.0;
            // What was read alone saves less, as it shares chunks with the others.
            assert!(some.result().saved_percent(some.result().different_bytes.1 as f64) <= most);
        }
        assert!(within >= 37, "{within} of 40");
        // Fifty objects tell little.
        assert!(wide < 65.0, "{wide}");
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
