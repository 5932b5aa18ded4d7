//! A volume is deleted whose owner died at any of its operations: no object of it stays.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_cluster::{Format, Mode, Session, Settings, Volume, What, create, format::ObjectId};
use onefold_core::object::{ObjectStore, Pool, PoolKind, Refusal, Write};
use onefold_testbed::MemoryObjects;
use support::{Fault, Faulty};

const OBJECT: u64 = 64 << 10;

/// Most bytes that a volume may have.
const VOLUME_MAX: u64 = 128 << 40;

fn new_store() -> MemoryObjects {
    let store = MemoryObjects::new(PoolKind::Replicated);
    let format = Format {
        object_bytes: OBJECT as u32,
        chunk_bytes: 16 << 10,
        ..Format::new([1; 16], [2; 32], PoolKind::Replicated)
    };
    create(&store, &format).unwrap();
    store
}

/// The objects of volumes, by name.
fn objects(store: &MemoryObjects) -> Vec<String> {
    let page = store.list(Pool::Metadata, None, 10_000).unwrap();
    assert_eq!(page.next, None);
    page.names.into_iter().filter(|name| ObjectId::parse(name).is_some()).collect()
}

/// The owner of a volume writes to its first and its last object, and dies after so many
/// operations. True when it wrote all.
fn deleted(bytes: u64, operations: u64, looked_for_max: u64) -> bool {
    let store = new_store();
    let left = AtomicU64::new(operations);
    let dies = move |_: &Write| {
        let dead = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err();
        dead.then_some(Fault { refusal: Refusal::Fenced, applied: false })
    };
    let open = |name: &str| {
        Arc::new(
            Session::open(
                Arc::new(store.session(name)),
                Settings { looked_for_max, ..Settings::default() },
            )
            .unwrap(),
        )
    };
    let living = open("living");
    living.create_volume("v", bytes).unwrap();
    living.create_volume("other", 4 * OBJECT).unwrap();
    let other = Volume::attach(&living, "other", Mode::Own).unwrap();
    other.write_at(0, &[1; 4096]).unwrap();
    other.detach().unwrap();
    let mortal = Faulty { store: store.session("mortal"), fault: dies };
    let written = Session::open(Arc::new(mortal), Settings::default()).is_ok_and(|session| {
        let volume = Volume::attach(&Arc::new(session), "v", Mode::Own);
        volume.is_ok_and(|volume| {
            [0, bytes - OBJECT].iter().all(|at| volume.write_at(*at, &[7; 8192]).is_ok())
        })
    });
    living.delete("v", What::Volume).unwrap();
    while living.delete_step().unwrap() {}
    assert_eq!(
        objects(&store).len(),
        1,
        "after {operations} operations: the other volume's object stays"
    );
    written
}

#[test]
fn a_deleted_volume_leaves_no_object_whenever_its_owner_died() {
    for looked_for_max in [0, 1 << 14] {
        let all =
            (0..1000).find(|operations| deleted(8 * OBJECT, *operations, looked_for_max)).unwrap();
        assert!(all > 4, "{all} operations");
    }
}

/// One by one, its two thousand million objects would take hours.
#[test]
fn deleting_and_cutting_the_largest_volume_costs_what_is_in_it() {
    assert!(deleted(VOLUME_MAX, u64::MAX, Settings::default().looked_for_max));
    let store = new_store();
    let session =
        Arc::new(Session::open(Arc::new(store.session("one")), Settings::default()).unwrap());
    session.create_volume("v", VOLUME_MAX).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    volume.write_at(VOLUME_MAX - OBJECT, &[7; 4096]).unwrap();
    volume.detach().unwrap();
    session.resize_volume("v", OBJECT).unwrap();
    assert_eq!(objects(&store), Vec::<String>::new());
}
