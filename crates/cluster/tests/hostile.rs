//! Stores that somebody wrote to keep a reader busy.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use onefold_cluster::{
    Format, Mode, Named, Published, Scrub, Session, Settings, Volume, Watermarks, What, Worker,
    create,
    format::{ObjectId, key},
};
use onefold_core::{
    Kind,
    object::{Change, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, Write},
};
use onefold_testbed::MemoryObjects;
use support::{Faulty, READ};

/// Held by a test that counts what is read.
static COUNTS: Mutex<()> = Mutex::new(());

/// A store, and a session of it whose reads are counted.
fn counted() -> (MemoryObjects, Arc<Session>) {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    let faulty = Faulty { store: store.session("one"), fault: |_: &Write| None };
    let session = Arc::new(Session::open(Arc::new(faulty), Settings::default()).unwrap());
    (store, session)
}

fn write(store: &MemoryObjects, object: ObjectName, changes: Vec<Change>) {
    store.write(&[Write { object, guards: Vec::new(), changes }]).remove(0).unwrap();
}

/// The shard of names with this key.
fn shard_with(store: &MemoryObjects, key: &[u8]) -> ObjectName {
    let mut shards = (0..256).map(|shard| ObjectName::metadata(format!("n.{shard:02x}")));
    let found = shards.find(|shard| {
        let parts = vec![ReadPart::Keys(vec![key.to_vec()])];
        let answers = store.read(&[Read { object: shard.clone(), parts }]);
        answers[0].as_ref().is_ok_and(|answer| !answer.pairs(0).0.is_empty())
    });
    found.unwrap()
}

/// Objects that belong to nothing, and as many names whose objects are missing.
const MANY: u64 = 1000;

/// Each object of which the catalogue tells nothing, and each that is missing, was a reason to read
/// all names once more.
#[test]
fn rule_09_a_look_reads_the_names_for_few_objects_only() {
    let _counts = COUNTS.lock();
    let (store, session) = counted();
    let write = |object, changes| write(&store, object, changes);
    for n in 0..MANY {
        session.put(&format!("put {n}"), &mut &b"abc"[..]).unwrap();
    }
    for name in store.list(Pool::Metadata, None, 10_000).unwrap().names {
        if ObjectId::parse(&name).is_some() {
            write(ObjectName::metadata(name), vec![Change::Remove]);
        }
    }
    let next: u64 = 1 << 20;
    let ids = (b"ids".to_vec(), next.to_le_bytes().to_vec());
    write(ObjectName::metadata("catalogue"), vec![Change::SetOmap(vec![ids])]);
    for n in 0..MANY {
        let listed = (b"L".to_vec(), vec![0; 8]);
        let object = ObjectId { volume: next - 1 - n, index: 0 };
        write(object.name(), vec![Change::SetOmap(vec![listed])]);
    }
    let before = READ.load(Relaxed);
    let mut scrub = Scrub::look(session, false).unwrap();
    while scrub.step().unwrap() {}
    let (report, read) = (scrub.report(), READ.load(Relaxed) - before);
    assert_eq!((report.orphans, report.damage.len() as u64), (MANY, MANY));
    assert!(read < 100_000, "{read} objects were read");
}

/// A name that somebody gave another one's number: what it had before would count as orphans, and a
/// repair would remove it.
#[test]
fn rule_09_two_names_of_one_number_are_told_and_make_no_orphans() {
    let (store, session) = counted();
    for name in ["one", "other"] {
        session.put(name, &mut &b"some bytes of it"[..]).unwrap();
    }
    let named: Vec<(String, Named)> = session.names().unwrap();
    let (one, mut other) = (named[0].1, named[1].1);
    other.id = one.id;
    let key = b"nother".to_vec();
    write(&store, shard_with(&store, &key), vec![Change::SetOmap(vec![(key, other.encode())])]);
    for repairs in [false, true] {
        let mut scrub = match repairs {
            false => Scrub::look(session.clone(), false).unwrap(),
            true => Scrub::new(session.clone(), false).unwrap(),
        };
        while scrub.step().unwrap() {}
        let report = scrub.report();
        assert_eq!(report.orphans, 0);
        let told = report.damage.iter().any(|told| told.contains("'one' and 'other' one number"));
        assert!(told, "{:?}", report.damage);
    }
}

/// Shards that share their keys in a folder would be read whole, all of them, before any was looked at.
#[test]
fn rule_09_names_where_they_do_not_belong_end_a_listing_at_once() {
    let _counts = COUNTS.lock();
    let (store, session) = counted();
    let named = Named { what: What::Put, id: 7, bytes: 0, pieces: 0, moves: 0 };
    let names = (0..5000).map(|n| (format!("nname {n}").into_bytes(), named.encode()));
    let names: Vec<(Vec<u8>, Vec<u8>)> = names.collect();
    for shard in 0..256 {
        let shard = ObjectName::metadata(format!("n.{shard:02x}"));
        write(&store, shard, vec![Change::SetOmap(names.clone())]);
    }
    let before = READ.load(Relaxed);
    assert_eq!(session.names().unwrap_err().kind(), Kind::Corrupt);
    let read = READ.load(Relaxed) - before;
    assert!(read < 64, "{read} pages of names were read");
}

/// Removes the map's entries of put objects, and nothing of what they hold.
fn damage(store: &MemoryObjects, which: impl Fn(usize) -> bool, value: Option<&[u8]>) {
    let names = store.list(Pool::Metadata, None, 10_000).unwrap().names;
    let objects = names.into_iter().filter(|name| ObjectId::parse(name).is_some());
    let first_entry = vec![1; 3];
    for (_, name) in objects.enumerate().filter(|(n, _)| which(*n)) {
        let change = match value {
            Some(value) => Change::SetOmap(vec![(first_entry.clone(), value.to_vec())]),
            None => Change::DropOmap(vec![first_entry.clone()]),
        };
        write(store, ObjectName::metadata(name), vec![change]);
    }
}

#[test]
fn rule_08_a_stream_that_lost_a_part_is_not_got_as_if_it_was_whole() {
    let (store, session) = counted();
    session.put("a", &mut &[7; 100_000][..]).unwrap();
    assert_eq!(session.get("a", &mut Vec::new()).unwrap(), 100_000);
    damage(&store, |_| true, None);
    let lost = session.get("a", &mut Vec::new()).unwrap_err();
    assert_eq!(lost.kind(), Kind::Corrupt, "{lost}");
}

#[test]
fn damage_in_one_stream_that_was_deleted_keeps_no_other_one() {
    let (store, session) = counted();
    for name in ["a", "b", "c"] {
        session.put(name, &mut &b"abc"[..]).unwrap();
    }
    damage(&store, |n| n < 2, Some(b"nonsense"));
    for name in ["a", "b", "c"] {
        session.delete(name, What::Put).unwrap();
    }
    let left = || {
        let names = store.list(Pool::Metadata, None, 10_000).unwrap().names;
        names.iter().filter(|name| ObjectId::parse(name).is_some()).count()
    };
    let ended = (0..100).find_map(|_| session.delete_step().err()).unwrap();
    assert_eq!((ended.kind(), left()), (Kind::Corrupt, 2), "{ended}");
    // Nor do they keep a repair from its end, when nothing names them any more.
    for shard in 0..256 {
        let names = ObjectName::metadata(format!("n.{shard:02x}"));
        let _ = store.write(&[Write {
            object: names,
            guards: Vec::new(),
            changes: vec![Change::Remove],
        }]);
    }
    let mut scrub = Scrub::new(session, false).unwrap();
    while scrub.step().unwrap() {}
    assert_eq!((scrub.report().damage.len(), left()), (2, 2));
}

/// In small steps the first entries of an object, which could not be read, were tried again and again.
#[test]
fn rule_09_a_worker_goes_on_behind_entries_that_it_cant_read() {
    const CHUNK: u64 = 32 << 10;
    let (store, _) = counted();
    let settings = Settings { cold: Duration::ZERO, batch_bytes: CHUNK, ..Settings::default() };
    let session = Arc::new(Session::open(Arc::new(store.session("two")), settings).unwrap());
    session.create_volume("v", 64 << 20).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    for n in 0..3 {
        volume.write_at(n * CHUNK, &[n as u8 + 1; CHUNK as usize]).unwrap();
    }
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    let round = |worker: &mut Worker| {
        let (mut flipped, mut left) = (0, 0);
        for _ in 0..1000 {
            let step = worker.step().unwrap();
            (flipped, left) = (flipped + step.flipped, left + step.left);
            if step.round {
                return (flipped, left);
            }
        }
        panic!("the round has no end");
    };
    assert_eq!(round(&mut worker), (3, 0));
    for chunk in store.list(Pool::Chunks, None, 10).unwrap().names {
        write(&store, ObjectName::chunk(chunk), vec![Change::Full(vec![0; 5000])]);
    }
    for n in 0..5 {
        volume.write_at(n * CHUNK, &[9; 4096]).unwrap();
    }
    assert_eq!(round(&mut worker), (2, 1));
    assert_eq!(session.backlog().unwrap(), 1);
    let told = worker.take_left();
    assert!(told.len() == 1 && told[0].1.contains("is damaged"), "{told:?}");
    assert_eq!(round(&mut worker), (0, 1));
    assert!(worker.take_left().is_empty(), "it was told before");
    // Whole chunks need nothing of the damaged ones.
    for n in 0..3 {
        volume.write_at(n * CHUNK, &[n as u8 + 11; CHUNK as usize]).unwrap();
    }
    assert_eq!(round(&mut worker), (3, 0));
    assert_eq!(session.backlog().unwrap(), 0);
    volume.detach().unwrap();
}

/// Each of its objects was looked for, 33 million; there may be as many as 34 milliards.
#[test]
fn rule_09_a_huge_volume_that_was_not_closed_is_attached_by_what_there_is_of_it() {
    let _counts = COUNTS.lock();
    let (store, session) = counted();
    session.create_volume("v", 128 << 40).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    volume.write_at(100 << 40, &[7; 4096]).unwrap();
    for shard in 0..256 {
        // What a crash could have kept from it.
        let list = ObjectName::metadata(format!("d.{shard:02x}"));
        let _ = store.write(&[Write {
            object: list,
            guards: Vec::new(),
            changes: vec![Change::Remove],
        }]);
    }
    assert_eq!(session.backlog().unwrap(), 0);
    let faulty = Faulty { store: store.session("two"), fault: |_: &Write| None };
    let other = Arc::new(Session::open(Arc::new(faulty), Settings::default()).unwrap());
    let before = READ.load(Relaxed);
    let taken = Volume::attach(&other, "v", Mode::TakeOver).unwrap();
    let read = READ.load(Relaxed) - before;
    assert!(read < 1000, "{read} objects were read");
    assert_eq!(other.backlog().unwrap(), 1);
    let mut bytes = [0; 4096];
    taken.read_at(100 << 40, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
    taken.detach().unwrap();
}

/// All keys were held, with their values.
#[test]
fn rule_09_a_header_with_more_keys_than_the_largest_volume_has_is_damage() {
    let _counts = COUNTS.lock();
    let (store, session) = counted();
    session.create_volume("v", 1 << 30).unwrap();
    let id = session.find("v").unwrap().unwrap().id;
    let keys = (0..500_000).map(|n| (key::numbered(b'C', n), vec![0; 8])).collect();
    let header = ObjectName::metadata(format!("v.{id:010x}"));
    write(&store, header, vec![Change::SetOmap(keys)]);
    for mode in [Mode::Read, Mode::Own] {
        let refused = Volume::attach(&session, "v", mode).map(drop).unwrap_err();
        assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
        assert!(refused.to_string().contains("too many keys"), "{refused}");
    }
}

/// Servers, workers and `status` read them every second or so.
#[test]
fn rule_09_of_sessions_without_end_that_publish_some_are_looked_at() {
    let (store, session) = counted();
    let keys = (0..100_000).map(|n| (key::numbered(b's', n), vec![0; 17])).collect();
    write(&store, ObjectName::metadata("servers"), vec![Change::SetOmap(keys)]);
    let seen = session.published().unwrap().since(&Published::default());
    assert!((10_000..20_000).contains(&seen.servers), "{seen:?}");
}
