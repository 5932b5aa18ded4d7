//! The files of an archive for a client that may only add: an honest put key stores through them, and a hostile one
//! takes nothing away.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;
#[path = "support/with_roles.rs"]
mod with_roles;

use std::{collections::BTreeMap, fs, os::unix::fs::FileExt, path::Path, sync::Arc};

use onefold_archive::{
    Additions, Archive, GiveUp, KeySource, Settings, SnapshotId, check, forget, renew_log,
};
use onefold_backend::Directory;
use onefold_core::{Files, Hold, Kind, Result};
use onefold_seal::RoleKey;
use support::{By, names, noise, restored, store};
use with_roles::{Desk, Has};

impl Desk {
    fn files(&self) -> Arc<dyn Files> {
        Arc::new(Directory::open(&self.at(), true).unwrap())
    }

    fn try_manage(&self, give_up: GiveUp) -> Result<Arc<Archive>> {
        let opener = KeySource::new(Arc::new(By(1, false)));
        Desk::open(self.files(), true, Settings { opener, give_up, ..Settings::default() })
    }

    /// The archive at the far end of a connection that takes additions alone.
    fn adding(&self, key: &RoleKey) -> Arc<Archive> {
        let opener = KeySource::new(Arc::new(Has(key.again())));
        let settings = Settings { opener, ..Settings::default() };
        Desk::open(Arc::new(Additions::new(self.files())), true, settings).unwrap()
    }

    /// All files, as they are now.
    fn content(&self) -> BTreeMap<String, Vec<u8>> {
        let read = |path: &Path| fs::read(path).unwrap();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let paths = fs::read_dir(self.at()).unwrap().map(|entry| entry.unwrap().path());
        paths.map(|path| (name(&path), read(&path))).collect()
    }

    /// The log that counts.
    fn log(&self) -> String {
        let logs = self.content().into_keys().filter(|name| name.starts_with("log-"));
        logs.max().unwrap()
    }
}

fn is_whole(desk: &Desk) {
    let report = check(&desk.manage(), true, &mut |_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn rule_46_a_put_key_stores_through_additions_and_changes_no_byte_of_before() {
    let desk = Desk::new();
    let (web, db) = (desk.grant("web1", &["web1"]), desk.grant("db1", &["db1"]));
    let mut before = desk.content();
    for round in 0..4_u8 {
        store(&desk.adding(&web), "web1", 2 * round + 1, &noise(round.into(), 400_000)).unwrap();
        let archive = desk.adding(&db);
        store(&archive, "db1", 2 * round + 2, &noise(u64::from(round) + 90, 400_000)).unwrap();
        drop(archive);
        let after = desk.content();
        for (name, bytes) in &before {
            let now = after.get(name).unwrap_or_else(|| panic!("{name} is gone"));
            assert!(now.starts_with(bytes), "{name} was changed");
        }
        before = after;
        if round == 2 {
            desk.collect();
            before = desk.content();
        }
    }
    for round in 0..4_u8 {
        let archive = desk.manage();
        assert_eq!(restored(&archive, 2 * round + 1).unwrap(), noise(round.into(), 400_000));
        assert_eq!(
            restored(&archive, 2 * round + 2).unwrap(),
            noise(u64::from(round) + 90, 400_000)
        );
    }
    assert_eq!(store(&desk.adding(&web), "web1", 9, &noise(0, 400_000)).unwrap().new_bytes, 0);
    desk.collect();
    is_whole(&desk);
}

#[test]
fn rule_46_nothing_is_taken_away() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    store(&desk.manage(), "vault", 1, &noise(1, 100_000)).unwrap();
    store(&desk.adding(&web), "web1", 2, &noise(2, 100_000)).unwrap();
    let before = desk.content();
    let files = Additions::new(desk.files());
    let denied = |done: Result<()>, what: &str| {
        assert_eq!(done.map_err(|error| error.kind()), Err(Kind::Denied), "{what}");
    };
    let _commit = files.lock("lock-commit", Hold::Alone, true).unwrap();
    for name in before.keys() {
        denied(files.remove(name), name);
        let file = files.open(name).unwrap();
        let end = file.bytes().unwrap();
        for (at, what) in [(0, "begin"), (end / 2, "middle"), (end, "end"), (end + 4096, "beyond")]
        {
            let rubbish = vec![0xff; 512];
            denied(file.write_at(at, &rubbish), &format!("{name}, {what}"));
            denied(file.write_parts(at, &[&rubbish]), &format!("{name}, {what}"));
        }
        for bytes in [0, end / 2, end + 1] {
            denied(file.set_bytes(bytes), name);
        }
        denied(file.punch(0, 4096), name);
        file.sync().unwrap();
    }
    for name in ["label", "log-0000000099", "snapshot-0000000099", "index-7", "counts-1", "heads"] {
        denied(files.create(name).map(drop), name);
    }
    for (name, hold) in [
        ("lock-gc", Hold::Alone),
        ("lock-gc", Hold::Shared),
        ("lock-importer", Hold::Alone),
        ("epoch-0", Hold::Alone),
        ("lock-writer", Hold::Shared),
        ("label", Hold::Alone),
    ] {
        denied(files.lock(name, hold, false).map(drop), name);
    }
    assert_eq!(desk.content(), before);
    denied(files.open(&desk.log()).unwrap().reserve(0, 300 << 20), "more than a log has");
    // What it made itself stays as well: somebody may have listed it.
    let own = files.create("segment-00009999").unwrap();
    own.reserve(0, 8192).unwrap();
    own.write_at(0, &[1; 4096]).unwrap();
    denied(own.write_at(0, &[2; 4096]), "its own");
    own.write_at(4096, &[3; 100]).unwrap();
    let again = files.open("segment-00009999").unwrap();
    denied(again.write_at(4195, &[4; 100]), "its own");
    denied(again.set_bytes(4195), "its own");
    denied(again.punch(0, 8192), "its own");
    again.set_bytes(8192).unwrap();
    again.punch(4196, 3996).unwrap();
    again.write_at(4196, &[5; 100]).unwrap();
    // Another connection is another client.
    let other = Additions::new(desk.files());
    denied(other.open("segment-00009999").unwrap().write_at(8192, &[6; 10]), "of another");
}

#[test]
fn rule_46_a_segment_is_known_by_its_file_and_not_by_its_name() {
    let desk = Desk::new();
    let client = Additions::new(desk.files());
    let name = "segment-00009999";
    client.create(name).unwrap();
    desk.files().remove(name).unwrap();
    desk.files().create(name).unwrap().write_at(0, &[7; 4096]).unwrap();
    let again = client.open(name).unwrap();
    let _ = (again.write_at(0, &[0; 4096]), again.set_bytes(0), again.punch(0, 4096));
    assert_eq!(desk.content()[name], [7; 4096]);
}

/// A client makes files of the next names, and keeps them. Whoever stores then writes to none of them.
#[test]
fn rule_46_nobody_writes_to_a_file_that_a_client_made() {
    let desk = Desk::new();
    let db = desk.grant("db1", &["db1"]);
    let client = Additions::new(desk.files());
    let mut made = Vec::new();
    let mut take_names = || {
        let numbers = desk.content().into_keys().filter_map(|name| {
            name.strip_prefix("segment-").and_then(|number| number.parse::<u32>().ok())
        });
        let last = numbers.max().unwrap_or(0);
        for number in last + 1..last + 6 {
            let name = format!("segment-{number:08}");
            made.push((name.clone(), client.create(&name).unwrap()));
        }
    };
    take_names();
    store(&desk.manage(), "vault", 1, &noise(1, 300_000)).unwrap();
    take_names();
    store(&desk.adding(&db), "db1", 2, &noise(2, 300_000)).unwrap();
    take_names();
    let gone = [noise(3, 100_000), noise(4, 100_000)].concat();
    store(&desk.manage(), "vault", 3, &gone).unwrap();
    store(&desk.manage(), "vault", 4, &gone[..100_000]).unwrap();
    forget(&desk.manage(), &[SnapshotId([3; 16])], 2_000).unwrap();
    take_names();
    desk.collect();
    for (name, file) in &made {
        // Collection removes files that no change took.
        let again = client.open(name).unwrap_or_else(|_| file.clone());
        for file in [file, &again] {
            let _ = (file.write_at(0, &[0; 4096]), file.set_bytes(0), file.punch(0, 4096));
        }
    }
    is_whole(&desk);
    for (number, content) in
        [(1, &noise(1, 300_000)[..]), (2, &noise(2, 300_000)), (4, &gone[..100_000])]
    {
        assert_eq!(restored(&desk.manage(), number).unwrap(), content);
    }
}

/// Bytes that look like the header of a frame which follows the last one of a log, and has so many bytes behind.
fn header(desk: &Desk, body: u32) -> Vec<u8> {
    header_of(desk, &desk.log(), body)
}

fn header_of(desk: &Desk, log: &str, body: u32) -> Vec<u8> {
    let log = desk.content().remove(log).unwrap();
    let (mut at, mut last) = (0, (0, 0));
    while let Some(header) = log.get(at..at + 40).filter(|header| header.starts_with(b"ONFL")) {
        let word = |from: usize| u64::from_le_bytes(header[from..from + 8].try_into().unwrap());
        last = (word(8), word(32));
        let length = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
        at += (40 + length).next_multiple_of(64);
    }
    let mut bytes = b"ONFL".to_vec();
    bytes.extend(body.to_le_bytes());
    bytes.extend((last.0 + 1_u64).to_le_bytes());
    bytes.extend([1, 0, 0, 0, 1, 0, 0, 0]);
    bytes.extend(last.1.to_le_bytes());
    bytes.extend(77_u64.to_le_bytes());
    bytes
}

/// Appends bytes to the log.
fn append(desk: &Desk, bytes: &[u8]) -> Result<()> {
    let files = Additions::new(desk.files());
    let _commit = files.lock("lock-commit", Hold::Alone, true)?;
    let log = files.open(&desk.log())?;
    log.write_at(fs::metadata(desk.at().join(desk.log())).unwrap().len(), bytes)?;
    log.sync()
}

#[test]
fn rule_46_the_log_grows_by_one_frame_at_a_time() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    let files = Additions::new(desk.files());
    let log = files.open(&desk.log()).unwrap();
    let end = log.bytes().unwrap();
    let frame = [header(&desk, 88), vec![7; 88]].concat();
    let kind = |done: Result<()>| done.map_err(|error| error.kind());
    assert_eq!(kind(log.write_at(end, &frame)), Err(Kind::Denied), "without the lock");
    for (what, bytes) in [
        ("no frame", vec![7; 128]),
        ("a part of a header", frame[..39].to_vec()),
        ("two frames", [&frame[..], &frame[..]].concat()),
        ("a header within", [&frame[..64], &frame[..64]].concat()),
        ("longer than it says", [&frame[..], &[0; 64]].concat()),
        ("not the next one", header(&desk, 88).iter().map(|b| b.wrapping_add(1)).collect()),
        ("far too long", header(&desk, 32 << 20)),
        ("a header in the last bytes", [&frame[..64], &frame[..16]].concat()),
    ] {
        assert_eq!(kind(append(&desk, &bytes)), Err(Kind::Denied), "{what}");
    }
    assert_eq!(log.bytes().unwrap(), end);
    // In pieces, and anew after a failure.
    let commit = files.lock("lock-commit", Hold::Alone, true).unwrap();
    log.write_at(end, &frame[..64]).unwrap();
    assert_eq!(kind(log.write_at(end + 128, &frame[..64])), Err(Kind::Denied), "a gap");
    log.write_at(end, &frame[..64]).unwrap();
    log.write_at(end + 64, &frame[64..]).unwrap();
    assert_eq!(kind(log.write_at(end + 128, &[0; 64])), Err(Kind::Denied), "behind it");
    log.sync().unwrap();
    assert_eq!(kind(log.write_at(end, &frame[..64])), Err(Kind::Denied), "it is durable");
    drop(commit);
    assert_eq!(kind(log.write_at(end + 128, &frame)), Err(Kind::Denied), "the lock is given back");
    // Nobody can open that frame: manage writes over it, and then put keys go on.
    let archive = desk.adding(&web);
    let error = store(&archive, "web1", 1, &noise(1, 1000)).unwrap_err();
    assert!(error.to_string().contains("`onefold gc`"), "{error}");
    store(&desk.manage(), "vault", 2, &noise(2, 1000)).unwrap();
    store(&desk.adding(&web), "web1", 3, &noise(3, 1000)).unwrap();
    assert_eq!(names(&desk.manage()), [2, 3]);
    is_whole(&desk);
}

/// A log that nobody can read for its length would be one that nobody can cut off either.
#[test]
fn rule_46_a_log_grows_no_longer_than_manage_has_room_behind_it() {
    const FRAME: u64 = 16 << 20;
    let desk = Desk::new();
    desk.grant("web1", &["web1"]);
    let path = desk.at().join(desk.log());
    let log = fs::File::options().write(true).open(&path).unwrap();
    // Frames of holes, as a client could write them, but for their bytes.
    for _ in 0..12 {
        let end = fs::metadata(&path).unwrap().len();
        log.write_all_at(&header(&desk, (FRAME - 64) as u32), end).unwrap();
        log.set_len(end + FRAME).unwrap();
    }
    let frame = |body: u32| {
        let header = header(&desk, body);
        [&header[..], &vec![7; body as usize]].concat()
    };
    append(&desk, &frame(88)).unwrap();
    // The next one would end behind 208 MiB and a few.
    let next = append(&desk, &frame(FRAME as u32)[..64]);
    assert_eq!(next.map_err(|error| error.kind()), Err(Kind::Denied));
    let files = Additions::new(desk.files());
    let _commit = files.lock("lock-commit", Hold::Alone, true).unwrap();
    let log = files.open(&desk.log()).unwrap();
    log.reserve(0, 4096).unwrap();
    assert_eq!(log.reserve(0, 250 << 20).map_err(|error| error.kind()), Err(Kind::Denied));
}

#[test]
fn rule_46_what_a_crash_left_of_a_frame_is_written_over() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    for (number, torn) in [(1, 64), (2, 128), (3, 640)] {
        let bytes = [header(&desk, 1000), vec![7; 1000]].concat();
        append(&desk, &bytes[..torn]).unwrap();
        store(&desk.adding(&web), "web1", number, &noise(3, 1000)).unwrap();
    }
    assert_eq!(names(&desk.manage()).len(), 3);
    is_whole(&desk);
}

/// What the client has open was the next log for a moment, and is another file now.
#[test]
fn rule_46_a_stale_handle_of_a_log_writes_nowhere() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    let (client, old) = (Additions::new(desk.files()), desk.log());
    let next = format!("log-{:010}", old[4..].parse::<u32>().unwrap() + 1);
    desk.files().create(&next).unwrap();
    let stale = client.open(&next).unwrap();
    desk.files().remove(&next).unwrap();
    renew_log(&desk.manage()).unwrap();
    assert_eq!(desk.log(), next);
    store(&desk.adding(&web), "web1", 1, &noise(1, 1000)).unwrap();
    let before = desk.content();
    let _commit = client.lock("lock-commit", Hold::Alone, true).unwrap();
    let now = client.open(&next).unwrap();
    let long = [header(&desk, 16_000), vec![7; 24]].concat();
    let _ = stale.write_at(0, &long[..64]);
    let _ = now.write_at(64, &[0; 64]);
    let _ = (stale.sync(), now.write_at(64, &[0; 64]));
    let after = desk.content();
    for (name, bytes) in &before {
        assert!(after[name].starts_with(bytes), "{name} was changed");
    }
}

#[test]
fn rule_46_a_log_that_is_not_certainly_the_last_one_takes_nothing() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    store(&desk.manage(), "vault", 1, &noise(1, 1000)).unwrap();
    let name = desk.log();
    let next = format!("log-{:010}", name[4..].parse::<u32>().unwrap() + 1);
    let refused = |what: &str| {
        let frame = [header(&desk, 88), vec![7; 88]].concat();
        assert_eq!(
            append(&desk, &frame).map_err(|error| error.kind()),
            Err(Kind::Denied),
            "{what}"
        );
    };
    // Another label may have named it, and its write was lost.
    fs::write(desk.at().join(&next), [1; 64]).unwrap();
    let frame = [header_of(&desk, &name, 88), vec![7; 88]].concat();
    let files = Additions::new(desk.files());
    let commit = files.lock("lock-commit", Hold::Alone, true).unwrap();
    let log = files.open(&name).unwrap();
    let done = log.write_at(log.bytes().unwrap(), &frame);
    assert_eq!(done.map_err(|error| error.kind()), Err(Kind::Denied), "a log behind");
    drop(commit);
    fs::remove_file(desk.at().join(&next)).unwrap();
    let (label, log) = (desk.at().join("label"), desk.at().join(&name));
    let whole = fs::read(&label).unwrap();
    for place in [0, 4096] {
        let mut damaged = whole.clone();
        damaged[place + 100..place + 200].fill(0xee);
        fs::write(&label, &damaged).unwrap();
        // A place that was never written is no damage.
        if whole[place..place + 16] != [0; 16] {
            refused("a damaged label");
        }
    }
    fs::write(&label, &whole).unwrap();
    // The header of a frame rotted: behind it are changes.
    let kept = fs::read(&log).unwrap();
    let mut rotten = kept.clone();
    rotten[..8].fill(0);
    fs::write(&log, &rotten).unwrap();
    refused("a header that rotted");
    fs::write(&log, &kept).unwrap();
    store(&desk.adding(&web), "web1", 2, &noise(2, 1000)).unwrap();
    is_whole(&desk);
}

#[test]
fn rule_46_what_can_be_opened_behind_damage_is_given_up_by_another_word() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    store(&desk.manage(), "vault", 1, &noise(1, 1000)).unwrap();
    let end = fs::metadata(desk.at().join(desk.log())).unwrap().len() as usize;
    for number in [2, 3] {
        store(&desk.adding(&web), "web1", number, &noise(2, 1000)).unwrap();
    }
    // A frame of the first backup rots.
    let path = desk.at().join(desk.log());
    let mut bytes = fs::read(&path).unwrap();
    bytes[end + 48] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = desk.try_manage(GiveUp::Unreadable).err().unwrap();
    assert!(error.to_string().contains("--cut-log=all"), "{error}");
    renew_log(&desk.try_manage(GiveUp::Later).unwrap()).unwrap();
    assert_eq!(names(&desk.manage()), [1]);
}

#[test]
fn rule_46_frames_that_nobody_can_open_are_given_up_by_manage() {
    let desk = Desk::new();
    let web = desk.grant("web1", &["web1"]);
    store(&desk.adding(&web), "web1", 1, &noise(1, 1000)).unwrap();
    for _ in 0..3 {
        append(&desk, &[header(&desk, 88), vec![7; 88]].concat()).unwrap();
    }
    let error = desk.try_manage(GiveUp::Nothing).err().unwrap();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    assert!(error.to_string().contains("--cut-log"), "{error}");
    renew_log(&desk.try_manage(GiveUp::Unreadable).unwrap()).unwrap();
    assert_eq!(names(&desk.manage()), [1]);
    store(&desk.adding(&web), "web1", 2, &noise(2, 1000)).unwrap();
    assert_eq!(names(&desk.manage()), [1, 2]);
    is_whole(&desk);
}
