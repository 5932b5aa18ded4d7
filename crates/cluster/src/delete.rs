//! Deleting: entries become pending drops, the drops are done, then the object goes. In any other
//! order its references would be unknown.
//!
//! Whoever could still write is fenced first. It resumes anywhere: the record of what is deleted
//! goes last.

use std::{ops::Range, sync::Arc};

use onefold_core::{
    Error, Kind, Result,
    object::{Change, Guard, ObjectName, Pool, ReadPart, Refusal, Write},
};

use crate::{
    chunk_map::ChunkMap,
    format::{
        Chunk, ENTRIES_MAX, ObjectId, Reference,
        catalogue::What,
        entry::{self, Entry},
        key,
    },
    names::{FILL, Record, valid_size},
    session::{Session, failed},
    settings::PlantedBug,
    volume::{
        Mode, Volume,
        header::{self, Bits, LOCK, OWNER},
    },
};

/// Pieces that may be missing between others: those in flight together when the session that filled
/// them died.
const GAP: u64 = 16;

/// Pieces missing in a row after which none comes: a number that a stranger wrote costs no more.
const MISSING_MAX: u64 = 1 << 16;

/// Names of a page of the pool's listing.
const NAMES_A_PAGE: usize = 1000;

impl Session {
    /// Does the drops of a map that are pending, and collects what nobody refers to.
    pub(crate) fn do_drops(&self, drops: &[(Chunk, Reference)]) -> Result<(), Refusal> {
        let ops: Vec<Write> =
            drops.iter().map(|(chunk, reference)| self.drop_op(chunk, reference)).collect();
        for result in self.all_until_answered(&ops) {
            match result {
                Ok(_) | Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        self.collect_all(drops.iter().map(|(chunk, _)| *chunk)).map(|_| ())
    }

    /// Removes a metadata object with its references; nothing when it is not there.
    pub(crate) fn erase(&self, object: ObjectId) -> Result<(), Refusal> {
        for _ in 0..1000 {
            let Some(map) = self.read_map(object)? else { return Ok(()) };
            self.do_drops(&map.pending)?;
            let change = if self.planted(PlantedBug::RemovedBeforeDrops) || is_bare(&map) {
                vec![Change::Remove]
            } else {
                self.strip(object, &map)
            };
            let op = Write {
                object: object.name(),
                guards: vec![Guard::Version(map.version)],
                changes: change,
            };
            match self.write_one(&op) {
                Ok(_) | Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    /// What makes all entries zeroes and their bases pending drops. Drops that were pending are
    /// done.
    fn strip(&self, object: ObjectId, map: &ChunkMap) -> Vec<Change> {
        let stamp = self.stamp();
        let mut set = Vec::new();
        for (offset, old) in &map.entries {
            let new = Entry { dirty: false, mask: 0, base: None, stamp, ..*old };
            set.push((key::entry(*offset), new.encode(object, *offset)));
            if let Some((chunk, reference)) = old.reference(object, *offset) {
                set.push((
                    key::pending(*offset, reference.stamp),
                    entry::encode_pending(object, *offset, &chunk),
                ));
            }
        }
        let done = map
            .pending
            .iter()
            .map(|(_, reference)| key::pending(reference.offset, reference.stamp))
            .collect();
        vec![Change::DropOmap(done), Change::SetOmap(set)]
    }

    /// Takes everything that was deleted, or left by a session that is gone, one step further;
    /// false when there is nothing.
    ///
    /// # Errors
    /// The store's.
    pub fn delete_step(&self) -> Result<bool> {
        let mut any = false;
        for (shard, record) in self.records()? {
            let failed = |refusal| {
                failed(
                    format_args!("what was deleted ({}) can't be removed", record.named.id),
                    refusal,
                )
            };
            any |= self.delete_record(&shard, &record).map_err(failed)?;
        }
        Ok(any)
    }

    fn delete_record(&self, shard: &ObjectName, record: &Record) -> Result<bool, Refusal> {
        let (id, header) = (record.named.id, header::name(record.named.id));
        let cookie = format!("session {}", self.number());
        // Who fills it holds the lock, and so does another one that deletes it.
        match self.store.lock(&header, FILL, &cookie, Some(self.settings.lease)) {
            Ok(()) => {}
            Err(Refusal::Busy | Refusal::Unknown) => return Ok(false),
            Err(refusal) => return Err(refusal),
        }
        let still = self.read_one(shard, vec![ReadPart::Keys(vec![key::numbered(b'x', id)])])?;
        let still = still.pairs(0).0.first().map(|(_, value)| value.clone());
        if !record.filler.is_empty() {
            if record.filler == self.store.identity() {
                return Ok(false);
            }
            if still != Some(record.encode()) {
                // It was finished meanwhile, or another one was faster: its session may be at work.
                self.unlock_filled(id);
                return Ok(false);
            }
            self.store.fence(&record.filler)?;
            self.abandon(shard, record)?;
            return Ok(true);
        }
        // Another one may have been faster: then nothing is left, and the lock made a header anew.
        if still.is_some() {
            if !self.planted(PlantedBug::DeletedUnfenced) {
                self.fence_owner(id)?;
            }
            match record.named.what {
                What::Put => self.erase_pieces(id, record.named.pieces)?,
                What::Volume => self.erase_objects(id, 0, record.named.bytes)?,
            }
        }
        match self.until_answered(&Write {
            object: header,
            guards: Vec::new(),
            changes: vec![Change::Remove],
        }) {
            Ok(_) | Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
        self.forget(shard, id)?;
        Ok(true)
    }

    /// Shuts out the last session that wrote to a volume.
    fn fence_owner(&self, id: u64) -> Result<(), Refusal> {
        let header = header::name(id);
        let answer = self.read_one(&header, vec![ReadPart::Keys(vec![OWNER.to_vec()])])?;
        let owner = answer.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default();
        let mut identities =
            vec![String::from_utf8_lossy(owner.get(1..).unwrap_or_default()).into_owned()];
        identities.extend(self.store.holder(&header, LOCK)?.map(|holder| holder.identity));
        for identity in identities
            .iter()
            .filter(|identity| !identity.is_empty() && **identity != self.store.identity())
        {
            self.store.fence(identity)?;
        }
        Ok(())
    }

    fn erase_pieces(&self, id: u64, pieces: u64) -> Result<(), Refusal> {
        let (mut index, mut missing) = (0, 0);
        while missing < if index < pieces { MISSING_MAX } else { GAP } {
            let object = ObjectId { volume: id, index };
            missing = if self.read_map(object)?.is_some() { 0 } else { missing + 1 };
            self.erase(object)?;
            index += 1;
            if index.is_multiple_of(64) {
                self.keep_filling(id)?;
            }
        }
        Ok(())
    }

    /// Erases the objects of a volume from byte `from` to `to`, and what a shrink that was
    /// interrupted left behind that. Before `to` an object without a bit may be there, after a
    /// crash of the owner: of few objects each is looked for, many are looked up in the pool's
    /// listing, which costs what is there and not what could be.
    fn erase_objects(&self, id: u64, from: u64, to: u64) -> Result<(), Refusal> {
        let object_bytes = u64::from(self.format.object_bytes);
        let mut bits = self.read_bits(id)?;
        let (first, end) = (from.div_ceil(object_bytes), to.div_ceil(object_bytes));
        if end.saturating_sub(first) <= self.settings.looked_for_max {
            for index in first..end {
                self.erase_one(id, index, &mut bits)?;
            }
        } else {
            self.erase_listed(id, first..end, &mut bits)?;
        }
        let left = bits.clone();
        for index in left.all().filter(|index| *index >= first) {
            self.erase_one(id, index, &mut bits)?;
        }
        Ok(())
    }

    /// Erases the objects of a volume that the pool lists. Its writers are fenced, so none comes
    /// after the listing went by.
    fn erase_listed(&self, id: u64, range: Range<u64>, bits: &mut Bits) -> Result<(), Refusal> {
        let mut from = None;
        loop {
            let page = self.store.list(Pool::Metadata, from.as_deref(), NAMES_A_PAGE)?;
            self.keep_filling(id)?;
            for object in page.names.iter().filter_map(|name| ObjectId::parse(name)) {
                if object.volume == id && range.contains(&object.index) {
                    self.erase_one(id, object.index, bits)?;
                }
            }
            if page.next.is_none() {
                return Ok(());
            }
            from = page.next;
        }
    }

    fn erase_one(&self, id: u64, index: u64, bits: &mut Bits) -> Result<(), Refusal> {
        self.erase(ObjectId { volume: id, index })?;
        self.change_bit(id, bits, index, false)?;
        if index.is_multiple_of(64) { self.keep_filling(id) } else { Ok(()) }
    }

    /// Renews the lock of who deletes, if the store answers.
    fn keep_filling(&self, id: u64) -> Result<(), Refusal> {
        self.still_filling(id)
            .or_else(|refusal| if refusal.is(&Refusal::Unknown) { Ok(()) } else { Err(refusal) })
    }

    /// Changes the size of a volume that nobody writes to; what lies beyond a smaller size is gone.
    ///
    /// # Errors
    /// `Busy` when somebody writes to it, and as [`Volume::attach`].
    pub fn resize_volume(self: &Arc<Self>, name: &str, bytes: u64) -> Result<()> {
        valid_size(bytes)?;
        // The owner before us is fenced with it: nothing that it sent comes back into what is cut
        // off.
        let volume = Volume::attach(self, name, Mode::Own)?;
        let old = self
            .find(name)?
            .ok_or_else(|| Error::new(Kind::NotFound, format!("there is no volume {name:?}")))?;
        if bytes < old.bytes {
            while volume.discard_step()? {}
            volume.discard(bytes, old.bytes - bytes)?;
            while volume.discard_step()? {}
        }
        // The count makes sure that no value comes back.
        let new = crate::format::catalogue::Named { bytes, pieces: old.pieces + 1, ..old };
        let say = |refusal| failed(format_args!("volume {name:?} can't be resized"), refusal);
        if bytes > old.bytes {
            // A shrink that was interrupted may have left objects, or the bit of one that is gone.
            self.erase_objects(volume.id(), old.bytes, old.bytes).map_err(say)?;
        }
        self.rename(name, Some(&old), Some(&new)).map_err(say)?;
        volume.set_size(bytes);
        let erased = if bytes < old.bytes {
            self.erase_objects(volume.id(), bytes, old.bytes).map_err(say)
        } else {
            Ok(())
        };
        volume.detach()?;
        erased
    }
}

/// True when nothing in it names a chunk, and nobody makes it so.
fn is_bare(map: &ChunkMap) -> bool {
    debug_assert!(map.entries.len() <= ENTRIES_MAX);
    map.pending.is_empty() && map.entries.values().all(|entry| entry.base.is_none() && !entry.dirty)
}
