//! Syncs of containers go on beside the writing of a stream.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_archive::{Archive, Compression, Format, Settings};
use onefold_core::{Error, File, Files, Hold, Kind, Lock, PendingSync, Result};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};
use support::{get, noise, put};

/// What is known of the syncs of segments.
#[derive(Default)]
struct Counts {
    awaited: AtomicU64,
    begun: AtomicU64,
    /// Syncs that were begun and are over when they are waited for.
    under_way: AtomicU64,
    most_under_way: AtomicU64,
    /// The sync with this number fails; 0 for none.
    fails: AtomicU64,
}

/// Files whose syncs are over only when somebody waits.
struct Slow {
    files: VirtualFiles,
    counts: Arc<Counts>,
}

struct SlowFile {
    file: Arc<dyn File>,
    counts: Option<Arc<Counts>>,
}

struct SlowSync {
    pending: Box<dyn PendingSync>,
    counts: Arc<Counts>,
    fails: bool,
}

impl Slow {
    fn over(&self, name: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        let counts = name.starts_with("segment-").then(|| self.counts.clone());
        Arc::new(SlowFile { file, counts })
    }
}

impl Files for Slow {
    fn names(&self) -> Result<Vec<String>> {
        self.files.names()
    }
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.create(name).map(|file| self.over(name, file))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.files.open(name).map(|file| self.over(name, file))
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

impl File for SlowFile {
    fn bytes(&self) -> Result<u64> {
        self.file.bytes()
    }
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(at, into)
    }
    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        self.file.write_at(at, data)
    }
    fn sync(&self) -> Result<()> {
        if let Some(counts) = &self.counts {
            counts.awaited.fetch_add(1, Relaxed);
        }
        self.file.sync()
    }
    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        let pending = self.file.clone().begin_sync();
        let Some(counts) = self.counts.clone() else { return pending };
        let number = counts.begun.fetch_add(1, Relaxed) + 1;
        let under_way = counts.under_way.fetch_add(1, Relaxed) + 1;
        counts.most_under_way.fetch_max(under_way, Relaxed);
        let fails = counts.fails.load(Relaxed) == number;
        Box::new(SlowSync { pending, counts, fails })
    }
    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.file.set_bytes(bytes)
    }
    fn reserve(&self, at: u64, bytes: u64) -> Result<()> {
        self.file.reserve(at, bytes)
    }
    fn punch(&self, at: u64, bytes: u64) -> Result<()> {
        self.file.punch(at, bytes)
    }
}

impl PendingSync for SlowSync {
    fn is_over(&self) -> bool {
        false
    }
    fn wait(self: Box<Self>) -> Result<()> {
        self.counts.under_way.fetch_sub(1, Relaxed);
        if self.fails { Err(Error::new(Kind::Io, "the disk failed")) } else { self.pending.wait() }
    }
}

const KIB: usize = 1 << 10;

fn archive() -> (Arc<Archive>, Arc<Counts>, VirtualFiles) {
    let files = VirtualFiles::new(Layout::default(), Rng::new(1));
    let mut format = Format::new([1; 16], [2; 32], [3; 16]);
    (format.compression, format.reserve_bytes) = (Compression::None, 0);
    Archive::create(&files, &format).unwrap();
    let settings = Settings {
        sync_bytes: 256 << 10,
        unsynced_bytes: 1 << 20,
        list_bytes: 2 << 20,
        container_bytes: 64 * KIB,
        ..Settings::default()
    };
    let counts = Arc::new(Counts::default());
    let slow = Slow { files: files.clone(), counts: counts.clone() };
    (Arc::new(Archive::open(Arc::new(slow), true, settings).unwrap()), counts, files)
}

#[test]
fn a_put_waits_at_its_bound_and_at_its_end_only() {
    let (archive, counts, files) = archive();
    let bytes = noise(1, 8 << 20);
    put(&archive, "a", &bytes).unwrap();
    let (begun, awaited) = (counts.begun.load(Relaxed), counts.awaited.load(Relaxed));
    // The syncs are as slow as can be: each is waited for when a MiB is not durable.
    assert!((6..=16).contains(&begun) && awaited == 1, "{begun} were begun, {awaited} awaited");
    assert_eq!(counts.most_under_way.load(Relaxed), 1, "the kernel tells one of two of a failure");
    assert_eq!(files.most_unsynced("segment-"), 0);
    // Fewer than a MiB: nobody waits before the end.
    put(&archive, "b", &noise(2, 700 * KIB)).unwrap();
    assert!(counts.begun.load(Relaxed) <= begun + 2);
    assert!(get(&archive, "a").unwrap() == bytes);
}

#[test]
fn what_a_failed_sync_covered_is_never_listed() {
    let (archive, counts, files) = archive();
    counts.fails.store(2, Relaxed);
    let failed = put(&archive, "a", &noise(1, 8 << 20)).unwrap_err();
    assert_eq!(failed.kind(), Kind::Io, "{failed:?}");
    let listed = archive.tables().sums().all().bytes;
    assert!(listed <= 2 << 20, "{listed} bytes are listed");
    drop(archive);
    files.power_cycle();
    let again = Arc::new(Archive::open(Arc::new(files), true, Settings::default()).unwrap());
    let report = onefold_archive::check(&again, true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well(), "{:?}", report.problems);
}
