//! The stages of a put on threads: how they end, and in which order they write.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_archive::{
    Archive, BackupRequest, Compression, Event, Feeder, FileMap, Format, Gauge, Known, PutReport,
    PutRequest, Settings, Shape, SnapshotId, Stat, TreeWhat, backup, check, put,
};
use onefold_backend::Directory;
use onefold_core::{Algorithm, Error, Files, Kind, Result};
use support::{Call, Watched, entry, get, noise};

struct Desk {
    dir: tempfile::TempDir,
    settings: Settings,
}

impl Desk {
    fn new(change: impl FnOnce(&mut Format, &mut Settings)) -> Desk {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (mut format, mut settings) =
            (Format::new([1; 16], [2; 32], [3; 16]), Settings::default());
        change(&mut format, &mut settings);
        let files = Directory::create(&dir.path().join("a")).unwrap();
        Archive::create(&files, &format).unwrap();
        Desk { dir, settings }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("a")
    }

    fn files(&self) -> Arc<dyn Files> {
        Arc::new(Directory::open(&self.path(), true).unwrap())
    }

    fn archive(&self) -> Arc<Archive> {
        Arc::new(Archive::open(self.files(), true, self.settings.clone()).unwrap())
    }

    fn is_well(&self) {
        let report = check(&self.archive(), true, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
    }
}

fn put_into(
    archive: &Arc<Archive>,
    name: &str,
    source: impl FnOnce(&mut Feeder<'_>) -> Result<()> + Send,
) -> Result<PutReport> {
    let request = PutRequest {
        domain: None,
        name: name.into(),
        shape: Shape::Bytes,
        now: 1_000,
        wait: false,
    };
    put(archive, request, &Gauge::default(), source)
}

/// The numbers of containers in the first segment, as they lie there.
fn numbers(desk: &Desk) -> Vec<u64> {
    let segment = fs::read(desk.path().join("segment-00000001")).unwrap();
    let heads = segment.chunks(4096).filter(|block| block.starts_with(b"ONEFCONT"));
    heads.map(|head| u64::from_le_bytes(head[24..32].try_into().unwrap())).collect()
}

/// Bytes that take long to compress.
fn slow(bytes: usize) -> Vec<u8> {
    noise(1, bytes).iter().map(|byte| b"etaoinsh"[usize::from(byte % 8)]).collect()
}

/// Bytes that take no time to compress, in chunks of their own.
fn quick(bytes: usize) -> Vec<u8> {
    let line = |n: usize| [format!("{n:016}").into_bytes(), vec![b'a'; 16_368]].concat();
    (0..bytes / 16_384).flat_map(line).collect()
}

#[test]
fn containers_are_written_in_the_order_in_which_they_were_sealed() {
    // The first takes long to compress, those behind it no time.
    let desk = Desk::new(|_, settings| (settings.level, settings.container_bytes) = (19, 1 << 20));
    let bytes = [slow(1 << 20), quick(4 << 20)].concat();
    put_into(&desk.archive(), "one", |feeder| feeder.bytes(&bytes)).unwrap();
    let numbers = numbers(&desk);
    assert!(numbers.len() > 4 && numbers.is_sorted(), "{numbers:?}");
    assert!(get(&desk.archive(), "one").unwrap() == bytes);
    desk.is_well();
}

#[test]
fn a_checkpoint_names_nothing_that_was_not_written() {
    let desk = Desk::new(|format, settings| {
        (settings.level, settings.container_bytes) = (19, 1 << 20);
        format.trees = true;
    });
    let (large, small) = (slow(1 << 20), quick(4 << 20));
    let request = BackupRequest {
        id: SnapshotId([1; 16]),
        set: "s".into(),
        now: 1_000,
        ..BackupRequest::default()
    };
    backup(&desk.archive(), &request, false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        for (name, content) in [("a", &large), ("b", &small)] {
            feeder.bytes(content)?;
            let file = entry(name, TreeWhat::File(0, FileMap::default()));
            feeder.event(Event::File(file, Stat::default(), None))?;
            if name == "a" {
                feeder.checkpoint(SnapshotId([9; 16]))?;
            }
        }
        while desk.archive().tables().snapshots.checkpoints().next().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // As a process sees it that goes on from here after a crash.
        desk.is_well();
        feeder.event(Event::End(0))
    })
    .unwrap();
    desk.is_well();
}

#[test]
fn a_source_that_fails_or_panics_stores_nothing() {
    let desk = Desk::new(|_, _| {});
    let archive = desk.archive();
    let bytes = noise(4, 30 << 20);
    for so_far in [0, 100, 3 << 20, 30 << 20] {
        let failed = put_into(&archive, "one", |feeder| {
            feeder.bytes(&bytes[..so_far])?;
            Err(Error::new(Kind::Io, "the source broke"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "the source broke");
        let panics = put_into as fn(_, _, fn(&mut Feeder<'_>) -> Result<()>) -> _;
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            panics(&archive, "one", |feeder| {
                feeder.bytes(&[7; 5000])?;
                panic!("the source panicked")
            })
        }));
        assert!(panicked.is_err());
        assert!(get(&archive, "one").is_err());
    }
    put_into(&archive, "one", |feeder| feeder.bytes(&bytes)).unwrap();
    assert!(get(&archive, "one").unwrap() == bytes);
    desk.is_well();
}

#[test]
fn a_failed_write_ends_a_source_that_has_no_end() {
    let desk = Desk::new(|_, settings| settings.container_bytes = 256 << 10);
    for compression in [Compression::None, Compression::Zstd] {
        let desk = if compression == Compression::Zstd {
            &desk
        } else {
            &Desk::new(|format, _| format.compression = compression)
        };
        // The first containers are written, then none.
        let writes = AtomicU64::new(0);
        let watch = move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            let writes_on = matches!(call, Call::Change) && name.starts_with("segment");
            if writes_on && writes.fetch_add(1, Relaxed) >= 6 {
                return Err(Error::new(Kind::Io, "the disk broke"));
            }
            does()
        };
        let files = Watched { files: desk.files(), watch: Arc::new(watch) };
        let archive = Archive::open(Arc::new(files), true, desk.settings.clone()).unwrap();
        let failed = put_into(&Arc::new(archive), "one", |feeder| {
            let mut seed = 0;
            loop {
                seed += 1;
                feeder.bytes(&noise(seed, 100_000))?;
                feeder.border()?;
            }
        });
        assert_eq!(failed.unwrap_err().to_string(), "the disk broke");
        desk.is_well();
    }
}

#[test]
fn fingerprints_of_several_threads_go_with_their_chunks() {
    for compression in [Compression::None, Compression::Lz4] {
        let desk = Desk::new(|format, _| {
            (format.fingerprint, format.compression) = (Algorithm::HmacSha256, compression);
        });
        let mut bytes = noise(5, 20 << 20);
        bytes[3_000_000..6_000_000].fill(0);
        let archive = desk.archive();
        put_into(&archive, "one", |feeder| feeder.bytes(&bytes)).unwrap();
        let again = put_into(&archive, "two", |feeder| feeder.bytes(&bytes)).unwrap();
        assert_eq!(again.new_bytes, 0);
        // Every chunk is verified.
        assert!(get(&archive, "one").unwrap() == bytes && get(&archive, "two").unwrap() == bytes);
        desk.is_well();
    }
}
