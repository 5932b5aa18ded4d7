//! Scrubbing while clients and workers go on, in slices with a cursor.
//!
//! - *Forward*, from maps to chunks: a missing reference is added, then the entry read again; a missing chunk that stands in the object becomes dirty, and
//!   one that does not is reported.
//! - *Backward*, from references to maps: a reference is stale when its entry, read after it, does not name it and is not dirty with its very stamp. That is
//!   for ever, so that no age is needed.
//! - *Lists and bitmaps*: what is dirty is on the list; what nothing names goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use onefold_core::{
    Result,
    object::{Change, Guard, Look, ObjectName, Pool, PoolKind, Read, Refusal, Write},
};

use crate::{
    format::{
        Chunk, ObjectId, Reference, Stamp,
        catalogue::What,
        entry::{self, Entry},
        key,
    },
    map::{Map, map_looks},
    names::{FILL, Record},
    session::{Session, failed},
    settings::PlantedBug,
    volume::header,
};

/// Objects of a slice.
const SLICE: usize = 64;

/// Keys of a page of references.
const PAGE: usize = 500;

/// What a scrub found, and what it did about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Metadata objects that were looked at.
    pub objects: u64,
    /// Chunks that were looked at.
    pub chunks: u64,
    /// References that were looked at.
    pub references: u64,
    /// Stale references that were dropped.
    pub stale: u64,
    /// Missing references that were added.
    pub added: u64,
    /// Chunks without references that were removed.
    pub collected: u64,
    /// Chunks that were missing and are stored anew from the object.
    pub restored: u64,
    /// Objects that were not on the dirty list.
    pub listed: u64,
    /// Objects that belonged to nothing.
    pub orphans: u64,
    /// What can't be repaired, a sentence each.
    pub damage: Vec<String>,
}

impl Report {
    /// True when nothing had to be done.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.stale + self.added + self.collected + self.restored + self.listed + self.orphans == 0 && self.damage.is_empty()
    }
}

/// What a name or a record stands for.
#[derive(Clone, Copy)]
struct Known {
    what: What,
    bytes: u64,
    pieces: u64,
    /// It has a name.
    named: bool,
}

/// A scrub under way.
pub struct Scrub {
    session: Arc<Session>,
    deep: bool,
    pool: Pool,
    from: Option<String>,
    known: BTreeMap<u64, Known>,
    /// Ids that were given when the names were read: what is newer is not judged.
    before: u64,
    report: Report,
    done: bool,
}

impl Scrub {
    /// A scrub of everything; a deep one hashes every chunk.
    ///
    /// # Errors
    /// The store's.
    pub fn new(session: Arc<Session>, deep: bool) -> Result<Scrub> {
        // Whatever gets its number after this is not judged.
        let before = session.new_id()?;
        let mut known = BTreeMap::new();
        for (_, Record { named, .. }) in session.records()? {
            known.insert(named.id, Known { what: named.what, bytes: named.bytes, pieces: named.pieces, named: false });
        }
        for (_, named) in session.names()? {
            known.insert(named.id, Known { what: named.what, bytes: named.bytes, pieces: named.pieces, named: true });
        }
        Ok(Scrub { session, deep, pool: Pool::Metadata, from: None, known, before, report: Report::default(), done: false })
    }

    /// What was found so far.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Looks at some objects; false when all were looked at.
    ///
    /// # Errors
    /// The store's.
    pub fn step(&mut self) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        self.slice().map_err(|refusal| failed("the scrub", refusal))?;
        Ok(true)
    }

    fn slice(&mut self) -> Result<(), Refusal> {
        let page = self.session.store.list(self.pool, self.from.as_deref(), SLICE)?;
        let mut chunks = Vec::new();
        for name in &page.names {
            if let Some(object) = ObjectId::parse(name) {
                self.object(object)?;
            } else if let Some(chunk) = Chunk::parse(name) {
                chunks.push(chunk);
            } else if let Some(id) = name.strip_prefix("v.").and_then(|id| u64::from_str_radix(id, 16).ok()) {
                self.header(id)?;
            }
        }
        self.chunks(&chunks)?;
        self.from = page.next;
        if self.from.is_none() {
            match self.pool {
                Pool::Metadata => self.pool = Pool::Chunks,
                Pool::Chunks => {
                    self.missing_objects()?;
                    self.done = true;
                }
            }
        }
        Ok(())
    }

    fn object(&mut self, object: ObjectId) -> Result<(), Refusal> {
        self.report.objects += 1;
        if object.volume < self.before && !self.known.contains_key(&object.volume) {
            // It may have got its name since.
            if self.is_nobodys(object.volume)? {
                self.session.erase(object)?;
                self.report.orphans += 1;
            }
            return Ok(());
        }
        let map = match self.session.read_map(object) {
            Ok(Some(map)) => map,
            Ok(None) => return Ok(()),
            Err(Refusal::Failed(error)) => {
                self.report.damage.push(error.to_string());
                return Ok(());
            }
            Err(refusal) => return Err(refusal),
        };
        let named: Vec<_> = map
            .entries
            .iter()
            .filter_map(|(offset, entry)| entry.reference(object, *offset).map(|(chunk, reference)| (*offset, entry, chunk, reference)))
            .collect();
        let references: Vec<(Chunk, Reference)> = named.iter().map(|(.., chunk, reference)| (*chunk, *reference)).collect();
        for ((offset, entry, chunk, reference), well) in named.into_iter().zip(self.well(&references)) {
            // What is not as it should be is looked at again, one by one.
            if !well {
                self.forward(object, offset, entry, &chunk, &reference)?;
            }
        }
        // The owner may be between its write and its insert; then there are two equal keys.
        if self.session.list_again(object, &map)? {
            self.report.listed += 1;
        }
        Ok(())
    }

    /// Which chunks are there with their references, by two looks at all of them together.
    fn well(&self, named: &[(Chunk, Reference)]) -> Vec<bool> {
        let mut well = self.session.have_references(named);
        if self.session.format.chunks == PoolKind::Erasure {
            let stat = |(chunk, _): &(Chunk, Reference)| Read { object: ObjectName::chunk(chunk.name()), looks: vec![Look::Stat] };
            let data = self.session.read_all(&named.iter().map(stat).collect::<Vec<_>>());
            well.iter_mut().zip(data).for_each(|(well, data)| *well &= data.is_ok());
        }
        well
    }

    fn is_nobodys(&self, id: u64) -> Result<bool, Refusal> {
        let fail = |error| Refusal::Failed(error);
        if self.session.records().map_err(fail)?.iter().any(|(_, record)| record.named.id == id) {
            return Ok(false);
        }
        Ok(self.session.names().map_err(fail)?.iter().all(|(_, named)| named.id != id))
    }

    /// Sees to it that an entry's chunk is there and has its reference.
    fn forward(&mut self, object: ObjectId, offset: u32, entry: &Entry, chunk: &Chunk, reference: &Reference) -> Result<(), Refusal> {
        let has = match self.session.has_reference(chunk, reference) {
            Ok(true) => return self.data_there(object, offset, entry, chunk),
            Ok(false) => true,
            Err(Refusal::Missing) => false,
            Err(refusal) => return Err(refusal),
        };
        let again = self.session.read_map(object)?;
        if again.as_ref().and_then(|map| map.entries.get(&offset)) != Some(entry) {
            return Ok(());
        }
        if has {
            let pair = (self.session.reference_key(reference), Vec::new());
            let op =
                Write { object: self.session.references(chunk), guards: vec![Guard::Exists], changes: vec![Change::SetOmap(vec![pair])] };
            match self.session.insist(&op) {
                Ok(_) => self.report.added += 1,
                Err(Refusal::Missing) => return self.lost(object, offset, entry, chunk),
                Err(refusal) => return Err(refusal),
            }
            let map = self.session.read_map(object)?;
            if self.session.is_stale(map.as_ref(), chunk, reference) {
                self.session.do_drops(&[(*chunk, *reference)])?;
            }
            return Ok(());
        }
        self.lost(object, offset, entry, chunk)
    }

    /// With an erasure-coded pool the data may be lost while the references are there.
    fn data_there(&mut self, object: ObjectId, offset: u32, entry: &Entry, chunk: &Chunk) -> Result<(), Refusal> {
        if self.session.format.chunks == PoolKind::Replicated {
            return Ok(());
        }
        match self.session.read_one(&ObjectName::chunk(chunk.name()), vec![Look::Stat]) {
            Err(Refusal::Missing) => {
                let again = self.session.read_map(object)?;
                if again.as_ref().and_then(|map| map.entries.get(&offset)) == Some(entry) {
                    return self.lost(object, offset, entry, chunk);
                }
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    /// A chunk is missing that an entry names: what stands in the object whole becomes dirty.
    fn lost(&mut self, object: ObjectId, offset: u32, entry: &Entry, chunk: &Chunk) -> Result<(), Refusal> {
        if !entry.is_cached() {
            let place = self.known.get(&object.volume).map_or("", |known| if known.what == What::Volume { "volume " } else { "put " });
            let line = format!(
                "chunk {} is missing; {place}{:x} needs it for object {}, offset {offset}",
                chunk.name(),
                object.volume,
                object.index
            );
            self.report.damage.push(line);
            return Ok(());
        }
        let stamp = self.session.stamp();
        let new = Entry { dirty: true, base: None, stamp, ..*entry };
        let mut pairs = vec![(key::entry(offset), new.encode(object, offset))];
        if let Some((chunk, reference)) = entry.reference(object, offset) {
            pairs.push((key::pending(offset, reference.stamp), entry::encode_pending(object, offset, &chunk)));
        }
        let op = Write {
            object: object.name(),
            guards: vec![Guard::Omap(key::entry(offset), entry.encode(object, offset))],
            changes: vec![Change::SetOmap(pairs)],
        };
        match self.session.write_one(&op) {
            Ok(_) => self.report.restored += 1,
            Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
            Err(refusal) => return Err(refusal),
        }
        if let Some(map) = self.session.read_map(object)? {
            self.session.list_again(object, &map)?;
        }
        Ok(())
    }

    /// Drops stale references, and removes chunks of which none is left. With erasure code this comes once for the references and once for the data.
    fn chunks(&mut self, chunks: &[Chunk]) -> Result<(), Refusal> {
        if self.pool == Pool::Chunks {
            self.report.chunks += chunks.len() as u64;
            if self.session.format.chunks == PoolKind::Erasure {
                self.orphans(chunks)?;
                return self.hash(chunks);
            }
        }
        let session = self.session.clone();
        let page = |chunk: &Chunk, after: Vec<u8>| Read { object: session.references(chunk), looks: vec![Look::Page(after, PAGE)] };
        let mut open: Vec<(Chunk, Vec<u8>)> = chunks.iter().map(|chunk| (*chunk, Vec::new())).collect();
        let mut unused: BTreeSet<Chunk> = BTreeSet::new();
        let mut first = true;
        while !open.is_empty() {
            let sights = self.session.read_all(&open.iter().map(|(chunk, after)| page(chunk, after.clone())).collect::<Vec<_>>());
            let (mut references, mut more_of) = (Vec::new(), Vec::new());
            for ((chunk, _), sight) in open.iter().zip(sights) {
                let sight = match sight {
                    Err(Refusal::Missing) => continue,
                    other => other?,
                };
                let (pairs, more) = sight.pairs(0);
                if first {
                    unused.insert(*chunk);
                }
                references.extend(pairs.iter().filter_map(|(key, _)| key::parse_reference(key)).map(|reference| (*chunk, reference)));
                if let Some((last, _)) = pairs.last().filter(|_| more) {
                    more_of.push((*chunk, last.clone()));
                }
            }
            for used in self.backward(&references)? {
                unused.remove(&used);
            }
            (open, first) = (more_of, false);
        }
        self.report.collected += self.session.collect_all(unused)?;
        self.hash(chunks)
    }

    /// By volume the sessions that may make references before their entries. They are asked for after the references and before the maps: whoever is not
    /// among them was fenced by then, or has not begun.
    fn inline_sessions(&self, objects: &BTreeSet<ObjectId>) -> Result<BTreeMap<u64, u64>, Refusal> {
        let volumes: BTreeSet<u64> = objects.iter().map(|object| object.volume).collect();
        let look = |volume: &u64| Read { object: header::name(*volume), looks: vec![Look::Keys(vec![header::INLINE.to_vec()])] };
        let sights = self.session.read_all(&volumes.iter().map(look).collect::<Vec<_>>());
        let mut sessions = BTreeMap::new();
        for (volume, sight) in volumes.into_iter().zip(sights) {
            let sight = match sight {
                // What was put has none.
                Err(Refusal::Missing) => continue,
                other => other?,
            };
            if let Some((_, value)) = sight.pairs(0).0.first() {
                let damaged = |_| Refusal::Failed(crate::format::corrupt(format_args!("the header of volume {volume:x} is damaged")));
                let stamp = Stamp(u64::from_le_bytes(value.as_slice().try_into().map_err(damaged)?));
                sessions.insert(volume, stamp.session());
            }
        }
        Ok(sessions)
    }

    /// Drops those of the references that are stale; the chunks that have others.
    fn backward(&mut self, references: &[(Chunk, Reference)]) -> Result<BTreeSet<Chunk>, Refusal> {
        let objects: BTreeSet<ObjectId> = references.iter().map(|(_, reference)| reference.object).collect();
        let inline = self.inline_sessions(&objects)?;
        let reads: Vec<Read> = objects.iter().map(|object| Read { object: object.name(), looks: map_looks() }).collect();
        let mut maps: BTreeMap<ObjectId, Option<Map>> = BTreeMap::new();
        for (object, sight) in objects.into_iter().zip(self.session.read_all(&reads)) {
            match Session::parse_map(object, sight) {
                Ok(map) => maps.insert(object, map),
                // What can't be read may need it.
                Err(Refusal::Failed(_)) => continue,
                Err(refusal) => return Err(refusal),
            };
        }
        let (mut used, mut drops) = (BTreeSet::new(), Vec::new());
        for (chunk, reference) in references {
            self.report.references += 1;
            let Some(map) = maps.get(&reference.object) else {
                used.insert(*chunk);
                continue;
            };
            let by_age = self.session.planted(PlantedBug::ScrubByAge);
            let old = by_age && {
                let entry = map.as_ref().and_then(|map| map.entries.get(&reference.offset));
                let named = entry.is_some_and(|entry| entry.base.is_some_and(|base| base.chunk == *chunk));
                let changed = map.as_ref().map_or(Duration::ZERO, |map| map.changed);
                !named && self.session.store.time() > changed + self.session.settings.cold
            };
            // An inline session may be about to write the entry that names it.
            let made = inline.get(&reference.object.volume) == Some(&reference.stamp.session());
            let coming = made && !self.session.planted(PlantedBug::InlineJudged);
            if old || !coming && self.session.is_stale(map.as_ref(), chunk, reference) {
                drops.push(self.session.drop_op(chunk, reference));
            } else {
                used.insert(*chunk);
            }
        }
        for result in self.session.insist_all(&drops) {
            match result {
                Ok(_) | Err(Refusal::Missing) => self.report.stale += 1,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(used)
    }

    /// Finds data of an erasure-coded pool without an object for its references.
    fn orphans(&mut self, chunks: &[Chunk]) -> Result<(), Refusal> {
        let look = |chunk: &Chunk| Read { object: self.session.references(chunk), looks: vec![Look::Stat] };
        let sights = self.session.read_all(&chunks.iter().map(look).collect::<Vec<_>>());
        for (chunk, sight) in chunks.iter().zip(sights) {
            match sight {
                Ok(_) => {}
                Err(Refusal::Missing) => self.orphan(chunk)?,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Data of an erasure-coded pool without an object for its references.
    fn orphan(&mut self, chunk: &Chunk) -> Result<(), Refusal> {
        // In this order: who adds has the reference object first, and then writes the data anew, at another version.
        let data = ObjectName::chunk(chunk.name());
        let version = match self.session.read_one(&data, vec![Look::Stat]) {
            Ok(sight) => sight.version,
            Err(Refusal::Missing) => return Ok(()),
            Err(refusal) => return Err(refusal),
        };
        match self.session.read_one(&self.session.references(chunk), vec![Look::Stat]) {
            Err(Refusal::Missing) => {}
            other => return other.map(|_| ()),
        }
        match self.session.write_one(&Write { object: data, guards: vec![Guard::Version(version)], changes: vec![Change::Remove] }) {
            Ok(_) => self.report.orphans += 1,
            Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    fn hash(&mut self, chunks: &[Chunk]) -> Result<(), Refusal> {
        if self.deep && self.pool == Pool::Chunks {
            for result in self.session.read_chunks(chunks) {
                match result {
                    Ok(_) | Err(Refusal::Missing) => {}
                    Err(Refusal::Failed(error)) => self.report.damage.push(error.to_string()),
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        Ok(())
    }

    /// A header that belongs to nothing, as a session leaves that dies before its record is there.
    fn header(&mut self, id: u64) -> Result<(), Refusal> {
        if id >= self.before || self.known.contains_key(&id) || !self.is_nobodys(id)? {
            return Ok(());
        }
        let (header, cookie) = (header::name(id), format!("session {}", self.session.number()));
        match self.session.store.lock(&header, FILL, &cookie, Some(self.session.settings.lease)) {
            Ok(()) => {}
            Err(Refusal::Busy | Refusal::Unknown) => return Ok(()),
            Err(refusal) => return Err(refusal),
        }
        if !self.is_nobodys(id)? {
            return self.session.store.unlock(&header, FILL, &cookie);
        }
        match self.session.insist(&Write { object: header, guards: Vec::new(), changes: vec![Change::Remove] }) {
            Ok(_) => self.report.orphans += 1,
            Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Objects that should be there and are not.
    fn missing_objects(&mut self) -> Result<(), Refusal> {
        for (id, known) in &self.known {
            if !known.named {
                continue;
            }
            let indexes: Vec<u64> = match known.what {
                What::Put => (0..known.pieces).collect(),
                What::Volume => {
                    let objects = known.bytes.div_ceil(u64::from(self.session.format.object_bytes));
                    self.session.read_bits(*id)?.all().filter(|index| *index < objects).collect()
                }
            };
            for index in indexes {
                let object = ObjectId { volume: *id, index };
                match self.session.read_one(&object.name(), vec![Look::Stat]) {
                    Err(Refusal::Missing) if !self.is_gone(*id, index)? => self.report.damage.push(format!("object {object} is missing")),
                    Err(Refusal::Missing) => {}
                    Err(refusal) => return Err(refusal),
                    Ok(_) => {}
                }
            }
        }
        Ok(())
    }

    /// True when it was deleted, replaced or cut off meanwhile.
    fn is_gone(&self, id: u64, index: u64) -> Result<bool, Refusal> {
        let names = self.session.names().map_err(Refusal::Failed)?;
        let Some((_, named)) = names.into_iter().find(|(_, named)| named.id == id) else { return Ok(true) };
        Ok(match named.what {
            What::Put => index >= named.pieces,
            What::Volume => !self.session.read_bits(id)?.has(index),
        })
    }
}
