//! Stores that somebody wrote to keep a reader busy.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::{Arc, Mutex, atomic::Ordering::Relaxed};

use onefold_cluster::{Format, Named, Scrub, Session, Settings, What, create, format::ObjectId};
use onefold_core::{
    Kind,
    object::{Change, ObjectName, ObjectStore, Pool, PoolKind, Write},
};
use onefold_testbed::MemoryObjects;
use support::{Faulty, READ};

/// Held by a test that counts what is read.
static COUNTS: Mutex<()> = Mutex::new(());

/// A store, and a session of it whose reads are counted.
fn counted() -> (MemoryObjects, Arc<Session>) {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    let faulty = Faulty { store: store.session("one"), fault: || None };
    let session = Arc::new(Session::open(Arc::new(faulty), Settings::default()).unwrap());
    (store, session)
}

fn write(store: &MemoryObjects, object: ObjectName, changes: Vec<Change>) {
    store.write(&[Write { object, guards: Vec::new(), changes }]).remove(0).unwrap();
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
