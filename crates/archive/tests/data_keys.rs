//! A domain gets another data key: what is new shares nothing with what was there, all of it stays readable, and
//! when what is under the older key was written again, that key opens nothing any more.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, BackupReport, BackupRequest, Collected, Collection, Compression, Cutting, Ended,
    Event, FileMap, Format, Gauge, Ingest, KeySource, Place, PutReport, PutRequest, Reader,
    Session, Settings, Shape, SnapshotId, Stat, StreamWriter, Tables, TreeWhat, Writing,
    allow_data_keys, allow_domains, backup, check, create_domain, create_sealed, data_keys,
    domain_has_older, erase_domain, forget, is_under_older, rotate_data_key, undelete,
};
use onefold_backend::Directory;
use onefold_core::{Error, Files, Kind, Result};
use onefold_seal::{AREA_BYTES, Argon, KeyArea, Keys, SlotKind};
use support::{
    By, Call, Counter, Watch, Watched, get, noise, options, put, restored, secret, store,
};

struct Desk(tempfile::TempDir);

impl Desk {
    /// A sealed archive whose data keys can't be changed before an upgrade.
    fn plain() -> Desk {
        let desk = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let format = Format {
            reserve_bytes: 4096,
            segment_bytes: 16 << 20,
            compression: Compression::None,
            ..Format::new([7; 16], [8; 32], [9; 16]).with_features()
        };
        let random = Arc::new(Counter(AtomicU64::new(1 << 32)));
        let mut keys = Keys::create(format.id, &*random).unwrap();
        keys.add_slot((SlotKind::File, ""), &secret(1), Argon::LEAST, (0, 0), &*random).unwrap();
        let files = Directory::create(&desk.at()).unwrap();
        create_sealed(&files, &format, &mut keys, random).unwrap();
        desk
    }

    fn new() -> Desk {
        let desk = Desk::plain();
        assert!(allow_data_keys(&desk.open()).unwrap());
        desk
    }

    fn at(&self) -> PathBuf {
        self.0.path().join("a")
    }

    fn open_over(&self, files: Arc<dyn Files>, by: By, writes: bool) -> Result<Arc<Archive>> {
        let settings = Settings {
            log_ahead_bytes: 4096,
            ahead_bytes: 1 << 20,
            container_bytes: 256 << 10,
            list_bytes: 1 << 20,
            sync_bytes: 1 << 20,
            opener: KeySource::new(Arc::new(by)),
            ..Settings::default()
        };
        Archive::open(files, writes, settings).map(Arc::new)
    }

    fn open_by(&self, by: By, writes: bool) -> Result<Arc<Archive>> {
        self.open_over(Arc::new(Directory::open(&self.at(), writes).unwrap()), by, writes)
    }

    fn open(&self) -> Arc<Archive> {
        self.open_by(By(1, false), true).unwrap()
    }

    fn keys(&self) -> Vec<u8> {
        fs::read(self.at().join("keys")).unwrap()
    }

    /// Collects, and writes again what is under older data keys.
    fn reseal(&self) -> Collected {
        self.reseal_at(2_000_000)
    }

    fn reseal_at(&self, now: u64) -> Collected {
        let mut collection = Collection::begin(&self.open(), options(now)).unwrap();
        collection.reseal(None);
        collection.run(&mut |_| {}).unwrap()
    }

    /// The first container: the file of its segment, and its place there.
    fn first_container(&self) -> (fs::File, Place) {
        let tables = self.open().tables();
        let place = tables.containers.iter().next().unwrap().unwrap().stored.place;
        let segment = self.at().join(format!("segment-{:08}", place.segment));
        (fs::File::options().read(true).write(true).open(segment).unwrap(), place)
    }

    /// The keys in each copy of the key area.
    fn both(&self) -> Vec<Keys> {
        self.keys().chunks(AREA_BYTES).map(opened).collect()
    }
}

/// The keys of a copy of the key area.
fn opened(copy: &[u8]) -> Keys {
    let area = KeyArea::decode(copy).unwrap();
    let (_, root) = area.root(&secret(1), 0).unwrap().unwrap();
    area.keys(&root).unwrap().unwrap()
}

fn put_in(archive: &Arc<Archive>, domain: u32, name: &str, bytes: &[u8]) -> Result<PutReport> {
    let (name, domain) = (name.into(), Some(domain));
    let request = PutRequest { name, shape: Shape::Bytes, domain, now: 1_000, wait: false };
    onefold_archive::put(archive, request, &Gauge::default(), |feeder| feeder.bytes(bytes))
}

fn is_well(archive: &Arc<Archive>) {
    let report = check(archive, true, &mut |_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Containers under the older data key of any domain.
fn under_older(tables: &Tables) -> usize {
    tables.containers.iter().filter(|one| is_under_older(tables, one.as_ref().unwrap())).count()
}

#[test]
fn rule_24_all_that_is_new_is_under_the_new_data_key_and_shares_nothing() {
    let desk = Desk::new();
    let archive = desk.open();
    let content = noise(5, 1_500_000);
    put(&archive, "before", &content).unwrap();
    assert_eq!(put(&archive, "again", &content).unwrap().new_bytes, 0);
    assert_eq!(rotate_data_key(&archive, 0).unwrap(), 1);
    // In the process that changed it, and in another one.
    for archive in [archive, desk.open()] {
        let name = format!("after-{}", archive.refresh().unwrap().streams.len());
        let expected = if name == "after-2" { 1_500_000 } else { 0 };
        assert_eq!(put(&archive, &name, &content).unwrap().new_bytes, expected, "{name}");
        assert_eq!(get(&archive, "before").unwrap(), content);
        assert_eq!(get(&archive, &name).unwrap(), content);
        is_well(&archive);
    }
    let tables = desk.open().tables();
    let listed = data_keys(&tables).unwrap();
    assert_eq!((listed.len(), listed[0].generation, listed[0].has_older), (1, 1, true));
    assert_eq!(listed[0].containers as usize, under_older(&tables));
    assert!(listed[0].bytes >= 1_500_000);
}

#[test]
fn rule_24_streams_are_cut_elsewhere_under_the_new_data_key() {
    let desk = Desk::new();
    // Two cuts of one stream may come to the same number of chunks; those of twelve do not.
    let chunks = |generation: u32| -> Vec<u64> {
        let chunks_of = |seed: u64| {
            let name = format!("{seed} under {generation}");
            put(&desk.open(), &name, &noise(seed, 300_000)).unwrap();
            desk.open().tables().streams.get(&name).unwrap().chunks
        };
        (20..32).map(chunks_of).collect()
    };
    let before = chunks(0);
    rotate_data_key(&desk.open(), 0).unwrap();
    assert_ne!(before, chunks(1));
}

#[test]
fn rule_24_what_is_left_is_written_again_and_then_the_older_key_goes_from_both_copies() {
    let desk = Desk::new();
    let content = noise(5, 1_500_000);
    put(&desk.open(), "before", &content).unwrap();
    store(&desk.open(), "set", 1, &content[..400_000]).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let older = desk.keys();
    put(&desk.open(), "after", &content).unwrap();
    assert!(desk.both().iter().all(|keys| keys.older(0).is_some()));
    let done = desk.reseal();
    assert!(done.resealed > 0 && done.resealed_chunks > 0 && done.keys_erased == 1, "{done:?}");
    assert!(
        desk.both().iter().all(|keys| keys.older(0).is_none() && keys.generation(0) == Some(1))
    );
    let archive = desk.open();
    assert_eq!(under_older(&archive.tables()), 0);
    for name in ["before", "after"] {
        assert_eq!(get(&archive, name).unwrap(), content, "{name}");
    }
    assert_eq!(restored(&archive, 1).unwrap(), content[..400_000]);
    is_well(&archive);
    // Chunks that came since the change are found again: the chunk index was made anew.
    assert_eq!(put(&archive, "again", &content).unwrap().new_bytes, 0);
    // A second change goes the same way, and fingerprints of both older keys are still proven.
    assert_eq!(rotate_data_key(&archive, 0).unwrap(), 2);
    assert_eq!(desk.reseal().keys_erased, 1);
    let archive = desk.open();
    is_well(&archive);
    assert_eq!(get(&archive, "before").unwrap(), content);
    assert_eq!(get(&archive, "again").unwrap(), content);
    assert_eq!(restored(&archive, 1).unwrap(), content[..400_000]);
    // The older keys come back by nobody's word.
    drop(archive);
    fs::write(desk.at().join("keys"), &older).unwrap();
    let refused = desk.open_by(By(1, false), false).err().unwrap();
    assert_eq!(refused.kind(), Kind::Denied, "{refused}");
    let accepted = desk.open_by(By(1, true), false).unwrap();
    for name in ["before", "after", "again"] {
        assert!(get(&accepted, name).is_err(), "{name} opens by an older key");
    }
}

#[test]
fn rule_24_no_container_on_the_medium_opens_by_the_older_key_in_the_end() {
    let desk = Desk::new();
    put(&desk.open(), "before", &noise(5, 900_000)).unwrap();
    let headers = |desk: &Desk| -> Vec<u32> {
        let mut found = Vec::new();
        for entry in fs::read_dir(desk.at()).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with("segment-") {
                for block in fs::read(&path).unwrap().chunks(4096) {
                    if block.starts_with(b"ONEFCONT") {
                        found.push(u32::from_le_bytes(block[108..112].try_into().unwrap()));
                    }
                }
            }
        }
        found
    };
    assert!(headers(&desk).iter().all(|generation| *generation == 0));
    rotate_data_key(&desk.open(), 0).unwrap();
    put(&desk.open(), "after", &noise(6, 900_000)).unwrap();
    assert!(headers(&desk).contains(&0) && headers(&desk).contains(&1));
    assert_eq!(desk.reseal().keys_erased, 1);
    let found = headers(&desk);
    assert!(!found.is_empty() && found.iter().all(|generation| *generation == 1), "{found:?}");
}

#[test]
fn rule_24_a_reseal_that_was_cut_off_is_gone_on_with_by_the_next_one() {
    let desk = Desk::new();
    let content = noise(5, 3_000_000);
    put(&desk.open(), "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let mut left = under_older(&desk.open().tables());
    assert!(left > 8);
    let mut rounds = 0;
    while left > 0 {
        let mut collection = Collection::begin(&desk.open(), options(2_000_000)).unwrap();
        collection.reseal(None);
        while collection.done.resealed < 3 && collection.step().unwrap() {}
        if rounds % 2 == 1 {
            // A budget ended; else the process was killed.
            collection.cut_short();
            while collection.step().unwrap() {}
            assert!(collection.done.cut_short);
        }
        drop(collection);
        let now = under_older(&desk.open().tables());
        assert!(now < left, "{now} of {left}");
        if now > 0 {
            assert!(desk.both().iter().all(|keys| keys.older(0).is_some()));
        }
        assert_eq!(get(&desk.open(), "before").unwrap(), content);
        (left, rounds) = (now, rounds + 1);
    }
    desk.reseal();
    assert!(desk.both().iter().all(|keys| keys.older(0).is_none()));
    assert_eq!(get(&desk.open(), "before").unwrap(), content);
    is_well(&desk.open());
}

#[test]
fn rule_24_what_is_in_the_trash_is_written_again_too() {
    let desk = Desk::new();
    let content = noise(5, 700_000);
    let archive = desk.open();
    store(&archive, "set", 1, &content).unwrap();
    store(&archive, "set", 2, &content[..100_000]).unwrap();
    forget(&archive, &[SnapshotId([1; 16])], 1_000).unwrap();
    rotate_data_key(&archive, 0).unwrap();
    drop(archive);
    let mut kept = options(2_000_000);
    kept.trash = 1 << 40;
    let mut collection = Collection::begin(&desk.open(), kept).unwrap();
    collection.reseal(None);
    assert_eq!(collection.run(&mut |_| {}).unwrap().keys_erased, 1);
    let archive = desk.open();
    undelete(&archive, &[SnapshotId([1; 16])]).unwrap();
    assert_eq!(restored(&archive, 1).unwrap(), content);
    is_well(&archive);
}

#[test]
fn rule_24_the_older_key_stays_for_who_reads_and_began_before() {
    let desk = Desk::new();
    let content = noise(5, 900_000);
    put(&desk.open(), "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let reading = desk.open_by(By(1, false), false).unwrap();
    let mut reader = Reader::new(&reading).unwrap();
    let done = desk.reseal();
    assert!(done.resealed > 0 && done.keys_erased == 0 && done.held_back > 0, "{done:?}");
    assert!(desk.both().iter().all(|keys| keys.older(0).is_some()));
    let stream = reader.stream("before").unwrap();
    let mut bytes = 0;
    let mut count = |part: onefold_archive::Content<'_>| {
        if let onefold_archive::Content::Bytes(part) = part {
            bytes += part.len();
        }
        Ok(())
    };
    reader.read(&stream.recipe, onefold_archive::Verify::Chunks, &mut count).unwrap();
    assert_eq!(bytes, 900_000);
    drop((reader, reading));
    assert_eq!(desk.reseal().keys_erased, 1);
    assert_eq!(get(&desk.open(), "before").unwrap(), content);
}

#[test]
fn rule_24_what_a_killed_put_left_under_the_older_key_is_not_kept_for_a_repeated_one() {
    let desk = Desk::new();
    put(&desk.open(), "other", &noise(7, 300_000)).unwrap();
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, false).unwrap();
    let mut session = Session::in_domain(&ingest, 0).unwrap();
    let mut writer = StreamWriter::new(&session, 1_999_999);
    let (mut cutting, mut writing) = (Cutting::new(&**session.domain()), Writing::default());
    for part in noise(5, 12_000_000).chunks(50_000) {
        cutting.room()[..part.len()].copy_from_slice(part);
        let full = cutting.advance(part.len());
        for mut batch in full.into_iter().chain([cutting.some()]) {
            batch.fingerprint(session.domain());
            let mut sink = |open| writer.pack_and_write(open);
            session.add(&batch, &mut writing, &mut sink).unwrap();
        }
    }
    // Killed: nothing is said in the log any more.
    drop((writer, session, ingest, archive));
    assert!(!desk.open().tables().unfinished.is_empty());
    rotate_data_key(&desk.open(), 0).unwrap();
    let mut spares = options(2_000_000);
    spares.keep_partial = 1 << 30;
    for _ in 0..2 {
        let mut collection = Collection::begin(&desk.open(), spares).unwrap();
        collection.reseal(None);
        collection.run(&mut |_| {}).unwrap();
    }
    assert!(desk.both().iter().all(|keys| keys.older(0).is_none()));
    is_well(&desk.open());
}

#[test]
fn rule_24_a_data_key_is_changed_while_nobody_stores_or_collects_and_not_twice() {
    let desk = Desk::new();
    let archive = desk.open();
    put(&archive, "before", &noise(5, 300_000)).unwrap();
    let other = desk.open();
    let ingest = Ingest::begin(&other, false, false).unwrap();
    let session = Session::in_domain(&ingest, 0).unwrap();
    let refused = rotate_data_key(&archive, 0).unwrap_err();
    assert!(refused.kind() == Kind::Busy && refused.to_string().contains("a put"), "{refused}");
    drop((session, ingest, other));
    let collection = Collection::begin(&desk.open(), options(1_000_000)).unwrap();
    assert_eq!(rotate_data_key(&archive, 0).unwrap_err().kind(), Kind::Busy);
    drop(collection);
    assert!(archive.refresh().unwrap().data_keys.all().next().is_none());
    rotate_data_key(&archive, 0).unwrap();
    let refused = rotate_data_key(&archive, 0).unwrap_err();
    assert!(
        refused.kind() == Kind::InvalidInput && refused.to_string().contains("gc --reseal"),
        "{refused}"
    );
    assert_eq!(rotate_data_key(&archive, 3).unwrap_err().kind(), Kind::Denied);
}

#[test]
fn rule_24_an_archive_of_before_is_upgraded_and_says_nothing_of_it_earlier() {
    let desk = Desk::plain();
    let archive = desk.open();
    put(&archive, "before", &noise(5, 300_000)).unwrap();
    let refused = rotate_data_key(&archive, 0).unwrap_err();
    assert_eq!(refused.kind(), Kind::InvalidInput);
    assert!(!archive.label().data_keys);
    assert!(allow_data_keys(&archive).unwrap());
    drop(archive);
    let archive = desk.open();
    assert!(archive.label().data_keys && !allow_data_keys(&archive).unwrap());
    // An older program finds a bit that it needs to know.
    let label = fs::read(desk.at().join("label")).unwrap();
    assert_eq!(label[137] & 3, 2);
    // Archives without keys have none to change.
    let plain = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = plain.path().join("p");
    let files = Directory::create(&at).unwrap();
    Archive::create(&files, &Format::new([1; 16], [2; 32], [3; 16])).unwrap();
    let files = Arc::new(Directory::open(&at, true).unwrap());
    let open = Archive::open(files, true, Settings::default()).unwrap();
    assert_eq!(allow_data_keys(&open).unwrap_err().kind(), Kind::InvalidInput);
}

#[test]
fn rule_24_each_domain_has_data_keys_of_its_own() {
    let desk = Desk::plain();
    assert!(allow_domains(&desk.open()).unwrap());
    assert!(allow_data_keys(&desk.open()).unwrap());
    let archive = desk.open();
    let (one, other) =
        (create_domain(&archive, "one").unwrap(), create_domain(&archive, "other").unwrap());
    let content = noise(5, 600_000);
    for (domain, name) in [(0, "a"), (one, "b"), (other, "c")] {
        put_in(&archive, domain, name, &content).unwrap();
    }
    rotate_data_key(&archive, one).unwrap();
    rotate_data_key(&archive, other).unwrap();
    for (domain, name, new) in [(0, "aa", 0), (one, "bb", 600_000), (other, "cc", 600_000)] {
        assert_eq!(put_in(&archive, domain, name, &content).unwrap().new_bytes, new, "{name}");
    }
    // One of them goes with both keys.
    erase_domain(&archive, other).unwrap();
    drop(archive);
    let done = desk.reseal();
    assert_eq!(done.keys_erased, 1, "{done:?}");
    for keys in desk.both() {
        assert!(keys.older(one).is_none() && keys.domain(other).is_none());
        assert_eq!((keys.generation(0), keys.generation(one)), (Some(0), Some(1)));
    }
    let archive = desk.open();
    for name in ["a", "aa", "b", "bb"] {
        assert_eq!(get(&archive, name).unwrap(), content, "{name}");
    }
    assert!(get(&archive, "c").is_err() && get(&archive, "cc").is_err());
    is_well(&archive);
}

#[test]
fn rule_24_a_process_that_was_open_before_goes_on_with_the_new_key() {
    let desk = Desk::new();
    let (idle, reading) = (desk.open(), desk.open_by(By(1, false), false).unwrap());
    let content = noise(5, 500_000);
    put(&idle, "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    assert_eq!(put(&idle, "after", &content).unwrap().new_bytes, 500_000);
    assert_eq!(get(&reading, "after").unwrap(), content);
    assert_eq!(get(&reading, "before").unwrap(), content);
    assert_eq!(desk.reseal().keys_erased, 1);
    assert_eq!(get(&reading, "before").unwrap(), content);
    assert_eq!(put(&idle, "again", &content).unwrap().new_bytes, 0);
    is_well(&idle);
}

/// Files of which each change fails once so many were made: the process was killed.
fn dies_after(desk: &Desk, changes: u64) -> (Arc<dyn Files>, Arc<AtomicU64>) {
    let made = Arc::new(AtomicU64::new(u64::MAX));
    let counted = made.clone();
    let watch: Watch =
        Arc::new(move |_: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            if matches!(call, Call::Change) && counted.load(Relaxed) != u64::MAX {
                if counted.load(Relaxed) >= changes {
                    return Err(Error::new(Kind::Stopped, "the process was killed"));
                }
                counted.fetch_add(1, Relaxed);
            }
            does()
        });
    let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
    (Arc::new(Watched { files, watch }), made)
}

/// Does something to a copy of a desk by a process that is killed after each of its changes, and gives each copy
/// to `looks`.
fn killed_everywhere(
    make: impl Fn() -> Desk,
    does: impl Fn(&Arc<Archive>) -> Result<()>,
    looks: impl Fn(&Desk, bool, u64),
) {
    for changes in 0.. {
        let desk = make();
        let (files, made) = dies_after(&desk, changes);
        let archive = desk.open_over(files, By(1, false), true).unwrap();
        made.store(0, Relaxed);
        let done = does(&archive);
        drop(archive);
        looks(&desk, done.is_ok(), changes);
        if done.is_ok() {
            assert!(changes > 4, "{changes} changes");
            break;
        }
    }
}

#[test]
fn rule_24_a_change_that_was_cut_off_anywhere_is_ended_by_whoever_opens_it_to_write() {
    let content = noise(5, 300_000);
    let make = || {
        let desk = Desk::new();
        put(&desk.open(), "before", &content).unwrap();
        desk
    };
    killed_everywhere(
        make,
        |archive| rotate_data_key(archive, 0).map(drop),
        |desk, is_done, at| {
            // Who only reads goes on.
            let reading = desk.open_by(By(1, false), false).unwrap();
            assert_eq!(get(&reading, "before").unwrap(), content, "after {at} changes");
            drop(reading);
            let archive = desk.open();
            let tables = archive.tables();
            let is_changed = domain_has_older(&tables, 0);
            assert!(is_changed || !is_done, "after {at} changes");
            for keys in desk.both() {
                assert_eq!(keys.older(0).is_some(), is_changed, "after {at} changes");
            }
            let new = put(&archive, "after", &content).unwrap().new_bytes;
            assert_eq!(new > 0, is_changed, "after {at} changes");
            assert_eq!(get(&archive, "before").unwrap(), content);
            assert_eq!(get(&archive, "after").unwrap(), content);
            is_well(&archive);
            drop(archive);
            // What stays of the older key is said, too.
            assert_eq!(desk.reseal().keys_erased > 0, is_changed, "after {at} changes");
            assert_eq!(get(&desk.open(), "before").unwrap(), content, "after {at} changes");
            is_well(&desk.open());
        },
    );
}

#[test]
fn rule_24_the_older_key_goes_only_when_the_log_has_its_kept_keys() {
    let content = noise(5, 300_000);
    for (changes, stores) in (0..).flat_map(|changes| [(changes, true), (changes, false)]) {
        let desk = Desk::new();
        if stores {
            put(&desk.open(), "before", &content).unwrap();
        }
        // This process does not open the archive again when the other one was killed.
        let other = desk.open();
        let (files, made) = dies_after(&desk, changes);
        let archive = desk.open_over(files, By(1, false), true).unwrap();
        made.store(0, Relaxed);
        let is_done = rotate_data_key(&archive, 0).is_ok();
        drop(archive);
        let mut collection = Collection::begin(&other, options(2_000_000)).unwrap();
        collection.reseal(None);
        match collection.run(&mut |_| {}) {
            Ok(done) => assert!(done.keys_erased == 1 || !is_done, "after {changes} changes"),
            Err(error) => {
                let is_advised = error.to_string().contains("beginning again ends it");
                assert!(!is_done && error.kind() == Kind::Stopped, "{error} after {changes}");
                assert!(is_advised, "{error} after {changes}");
            }
        }
        drop(other);
        // Beginning again ends it.
        let again = desk.open();
        if stores {
            assert_eq!(get(&again, "before").unwrap(), content, "after {changes} changes");
        }
        is_well(&again);
        put(&again, "more", &content).unwrap();
        drop(again);
        if is_done && !stores {
            break;
        }
    }
}

#[test]
fn rule_24_a_change_of_a_domain_that_is_erased_meanwhile_is_told_as_such() {
    let desk = Desk::plain();
    assert!(allow_domains(&desk.open()).unwrap());
    assert!(allow_data_keys(&desk.open()).unwrap());
    let number = create_domain(&desk.open(), "customer").unwrap();
    put_in(&desk.open(), number, "of it", &noise(5, 300_000)).unwrap();
    let other = desk.open();
    // When the frame of the change is durable, and before the key area is changed.
    let step = Arc::new(AtomicU64::new(u64::MAX));
    let at = step.clone();
    let watch: Watch =
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            match (at.load(Relaxed), call) {
                (0, Call::Change) if name.starts_with("log-") => at.store(1, Relaxed),
                (1, Call::Lock) if name == "lock-commit" => {
                    at.store(2, Relaxed);
                    erase_domain(&other, number)?;
                }
                _ => {}
            }
            does()
        });
    let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
    let archive = desk.open_over(Arc::new(Watched { files, watch }), By(1, false), true).unwrap();
    step.store(0, Relaxed);
    let refused = rotate_data_key(&archive, number).unwrap_err();
    assert_eq!(step.load(Relaxed), 2);
    assert!(refused.kind() == Kind::Denied && refused.to_string().contains("erased"), "{refused}");
    drop(archive);
    is_well(&desk.open());
}

#[test]
fn rule_26_nothing_of_an_erased_domains_older_keys_is_in_the_log() {
    let desk = Desk::plain();
    assert!(allow_domains(&desk.open()).unwrap());
    assert!(allow_data_keys(&desk.open()).unwrap());
    let number = create_domain(&desk.open(), "customer").unwrap();
    for generation in 1..=2 {
        put_in(&desk.open(), number, &format!("{generation}"), &noise(generation, 100_000))
            .unwrap();
        for domain in [0, number] {
            assert_eq!(u64::from(rotate_data_key(&desk.open(), domain).unwrap()), generation);
        }
        if generation == 1 {
            assert_eq!(desk.reseal().keys_erased, 2);
        }
    }
    let of = |domain| {
        let tables = desk.open().tables();
        tables.data_keys.all().filter(|(rotation, _)| rotation.domain == domain).count()
    };
    assert_eq!((of(0), of(number)), (2, 2));
    erase_domain(&desk.open(), number).unwrap();
    assert_eq!((of(0), of(number)), (2, 0));
    // It is collected, and the first domain goes on.
    assert_eq!(desk.reseal().keys_erased, 1);
    assert_eq!((of(0), of(number)), (2, 0));
    is_well(&desk.open());
    let refused = rotate_data_key(&desk.open(), number).unwrap_err();
    assert_eq!(refused.kind(), Kind::Denied, "{refused}");
}

#[test]
fn rule_24_an_erasure_of_the_older_key_that_was_cut_off_is_ended_by_whoever_opens_it_to_write() {
    let content = noise(5, 300_000);
    let make = || {
        let desk = Desk::new();
        put(&desk.open(), "before", &content).unwrap();
        rotate_data_key(&desk.open(), 0).unwrap();
        desk
    };
    killed_everywhere(
        make,
        |archive| {
            let mut collection = Collection::begin(archive, options(2_000_000))?;
            collection.reseal(None);
            let done = collection.run(&mut |_| {})?;
            assert_eq!(done.keys_erased, 1);
            Ok(())
        },
        |desk, is_done, at| {
            let archive = desk.open();
            let has_older = domain_has_older(&archive.tables(), 0);
            assert!(!(has_older && is_done), "after {at} changes");
            for keys in desk.both() {
                assert_eq!(keys.older(0).is_some(), has_older, "after {at} changes");
            }
            assert_eq!(get(&archive, "before").unwrap(), content, "after {at} changes");
            drop(archive);
            desk.reseal();
            assert!(desk.both().iter().all(|keys| keys.older(0).is_none()), "after {at} changes");
            let archive = desk.open();
            assert_eq!(get(&archive, "before").unwrap(), content, "after {at} changes");
            is_well(&archive);
        },
    );
}

#[test]
fn rule_24_a_container_is_read_by_the_data_key_that_the_log_says() {
    let desk = Desk::new();
    let content = noise(5, 300_000);
    put(&desk.open(), "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let (file, place) = desk.first_container();
    for said in [1u32, 2, 1 << 31] {
        file.write_all_at(&said.to_le_bytes(), place.at + 108).unwrap();
        let found = get(&desk.open(), "before").unwrap_err();
        assert!(found.kind() == Kind::Corrupt && found.to_string().contains("data key"), "{found}");
    }
    file.write_all_at(&[0; 4], place.at + 108).unwrap();
    assert_eq!(get(&desk.open(), "before").unwrap(), content);
}

#[test]
fn rule_24_a_container_with_a_damaged_chunk_keeps_the_older_key() {
    let desk = Desk::new();
    let content = noise(5, 1_200_000);
    put(&desk.open(), "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let (file, place) = desk.first_container();
    let at = place.at + u64::from(place.meta_bytes) + 5_000;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let done = desk.reseal();
    assert_eq!((done.keys_erased, done.under_older), (0, 1), "{done:?}");
    assert!(desk.both().iter().all(|keys| keys.older(0).is_some()));
    // Whole again, it is written again.
    file.write_all_at(&byte, at).unwrap();
    assert_eq!(desk.reseal().keys_erased, 1);
    assert_eq!(get(&desk.open(), "before").unwrap(), content);
}

#[test]
fn rule_24_backups_go_on_from_their_parents() {
    let desk = Desk::plain();
    assert!(allow_domains(&desk.open()).unwrap());
    assert!(allow_data_keys(&desk.open()).unwrap());
    let content = noise(5, 800_000);
    store(&desk.open(), "set", 1, &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    store(&desk.open(), "set", 2, &content).unwrap();
    assert_eq!(desk.reseal().keys_erased, 1);
    store(&desk.open(), "set", 3, &content).unwrap();
    for number in 1..=3 {
        assert_eq!(restored(&desk.open(), number).unwrap(), content, "snapshot {number}");
    }
    is_well(&desk.open());
}

/// What a file came to that was read again.
#[derive(Debug, PartialEq)]
struct Again {
    /// It was compared before anything was stored.
    is_compared: bool,
    /// It was the same, and its snapshot names what was stored.
    is_same: bool,
    differed: bool,
}

/// Backs up one file as a walk does that reads it although nothing says that it changed.
fn read_again(
    archive: &Arc<Archive>,
    (number, parent): (u8, u8),
    bytes: &[u8],
) -> (BackupReport, Again) {
    let gauge = Gauge::default();
    let parent = Some(SnapshotId([parent; 16]));
    let request = BackupRequest { parent, ..support::request("set", number) };
    let mut again = Again { is_compared: false, is_same: false, differed: false };
    let report = backup(archive, &request, true, &gauge, |feeder| {
        let (found, mut known) = feeder.parents.take_root();
        known.extend(feeder.parents.enter(&found)?);
        let root = support::entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), known))?;
        let before = feeder.parents.find(b"file")?;
        let file = support::entry("file", TreeWhat::File(0, FileMap::default()));
        feeder.compare(&before, |_, _| true)?;
        again.is_compared = feeder.only_compares()?;
        let mut taken = None;
        if again.is_compared {
            feeder.bytes(bytes)?;
            taken = feeder.same()?.map(|map| (bytes.len() as u64, map));
            if taken.is_none() {
                feeder.compare(&before, |_, _| true)?;
            }
        }
        again.is_same = taken.is_some();
        if taken.is_none() {
            feeder.bytes(bytes)?;
            again.differed = feeder.differed();
        }
        feeder.event(Event::File(file, Stat::default(), taken))?;
        feeder.event(Event::End(0))
    });
    // Also where it was read twice.
    assert_eq!(gauge.read.load(Relaxed), bytes.len() as u64);
    (report.unwrap(), again)
}

#[test]
fn rule_24_what_is_read_again_and_is_the_same_names_what_was_stored() {
    let desk = Desk::new();
    let mut content = noise(5, 1_500_000);
    content[400_000..700_000].fill(0);
    store(&desk.open(), "set", 1, &content).unwrap();
    assert_eq!(rotate_data_key(&desk.open(), 0).unwrap(), 1);
    let all = |is_compared, is_same, differed| Again { is_compared, is_same, differed };
    let (report, again) = read_again(&desk.open(), (2, 1), &content);
    assert_eq!(again, all(true, true, false));
    assert!(report.new_bytes < 50_000, "only pages of the directory: {}", report.new_bytes);
    // Another content is read twice, and stored.
    let mut other = content.clone();
    other[1_499_999] ^= 1;
    let (report, again) = read_again(&desk.open(), (3, 2), &other);
    assert_eq!(again, all(true, false, true));
    assert!(report.new_bytes > 1_000_000, "nothing is shared: {}", report.new_bytes);
    // A part of it is no whole, and neither is it with more behind it.
    let longer = [&content[..], b"x"].concat();
    for (number, part) in [(4, &content[..1_400_000]), (5, &longer[..])] {
        let (_, again) = read_again(&desk.open(), (number, 2), part);
        assert!(again.is_compared && !again.is_same, "{again:?}");
        assert_eq!(restored(&desk.open(), number).unwrap(), part);
    }
    // What is under the new key is found by its content.
    let (report, again) = read_again(&desk.open(), (6, 3), &other);
    assert_eq!(again, all(false, false, false));
    assert!(report.new_bytes < 50_000, "{}", report.new_bytes);
    // Also when the older key is gone, and after another change.
    for (number, generation) in [(7, 2), (8, 3)] {
        assert_eq!(desk.reseal().keys_erased, 1);
        let (report, again) = read_again(&desk.open(), (number, 2), &content);
        assert_eq!(again, all(true, true, false));
        assert!(report.new_bytes < 50_000, "{}", report.new_bytes);
        assert_eq!(rotate_data_key(&desk.open(), 0).unwrap(), generation);
    }
    for number in [1, 2, 7, 8] {
        assert_eq!(restored(&desk.open(), number).unwrap(), content, "snapshot {number}");
    }
    assert_eq!(restored(&desk.open(), 3).unwrap(), other);
    is_well(&desk.open());
}

/// The files of an archive's directory, but for its locks.
fn files_of(desk: &Desk) -> Vec<(String, Vec<u8>)> {
    let all = fs::read_dir(desk.at()).unwrap().map(|entry| entry.unwrap());
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    let all = all.filter(|entry| !name(entry).starts_with("lock-"));
    all.map(|entry| (name(&entry), fs::read(entry.path()).unwrap())).collect()
}

/// An older copy of all is put back, but for the keys.
fn put_back_but_for_keys(desk: &Desk, before: &[(String, Vec<u8>)]) {
    for (name, bytes) in before.iter().filter(|(name, _)| name != "keys") {
        fs::write(desk.at().join(name), bytes).unwrap();
    }
    for name in fs::read_dir(desk.at()).unwrap().map(|entry| entry.unwrap().file_name()) {
        let name = name.into_string().unwrap();
        if !name.starts_with("lock-") && !before.iter().any(|(known, _)| *known == name) {
            fs::remove_file(desk.at().join(name)).unwrap();
        }
    }
}

#[test]
fn rule_24_who_reads_an_archive_that_is_older_than_its_keys_reads_it_or_is_told_why_not() {
    let desk = Desk::new();
    let content = noise(5, 300_000);
    put(&desk.open(), "before", &content).unwrap();
    store(&desk.open(), "set", 1, &content[..100_000]).unwrap();
    let before = files_of(&desk);
    rotate_data_key(&desk.open(), 0).unwrap();
    // The keys have the older one, too.
    let both = desk.keys();
    desk.reseal();
    let newest = desk.keys();
    put_back_but_for_keys(&desk, &before);
    fs::write(desk.at().join("keys"), &both).unwrap();
    let reading = desk.open_by(By(1, false), false).unwrap();
    assert_eq!(get(&reading, "before").unwrap(), content);
    assert_eq!(restored(&reading, 1).unwrap(), content[..100_000]);
    is_well(&reading);
    drop(reading);
    // They have the newest one alone: it is no damage.
    fs::write(desk.at().join("keys"), &newest).unwrap();
    let reading = desk.open_by(By(1, false), false).unwrap();
    for refused in [get(&reading, "before").unwrap_err(), restored(&reading, 1).unwrap_err()] {
        let said = refused.to_string();
        assert!(refused.kind() == Kind::Denied && said.contains("older than its file"), "{said}");
    }
}

#[test]
fn rule_24_who_reads_an_archive_whose_keys_are_older_is_told_to_put_back_the_newest() {
    let desk = Desk::new();
    let content = noise(5, 300_000);
    put(&desk.open(), "before", &content).unwrap();
    let first = desk.keys();
    rotate_data_key(&desk.open(), 0).unwrap();
    put(&desk.open(), "after", &content).unwrap();
    fs::write(desk.at().join("keys"), &first).unwrap();
    let reading = desk.open_by(By(1, true), false).unwrap();
    assert_eq!(get(&reading, "before").unwrap(), content);
    let refused = get(&reading, "after").unwrap_err();
    let said = refused.to_string();
    assert!(refused.kind() == Kind::Denied && said.contains("put back the newest"), "{said}");
}

#[test]
fn rule_24_nothing_is_stored_where_the_keys_are_newer_than_the_archive() {
    let desk = Desk::new();
    let content = noise(5, 300_000);
    put(&desk.open(), "before", &content).unwrap();
    let before = files_of(&desk);
    rotate_data_key(&desk.open(), 0).unwrap();
    let keys = desk.keys();
    put_back_but_for_keys(&desk, &before);
    for accepts in [false, true] {
        let refused = desk.open_by(By(1, accepts), true).err().unwrap();
        let said = refused.to_string();
        assert!(refused.kind() == Kind::Denied && said.contains("older than its file"), "{said}");
    }
    assert_eq!(desk.keys(), keys, "nothing is written");
    // With the keys of then it goes on.
    let (_, keys) = before.iter().find(|(name, _)| name == "keys").unwrap();
    fs::write(desk.at().join("keys"), keys).unwrap();
    let archive = desk.open_by(By(1, true), true).unwrap();
    put(&archive, "after", &content).unwrap();
    is_well(&archive);
}

#[test]
fn rule_24_an_erasure_is_not_said_of_a_key_that_the_log_still_needs() {
    let desk = Desk::new();
    let content = noise(5, 300_000);
    put(&desk.open(), "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let before = files_of(&desk);
    assert_eq!(desk.reseal().keys_erased, 1);
    put_back_but_for_keys(&desk, &before);
    for accepts in [false, true] {
        let refused = desk.open_by(By(1, accepts), true).err().unwrap();
        let said = refused.to_string();
        assert!(refused.kind() == Kind::Denied && said.contains("older than its file"), "{said}");
    }
    // With the keys of then it goes on.
    let (_, keys) = before.iter().find(|(name, _)| name == "keys").unwrap();
    fs::write(desk.at().join("keys"), keys).unwrap();
    let archive = desk.open_by(By(1, true), true).unwrap();
    assert_eq!(get(&archive, "before").unwrap(), content);
    drop(archive);
    assert_eq!(desk.reseal().keys_erased, 1);
    assert_eq!(get(&desk.open(), "before").unwrap(), content);
    is_well(&desk.open());
}

#[test]
fn rule_24_a_change_that_was_cut_off_and_put_back_without_its_keys_is_no_damage() {
    let content = noise(5, 300_000);
    // Also where nothing is listed under the older key.
    let mut told = [0, 0];
    for (changes, stores) in (0..).flat_map(|changes| [(changes, true), (changes, false)]) {
        let desk = Desk::new();
        if stores {
            put(&desk.open(), "before", &content).unwrap();
        }
        let (files, made) = dies_after(&desk, changes);
        let archive = desk.open_over(files, By(1, false), true).unwrap();
        made.store(0, Relaxed);
        let is_done = rotate_data_key(&archive, 0).is_ok();
        drop(archive);
        let before = files_of(&desk);
        if desk.reseal().keys_erased == 1 {
            put_back_but_for_keys(&desk, &before);
            // Where the log has the kept keys, and lists nothing, the erasure is ended.
            match desk.open_by(By(1, true), true) {
                Ok(_) => assert!(!stores, "after {changes} changes"),
                Err(refused) => {
                    let said = refused.to_string();
                    let is_told =
                        refused.kind() == Kind::Denied && said.contains("older than its file");
                    assert!(is_told, "{said} after {changes} changes");
                    told[usize::from(stores)] += 1;
                }
            }
            if stores {
                let reading = desk.open_by(By(1, true), false).unwrap();
                let refused = get(&reading, "before").unwrap_err();
                assert_eq!(refused.kind(), Kind::Denied, "{refused} after {changes} changes");
            }
        }
        if is_done && !stores {
            break;
        }
    }
    assert!(told.iter().all(|told| *told > 0), "{told:?}");
}

#[test]
fn rule_24_kept_keys_are_written_when_the_newer_key_is_durable() {
    let mut is_seen = false;
    for changes in 0.. {
        let desk = Desk::new();
        // This process does not open the archive again when the other one was killed.
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let watch: Watch =
            Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
                if matches!(call, Call::Change) && (name == "keys" || name.starts_with("log-")) {
                    seen.lock().unwrap().push(name == "keys");
                }
                does()
            });
        let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
        let files = Arc::new(Watched { files, watch });
        let other = desk.open_over(files, By(1, false), true).unwrap();
        let (files, made) = dies_after(&desk, changes);
        let archive = desk.open_over(files, By(1, false), true).unwrap();
        made.store(0, Relaxed);
        let is_done = rotate_data_key(&archive, 0).is_ok();
        drop(archive);
        calls.lock().unwrap().clear();
        let mut collection = Collection::begin(&other, options(2_000_000)).unwrap();
        collection.reseal(None);
        if collection.run(&mut |_| {}).is_ok_and(|done| done.keys_erased == 1) {
            let mut calls = calls.lock().unwrap().clone();
            calls.dedup();
            // Once before the frame that says what stays, and once to erase.
            is_seen |= !is_done && calls.iter().filter(|is_keys| **is_keys).count() == 2;
        }
        if is_done {
            break;
        }
    }
    assert!(is_seen, "the key area is made durable before that frame");
}

#[test]
fn rule_24_the_keys_of_another_copy_of_the_archive_erase_nothing_and_leave_other_domains() {
    // Also where the domain has nothing, so that no other step refuses before.
    [true, false].into_iter().for_each(keys_of_another_copy);
}

fn keys_of_another_copy(stores: bool) {
    let desk = Desk::plain();
    assert!(allow_domains(&desk.open()).unwrap());
    assert!(allow_data_keys(&desk.open()).unwrap());
    let content = noise(5, 300_000);
    let number = create_domain(&desk.open(), "customer").unwrap();
    put_in(&desk.open(), 0, "first", &content).unwrap();
    let mut keys = desk.both().remove(0);
    let open_before = desk.open();
    rotate_data_key(&desk.open(), number).unwrap();
    if stores {
        put_in(&desk.open(), number, "other", &content).unwrap();
    }
    let own = desk.keys();
    // The other copy draws another key.
    let random = Counter(AtomicU64::new(1 << 40));
    keys.rotate_domain(number, &random).unwrap();
    keys.saw(1_000);
    let area = keys.next_area(&random).unwrap();
    let another = [area.bytes(), area.bytes()].concat();
    fs::write(desk.at().join("keys"), &another).unwrap();
    for (archive, name) in [(desk.open(), "more"), (open_before, "another")] {
        assert_eq!(get(&archive, "first").unwrap(), content);
        put_in(&archive, 0, name, &content).unwrap();
        let read = stores.then(|| get(&archive, "other").map(drop).unwrap_err());
        let written = put_in(&archive, number, "new", &content).map(drop).unwrap_err();
        for refused in std::iter::once(written).chain(read) {
            let said = refused.to_string();
            assert!(refused.kind() == Kind::Denied && said.contains("another copy"), "{said}");
        }
        // The older key does not go by it.
        let mut collection = Collection::begin(&archive, options(2_000_000)).unwrap();
        collection.reseal(None);
        let refused = collection.run(&mut |_| {}).unwrap_err();
        assert!(refused.to_string().contains("another copy"), "{refused}");
        assert!(desk.both().iter().all(|keys| keys.older(number).is_some()));
    }
    fs::write(desk.at().join("keys"), &own).unwrap();
    let archive = desk.open_by(By(1, true), true).unwrap();
    if stores {
        assert_eq!(get(&archive, "other").unwrap(), content);
    }
    is_well(&archive);
}

#[test]
fn rule_24_no_key_is_made_where_the_keys_are_older_by_two_changes() {
    let desk = Desk::new();
    let content = noise(5, 300_000);
    put(&desk.open(), "before", &content).unwrap();
    let first = desk.keys();
    rotate_data_key(&desk.open(), 0).unwrap();
    assert_eq!(desk.reseal().keys_erased, 1);
    rotate_data_key(&desk.open(), 0).unwrap();
    let newest = desk.keys();
    fs::write(desk.at().join("keys"), &first).unwrap();
    for _ in 0..2 {
        let refused = desk.open_by(By(1, true), true).err().unwrap();
        let said = refused.to_string();
        assert!(refused.kind() == Kind::Denied && said.contains("put back the newest"), "{said}");
        assert_eq!(desk.keys(), first, "no key is made");
    }
    fs::write(desk.at().join("keys"), &newest).unwrap();
    assert_eq!(desk.reseal().keys_erased, 1);
    let archive = desk.open();
    assert_eq!(get(&archive, "before").unwrap(), content);
    is_well(&archive);
}

#[test]
fn rule_24_a_put_whose_locks_failed_lists_nothing_by_numbers_of_before() {
    let desk = Desk::new();
    put(&desk.open(), "before", &noise(5, 300_000)).unwrap();
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, false).unwrap();
    let mut session = Session::in_domain(&ingest, 0).unwrap();
    let mut writer = StreamWriter::new(&session, 1_000);
    let (mut cutting, mut writing) = (Cutting::new(&*archive), Writing::default());
    let content = noise(6, 300_000);
    cutting.room()[..content.len()].copy_from_slice(&content);
    let mut batches: Vec<_> = cutting.advance(content.len()).into_iter().collect();
    batches.push(cutting.end());
    for mut batch in batches {
        batch.fingerprint(session.domain());
        session.add(&batch, &mut writing, &mut |open| writer.pack_and_write(open)).unwrap();
    }
    let data = session.end_recipe(writing, &mut |open| writer.pack_and_write(open)).unwrap();
    session.seal(&mut |open| writer.pack_and_write(open)).unwrap();
    // All containers are written. The others see none of its locks.
    fs::remove_file(desk.at().join("lock-writer")).unwrap();
    fs::write(desk.at().join("lock-writer"), b"").unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let (name, shape, listing) = ("torn".to_owned(), Shape::Bytes, Vec::new());
    let refused = writer.commit(Ended { name, shape, created: 1_000, data, listing }).unwrap_err();
    assert!(
        refused.kind() == Kind::Stopped && refused.to_string().contains("store it again"),
        "{refused}"
    );
    drop((session, writer, ingest, archive));
    assert!(!desk.open().tables().streams.contains_key(&"torn".to_owned()));
    is_well(&desk.open());
}

#[test]
fn rule_24_what_was_written_again_is_freed_in_steps_while_nobody_reads() {
    let desk = Desk::new();
    let content = noise(5, 13_000_000);
    put(&desk.open(), "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    // Who reads what was there is not waited for, and goes on.
    for reads in [true, false] {
        let reading = desk.open_by(By(1, false), false).unwrap();
        let reader = reads.then(|| Reader::new(&reading).unwrap());
        let mut waits = options(2_000_000);
        waits.wait = true;
        let mut collection = Collection::begin(&desk.open(), waits).unwrap();
        collection.reseal(None);
        let begin = collection.done.freed_bytes;
        let (mut most, bytes) = (0, if reads { 6_000_000 } else { u64::MAX });
        while collection.step().unwrap() && collection.done.resealed_bytes < bytes {
            let freed = collection.done.freed_bytes - begin;
            let held = collection.done.resealed_bytes.saturating_sub(freed);
            most = most.max(held);
            if collection.doing().starts_with("freeing") {
                break;
            }
        }
        assert!(reads || most < 6_000_000, "{most}");
        drop((collection, reader));
    }
    assert_eq!(desk.reseal().keys_erased, 1);
    assert_eq!(get(&desk.open(), "before").unwrap(), content);
    is_well(&desk.open());
}

#[test]
fn rule_24_writing_again_ends_before_it_takes_the_reserve() {
    let desk = Desk::new();
    let content = noise(5, 6_000_000);
    put(&desk.open(), "before", &content).unwrap();
    rotate_data_key(&desk.open(), 0).unwrap();
    let left = under_older(&desk.open().tables());
    let reserve = || fs::metadata(desk.at().join("reserve")).unwrap().len();
    // Less is free than must stay.
    let mut collection = Collection::begin(&desk.open(), options(2_000_000)).unwrap();
    collection.reseal(Some(Box::new(|| Ok(1 << 20))));
    let done = collection.run(&mut |_| {}).unwrap();
    assert!(done.no_room && done.resealed == 0 && done.keys_erased == 0, "{done:?}");
    // The disk is full at once.
    let kept = reserve();
    let is_full = Arc::new(AtomicU64::new(0));
    let full = is_full.clone();
    let watch: Watch =
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            let grows = matches!(call, Call::Change) && name.starts_with("segment-");
            if grows && full.load(Relaxed) == 1 {
                return Err(Error::new(Kind::NoSpace, "the disk is full"));
            }
            if name == "reserve" && matches!(call, Call::Change) && full.load(Relaxed) == 1 {
                full.store(2, Relaxed);
            }
            does()
        });
    let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
    let archive = desk.open_over(Arc::new(Watched { files, watch }), By(1, false), true).unwrap();
    let mut collection = Collection::begin(&archive, options(2_000_000)).unwrap();
    collection.reseal(None);
    is_full.store(1, Relaxed);
    while !collection.done.no_room && collection.step().unwrap() {}
    assert!(collection.done.no_room && collection.done.resealed == 0, "{:?}", collection.done);
    assert_eq!((is_full.load(Relaxed), reserve()), (1, kept), "the reserve stays");
    is_full.store(0, Relaxed);
    drop((collection, archive));
    assert_eq!(under_older(&desk.open().tables()), left);
    assert_eq!(desk.reseal().keys_erased, 1);
    assert_eq!(get(&desk.open(), "before").unwrap(), content);
}
