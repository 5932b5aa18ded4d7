//! The cache manager (the paper's): which chunks are hot, and which of them are kept in metadata
//! objects.
//!
//! Reads are recorded in Bloom filters, one a second for a minute. A clean chunk that is in many of
//! them is [promoted](super::promotion). A dirty one stays dirty: a key of the header tells workers
//! until when to leave it. The time is short and is extended while clients read the chunk, so
//! nothing has to be undone when its server is gone.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::{
    checksum,
    object::{Read, ReadPart, Refusal},
};

use super::header::{CACHED, HOT, name};
use crate::{
    format::{BLOCK, OBJECT_MAX, ObjectId, key},
    kernel::Kernel,
};

/// Seconds that reads are remembered for.
const SECONDS: usize = 60;

/// Bits of a filter: 64 KiB.
const FILTER_BITS: u64 = 64 * 1024 * 8;

/// Most chunks that the header records as kept.
pub(super) const CACHED_MAX: usize = 65_536;

/// Most dirty chunks of a volume that the header records as hot.
pub(super) const HOT_MAX: usize = 4096;

/// Seconds that the record of a hot chunk is valid. The owner renews the record when less than half
/// of them is left.
pub(super) const HOT_SECONDS: u64 = 60;

/// A Bloom filter for one second, made when the first read comes.
struct Filter {
    second: u64,
    bits: Vec<u64>,
}

/// The hit set, and the chunks that are kept.
#[derive(Default)]
pub(super) struct Cache {
    filters: VecDeque<Filter>,
    /// Chunks that are kept, by place, with when they were read last.
    pub(super) kept: BTreeMap<u64, u64>,
    /// Dirty chunks that are not to be deduplicated, by place, until which second.
    pub(super) hot: BTreeMap<u64, u64>,
    /// Chunks whose promotion had no reply: the store may still apply it.
    pub(super) doubt: BTreeSet<u64>,
    pub(super) bytes: u64,
    pub(super) reads: u64,
}

/// A chunk of a volume as a number.
pub(super) fn place(index: u64, offset: u32) -> u64 {
    index * u64::from(OBJECT_MAX / BLOCK) + u64::from(offset / BLOCK)
}

pub(super) fn parse(place: u64) -> (u64, u32) {
    let blocks = u64::from(OBJECT_MAX / BLOCK);
    (place / blocks, (place % blocks) as u32 * BLOCK)
}

/// The second until which a record of a hot chunk is valid.
fn until(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

impl Cache {
    /// Reads one key of the header.
    pub(super) fn learn(&mut self, key: &[u8], value: &[u8], kept_bytes: u64) {
        let new = if let Some(place) = key::parse_numbered(CACHED, key) {
            self.kept.insert(place, 0).is_none()
        } else if let Some(place) = key::parse_numbered(HOT, key) {
            self.hot.insert(place, until(value)).is_none()
        } else {
            false
        };
        self.bytes += if new { kept_bytes } else { 0 };
    }

    /// Bytes of the kept chunks, and of the hot ones.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records a read; returns in how many of the last seconds the chunk was read.
    pub(super) fn hit(&mut self, place: u64, second: u64) -> u32 {
        self.reads += 1;
        if let Some(kept) = self.kept.get_mut(&place) {
            *kept = self.reads;
        }
        if self.filters.back().is_none_or(|filter| filter.second != second) {
            self.filters.push_back(Filter { second, bits: vec![0; FILTER_BITS as usize / 64] });
        }
        self.filters.retain(|filter| filter.second + SECONDS as u64 > second);
        let hash = checksum::fast(4, &place.to_le_bytes());
        let at = [hash % FILTER_BITS, (hash >> 32) % FILTER_BITS];
        if let Some(filter) = self.filters.back_mut() {
            at.iter().for_each(|bit| filter.bits[*bit as usize / 64] |= 1 << (bit % 64));
        }
        let holds = |filter: &&Filter| {
            at.iter().all(|bit| filter.bits[*bit as usize / 64] >> (bit % 64) & 1 == 1)
        };
        self.filters.iter().filter(holds).count() as u32
    }
}

/// Bytes of clean chunks that a session may keep in metadata objects, and does.
pub(crate) struct CacheBudget {
    kept: AtomicU64,
    /// Servers that share the cache.
    servers: AtomicU64,
}

impl Default for CacheBudget {
    fn default() -> CacheBudget {
        CacheBudget { kept: AtomicU64::new(0), servers: AtomicU64::new(1) }
    }
}

impl CacheBudget {
    /// Bytes that the volumes of this session keep.
    pub(super) fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Bytes that this session may keep: its share of the store's cache.
    pub(super) fn share(&self, kernel: &Kernel) -> u64 {
        kernel.settings().cache_bytes / self.servers.load(Relaxed).max(1)
    }

    pub(super) fn share_with(&self, servers: u64) {
        self.servers.store(servers.max(1), Relaxed);
    }

    pub(super) fn keep(&self, bytes: u64) {
        self.kept.fetch_add(bytes, Relaxed);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.kept.fetch_sub(bytes, Relaxed);
    }
}

/// The dirty chunks of these, each by its object and offset, that servers read often: they are
/// not to be deduplicated now.
pub(crate) fn hot(
    kernel: &Kernel,
    chunks: &[(ObjectId, u32)],
    now: Duration,
) -> Result<BTreeSet<(ObjectId, u32)>, Refusal> {
    let mut volumes: BTreeMap<u64, Vec<(ObjectId, u32)>> = BTreeMap::new();
    chunks.iter().for_each(|chunk| volumes.entry(chunk.0.volume).or_default().push(*chunk));
    let keys = |of: &Vec<(ObjectId, u32)>| {
        of.iter().map(|(object, offset)| key::numbered(HOT, place(object.index, *offset))).collect()
    };
    let reads: Vec<Read> = volumes
        .iter()
        .map(|(volume, of)| Read { object: name(*volume), parts: vec![ReadPart::Keys(keys(of))] })
        .collect();
    let mut hot = BTreeSet::new();
    for (of, answer) in volumes.values().zip(kernel.read_all(&reads)) {
        let answer = match answer {
            // Objects that were put have no header.
            Err(Refusal::Missing) => continue,
            other => other?,
        };
        let (pairs, _) = answer.pairs(0);
        let holds = |(object, offset): &&(ObjectId, u32)| {
            let key = key::numbered(HOT, place(object.index, *offset));
            // Ignores a time that lies too far ahead for a server whose clock is about right.
            pairs.iter().any(|(name, value)| {
                *name == key
                    && (1..=2 * HOT_SECONDS).contains(&until(value).saturating_sub(now.as_secs()))
            })
        };
        hot.extend(of.iter().filter(holds));
    }
    Ok(hot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_counted_by_seconds_and_forgotten_after_a_minute() {
        let mut cache = Cache::default();
        assert_eq!(
            (cache.hit(7, 10), cache.hit(7, 10), cache.hit(7, 11), cache.hit(8, 11)),
            (1, 1, 2, 1)
        );
        assert_eq!(cache.hit(7, 69), 3);
        assert_eq!(cache.hit(7, 200), 1);
    }

    #[test]
    fn places_come_back() {
        assert_eq!(parse(place(77, 5 * BLOCK)), (77, 5 * BLOCK));
    }
}
