//! Walks of which a test hears each event, and during which it changes what is walked.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use clap::Parser;
use onefold_archive::{
    Archive, Attributes, Event, FileMap, Format, KeySource, Known, Stat, TreeEntry, TreeSink,
    TreeWhat, allow_data_keys, create_sealed, rotate_data_key,
};
use onefold_backend::{Directory, secrets::SystemRandom};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret};
use tempfile::TempDir;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// A directory with an archive `a` and a directory `tree`.
struct Desk(TempDir);

/// What a walk tells, and what is done at each piece of content (`bytes`) and each event.
struct Heard<'a> {
    events: Vec<String>,
    content: Vec<u8>,
    /// Of each file, whether its time of change says from now on that it is the same.
    settled: Vec<bool>,
    act: &'a mut dyn FnMut(&str),
}

impl Heard<'_> {
    fn count(&self, what: &str) -> usize {
        self.events.iter().filter(|event| event.starts_with(what)).count()
    }
}

impl TreeSink for Heard<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> onefold_core::Result<()> {
        self.content.extend_from_slice(bytes);
        (self.act)("bytes");
        Ok(())
    }

    fn hole(&mut self, _bytes: u64) -> onefold_core::Result<()> {
        Ok(())
    }

    fn event(&mut self, event: &Event) -> onefold_core::Result<()> {
        let shown = match event {
            Event::Enter(entry, ..) => format!("enter {}", entry.name.escape_ascii()),
            Event::Leave(is_in_part) => format!("leave {is_in_part}"),
            Event::File(entry, ..) => format!("file {}", entry.name.escape_ascii()),
            other => format!("{other:?}"),
        };
        if let Event::File(_, stat, _) = event {
            self.settled.push(stat.is_settled);
        }
        (self.act)(&shown);
        self.events.push(shown);
        Ok(())
    }
}

/// Opens the archive that [`Desk::sealed`] makes.
struct ByKey;

impl Opener for ByKey {
    fn root(&self, area: &KeyArea) -> onefold_core::Result<Secret> {
        Ok(area.root(&ByKey::secret(), 0)?.unwrap().1)
    }
    fn refuses_plain(&self) -> bool {
        true
    }
    fn random(&self) -> Arc<dyn Random> {
        Arc::new(SystemRandom)
    }
}

impl ByKey {
    fn secret() -> SlotSecret {
        SlotSecret::Key(Secret::take(&mut [1; 32]))
    }
}

impl Desk {
    fn new() -> Desk {
        Desk::of(tempfile::tempdir().unwrap())
    }

    /// Opens an encrypted archive beside, which is made at first.
    fn sealed(&self) -> Arc<Archive> {
        let at = self.path("sealed");
        if !at.exists() {
            let id = random_bytes().unwrap();
            let mut keys = Keys::create(id, &SystemRandom).unwrap();
            let slot = (SlotKind::File, "");
            keys.add_slot(slot, &ByKey::secret(), Argon::LEAST, (0, 0), &SystemRandom).unwrap();
            let files = Directory::create(&at).unwrap();
            let format = Format::new(id, [0; 32], random_bytes().unwrap()).with_features();
            create_sealed(&files, &format, &mut keys, Arc::new(SystemRandom)).unwrap();
        }
        let opener = KeySource::new(Arc::new(ByKey));
        let settings = Settings { opener, ..Settings::default() };
        let files = Arc::new(Directory::open(&at, true).unwrap());
        Arc::new(Archive::open(files, true, settings).unwrap())
    }

    fn of(desk: TempDir) -> Desk {
        let desk = Desk(desk);
        onefold::create_archive(desk.path("a"), &onefold::ArchiveFormat::default()).unwrap();
        fs::create_dir(desk.path("tree")).unwrap();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Walks `tree` with these options of the command.
    fn walk<'a>(
        &self,
        arguments: &str,
        parents: &[&Snapshot],
        act: &'a mut dyn FnMut(&str),
    ) -> (Counts, Heard<'a>) {
        let directory = archive_at(&self.path("a"), "").unwrap();
        let archive = directory.open_to_read(64 << 20).unwrap();
        self.walk_beside(&archive, arguments, parents, act)
    }

    /// The same with snapshots of this archive as parents.
    fn walk_beside<'a>(
        &self,
        archive: &Arc<Archive>,
        arguments: &str,
        parents: &[&Snapshot],
        act: &'a mut dyn FnMut(&str),
    ) -> (Counts, Heard<'a>) {
        let (store, tree) = (self.path("a"), self.path("tree"));
        let line = [Path::new("backup").as_os_str(), store.as_os_str(), tree.as_os_str()];
        let line = line.into_iter().chain(arguments.split_whitespace().map(AsRef::as_ref));
        let options = Line::parse_from(line).options;
        let directory = archive_at(&options.store, "").unwrap();
        let rules = rules(&options, &directory).unwrap();
        let mut heard = Heard { events: Vec::new(), content: Vec::new(), settled: Vec::new(), act };
        let (gauge, mut counts) = (Gauge::default(), Counts::default());
        backup_elsewhere(archive, parents, &gauge, Some(&mut heard), |feeder| {
            walk((&rules, 0), archive, feeder, &mut counts)
        })
        .unwrap();
        (counts, heard)
    }

    /// A snapshot that has this content of `tree/file`, by what the system tells of the file now.
    fn snapshot(&self, content: &[u8], is_settled: bool) -> Snapshot {
        let archive = archive_at(&self.path("a"), "").unwrap();
        self.snapshot_in(&archive.open(Settings::default()).unwrap(), content, is_settled)
    }

    /// The same in this archive.
    fn snapshot_in(&self, archive: &Arc<Archive>, content: &[u8], is_settled: bool) -> Snapshot {
        let request = BackupRequest {
            id: SnapshotId(random_bytes().unwrap()),
            set: "t".into(),
            machine: [1; 16],
            ..BackupRequest::default()
        };
        let made = onefold_archive::backup(archive, &request, true, &Gauge::default(), |feeder| {
            let file = self.path("tree/file");
            let above: Vec<_> = file.parent().unwrap().iter().collect();
            for part in &above {
                let name = if *part == "/" { b"" } else { part.as_encoded_bytes() };
                let directory = entry(name, TreeWhat::Directory(None), &file);
                feeder.event(Event::Enter(directory, Stat::default(), Known::new()))?;
            }
            let (one, other) = content.split_at(content.len() / 3);
            feeder.bytes(one)?;
            // A chunk ends here, which is none of the places where the file is cut.
            feeder.hole(0)?;
            feeder.bytes(other)?;
            let told = fs::metadata(&file).unwrap();
            let stat = Stat {
                inode: told.ino(),
                changed_seconds: told.ctime(),
                changed_nanoseconds: told.ctime_nsec() as u32,
                is_settled,
                pages: None,
            };
            let what = TreeWhat::File(0, FileMap::default());
            feeder.event(Event::File(entry(b"file", what, &file), stat, None))?;
            for _ in 1..above.len() {
                feeder.event(Event::Leave(false))?;
            }
            feeder.event(Event::End(0))
        });
        made.unwrap().snapshot
    }
}

fn entry(name: &[u8], what: TreeWhat, of: &Path) -> TreeEntry {
    let told = fs::metadata(of).unwrap();
    TreeEntry {
        name: name.to_vec(),
        what,
        mode: told.mode() & 0o7777,
        uid: told.uid(),
        gid: told.gid(),
        seconds: told.mtime(),
        nanoseconds: told.mtime_nsec() as u32,
        link: 0,
        is_in_part: false,
        attributes: Attributes::default(),
    }
}

/// Bytes that look random.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// Moves the time of a file's last change, which has steps of some milliseconds.
fn touch(path: &Path) {
    std::thread::sleep(Duration::from_millis(20));
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn rule_15_a_file_that_changes_while_it_is_read_is_read_twice_more_and_then_noted() {
    let desk = Desk::new();
    let file = desk.path("tree/file");
    fs::write(&file, noise(100_000)).unwrap();
    let at_each = &mut |event: &str| {
        if event == "bytes" {
            touch(&file);
        }
    };
    let (counts, heard) = desk.walk("", &[], at_each);
    assert_eq!((counts.restless, counts.read, counts.left_out), (1, 1, 0));
    assert_eq!((heard.count("Discard"), heard.count("file")), (2, 1), "{:?}", heard.events);
    assert_eq!((heard.count("leave true"), heard.count("End(0)")), (0, 1));
    assert!(heard.content.windows(12).any(|part| part == b"it changed e"), "it is noted");

    // It stays as it is from the second time on.
    let mut changes = 0;
    let once = &mut |event: &str| {
        if event == "bytes" && changes == 0 {
            changes += 1;
            touch(&file);
        }
    };
    let (counts, heard) = desk.walk("", &[], once);
    assert_eq!((counts.restless, counts.read, heard.count("Discard")), (0, 1, 1));
}

#[test]
fn rule_15_what_vanishes_during_a_walk_is_counted_and_not_left_out() {
    let desk = Desk::new();
    for name in ["a", "b", "c"] {
        fs::write(desk.path("tree").join(name), name).unwrap();
    }
    fs::create_dir(desk.path("tree/d")).unwrap();
    let remove = &mut |event: &str| {
        if event == "file a" {
            fs::remove_file(desk.path("tree/b")).unwrap();
            fs::remove_dir(desk.path("tree/d")).unwrap();
        }
    };
    let (counts, heard) = desk.walk("", &[], remove);
    assert_eq!((counts.vanished, counts.left_out, counts.read), (2, 0, 2));
    let (files, directory) = (heard.count("file "), heard.count("enter d"));
    assert_eq!((files, directory, heard.count("leave true"), heard.count("End(0)")), (2, 0, 0, 1));
}

#[test]
fn rule_10_a_file_whose_time_was_fresh_when_it_was_read_is_read_again() {
    let desk = Desk::new();
    let file = desk.path("tree/file");
    fs::write(&file, noise(1000)).unwrap();
    let opened = fs::File::open(&file).unwrap();
    let device = rustix::fs::fstat(&opened).unwrap().st_dev;
    if settled::Settled::default().ask(device, &opened).is_none() {
        println!("NOT TESTED: times of this file system say nothing");
        return;
    }
    let read = |parent: &Snapshot| {
        let mut nothing = |_: &str| {};
        let (counts, heard) = desk.walk("--reread 0", &[parent], &mut nothing);
        // It is as fresh now, and the next backup must not trust it either.
        assert!(!heard.settled.contains(&true), "{:?}", heard.settled);
        (counts.read, counts.unchanged)
    };
    assert_eq!(read(&desk.snapshot(&noise(1000), false)), (1, 0));
    let parent = desk.snapshot(&noise(1000), true);
    let (counts, _) = desk.walk("--reread 0", &[&parent], &mut |_| {});
    assert_eq!((counts.read, counts.unchanged), (0, 1));
}

#[test]
fn rule_24_a_file_that_changes_during_each_reading_is_not_settled_by_the_one_that_compared() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        println!("NOT TESTED: there is no /dev/shm");
        return;
    };
    // There the time of the content alone says that a file is the same, and a test sets it.
    let desk = Desk::of(memory);
    let options = "--read-all --match mtime,size";
    let (file, content) = (desk.path("tree/file"), noise(300_000));
    let written = |seconds: u64| {
        let at = UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds);
        fs::File::options().write(true).open(&file).unwrap().set_modified(at).unwrap();
    };
    fs::write(&file, &content).unwrap();
    written(0);
    assert!(allow_data_keys(&desk.sealed()).unwrap());
    let same = desk.snapshot_in(&desk.sealed(), &content, true);
    let mut other = content.clone();
    other[250_000] ^= 1;
    let other = desk.snapshot_in(&desk.sealed(), &other, true);
    rotate_data_key(&desk.sealed(), 0).unwrap();
    // It is compared only, and settled.
    let (mut nothing, mut nothing_else) = (|_: &str| {}, |_: &str| {});
    let (counts, heard) = desk.walk_beside(&desk.sealed(), options, &[&same], &mut nothing);
    let told = (counts.read, counts.restless, heard.count("bytes"), heard.content.len());
    assert_eq!((told, &heard.settled[..]), ((1, 0, 0, 0), &[true][..]));
    // It differs, and is read again, also as often as it changes meanwhile.
    let (counts, heard) = desk.walk_beside(&desk.sealed(), options, &[&other], &mut nothing_else);
    assert_eq!((counts.read, counts.silent, &heard.settled[..]), (1, 1, &[true][..]));
    let mut seconds = 0;
    let at_each = &mut |event: &str| {
        if event == "bytes" {
            seconds += 1;
            written(seconds);
        }
    };
    let (counts, heard) = desk.walk_beside(&desk.sealed(), options, &[&other], at_each);
    assert_eq!((counts.restless, heard.count("Discard")), (1, 2), "{:?}", heard.events);
    assert!(!heard.settled.contains(&true), "{:?}", heard.settled);
}

#[test]
fn rule_11_other_bytes_under_the_same_stat_are_told() {
    let desk = Desk::new();
    let file = desk.path("tree/file");
    let content = noise(700_000);
    fs::write(&file, &content).unwrap();
    let opened = fs::File::open(&file).unwrap();
    let device = rustix::fs::fstat(&opened).unwrap().st_dev;
    if settled::Settled::default().ask(device, &opened).is_none() {
        println!("NOT TESTED: times of this file system say nothing");
        return;
    }
    let silent = |arguments: &str, parent: &Snapshot| {
        let mut nothing = |_: &str| {};
        let (counts, heard) = desk.walk(arguments, &[parent], &mut nothing);
        assert_eq!((counts.left_out, heard.count("leave true")), (0, 0));
        let noted = heard.content.windows(11).any(|part| part == b"its content");
        assert_eq!(noted, counts.silent > 0, "it is in the list of the snapshot");
        (counts.read, counts.silent)
    };
    let same = desk.snapshot(&content, true);
    assert_eq!(silent("--reread 0", &same), (0, 0));
    // It is cut elsewhere by now, which is no other content.
    assert_eq!(silent("--reread 1", &same), (1, 0));
    let mut rotten = content.clone();
    rotten[650_000] ^= 1;
    let rotten = desk.snapshot(&rotten, true);
    assert_eq!(silent("--reread 0", &rotten), (0, 0));
    assert_eq!(silent("--reread 1", &rotten), (1, 1));
    assert_eq!(silent("--read-all", &rotten), (1, 1));
    // A time that may not have moved says nothing, and another length says it all.
    let (mut other, mut longer) = (content.clone(), content.clone());
    (other[0], longer[0]) = (!other[0], !longer[0]);
    longer.push(0);
    assert_eq!(silent("--read-all", &desk.snapshot(&other, false)), (1, 0));
    assert_eq!(silent("--read-all", &desk.snapshot(&longer, true)), (1, 0));

    // Zeroes that became a hole are the same zeroes, and data that became one is not.
    let mut holes = noise(2 << 20);
    holes[300_000..1_800_000].fill(0);
    let sparse = fs::File::create(&file).unwrap();
    sparse.set_len(2 << 20).unwrap();
    sparse.write_all_at(&holes[..300_000], 0).unwrap();
    sparse.write_all_at(&holes[1_800_000..], 1_800_000).unwrap();
    drop(sparse);
    assert_eq!(silent("--read-all", &desk.snapshot(&holes, true)), (1, 0));
    holes[1_000_000] = 1;
    assert_eq!(silent("--read-all", &desk.snapshot(&holes, true)), (1, 1));
}

#[test]
fn rule_08_another_machine_of_the_same_name_is_told() {
    let desk = Desk::new();
    fs::write(desk.path("tree/file"), "x").unwrap();
    let last = desk.snapshot(b"x", true);
    let told = of_another_machine(&last, [2; 16]).unwrap();
    assert!(told.contains("another machine") && told.contains(&"01".repeat(16)), "{told}");
    assert_eq!(of_another_machine(&last, [1; 16]), None);
    // A machine without an id says nothing.
    assert_eq!(of_another_machine(&last, [0; 16]), None);
    assert_eq!(of_another_machine(&Snapshot { machine: [0; 16], ..last }, [2; 16]), None);
}
