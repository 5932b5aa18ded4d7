//! Leaves of the container table that are read when they are looked at: what opening reads, what
//! readers find that look later, and what damage costs.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, Collection, CollectionOptions as Options, Format, Reader, ScrubRound, Settings,
    Verify, check, find_label, rebuild_chunk_index,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};
use support::{Call, Watch, Watched, get, noise, put};

const PAGE: usize = 4096;

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        let desk = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let format = Format {
            reserve_bytes: 4096,
            leaves: true,
            on_demand: true,
            ..Format::new([7; 16], [8; 32], [9; 16])
        };
        Archive::create(&Directory::create(&desk.path("")).unwrap(), &format).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("a").join(name)
    }

    /// Leaves of four entries, of which so many bytes are kept; each change ends with a checkpoint.
    fn open_with(&self, leaf_bytes: u64, watch: Option<Watch>) -> Result<Arc<Archive>> {
        let directory: Arc<dyn Files> = Arc::new(Directory::open(&self.path(""), true).unwrap());
        let files = match watch {
            Some(watch) => Arc::new(Watched { files: directory, watch }),
            None => directory,
        };
        let settings = Settings {
            log_bytes: 1,
            log_ahead_bytes: 4096,
            ahead_bytes: 0,
            leaf_entries: 4,
            leaf_bytes,
            ..Settings::default()
        };
        Archive::open(files, true, settings).map(Arc::new)
    }

    fn open(&self) -> Arc<Archive> {
        self.open_with(0, None).unwrap()
    }

    /// The first pages of the leaves of containers that the last snapshot names, and how many pages
    /// one copy has.
    fn places(&self) -> Vec<(usize, usize)> {
        let files = Directory::open(&self.path(""), false).unwrap();
        let last = format!("snapshot-{:010}", find_label(&files).unwrap().snapshot);
        let bytes = fs::read(self.path(&last)).unwrap();
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        // Behind the catalogue.
        let at = 40 + 32 + 4 + 16 * number(40 + 32);
        (0..number(at)).map(|n| (number(at + 4 + 16 * n), number(at + 8 + 16 * n))).collect()
    }

    fn rot(&self, page: usize) {
        let file = fs::File::options().read(true).write(true).open(self.path("tables")).unwrap();
        let (at, mut byte) = ((page * PAGE + 40) as u64, [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
    }

    fn tables_bytes(&self) -> u64 {
        fs::metadata(self.path("tables")).unwrap().len()
    }
}

fn name(n: usize) -> String {
    format!("stream-{n:03}")
}

fn fill(archive: &Arc<Archive>, streams: std::ops::Range<usize>) {
    streams.for_each(|n| drop(put(archive, &name(n), &noise(n as u64, 5_000)).unwrap()));
}

fn collect(archive: &Arc<Archive>) {
    let options = Options { reserve_bytes: 4096, ..support::options(1_000_000) };
    Collection::begin(archive, options).unwrap().run(&mut |_| {}).unwrap();
}

/// Counts bytes that are read of the file of leaves.
fn count_reads() -> (Arc<AtomicU64>, Watch) {
    let read = Arc::new(AtomicU64::new(0));
    let counter = read.clone();
    let watch: Watch =
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            if let Call::Read(_, bytes) = call
                && name == "tables"
            {
                counter.fetch_add(*bytes, Relaxed);
            }
            does()
        });
    (read, watch)
}

fn is_well(archive: &Arc<Archive>) {
    assert!(check(archive, true, &mut |_, _, _| {}).unwrap().is_well());
}

/// Streams come and go, and collections free what went.
fn turn_over(archive: &Arc<Archive>, rounds: usize) {
    for round in 0..rounds {
        let other = |n: usize| format!("other-{n}");
        (0..6).for_each(|n| {
            drop(put(archive, &other(n), &noise((1000 + round * 10 + n) as u64, 5_000)).unwrap());
        });
        (0..6).for_each(|n| archive.remove(&other(n)).unwrap());
        collect(archive);
    }
}

#[test]
fn rule_48_opening_reads_no_leaf_of_containers_and_a_look_one() {
    let desk = Desk::new();
    fill(&desk.open(), 0..60);
    let (read, watch) = count_reads();
    let archive = desk.open_with(64 << 20, Some(watch)).unwrap();
    let tables = archive.refresh().unwrap();
    // Leaves of the catalogue: some 20 of them, of a page each.
    let opened = read.load(Relaxed);
    assert!(opened <= 40 * PAGE as u64 && tables.containers.len() >= 120, "{opened}");
    assert_eq!(archive.leaf_bytes(), 0);
    assert_eq!(get(&archive, &name(30)).unwrap(), noise(30, 5_000));
    let looked = read.load(Relaxed) - opened;
    assert!((1..=4).contains(&(looked / PAGE as u64)), "{looked}");
    assert_eq!(get(&archive, &name(30)).unwrap(), noise(30, 5_000));
    assert_eq!(read.load(Relaxed) - opened, looked, "it is in memory");
    assert!(archive.leaf_bytes() > 0);
    // All of them, and no more in memory than there may be.
    let little = desk.open_with(3_000, None).unwrap();
    for n in 0..60 {
        assert_eq!(get(&little, &name(n)).unwrap(), noise(n as u64, 5_000));
        assert!(little.leaf_bytes() <= 3_000);
    }
    assert!(little.leaf_bytes() > 1_000);
    is_well(&little);
}

#[test]
fn rule_47_who_stays_in_an_epoch_finds_its_leaves_whatever_others_write() {
    let desk = Desk::new();
    fill(&desk.open(), 0..20);
    let (there, others) = (desk.open(), desk.open());
    let mut reader = Reader::new(&there).unwrap();
    turn_over(&others, 8);
    // All but one stream go, which would change each leaf.
    (1..20).for_each(|n| others.remove(&name(n)).unwrap());
    turn_over(&others, 8);
    for n in 0..20 {
        let stream = reader.stream(&name(n)).unwrap();
        reader.read(&stream.recipe, Verify::Chunks, &mut |_| Ok(())).unwrap();
    }
    let tables = reader.tables().clone();
    assert!(tables.containers.iter().all(|container| container.is_ok()));
    drop(reader);
    // Nobody is in the epoch any more: pages are used again, and the file does not grow.
    turn_over(&others, 8);
    let bytes = desk.tables_bytes();
    turn_over(&others, 16);
    assert_eq!(desk.tables_bytes(), bytes);
    assert_eq!(get(&others, &name(0)).unwrap(), noise(0, 5_000));
    is_well(&others);
    // The tables of somebody who did not stay are too old by now: no damage, and told.
    let late = tables.containers.iter().find_map(Result::err).unwrap();
    assert!(late.kind() == Kind::Busy && late.to_string().contains("try again"), "{late}");
    let now = there.refresh().unwrap();
    assert!(now.containers.iter().all(|container| container.is_ok()));
}

#[test]
fn rule_47_a_leaf_of_containers_without_whole_copies_is_told_when_it_is_looked_at() {
    let desk = Desk::new();
    fill(&desk.open(), 0..20);
    let at = desk.places()[2];
    desk.rot(at.0);
    let archive = desk.open();
    (0..20).for_each(|n| assert_eq!(get(&archive, &name(n)).unwrap(), noise(n as u64, 5_000)));
    drop(archive);
    desk.rot(at.0 + at.1);
    let archive = desk.open();
    let lost: Vec<_> = (0..20).filter_map(|n| get(&archive, &name(n)).err()).collect();
    assert!((1..6).contains(&lost.len()), "{lost:?}");
    let expected = format!("both copies of the leaf at page {}", at.0);
    for error in &lost {
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains(&expected), "{error}");
    }
    let report = check(&archive, false, &mut |_, _, _| {}).unwrap();
    let told = report.problems.iter().filter(|problem| problem.starts_with(&expected)).count();
    assert_eq!(told, 1, "{report:?}");
    // A round of scrubs tells of it, and reads all others.
    let mut round = ScrubRound::begin(&archive, 2_000).unwrap();
    assert!(round.due_bytes(2_000, 1).unwrap() > 0);
    while round.step(2_000).unwrap().is_some() {}
    let read = round.end(2_000).unwrap();
    assert!(read.ended && read.problems_found == 1, "{read:?}");
    assert!(read.problems[0].contains(&expected), "{read:?}");
    assert_eq!(read.containers, report.containers);
    rebuild_chunk_index(&archive, &mut |_, _| {}).unwrap();
    // What needs it is refused, and changes nothing; all else goes on.
    put(&archive, "another", &noise(77, 5_000)).unwrap();
    assert_eq!(get(&archive, "another").unwrap(), noise(77, 5_000));
}

#[test]
fn rule_47_new_containers_are_refused_when_the_last_leaf_is_lost() {
    let desk = Desk::new();
    fill(&desk.open(), 0..20);
    let at = desk.places()[desk.places().len() - 1];
    (0..2).for_each(|copy| desk.rot(at.0 + copy * at.1));
    let archive = desk.open();
    let refused = put(&archive, "another", &noise(77, 5_000)).unwrap_err();
    let expected = format!("both copies of the leaf at page {}", at.0);
    assert!(
        refused.kind() == Kind::Corrupt && refused.to_string().contains(&expected),
        "{refused}"
    );
    let whole = (0..20).filter(|&n| get(&archive, &name(n)).is_ok()).count();
    assert!((14..20).contains(&whole), "{whole}");
    let mut round = ScrubRound::begin(&archive, 2_000).unwrap();
    while round.step(2_000).unwrap().is_some() {}
    let read = round.end(2_000).unwrap();
    assert!(read.ended && read.problems_found == 1 && read.containers > 20, "{read:?}");
}

/// There is a next snapshot that no process knows, as its label was lost: others may have read it, and
/// look at its leaves.
#[test]
fn rule_47_leaves_of_an_unknown_snapshot_are_not_written_over() {
    let desk = Desk::new();
    fill(&desk.open(), 0..20);
    turn_over(&desk.open(), 8);
    let tables = || fs::read(desk.path("tables")).unwrap();
    let last = || find_label(&Directory::open(&desk.path(""), false).unwrap()).unwrap().snapshot;
    let before = tables();
    put(&desk.open(), "one", &noise(70, 5_000)).unwrap();
    assert!(!tables().starts_with(&before), "there are pages that nobody needs");
    let (before, known) = (tables(), last());
    let snapshot = |number: u64| desk.path(&format!("snapshot-{number:010}"));
    fs::copy(snapshot(known), snapshot(known + 1)).unwrap();
    // The log that would come behind the snapshot finds no room.
    let next = format!("log-{:010}", known + 1);
    let watch: Watch = Arc::new(move |name: &str, call: &Call, does| {
        match matches!(call, Call::Change) && name == next {
            true => Err(Error::new(Kind::NoSpace, "no room")),
            false => does(),
        }
    });
    let full = desk.open_with(0, Some(watch)).unwrap();
    put(&full, "two", &noise(71, 5_000)).unwrap();
    assert_eq!((last(), tables() == before), (known, true));
    drop(full);
    assert_eq!(fs::metadata(snapshot(known + 1)).unwrap().len(), 0);
    // The next process sees that there was one.
    let archive = desk.open();
    put(&archive, "three", &noise(72, 5_000)).unwrap();
    assert!(last() > known && tables().starts_with(&before));
    (70..73).zip(["one", "two", "three"]).for_each(|(n, name)| {
        assert_eq!(get(&archive, name).unwrap(), noise(n, 5_000));
    });
    is_well(&archive);
    drop(archive);
    is_well(&desk.open());
}

#[test]
fn a_merge_of_the_index_looks_each_container_up_once() {
    let desk = Desk::new();
    let archive = desk.open();
    (0..20).for_each(|n| drop(put(&archive, &name(n), &noise(n as u64, 100_000)).unwrap()));
    drop(archive);
    let (read, watch) = count_reads();
    let archive = desk.open_with(0, Some(watch)).unwrap();
    let tables = archive.tables();
    let (containers, chunks) = (tables.containers.len() as u64, tables.sums().all().chunks);
    assert!(chunks > 4 * containers, "{chunks} {containers}");
    let before = read.load(Relaxed);
    let entries = rebuild_chunk_index(&archive, &mut |_, _| {}).unwrap();
    let looks = (read.load(Relaxed) - before) / PAGE as u64;
    // Each leaf has a page, and all are gone through once before.
    assert!(entries > 3 * containers && looks <= 2 * containers, "{looks} of {entries}");
}
