//! A session: the store, the format, a number that the catalogue gave, and stamps that nobody uses
//! again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::{
    Error, Kind, Result,
    object::{
        Change, Guard, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, ReadResult,
        Refusal, Version, Write,
    },
};
use parking_lot::Mutex;

use crate::{
    format::{ChunkId, Stamp, catalogue::Format},
    settings::{PlantedBug, Settings},
};

/// The object that says what the store is.
const CATALOGUE: &str = "catalogue";

const FORMAT: &[u8] = b"format";

/// The number of the next session.
const SESSIONS: &[u8] = b"sessions";

/// The number of the next volume or object that is put.
const IDS: &[u8] = b"ids";

/// Sessions that a store can have: 24 bits.
const SESSIONS_MAX: u64 = 1 << (64 - Stamp::COUNTER_BITS);

/// Stamps after which a session begins nothing new: what is under way then has as many as it needs
/// until the counter ends.
const STAMPS_MAX: u64 = (1 << Stamp::COUNTER_BITS) - (1 << 32);

/// Volumes and put objects that a store can have in its time: 40 bits.
const IDS_MAX: u64 = 1 << 40;

/// What the sessions of a process did.
#[derive(Debug, Default)]
pub struct Counts {
    /// Operations of clients.
    pub foreground: AtomicU64,
    /// Bytes that clients wrote and read.
    pub foreground_bytes: AtomicU64,
    /// Operations of deduplication.
    pub background: AtomicU64,
    /// Chunks that were new.
    pub chunks_new: AtomicU64,
    /// Chunks that were there.
    pub chunks_found: AtomicU64,
    /// Flips that came too late.
    pub flips_failed: AtomicU64,
    /// Chunks that were removed.
    pub collected: AtomicU64,
    /// Chunks that were promoted.
    pub promoted: AtomicU64,
    /// Operations whose reply was lost.
    pub unknown: AtomicU64,
    /// How often the load was published.
    pub(crate) published: AtomicU64,
}

/// A session of the store. All methods may be called from many threads at once.
pub struct Session {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) format: Format,
    pub(crate) settings: Settings,
    /// What was done.
    pub counts: Counts,
    number: u64,
    counter: AtomicU64,
    /// Bytes of clean chunks that the volumes of this session keep.
    pub(crate) kept: AtomicU64,
    /// Servers that share what may be kept.
    pub(crate) servers: AtomicU64,
    /// How often the copies of a chunk were doubled, as far as it is known here; a hint.
    pub(crate) spreads: Mutex<BTreeMap<ChunkId, u8>>,
    /// Keys of attempts that the next note takes back.
    pub(crate) attempts_over: Mutex<Vec<Vec<u8>>>,
    /// Most chunks of the last batch were new: those of the next are guessed to be, too.
    pub(crate) mostly_new: AtomicBool,
}

/// A refusal as the sentence that a person reads.
pub(crate) fn failed(what: impl std::fmt::Display, refusal: Refusal) -> Error {
    let kind = match refusal {
        Refusal::Missing => Kind::NotFound,
        Refusal::Exists => Kind::Exists,
        Refusal::Mismatch | Refusal::Busy => Kind::Busy,
        Refusal::Full => Kind::NoSpace,
        Refusal::Fenced => Kind::Stopped,
        Refusal::Unknown => Kind::Io,
        Refusal::Unsupported => Kind::Unsupported,
        Refusal::Denied(error) | Refusal::Failed(error) => return error.context(what),
    };
    Error::new(kind, format!("{what}: {refusal}"))
}

/// Makes a store.
///
/// # Errors
/// `Exists` when there is one already, `Unsupported` when a pool can't hold it, and the object
/// store's.
pub fn create(store: &dyn ObjectStore, format: &Format) -> Result<()> {
    format.check()?;
    if store.kind(Pool::Metadata) != PoolKind::Replicated {
        return Err(Error::new(
            Kind::Unsupported,
            "the metadata pool is erasure-coded, and has no omap; it must be replicated",
        ));
    }
    let first = |key: &[u8]| (key.to_vec(), 1u64.to_le_bytes().to_vec());
    let op = Write {
        object: ObjectName::metadata(CATALOGUE),
        guards: vec![Guard::Absent],
        changes: vec![Change::SetOmap(vec![
            (FORMAT.to_vec(), format.encode()),
            first(SESSIONS),
            first(IDS),
        ])],
    };
    match store.write(&[op]).remove(0) {
        Ok(_) => Ok(()),
        Err(Refusal::Exists) => Err(Error::new(Kind::Exists, "there is a store already")),
        Err(refusal) => Err(failed("the store can't be made", refusal)),
    }
}

/// True when somebody made a store here.
///
/// # Errors
/// The object store's.
pub fn is_made(store: &dyn ObjectStore) -> Result<bool> {
    match store
        .read(&[Read { object: ObjectName::metadata(CATALOGUE), parts: vec![ReadPart::Stat] }])
        .remove(0)
    {
        Ok(_) => Ok(true),
        Err(Refusal::Missing) => Ok(false),
        Err(refusal) => Err(failed("the store can't be made", refusal)),
    }
}

impl Session {
    /// Opens the store with a new session.
    ///
    /// # Errors
    /// `NotFound` when there is no store, `Unsupported` when it is of a newer version, and the
    /// object store's.
    pub fn open(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Session> {
        let mut session = Session::look(store, settings)?;
        session.number = session.next(SESSIONS)?;
        if session.number >= SESSIONS_MAX {
            let what = "the store had all the sessions that can write to it; it can be read: copy what it holds into a new one";
            return Err(Error::new(Kind::Unsupported, what));
        }
        Ok(session)
    }

    /// Opens the store only to look at it, without a number of its own: how often that happens is
    /// not limited. Nothing may be changed through it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn look(store: Arc<dyn ObjectStore>, settings: Settings) -> Result<Session> {
        let catalogue = Read {
            object: ObjectName::metadata(CATALOGUE),
            parts: vec![ReadPart::Keys(vec![FORMAT.to_vec()])],
        };
        let mut format = None;
        for _ in 0..settings.tries.max(1) {
            match store.read(std::slice::from_ref(&catalogue)).remove(0) {
                Ok(answer) => {
                    let value = answer
                        .pairs(0)
                        .0
                        .first()
                        .map(|(_, value)| value.clone())
                        .unwrap_or_default();
                    format = Some(Format::decode(&value)?);
                    break;
                }
                Err(Refusal::Unknown) => {}
                Err(Refusal::Missing) => {
                    return Err(Error::new(
                        Kind::NotFound,
                        "there is no store; onefold cluster create makes one",
                    ));
                }
                Err(refusal) => return Err(failed("the catalogue can't be read", refusal)),
            }
        }
        let Some(format) = format else {
            return Err(failed("the catalogue can't be read", Refusal::Unknown));
        };
        if format.chunks != store.kind(Pool::Chunks) {
            return Err(Error::new(
                Kind::InvalidInput,
                "the chunk pool is not the one that the store was made with: it is of another kind",
            ));
        }
        Ok(Session {
            store,
            format,
            settings,
            counts: Counts::default(),
            number: 0,
            counter: AtomicU64::new(1),
            kept: AtomicU64::new(0),
            servers: AtomicU64::new(1),
            spreads: Mutex::default(),
            attempts_over: Mutex::default(),
            mostly_new: AtomicBool::new(false),
        })
    }

    /// What was decided when the store was made.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The object store.
    #[must_use]
    pub fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    /// The number of this session; higher ones began later.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes that this session may keep of clean chunks: its share of what all servers may.
    pub(crate) fn cache_share(&self) -> u64 {
        self.settings.cache_bytes / self.servers.load(Relaxed).max(1)
    }

    /// A stamp that nobody else has, and that nobody had.
    pub(crate) fn stamp(&self) -> Stamp {
        let step = u64::from(!self.planted(PlantedBug::StampReused));
        Stamp(self.number << Stamp::COUNTER_BITS | self.counter.fetch_add(step, Relaxed))
    }

    /// Refuses what needs stamps when few are left: one that comes again would let in a late copy
    /// of an operation.
    pub(crate) fn has_stamps(&self) -> Result<()> {
        if self.counter.load(Relaxed) < STAMPS_MAX {
            return Ok(());
        }
        Err(Error::new(
            Kind::Unsupported,
            "this process made all the changes that it can make: start it again, and it goes on",
        ))
    }

    pub(crate) fn planted(&self, bug: PlantedBug) -> bool {
        self.settings.planted(bug)
    }

    /// A number that nobody else gets.
    pub(crate) fn new_id(&self) -> Result<u64> {
        match self.next(IDS)? {
            id if id < IDS_MAX => Ok(id),
            _ => Err(Error::new(
                Kind::Unsupported,
                "the store had all the volumes and objects that it can have: make a new one",
            )),
        }
    }

    /// The number that somebody gets next; everything that is there has a smaller one.
    pub(crate) fn next_id(&self) -> Result<u64> {
        Ok(self.look_next(IDS)?.0)
    }

    /// Takes a number of the catalogue. One whose reply is lost is skipped.
    fn next(&self, key: &[u8]) -> Result<u64> {
        let what = "the catalogue can't be changed";
        let object = ObjectName::metadata(CATALOGUE);
        for _ in 0..1000 {
            let (number, value) = self.look_next(key)?;
            let op = Write {
                object: object.clone(),
                guards: vec![Guard::Omap(key.to_vec(), value)],
                changes: vec![Change::SetOmap(vec![(
                    key.to_vec(),
                    (number + 1).to_le_bytes().to_vec(),
                )])],
            };
            match self.write_one(&op) {
                Ok(_) => return Ok(number),
                Err(Refusal::Mismatch | Refusal::Unknown) => {}
                Err(refusal) => return Err(failed(what, refusal)),
            }
        }
        Err(failed(what, Refusal::Unknown))
    }

    /// A number of the catalogue, and its value.
    fn look_next(&self, key: &[u8]) -> Result<(u64, Vec<u8>)> {
        let say = |refusal| failed("the catalogue can't be read", refusal);
        let answer = self
            .read_one(&ObjectName::metadata(CATALOGUE), vec![ReadPart::Keys(vec![key.to_vec()])])
            .map_err(say)?;
        let value = answer.pairs(0).0.first().map(|(_, value)| value.clone()).unwrap_or_default();
        let number = value
            .clone()
            .try_into()
            .map(u64::from_le_bytes)
            .map_err(|_| crate::format::corrupt("the catalogue is damaged"))?;
        Ok((number, value))
    }

    /// Applies one operation; its reply may be lost.
    pub(crate) fn write_one(&self, op: &Write) -> Result<Version, Refusal> {
        let result =
            self.store.write(std::slice::from_ref(op)).pop().unwrap_or(Err(Refusal::Unknown));
        if matches!(result, Err(Refusal::Unknown)) {
            self.counts.unknown.fetch_add(1, Relaxed);
        }
        result
    }

    /// As [`write_one`](Self::write_one) for a batch.
    pub(crate) fn write_all(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let results = self.store.write(batch);
        let unknown =
            results.iter().filter(|result| matches!(result, Err(Refusal::Unknown))).count();
        self.counts.unknown.fetch_add(unknown as u64, Relaxed);
        results
    }

    /// Applies an operation that does the same when it is applied twice: without a reply it is sent
    /// again.
    pub(crate) fn until_answered(&self, op: &Write) -> Result<Version, Refusal> {
        let mut result = Err(Refusal::Unknown);
        for _ in 0..self.settings.tries.max(1) {
            result = self.write_one(op);
            if !matches!(result, Err(Refusal::Unknown)) {
                break;
            }
        }
        result
    }

    /// As [`until_answered`](Self::until_answered) for a batch.
    pub(crate) fn all_until_answered(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let mut results = self.write_all(batch);
        for (op, result) in batch.iter().zip(&mut results) {
            if matches!(result, Err(Refusal::Unknown)) {
                *result = self.until_answered(op);
            }
        }
        results
    }

    /// The same with a note in front of them, if there is one.
    pub(crate) fn behind_until_answered(
        &self,
        note: &mut Option<Write>,
        batch: &[Write],
    ) -> Result<Vec<Result<Version, Refusal>>, Refusal> {
        let noted = usize::from(note.is_some());
        let batch: Vec<Write> = note.take().into_iter().chain(batch.iter().cloned()).collect();
        let mut results = self.all_until_answered(&batch);
        let rest = results.split_off(noted);
        results.pop().transpose().map(|_| rest)
    }

    /// Reads one object; without a reply it is asked again.
    pub(crate) fn read_one(
        &self,
        object: &ObjectName,
        parts: Vec<ReadPart>,
    ) -> Result<ReadResult, Refusal> {
        self.read_all(&[Read { object: object.clone(), parts }])
            .pop()
            .unwrap_or(Err(Refusal::Unknown))
    }

    /// As [`read_one`](Self::read_one) for a batch.
    pub(crate) fn read_all(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let mut results = self.store.read(batch);
        for (op, result) in batch.iter().zip(&mut results) {
            for _ in 1..self.settings.tries.max(1) {
                if !matches!(result, Err(Refusal::Unknown)) {
                    break;
                }
                *result = self
                    .store
                    .read(std::slice::from_ref(op))
                    .pop()
                    .unwrap_or(Err(Refusal::Unknown));
            }
        }
        results
    }

    /// All keys of an object after `after`, page by page; nothing when it is missing.
    pub(crate) fn all_keys(
        &self,
        object: &ObjectName,
        mut after: Vec<u8>,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Refusal> {
        let mut all = Vec::new();
        loop {
            let answer = match self.read_one(object, vec![ReadPart::Page(after, 1000)]) {
                Err(Refusal::Missing) => return Ok(all),
                other => other?,
            };
            let (pairs, more) = answer.pairs(0);
            all.extend_from_slice(pairs);
            match all.last() {
                Some((last, _)) if more => after = last.clone(),
                _ => return Ok(all),
            }
        }
    }

    /// As [`all_keys`](Self::all_keys) for many objects, whose first pages are in flight together.
    pub(crate) fn all_keys_of(
        &self,
        objects: &[ObjectName],
        after: &[u8],
    ) -> Result<Vec<Vec<(Vec<u8>, Vec<u8>)>>, Refusal> {
        let look = |object: &ObjectName| Read {
            object: object.clone(),
            parts: vec![ReadPart::Page(after.to_vec(), 1000)],
        };
        let first = self.read_all(&objects.iter().map(look).collect::<Vec<_>>());
        let rest = |(object, answer): (&ObjectName, Result<ReadResult, Refusal>)| {
            let answer = match answer {
                Err(Refusal::Missing) => return Ok(Vec::new()),
                other => other?,
            };
            let (pairs, more) = answer.pairs(0);
            let mut all = pairs.to_vec();
            if let Some((last, _)) = all.last().filter(|_| more) {
                let last = last.clone();
                all.extend(self.all_keys(object, last)?);
            }
            Ok(all)
        };
        objects.iter().zip(first).map(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use onefold_backend::MemoryObjects;

    use super::*;
    use crate::Mode;

    fn store() -> MemoryObjects {
        let store = MemoryObjects::new(PoolKind::Replicated);
        create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
        store
    }

    fn set(store: &MemoryObjects, key: &[u8], number: u64) {
        let changes = vec![Change::SetOmap(vec![(key.to_vec(), number.to_le_bytes().to_vec())])];
        store
            .write(&[Write {
                object: ObjectName::metadata(CATALOGUE),
                guards: Vec::new(),
                changes,
            }])
            .remove(0)
            .unwrap();
    }

    #[test]
    fn rule_00_who_only_looks_takes_no_number_and_looks_when_there_is_none_left() {
        let store = store();
        let look = || Session::look(Arc::new(store.session("who")), Settings::default()).unwrap();
        let before = look().look_next(SESSIONS).unwrap();
        assert_eq!(look().look_next(SESSIONS).unwrap(), before);
        set(&store, SESSIONS, SESSIONS_MAX);
        let refused = Session::open(Arc::new(store.session("who")), Settings::default())
            .map(|_| ())
            .unwrap_err();
        assert!(
            refused.kind() == Kind::Unsupported
                && refused.to_string().contains("copy what it holds"),
            "{refused}"
        );
        assert!(look().status().unwrap().volumes == 0 && look().names().unwrap().is_empty());
        set(&store, SESSIONS, 7);
        set(&store, IDS, IDS_MAX);
        let session = Session::open(Arc::new(store.session("who")), Settings::default()).unwrap();
        assert_eq!(session.create_volume("v", 4096).unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn rule_00_a_session_without_stamps_refuses_before_they_come_again() {
        let session =
            Arc::new(Session::open(Arc::new(store().session("who")), Settings::default()).unwrap());
        session.create_volume("v", 1 << 20).unwrap();
        let volume = crate::Volume::attach(&session, "v", Mode::Own).unwrap();
        volume.write_at(0, &[1; 4096]).unwrap();
        session.counter.store(STAMPS_MAX, Relaxed);
        assert_eq!(volume.write_at(0, &[2; 4096]).unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(volume.discard(0, 4096).unwrap_err().kind(), Kind::Unsupported);
        let mut bytes = [0; 4096];
        volume.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 4096]);
        volume.detach().unwrap();
    }
}
