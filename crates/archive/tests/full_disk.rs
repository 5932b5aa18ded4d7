//! A file system that is full to its last block, in each step that writes: what was acknowledged stays, deletion and collection work, and then there is
//! room again.
//!
//! The file system is a small one in memory, mounted in a namespace of its own, in which this test runs itself once more.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::Path,
    process::Command,
    sync::Arc,
};

use onefold_archive::{
    Archive, Chunking, Compression, Format, Settings, check,
    collect::{Collection, Options},
    format::record::Shape,
    get::{Content, Reader, Verify},
    pipeline::{self, Gauge, Request},
    put::Ingest,
};
use onefold_backend::Directory;
use onefold_core::{File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

const MOUNTED: &str = "ONEFOLD_TEST_FULL_DISK";

#[test]
fn what_is_full_can_be_emptied_and_filled_again() {
    if let Some(place) = std::env::var_os(MOUNTED) {
        return fill_and_empty(Path::new(&place));
    }
    let place = tempfile::tempdir().unwrap();
    let script =
        format!("mount -t tmpfs -o size=24m none '{0}' && {MOUNTED}='{0}' exec \"$0\" --exact \"$1\" --nocapture", place.path().display());
    let name = "what_is_full_can_be_emptied_and_filled_again";
    let done =
        Command::new("unshare").args(["-Urm", "sh", "-c", &script]).arg(std::env::current_exe().unwrap()).arg(name).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "needs namespaces that a user can make, as Debian has:\n{}{}", text(&done.stdout), text(&done.stderr));
    assert!(text(&done.stdout).contains("1 passed"));
}

/// A directory that remembers which kinds of files found no room.
struct Noting {
    files: Arc<dyn Files>,
    full: Arc<Mutex<BTreeSet<String>>>,
}

struct Noted {
    file: Arc<dyn File>,
    kind: String,
    full: Arc<Mutex<BTreeSet<String>>>,
}

impl Noting {
    fn over(&self, name: &str, file: Result<Arc<dyn File>>) -> Result<Arc<dyn File>> {
        let kind = name.split('-').next().unwrap_or_default().to_owned();
        let file = note(&self.full, &kind, file)?;
        Ok(Arc::new(Noted { file, kind, full: self.full.clone() }))
    }
}

fn note<T>(full: &Mutex<BTreeSet<String>>, kind: &str, done: Result<T>) -> Result<T> {
    if done.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace) {
        full.lock().insert(kind.to_owned());
    }
    done
}

impl Files for Noting {
    fn names(&self) -> Result<Vec<String>> {
        self.files.names()
    }
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.over(name, self.files.create(name))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.over(name, self.files.open(name))
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.files.remove(name)
    }
    fn sync_names(&self) -> Result<()> {
        self.files.sync_names()
    }
    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        self.files.lock(name, hold, wait)
    }
}

impl File for Noted {
    fn bytes(&self) -> Result<u64> {
        self.file.bytes()
    }
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(at, into)
    }
    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        note(&self.full, &self.kind, self.file.write_at(at, data))
    }
    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> Result<()> {
        note(&self.full, &self.kind, self.file.write_parts(at, parts))
    }
    fn sync(&self) -> Result<()> {
        self.file.sync()
    }
    fn set_bytes(&self, bytes: u64) -> Result<()> {
        note(&self.full, &self.kind, self.file.set_bytes(bytes))
    }
    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        note(&self.full, &self.kind, self.file.reserve(at, bytes))
    }
    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.file.punch(at, bytes)
    }
}

/// Limits so small that a put imports, collects and takes snapshots all the time.
fn settings() -> Settings {
    Settings {
        auxiliary_entries: 400,
        cached_containers: 4,
        container_bytes: 256 << 10,
        sync_bytes: 512 << 10,
        log_bytes: 600,
        log_ahead_bytes: 32 << 10,
        ahead_bytes: 512 << 10,
        count_slots: 2000,
        ..Settings::default()
    }
}

const RESERVE: u64 = 1 << 20;

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(next).take(bytes.div_ceil(8)).flat_map(u64::to_le_bytes).take(bytes).collect()
}

fn put(archive: &Arc<Archive>, name: &str, bytes: &[u8]) -> Result<()> {
    let request = Request { name: name.to_owned(), shape: Shape::Bytes, now: 1000, wait: false };
    pipeline::put(archive, request, &Gauge::default(), |feeder| feeder.bytes(bytes)).map(|_| ())
}

fn get(archive: &Arc<Archive>, name: &str) -> Vec<u8> {
    let mut reader = Reader::new(archive).unwrap();
    let stream = reader.stream(name).unwrap();
    let mut bytes = Vec::new();
    let mut each = |content: Content<'_>| {
        match content {
            Content::Bytes(more) => bytes.extend_from_slice(more),
            Content::Zeroes(n) => bytes.resize(bytes.len() + n as usize, 0),
        }
        Ok(())
    };
    reader.read(&stream.recipe, Verify::Chunks, &mut each).unwrap();
    bytes
}

fn collect(archive: &Arc<Archive>) -> Result<()> {
    let options = Options { now: 1000, keep_partial: 0, wait: true, settle_all: false, reserve_bytes: RESERVE };
    Collection::begin(archive, options)?.run(&mut |_| {}).map(|_| ())
}

/// Fills all blocks but `left` bytes with a file of somebody else.
fn fill(place: &Path, left: u64) {
    let mut filler = fs::File::options().append(true).create(true).open(place.join("filler")).unwrap();
    let block = vec![1; 4096];
    while filler.write_all(&block).is_ok() {}
    let bytes = filler.metadata().unwrap().len();
    filler.set_len(bytes.saturating_sub(left)).unwrap();
}

fn fill_and_empty(place: &Path) {
    let full: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let directory = place.join("a");
    let format = Format {
        chunking: Chunking::FastCdc(2048),
        compression: Compression::None,
        reserve_bytes: RESERVE,
        segment_bytes: 2 << 20,
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    Archive::create(&Directory::create(&directory).unwrap(), &format).unwrap();
    let open = || {
        let files = Noting { files: Arc::new(Directory::open(&directory, true).unwrap()), full: full.clone() };
        Arc::new(Archive::open(Arc::new(files), true, settings()).unwrap())
    };
    let mut there: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let same = |archive: &Arc<Archive>, there: &BTreeMap<String, Vec<u8>>| {
        assert!(there.iter().all(|(name, bytes)| get(archive, name) == *bytes));
        assert!(check::check(archive, true, &mut |_, _, _| {}).unwrap().is_well());
    };
    let mut refused = 0;
    for round in 0..40u64 {
        // What goes in shares its first half with what was there before, so that collection has something to merge.
        let archive = open();
        let _ = fs::remove_file(place.join("filler"));
        for n in 0..3 {
            let mut bytes = noise(round / 2, 300_000);
            bytes.extend(noise(1000 + round * 10 + n, 300_000));
            let name = format!("s{}", (round * 3 + n) % 11);
            put(&archive, &name, &bytes).unwrap();
            there.insert(name, bytes);
        }
        fill(place, [0, 4096, 12288, 40960, 131_072, 262_144, 700_000][round as usize % 7]);
        // Puts until one is refused, which changes nothing.
        for n in 0..8 {
            let (name, bytes) = (format!("t{n}"), noise(5000 + round * 10 + n, 150_000));
            match put(&archive, &name, &bytes) {
                Ok(()) => {
                    there.insert(name, bytes);
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                    refused += 1;
                    break;
                }
            }
        }
        same(&archive, &there);
        // The importer finds no room, and leaves it for later.
        fill(place, 0);
        Ingest::begin(&archive, false, false).unwrap().import(true).unwrap();
        // A collection with nothing to free, another process, and all can be removed, collected and put again.
        collect(&archive).unwrap();
        let archive = if round % 2 == 0 { open() } else { archive };
        // Enough goes for the reserve to be whole again, and for more.
        let kept = if there.len() > 8 { there.len() / 4 } else { 0 };
        let gone: Vec<String> = there.keys().rev().take(there.len().saturating_sub(kept)).cloned().collect();
        for name in gone {
            archive.remove(&name).unwrap();
            there.remove(&name);
        }
        fill(place, 0);
        collect(&archive).unwrap();
        same(&archive, &there);
        let bytes = noise(9000 + round, 150_000);
        put(&archive, "again", &bytes).unwrap_or_else(|error| panic!("round {round}: {error}"));
        there.insert("again".to_owned(), bytes);
        same(&archive, &there);
    }
    let full = full.lock();
    println!("full in {full:?}, {refused} puts refused");
    // Puts and collection in segments, import in files of the index, checkpoints in snapshots and logs, counts.
    for kind in ["segment", "index", "snapshot", "counts"] {
        assert!(full.contains(kind), "nobody found the disk full in a file of the kind {kind}, but in {full:?}");
    }
}
