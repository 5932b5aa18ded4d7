//! From maps to chunks: each chunk that an entry names exists and has the entry's reference.

use onefold_core::object::{Change, Guard, ObjectName, PoolKind, ReadPart, Refusal, Write};

use super::Scrub;
use crate::format::{
    Chunk, ObjectId, Reference,
    catalogue::What,
    entry::{self, Entry},
    key,
};
use crate::{
    chunk_map::{ChunkMap, is_stale},
    dirty_list::DirtyList,
};

impl Scrub {
    /// Sees to it that an entry's chunk is there and has its reference.
    pub(super) fn forward(
        &mut self,
        object: ObjectId,
        offset: u32,
        entry: &Entry,
        chunk: &Chunk,
        reference: &Reference,
    ) -> Result<(), Refusal> {
        let has = match self.session.chunk_pool().has_reference(chunk, reference) {
            Ok(true) => return self.data_there(object, offset, entry, chunk),
            Ok(false) => true,
            Err(Refusal::Missing) => false,
            Err(refusal) => return Err(refusal),
        };
        let again = ChunkMap::read(self.session.kernel(), object)?;
        if again.as_ref().and_then(|map| map.entries.get(&offset)) != Some(entry) {
            return Ok(());
        }
        if has && !self.repairs {
            self.report.added += 1;
            return Ok(());
        }
        if has {
            let pair = (self.session.chunk_pool().reference_key(reference), Vec::new());
            let op = Write {
                object: self.session.chunk_pool().references(chunk),
                guards: vec![Guard::Exists],
                changes: vec![Change::SetOmap(vec![pair])],
            };
            match self.session.kernel().until_answered(&op) {
                Ok(_) => self.report.added += 1,
                Err(Refusal::Missing) => return self.lost(object, offset, entry, chunk),
                Err(refusal) => return Err(refusal),
            }
            let map = ChunkMap::read(self.session.kernel(), object)?;
            if is_stale(self.session.kernel(), map.as_ref(), chunk, reference) {
                self.session.chunk_pool().drop_references(&[(*chunk, *reference)])?;
            }
            return Ok(());
        }
        self.lost(object, offset, entry, chunk)
    }

    /// With an erasure-coded pool the data may be lost while the references are there.
    fn data_there(
        &mut self,
        object: ObjectId,
        offset: u32,
        entry: &Entry,
        chunk: &Chunk,
    ) -> Result<(), Refusal> {
        if self.session.kernel().format().chunks == PoolKind::Replicated {
            return Ok(());
        }
        match self.session.kernel().read_one(&ObjectName::chunk(chunk.name()), vec![ReadPart::Stat])
        {
            Err(Refusal::Missing) => {
                let again = ChunkMap::read(self.session.kernel(), object)?;
                if again.as_ref().and_then(|map| map.entries.get(&offset)) == Some(entry) {
                    return self.lost(object, offset, entry, chunk);
                }
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    /// The chunk that an entry names is missing: if the object holds all of its blocks, the entry
    /// becomes dirty.
    fn lost(
        &mut self,
        object: ObjectId,
        offset: u32,
        entry: &Entry,
        chunk: &Chunk,
    ) -> Result<(), Refusal> {
        if !entry.is_cached() {
            let place = self
                .named(object.volume)
                .map_or("", |(_, what)| if *what == What::Volume { "volume " } else { "put " });
            let line = format!(
                "chunk {} is missing; {place}{:x} needs it for object {}, offset {offset}",
                chunk.name(),
                object.volume,
                object.index
            );
            self.report.tell(line);
            return Ok(());
        }
        if !self.repairs {
            self.report.restored += 1;
            return Ok(());
        }
        let Some(map) = ChunkMap::read(self.session.kernel(), object)? else { return Ok(()) };
        if !self.session.kernel().may_leave_drops(map.pending.len(), 1) {
            self.session.chunk_pool().finish_drops(&map.pending)?;
            return self.lost(object, offset, entry, chunk);
        }
        let stamp = self.session.kernel().stamp();
        let new = Entry { dirty: true, base: None, stamp, ..entry.clone() };
        let mut pairs = vec![(key::entry(offset), new.encode(object, offset))];
        if let Some((chunk, reference)) = entry.reference(object, offset) {
            pairs.push((
                key::pending(offset, reference.stamp),
                entry::encode_pending(object, offset, &chunk),
            ));
        }
        let op = Write {
            object: object.name(),
            guards: vec![
                Guard::Version(map.version),
                Guard::Omap(key::entry(offset), entry.encode(object, offset)),
            ],
            changes: vec![Change::SetOmap(pairs)],
        };
        match self.session.kernel().write_one(&op) {
            Ok(_) => self.report.restored += 1,
            Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
            Err(refusal) => return Err(refusal),
        }
        if let Some(map) = ChunkMap::read(self.session.kernel(), object)? {
            DirtyList::of(self.session.kernel()).list_again(object, &map)?;
        }
        Ok(())
    }
}
