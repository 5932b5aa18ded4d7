//! Hot chunks that are kept in metadata objects though they are clean (the paper's cache manager).
//!
//! Reads are noted in Bloom filters, one a second for a minute. A chunk that many of them hold is promoted: its data is written into the object where its
//! entry is still the same. Keys of the header name what is kept, so that whoever comes after us can bring it back to the chunks.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::atomic::Ordering::Relaxed,
};

use onefold_core::{
    checksum,
    object::{Change, Guard, Look, Refusal, Write},
};

use super::{
    Volume,
    header::{CACHED, name},
    read::entry_key,
};
use crate::{
    format::{BLOCK, CHUNK_MAX, OBJECT_MAX, catalogue::Cut, entry::Entry, key},
    map::stamp_value,
    settings::PlantedBug,
};

/// Seconds that reads are remembered for.
const SECONDS: usize = 60;

/// Bits of a filter: 64 KiB.
const FILTER_BITS: u64 = 64 * 1024 * 8;

/// Chunks that are noted as kept, at most.
const CACHED_MAX: usize = 65_536;

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

impl Cache {
    /// Takes over what the header names.
    pub(super) fn learn(&mut self, key: &[u8], kept_bytes: u64) {
        if let Some(place) = key::parse_numbered(CACHED, key)
            && self.kept.insert(place, 0).is_none()
        {
            self.bytes += kept_bytes;
        }
    }

    /// Bytes of what is kept.
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
        let holds = |filter: &&Filter| at.iter().all(|bit| filter.bits[*bit as usize / 64] >> (bit % 64) & 1 == 1);
        self.filters.iter().filter(holds).count() as u32
    }
}

impl Volume {
    /// Bytes of clean chunks that are kept in metadata objects.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.cache.lock().bytes
    }

    /// Bytes that a chunk that is kept counts for: the most that it may have.
    pub(super) fn kept_bytes(&self) -> u64 {
        u64::from(if self.session.format.volume_cut == Cut::Content { CHUNK_MAX } else { self.chunk_bytes() })
    }

    /// Notes a read of chunks, and promotes those that are hot. It is advice: what goes wrong is left for the next time.
    pub(super) fn warm(&self, index: u64, parts: &[(u32, Entry)], contents: &[Option<&Vec<u8>>]) {
        let hits = self.session.settings.hit_count;
        if hits == 0 || self.read_only {
            return;
        }
        let second = self.session.store.time().as_secs();
        for ((offset, entry), content) in parts.iter().zip(contents) {
            let hot = self.cache.lock().hit(place(index, *offset), second) >= hits;
            let clears_dirty = self.session.planted(PlantedBug::PromotionClearsDirty);
            if let Some(content) = content
                && hot
                && (!entry.dirty || clears_dirty)
            {
                let _ = self.promote(index, *offset, entry, content);
            }
        }
    }

    /// Writes a hot chunk into its object, where its entry is still the same.
    fn promote(&self, index: u64, offset: u32, entry: &Entry, content: &[u8]) -> Result<(), Refusal> {
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
            self.note(place, true)?;
        }
        let id = self.object_id(index);
        let new = Entry { mask: Entry::full_mask(entry.length), dirty: false, stamp: self.session.stamp(), ..*entry };
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

    /// Notes in the header that a chunk is kept, or that it is no longer. The value is a stamp, which is compared: a copy of an older note that comes late does not
    /// undo a newer one.
    fn note(&self, place: u64, kept: bool) -> Result<(), Refusal> {
        let key = key::numbered(CACHED, place);
        let change = if kept {
            Change::SetOmap(vec![(key.clone(), stamp_value(self.session.stamp()))])
        } else {
            Change::DropOmap(vec![key.clone()])
        };
        // Guessed: what is to be kept is not there yet.
        let mut before = if kept { Vec::new() } else { self.noted(&key)? };
        for _ in 0..8 {
            let guards = vec![Guard::Exists, Guard::Omap(key.clone(), before)];
            match self.session.insist(&Write { object: name(self.id), guards, changes: vec![change.clone()] }) {
                Ok(_) => return Ok(()),
                // A copy that came late, or our own operation whose reply was lost: then it is done once more.
                Err(Refusal::Mismatch) => before = self.noted(&key)?,
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    fn noted(&self, key: &[u8]) -> Result<Vec<u8>, Refusal> {
        let sight = self.session.read_one(&name(self.id), vec![Look::Keys(vec![key.to_vec()])])?;
        Ok(sight.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default())
    }

    /// Takes the chunk that was read longest ago out of its object again, when more is kept than may be; false when there is nothing to do.
    ///
    /// # Errors
    /// The store's.
    pub fn evict_step(&self) -> onefold_core::Result<bool> {
        let oldest = {
            let cache = self.cache.lock();
            let over = self.session.kept.load(Relaxed) + self.kept_bytes() > self.session.cache_share();
            cache.kept.iter().filter(|_| over).min_by_key(|(_, read)| **read).map(|(place, _)| *place)
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
            match self.session.insist(&op) {
                Ok(_) | Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(refusal),
            }
            // It is looked at once more: what somebody else changed meanwhile may still be kept.
            let again = self.known(index, &mut object)?;
            if again.entries.get(&offset).is_some_and(|now| !now.dirty && now.mask != 0) {
                return Ok(());
            }
        }
        self.note(place, false)?;
        let mut cache = self.cache.lock();
        cache.doubt.remove(&place);
        if cache.kept.remove(&place).is_some() {
            cache.bytes -= self.kept_bytes();
            self.session.kept.fetch_sub(self.kept_bytes(), Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_counted_by_seconds_and_forgotten_after_a_minute() {
        let mut cache = Cache::default();
        assert_eq!((cache.hit(7, 10), cache.hit(7, 10), cache.hit(7, 11), cache.hit(8, 11)), (1, 1, 2, 1));
        assert_eq!(cache.hit(7, 69), 3);
        assert_eq!(cache.hit(7, 200), 1);
    }

    #[test]
    fn places_come_back() {
        assert_eq!(parse(place(77, 5 * BLOCK)), (77, 5 * BLOCK));
    }
}
