//! Background replay: what is due is done in portions, clients and other processes come between
//! them, and a process that is killed in the midst of it loses nothing.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, BackgroundReplay, Collection, CollectionOptions, Format, Gauge, Ingest, Pace,
    PutReport, PutRequest, ReplayStep, Replayed, Settings, Shape, check, gives_way, put_on,
    replay_due,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};
use support::{Call, Watch, Watched, get, noise};

const NOW: u64 = 1_000_000;

struct Desk(tempfile::TempDir);

impl Desk {
    /// Leaves of the container table are read when they are looked at.
    fn new() -> Desk {
        Desk::with_leaves(true)
    }

    fn with_leaves(on_demand: bool) -> Desk {
        let desk = Desk(
            tempfile::Builder::new()
                .prefix("replay")
                .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
                .unwrap(),
        );
        let format = Format {
            reserve_bytes: 4096,
            leaves: true,
            on_demand,
            ..Format::new([7; 16], [8; 32], [9; 16])
        };
        Archive::create(&Directory::create(&desk.path("")).unwrap(), &format).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("a").join(name)
    }

    /// Portions of a few entries and leaves.
    fn settings() -> Settings {
        Settings {
            log_bytes: 4096,
            log_ahead_bytes: 4096,
            ahead_bytes: 0,
            container_bytes: 32 << 10,
            leaf_entries: 4,
            leaf_portion: 2,
            leaf_bytes: 0,
            index_portion: 8,
            count_portion: 4,
            ..Settings::default()
        }
    }

    fn open_with(&self, settings: Settings, watch: Option<Watch>) -> Result<Arc<Archive>> {
        let directory: Arc<dyn Files> = Arc::new(Directory::open(&self.path(""), true).unwrap());
        let files = match watch {
            Some(watch) => Arc::new(Watched { files: directory, watch }),
            None => directory,
        };
        Archive::open(files, true, settings).map(Arc::new)
    }

    fn open(&self) -> Arc<Archive> {
        self.open_with(Desk::settings(), None).unwrap()
    }
}

/// Stores a stream by the ingesting process.
fn put(ingest: &Arc<Ingest>, name: &str, bytes: &[u8]) -> Result<PutReport> {
    let request = PutRequest {
        domain: None,
        name: name.into(),
        shape: Shape::Bytes,
        now: 1_000,
        wait: false,
    };
    put_on(ingest, request, &Gauge::default(), |feeder| feeder.bytes(bytes))
}

fn name(n: u64) -> String {
    format!("stream-{n:03}")
}

fn content(n: u64) -> Vec<u8> {
    noise(n + 1, 60_000)
}

fn whole(archive: &Arc<Archive>, streams: std::ops::Range<u64>) {
    for n in streams {
        assert!(get(archive, &name(n)).unwrap() == content(n), "stream {n}");
    }
    assert_eq!(check(archive, true, &mut |_, _, _| {}).unwrap().problems, Vec::<String>::new());
}

/// All portions that are due.
fn all(replay: &mut BackgroundReplay) -> Result<Replayed> {
    for _ in 0..10_000 {
        if replay.step(NOW)?.is_none() {
            return Ok(replay.done);
        }
    }
    panic!("it never ends: {:?}", replay.done);
}

/// Nothing is left to whoever opens the archive next.
fn nothing_is_due(desk: &Desk) {
    let archive = desk.open();
    let due = replay_due(&archive, &archive.tables()).unwrap();
    assert_eq!((due.containers, due.differences, due.nodes, due.files), (0, 0, 0, 0), "{due:?}");
    assert!(due.log_bytes.unwrap() < 4096 / 16, "{due:?}");
}

#[test]
fn the_next_process_has_nothing_to_import_to_count_or_to_merge() {
    let desk = Desk::new();
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
    assert_eq!(all(&mut replay).unwrap(), Replayed::default());
    for n in 0..12 {
        put(&ingest, &name(n), &content(n)).unwrap();
    }
    archive.remove(&name(3)).unwrap();
    let before = replay_due(&archive, &archive.tables()).unwrap();
    assert!(before.containers > 12 && before.differences == 13, "{before:?}");
    let done = all(&mut replay).unwrap();
    assert!(done.imports > 3 && done.counts > 0 && done.merged_files > 3, "{done:?}");
    assert!(done.checkpoints >= 1, "{done:?}");
    nothing_is_due(&desk);
    // What was imported is found.
    assert_eq!(put(&ingest, "again", &content(5)).unwrap().new_bytes, 0);
    all(&mut replay).unwrap();
    drop((replay, ingest));
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    assert_eq!(put(&ingest, "again", &content(7)).unwrap().new_bytes, 0);
    archive.remove("again").unwrap();
    let options = CollectionOptions { reserve_bytes: 4096, ..support::options(NOW) };
    drop(ingest);
    let done = Collection::begin(&archive, options).unwrap().run(&mut |_| {}).unwrap();
    assert!(done.dropped > 0, "{done:?}");
    whole(&archive, 0..3);
    whole(&archive, 4..12);
}

#[test]
fn clients_and_other_processes_come_between_any_two_questions() {
    let desk = Desk::new();
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let asks = Arc::new(AtomicU64::new(0));
    let left = asks.clone();
    let pace = Pace::new(move |_| match left.load(Relaxed) {
        0 => Err(gives_way()),
        n => {
            left.store(n - 1, Relaxed);
            Ok(())
        }
    });
    let mut replay = BackgroundReplay::new(&ingest, NOW, pace);
    let (mut streams, mut gave_way, mut steps) = (0, 0, 0);
    let other = desk.open();
    for round in 0..30 {
        for _ in 0..2 {
            put(&ingest, &name(streams), &content(streams)).unwrap();
            streams += 1;
        }
        // More and more of it is let through.
        asks.store(round, Relaxed);
        for later in 0..40 {
            match replay.step(NOW + later * 100 + round * 10_000) {
                Ok(None) => break,
                Ok(Some(_)) => steps += 1,
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Busy, "{error}");
                    gave_way += 1;
                    // A client works, and so does another process: nothing that they need is held.
                    other.create_volume(&format!("v{round}-{later}"), 1 << 20, NOW).unwrap();
                    let again = put(&ingest, "again", &content(streams - 1)).unwrap();
                    assert_eq!(again.new_bytes, 0);
                    break;
                }
            }
        }
    }
    assert!(gave_way > 5 && steps > 20, "{gave_way} {steps}");
    replay.rest().unwrap();
    asks.store(u64::MAX, Relaxed);
    for later in 0..5 {
        while replay.step(NOW * 2 + later * 100).unwrap().is_some() {}
    }
    nothing_is_due(&desk);
    whole(&archive, 0..streams);
}

#[test]
fn a_put_imports_beside_a_merge_that_is_half_done() {
    let desk = Desk::new();
    let archive = desk
        .open_with(Settings { auxiliary_entries: 12, index_portion: 6, ..Desk::settings() }, None);
    let archive = archive.unwrap();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
    put(&ingest, &name(0), &content(0)).unwrap();
    let (mut beside, mut amid) = (0, 0);
    for n in 1..20 {
        for _ in 0..6 {
            if replay.step(NOW).unwrap() == Some(ReplayStep::Merge) {
                amid += u64::from(replay.is_amid());
                let before = archive.tables().index.upto;
                put(&ingest, &name(100 + n), &noise(500 + n, 200_000)).unwrap();
                beside += u64::from(archive.tables().index.upto > before);
            }
        }
        put(&ingest, &name(n), &content(n)).unwrap();
    }
    assert!(beside > 3 && amid > 3, "{beside} {amid}");
    let done = all(&mut replay).unwrap();
    assert!(done.merged_files > 3 && !replay.is_amid(), "{done:?}");
    nothing_is_due(&desk);
    for n in 0..20 {
        assert_eq!(put(&ingest, "again", &content(n)).unwrap().new_bytes, 0, "{n}");
    }
    whole(&archive, 0..20);
}

#[test]
fn killed_in_the_midst_of_it_nothing_is_lost() {
    let mut killed = 0;
    for at in (0..).step_by(3) {
        let desk = Desk::new();
        {
            let archive = desk.open();
            let ingest = Ingest::begin(&archive, false, true).unwrap();
            for n in 0..6 {
                put(&ingest, &name(n), &content(n)).unwrap();
            }
            archive.remove(&name(5)).unwrap();
        }
        let calls = Arc::new(AtomicU64::new(u64::MAX));
        let left = calls.clone();
        let watch: Watch = Arc::new(move |_: &str, call: &Call, does| {
            if matches!(call, Call::Change) {
                match left.load(Relaxed) {
                    0 => return Err(Error::new(Kind::Io, "killed")),
                    u64::MAX => {}
                    n => left.store(n - 1, Relaxed),
                }
            }
            does()
        });
        let archive = desk.open_with(Desk::settings(), Some(watch)).unwrap();
        let ingest = Ingest::begin(&archive, false, true).unwrap();
        let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
        calls.store(at, Relaxed);
        let ended = all(&mut replay).is_ok();
        killed += u64::from(!ended);
        drop((replay, ingest, archive));
        let archive = desk.open();
        whole(&archive, 0..5);
        let ingest = Ingest::begin(&archive, false, true).unwrap();
        all(&mut BackgroundReplay::new(&ingest, NOW, Pace::default())).unwrap();
        for n in 0..5 {
            assert_eq!(put(&ingest, "again", &content(n)).unwrap().new_bytes, 0, "{n} of {at}");
        }
        if ended {
            break;
        }
    }
    assert!(killed > 10, "{killed}");
}

#[test]
fn a_full_disk_puts_it_off_and_takes_nothing_of_the_reserve() {
    let desk = Desk::new();
    let full = Arc::new(AtomicU64::new(0));
    let is_full = full.clone();
    let watch: Watch = Arc::new(move |name: &str, call: &Call, does| {
        let grows = ["index-", "counts-", "snapshot-", "tables"];
        let is_new = matches!(call, Call::Change) && grows.iter().any(|new| name.starts_with(new));
        match is_new && is_full.load(Relaxed) > 0 {
            true => Err(Error::new(Kind::NoSpace, "no room")),
            false => does(),
        }
    });
    let archive = desk.open_with(Desk::settings(), Some(watch)).unwrap();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    for n in 0..8 {
        put(&ingest, &name(n), &content(n)).unwrap();
    }
    let reserve = archive.reserve().bytes().unwrap();
    full.store(1, Relaxed);
    let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
    assert_eq!(all(&mut replay).unwrap(), Replayed::default());
    assert_eq!(archive.reserve().bytes().unwrap(), reserve);
    full.store(0, Relaxed);
    // After a minute it is tried again.
    assert_eq!(replay.step(NOW + 10).unwrap(), None);
    while replay.step(NOW + 100).unwrap().is_some() {}
    nothing_is_due(&desk);
    whole(&archive, 0..8);
}

/// A put takes a chunk for a duplicate before a collection condemns it, and ends after that. The next
/// collection looks for it among what came since the counts.
#[test]
fn nothing_is_counted_between_condemning_and_the_second_look() {
    let desk = Desk::new();
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
    for n in 0..4 {
        put(&ingest, &name(n), &content(n)).unwrap();
    }
    archive.remove(&name(3)).unwrap();
    all(&mut replay).unwrap();
    let collector = desk.open();
    let collect = || {
        let options = CollectionOptions { reserve_bytes: 4096, ..support::options(NOW) };
        Collection::begin(&collector, options).unwrap().run(&mut |_| {}).unwrap()
    };
    let request = PutRequest {
        domain: None,
        name: "again".into(),
        shape: Shape::Bytes,
        now: 1_000,
        wait: false,
    };
    let again = put_on(&ingest, request, &Gauge::default(), |feeder| {
        feeder.bytes(&content(3))?;
        // The stages behind this one have looked all but the last chunks up by then.
        std::thread::sleep(std::time::Duration::from_millis(500));
        let done = collect();
        assert!(done.waits && done.dropped == 0, "{done:?}");
        Ok(())
    });
    let new = again.unwrap().new_bytes;
    assert!(new < 30_000, "{new}");
    assert!(!collector.refresh().unwrap().condemned.is_empty());
    let before = replay.done.counts;
    for later in 0..3 {
        while replay.step(NOW + 100 * later).unwrap().is_some() {}
    }
    assert_eq!(replay.done.counts, before);
    collect();
    assert!(get(&archive, "again").unwrap() == content(3));
    whole(&archive, 0..3);
    while replay.step(NOW + 1_000).unwrap().is_some() {}
    nothing_is_due(&desk);
}

/// Puts streams until leaves are written ahead of a checkpoint.
fn portion_ahead(archive: &Arc<Archive>, ingest: &Arc<Ingest>, replay: &mut BackgroundReplay) {
    loop {
        let before = replay.done;
        match replay.step(NOW).unwrap() {
            Some(ReplayStep::Checkpoint) if replay.done.checkpoints == before.checkpoints => return,
            Some(_) => {}
            None => {
                let n = archive.tables().streams.len() as u64;
                put(ingest, &name(n), &content(n)).unwrap();
            }
        }
    }
}

/// A server writes leaves ahead; another process, which does not know of them, begins a checkpoint
/// that finds no room, and cuts the file of leaves off.
#[test]
fn leaves_written_ahead_count_only_when_they_are_there_still() {
    [true, false].into_iter().for_each(leaves_are_cut_off);
}

fn leaves_are_cut_off(on_demand: bool) {
    let desk = Desk::with_leaves(on_demand);
    // No commit makes a checkpoint.
    let settings = Settings { log_bytes: 64 << 10, ..Desk::settings() };
    let archive = desk.open_with(settings, None).unwrap();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
    for n in 0..10 {
        put(&ingest, &name(n), &content(n)).unwrap();
    }
    // Nobody else makes a checkpoint until all but the last portion of this one is done.
    for _ in 0..3 {
        portion_ahead(&archive, &ingest, &mut replay);
    }
    let before = replay.done;
    let bytes = fs::metadata(desk.path("tables")).unwrap().len();
    // The snapshot itself finds no room, once.
    let has_room = AtomicU64::new(0);
    let watch: Watch = Arc::new(move |name: &str, call: &Call, does| {
        let is_snapshot = matches!(call, Call::Change) && name.starts_with("snapshot-");
        match is_snapshot && has_room.fetch_add(1, Relaxed) == 0 {
            true => Err(Error::new(Kind::NoSpace, "no room")),
            false => does(),
        }
    });
    let other = desk.open_with(Settings { log_bytes: 1, ..Desk::settings() }, Some(watch)).unwrap();
    other.create_volume("v", 1 << 20, NOW).unwrap();
    assert!(fs::metadata(desk.path("tables")).unwrap().len() < bytes, "it was cut off");
    while replay.done.checkpoints == before.checkpoints {
        assert!(replay.step(NOW + 100).unwrap().is_some());
    }
    let streams = archive.tables().streams.len() as u64;
    drop((replay, ingest, other, archive));
    whole(&desk.open(), 0..streams);
}

/// There is a next snapshot that the server does not know, and others may look at leaves that it names.
#[test]
fn leaves_are_not_written_ahead_over_those_of_an_unknown_snapshot() {
    let desk = Desk::new();
    let settings = Settings { log_bytes: 64 << 10, ..Desk::settings() };
    let archive = desk.open_with(settings, None).unwrap();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
    // Later checkpoints leave pages that nothing names.
    while replay.done.checkpoints < 6 {
        portion_ahead(&archive, &ingest, &mut replay);
        while replay.step(NOW).unwrap().is_some() {}
    }
    let numbers = fs::read_dir(desk.path("")).unwrap().filter_map(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.strip_prefix("snapshot-")?.parse::<u64>().ok()
    });
    let last = numbers.max().unwrap();
    let snapshot = |number: u64| desk.path(&format!("snapshot-{number:010}"));
    fs::copy(snapshot(last), snapshot(last + 1)).unwrap();
    let before = fs::read(desk.path("tables")).unwrap();
    for _ in 0..3 {
        portion_ahead(&archive, &ingest, &mut replay);
        assert!(fs::read(desk.path("tables")).unwrap().starts_with(&before));
    }
    while replay.step(NOW).unwrap().is_some() {}
    assert!(fs::read(desk.path("tables")).unwrap().starts_with(&before));
    let streams = archive.tables().streams.len() as u64;
    drop((replay, ingest, archive));
    whole(&desk.open(), 0..streams);
}

/// Leaves that changed are in memory until a checkpoint, also those that were written ahead. A commit
/// writes one when they are too many, and a background replay before.
#[test]
fn a_checkpoint_comes_before_a_commit_must_let_leaves_go() {
    let desk = Desk::new();
    let settings = Settings { log_bytes: 16 << 20, changed_leaves: 16, ..Desk::settings() };
    let archive = desk.open_with(settings, None).unwrap();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, NOW, Pace::default());
    let snapshots = |desk: &Desk| {
        let all = fs::read_dir(desk.path("")).unwrap();
        let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("snapshot-")).max()
    };
    let (mut n, mut before) = (0, snapshots(&desk));
    while replay.done.checkpoints < 3 {
        assert!(n < 100, "{:?}", replay.done);
        put(&ingest, &name(n), &content(n)).unwrap();
        n += 1;
        assert_eq!(snapshots(&desk), before, "no commit writes a snapshot");
        all(&mut replay).unwrap();
        before = snapshots(&desk);
    }
    drop((replay, ingest, archive));
    whole(&desk.open(), 0..n);
}
