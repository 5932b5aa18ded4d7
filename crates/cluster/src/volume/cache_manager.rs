//! The cache manager (the paper's): which chunks are hot, and which of them are kept in metadata
//! objects.
//!
//! Reads are recorded in a [hit set](super::hit_set). A clean chunk that was read in many of the last seconds
//! is [promoted](super::promotion). A dirty one stays dirty: a key of the header tells workers
//! until when to leave it. The time is short and is extended while clients read the chunk, so
//! nothing has to be undone when its server is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use onefold_core::object::{Read, ReadPart, Refusal};
use parking_lot::Mutex;

use super::{
    header::{CACHED, CACHED_MAX, HOT, HOT_MAX, name},
    hit_set::HitSet,
};
use crate::{
    format::{BLOCK, CHUNK_MAX, OBJECT_MAX, ObjectId, catalogue::Cut, key},
    kernel::Kernel,
    session::Session,
};

/// Seconds that the record of a hot chunk is valid. The owner renews the record when less than half
/// of them is left.
pub(super) const HOT_SECONDS: u64 = 60;

/// The hit set, and the chunks that are kept.
#[derive(Default)]
pub(super) struct Cache {
    hits: HitSet,
    /// Chunks that are kept, by place, with when they were read last.
    kept: BTreeMap<u64, u64>,
    /// Dirty chunks that are not to be deduplicated, by place, until which second.
    hot: BTreeMap<u64, u64>,
    /// Chunks whose promotion had no reply: the store may still apply it.
    doubt: BTreeSet<u64>,
    bytes: u64,
    reads: u64,
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
    fn learn(&mut self, key: &[u8], value: &[u8], kept_bytes: u64) {
        let new = if let Some(place) = key::parse_numbered(CACHED, key) {
            self.kept.insert(place, 0).is_none()
        } else if let Some(place) = key::parse_numbered(HOT, key) {
            self.hot.insert(place, until(value)).is_none()
        } else {
            false
        };
        self.bytes += if new { kept_bytes } else { 0 };
    }

    /// Records a read; returns in how many of the last seconds the chunk was read.
    fn hit(&mut self, place: u64, second: u64) -> u32 {
        self.reads += 1;
        if let Some(kept) = self.kept.get_mut(&place) {
            *kept = self.reads;
        }
        self.hits.hit(place, second)
    }
}

/// The cache of one volume. It draws what it keeps from the budget of the session.
pub(super) struct CacheManager {
    session: Arc<Session>,
    /// Bytes that a chunk that is kept counts for: the most that it may have.
    chunk_bytes: u64,
    cache: Mutex<Cache>,
}

impl CacheManager {
    /// The cache of a volume with the chunks that its header names.
    pub(super) fn load(session: Arc<Session>, header: &[(Vec<u8>, Vec<u8>)]) -> CacheManager {
        let format = session.kernel().format();
        let by_content = format.volume_cut == Cut::Content;
        let chunk_bytes = u64::from(if by_content { CHUNK_MAX } else { format.chunk_bytes });
        let second = session.kernel().store().time().as_secs();
        let mut cache = Cache { hits: HitSet::load(header, second), ..Cache::default() };
        header.iter().for_each(|(key, value)| cache.learn(key, value, chunk_bytes));
        session.cache_budget().keep(cache.bytes);
        CacheManager { session, chunk_bytes, cache: Mutex::new(cache) }
    }

    /// Bytes of the kept chunks, and of the hot ones.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.lock().bytes
    }

    /// Records a read; returns in how many of the last seconds the chunk was read.
    pub(super) fn hit(&self, place: u64, second: u64) -> u32 {
        self.cache.lock().hit(place, second)
    }

    /// The keys of the header that are to have what was read, with their values; with `closing` all of it, otherwise
    /// every ten seconds what is over.
    pub(super) fn hits_due(&self, second: u64, closing: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.cache.lock().hits.due(second, closing)
    }

    /// The header has what was due at that second.
    pub(super) fn hits_kept(&self, second: u64) {
        self.cache.lock().hits.kept(second);
    }

    /// True when the session may keep one chunk more.
    fn has_room(&self) -> bool {
        let budget = self.session.cache_budget();
        budget.kept() + self.chunk_bytes <= budget.share(self.session.kernel())
    }

    fn count(&self, cache: &mut Cache) {
        cache.bytes += self.chunk_bytes;
        self.session.cache_budget().keep(self.chunk_bytes);
    }

    fn uncount(&self, cache: &mut Cache, chunks: u64) {
        let bytes = chunks * self.chunk_bytes;
        cache.bytes -= bytes;
        self.session.cache_budget().give_back(bytes);
    }

    /// Records that a dirty chunk is hot; false when the record is valid for long enough, or there
    /// is no room.
    pub(super) fn heat(&self, place: u64, second: u64) -> bool {
        let mut cache = self.cache.lock();
        let recorded = cache.hot.get(&place).copied();
        let room = self.has_room() && cache.hot.len() < HOT_MAX;
        if recorded.map_or(!room, |until| until > second + HOT_SECONDS / 2) {
            return false;
        }
        if cache.hot.insert(place, second + HOT_SECONDS).is_none() {
            self.count(&mut cache);
        }
        true
    }

    /// Forgets the hot chunks whose time is over, and returns their places.
    pub(super) fn cool(&self, second: u64) -> Vec<u64> {
        let mut cache = self.cache.lock();
        let over: Vec<u64> = cache
            .hot
            .iter()
            .filter(|(_, until)| **until <= second)
            .map(|(place, _)| *place)
            .collect();
        cache.hot.retain(|_, until| *until > second);
        self.uncount(&mut cache, over.len() as u64);
        over
    }

    /// Reserves room for a clean chunk; false when there is none, or it is kept.
    pub(super) fn keep(&self, place: u64) -> bool {
        let mut cache = self.cache.lock();
        let room = self.has_room() && cache.kept.len() < CACHED_MAX;
        if !room || cache.kept.contains_key(&place) {
            return false;
        }
        let reads = cache.reads;
        cache.kept.insert(place, reads);
        self.count(&mut cache);
        true
    }

    /// The promotion of a chunk had no reply.
    pub(super) fn doubt(&self, place: u64) {
        self.cache.lock().doubt.insert(place);
    }

    /// True while the promotion of a chunk may still come.
    pub(super) fn is_in_doubt(&self, place: u64) -> bool {
        self.cache.lock().doubt.contains(&place)
    }

    /// The kept chunk that was read longest ago, when the session keeps more than its share.
    pub(super) fn oldest(&self) -> Option<u64> {
        let cache = self.cache.lock();
        let over = !self.has_room();
        cache.kept.iter().filter(|_| over).min_by_key(|(_, read)| **read).map(|(place, _)| *place)
    }

    /// Gives back the room of a chunk that was evicted.
    pub(super) fn forget(&self, place: u64) {
        let mut cache = self.cache.lock();
        cache.doubt.remove(&place);
        if cache.kept.remove(&place).is_some() {
            self.uncount(&mut cache, 1);
        }
    }
}

impl Drop for CacheManager {
    /// Returns the bytes that this volume kept to the session's budget.
    fn drop(&mut self) {
        self.session.cache_budget().give_back(self.bytes());
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
    fn places_come_back() {
        assert_eq!(parse(place(77, 5 * BLOCK)), (77, 5 * BLOCK));
    }
}
