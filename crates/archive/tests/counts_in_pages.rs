//! Usage counts in pages: a portion writes those that it changed, and damage of one costs time only.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use onefold_archive::{
    Archive, Chunking, Collection, Compression, ContainerKind, Format, Settings, check, survey,
    upgrade,
};
use onefold_backend::Directory;
use support::{get, noise, options, put};

/// An archive with small containers, and pages of so many of them.
struct Desk(tempfile::TempDir, Settings);

impl Desk {
    fn new(in_pages: bool) -> Desk {
        Desk::cut(in_pages, Chunking::FastCdc(8 << 10))
    }

    /// One whose streams are cut so.
    fn cut(in_pages: bool, chunking: Chunking) -> Desk {
        let dir = tempfile::Builder::new().prefix("counts").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.unwrap();
        let format = Format {
            reserve_bytes: 1 << 20,
            compression: Compression::None,
            chunking,
            counts_in_pages: in_pages,
            ..Format::new([1; 16], [2; 32], [3; 16])
        };
        Archive::create(&Directory::create(&dir.path().join("a")).unwrap(), &format).unwrap();
        let settings = Settings {
            container_bytes: 64 << 10,
            count_page: 4,
            count_files: 8,
            ..Settings::default()
        };
        Desk(dir, settings)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("a").join(name)
    }

    fn archive(&self) -> Arc<Archive> {
        let files = Directory::open(&self.path(""), true).unwrap();
        Arc::new(Archive::open(Arc::new(files), true, self.1.clone()).unwrap())
    }

    fn put(&self, name: &str, seed: u64, bytes: usize) {
        put(&self.archive(), name, &noise(seed, bytes)).unwrap();
    }

    fn gc(&self) {
        Collection::begin(&self.archive(), options(2_000_000)).unwrap().run(&mut |_| {}).unwrap();
    }

    /// Counts all references anew, and collects.
    fn recount(&self) {
        let mut collection = Collection::begin(&self.archive(), options(2_000_000)).unwrap();
        collection.recount();
        while collection.step().unwrap() {}
        let found = collection.recounted.clone().unwrap();
        assert_eq!((found.too_low.chunks, found.too_high.chunks), (0, 0), "{found:?}");
    }

    /// The chunks that there are of content, dead ones too.
    fn chunks(&self) -> u32 {
        let tables = self.archive().tables();
        let all = tables.containers.iter().map(|one| one.unwrap().stored);
        all.filter(|one| one.kind == ContainerKind::Data).map(|one| one.chunks).sum()
    }

    /// The files of counts, with their bytes.
    fn files(&self) -> BTreeMap<String, u64> {
        let files = fs::read_dir(self.path("")).unwrap().map(Result::unwrap);
        let named = files
            .map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().len()));
        named.filter(|(name, _)| name.starts_with("counts-")).collect()
    }

    /// All is there, and the counts are those that the roots give.
    fn is_well(&self) {
        let report = check(&self.archive(), true, &mut |_, _, _| {}).unwrap();
        let counts = report.counts.clone().unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
        assert_eq!((counts.too_low.chunks, counts.too_high.chunks), (0, 0), "{counts:?}");
    }
}

#[test]
fn rule_29_a_portion_writes_the_pages_that_it_changed() {
    let desk = Desk::new(true);
    desk.put("all", 1, 8 << 20);
    desk.gc();
    let first = desk.files();
    assert_eq!(first.len(), 1);
    let all: u64 = first.values().sum();
    // Something small comes, twice, and goes again: the first file stays, and others are small.
    desk.put("one", 2, 30_000);
    desk.gc();
    desk.put("two", 3, 30_000);
    desk.gc();
    desk.archive().remove("one").unwrap();
    desk.gc();
    let now = desk.files();
    let (name, bytes) = first.first_key_value().unwrap();
    assert_eq!(now.get(name), Some(bytes), "{now:?}");
    let fresh = || now.iter().filter(|(other, _)| *other != name).map(|(_, bytes)| *bytes);
    assert!(fresh().count() > 0 && fresh().all(|bytes| bytes < all), "{now:?} beside {all}");
    desk.is_well();
    assert!(get(&desk.archive(), "two").unwrap() == noise(3, 30_000));
}

#[test]
fn rule_29_files_stay_few_and_most_of_their_pages_count() {
    let desk = Desk::new(true);
    for n in 0..60 {
        desk.put(&format!("s{}", n % 7), n, 200_000);
        desk.gc();
        assert!(desk.files().len() <= 9, "{:?}", desk.files());
    }
    desk.is_well();
    let bytes: u64 = desk.files().values().sum();
    desk.recount();
    desk.gc();
    desk.is_well();
    let anew: u64 = desk.files().values().sum();
    // A directory for each file comes on top.
    assert!(bytes < 8 * anew, "{bytes} bytes, and {anew} when all pages are written anew");
}

#[test]
fn rule_29_more_pages_than_memory_has_room_for_are_counted_in_turns() {
    let mut desk = Desk::new(true);
    desk.1.count_slots = 10;
    for n in 0..6 {
        desk.put(&format!("s{n}"), n / 2, 1 << 20);
    }
    desk.gc();
    for n in [0, 1, 4] {
        desk.archive().remove(&format!("s{n}")).unwrap();
    }
    desk.put("more", 7, 1 << 20);
    desk.gc();
    desk.gc();
    desk.is_well();
    for (name, seed) in [("s2", 1), ("s3", 1), ("s5", 2), ("more", 7)] {
        assert!(get(&desk.archive(), name).unwrap() == noise(seed, 1 << 20));
    }
}

#[test]
fn rule_29_a_damaged_page_makes_all_references_be_counted_anew() {
    for (at, late) in [(100, false), (100, true), (0, false), (20, true)] {
        let desk = Desk::new(true);
        desk.put("all", 1, 4 << 20);
        desk.gc();
        desk.put("one", 2, 30_000);
        desk.gc();
        // A page of the first file, or the head of the last one.
        let files = desk.files();
        let name = if at < 48 { files.keys().last() } else { files.keys().next() }.unwrap();
        let damage = || {
            let mut bytes = fs::read(desk.path(name)).unwrap();
            bytes[at] ^= 1;
            fs::write(desk.path(name), bytes).unwrap();
        };
        if !late {
            damage();
        }
        desk.archive().remove("all").unwrap();
        desk.put("all", 1, 4 << 20);
        if late {
            damage();
        }
        let newest = desk.files().last_key_value().unwrap().0.clone();
        desk.gc();
        assert!(!desk.files().contains_key(&newest), "{at} {late}");
        desk.is_well();
        assert!(get(&desk.archive(), "all").unwrap() == noise(1, 4 << 20));
        // So does a file that is gone, when nothing else is to be counted.
        for gone in desk.files().keys() {
            fs::remove_file(desk.path(gone)).unwrap();
        }
        survey(&desk.archive(), options(2_000_000)).unwrap();
        desk.gc();
        desk.is_well();
    }
}

#[test]
fn rule_01_a_list_of_counts_becomes_pages_after_an_upgrade() {
    let desk = Desk::new(false);
    desk.put("a", 1, 3 << 20);
    desk.put("b", 1, 3 << 20);
    desk.gc();
    let magic = |desk: &Desk| {
        let name = desk.files().last_key_value().unwrap().0.clone();
        fs::read(desk.path(&name)).unwrap()[..8].to_vec()
    };
    assert_eq!(magic(&desk), b"ONEFCNTS");
    assert!(upgrade(&desk.archive()).unwrap());
    desk.is_well();
    desk.archive().remove("a").unwrap();
    desk.gc();
    assert_eq!((magic(&desk), desk.files().len()), (b"ONEFCNTP".to_vec(), 1));
    desk.is_well();
    desk.put("c", 5, 100_000);
    desk.gc();
    desk.is_well();
    assert!(get(&desk.archive(), "b").unwrap() == noise(1, 3 << 20));
}

#[test]
fn rule_00_a_chunk_that_is_named_as_often_as_counts_go_is_never_freed_by_its_count() {
    const MOST: usize = 65_535;
    for in_pages in [false, true] {
        let desk = Desk::cut(in_pages, Chunking::Static(1 << 10));
        let chunk = noise(9, 1 << 10);
        // A stream that names the chunk so often.
        let put = |name: &str, times: usize| {
            put(&desk.archive(), name, &chunk.repeat(times)).unwrap();
        };
        let remove = |name: &str| desk.archive().remove(name).map(drop).unwrap();
        let is_there = |name: &str, times: usize| {
            desk.is_well();
            assert!(get(&desk.archive(), name).unwrap() == chunk.repeat(times));
        };

        // One less than counts go: the count is exact, and the chunk goes with the last name.
        put("one", 1);
        put("many", MOST - 2);
        desk.gc();
        is_there("one", 1);
        remove("many");
        desk.gc();
        is_there("one", 1);
        remove("one");
        desk.gc();
        assert_eq!(desk.chunks(), 0);

        // A count at the most may stand for more names, so the chunk stays until a recount.
        put("many", MOST - 1);
        put("one", 1);
        desk.gc();
        is_there("one", 1);
        remove("many");
        remove("one");
        (0..3).for_each(|_| desk.gc());
        desk.is_well();
        assert_eq!(desk.chunks(), 1);
        desk.recount();
        desk.gc();
        assert_eq!(desk.chunks(), 0);

        // More often: as many go as counts go, and then more, and what is left is read.
        put("first", MOST);
        put("some", 40_000);
        put("one", 1);
        desk.gc();
        remove("first");
        (0..3).for_each(|_| desk.gc());
        is_there("some", 40_000);
        remove("some");
        (0..3).for_each(|_| desk.gc());
        is_there("one", 1);
        // A recount makes the count exact again, so that it follows what goes.
        desk.recount();
        is_there("one", 1);
        remove("one");
        desk.gc();
        assert_eq!(desk.chunks(), 0);

        // Names that came and went are counted together: first those that came, beyond the most.
        put("first", 40_000);
        put("one", 1);
        desk.gc();
        put("second", 40_000);
        remove("first");
        remove("second");
        (0..3).for_each(|_| desk.gc());
        is_there("one", 1);
        // A recount that finds more names than counts go leaves the most.
        put("first", MOST);
        put("second", 10);
        desk.recount();
        remove("first");
        remove("one");
        (0..3).for_each(|_| desk.gc());
        is_there("second", 10);
        remove("second");
        (0..3).for_each(|_| desk.gc());
        desk.is_well();
        assert_eq!(desk.chunks(), 1);
        desk.recount();
        desk.gc();
        assert_eq!(desk.chunks(), 0);
    }
}
