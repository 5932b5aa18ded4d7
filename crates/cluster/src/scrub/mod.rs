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
mod numbers;
mod standing;

use std::{cell::Cell, collections::BTreeMap, sync::Arc};

use onefold_core::{
    Kind, Result,
    object::{Change, Guard, ObjectName, Pool, PoolKind, Read, ReadPart, Refusal, Write},
};

use crate::{
    chunk_map::ChunkMap,
    delete::Deletion,
    dirty_list::DirtyList,
    format::{
        Chunk, ObjectId, Reference,
        catalogue::{Named, What},
    },
    names::{FILL, Names, Record, Told},
    proof,
    replies::failed,
    rules::Rule,
    session::Session,
    volume::{
        header::{self, Bits},
        parse_owner,
    },
};
use numbers::Numbers;

/// Objects of a slice.
const SLICE: usize = 64;

/// Most missing objects of a volume, or of a put object, that are reported one by one.
const MISSING_TOLD: usize = 100;

/// Most sentences about damage; one more says that there may be more.
const DAMAGE_TOLD: usize = 1000;

/// In place of the name of a volume: a layer, which has none.
const LAYER: &str = "";

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
    /// Values about the server at work that could not be read, or named what is no server: servers that stand by
    /// could not take over.
    pub misnamed: u64,
    /// Damage that can't be repaired, a sentence each: the first thousand.
    pub damage: Vec<String>,
}

impl Report {
    /// True when nothing had to be done.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let Report { stale, added, collected, restored, listed, orphans, left, misnamed, .. } =
            self;
        stale + added + collected + restored + listed + orphans + left + misnamed == 0
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

/// Names of one number that a sentence tells.
const NAMES_TOLD: usize = 16;

/// What a scrub looks through, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The metadata pool: maps, headers, and with erasure code references.
    Metadata,
    /// The chunk pool.
    Chunks,
    /// Names, and which of their objects are missing.
    Names,
}

/// How far a scrub is: [`Scrub::from`] goes on there, in this process or another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it looks through.
    pub stage: Stage,
    /// Behind which place of the pool's listing, or which name; `None` for the beginning.
    pub after: Option<String>,
}

/// A scrub under way. Beside the objects of a slice it holds a bit for each volume and put object.
pub struct Scrub {
    session: Arc<Session>,
    deep: bool,
    /// True when the scrub repairs its findings, false when it only counts them.
    repairs: bool,
    place: Place,
    /// The numbers that have a name or a record.
    known: Numbers,
    /// The first id that was not yet given when the names were read: objects from it on are not
    /// judged.
    before: u64,
    /// Two names have one number, so that what either had before belongs to nothing, and is kept.
    contradicts: bool,
    report: Report,
    done: bool,
    /// Bytes that were read, see [`Scrub::read_bytes`].
    read: u64,
    /// How often all names were read again.
    readings: Cell<u32>,
    /// The numbers in the catalogue, as they were read for this slice.
    of_slice: Option<Numbers>,
    /// What was looked up for sentences.
    titles: BTreeMap<u64, Option<(String, What)>>,
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

    /// The same scrub from a place on that another one had come to.
    #[must_use]
    pub fn from(self, place: Place) -> Scrub {
        let place = match self.session.kernel().keeps(Rule::ScrubGoesOnInItsStage) {
            true => place,
            false => Place { stage: Stage::Names, after: None },
        };
        Scrub { place, ..self }
    }

    fn begin(session: Arc<Session>, deep: bool, before: u64, repairs: bool) -> Result<Scrub> {
        let (known, twice) = numbers(&session)?;
        let mut report = Report::default();
        let mut contradicts = false;
        for id in twice {
            let of_one = |named: &Named| named.id == id;
            let names = Names::of(session.kernel())
                .chosen(&mut |told| matches!(told, Told::Name(_, named) if of_one(named)))?;
            for pair in names[..names.len().min(NAMES_TOLD)].windows(2) {
                contradicts = true;
                report.tell(format!(
                    "the catalogue gives '{}' and '{}' one number: no object counts as an orphan while it does",
                    pair[0].0.escape_debug(),
                    pair[1].0.escape_debug()
                ));
            }
        }
        Ok(Scrub {
            session,
            deep,
            repairs,
            place: Place { stage: Stage::Metadata, after: None },
            known,
            before,
            contradicts,
            report,
            done: false,
            read: 0,
            readings: Cell::new(0),
            of_slice: None,
            titles: BTreeMap::new(),
        })
    }

    /// Bytes that were read so far: data of chunks and of blocks that stand in objects, and 4 KiB for each
    /// object.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read + (self.report.objects + self.report.chunks) * 4096
    }

    /// How far it is, in words that a later process understands, too; `None` when it is at its end, or when
    /// the object store can't take up a listing later. Some objects may be looked at twice.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        let (stage, after) = (self.place.stage, self.place.after.as_deref());
        let kept = |pool| {
            after.map_or(Some(None), |after| {
                self.session.kernel().store().keep_place(pool, after).map(Some)
            })
        };
        let after = match stage {
            _ if self.done => None,
            Stage::Metadata => kept(Pool::Metadata),
            Stage::Chunks => kept(Pool::Chunks),
            Stage::Names => Some(after.map(str::to_owned)),
        };
        after.map(|after| Place { stage, after })
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
        let pool = match self.place.stage {
            Stage::Metadata => Pool::Metadata,
            Stage::Chunks => Pool::Chunks,
            Stage::Names => return self.names(),
        };
        let after = self.place.after.as_deref();
        let page = self.session.kernel().store().list(pool, after, SLICE)?;
        let mut chunks = Vec::new();
        self.of_slice = None;
        for name in &page.names {
            if let Some(object) = ObjectId::parse(name) {
                self.object(object)?;
            } else if let Some(chunk) = Chunk::parse(name) {
                chunks.push(chunk);
            } else if let Some(id) = header::parse(name) {
                self.header(id)?;
            } else if *name == proof::object().name {
                self.server_at_work()?;
            }
        }
        self.chunks(&chunks)?;
        self.place.after = page.next;
        if self.place.after.is_none() {
            self.place.stage = if pool == Pool::Metadata { Stage::Chunks } else { Stage::Names };
        }
        Ok(())
    }

    fn object(&mut self, object: ObjectId) -> Result<(), Refusal> {
        self.report.objects += 1;
        if object.volume < self.before && !self.known.contains(object.volume) {
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
            self.of_slice = Some(numbers(&self.session).map_err(Refusal::Failed)?.0);
        }
        Ok(self.of_slice.as_ref().is_some_and(|numbers| !numbers.contains(id)))
    }

    /// Counts a reading of all names for one object.
    fn may_read_for_one(&self) -> bool {
        let readings = self.readings.get();
        self.readings.set(readings.max((readings + 1).min(READ_FOR_ONE)));
        readings < READ_FOR_ONE
    }

    fn is_nobodys_now(&self, id: u64) -> Result<bool, Refusal> {
        let names = Names::of(self.session.kernel());
        let mut recorded = false;
        names
            .each_record(&mut |record| recorded |= record.named.id == id)
            .map_err(Refusal::Failed)?;
        Ok(!recorded && self.names_of(id).map_err(Refusal::Failed)?.is_empty())
    }

    /// The names that have a number: one, or none.
    fn names_of(&self, id: u64) -> Result<Vec<(String, Named)>> {
        let of_one = &mut |told: Told<'_>| matches!(told, Told::Name(_, named) if named.id == id);
        Names::of(self.session.kernel()).chosen(of_one)
    }

    /// The name and the kind of a number, for a sentence; all names are read for it, but not for more than
    /// some sentences.
    fn named(&mut self, id: u64) -> Option<&(String, What)> {
        if !self.titles.contains_key(&id) && self.may_read_for_one() {
            let names = self.names_of(id).unwrap_or_default();
            let named = names.into_iter().next().map(|(name, named)| (name, named.what));
            self.titles.insert(id, named);
        }
        self.titles.get(&id)?.as_ref()
    }

    /// A header that belongs to nothing, as a session leaves that dies before its record is there.
    fn header(&mut self, id: u64) -> Result<(), Refusal> {
        let is_judged = id < self.before && !self.contradicts;
        if !is_judged || self.known.contains(id) || !self.is_nobodys(id)? {
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

    /// Takes away what those that stand by can't read of the server at work, and its name when nobody can be shut
    /// out by that: they would wait for ever.
    fn server_at_work(&mut self) -> Result<(), Refusal> {
        for key in proof::KEYS {
            let mut tries = self.session.kernel().settings().tries.max(1);
            // Beats of a server that lives come between.
            while !self.value_of_server(key)? {
                tries -= 1;
                if tries == 0 {
                    let sentence = "others change the values about the server at work all the time: repair again";
                    self.report.tell(sentence.into());
                    break;
                }
            }
        }
        Ok(())
    }

    /// The same for one key; false when the object changed meanwhile.
    fn value_of_server(&mut self, key: &[u8]) -> Result<bool, Refusal> {
        let (kernel, object) = (self.session.kernel(), proof::object());
        let version = match kernel.read_one(&object, vec![ReadPart::Stat]) {
            Err(Refusal::Missing) => return Ok(true),
            found => found?.version,
        };
        let keeps_waiting = match kernel.read_value(&object, key) {
            Err(Refusal::Missing) => return Ok(true),
            // In a sealed store it was written by somebody else.
            Err(Refusal::Failed(error)) if error.kind() == Kind::Corrupt => true,
            value => parse_owner(&value?).is_some_and(|(at_work, identity)| {
                key == proof::NAME && at_work && !kernel.store().is_identity(&identity)
            }),
        };
        if keeps_waiting && self.repairs {
            match kernel.until_answered(&Write {
                object,
                guards: vec![Guard::Exists, Guard::Version(version)],
                changes: vec![Change::DropOmap(vec![key.to_vec()])],
            }) {
                Ok(_) => {}
                // A beat came, or a reply was lost.
                Err(Refusal::Mismatch) => return Ok(false),
                Err(Refusal::Missing) => return Ok(true),
                Err(refusal) => return Err(refusal),
            }
        }
        self.report.misnamed += u64::from(keeps_waiting);
        Ok(true)
    }

    /// Objects that should be there and are not, of a page of names.
    fn names(&mut self) -> Result<(), Refusal> {
        let after = self.place.after.as_deref().unwrap_or_default();
        let page = self.session.names_after(None, after).map_err(Refusal::Failed)?;
        let object_bytes = u64::from(self.session.kernel().format().object_bytes);
        // Those of small objects together. A page that fails is looked at again: until then it tells nothing.
        let (mut some, mut told) = (Vec::new(), Vec::new());
        for (name, named) in &page.names {
            let missing = match named.what {
                What::Put if named.pieces <= SLICE as u64 => {
                    some.extend((0..named.pieces).map(|index| (named.id, name.as_str(), index)));
                    match some.len() < SLICE {
                        true => Vec::new(),
                        false => self.told_missing(&std::mem::take(&mut some))?,
                    }
                }
                What::Put => self.missing_of(named.id, name, 0..named.pieces)?,
                What::Volume => {
                    let objects = named.bytes.div_ceil(object_bytes);
                    let bits = Bits::read(self.session.kernel(), named.id)?;
                    let objects = bits.all().take_while(|index| *index < objects);
                    self.missing_of(named.id, name, objects)?
                }
            };
            told.extend(missing);
            if self.report.damage.len() + told.len() > DAMAGE_TOLD {
                told.into_iter().for_each(|sentence| self.report.tell(sentence));
                self.done = true;
                return Ok(());
            }
        }
        told.extend(self.told_missing(&some)?);
        let done = page.next.is_none();
        if done {
            told.extend(self.without_name()?);
        }
        told.into_iter().for_each(|sentence| self.report.tell(sentence));
        self.done = done;
        self.place.after = page.next;
        Ok(())
    }

    /// A sentence for each object that should be there and is not, of a snapshot or of what is being received: these
    /// have no name.
    fn without_name(&self) -> Result<Vec<String>, Refusal> {
        let kernel = self.session.kernel();
        let object_bytes = u64::from(kernel.format().object_bytes);
        let (mut stay, mut told) = (Vec::new(), Vec::new());
        Names::of(kernel)
            .each_record(&mut |record| stay.extend(stays(record).then(|| record.clone())))
            .map_err(Refusal::Failed)?;
        for record in stay {
            let (id, objects) = (record.named.id, record.named.bytes.div_ceil(object_bytes));
            let bits = match Bits::read(kernel, id) {
                Err(Refusal::Failed(error)) if error.kind() == Kind::Corrupt => {
                    told.push(error.to_string());
                    continue;
                }
                read => read?,
            };
            let objects = bits.all().take_while(|index| *index < objects);
            let missing = self.missing_of(id, LAYER, objects)?;
            // It may have been deleted meanwhile.
            if !missing.is_empty() && self.still_stays(id)? {
                let needs = match record.is_received() {
                    true => "what is being received needs it: give that up, and send it again",
                    false => "a snapshot needs it",
                };
                told.extend(missing.iter().map(|what| format!("{what}; {needs}")));
            }
        }
        Ok(told)
    }

    /// True while a number without a name is to stay.
    fn still_stays(&self, id: u64) -> Result<bool, Refusal> {
        let mut still = false;
        Names::of(self.session.kernel())
            .each_record(&mut |record| still |= record.named.id == id && stays(record))
            .map_err(Refusal::Failed)?;
        Ok(still)
    }

    /// A sentence for each of these objects that is missing. After many it ends: a number of
    /// objects may be damaged itself.
    fn missing_of(
        &self,
        volume: u64,
        name: &str,
        mut indexes: impl Iterator<Item = u64>,
    ) -> Result<Vec<String>, Refusal> {
        let mut missing = Vec::new();
        loop {
            let some = indexes.by_ref().take(SLICE).map(|index| (volume, name, index));
            let some: Vec<_> = some.collect();
            if some.is_empty() {
                return Ok(missing);
            }
            missing.extend(self.told_missing(&some)?);
            if missing.len() > MISSING_TOLD {
                missing.truncate(MISSING_TOLD);
                missing.push(format!("more objects of {volume:x} may be missing"));
                return Ok(missing);
            }
        }
    }

    /// A sentence for each of these objects that is missing, by their numbers and names.
    fn told_missing(&self, some: &[(u64, &str, u64)]) -> Result<Vec<String>, Refusal> {
        let stat = |(volume, _, index): &(u64, &str, u64)| Read {
            object: ObjectId { volume: *volume, index: *index }.name(),
            parts: vec![ReadPart::Stat],
        };
        let answers = self.session.kernel().read_all(&some.iter().map(stat).collect::<Vec<_>>());
        let mut missing = Vec::new();
        for ((volume, name, index), answer) in some.iter().zip(answers) {
            match answer {
                Ok(_) => {}
                Err(Refusal::Missing)
                    if *name != LAYER && self.is_gone(*volume, name, *index)? => {}
                // A layer that goes may have handed it down meanwhile: only who misses it twice is right.
                Err(Refusal::Missing) => {
                    let object = ObjectId { volume: *volume, index: *index };
                    match self.session.kernel().read_one(&object.name(), vec![ReadPart::Stat]) {
                        Err(Refusal::Missing) => {
                            missing.push(format!("object {object} is missing"))
                        }
                        other => drop(other?),
                    }
                }
                Err(refusal) => return Err(refusal),
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
                let names = self.names_of(id).map_err(Refusal::Failed)?;
                names.into_iter().map(|(_, named)| named).next()
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

/// True for the record of a number without a name that no worker deletes.
fn stays(record: &Record) -> bool {
    record.is_kept() || record.is_received()
}

/// All numbers that have a name or a record; and those that several names have, some of them. Names that
/// are renamed meanwhile may be met twice: in a store that had renames nothing is taken for a
/// contradiction.
fn numbers(session: &Session) -> Result<(Numbers, Vec<u64>)> {
    let names = Names::of(session.kernel());
    let (mut all, mut named, mut twice) = (Numbers::default(), Numbers::default(), Vec::new());
    names.each_record(&mut |record| {
        all.insert(record.named.id);
    })?;
    names.chosen(&mut |told| {
        match told {
            Told::Anew => {
                named = Numbers::default();
                twice.clear();
            }
            Told::Name(_, one) => {
                all.insert(one.id);
                let again = !named.insert(one.id);
                if again && twice.len() < NAMES_TOLD && !twice.contains(&one.id) {
                    twice.push(one.id);
                }
            }
        }
        false
    })?;
    if session.kernel().format().renames {
        twice.clear();
    }
    Ok((all, twice))
}
