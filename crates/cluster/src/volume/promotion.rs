//! Promotion: hot chunks that are kept in metadata objects though they are clean.
//!
//! A hot chunk's data are written into the metadata object if its entry is still the same. Keys of
//! the header name the kept chunks, so that the next owner can evict them.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use onefold_core::object::{Change, Guard, ReadPart, Refusal, Write};

use super::{
    cache_manager::{CacheManager, HOT_SECONDS, parse, place},
    header::{CACHED, HOT, OWNER},
    objects::Objects,
    ownership::owner,
};
use crate::{
    chunk_map::stamp_value,
    format::{
        entry::{Entry, Sums},
        key,
    },
    rules::Rule,
};

/// Promotions and evictions of one volume.
pub(super) struct Promotion {
    objects: Arc<Objects>,
    cache: CacheManager,
}

impl Promotion {
    pub(super) fn new(objects: Arc<Objects>, cache: CacheManager) -> Promotion {
        Promotion { objects, cache }
    }

    /// Bytes of hot chunks that are kept in metadata objects, clean ones and those that are not to
    /// be deduplicated yet.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.bytes()
    }

    /// Evicts the chunk that was read longest ago from its object, when the session keeps more than
    /// its share; false when there is nothing to do.
    pub(super) fn evict_step(&self) -> onefold_core::Result<bool> {
        // If this fails, the records remain in the header, but their time is over all the same.
        let _ = self.forget_hot();
        self.keep_hits();
        let Some(place) = self.cache.oldest() else { return Ok(false) };
        let (index, offset) = parse(place);
        self.evict(index, offset, place).map_err(|refusal| self.objects.failed(index, refusal))?;
        Ok(true)
    }

    /// Records a read of chunks. Promotes clean chunks that are hot, and tells workers to leave hot
    /// dirty ones. All this is advice: an error is ignored, and a later read tries again.
    pub(super) fn warm(&self, index: u64, parts: &[(u32, Entry)], contents: &[Option<&Vec<u8>>]) {
        let hits = self.objects.kernel().settings().hit_count;
        if hits == 0 || self.objects.is_read_only() {
            return;
        }
        let second = self.objects.kernel().store().time().as_secs();
        for ((offset, entry), content) in parts.iter().zip(contents) {
            let hot = self.cache.hit(place(index, *offset), second) >= hits;
            let clears_dirty = !self.objects.kernel().keeps(Rule::PromotionKeepsDirty);
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
        if !self.cache.heat(place, second) {
            return Ok(());
        }
        let record = Change::SetOmap(vec![(
            key::numbered(HOT, place),
            (second + HOT_SECONDS).to_le_bytes().to_vec(),
        )]);
        self.objects.kernel().write_one(&Write {
            object: self.objects.header(),
            guards: vec![Guard::Exists],
            changes: vec![record],
        })?;
        Ok(())
    }

    /// Writes into the header what was read in seconds that are over, every ten seconds, so that the next owner
    /// knows it. An error is ignored: the next time has it, too.
    fn keep_hits(&self) {
        let kernel = self.objects.kernel();
        let second = kernel.store().time().as_secs();
        let pairs = self.cache.hits_due(second, false);
        if pairs.is_empty() {
            return;
        }
        let me = owner(true, &kernel.store().identity());
        let kept = kernel.write_one(&Write {
            object: self.objects.header(),
            guards: vec![Guard::Exists, Guard::Omap(OWNER.to_vec(), me)],
            changes: vec![Change::SetOmap(pairs)],
        });
        if kept.is_ok() {
            self.cache.hits_kept(second);
        }
    }

    /// What the header is to have of the reads when the volume is closed.
    pub(super) fn last_hits(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.cache.hits_due(self.objects.kernel().store().time().as_secs(), true)
    }

    /// Removes the records of hot chunks whose time is over.
    fn forget_hot(&self) -> Result<(), Refusal> {
        let second = self.objects.kernel().store().time().as_secs();
        let over = self.cache.cool(second);
        if over.is_empty() {
            return Ok(());
        }
        let keys = over.into_iter().map(|place| key::numbered(HOT, place)).collect();
        self.objects.kernel().write_one(&Write {
            object: self.objects.header(),
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
        if !self.cache.keep(place) {
            return Ok(());
        }
        let object = self.objects.get(index);
        let mut object = object.lock();
        if self.objects.kernel().keeps(Rule::KeptChunkListed) {
            self.record_kept(place, true)?;
        }
        let id = self.objects.id(index);
        let (data, sums) = self.objects.kernel().hashing().standing(id, offset, content);
        let new = Entry {
            mask: Entry::full_mask(entry.length),
            dirty: false,
            stamp: self.objects.kernel().stamp(),
            sums,
            ..entry.clone()
        };
        let op = Write {
            object: id.name(),
            guards: vec![Guard::Omap(key::entry(offset), entry.encode(id, offset))],
            changes: vec![
                Change::Write(offset.into(), data),
                Change::SetOmap(vec![(key::entry(offset), new.encode(id, offset))]),
            ],
        };
        let done = self.objects.kernel().write_one(&op);
        object.forget();
        if matches!(done, Err(Refusal::Unknown)) {
            self.cache.doubt(place);
        }
        done?;
        self.objects.kernel().counts().promoted.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Records in the header that a chunk is kept, or no longer kept. The value is a stamp, which
    /// is compared, so that a late copy of an older record does not undo a newer one.
    fn record_kept(&self, place: u64, kept: bool) -> Result<(), Refusal> {
        let key = key::numbered(CACHED, place);
        let change = if kept {
            Change::SetOmap(vec![(key.clone(), stamp_value(self.objects.kernel().stamp()))])
        } else {
            Change::DropOmap(vec![key.clone()])
        };
        // First assumes that a chunk to be kept has no record yet.
        let mut before = if kept { Vec::new() } else { self.recorded_stamp(&key)? };
        for _ in 0..8 {
            let guards = vec![Guard::Exists, Guard::Omap(key.clone(), before)];
            match self.objects.kernel().until_answered(&Write {
                object: self.objects.header(),
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
        let answer = self
            .objects
            .kernel()
            .read_one(&self.objects.header(), vec![ReadPart::Keys(vec![key.to_vec()])])?;
        Ok(answer.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default())
    }

    fn evict(&self, index: u64, offset: u32, place: u64) -> Result<(), Refusal> {
        let object = self.objects.get(index);
        let mut object = object.lock();
        object.forget();
        let id = self.objects.id(index);
        let known = self.objects.known(index, &mut object)?;
        let doubt = self.cache.is_in_doubt(place);
        // With another stamp a promotion that is still on its way comes too late.
        if let Some(entry) = known.entries.get(&offset)
            && !entry.dirty
            && (entry.mask != 0 || doubt)
            && entry.base.is_some()
        {
            let stamp = self.objects.kernel().stamp();
            let new = Entry { mask: 0, sums: Sums::NONE, stamp, ..entry.clone() };
            let op = Write {
                object: id.name(),
                guards: vec![Guard::Omap(key::entry(offset), entry.encode(id, offset))],
                changes: vec![
                    Change::Zero(offset.into(), entry.length.into()),
                    Change::SetOmap(vec![(key::entry(offset), new.encode(id, offset))]),
                ],
            };
            object.forget();
            match self.objects.kernel().until_answered(&op) {
                Ok(_) | Err(Refusal::Mismatch) => {}
                Err(refusal) => return Err(refusal),
            }
            // Reads the object once more: another session may have changed the chunk so that it is
            // still kept.
            let again = self.objects.known(index, &mut object)?;
            if again.entries.get(&offset).is_some_and(|now| !now.dirty && now.mask != 0) {
                return Ok(());
            }
        }
        self.record_kept(place, false)?;
        self.cache.forget(place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use onefold_core::object::{Change, Guard, ObjectStore, PoolKind, Write};
    use onefold_testbed::MemoryObjects;

    use super::{OWNER, owner};
    use crate::{Format, Mode, Session, Settings, Volume, Watermarks, Worker, create};

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

    /// Reads a chunk in two seconds, and ends so; bytes that are kept when the next server reads it in the third
    /// one, so long after the first.
    fn kept_after(seconds: u64, end: impl Fn(&MemoryObjects, Volume)) -> u64 {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        let settings = Settings { cold: Duration::ZERO, hit_count: 3, ..Settings::default() };
        let open = |name: &str| {
            Arc::new(Session::open(Arc::new(store.session(name)), settings.clone()).unwrap())
        };
        let at = |second| store.set_time(Duration::from_secs(second));
        at(1000);
        let (first, second) = (open("a server"), open("the next"));
        first.create_volume("v", 1 << 20).unwrap();
        let volume = Volume::attach(&first, "v", Mode::Own).unwrap();
        volume.write_at(0, &[7; 64 << 10]).unwrap();
        let mut worker = Worker::new(open("worker"), Watermarks::NONE);
        (0..20).for_each(|_| assert!(worker.step().is_ok()));
        let mut read = vec![0; 4096];
        for second in [1000, 1001] {
            at(second);
            volume.read_at(0, &mut read).unwrap();
        }
        assert_eq!(volume.cached_bytes(), 0);
        end(&store, volume);
        at(1000 + seconds);
        let volume = Volume::attach(&second, "v", Mode::TakeOver).unwrap();
        volume.read_at(0, &mut read).unwrap();
        assert_eq!(read, [7; 4096]);
        volume.cached_bytes()
    }

    #[test]
    fn the_next_server_knows_what_was_read_before_it() {
        let in_order = |_: &MemoryObjects, volume: Volume| volume.detach().unwrap();
        assert_eq!(kept_after(2, in_order), 32 << 10);
        // The first read is a minute old.
        assert_eq!(kept_after(60, in_order), 0);
        // One that was killed had told of seconds that were over ten seconds later.
        let killed = |_: &MemoryObjects, volume: Volume| drop(volume);
        assert_eq!(kept_after(2, killed), 0);
        let killed_later = |store: &MemoryObjects, volume: Volume| {
            store.set_time(Duration::from_secs(1010));
            volume.evict_step().unwrap();
        };
        assert_eq!(kept_after(12, killed_later), 32 << 10);
        // Who lost the volume tells nothing any more.
        let replaced = |store: &MemoryObjects, volume: Volume| {
            let other = Change::SetOmap(vec![(OWNER.to_vec(), owner(false, "another"))]);
            let object = volume.objects.header();
            let op = Write { object, guards: vec![Guard::Exists], changes: vec![other] };
            store.write(&[op]).remove(0).unwrap();
            store.set_time(Duration::from_secs(1010));
            volume.evict_step().unwrap();
        };
        assert_eq!(kept_after(12, replaced), 0);
    }

    #[test]
    fn a_dirty_chunk_that_is_read_often_stays_for_a_while() {
        assert_eq!(dirty_after(2, 1 << 20), 32 << 10);
        // Nothing may be kept.
        assert_eq!(dirty_after(2, 0), 0);
        // The chunk was left dirty too often.
        assert_eq!(dirty_after(20, 1 << 20), 0);
    }
}
