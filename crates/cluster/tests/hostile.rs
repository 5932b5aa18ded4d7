//! Stores that somebody wrote to keep a reader busy.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use onefold_cluster::{Format, Scrub, Session, Settings, create, format::ObjectId};
use onefold_core::object::{Change, ObjectName, ObjectStore, Pool, PoolKind, Write};
use onefold_testbed::MemoryObjects;
use support::{Faulty, READ};

/// Objects that belong to nothing, and as many names whose objects are missing.
const MANY: u64 = 1000;

/// Each object of which the catalogue tells nothing, and each that is missing, was a reason to read
/// all names once more.
#[test]
fn rule_09_a_look_reads_the_names_for_few_objects_only() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    let faulty = Faulty { store: store.session("one"), fault: || None };
    let session = Arc::new(Session::open(Arc::new(faulty), Settings::default()).unwrap());
    let write = |object: ObjectName, changes| {
        store.write(&[Write { object, guards: Vec::new(), changes }]).remove(0).unwrap();
    };
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
