//! A session that dies in the middle of a shrink, after each of its operations.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_cluster::{Format, Mode, Scrub, Session, Settings, Volume, create};
use onefold_core::object::{PoolKind, Refusal, Write};
use onefold_testbed::MemoryObjects;
use support::{Fault, Faulty};

/// True when the shrink was done after so many operations.
fn shrinks_within(operations: u64) -> bool {
    const OBJECT: u64 = 64 << 10;
    let store = MemoryObjects::new(PoolKind::Replicated);
    let format = Format {
        object_bytes: OBJECT as u32,
        chunk_bytes: 16 << 10,
        ..Format::new([1; 16], [2; 32], PoolKind::Replicated)
    };
    create(&store, &format).unwrap();
    let first =
        Arc::new(Session::open(Arc::new(store.session("first")), Settings::default()).unwrap());
    first.create_volume("v", 6 * OBJECT).unwrap();
    let volume = Volume::attach(&first, "v", Mode::Own).unwrap();
    volume.write_at(0, &vec![7; 6 * OBJECT as usize]).unwrap();
    volume.detach().unwrap();

    let left = Arc::new(AtomicU64::new(u64::MAX));
    let counted = left.clone();
    let dies = move |_: &Write| {
        let dead = counted.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err();
        dead.then_some(Fault { refusal: Refusal::Fenced, applied: false })
    };
    let mortal = Arc::new(Faulty { store: store.session("mortal"), fault: dies });
    let second = Arc::new(Session::open(mortal, Settings::default()).unwrap());
    left.store(operations, Relaxed);
    let done = second.resize_volume("v", 2 * OBJECT).is_ok();

    let third =
        Arc::new(Session::open(Arc::new(store.session("third")), Settings::default()).unwrap());
    Volume::attach(&third, "v", Mode::TakeOver).unwrap().detach().unwrap();
    let cut = third.find("v").unwrap().unwrap().bytes < 6 * OBJECT;
    third.resize_volume("v", 8 * OBJECT).unwrap();
    let volume = Volume::attach(&third, "v", Mode::Own).unwrap();
    let mut bytes = vec![1; 8 * OBJECT as usize];
    volume
        .read_at(0, &mut bytes)
        .unwrap_or_else(|error| panic!("after {operations} operations: {error:?}"));
    let kept = 2 * OBJECT as usize;
    assert!(
        bytes[..kept].iter().all(|byte| *byte == 7),
        "after {operations} operations: what was not cut off"
    );
    assert!(
        !cut || bytes[kept..].iter().all(|byte| *byte == 0),
        "after {operations} operations: what was cut off"
    );
    let mut scrub = Scrub::new(third.clone(), true).unwrap();
    while scrub.step().unwrap() {}
    assert_eq!(scrub.report().damage, Vec::<String>::new(), "after {operations} operations");
    done
}

#[test]
fn a_shrink_that_is_interrupted_leaves_nothing_where_the_volume_grows_again() {
    let all = (0..1000).find(|operations| shrinks_within(*operations)).unwrap();
    assert!(all > 10, "{all} operations");
}
