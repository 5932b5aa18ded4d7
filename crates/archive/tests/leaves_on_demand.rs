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
    Archive, Collection, CollectionOptions as Options, Format, Reader, Settings, Verify, check,
    find_label,
};
use onefold_backend::Directory;
use onefold_core::{Files, Kind, Result};
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
    let options = Options {
        now: 1_000_000,
        keep_partial: 0,
        trash: 0,
        wait: false,
        reserve_bytes: 4096,
        encode_all: false,
    };
    Collection::begin(archive, options).unwrap().run(&mut |_| {}).unwrap();
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
    let read = Arc::new(AtomicU64::new(0));
    let watch: Watch = {
        let read = read.clone();
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            if let Call::Read(_, bytes) = call
                && name == "tables"
            {
                read.fetch_add(*bytes, Relaxed);
            }
            does()
        })
    };
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
    assert!(check(&little, true, &mut |_, _, _| {}).unwrap().is_well());
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
    assert!(check(&others, true, &mut |_, _, _| {}).unwrap().is_well());
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
    assert!(report.problems.iter().any(|problem| problem.contains(&expected)), "{report:?}");
    // What needs it is refused, and changes nothing; all else goes on.
    put(&archive, "another", &noise(77, 5_000)).unwrap();
    assert_eq!(get(&archive, "another").unwrap(), noise(77, 5_000));
}
