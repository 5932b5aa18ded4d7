//! Snapshots of directories on real files: what the simulator's seeds do not meet.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use onefold_archive::{
    Archive, BackupRequest, Collection, Compression, Content, CountsFound, Event, FileMap, Format,
    Gauge, Known, Miscounted, RestoreTarget, RestoreWindow, Settings, SnapshotId, Stat, TreeEntry,
    TreeReader, TreeWhat, Verify, backup, check,
};
use onefold_backend::Directory;
use onefold_core::{Error, Kind, Result};
use support::{Call, Watch, Watched, entry, noise, options};

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

    /// The length and the content of a file of a snapshot.
    fn map_of(&self, id: u8, path: &str) -> (u64, FileMap) {
        let mut reader = TreeReader::new(&self.archive()).unwrap();
        let tables = reader.tables().clone();
        let snapshot = tables.snapshots.get(SnapshotId([id; 16])).unwrap();
        match reader.find(snapshot, path.as_bytes()).unwrap().what {
            TreeWhat::File(bytes, map) => (bytes, map),
            _ => panic!("{path} is no file"),
        }
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

    /// The archive, with each call to its files watched.
    fn watched(&self, watch: Watch) -> Arc<Archive> {
        let files = Arc::new(Directory::open(&self.0.path().join("a"), true).unwrap());
        let files = Arc::new(Watched { files, watch });
        Arc::new(Archive::open(files, true, Settings::default()).unwrap())
    }

    /// Collections fail while the disk can't read the directory page that has this name, and free
    /// nothing.
    fn collects_nothing_without(&self, name: &str) {
        let (path, at, _) = self.page(name);
        let segment = path.file_name().unwrap().to_str().unwrap().to_owned();
        let watch: Watch = Arc::new(move |file, call, does| match call {
            Call::Read(from, bytes) if file == segment && (*from..from + bytes).contains(&at) => {
                Err(Error::new(Kind::Io, "a sector can't be read"))
            }
            _ => does(),
        });
        let before = self.archive().tables().sums().all().bytes;
        for _ in 0..3 {
            let collection = Collection::begin(&self.watched(watch.clone()), options(2_000_000));
            let failed = collection.and_then(|collection| collection.run(&mut |_| {}));
            assert_eq!(failed.unwrap_err().kind(), Kind::Io);
        }
        assert_eq!(self.archive().tables().sums().all().bytes, before);
    }

    fn counts(&self) -> CountsFound {
        let report = check(&self.archive(), false, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
        report.counts.unwrap()
    }

    /// The segment and the byte in it where the directory page with this name has it, and that byte.
    fn page(&self, name: &str) -> (PathBuf, u64, u8) {
        let names = fs::read_dir(self.0.path().join("a")).unwrap();
        let segments: Vec<PathBuf> = names
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_str().unwrap().contains("segment-"))
            .collect();
        let found = segments.iter().find_map(|path| {
            let bytes = fs::read(path).unwrap();
            let at = bytes.windows(name.len()).position(|part| part == name.as_bytes())?;
            Some((path.clone(), at as u64, bytes[at]))
        });
        found.unwrap()
    }

    /// Flips a bit of the directory page that has this name.
    fn flip(&self, name: &str) {
        let (path, at, byte) = self.page(name);
        let file = fs::File::options().write(true).open(path).unwrap();
        // Upper case, and back.
        file.write_all_at(&[byte ^ 0x20], at).unwrap();
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
    let counts = Desk::counts;
    assert_eq!((counts(&desk).too_high.chunks, counts(&desk).unread), (0, None));
    // Damaged when it goes: its chunks stay counted.
    desk.flip("a-rather-long-name");
    onefold_archive::forget(&desk.archive(), &[SnapshotId([1; 16])], 5).unwrap();
    desk.gc();
    let leaked = counts(&desk);
    assert!(leaked.too_high.chunks > 100 && leaked.compared > leaked.too_high.chunks, "{leaked:?}");
    assert_eq!(leaked.too_low, Miscounted::default());
    let bytes = |desk: &Desk| desk.archive().tables().sums().all().bytes;
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
fn rule_00_a_page_that_is_named_as_often_as_counts_go_is_never_freed_by_its_count() {
    const MOST: usize = 65_535;
    let desk = Desk::new(true);
    let content = noise(3, 40_000);
    // A snapshot with so many directories that have the same content: one page, that of the parent.
    let backup = |id: u8, times: usize| {
        let request = BackupRequest {
            id: SnapshotId([id; 16]),
            set: "s".into(),
            now: 1_000,
            parent: (id > 1).then_some(SnapshotId([1; 16])),
            ..BackupRequest::default()
        };
        let taken = (id > 1).then(|| desk.map_of(1, "00000/file"));
        let told = backup(&desk.archive(), &request, false, &Gauge::default(), |feeder| {
            let directory = |name: &str, known| {
                let directory = entry(name, TreeWhat::Directory(None));
                Event::Enter(directory, Stat::default(), known)
            };
            let (root, _) = feeder.parents.take_root();
            feeder.parents.enter(&root)?;
            let found = feeder.parents.find(b"00000")?;
            let known = feeder.parents.enter(&found)?;
            feeder.event(directory("", Known::new()))?;
            for n in 0..times {
                feeder.event(directory(&format!("{n:05}"), known.clone()))?;
                if taken.is_none() {
                    feeder.bytes(&content)?;
                }
                let file = entry("file", TreeWhat::File(0, FileMap::default()));
                feeder.event(Event::File(file, Stat::default(), taken.clone()))?;
                feeder.event(Event::Leave(false))?;
            }
            feeder.event(Event::End(0))
        });
        let (_, pages_taken) = told.unwrap().pages;
        assert!(taken.is_none() || pages_taken >= 2 * times as u64, "{pages_taken}");
    };
    let forget = |id: u8| {
        onefold_archive::forget(&desk.archive(), &[SnapshotId([id; 16])], 5).unwrap();
        desk.gc();
    };
    let bytes = || desk.archive().tables().sums().all().bytes;
    let is_right = |counts: &CountsFound| {
        counts.too_low.chunks == 0 && counts.too_high.chunks == 0 && counts.unread.is_none()
    };
    // The first snapshot names the page once.
    for times in [MOST - 2, MOST - 1, MOST + 100] {
        backup(1, 1);
        backup(2, times);
        desk.gc();
        assert!(is_right(&desk.counts()), "{times}");
        assert!(desk.read(2, &format!("{:05}/file", times - 1)).unwrap() == content);
        forget(2);
        assert!(is_right(&desk.counts()), "{times}");
        assert!(desk.read(1, "00000/file").unwrap() == content);
        forget(1);
        if times + 1 >= MOST {
            // The count of the page does not tell that nothing names it, until all is counted
            // anew: it stays, and so does its content. That is told, as it takes space.
            assert!((40_000..100_000).contains(&bytes()), "{times}: {}", bytes());
            let (told, found) = (desk.counts(), desk.recount().unwrap());
            assert!((1..=20).contains(&told.too_high.chunks), "{told:?}");
            assert_eq!((told.too_low.chunks, &told.too_high), (0, &found.too_high));
            desk.gc();
        }
        assert_eq!(bytes(), 0, "{times}");
    }
}

#[test]
fn rule_07_an_error_of_the_disk_ends_a_count_which_goes_on_when_the_disk_is_well() {
    let desk = Desk::new(true);
    let content = noise(1, 3_000_000);
    support::put(&desk.archive(), "stream", &content).unwrap();
    desk.gc();
    // A page that came: without it the chunks of the stream that went would be nobody's.
    desk.backup(1, &[("a-rather-long-name", &content)]).unwrap();
    desk.archive().remove("stream").unwrap();
    desk.collects_nothing_without("a-rather-long-name");
    desk.gc();
    assert!(desk.read(1, "a-rather-long-name").unwrap() == content);
    let are_right = |counts: &CountsFound| {
        let none = Miscounted::default();
        counts.too_high == none && counts.too_low == none && counts.unread.is_none()
    };
    let counts = desk.counts();
    assert!(are_right(&counts) && counts.compared > 100, "{counts:?}");
    // A page that goes: it is not taken for a damaged one, whose children stay counted for good.
    desk.backup(2, &[("b", &content[..1_000_000])]).unwrap();
    desk.gc();
    onefold_archive::forget(&desk.archive(), &[SnapshotId([1; 16])], 5).unwrap();
    desk.collects_nothing_without("a-rather-long-name");
    let bytes = || desk.archive().tables().sums().all().bytes;
    let before = bytes();
    desk.gc();
    assert!(bytes() + 1_500_000 < before, "{} of {before}", bytes());
    let counts = desk.counts();
    assert!(are_right(&counts), "{counts:?}");
    assert!(desk.read(2, "b").unwrap() == content[..1_000_000]);
    assert!(check(&desk.archive(), true, &mut |_, _, _| {}).unwrap().is_well());
}

/// Files that are restored into memory.
#[derive(Default)]
struct InMemory(Mutex<BTreeMap<usize, Vec<u8>>>);

impl RestoreTarget for InMemory {
    fn read(&self, _file: usize, _at: u64, _into: &mut [u8]) -> Result<usize> {
        Ok(0)
    }

    fn stays(&self, _file: usize, _bytes: u64) {}

    fn begin(&self, _file: usize, _is_written: bool) -> Result<()> {
        Ok(())
    }

    fn begun(&self) -> Result<()> {
        Ok(())
    }

    fn write(&self, file: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let mut all = self.0.lock().unwrap();
        let content = all.entry(file).or_default();
        let end = at as usize + bytes.len();
        content.resize(content.len().max(end), 0);
        content[at as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(&self, _file: usize, lost: Option<Error>) -> Result<()> {
        lost.map_or(Ok(()), Err)
    }
}

#[test]
fn rule_19_a_window_of_a_restore_reads_each_group_once() {
    const FILES: usize = 400;
    let desk = Desk::new(true);
    let contents: Vec<Vec<u8>> = (0..FILES).map(|n| noise(n as u64 + 1, 9_000)).collect();
    let name = |n: usize| format!("{n:04}");
    // The first snapshot places them in their order. In the second one, files beside each other lie far
    // from each other, a hundred in each file, and each content in several of them.
    let names: Vec<String> = (0..FILES).map(name).collect();
    let first: Vec<(&str, &[u8])> =
        names.iter().zip(&contents).map(|(name, content)| (&name[..], &content[..])).collect();
    desk.backup(1, &first).unwrap();
    let turned = |n: usize| (n * 7919) % FILES;
    let second: Vec<(&str, &[u8])> =
        (0..FILES).map(|n| (&names[n][..], &contents[turned(n)][..])).collect();
    desk.backup(2, &second).unwrap();

    type Reads = Arc<Mutex<Vec<(String, u64, u64)>>>;
    let reads = Reads::default();
    let watch: Watch = {
        let reads = reads.clone();
        Arc::new(move |file, call, does| {
            if let Call::Read(at, bytes) = call
                && file.starts_with("segment-")
            {
                reads.lock().unwrap().push((file.to_owned(), *at, *bytes));
            }
            does()
        })
    };
    // Bytes of segments that are read to restore the second snapshot in windows of so many files, and how
    // many of them had been read before.
    let restored = |files_in_window: usize| {
        let archive = desk.watched(watch.clone());
        let mut reader = TreeReader::new(&archive).unwrap();
        let tables = reader.tables().clone();
        let snapshot = tables.snapshots.get(SnapshotId([2; 16])).unwrap();
        let of = (&tables, &reader.domain().unwrap());
        let manner = (Verify::Chunks, false);
        let mut window = RestoreWindow::new(&archive, of, manner, usize::MAX, 2);
        let target = InMemory::default();
        let mut all = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let TreeWhat::File(bytes, map) = reader.find(snapshot, name.as_bytes()).unwrap().what
            else {
                panic!("{name} is no file");
            };
            assert_eq!((window.file(0), bytes), (n, 9_000));
            let parts = &mut |_: &mut TreeReader, parts: Vec<_>| {
                parts.into_iter().for_each(|(at, part)| window.part(at, part));
                Ok(())
            };
            reader.map_pages(bytes, &map, parts).unwrap();
            window.end_file();
            if (n + 1) % files_in_window == 0 {
                reads.lock().unwrap().clear();
                window.write(&target).unwrap();
                all.append(&mut reads.lock().unwrap());
            }
        }
        let restored = target.0.into_inner().unwrap();
        assert!(restored.iter().all(|(n, content)| *content == contents[turned(*n)]));
        assert_eq!(restored.len(), FILES);
        let (mut seen, mut again) = (BTreeMap::<&String, Vec<bool>>::new(), 0);
        for (file, at, bytes) in &all {
            let (seen, end) = (seen.entry(file).or_default(), (at + bytes) as usize);
            seen.resize(seen.len().max(end), false);
            seen[*at as usize..end].iter_mut().for_each(|byte| {
                again += u64::from(std::mem::replace(byte, true));
            });
        }
        (all.iter().map(|(_, _, bytes)| bytes).sum::<u64>(), again)
    };
    let bytes = (9_000 * FILES) as u64;
    let (once, again) = restored(FILES);
    assert!(
        again == 0 && (bytes..bytes + bytes / 16).contains(&once),
        "{once} of {bytes}, {again}"
    );
    // Windows of an eighth need nearly all groups each.
    let (often, again) = restored(FILES / 8);
    assert!(often > 4 * bytes && again == often - once, "{often} of {bytes}, {again}");
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
