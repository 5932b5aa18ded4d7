//! Shared by the tests of the engine: noise, streams in and out, and files whose calls are watched.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its own part, and panics where it fails"
)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_archive::{
    Archive, Attributes, BackupReport, BackupRequest, CollectionOptions, Content, Event, FileMap,
    Gauge, Known, PutReport as Report, PutRequest as Request, Reader, Role, Shape, SnapshotId,
    Stat, TreeEntry, TreeFeeder, TreeReader, TreeWhat, Verify, backup,
};
use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use onefold_seal::{KeyArea, Opener, Random, Secret, SlotSecret};

/// Bytes that no compression makes smaller.
pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).flatten().take(bytes).collect()
}

/// Chance that is never the same.
pub(crate) struct Counter(pub(crate) AtomicU64);

impl Random for Counter {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(&noise(self.0.fetch_add(1, Relaxed), into.len() + 8)[..into.len()]);
        Ok(())
    }
}

/// Opens by 32 times a byte; the operator may have said that an older key area counts.
pub(crate) struct By(pub(crate) u8, pub(crate) bool);

impl Opener for By {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&secret(self.0), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }
    fn accepts_older(&self) -> bool {
        self.1
    }
    fn refuses_plain(&self) -> bool {
        true
    }
    fn random(&self) -> Arc<dyn Random> {
        Arc::new(Counter(AtomicU64::new(std::process::id().into())))
    }
}

pub(crate) fn secret(byte: u8) -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [byte; 32]))
}

/// Stores a stream.
pub(crate) fn put(archive: &Arc<Archive>, name: &str, bytes: &[u8]) -> Result<Report> {
    let request =
        Request { domain: None, name: name.into(), shape: Shape::Bytes, now: 1_000, wait: false };
    onefold_archive::put(archive, request, &Gauge::default(), |feeder| feeder.bytes(bytes))
}

/// A collection that spares nothing that nobody needs, and waits for nobody.
pub(crate) fn options(now: u64) -> CollectionOptions {
    CollectionOptions {
        now,
        keep_partial: 0,
        trash: 0,
        wait: false,
        reserve_bytes: 1 << 20,
        encode_all: false,
        doubts_clock: false,
    }
}

/// An entry of a tree.
pub(crate) fn entry(name: &str, what: TreeWhat) -> TreeEntry {
    TreeEntry {
        name: name.into(),
        what,
        mode: 0o600,
        uid: 1,
        gid: 2,
        seconds: 3,
        nanoseconds: 4,
        link: 0,
        is_in_part: false,
        attributes: Attributes::default(),
    }
}

/// A backup of a set.
pub(crate) fn request(set: &str, number: u8) -> BackupRequest {
    BackupRequest {
        id: SnapshotId([number; 16]),
        set: set.into(),
        host: "host".into(),
        now: 1_000 + u64::from(number),
        ..BackupRequest::default()
    }
}

/// The same as this archive's key may ask for it: a put key adds snapshots of the host of its own name.
pub(crate) fn request_by(archive: &Archive, set: &str, number: u8) -> BackupRequest {
    let asked = request(set, number);
    let Some(Role::Put(own)) = archive.role() else { return asked };
    let tables = archive.tables();
    let key = tables.roles.as_ref().unwrap().keys.get(&own).unwrap();
    BackupRequest { host: key.name.clone(), ..asked }
}

/// Feeds a directory with one file, but for its end.
pub(crate) fn feed_file(feeder: &mut TreeFeeder<'_>, bytes: &[u8]) -> Result<()> {
    let root = entry("", TreeWhat::Directory(None));
    feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
    feeder.bytes(bytes)?;
    let file = entry("file", TreeWhat::File(0, FileMap::default()));
    feeder.event(Event::File(file, Stat::default(), None))
}

/// Backs up one file.
pub(crate) fn store(
    archive: &Arc<Archive>,
    set: &str,
    number: u8,
    bytes: &[u8],
) -> Result<BackupReport> {
    backup(archive, &request_by(archive, set, number), true, &Gauge::default(), |feeder| {
        feed_file(feeder, bytes)?;
        feeder.event(Event::End(0))
    })
}

/// The file of a snapshot that [`store`] made, every chunk verified.
pub(crate) fn restored(archive: &Arc<Archive>, number: u8) -> Result<Vec<u8>> {
    let mut reader = TreeReader::new(archive)?;
    let tables = reader.tables().clone();
    let snapshot = tables.snapshots.get(SnapshotId([number; 16]))?;
    let TreeWhat::File(bytes, map) = reader.find(snapshot, b"file")?.what else {
        panic!("no file")
    };
    let mut content = Vec::new();
    reader.read(bytes, &map, Verify::Chunks, &mut |part| {
        match part {
            Content::Bytes(part) => content.extend_from_slice(part),
            Content::Zeroes(n) | Content::Hole(n) => content.resize(content.len() + n as usize, 0),
        }
        Ok(())
    })?;
    Ok(content)
}

/// The numbers of the snapshots that are there.
pub(crate) fn names(archive: &Arc<Archive>) -> Vec<u8> {
    archive.refresh().unwrap().snapshots.listed().map(|snapshot| snapshot.id.0[0]).collect()
}

/// Reads a stream, every chunk verified.
pub(crate) fn get(archive: &Arc<Archive>, name: &str) -> Result<Vec<u8>> {
    let mut reader = Reader::new(archive)?;
    let stream = reader.stream(name)?;
    let mut bytes = Vec::new();
    reader.read(&stream.recipe, Verify::Chunks, &mut |content| {
        match content {
            Content::Bytes(part) => bytes.extend_from_slice(part),
            Content::Zeroes(n) | Content::Hole(n) => bytes.resize(bytes.len() + n as usize, 0),
        }
        Ok(())
    })?;
    Ok(bytes)
}

/// A call to a file or a directory.
pub(crate) enum Call {
    /// Reads so many bytes from a byte on.
    Read(u64, u64),
    /// Changes something, or makes it durable.
    Change,
    /// Takes a lock.
    Lock,
}

/// Sees a call to the file of this name (none for the directory itself), and does it by its last
/// argument, or does not.
pub(crate) type Watch =
    Arc<dyn Fn(&str, &Call, &mut dyn FnMut() -> Result<()>) -> Result<()> + Send + Sync>;

/// A directory whose calls are watched.
pub(crate) struct Watched {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) watch: Watch,
}

struct WatchedFile {
    name: String,
    file: Arc<dyn File>,
    watch: Watch,
}

fn watched<T>(watch: &Watch, name: &str, call: &Call, does: impl Fn() -> Result<T>) -> Result<T> {
    let mut done = None;
    watch(name, call, &mut || {
        done = Some(does()?);
        Ok(())
    })?;
    Ok(done.unwrap())
}

impl Watched {
    fn over(&self, name: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(WatchedFile { name: name.to_owned(), file, watch: self.watch.clone() })
    }
}

impl Files for Watched {
    fn names(&self) -> Result<Vec<String>> {
        self.files.names()
    }
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        watched(&self.watch, name, &Call::Change, || self.files.create(name))
            .map(|file| self.over(name, file))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.open(name).map(|file| self.over(name, file))
    }
    fn remove(&self, name: &str) -> Result<()> {
        watched(&self.watch, name, &Call::Change, || self.files.remove(name))
    }
    fn sync_names(&self) -> Result<()> {
        watched(&self.watch, "", &Call::Change, || self.files.sync_names())
    }
    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        watched(&self.watch, name, &Call::Lock, || self.files.lock(name, hold, wait))
    }
}

impl WatchedFile {
    fn change(&self, does: impl Fn() -> Result<()>) -> Result<()> {
        watched(&self.watch, &self.name, &Call::Change, does)
    }
}

impl File for WatchedFile {
    fn bytes(&self) -> Result<u64> {
        self.file.bytes()
    }
    fn occupied(&self) -> Result<u64> {
        self.file.occupied()
    }
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let mut n = 0;
        (self.watch)(&self.name, &Call::Read(at, into.len() as u64), &mut || {
            n = self.file.read_at(at, into)?;
            Ok(())
        })?;
        Ok(n)
    }
    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.change(|| self.file.write_at(at, data))
    }
    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> Result<()> {
        self.change(|| self.file.write_parts(at, parts))
    }
    fn sync(&self) -> Result<()> {
        self.change(|| self.file.sync())
    }
    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.change(|| self.file.set_bytes(bytes))
    }
    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.change(|| self.file.reserve(at, bytes))
    }
    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.change(|| self.file.punch(at, bytes))
    }
}
