//! Deduplicating one metadata object (the paper's 4.4.1, with the flip before the drop).
//!
//! | step | after a crash |
//! |---|---|
//! | (a) a reference is added, with the dirty entry's stamp | a false reference, or the next worker makes the same one |
//! | (b) the flip: compare entries; new entries, punch, *pending drops* of the old bases, in one operation | the pending drop tells what to drop |
//! | (c) the old references are dropped, then their pending drops | it is dropped again, which does nothing |
//!
//! A flip that comes too late drops its reference only where the entry, read afterwards, has no use for it.

use std::{collections::BTreeMap, time::Duration};

use onefold_core::object::{Change, Guard, Look, ObjectName, Refusal, Write};

use crate::{
    format::{
        Chunk, ObjectId, PENDING_MAX, Reference,
        entry::{self, Base, Entry},
        key,
    },
    map::{Map, assemble, map_looks},
    session::Session,
    settings::PlantedBug,
};

/// Entries of one flip.
pub(super) const FLIP_ENTRIES: usize = 64;

/// What became of an object.
#[derive(Default)]
pub(super) struct Done {
    pub(super) flipped: u64,
    pub(super) operations: u64,
    /// It is still on the list.
    pub(super) again: bool,
}

/// An entry on its way.
struct Flip {
    offset: u32,
    old: Entry,
    new: Entry,
    /// The reference that was added for it.
    added: Option<(Chunk, Reference)>,
    /// The one that goes with its old base.
    dropped: Option<(Chunk, Reference)>,
}

impl Session {
    /// Deduplicates what is dirty and cold in an object, finishes its drops, and takes it off the list when nothing is left.
    pub(super) fn deduplicate(&self, object: ObjectId, shard: &ObjectName, list_key: &[u8], now: Duration) -> Result<Done, Refusal> {
        let mut done = Done { operations: 1, ..Done::default() };
        let Some(map) = self.read_map(object)? else {
            self.list_remove(shard, list_key.to_vec())?;
            return Ok(done);
        };
        if map.listed.is_none_or(|stamp| self.list_key(object, stamp) != list_key) {
            // Left over: another key has taken its place, or none is needed.
            self.list_remove(shard, list_key.to_vec())?;
            return Ok(done);
        }
        let dirty = map.entries.values().any(|entry| entry.dirty);
        if dirty && now < map.changed + self.settings.cold {
            done.operations += self.finish_drops(object, &map.pending)?;
            done.again = true;
            return Ok(done);
        }
        self.settle_map(object, &map, shard, list_key, &mut done)?;
        Ok(done)
    }

    /// Flush-through: the same for one object at once, however hot it is.
    pub(crate) fn flush_through(&self, object: ObjectId) -> Result<(), Refusal> {
        let Some(map) = self.read_map(object)? else { return Ok(()) };
        let Some(listed) = map.listed else { return Ok(()) };
        let key = self.list_key(object, listed);
        self.settle_map(object, &map, &self.shard_of(object), &key, &mut Done::default())
    }

    fn settle_map(&self, object: ObjectId, map: &Map, shard: &ObjectName, list_key: &[u8], done: &mut Done) -> Result<(), Refusal> {
        done.operations += self.finish_drops(object, &map.pending)?;
        if map.recut.is_some() {
            self.recut_all(object, done)?;
            return self.leave_list(object, shard, list_key, done);
        }
        let dirty: Vec<(u32, Entry)> = map.entries.iter().filter(|(_, entry)| entry.dirty).map(|(at, entry)| (*at, *entry)).collect();
        for group in dirty.chunks(FLIP_ENTRIES) {
            self.flip_group(object, group, done)?;
        }
        self.leave_list(object, shard, list_key, done)
    }

    /// Does the drops that are pending in an object; how many operations that took.
    pub(crate) fn finish_drops(&self, object: ObjectId, drops: &[(Chunk, Reference)]) -> Result<u64, Refusal> {
        if drops.is_empty() {
            return Ok(0);
        }
        debug_assert!(drops.iter().all(|(_, reference)| reference.object == object));
        self.do_drops(drops)?;
        self.forget_drops(drops)?;
        Ok(3 * drops.len() as u64 + 1)
    }

    /// Removes pending drops that are done.
    pub(crate) fn forget_drops(&self, drops: &[(Chunk, Reference)]) -> Result<(), Refusal> {
        let mut keys: BTreeMap<ObjectId, Vec<Vec<u8>>> = BTreeMap::new();
        for (_, reference) in drops {
            keys.entry(reference.object).or_default().push(key::pending(reference.offset, reference.stamp));
        }
        let op = |(object, keys): (ObjectId, _)| Write {
            object: object.name(),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(keys)],
        };
        for result in self.insist_all(&keys.into_iter().map(op).collect::<Vec<_>>()) {
            match result {
                Ok(_) | Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Takes an object of which all is clean off the list.
    fn leave_list(&self, object: ObjectId, shard: &ObjectName, list_key: &[u8], done: &mut Done) -> Result<(), Refusal> {
        done.operations += 1;
        let Some(map) = self.read_map(object)? else { return self.list_remove(shard, list_key.to_vec()) };
        if !map.is_settled() || map.listed.is_none_or(|stamp| self.list_key(object, stamp) != list_key) {
            done.again = true;
            return Ok(());
        }
        let op = Write {
            object: object.name(),
            guards: vec![Guard::Version(map.version)],
            changes: vec![Change::DropOmap(vec![key::LISTED.to_vec()])],
        };
        done.operations += 2;
        match self.write_one(&op) {
            Ok(_) => self.list_remove(shard, list_key.to_vec()),
            // Without a reply the key is found to be left over, if so.
            Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {
                done.again = true;
                Ok(())
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Steps (a) to (c) for some entries.
    pub(super) fn flip_group(&self, object: ObjectId, group: &[(u32, Entry)], done: &mut Done) -> Result<(), Refusal> {
        let Some(contents) = self.contents(object, group)? else {
            done.again = true;
            return Ok(());
        };
        done.operations += 1;
        let stamp = self.stamp();
        let (mut flips, mut wanted) = (Vec::new(), Vec::new());
        for ((offset, old), content) in group.iter().zip(&contents) {
            let Some(content) = content else {
                done.again = true;
                continue;
            };
            let clean = Entry { dirty: false, mask: 0, stamp, ..*old };
            let dropped = old.reference(object, *offset);
            let id = self.chunk_id(content);
            let mut flip = Flip { offset: *offset, old: *old, new: clean, added: None, dropped };
            if onefold_core::block::is_zero(content) {
                flip.new.base = None;
            } else if old.base.is_some_and(|base| base.chunk.id == id) {
                flip.dropped = None;
            } else {
                wanted.push((flips.len(), id, content, Reference { object, offset: *offset, stamp: old.stamp }));
            }
            flips.push(flip);
        }
        if self.planted(PlantedBug::DropBeforeFlip) {
            wanted.iter().try_for_each(|(n, ..)| self.do_drops(flips[*n].dropped.as_slice()))?;
        }
        let ops: Vec<_> = wanted.iter().map(|(_, id, content, reference)| (*id, content.as_slice(), *reference)).collect();
        let late = self.planted(PlantedBug::FlipBeforeReference);
        let chunks = if late { ops.iter().map(|(id, ..)| Chunk { id: *id, copy: 0 }).collect() } else { self.add_references(&ops)? };
        for ((n, id, _, reference), chunk) in wanted.iter().zip(chunks) {
            done.operations += 1 + u64::from(id.length) / (32 << 10);
            flips[*n].new.base = Some(Base { chunk, stamp: reference.stamp });
            flips[*n].added = Some((chunk, *reference));
        }
        if late {
            self.flip(object, &flips)?;
            self.add_references(&ops)?;
        }
        if flips.is_empty() {
            return Ok(());
        }
        done.operations += 1;
        if self.flip(object, &flips)? {
            done.flipped += flips.len() as u64;
            let drops: Vec<(Chunk, Reference)> = flips.iter().filter_map(|flip| flip.dropped).collect();
            done.operations += self.finish_drops(object, &drops)?;
            return Ok(());
        }
        done.again = true;
        self.counts.flips_failed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let added: Vec<_> = flips.iter().filter_map(|flip| flip.added).collect();
        self.take_back(object, &added)
    }

    /// The bytes of the entries, read together with them; `None` in place of one that changed, and for all when there are too many drops.
    fn contents(&self, object: ObjectId, group: &[(u32, Entry)]) -> Result<Option<Vec<Option<Vec<u8>>>>, Refusal> {
        let ranges = group.iter().map(|(offset, entry)| Look::Data((*offset).into(), entry.length.into()));
        let looks: Vec<Look> = map_looks().into_iter().chain(ranges).collect();
        let sight = match self.read_one(&object.name(), looks) {
            Err(Refusal::Missing) => return Ok(None),
            other => other?,
        };
        let data: Vec<Vec<u8>> = (0..group.len()).map(|n| sight.data(n + 2).to_vec()).collect();
        let Some(map) = Session::parse_map(object, Ok(sight))? else { return Ok(None) };
        if map.pending.len() + group.len() > PENDING_MAX {
            return Ok(None);
        }
        let gaps = |entry: &Entry| if entry.is_cached() { None } else { entry.base.map(|base| base.chunk) };
        let chunks: Vec<Chunk> = group.iter().filter_map(|(_, entry)| gaps(entry)).collect();
        let mut bases = self.read_chunks(&chunks).into_iter();
        let mut contents = Vec::new();
        for ((offset, entry), data) in group.iter().zip(data) {
            let base = if gaps(entry).is_some() { bases.next() } else { None };
            let base = match base {
                // It changed meanwhile, or the next read of a client will say that it is damaged.
                Some(Err(Refusal::Missing | Refusal::Failed(_))) => {
                    contents.push(None);
                    continue;
                }
                Some(Err(refusal)) => return Err(refusal),
                Some(Ok(base)) => Some(base),
                None => None,
            };
            let same = map.entries.get(offset) == Some(entry);
            contents.push(same.then(|| assemble(entry, &data, base.as_deref())));
        }
        Ok(Some(contents))
    }

    /// Step (b); false when an entry is another one.
    fn flip(&self, object: ObjectId, flips: &[Flip]) -> Result<bool, Refusal> {
        let apart = self.planted(PlantedBug::PunchOutsideFlip);
        let mut op = Write { object: object.name(), guards: Vec::new(), changes: Vec::new() };
        let mut punches = Write { guards: vec![Guard::Exists], ..op.clone() };
        let mut pairs = Vec::new();
        for flip in flips {
            op.guards.push(Guard::Omap(key::entry(flip.offset), flip.old.encode(object, flip.offset)));
            pairs.push((key::entry(flip.offset), flip.new.encode(object, flip.offset)));
            if let Some((chunk, reference)) = flip.dropped {
                pairs.push((key::pending(flip.offset, reference.stamp), entry::encode_pending(object, flip.offset, &chunk)));
            }
            let punch = Change::Zero(flip.offset.into(), flip.old.length.into());
            if apart { punches.changes.push(punch) } else { op.changes.push(punch) }
        }
        op.changes.push(Change::SetOmap(pairs));
        for _ in 0..self.settings.tries.max(1) {
            match self.write_one(&op) {
                Ok(_) => {
                    if apart {
                        self.insist(&punches)?;
                    }
                    return Ok(true);
                }
                Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
            // Our stamp says that it was applied; the old entries that it may be sent again.
            let Some(map) = self.read_map(object)? else { return Ok(false) };
            let now = |flip: &Flip| map.entries.get(&flip.offset).copied();
            if flips.iter().any(|flip| now(flip).is_some_and(|entry| entry.stamp == flip.new.stamp)) {
                return Ok(true);
            }
            if flips.iter().any(|flip| now(flip) != Some(flip.old)) {
                return Ok(false);
            }
        }
        Err(Refusal::Unknown)
    }

    /// True for a reference that nobody has a use for, nor ever will: its entry, read after it, does not name it, and neither that nor the re-cut under way
    /// has its very stamp.
    pub(crate) fn is_stale(&self, map: Option<&Map>, chunk: &Chunk, reference: &Reference) -> bool {
        let Some(map) = map else { return true };
        let recut = map.recut.as_ref().is_some_and(|recut| recut.stamp == reference.stamp && recut.range.contains(&reference.offset));
        if recut && !self.planted(PlantedBug::RecutJudged) {
            return false;
        }
        let Some(entry) = map.entries.get(&reference.offset) else { return true };
        let named = entry.base.is_some_and(|base| base.chunk == *chunk && base.stamp == reference.stamp);
        let coming = entry.dirty && entry.stamp == reference.stamp;
        !named && !coming
    }

    /// After a flip that came too late: drops the references that were added and that no entry has a use for.
    pub(crate) fn take_back(&self, object: ObjectId, added: &[(Chunk, Reference)]) -> Result<(), Refusal> {
        if added.is_empty() {
            return Ok(());
        }
        let map = self.read_map(object)?;
        for (chunk, reference) in added {
            if self.planted(PlantedBug::LosersDrop) || self.is_stale(map.as_ref(), chunk, reference) {
                self.do_drops(&[(*chunk, *reference)])?;
            }
        }
        Ok(())
    }
}
