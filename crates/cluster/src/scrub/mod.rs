//! Scrubbing while clients and workers go on, in slices with a cursor.
//!
//! - *Forward*, from maps to chunks: a missing reference is added, then the entry read again. A
//!   missing chunk whose blocks are all in the object becomes dirty; any other is reported.
//! - *Backward*, from references to maps: a reference is stale when its entry, read after it, does
//!   not name it and is not dirty with the same stamp. A stale reference stays stale for ever, so
//!   that no age is needed.
//! - *Blocks that stand in objects*: a deep scrub reads them, as it does chunks.
//! - *Lists and bitmaps*: objects with dirty entries are put on the list; objects that no name or
//!   record covers are deleted.

mod backward;
#[cfg(feature = "planted-bugs")]
mod broken;
mod forward;
mod standing;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{
    Kind, Result,
    object::{Change, ObjectName, Pool, PoolKind, Read, ReadPart, Refusal, Write},
};

use crate::{
    chunk_map::ChunkMap,
    delete::Deletion,
    dirty_list::DirtyList,
    format::{Chunk, ObjectId, Reference, catalogue::What},
    names::{FILL, Names, Record},
    replies::failed,
    session::Session,
    volume::header::{self, Bits},
};

/// Objects of a slice.
const SLICE: usize = 64;

/// Most missing objects of a volume, or of a put object, that are reported one by one.
const MISSING_TOLD: usize = 100;

/// Most sentences about damage; one more says that there may be more.
const DAMAGE_TOLD: usize = 1000;

/// Times that all names are read again for one object of which they did not tell. Whoever wrote the
/// store, a scrub does not read them for each of its objects.
const READ_FOR_ONE: u32 = 64;

/// Times that they are read again, after that, for all such objects of a slice.
const READ_FOR_SLICE: u32 = 256;

/// The findings of a scrub, and its repairs.
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
    /// Headers of volumes that belong to nothing, and that this repair left to the next one.
    pub left: u64,
    /// Damage that can't be repaired, a sentence each: the first thousand.
    pub damage: Vec<String>,
}

impl Report {
    /// True when nothing had to be done.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let Report { stale, added, collected, restored, listed, orphans, left, .. } = self;
        stale + added + collected + restored + listed + orphans + left == 0
            && self.damage.is_empty()
    }

    fn tell(&mut self, sentence: String) {
        match self.damage.len() {
            DAMAGE_TOLD => self.damage.push("and perhaps more of such".into()),
            told if told < DAMAGE_TOLD => self.damage.push(sentence),
            _ => {}
        }
    }
}

/// A number's entry in the catalogue: its name or its record.
struct Known {
    what: What,
    bytes: u64,
    pieces: u64,
    /// Its name; `None` for a record.
    name: Option<String>,
}

/// A scrub under way.
pub struct Scrub {
    session: Arc<Session>,
    deep: bool,
    /// True when the scrub repairs its findings, false when it only counts them.
    repairs: bool,
    pool: Pool,
    from: Option<String>,
    known: BTreeMap<u64, Known>,
    /// The first id that was not yet given when the names were read: objects from it on are not
    /// judged.
    before: u64,
    /// Two names have one number, so that what either had before belongs to nothing, and is kept.
    contradicts: bool,
    report: Report,
    done: bool,
    /// How often all names were read again.
    readings: Cell<u32>,
    /// The numbers in the catalogue, as they were read for this slice.
    of_slice: Option<BTreeSet<u64>>,
}

impl Scrub {
    /// A scrub of everything; a deep one hashes every chunk.
    ///
    /// # Errors
    /// The store's.
    pub fn new(session: Arc<Session>, deep: bool) -> Result<Scrub> {
        // An object with a higher number is newer than the names that we read, and is not judged.
        let before = session.kernel().new_id()?;
        Scrub::begin(session, deep, before, true)
    }

    /// A scrub that changes nothing: the report counts the repairs that a scrub would make.
    /// Operations of other sessions in flight may be counted, too.
    ///
    /// # Errors
    /// The store's.
    pub fn look(session: Arc<Session>, deep: bool) -> Result<Scrub> {
        let before = session.kernel().next_id()?;
        Scrub::begin(session, deep, before, false)
    }

    fn begin(session: Arc<Session>, deep: bool, before: u64, repairs: bool) -> Result<Scrub> {
        let mut known = BTreeMap::new();
        for (_, Record { named, .. }) in Names::of(session.kernel()).records()? {
            known.insert(
                named.id,
                Known { what: named.what, bytes: named.bytes, pieces: named.pieces, name: None },
            );
        }
        let mut report = Report::default();
        let mut contradicts = false;
        for (name, named) in session.names()? {
            let (bytes, pieces) = (named.bytes, named.pieces);
            let now = Known { what: named.what, bytes, pieces, name: Some(name.clone()) };
            let before = known.insert(named.id, now).and_then(|known| known.name);
            if let Some(before) = before.filter(|before| *before != name) {
                contradicts = true;
                report.tell(format!(
                    "the catalogue gives '{}' and '{}' one number: no object counts as an orphan while it does",
                    before.escape_debug(),
                    name.escape_debug()
                ));
            }
        }
        Ok(Scrub {
            session,
            deep,
            repairs,
            pool: Pool::Metadata,
            from: None,
            known,
            before,
            contradicts,
            report,
            done: false,
            readings: Cell::new(0),
            of_slice: None,
        })
    }

    /// The findings so far.
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
        let page = self.session.kernel().store().list(self.pool, self.from.as_deref(), SLICE)?;
        let mut chunks = Vec::new();
        self.of_slice = None;
        for name in &page.names {
            if let Some(object) = ObjectId::parse(name) {
                self.object(object)?;
            } else if let Some(chunk) = Chunk::parse(name) {
                chunks.push(chunk);
            } else if let Some(id) = header::parse(name) {
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
            if self.contradicts {
                return Ok(());
            }
            // The object may have got its name since.
            if self.is_nobodys(object.volume)? {
                let erased = match self.repairs {
                    true => Deletion::of(&self.session).erase(object),
                    false => Ok(()),
                };
                match erased {
                    Ok(()) => self.report.orphans += 1,
                    // Its map does not tell which references it has: it stays.
                    Err(Refusal::Failed(error)) if error.kind() == Kind::Corrupt => {
                        self.report.tell(error.to_string());
                    }
                    Err(refusal) => return Err(refusal),
                }
            }
            return Ok(());
        }
        let map = match ChunkMap::read(self.session.kernel(), object) {
            Ok(Some(map)) => map,
            Ok(None) => return Ok(()),
            Err(Refusal::Failed(error)) => {
                self.report.tell(error.to_string());
                return Ok(());
            }
            Err(refusal) => return Err(refusal),
        };
        if self.deep {
            self.standing(object, &map)?;
        }
        let named: Vec<_> = map
            .entries
            .iter()
            .filter_map(|(offset, entry)| {
                entry
                    .reference(object, *offset)
                    .map(|(chunk, reference)| (*offset, entry, chunk, reference))
            })
            .collect();
        let references: Vec<(Chunk, Reference)> =
            named.iter().map(|(.., chunk, reference)| (*chunk, *reference)).collect();
        for ((offset, entry, chunk, reference), well) in
            named.into_iter().zip(self.well(&references))
        {
            // A chunk with a fault in the batch is checked again by itself.
            if !well {
                self.forward(object, offset, entry, &chunk, &reference)?;
            }
        }
        // The owner may be between its write and its insert; then there are two equal keys.
        let unlisted = if self.repairs {
            DirtyList::of(self.session.kernel()).list_again(object, &map)?
        } else {
            !DirtyList::of(self.session.kernel()).is_listed(object, &map)?
        };
        if unlisted {
            self.report.listed += 1;
        }
        Ok(())
    }

    /// For each chunk, whether it exists with its reference, by at most two reads.
    fn well(&self, named: &[(Chunk, Reference)]) -> Vec<bool> {
        let mut well = self.session.chunk_pool().have_references(named);
        if self.session.kernel().format().chunks == PoolKind::Erasure {
            let stat = |(chunk, _): &(Chunk, Reference)| Read {
                object: ObjectName::chunk(chunk.name()),
                parts: vec![ReadPart::Stat],
            };
            let data = self.session.kernel().read_all(&named.iter().map(stat).collect::<Vec<_>>());
            well.iter_mut().zip(data).for_each(|(well, data)| *well &= data.is_ok());
        }
        well
    }

    /// True when the catalogue has nothing of a number: it is read again, after the object was
    /// seen. After many such objects it is read for all those of a slice together, and then no
    /// more: who only looks believes what was read at first, and repairs are left to the next
    /// scrub.
    fn is_nobodys(&mut self, id: u64) -> Result<bool, Refusal> {
        if self.may_read_for_one() {
            return self.is_nobodys_now(id);
        }
        if !self.repairs {
            return Ok(true);
        }
        if self.of_slice.is_none() {
            if self.readings.get() == READ_FOR_ONE + READ_FOR_SLICE {
                return Ok(false);
            }
            self.readings.set(self.readings.get() + 1);
            self.of_slice = Some(self.numbers()?);
        }
        Ok(self.of_slice.as_ref().is_some_and(|numbers| !numbers.contains(&id)))
    }

    /// Counts a reading of all names for one object.
    fn may_read_for_one(&self) -> bool {
        let readings = self.readings.get();
        self.readings.set(readings.max((readings + 1).min(READ_FOR_ONE)));
        readings < READ_FOR_ONE
    }

    fn is_nobodys_now(&self, id: u64) -> Result<bool, Refusal> {
        let fail = |error| Refusal::Failed(error);
        let records = Names::of(self.session.kernel()).records().map_err(fail)?;
        if records.iter().any(|(_, record)| record.named.id == id) {
            return Ok(false);
        }
        Ok(self.session.names().map_err(fail)?.iter().all(|(_, named)| named.id != id))
    }

    /// All numbers in the catalogue.
    fn numbers(&self) -> Result<BTreeSet<u64>, Refusal> {
        let fail = |error| Refusal::Failed(error);
        let records = Names::of(self.session.kernel()).records().map_err(fail)?;
        let names = self.session.names().map_err(fail)?;
        let records = records.iter().map(|(_, record)| record.named.id);
        Ok(records.chain(names.iter().map(|(_, named)| named.id)).collect())
    }

    /// A header that belongs to nothing, as a session leaves that dies before its record is there.
    fn header(&mut self, id: u64) -> Result<(), Refusal> {
        let is_judged = id < self.before && !self.contradicts;
        if !is_judged || self.known.contains_key(&id) || !self.is_nobodys(id)? {
            return Ok(());
        }
        if !self.repairs {
            self.report.orphans += 1;
            return Ok(());
        }
        // The next scrub removes others.
        if !self.may_read_for_one() {
            self.report.left += 1;
            return Ok(());
        }
        let (header, cookie) = (header::name(id), self.session.kernel().cookie());
        match self.session.kernel().store().lock(
            &header,
            FILL,
            &cookie,
            Some(self.session.kernel().settings().lease),
        ) {
            Ok(()) => {}
            Err(Refusal::Busy | Refusal::Unknown) => return Ok(()),
            Err(refusal) => return Err(refusal),
        }
        if !self.is_nobodys_now(id)? {
            return self.session.kernel().store().unlock(&header, FILL, &cookie);
        }
        match self.session.kernel().until_answered(&Write {
            object: header,
            guards: Vec::new(),
            changes: vec![Change::Remove],
        }) {
            Ok(_) => self.report.orphans += 1,
            Err(Refusal::Missing) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Objects that should be there and are not.
    fn missing_objects(&mut self) -> Result<(), Refusal> {
        let known = std::mem::take(&mut self.known);
        for (id, known) in &known {
            let Some(name) = &known.name else { continue };
            let missing = match known.what {
                What::Put => self.missing_of(*id, name, 0..known.pieces)?,
                What::Volume => {
                    let objects = known
                        .bytes
                        .div_ceil(u64::from(self.session.kernel().format().object_bytes));
                    self.missing_of(
                        *id,
                        name,
                        Bits::read(self.session.kernel(), *id)?
                            .all()
                            .take_while(|index| *index < objects),
                    )?
                }
            };
            missing.into_iter().for_each(|sentence| self.report.tell(sentence));
            if self.report.damage.len() > DAMAGE_TOLD {
                break;
            }
        }
        Ok(())
    }

    /// A sentence for each of these objects that is missing. After many it ends: a number of
    /// objects may be damaged itself.
    fn missing_of(
        &self,
        volume: u64,
        name: &str,
        indexes: impl Iterator<Item = u64>,
    ) -> Result<Vec<String>, Refusal> {
        let mut missing = Vec::new();
        for index in indexes {
            let object = ObjectId { volume, index };
            match self.session.kernel().read_one(&object.name(), vec![ReadPart::Stat]) {
                Err(Refusal::Missing) if self.is_gone(volume, name, index)? => {}
                Err(Refusal::Missing) if missing.len() == MISSING_TOLD => {
                    missing.push(format!("object {object} is missing, and perhaps more of them"));
                    break;
                }
                Err(Refusal::Missing) => missing.push(format!("object {object} is missing")),
                Err(refusal) => return Err(refusal),
                Ok(_) => {}
            }
        }
        Ok(missing)
    }

    /// True when it was deleted, replaced or cut off meanwhile.
    fn is_gone(&self, id: u64, name: &str, index: u64) -> Result<bool, Refusal> {
        let kernel = self.session.kernel();
        // After many it is looked up by its name, if that did not change.
        let alone = self.may_read_for_one();
        let found = if alone {
            None
        } else {
            self.session.find(name).map_err(Refusal::Failed)?.filter(|named| named.id == id)
        };
        let named = match found {
            Some(named) => Some(named),
            None => {
                let names = self.session.names().map_err(Refusal::Failed)?;
                names.into_iter().map(|(_, named)| named).find(|named| named.id == id)
            }
        };
        let Some(named) = named else { return Ok(true) };
        Ok(match named.what {
            What::Put => index >= named.pieces,
            // A shrink that was interrupted may have left the bit.
            What::Volume => {
                index >= named.bytes.div_ceil(u64::from(kernel.format().object_bytes))
                    || if alone {
                        !Bits::read(kernel, id)?.has(index)
                    } else {
                        !Bits::has_now(kernel, id, index)?
                    }
            }
        })
    }
}
