//! Hot chunks that are kept in metadata objects though they are clean (the paper's cache manager).
//!
//! Reads are noted in Bloom filters, one a second for a minute. A chunk that many of them hold is
//! promoted: its data is written into the object where its entry is still the same. Keys of the
//! header name what is kept, so that whoever comes after us can bring it back to the chunks.
//!
//! One that is still dirty stays as it is: the header tells workers until when. That is short, and
//! is told again while it is read; so nothing has to be taken back when we are gone.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use onefold_core::{
    checksum,
    object::{Change, Guard, Read, ReadPart, Refusal, Write},
};

use super::{
    Volume,
    header::{CACHED, HOT, name},
    read::entry_key,
};
use crate::{
    chunk_map::stamp_value,
    format::{BLOCK, CHUNK_MAX, OBJECT_MAX, ObjectId, catalogue::Cut, entry::Entry, key},
    session::Session,
    settings::PlantedBug,
};

/// Seconds that reads are remembered for.
const SECONDS: usize = 60;

/// Bits of a filter: 64 KiB.
const FILTER_BITS: u64 = 64 * 1024 * 8;

/// Chunks that are noted as kept, at most.
const CACHED_MAX: usize = 65_536;

/// Dirty chunks of a volume that are noted as hot, at most.
const HOT_MAX: usize = 4096;

/// Seconds that such a note holds; it is made again when less than half of that is left.
const HOT_SECONDS: u64 = 60;

/// A Bloom filter for one second, made when the first read comes.
struct Filter {
    second: u64,
    bits: Vec<u64>,
}

/// The hit set, and what is kept.
#[derive(Default)]
pub(super) struct Cache {
    filters: VecDeque<Filter>,
    /// Chunks that are kept, by place, with when they were read last.
    kept: BTreeMap<u64, u64>,
    /// Dirty chunks that are not to be deduplicated, by place, until which second.
    hot: BTreeMap<u64, u64>,
    /// Those of which a promotion had no reply: it may still come.
    doubt: BTreeSet<u64>,
    bytes: u64,
    reads: u64,
}

/// A chunk of a volume as a number.
fn place(index: u64, offset: u32) -> u64 {
    index * u64::from(OBJECT_MAX / BLOCK) + u64::from(offset / BLOCK)
}

fn parse(place: u64) -> (u64, u32) {
    let blocks = u64::from(OBJECT_MAX / BLOCK);
    (place / blocks, (place % blocks) as u32 * BLOCK)
}

/// The second that a note of a hot chunk names.
fn until(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

impl Cache {
    /// Takes over what the header names.
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

    /// Bytes of what is kept, and of what is not to be deduplicated.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes a read; in how many seconds the chunk was read.
    fn hit(&mut self, place: u64, second: u64) -> u32 {
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

impl Volume {
    /// Bytes of hot chunks that are kept in metadata objects, clean ones and those that are not to
    /// be deduplicated yet.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.cache.lock().bytes
    }

    /// Bytes that a chunk that is kept counts for: the most that it may have.
    pub(super) fn kept_bytes(&self) -> u64 {
        u64::from(if self.session.format.volume_cut == Cut::Content {
            CHUNK_MAX
        } else {
            self.chunk_bytes()
        })
    }

    /// Notes a read of chunks; those that are hot are promoted, or when they are dirty kept from
    /// workers. It is advice: what goes wrong is left for the next time.
    pub(super) fn warm(&self, index: u64, parts: &[(u32, Entry)], contents: &[Option<&Vec<u8>>]) {
        let hits = self.session.settings.hit_count;
        if hits == 0 || self.read_only {
            return;
        }
        let second = self.session.store.time().as_secs();
        for ((offset, entry), content) in parts.iter().zip(contents) {
            let hot = self.cache.lock().hit(place(index, *offset), second) >= hits;
            let clears_dirty = self.session.planted(PlantedBug::PromotionClearsDirty);
            if hot && entry.dirty && !clears_dirty {
                let _ = self.keep_dirty(place(index, *offset), second);
            } else if let Some(content) = content
                && hot
            {
                let _ = self.promote(index, *offset, entry, content);
            }
        }
    }

    /// Tells workers to leave a dirty chunk as it is for a while.
    fn keep_dirty(&self, place: u64, second: u64) -> Result<(), Refusal> {
        {
            let mut cache = self.cache.lock();
            let noted = cache.hot.get(&place).copied();
            let room = self.session.kept.load(Relaxed) + self.kept_bytes()
                <= self.session.cache_share()
                && cache.hot.len() < HOT_MAX;
            if noted.map_or(!room, |until| until > second + HOT_SECONDS / 2) {
                return Ok(());
            }
            if cache.hot.insert(place, second + HOT_SECONDS).is_none() {
                cache.bytes += self.kept_bytes();
                self.session.kept.fetch_add(self.kept_bytes(), Relaxed);
            }
        }
        let note = Change::SetOmap(vec![(
            key::numbered(HOT, place),
            (second + HOT_SECONDS).to_le_bytes().to_vec(),
        )]);
        self.session.write_one(&Write {
            object: name(self.id),
            guards: vec![Guard::Exists],
            changes: vec![note],
        })?;
        Ok(())
    }

    /// Removes notes of dirty chunks that hold no more.
    fn forget_hot(&self) -> Result<(), Refusal> {
        let second = self.session.store.time().as_secs();
        let over: Vec<u64> = {
            let mut cache = self.cache.lock();
            let over: Vec<u64> = cache
                .hot
                .iter()
                .filter(|(_, until)| **until <= second)
                .map(|(place, _)| *place)
                .collect();
            cache.hot.retain(|_, until| *until > second);
            let bytes = over.len() as u64 * self.kept_bytes();
            cache.bytes -= bytes;
            self.session.kept.fetch_sub(bytes, Relaxed);
            over
        };
        if over.is_empty() {
            return Ok(());
        }
        let keys = over.into_iter().map(|place| key::numbered(HOT, place)).collect();
        self.session.write_one(&Write {
            object: name(self.id),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(keys)],
        })?;
        Ok(())
    }

    /// Writes a hot chunk into its object, where its entry is still the same.
    fn promote(
        &self,
        index: u64,
        offset: u32,
        entry: &Entry,
        content: &[u8],
    ) -> Result<(), Refusal> {
        let place = place(index, offset);
        {
            let mut cache = self.cache.lock();
            let kept = self.session.kept.load(Relaxed) + self.kept_bytes();
            let room = kept <= self.session.cache_share() && cache.kept.len() < CACHED_MAX;
            if !room || cache.kept.contains_key(&place) {
                return Ok(());
            }
            let reads = cache.reads;
            cache.kept.insert(place, reads);
            cache.bytes += self.kept_bytes();
            self.session.kept.fetch_add(self.kept_bytes(), Relaxed);
        }
        let object = self.object(index);
        let mut object = object.lock();
        if !self.session.planted(PlantedBug::KeptUnlisted) {
            self.record_kept(place, true)?;
        }
        let id = self.object_id(index);
        let new = Entry {
            mask: Entry::full_mask(entry.length),
            dirty: false,
            stamp: self.session.stamp(),
            ..*entry
        };
        let op = Write {
            object: id.name(),
            guards: vec![Guard::Omap(entry_key(offset), entry.encode(id, offset))],
            changes: vec![
                Change::Write(offset.into(), content.to_vec()),
                Change::SetOmap(vec![(entry_key(offset), new.encode(id, offset))]),
            ],
        };
        let done = self.session.write_one(&op);
        object.learn(None);
        if matches!(done, Err(Refusal::Unknown)) {
            self.cache.lock().doubt.insert(place);
        }
        done?;
        self.session.counts.promoted.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Notes in the header that a chunk is kept, or that it is no longer. The value is a stamp,
    /// which is compared: a copy of an older note that comes late does not undo a newer one.
    fn record_kept(&self, place: u64, kept: bool) -> Result<(), Refusal> {
        let key = key::numbered(CACHED, place);
        let change = if kept {
            Change::SetOmap(vec![(key.clone(), stamp_value(self.session.stamp()))])
        } else {
            Change::DropOmap(vec![key.clone()])
        };
        // Guessed: what is to be kept is not there yet.
        let mut before = if kept { Vec::new() } else { self.recorded_stamp(&key)? };
        for _ in 0..8 {
            let guards = vec![Guard::Exists, Guard::Omap(key.clone(), before)];
            match self.session.until_answered(&Write {
                object: name(self.id),
                guards,
                changes: vec![change.clone()],
            }) {
                Ok(_) => return Ok(()),
                // A copy that came late, or our own operation whose reply was lost: then it is done
                // once more.
                Err(Refusal::Mismatch) => before = self.recorded_stamp(&key)?,
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    fn recorded_stamp(&self, key: &[u8]) -> Result<Vec<u8>, Refusal> {
        let answer =
            self.session.read_one(&name(self.id), vec![ReadPart::Keys(vec![key.to_vec()])])?;
        Ok(answer.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default())
    }

    /// Takes the chunk that was read longest ago out of its object again, when more is kept than
    /// may be; false when there is nothing to do.
    ///
    /// # Errors
    /// The store's.
    pub fn evict_step(&self) -> onefold_core::Result<bool> {
        // A note that stays in the header holds no more all the same.
        let _ = self.forget_hot();
        let oldest = {
            let cache = self.cache.lock();
            let over =
                self.session.kept.load(Relaxed) + self.kept_bytes() > self.session.cache_share();
            cache
                .kept
                .iter()
                .filter(|_| over)
                .min_by_key(|(_, read)| **read)
                .map(|(place, _)| *place)
        };
        let Some(place) = oldest else { return Ok(false) };
        let (index, offset) = parse(place);
        self.evict(index, offset, place).map_err(|refusal| self.failed(index, refusal))?;
        Ok(true)
    }

    fn evict(&self, index: u64, offset: u32, place: u64) -> Result<(), Refusal> {
        let object = self.object(index);
        let mut object = object.lock();
        object.learn(None);
        let id = self.object_id(index);
        let known = self.known(index, &mut object)?;
        let doubt = self.cache.lock().doubt.contains(&place);
        // With another stamp a promotion that is still on its way comes too late.
        if let Some(entry) = known.entries.get(&offset)
            && !entry.dirty
            && (entry.mask != 0 || doubt)
            && entry.base.is_some()
        {
            let new = Entry { mask: 0, stamp: self.session.stamp(), ..*entry };
            let op = Write {
                object: id.name(),
                guards: vec![Guard::Omap(entry_key(offset), entry.encode(id, offset))],
                changes: vec![
                    Change::Zero(offset.into(), entry.length.into()),
                    Change::SetOmap(vec![(entry_key(offset), new.encode(id, offset))]),
                ],
            };
            object.learn(None);
            match self.session.until_answered(&op) {
                Ok(_) | Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(refusal),
            }
            // It is looked at once more: what somebody else changed meanwhile may still be kept.
            let again = self.known(index, &mut object)?;
            if again.entries.get(&offset).is_some_and(|now| !now.dirty && now.mask != 0) {
                return Ok(());
            }
        }
        self.record_kept(place, false)?;
        let mut cache = self.cache.lock();
        cache.doubt.remove(&place);
        if cache.kept.remove(&place).is_some() {
            cache.bytes -= self.kept_bytes();
            self.session.kept.fetch_sub(self.kept_bytes(), Relaxed);
        }
        Ok(())
    }
}

impl Session {
    /// The dirty chunks of these, each by its object and offset, that servers read often: they are
    /// not to be deduplicated now.
    pub(crate) fn hot(
        &self,
        chunks: &[(ObjectId, u32)],
        now: Duration,
    ) -> Result<BTreeSet<(ObjectId, u32)>, Refusal> {
        let mut volumes: BTreeMap<u64, Vec<(ObjectId, u32)>> = BTreeMap::new();
        chunks.iter().for_each(|chunk| volumes.entry(chunk.0.volume).or_default().push(*chunk));
        let keys = |of: &Vec<(ObjectId, u32)>| {
            of.iter()
                .map(|(object, offset)| key::numbered(HOT, place(object.index, *offset)))
                .collect()
        };
        let reads: Vec<Read> = volumes
            .iter()
            .map(|(volume, of)| Read {
                object: name(*volume),
                parts: vec![ReadPart::Keys(keys(of))],
            })
            .collect();
        let mut hot = BTreeSet::new();
        for (of, answer) in volumes.values().zip(self.read_all(&reads)) {
            let answer = match answer {
                // What was put has no header.
                Err(Refusal::Missing) => continue,
                other => other?,
            };
            let (pairs, _) = answer.pairs(0);
            let holds = |(object, offset): &&(ObjectId, u32)| {
                let key = key::numbered(HOT, place(object.index, *offset));
                // A clock that is far ahead of ours made no such note.
                pairs.iter().any(|(name, value)| {
                    *name == key
                        && (1..=2 * HOT_SECONDS)
                            .contains(&until(value).saturating_sub(now.as_secs()))
                })
            };
            hot.extend(of.iter().filter(holds));
        }
        Ok(hot)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use onefold_backend::MemoryObjects;
    use onefold_core::object::PoolKind;

    use super::*;
    use crate::{Format, Mode, Settings, Watermarks, Worker, create};

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

    /// Writes two chunks, reads the first, and lets a worker take so many steps; bytes that are
    /// dirty then.
    fn dirty_after(steps: u32, cache_bytes: u64) -> u64 {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let settings =
            Settings { cold: Duration::ZERO, hit_count: 1, cache_bytes, ..Settings::default() };
        let open = |name: &str| {
            Arc::new(Session::open(Arc::new(store.session(name)), settings.clone()).unwrap())
        };
        let (server, worker) = (open("server"), open("worker"));
        server.create_volume("v", 1 << 20).unwrap();
        let volume = Volume::attach(&server, "v", Mode::Own).unwrap();
        volume.write_at(0, &[7; 64 << 10]).unwrap();
        let mut read = vec![0; 4096];
        volume.read_at(0, &mut read).unwrap();
        assert_eq!(read, [7; 4096]);
        let mut worker = Worker::new(worker, Watermarks::NONE);
        (0..steps).for_each(|_| assert!(worker.step().is_ok()));
        server.status().unwrap().dirty_bytes
    }

    #[test]
    fn a_dirty_chunk_that_is_read_often_stays_for_a_while() {
        assert_eq!(dirty_after(2, 1 << 20), 32 << 10);
        // Nothing may be kept.
        assert_eq!(dirty_after(2, 0), 0);
        // It was put off too often.
        assert_eq!(dirty_after(20, 1 << 20), 0);
    }
}
