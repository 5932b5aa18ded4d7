//! Snapshots of directories on real files: what the simulator's seeds do not meet.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{fs, os::unix::fs::FileExt, path::PathBuf, sync::Arc};

use onefold_archive::{
    Archive, BackupRequest, Collection, Compression, Content, CountsFound, Event, FileMap, Format,
    Gauge, Known, Miscounted, Settings, SnapshotId, Stat, TreeEntry, TreeReader, TreeWhat, Verify,
    backup, check,
};
use onefold_backend::Directory;
use onefold_core::{Error, Kind, Result};
use support::{entry, noise, options};

struct Desk(tempfile::TempDir);

impl Desk {
    fn new(trees: bool) -> Desk {
        let dir = tempfile::Builder::new()
            .prefix("archive")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        (format.reserve_bytes, format.compression, format.trees) =
            (1 << 20, Compression::None, trees);
        Archive::create(&Directory::create(&dir.path().join("a")).unwrap(), &format).unwrap();
        Desk(dir)
    }

    fn archive(&self) -> Arc<Archive> {
        let files = Directory::open(&self.0.path().join("a"), true).unwrap();
        Arc::new(Archive::open(Arc::new(files), true, Settings::default()).unwrap())
    }

    /// A snapshot of files in one directory.
    fn backup(&self, id: u8, all: &[(&str, &[u8])]) -> Result<()> {
        let request = BackupRequest {
            id: SnapshotId([id; 16]),
            set: "s".into(),
            now: 1_000,
            ..BackupRequest::default()
        };
        let told = backup(&self.archive(), &request, false, &Gauge::default(), |feeder| {
            let root = entry("", TreeWhat::Directory(None));
            feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
            for (name, content) in all {
                feeder.bytes(content)?;
                let file = entry(name, TreeWhat::File(0, FileMap::default()));
                feeder.event(Event::File(file, Stat::default(), None))?;
            }
            feeder.event(Event::End(0))
        });
        told.map(drop)
    }

    fn read(&self, id: u8, name: &str) -> Result<Vec<u8>> {
        let mut reader = TreeReader::new(&self.archive())?;
        let tables = reader.tables().clone();
        let snapshot = tables.snapshots.get(SnapshotId([id; 16]))?;
        let TreeWhat::File(bytes, map) = reader.find(snapshot, name.as_bytes())?.what else {
            panic!("{name} is no file");
        };
        let mut content = Vec::new();
        reader.read(bytes, &map, Verify::Chunks, &mut |part| {
            match part {
                Content::Bytes(part) => content.extend_from_slice(part),
                Content::Zeroes(n) | Content::Hole(n) => {
                    content.resize(content.len() + n as usize, 0);
                }
            }
            Ok(())
        })?;
        Ok(content)
    }

    fn gc(&self) {
        for _ in 0..2 {
            Collection::begin(&self.archive(), options(2_000_000))
                .unwrap()
                .run(&mut |_| {})
                .unwrap();
        }
    }

    /// Counts all references anew, and collects.
    fn recount(&self) -> Result<CountsFound> {
        let mut collection = Collection::begin(&self.archive(), options(2_000_000))?;
        collection.recount();
        while collection.step()? {}
        Ok(collection.recounted.unwrap())
    }

    /// Flips a bit of the directory page that has this name.
    fn flip(&self, name: &str) {
        let names = fs::read_dir(self.0.path().join("a")).unwrap();
        let segments: Vec<PathBuf> = names
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_str().unwrap().contains("segment-"))
            .collect();
        let found = segments.iter().find_map(|path| {
            let bytes = fs::read(path).unwrap();
            let at = bytes.windows(name.len()).position(|part| part == name.as_bytes())?;
            Some((path, at, bytes[at]))
        });
        let (path, at, byte) = found.unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        // Upper case, and back.
        file.write_all_at(&[byte ^ 0x20], at as u64).unwrap();
    }
}

#[test]
fn a_page_that_was_damaged_when_it_came_is_counted_when_it_is_whole() {
    let desk = Desk::new(true);
    let content = noise(1, 3_000_000);
    support::put(&desk.archive(), "stream", &content).unwrap();
    desk.backup(1, &[("a-rather-long-name", &content)]).unwrap();
    desk.flip("a-rather-long-name");
    assert_eq!(desk.read(1, "a-rather-long-name").unwrap_err().kind(), Kind::Corrupt);
    // Nothing waits for it.
    desk.gc();
    desk.flip("A-rather-long-name");
    assert!(desk.read(1, "a-rather-long-name").unwrap() == content);
    desk.gc();
    // Now the snapshot holds the chunks alone.
    desk.archive().remove("stream").unwrap();
    desk.gc();
    assert!(desk.read(1, "a-rather-long-name").unwrap() == content);
    assert!(check(&desk.archive(), true, &mut |_, _, _| {}).unwrap().is_well());
    // Damaged when it goes: its chunks stay counted, and nothing else is harmed.
    desk.backup(2, &[("b", &content[..1_000_000])]).unwrap();
    desk.flip("a-rather-long-name");
    onefold_archive::forget(&desk.archive(), &[SnapshotId([1; 16])], 5).unwrap();
    desk.gc();
    assert!(desk.read(2, "b").unwrap() == content[..1_000_000]);
    let report = check(&desk.archive(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.hit_snapshots.is_empty(), "{:?}", report.problems);
}

#[test]
fn a_recount_frees_what_damage_left_counted() {
    let desk = Desk::new(true);
    let content = noise(1, 3_000_000);
    desk.backup(1, &[("a-rather-long-name", &content)]).unwrap();
    desk.backup(2, &[("b", &content[..1_000_000])]).unwrap();
    desk.gc();
    let counts = |desk: &Desk| {
        let report = check(&desk.archive(), false, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
        report.counts.unwrap()
    };
    assert_eq!((counts(&desk).too_high.chunks, counts(&desk).unread), (0, None));
    // Damaged when it goes: its chunks stay counted.
    desk.flip("a-rather-long-name");
    onefold_archive::forget(&desk.archive(), &[SnapshotId([1; 16])], 5).unwrap();
    desk.gc();
    let leaked = counts(&desk);
    assert!(leaked.too_high.chunks > 100 && leaked.compared > leaked.too_high.chunks, "{leaked:?}");
    assert_eq!(leaked.too_low, Miscounted::default());
    let bytes = |desk: &Desk| desk.archive().tables().totals().bytes;
    let before = bytes(&desk);
    let recounted = desk.recount().unwrap();
    assert_eq!(recounted.too_high, leaked.too_high);
    desk.gc();
    assert!(bytes(&desk) + 1_500_000 < before, "{} of {before}", bytes(&desk));
    assert_eq!(counts(&desk).too_high, Miscounted::default());
    assert_eq!(desk.recount().unwrap().too_high.chunks, 0);
    assert!(desk.read(2, "b").unwrap() == content[..1_000_000]);
}

#[test]
fn a_recount_refuses_when_a_page_can_t_be_read_and_changes_nothing() {
    let desk = Desk::new(true);
    let content = noise(1, 3_000_000);
    desk.backup(1, &[("a-rather-long-name", &content)]).unwrap();
    desk.gc();
    desk.flip("a-rather-long-name");
    let refused = desk.recount().unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    let told = refused.to_string();
    assert!(told.contains("a page of a snapshot (chunk ") && told.contains("stay"), "{told}");
    // A check says what it does not know, and does not take for a leak what the page names.
    let report = check(&desk.archive(), false, &mut |_, _, _| {}).unwrap();
    let counts = report.counts.unwrap();
    assert_eq!((counts.too_high.chunks, counts.too_low.chunks), (0, 0));
    assert!(counts.unread.unwrap().contains("a page of a snapshot"));
    desk.gc();
    desk.flip("A-rather-long-name");
    assert!(desk.read(1, "a-rather-long-name").unwrap() == content);
    assert_eq!(desk.recount().unwrap().too_high.chunks, 0);
    assert!(desk.read(1, "a-rather-long-name").unwrap() == content);

    // The recipe of a stream, likewise.
    support::put(&desk.archive(), "stream", &noise(2, 1_000_000)).unwrap();
    desk.gc();
    let recipe = desk.archive().tables().streams.values().next().unwrap().recipe[0].container;
    let container = desk.archive().tables().containers.get(&recipe).unwrap().unwrap().stored;
    let segment = desk.0.path().join(format!("a/segment-{:08}", container.place.segment));
    let file = fs::File::options().read(true).write(true).open(segment).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, container.place.at).unwrap();
    file.write_all_at(&[!byte[0]], container.place.at).unwrap();
    let told = desk.recount().unwrap_err().to_string();
    assert!(told.contains("the recipe of stream 'stream'"), "{told}");
    file.write_all_at(&byte, container.place.at).unwrap();
    assert_eq!(desk.recount().unwrap().too_high.chunks, 0);
}

#[test]
fn an_archive_without_snapshots_takes_none() {
    let desk = Desk::new(false);
    assert_eq!(desk.backup(1, &[("a", b"1")]).unwrap_err().kind(), Kind::Unsupported);
    support::put(&desk.archive(), "stream", b"1").unwrap();
    assert!(desk.archive().tables().snapshots.is_empty());
    let desk = Desk::new(true);
    assert_eq!(desk.backup(1, &[("b", b"1"), ("a", b"1")]).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(desk.backup(1, &[("a/b", b"1")]).unwrap_err().kind(), Kind::InvalidInput);
    desk.backup(1, &[("a", b"1")]).unwrap();
    assert_eq!(desk.backup(1, &[("a", b"1")]).unwrap_err().kind(), Kind::Exists);
}

#[test]
fn a_backup_that_was_cut_off_goes_on_from_its_checkpoint() {
    let desk = Desk::new(true);
    let content = noise(2, 3_000_000);
    let stat = Stat { inode: 7, is_settled: true, ..Stat::default() };
    let request = |id: u8, checkpoint: Option<u8>| BackupRequest {
        id: SnapshotId([id; 16]),
        set: "s".into(),
        now: 1_000,
        checkpoint: checkpoint.map(|id| SnapshotId([id; 16])),
        ..BackupRequest::default()
    };
    let cut_off = backup(&desk.archive(), &request(1, None), false, &Gauge::default(), |feeder| {
        feeder.event(Event::Enter(
            entry("", TreeWhat::Directory(None)),
            Stat::default(),
            Known::new(),
        ))?;
        feeder.bytes(&content)?;
        let file = entry("one", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, stat, None))?;
        feeder.checkpoint(SnapshotId([9; 16]))?;
        // It is there once another thread has written all of it.
        while desk.archive().tables().snapshots.checkpoints().next().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Err(Error::new(Kind::Stopped, "cut off"))
    });
    assert_eq!(cut_off.unwrap_err().kind(), Kind::Stopped);
    // It is no snapshot, and nobody makes one of it.
    let tables = desk.archive().tables();
    assert_eq!((tables.snapshots.listed().count(), tables.snapshots.forgotten().count()), (0, 0));
    let undeleted = onefold_archive::undelete(&desk.archive(), &[SnapshotId([9; 16])]);
    assert_eq!(undeleted.unwrap_err().kind(), Kind::NotFound);
    assert!(check(&desk.archive(), true, &mut |_, _, _| {}).unwrap().is_well());

    let made = backup(&desk.archive(), &request(1, Some(9)), false, &Gauge::default(), |feeder| {
        let (root, _) = feeder.parents.take_root();
        let known = feeder.parents.enter(&root)?;
        feeder.event(Event::Enter(entry("", TreeWhat::Directory(None)), Stat::default(), known))?;
        let found = feeder.parents.find(b"one")?;
        let taken = feeder.parents.first_sound(&found, |_, before| *before == stat)?;
        let Some(TreeEntry { what: TreeWhat::File(bytes, map), .. }) = taken else {
            panic!("the checkpoint has the file")
        };
        let file = entry("one", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, stat, Some((bytes, map))))?;
        feeder.bytes(b"two")?;
        let file = entry("two", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, stat, None))?;
        feeder.event(Event::End(0))
    });
    assert_eq!(made.unwrap().new_bytes, 3);
    assert!(desk.read(1, "one").unwrap() == content && desk.read(1, "two").unwrap() == b"two");
    // The checkpoint is gone with it.
    assert!(desk.archive().tables().snapshots.checkpoints().next().is_none());
    desk.gc();
    assert!(desk.read(1, "one").unwrap() == content);
    assert!(check(&desk.archive(), true, &mut |_, _, _| {}).unwrap().is_well());
}
