//! Keys with roles: a put key adds snapshots to its own sets, and whoever has one can't read, remove or spoil
//! what others store.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;
#[path = "support/with_roles.rs"]
mod with_roles;

use std::{fs, sync::Arc};

use onefold_archive::{
    Archive, BackupRequest, Collection, Completeness, CopiedFrom, Event, FileMap, Format, Gauge,
    KeySource, Known, Origin, Role, Settings, SnapshotId, Stat, TreeWhat, add_put_key, backup,
    check, forget, read_key, remove_put_key,
};
use onefold_backend::Directory;
use onefold_core::{Fingerprint, Kind, Result};
use support::{By, entry, names, noise, options, put, request_by, restored, store};
use with_roles::{Desk, Has};

#[test]
fn rule_45_a_put_key_stores_what_a_read_key_and_manage_restore() {
    let desk = Desk::new();
    let (web, reader) = (desk.grant("web1", &["web1", "web1-db"]), desk.reader());
    let content = noise(3, 3_000_000);
    let archive = desk.by(&web);
    assert_eq!(archive.role(), Some(Role::Put(1)));
    let first = store(&archive, "web1", 1, &content).unwrap();
    assert_eq!(first.new_bytes, 3_000_000);
    drop(archive);
    // Another process with the same key finds its own chunks.
    let again = store(&desk.by(&web), "web1-db", 2, &content).unwrap();
    assert_eq!(again.new_bytes, 0);
    assert_eq!(restored(&desk.by(&reader), 1).unwrap(), content);
    assert_eq!(restored(&desk.manage(), 2).unwrap(), content);
    assert_eq!(desk.collect().untrue, 0);
    let later = store(&desk.by(&web), "web1", 3, &content).unwrap();
    assert_eq!(later.new_bytes, 0);
    let report = check(&desk.manage(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    forget(&desk.manage(), &[SnapshotId([1; 16])], 2_000).unwrap();
    desk.collect();
    assert_eq!(names(&desk.by(&reader)), [2, 3]);
    assert_eq!(restored(&desk.by(&reader), 2).unwrap(), content);
}

#[test]
fn rule_45_a_put_key_opens_no_content_its_own_included() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    store(&desk.manage(), "vault", 1, &noise(1, 100_000)).unwrap();
    let archive = desk.by(&web);
    store(&archive, "web1", 2, &noise(2, 100_000)).unwrap();
    for number in [1, 2] {
        let error = restored(&archive, number).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("put key"), "{error}");
    }
}

#[test]
fn rule_45_each_role_does_no_more_than_it_may() {
    let desk = Desk::new();
    let (web, reader) = (desk.grant("web1", &["web1"]), desk.reader());
    store(&desk.manage(), "vault", 1, &noise(1, 100_000)).unwrap();
    let archive = desk.by(&web);
    store(&archive, "web1", 2, &noise(2, 100_000)).unwrap();
    let denied = |done: Result<()>| {
        let error = done.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied, "{error}");
    };
    // Its own ones, too: nobody but manage takes away.
    for number in [1, 2] {
        denied(forget(&archive, &[SnapshotId([number; 16])], 2_000).map(drop));
    }
    denied(store(&archive, "vault", 3, &noise(3, 1000)).map(drop));
    denied(
        Collection::begin(&archive, options(9_000)).and_then(|gc| gc.run(&mut |_| {})).map(drop),
    );
    denied(add_put_key(&archive, "mine", &["vault".into()], |_| Ok(())).map(drop));
    denied(remove_put_key(&archive, 1));
    denied(read_key(&archive, "mine").map(drop));
    denied(desk.open_by(Arc::new(Has(reader.again())), true).map(drop));
    drop(archive);
    let archive = desk.by(&web);
    assert_eq!(names(&archive), [1, 2]);
    // Named streams have no fingerprints that a signature covers.
    assert_eq!(put(&desk.manage(), "stream", b"bytes").unwrap_err().kind(), Kind::InvalidInput);
    remove_put_key(&desk.manage(), 1).unwrap();
    denied(store(&archive, "web1", 4, &noise(4, 1000)).map(drop));
    assert_eq!(names(&desk.manage()), [1, 2]);
}

#[test]
fn rule_45_a_put_key_shares_what_manage_has_proven_and_not_what_others_stored_since() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web1", &["web1"]), desk.grant("db1", &["db1"]));
    let content = noise(5, 2_000_000);
    store(&desk.by(&web), "web1", 1, &content).unwrap();
    assert_eq!(store(&desk.by(&db), "db1", 2, &content).unwrap().new_bytes, 2_000_000);
    // Manage shares no more than that either.
    assert_eq!(store(&desk.manage(), "vault", 3, &content).unwrap().new_bytes, 2_000_000);
    let done = desk.collect();
    assert!(done.proven >= 2 && done.untrue == 0, "{done:?}");
    assert_eq!(store(&desk.by(&db), "db1", 4, &content).unwrap().new_bytes, 0);
    assert_eq!(store(&desk.by(&web), "web1", 5, &content).unwrap().new_bytes, 0);
}

#[test]
fn rule_45_at_the_end_of_the_log_a_put_key_asks_for_manage() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    let settings = Settings {
        log_ahead_bytes: 4096,
        ahead_bytes: 1 << 20,
        put_log_bytes: 8 << 10,
        opener: KeySource::new(Arc::new(Has(web.again()))),
        ..Settings::default()
    };
    let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
    let archive = Arc::new(Archive::open(files, true, settings).unwrap());
    let mut stored = 0;
    let error = loop {
        match store(&archive, "web1", stored, &[stored; 100]) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 100);
    };
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("onefold gc"), "{error}");
    assert!(stored > 2);
    let manage = desk.open_by(Arc::new(By(1, false)), true).unwrap();
    assert_eq!(names(&manage).len(), usize::from(stored));
}

#[test]
fn rule_45_manage_begins_a_log_anew_behind_many_frames_of_put_keys() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    let newest = || {
        let names = fs::read_dir(desk.at()).unwrap().map(|entry| entry.unwrap().file_name());
        let logs = names.filter(|name| name.to_string_lossy().starts_with("log-"));
        logs.max().unwrap()
    };
    let before = newest();
    for number in 1..=4 {
        store(&desk.by(&web), "web1", number, &noise(number.into(), 10_000)).unwrap();
    }
    let changes = |put_frames| {
        let opener = KeySource::new(Arc::new(By(1, false)));
        let settings =
            Settings { log_ahead_bytes: 4096, put_frames, opener, ..Settings::default() };
        let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
        let archive = Arc::new(Archive::open(files, true, settings).unwrap());
        forget(&archive, &[SnapshotId([1; 16])], 2_000).unwrap();
        archive
    };
    drop(changes(1_000));
    assert_eq!(newest(), before, "few frames of put keys are no reason");
    drop(changes(4));
    let next = newest();
    assert_ne!(next, before);
    // What manage signs itself is no reason, and neither is what lies in the log before.
    drop(changes(4));
    assert_eq!(newest(), next);
    assert_eq!(names(&desk.manage()), [2, 3, 4]);
}

#[test]
fn rule_45_two_put_keys_with_sets_of_one_name_replace_nothing_of_each_other() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web1", &["/etc"]), desk.grant("db1", &["/etc"]));
    store(&desk.by(&web), "/etc", 9, &noise(1, 10_000)).unwrap();
    // It began, and ended, before the other one.
    store(&desk.by(&db), "/etc", 2, &noise(2, 10_000)).unwrap();
    let archive = desk.by(&db);
    let asked = BackupRequest { host: "web1".into(), ..request_by(&archive, "/etc", 20) };
    let error = backup(&archive, &asked, true, &Gauge::default(), |_| panic!("nothing is read"));
    let error = error.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("host 'db1'"), "{error}");
    let error = store(&archive, "/etc", 1, &noise(3, 10_000)).unwrap_err();
    assert!(error.to_string().contains("before the last one"), "{error}");
    assert_eq!(names(&desk.manage()), [9, 2]);
}

#[test]
fn rule_45_a_put_key_that_collects_is_refused_before_it_removes_a_file() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    store(&desk.by(&web), "web1", 1, &noise(1, 10_000)).unwrap();
    // No frame names it, as it may be while another process begins a segment.
    let orphan = desk.at().join("segment-00000077");
    fs::write(&orphan, b"a new segment").unwrap();
    let error = Collection::begin(&desk.by(&web), options(9_000)).err().unwrap();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(orphan.exists());
    desk.collect();
    assert!(!orphan.exists());
}

#[test]
fn rule_45_checkpoints_of_a_put_key_count_too() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    let archive = desk.by(&web);
    let content = noise(6, 1_000_000);
    backup(&archive, &request_by(&archive, "web1", 1), true, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        for (name, checkpoint) in [("file", 50), ("other", 51)] {
            feeder.bytes(&content)?;
            let file = entry(name, TreeWhat::File(0, FileMap::default()));
            feeder.event(Event::File(file, Stat::default(), None))?;
            feeder.checkpoint(SnapshotId([checkpoint; 16]))?;
        }
        feeder.event(Event::End(0))
    })
    .unwrap();
    let tables = desk.manage().tables();
    // One that comes close behind another takes its place.
    assert!(tables.snapshots.checkpoints().count() > 0);
    assert_eq!(tables.roles.as_ref().unwrap().keys.get(&1).unwrap().refused, 0);
    assert_eq!(names(&desk.manage()), [1]);
    for _ in 0..2 {
        desk.collect();
    }
    assert_eq!(desk.manage().tables().snapshots.checkpoints().count(), 0);
    assert_eq!(restored(&desk.manage(), 1).unwrap(), content);
    let report = check(&desk.manage(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn rule_45_a_role_key_opens_its_own_archive_only() {
    let (desk, plain) = (Desk::new(), Desk::new());
    let web = desk.grant("web1", &["web1"]);
    // The same id, and other keys: nothing opens.
    let other = plain.open_by(Arc::new(Has(web.again())), true);
    assert!(other.is_ok(), "the same chance made both");
    let mut elsewhere = web.again();
    elsewhere.shared.id = [9; 16];
    let error = desk.open_by(Arc::new(Has(elsewhere)), true).err().unwrap();
    assert_eq!(error.kind(), Kind::Denied);
    // A label without roles, as who holds the directory may put it there.
    let without = Desk::of(Format::new([7; 16], [8; 32], [9; 16]).with_features());
    let error = without.open_by(Arc::new(Has(web)), true).err().unwrap();
    assert_eq!(error.kind(), Kind::Denied);
    // And whoever manages the one is not fooled by the label of the other.
    fs::copy(without.at().join("label"), desk.at().join("label")).unwrap();
    assert!(desk.open_by(Arc::new(By(1, false)), false).is_err());
}

#[test]
fn rule_45_no_file_shows_what_put_keys_stored() {
    let desk = Desk::new();
    let web = desk.grant("canary-host", &["canary-set"]);
    let canary = b"a canary sings in the mine, and nobody may hear it".repeat(20_000);
    store(&desk.by(&web), "canary-set", 1, &canary).unwrap();
    desk.collect();
    store(&desk.by(&web), "canary-set", 2, &[&canary[..], b"!"].concat()).unwrap();
    for entry in fs::read_dir(desk.at()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let shows = bytes.windows(6).any(|part| part == b"canary");
        assert!(!shows, "{}", path.display());
    }
}

#[test]
fn rule_45_two_processes_of_two_put_keys_take_turns() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web1", &["web1"]), desk.grant("db1", &["db1"]));
    let (first, second) = (desk.by(&web), desk.by(&db));
    for round in 0..6 {
        store(&first, "web1", 2 * round + 1, &noise(u64::from(round), 300_000)).unwrap();
        store(&second, "db1", 2 * round + 2, &noise(u64::from(round) + 50, 300_000)).unwrap();
        if round == 3 {
            desk.collect();
        }
    }
    for round in 0..6 {
        let read = |number| restored(&desk.manage(), number).unwrap();
        assert_eq!(read(2 * round + 1), noise(u64::from(round), 300_000));
        assert_eq!(read(2 * round + 2), noise(u64::from(round) + 50, 300_000));
    }
    desk.collect();
    let report = check(&desk.manage(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Stores a snapshot that says that it is a copy.
fn store_copy(archive: &Arc<Archive>, number: u8) {
    let copied = CopiedFrom {
        root: Fingerprint([number; 16]),
        ended: 1_000 + u64::from(number),
        completeness: Completeness::Whole,
        left_out: 0,
    };
    let request = BackupRequest { copied: Some(copied), ..request_by(archive, "web1", number) };
    let made = backup(archive, &request, true, &Gauge::default(), |feeder| {
        support::feed_file(feeder, b"content")?;
        feeder.event(Event::End(0))
    });
    made.unwrap();
}

#[test]
fn rule_50_no_snapshot_of_a_put_key_counts_as_a_copy() {
    let desk = Desk::new();
    let (web, reader) = (desk.grant("web1", &["web1"]), desk.reader());
    store_copy(&desk.by(&web), 1);
    store_copy(&desk.manage(), 2);
    for archive in [desk.manage(), desk.by(&reader)] {
        let tables = archive.refresh().unwrap();
        let origin = |number| tables.snapshots.get(SnapshotId([number; 16])).unwrap().origin;
        assert_eq!(origin(1), Origin::Read(None));
        assert_eq!(origin(2), Origin::Copied(Fingerprint([2; 16])));
    }
}
