//! The chunk index in a directory of its own: whatever happens to that directory, puts go on, nothing is
//! lost, and the next ingesting process finds all that was stored.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, Format, IndexDirectory, IndexMove, Settings, check, lost_index_files,
    not_found_in_chunk_index, rebuild_chunk_index,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind};
use support::{Call, Watch, Watched, get, noise, put};

struct Desk {
    dir: tempfile::TempDir,
    /// How often somebody was told of a failure.
    told: Arc<AtomicU64>,
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::Builder::new()
            .prefix("index")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let desk = Desk { dir, told: Arc::default() };
        let format = Format {
            reserve_bytes: 4096,
            leaves: true,
            on_demand: true,
            ..Format::new([7; 16], [8; 32], [9; 16])
        };
        Archive::create(&Directory::create(&desk.path("a")).unwrap(), &format).unwrap();
        Directory::create(&desk.path("fast")).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Small containers, and imports of few entries.
    fn settings() -> Settings {
        Settings {
            auxiliary_entries: 40,
            container_bytes: 64 << 10,
            ahead_bytes: 0,
            log_ahead_bytes: 4096,
            ..Settings::default()
        }
    }

    fn open(&self, directories: Vec<IndexDirectory>) -> Arc<Archive> {
        let files: Arc<dyn Files> = Arc::new(Directory::open(&self.path("a"), true).unwrap());
        let opened = Archive::open_with_index(files, directories, true, Desk::settings());
        Arc::new(opened.unwrap())
    }

    fn directory(&self, files: Arc<dyn Files>) -> IndexDirectory {
        let told = self.told.clone();
        IndexDirectory::new(files, move |_| {
            told.fetch_add(1, Relaxed);
        })
    }

    fn fast(&self, name: &str) -> IndexDirectory {
        self.directory(Arc::new(Directory::open(&self.path(name), true).unwrap()))
    }

    /// The archive with its index in `fast`.
    fn with_fast(&self) -> Arc<Archive> {
        self.open(vec![self.fast("fast")])
    }

    /// The same, where changes, or reads, of the index directory may fail.
    fn watched(&self, fails: &Arc<AtomicBool>, reads: bool, kind: Kind) -> Arc<Archive> {
        let files: Arc<dyn Files> = Arc::new(Directory::open(&self.path("fast"), true).unwrap());
        let fails = fails.clone();
        let watch: Watch = Arc::new(move |_: &str, call: &Call, go| {
            match fails.load(Relaxed) && reads == matches!(call, Call::Read(..)) {
                true => Err(Error::new(kind, "the fast disk failed")),
                false => go(),
            }
        });
        self.open(vec![self.directory(Arc::new(Watched { files, watch }))])
    }

    /// Names of files of the index.
    fn index_files(&self, name: &str) -> Vec<String> {
        let names = fs::read_dir(self.path(name)).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("index-")).collect();
        names.sort();
        names
    }
}

fn content(n: u64) -> Vec<u8> {
    noise(n + 1, 1 << 20)
}

fn store(archive: &Arc<Archive>, n: u64) -> u64 {
    put(archive, &format!("s{n}"), &content(n)).unwrap().new_bytes
}

/// Stores what is there already, and nothing of it is new.
fn all_found(archive: &Arc<Archive>, streams: u64) {
    for n in 0..streams {
        let report = put(archive, &format!("again-{n}"), &content(n)).unwrap();
        assert_eq!(report.new_bytes, 0, "stream {n} was stored again");
    }
    assert_eq!(lost_index_files(archive).unwrap(), 0);
    assert_eq!(not_found_in_chunk_index(archive).unwrap(), 0);
    for n in 0..streams {
        assert!(get(archive, &format!("s{n}")).unwrap() == content(n), "stream {n}");
    }
    let report = check(archive, true, &mut |_, _, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

fn copy(from: &Path, to: &Path) {
    empty(to);
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn empty(path: &Path) {
    if path.exists() {
        fs::remove_dir_all(path).unwrap();
    }
    Directory::create(path).unwrap();
}

#[test]
fn the_index_is_in_its_directory_and_nothing_else_is() {
    let desk = Desk::new();
    for n in 0..4 {
        assert!(store(&desk.with_fast(), n) > 0);
    }
    assert!(!desk.index_files("fast").is_empty());
    assert_eq!(desk.index_files("a"), Vec::<String>::new());
    assert_eq!(fs::read_dir(desk.path("fast")).unwrap().count(), desk.index_files("fast").len());
    all_found(&desk.with_fast(), 4);
    assert_eq!(desk.told.load(Relaxed), 0);
}

#[test]
fn an_empty_directory_costs_one_look_at_all_metadata() {
    let desk = Desk::new();
    (0..4).for_each(|n| _ = store(&desk.with_fast(), n));
    empty(&desk.path("fast"));
    assert!(lost_index_files(&desk.with_fast()).unwrap() > 0);
    all_found(&desk.with_fast(), 4);
    assert!(!desk.index_files("fast").is_empty(), "it is made anew where it was");
}

#[test]
fn without_its_directory_an_archive_works_beside_the_data_and_goes_back() {
    let desk = Desk::new();
    (0..3).for_each(|n| _ = store(&desk.with_fast(), n));
    let old = desk.index_files("fast");
    all_found(&desk.open(Vec::new()), 3);
    assert!(!desk.index_files("a").is_empty());
    assert_eq!(desk.index_files("fast"), old, "nobody was there");
    // When it is back, what nothing names any more is removed, and new files are made there.
    (3..6).for_each(|n| _ = store(&desk.with_fast(), n));
    all_found(&desk.with_fast(), 6);
    assert!(old.iter().all(|name| !desk.index_files("fast").contains(name)));
    assert!(!desk.index_files("fast").is_empty());
}

#[test]
fn an_older_copy_of_the_directory_is_no_index() {
    let desk = Desk::new();
    (0..3).for_each(|n| _ = store(&desk.with_fast(), n));
    copy(&desk.path("fast"), &desk.path("copy"));
    let old = desk.index_files("copy");
    // All is made anew under other numbers, also without the directory.
    (3..6).for_each(|n| _ = store(&desk.with_fast(), n));
    rebuild_chunk_index(&desk.with_fast(), &mut |_, _| {}).unwrap();
    assert!(desk.index_files("fast").iter().all(|name| !old.contains(name)));
    copy(&desk.path("copy"), &desk.path("fast"));
    assert!(lost_index_files(&desk.with_fast()).unwrap() > 0);
    all_found(&desk.with_fast(), 6);
    empty(&desk.path("fast"));
    all_found(&desk.open(Vec::new()), 6);
    assert!(desk.index_files("a").iter().all(|name| !old.contains(name)));
}

#[test]
fn a_directory_that_fails_under_a_put_costs_nothing_but_speed() {
    for kind in [Kind::NoSpace, Kind::Io, Kind::Denied] {
        let desk = Desk::new();
        let fails = Arc::new(AtomicBool::new(false));
        let archive = desk.watched(&fails, false, kind);
        store(&archive, 0);
        assert!(archive.index_failure().is_none());
        fails.store(true, Relaxed);
        (1..4).for_each(|n| assert!(store(&archive, n) > 0));
        assert_eq!(desk.told.load(Relaxed), 1, "it is told once");
        assert!(archive.index_failure().is_some());
        assert!(!desk.index_files("a").is_empty(), "{kind:?}: new files are made beside the data");
        // It reads what it has there, and finds all.
        all_found(&archive, 4);
        fails.store(false, Relaxed);
        all_found(&desk.with_fast(), 4);
    }
}

#[test]
fn an_index_that_cannot_be_read_is_not_merged_away() {
    let desk = Desk::new();
    (0..3).for_each(|n| _ = store(&desk.with_fast(), n));
    let fails = Arc::new(AtomicBool::new(false));
    let archive = desk.watched(&fails, true, Kind::Io);
    store(&archive, 3);
    fails.store(true, Relaxed);
    // Imports go on beside it: what can't be read now is there when the disk is.
    (4..8).for_each(|n| _ = store(&archive, n));
    assert_eq!(desk.told.load(Relaxed), 1);
    drop(archive);
    all_found(&desk.with_fast(), 8);
}

#[test]
fn a_container_that_cannot_be_read_keeps_nobody_from_storing() {
    for kind in [Kind::NotFound, Kind::Denied, Kind::Io, Kind::Memory] {
        let desk = Desk::new();
        (0..3).for_each(|n| _ = store(&desk.with_fast(), n));
        empty(&desk.path("fast"));
        let files: Arc<dyn Files> = Arc::new(Directory::open(&desk.path("a"), true).unwrap());
        let watch: Watch = Arc::new(move |name: &str, call: &Call, go| match call {
            Call::Read(at, _) if name.starts_with("segment-") && *at < 64 << 10 => {
                Err(Error::new(kind, "the first container can't be read"))
            }
            _ => go(),
        });
        let watched = Arc::new(Watched { files, watch });
        let directories = vec![desk.fast("fast")];
        let opened = Archive::open_with_index(watched, directories, true, Desk::settings());
        let archive = Arc::new(opened.unwrap());
        assert!(store(&archive, 3) > 0);
        // Its chunks are stored again, those of all others are found.
        let new = put(&archive, "again-0", &content(0)).unwrap().new_bytes;
        assert!((1..256 << 10).contains(&new), "{kind:?}: {new}");
        assert_eq!(put(&archive, "again-2", &content(2)).unwrap().new_bytes, 0);
        assert_eq!(lost_index_files(&archive).unwrap(), 0);
        drop(archive);
        assert!(get(&desk.with_fast(), "s0").unwrap() == content(0));
    }
}

#[test]
fn a_file_that_a_killed_process_left_is_removed() {
    let desk = Desk::new();
    store(&desk.with_fast(), 0);
    fs::write(desk.path("fast/index-0000000999"), noise(1, 8192)).unwrap();
    store(&desk.with_fast(), 1);
    let files = desk.index_files("fast");
    assert!(!files.contains(&"index-0000000999".to_owned()), "{files:?}");
    all_found(&desk.with_fast(), 2);
}

#[test]
fn the_index_goes_to_another_directory_and_back() {
    let desk = Desk::new();
    Directory::create(&desk.path("other")).unwrap();
    (0..3).for_each(|n| _ = store(&desk.open(Vec::new()), n));
    let to = |name: &str| {
        let target = desk.fast(name);
        (target.clone(), desk.open(vec![desk.fast("fast").without_new_files(), target]))
    };
    // There.
    let target = desk.fast("fast");
    let archive = desk.open(vec![target.clone()]);
    let entries = IndexMove::begin(&archive).unwrap().run(Some(&target), &mut |_, _| {}).unwrap();
    assert!(entries > 100);
    assert_eq!((desk.index_files("a").len(), desk.index_files("fast").len()), (0, 1));
    // From one to another.
    let (target, archive) = to("other");
    IndexMove::begin(&archive).unwrap().run(Some(&target), &mut |_, _| {}).unwrap();
    assert_eq!((desk.index_files("fast").len(), desk.index_files("other").len()), (0, 1));
    all_found(&desk.open(vec![desk.fast("other")]), 3);
    // Back, also when the directory was lost.
    empty(&desk.path("other"));
    let archive = desk.open(vec![desk.fast("other").without_new_files()]);
    IndexMove::begin(&archive).unwrap().run(None, &mut |_, _| {}).unwrap();
    assert_eq!(desk.index_files("other").len(), 0);
    all_found(&desk.open(Vec::new()), 3);
}

#[test]
fn a_move_to_a_full_disk_leaves_the_index_where_it_was() {
    let desk = Desk::new();
    (0..3).for_each(|n| _ = store(&desk.open(Vec::new()), n));
    let before = desk.index_files("a");
    let files: Arc<dyn Files> = Arc::new(Directory::open(&desk.path("fast"), true).unwrap());
    let watch: Watch = Arc::new(|name: &str, call: &Call, go| {
        match matches!(call, Call::Change) && name.starts_with("index-") {
            true => Err(Error::new(Kind::NoSpace, "the fast disk is full")),
            false => go(),
        }
    });
    let target = desk.directory(Arc::new(Watched { files, watch }));
    let archive = desk.open(vec![target.clone()]);
    let moved = IndexMove::begin(&archive).unwrap().run(Some(&target), &mut |_, _| {});
    assert_eq!(moved.unwrap_err().kind(), Kind::NoSpace);
    assert!(before.iter().all(|name| desk.index_files("a").contains(name)));
    all_found(&desk.open(Vec::new()), 3);
}

#[test]
fn a_move_for_which_the_disk_of_the_data_has_no_room_leaves_nothing_half_made() {
    let desk = Desk::new();
    (0..3).for_each(|n| _ = store(&desk.with_fast(), n));
    let before = desk.index_files("fast");
    let files: Arc<dyn Files> = Arc::new(Directory::open(&desk.path("a"), true).unwrap());
    let changes = AtomicU64::new(0);
    let watch: Watch = Arc::new(move |name: &str, call: &Call, go| {
        // A file is made, has no room for a byte, and is removed.
        let changes_index = name.starts_with("index-") && matches!(call, Call::Change);
        match changes_index && changes.fetch_add(1, Relaxed) == 1 {
            true => Err(Error::new(Kind::NoSpace, "the disk is full")),
            false => go(),
        }
    });
    let directories = vec![desk.fast("fast").without_new_files()];
    let watched = Arc::new(Watched { files, watch });
    let opened = Archive::open_with_index(watched, directories, true, Desk::settings());
    let moved = IndexMove::begin(&Arc::new(opened.unwrap())).unwrap().run(None, &mut |_, _| {});
    assert_eq!(moved.unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(desk.index_files("a"), Vec::<String>::new());
    assert_eq!(desk.index_files("fast"), before);
    all_found(&desk.with_fast(), 3);
}
