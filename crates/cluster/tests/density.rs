//! How a status counts the chunks of a folder.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_cluster::{Format, Look, Session, Settings, create};
use onefold_core::{
    checksum,
    object::{Change, ObjectName, ObjectStore, PoolKind, Write},
};
use onefold_testbed::MemoryObjects;
use support::Faulty;

/// A store that does not count its pools, as a folder.
#[test]
fn chunks_are_estimated_from_how_dense_their_names_are() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    let bytes = |n: u64| 1000 + n % 3 * 500;
    let truth = 30_000u64;
    for n in 0..truth {
        let hash = checksum::fast(1, &n.to_le_bytes());
        let object = ObjectName::chunk(format!("c.0.{:016x}{:048x}.dac.0", hash, n));
        let changes = vec![Change::Full(vec![1; bytes(n) as usize])];
        store.write(&[Write { object, guards: vec![], changes }]).remove(0).unwrap();
    }
    let folder = Faulty { store: store.session("look"), fault: |_: &Write| None };
    let session = Session::look(Arc::new(folder), Settings::default()).unwrap();
    let near = |found: u64, truth: u64, bound: u64| found.abs_diff(truth) <= bound;
    let mut within = 0;
    for seed in 0..20 {
        let found = session.status_by(Look::Sample { objects: 10, seed: seed * 99 }).unwrap();
        let sampled = found.sampled.unwrap();
        assert!(sampled.chunks > 0 && sampled.chunks < truth / 8, "{sampled:?}");
        assert!(near(found.chunks, truth, 3 * sampled.chunks), "{found:?}");
        within += u64::from(
            near(found.chunks, truth, sampled.chunks)
                && near(found.chunk_bytes, truth * 1500, sampled.chunk_bytes),
        );
    }
    assert!(within >= 16, "{within} of 20");
    let exact = session.status().unwrap();
    assert_eq!((exact.chunks, exact.chunk_bytes, exact.sampled), (truth, truth * 1500, None));
}
