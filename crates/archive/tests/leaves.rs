//! Tables in leaves: what a checkpoint writes, what is left of it when it is cut off, and what
//! damage of a leaf costs.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, Collection, CollectionOptions as Options, Format, Settings, check, find_label,
    mend_leaves, renew_snapshot,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};
use support::{Call, Watch, Watched, get, noise, put};

const PAGE: usize = 4096;

struct Desk(tempfile::TempDir);

impl Desk {
    fn new(leaves: bool) -> Desk {
        let desk = Desk(
            tempfile::Builder::new()
                .prefix("leaves")
                .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
                .unwrap(),
        );
        let format =
            Format { reserve_bytes: 4096, leaves, ..Format::new([7; 16], [8; 32], [9; 16]) };
        Archive::create(&Directory::create(&desk.path("")).unwrap(), &format).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("a").join(name)
    }

    /// Leaves of four entries.
    fn settings(log_bytes: u64) -> Settings {
        Settings {
            log_bytes,
            log_ahead_bytes: 4096,
            ahead_bytes: 0,
            leaf_entries: 4,
            ..Settings::default()
        }
    }

    fn open_with(&self, log_bytes: u64, watch: Option<Watch>) -> Result<Arc<Archive>> {
        let directory: Arc<dyn Files> = Arc::new(Directory::open(&self.path(""), true).unwrap());
        let files = match watch {
            Some(watch) => Arc::new(Watched { files: directory, watch }),
            None => directory,
        };
        Archive::open(files, true, Desk::settings(log_bytes)).map(Arc::new)
    }

    /// Each change ends with a checkpoint.
    fn open(&self) -> Arc<Archive> {
        self.open_with(1, None).unwrap()
    }

    fn change(&self, name: &str, does: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(name)).unwrap();
        does(&mut bytes);
        fs::File::options()
            .write(true)
            .truncate(true)
            .open(self.path(name))
            .unwrap()
            .write_all_at(&bytes, 0)
            .unwrap();
    }

    fn last_snapshot(&self) -> String {
        let files = Directory::open(&self.path(""), false).unwrap();
        format!("snapshot-{:010}", find_label(&files).unwrap().snapshot)
    }

    /// The first pages of the leaves of a table that the last snapshot names, and how many pages
    /// one copy has.
    fn places(&self, table: usize) -> Vec<(usize, usize)> {
        let bytes = fs::read(self.path(&self.last_snapshot())).unwrap();
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (mut at, mut places) = (40 + 32, Vec::new());
        for _ in 0..=table {
            let count = number(at);
            let one = |n: usize| (number(at + 4 + 16 * n), number(at + 8 + 16 * n));
            places = (0..count).map(one).collect();
            at += 4 + 16 * count;
        }
        places
    }

    fn rot(&self, page: usize) {
        self.change("tables", |bytes| bytes[page * PAGE + 40] ^= 1);
    }
}

fn name(n: usize) -> String {
    format!("stream-{n:03}")
}

fn problems(archive: &Arc<Archive>) -> Vec<String> {
    check(archive, true, &mut |_, _, _| {}).unwrap().problems
}

fn is_whole(archive: &Arc<Archive>, streams: std::ops::Range<usize>) {
    let tables = archive.refresh().unwrap();
    assert!(tables.streams.keys().cloned().eq(streams.clone().map(name)), "{:?}", tables.streams);
    for n in streams {
        assert_eq!(get(archive, &name(n)).unwrap(), noise(n as u64, 5_000));
    }
}

fn collect(archive: &Arc<Archive>) {
    let options = Options { wait: true, reserve_bytes: 4096, ..support::options(1_000_000) };
    Collection::begin(archive, options).unwrap().run(&mut |_| {}).unwrap();
}

/// Counts the bytes that are written to a file whose name begins so.
fn counting(prefix: &'static str, bytes: &Arc<AtomicU64>, desk: &Desk) -> Watch {
    let (bytes, path) = (bytes.clone(), desk.path(""));
    Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
        let before = fs::metadata(path.join(name)).map_or(0, |file| file.len());
        does()?;
        if matches!(call, Call::Change) && name.starts_with(prefix) {
            let after = fs::metadata(path.join(name)).map_or(0, |file| file.len());
            bytes.fetch_add(after.saturating_sub(before), Relaxed);
        }
        Ok(())
    })
}

#[test]
fn rule_48_a_checkpoint_writes_the_leaves_that_changed_and_uses_pages_again() {
    let desk = Desk::new(true);
    let archive = desk.open();
    for n in 0..100 {
        put(&archive, &name(n), &noise(n as u64, 5_000)).unwrap();
    }
    assert!(desk.places(0).len() >= 25 && desk.places(1).len() >= 25);
    // One stream changes one leaf; its containers change the last one, or two.
    let before = [desk.places(0), desk.places(1)];
    archive.rename(&name(50), "stream-050a").unwrap();
    let after = [desk.places(0), desk.places(1)];
    let same = |table: usize| after[table].iter().filter(|at| before[table].contains(at)).count();
    assert!(same(0) + 2 >= after[0].len(), "{before:?} {after:?}");
    assert_eq!(after[1], before[1]);
    archive.rename("stream-050a", &name(50)).unwrap();
    // Twice the leaves of a snapshot, and what two others name besides: the file does not grow
    // with the number of snapshots.
    let bytes = fs::metadata(desk.path("tables")).unwrap().len();
    for _ in 0..20 {
        archive.rename(&name(7), "stream-007a").unwrap();
        archive.rename("stream-007a", &name(7)).unwrap();
    }
    assert_eq!(fs::metadata(desk.path("tables")).unwrap().len(), bytes);
    is_whole(&archive, 0..100);
    drop(archive);
    let archive = desk.open();
    is_whole(&archive, 0..100);
    assert_eq!(problems(&archive), Vec::<String>::new());
}

#[test]
fn rule_48_the_bytes_of_a_checkpoint_follow_the_change_and_not_the_archive() {
    let written = |leaves: bool| {
        let desk = Desk::new(leaves);
        let archive = desk.open_with(u64::MAX, None).unwrap();
        for n in 0..400 {
            put(&archive, &name(n), &noise(n as u64, 100)).unwrap();
        }
        // Otherwise each snapshot has what came since the last collection.
        collect(&archive);
        drop(archive);
        drop(desk.open().rename(&name(0), "other"));
        let bytes = Arc::default();
        let archive = desk.open_with(1, Some(counting("snapshot-", &bytes, &desk))).unwrap();
        archive.rename("other", &name(0)).unwrap();
        bytes.load(Relaxed)
    };
    let (plain, in_leaves) = (written(false), written(true));
    assert!(in_leaves * 8 < plain, "{in_leaves} {plain}");
}

#[test]
fn rule_47_a_leaf_with_one_damaged_copy_costs_nothing_and_is_written_again() {
    let desk = Desk::new(true);
    let archive = desk.open();
    (0..20).for_each(|n| drop(put(&archive, &name(n), &noise(n as u64, 5_000)).unwrap()));
    drop(archive);
    let (streams, containers) = (desk.places(0), desk.places(1));
    // The first copy of one leaf, and the second copy of another one.
    desk.rot(streams[1].0);
    desk.rot(containers[2].0 + containers[2].1);
    let archive = desk.open_with(u64::MAX, None).unwrap();
    is_whole(&archive, 0..20);
    let found = problems(&archive);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|problem| problem.contains("one of two copies")), "{found:?}");
    assert_eq!(mend_leaves(&archive).unwrap(), 2);
    assert_eq!((problems(&archive), mend_leaves(&archive).unwrap()), (Vec::new(), 0));
    // Nobody repairs: the next checkpoint writes a leaf elsewhere whose first copy is damaged.
    drop(archive);
    desk.rot(streams[1].0);
    let archive = desk.open();
    archive.rename(&name(19), "stream-020").unwrap();
    archive.rename("stream-020", &name(19)).unwrap();
    assert!(!desk.places(0).contains(&streams[1]));
    is_whole(&archive, 0..20);
    assert_eq!(problems(&archive), Vec::<String>::new());
}

#[test]
fn rule_47_a_leaf_without_whole_copies_is_read_by_the_snapshot_before_or_told() {
    let desk = Desk::new(true);
    let archive = desk.open();
    (0..20).for_each(|n| drop(put(&archive, &name(n), &noise(n as u64, 5_000)).unwrap()));
    drop(archive);
    // The last leaf of the catalogue is of the last snapshot alone.
    let at = *desk.places(0).last().unwrap();
    desk.rot(at.0);
    desk.rot(at.0 + at.1);
    let archive = desk.open_with(u64::MAX, None).unwrap();
    is_whole(&archive, 0..20);
    // It needs the snapshot before: that is told, and a repair needs neither any more.
    let found = problems(&archive);
    assert!(found.len() == 1 && found[0].contains("needs the one before"), "{found:?}");
    assert!(renew_snapshot(&archive).unwrap());
    assert_eq!((problems(&archive), renew_snapshot(&archive).unwrap()), (Vec::new(), false));
    drop(archive);
    desk.change(&desk.last_snapshot(), |bytes| bytes[60] ^= 1);
    let archive = desk.open_with(u64::MAX, None).unwrap();
    is_whole(&archive, 0..20);
    assert!(renew_snapshot(&archive).unwrap());
    drop(archive);
    // Both snapshots name the first one.
    let at = desk.places(0)[0];
    desk.rot(at.0);
    desk.rot(at.0 + at.1);
    let error = desk.open_with(u64::MAX, None).err().unwrap();
    let expected = format!("both copies of the leaf at page {}", at.0);
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains(&expected), "{error}");
}

#[test]
fn rule_48_a_checkpoint_that_is_cut_off_leaves_both_snapshots_before_it() {
    let desk = Desk::new(true);
    let cut = Arc::new(AtomicBool::new(false));
    let watch: Watch = {
        let cut = cut.clone();
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            if cut.load(Relaxed) && name == "label" && matches!(call, Call::Change) {
                return Err(Error::new(Kind::Io, "the label can't be written"));
            }
            does()
        })
    };
    let archive = desk.open_with(1, Some(watch)).unwrap();
    (0..20).for_each(|n| drop(put(&archive, &name(n), &noise(n as u64, 5_000)).unwrap()));
    // The last snapshot is damaged, and the leaves of the next one are written.
    desk.change(&desk.last_snapshot(), |bytes| bytes[60] ^= 1);
    cut.store(true, Relaxed);
    archive.rename(&name(0), "a").unwrap_err();
    drop(archive);
    let archive = desk.open();
    let tables = archive.refresh().unwrap();
    assert_eq!(tables.streams.len(), 20);
    assert!(get(&archive, "a").unwrap() == noise(0, 5_000));
    assert!(renew_snapshot(&archive).unwrap());
    assert_eq!(problems(&archive), Vec::<String>::new());
}

#[test]
fn an_archive_without_leaves_stays_one() {
    let desk = Desk::new(false);
    let archive = desk.open();
    (0..20).for_each(|n| drop(put(&archive, &name(n), &noise(n as u64, 5_000)).unwrap()));
    drop(archive);
    is_whole(&desk.open(), 0..20);
    assert!(!desk.path("tables").exists());
    let files = Directory::open(&desk.path(""), false).unwrap();
    assert!(!find_label(&files).unwrap().leaves);
    assert_eq!(fs::read(desk.path("label")).unwrap()[8], 1);
}

/// An archive that the last program before leaves wrote: two streams, a snapshot of a directory, a
/// volume, one collection. For each file a line with its name, one with its length, and its bytes.
const BEFORE_LEAVES: &[u8] = include_bytes!("data/before-leaves.zst");

/// An archive that the first program with leaves wrote: streams that came and went, in leaves of four
/// entries, a collection that merged containers, and changes behind the last checkpoint.
const WITH_LEAVES: &[u8] = include_bytes!("data/with-leaves.zst");

fn unpack(packed: &[u8], to: &std::path::Path) {
    let all = zstd::decode_all(packed).unwrap();
    let mut rest = &all[..];
    let line = |rest: &mut &[u8]| {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let line = String::from_utf8(rest[..end].to_vec()).unwrap();
        *rest = &rest[end + 1..];
        line
    };
    drop(Directory::create(to).unwrap());
    while !rest.is_empty() {
        let (name, bytes) = (line(&mut rest), line(&mut rest).parse::<usize>().unwrap());
        drop(Directory::open(to, true).unwrap().create(&name).unwrap());
        fs::write(to.join(&name), &rest[..bytes]).unwrap();
        rest = &rest[bytes..];
    }
}

#[test]
fn an_archive_of_the_program_before_opens_is_written_and_collected() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let desk = Desk(dir);
    unpack(BEFORE_LEAVES, &desk.path(""));
    let numbers = |step: usize, to: usize| {
        (1..=to).step_by(step).map(|n| format!("{n}\n")).collect::<String>().into_bytes()
    };
    let is_as_before = |archive: &Arc<Archive>| {
        assert_eq!(get(archive, "one").unwrap(), numbers(3, 9_000));
        assert_eq!(get(archive, "two").unwrap(), numbers(1, 3_000));
        let tables = archive.refresh().unwrap();
        assert_eq!(
            (tables.snapshots.len(), tables.volumes.all().len(), tables.leaves),
            (1, 1, false)
        );
        assert_eq!(problems(archive), Vec::<String>::new());
    };
    let archive = desk.open();
    is_as_before(&archive);
    put(&archive, "three", &noise(3, 50_000)).unwrap();
    archive.rename("three", "four").unwrap();
    collect(&archive);
    drop(archive);
    let archive = desk.open();
    is_as_before(&archive);
    assert_eq!(get(&archive, "four").unwrap(), noise(3, 50_000));
    assert!(!desk.path("tables").exists());
}

#[test]
fn rule_48_an_archive_of_the_first_program_with_leaves_opens_and_reads_them_all() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let desk = Desk(dir);
    unpack(WITH_LEAVES, &desk.path(""));
    let text = |n: u64| {
        (0..300u64).map(|k| format!("{n} {}\n", k * (n + 3))).collect::<String>().into_bytes()
    };
    let is_as_before = |archive: &Arc<Archive>| {
        let gone = [0, 3, 4, 9, 10, 11, 12];
        for n in (1..24).filter(|n| !gone.contains(n)) {
            assert_eq!(get(archive, &name(n)).unwrap(), text(n as u64));
        }
        for n in 100..104 {
            assert_eq!(get(archive, &format!("part-{n}")).unwrap(), text(n)[..1200]);
        }
        assert_eq!(get(archive, "renamed").unwrap(), text(0));
        assert_eq!(get(archive, "last").unwrap(), text(200));
        let tables = archive.refresh().unwrap();
        assert_eq!((tables.leaves, tables.on_demand), (true, false));
        assert_eq!(problems(archive), Vec::<String>::new());
    };
    let archive = desk.open();
    is_as_before(&archive);
    let tables = archive.tables();
    assert_eq!((tables.streams.len(), tables.containers.len(), tables.moved_to.len()), (23, 47, 2));
    put(&archive, "three", &noise(3, 50_000)).unwrap();
    archive.rename("three", "four").unwrap();
    archive.remove("four").unwrap();
    collect(&archive);
    assert_eq!(archive.leaf_bytes(), 0);
    drop(archive);
    is_as_before(&desk.open());
    let files = Directory::open(&desk.path(""), false).unwrap();
    let label = find_label(&files).unwrap();
    assert_eq!((label.leaves, label.on_demand), (true, false));
}

/// The disk is full when a checkpoint begins, and refuses to remove what it half made: the change
/// before the checkpoint is in the log, and its caller hears of an error.
#[test]
fn a_process_whose_checkpoint_failed_changes_nothing_more() {
    for leaves in [true, false] {
        let desk = Desk::new(leaves);
        put(&desk.open(), "before", &noise(1, 5_000)).unwrap();
        let failing = Arc::new(AtomicU64::new(u64::MAX));
        let calls = failing.clone();
        let watch: Watch = Arc::new(move |name: &str, call: &Call, does| {
            let is_snapshot = matches!(call, Call::Change) && name.starts_with("snapshot-");
            if !is_snapshot || calls.load(Relaxed) == u64::MAX {
                return does();
            }
            match calls.fetch_add(1, Relaxed) {
                0 => Err(Error::new(Kind::NoSpace, "no room")),
                1 => Err(Error::new(Kind::Io, "it can't be removed")),
                _ => does(),
            }
        });
        let archive = desk.open_with(1, Some(watch)).unwrap();
        failing.store(0, Relaxed);
        let error = archive.rename("before", "renamed").unwrap_err();
        assert!(error.kind() == Kind::Io && error.to_string().contains("removed"), "{error}");
        assert_eq!(failing.load(Relaxed), 2);
        let error = archive.rename("renamed", "again").unwrap_err();
        assert!(error.kind() == Kind::Stopped, "{error}");
        assert!(error.to_string().contains("an earlier failure: it can't be removed"), "{error}");
        drop(archive);
        // The next process has the change that was in the log.
        let archive = desk.open();
        assert_eq!(get(&archive, "renamed").unwrap(), noise(1, 5_000));
        archive.rename("renamed", "again").unwrap();
        assert_eq!(problems(&archive), Vec::<String>::new());
    }
}
