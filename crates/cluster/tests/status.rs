//! What a status tells of a store that it does not read whole.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use onefold_cluster::{Format, Look, Session, Settings, create};
use onefold_core::object::{ObjectStore, Pool, PoolKind, Write};
use onefold_testbed::MemoryObjects;
use support::{Faulty, READ};

/// Bytes that repeat only within themselves, in a few places.
fn content(bytes: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| next()).collect()
}

#[test]
fn a_sample_tells_how_far_from_the_truth_it_may_be_and_reads_little() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    let format =
        Format { object_bytes: 64 << 10, ..Format::new([1; 16], [2; 32], PoolKind::Replicated) };
    create(&store, &format).unwrap();
    let faulty = Faulty { store: store.session("one"), fault: |_: &Write| None };
    let session = Arc::new(Session::open(Arc::new(faulty), Settings::default()).unwrap());
    session.put("large", &mut &content(40 << 20)[..]).unwrap();
    session.put("small", &mut &content(100_000)[..]).unwrap();
    // Most of its objects are not there.
    session.create_volume("sparse", 64 << 20).unwrap();
    let truth = session.status().unwrap();
    assert!(truth.sampled.is_none() && truth.objects > 600, "{truth:?}");

    // All are read where they are no more than the sample.
    let all = session.status_by(Look::Sample { objects: 10_000, seed: 1 }).unwrap();
    assert_eq!(all, truth);

    let mut within = 0;
    for seed in 0..20 {
        let before = READ.load(Relaxed);
        let look = Look::Sample { objects: 100, seed };
        let found = session.status_by(look).unwrap();
        let sampled = found.sampled.unwrap();
        let read = READ.load(Relaxed) - before;
        assert!(sampled.of > 1600 && sampled.read < 1000, "{sampled:?}");
        assert!(read < sampled.read + 2500, "{read}: the lists, the chunks, and the sample");
        let near = |found: u64, truth: u64, bound: u64| found.abs_diff(truth) <= bound;
        assert!(near(found.logical_bytes, truth.logical_bytes, 3 * sampled.logical_bytes));
        within += u64::from(near(found.logical_bytes, truth.logical_bytes, sampled.logical_bytes));
        assert_eq!((found.chunks, found.chunk_bytes), (truth.chunks, truth.chunk_bytes));
        assert_eq!((found.puts, found.volumes), (2, 1));
    }
    assert!(within >= 16, "{within} of 20 within the bound");
}

/// The object store knows how many chunks there are.
#[test]
fn memory_tells_what_its_pools_hold() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    let session = Session::open(Arc::new(store.session("one")), Settings::default()).unwrap();
    session.put("one", &mut &content(1 << 20)[..]).unwrap();
    let status = session.status().unwrap();
    let held = store.held(Pool::Chunks).unwrap().unwrap();
    assert_eq!((held.objects, held.bytes), (status.chunks, status.chunk_bytes));
}
