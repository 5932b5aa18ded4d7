//! The contract of every object store.
#![allow(clippy::unwrap_used, reason = "a check fails by panicking")]

use std::sync::Arc;

use onefold_bucket::{Created, Objects};
use onefold_core::Kind;

/// Runs all checks below a name that nobody uses, and leaves nothing there.
pub(crate) fn hold(store: &Arc<dyn Objects>) {
    ranges(&**store);
    created_once(store);
    replaced_and_deleted(&**store);
    listed(&**store);
    onefold_bucket::probe(store, &*super::quick(1)).unwrap();
}

fn ranges(store: &dyn Objects) {
    let error = store.get("data/none", 0, 10).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    assert!(matches!(store.create("data/a", &bytes), Created::New));
    for (at, n) in [(0, 10), (5, 100_000), (199_990, 10), (199_990, 1000), (0, 1 << 20)] {
        let body = store.get("data/a", at, n).unwrap();
        let end = (at + n).min(200_000) as usize;
        assert_eq!(body.bytes, bytes[at as usize..end], "{n} bytes from {at}");
        assert_eq!(body.total, 200_000);
        assert!(body.modified > 1_500_000_000);
    }
    store.delete("data/a").unwrap();
    assert_eq!(store.get("data/a", 0, 1).unwrap_err().kind(), Kind::NotFound);
}

fn created_once(store: &Arc<dyn Objects>) {
    let ends: Vec<Created> = std::thread::scope(|scope| {
        let send = |n: u8| store.create("log/1", &[n; 100]);
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || send(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let new: Vec<usize> = (0..8).filter(|n| matches!(ends[*n], Created::New)).collect();
    assert_eq!(new.len(), 1, "of eight creations at once one succeeds: {ends:?}");
    assert!(matches!(store.create("log/1", &[9; 100]), Created::Exists));
    assert_eq!(store.get("log/1", 0, 1000).unwrap().bytes, [new[0] as u8; 100]);
    store.delete("log/1").unwrap();
    assert!(matches!(store.create("log/1", &[9; 100]), Created::New));
    store.delete("log/1").unwrap();
}

fn replaced_and_deleted(store: &dyn Objects) {
    for n in 0..3 {
        store.replace("writer/1", &[n; 5]).unwrap();
        assert_eq!(store.get("writer/1", 0, 64).unwrap().bytes, [n; 5]);
    }
    store.delete("writer/1").unwrap();
    store.delete("writer/1").unwrap();
}

fn listed(store: &dyn Objects) {
    let names: Vec<String> = (0..250).map(|n| format!("table/{n:05}")).collect();
    for name in &names {
        assert!(matches!(store.create(name, name.as_bytes()), Created::New));
    }
    assert!(matches!(store.create("tablex", b"x"), Created::New));
    let (mut all, mut after) = (Vec::new(), String::from("table/"));
    loop {
        let some = store.list("table/", &after).unwrap();
        let Some(last) = some.last() else { break };
        after.clone_from(&last.name);
        assert!(some.iter().all(|one| one.bytes == 11));
        all.extend(some.into_iter().map(|one| one.name));
    }
    assert_eq!(all, names);
    let behind = store.list("table/", "table/00247").unwrap();
    assert_eq!(behind.len(), 2);
    assert!(store.list("none/", "none/").unwrap().is_empty());
    for name in names.iter().map(String::as_str).chain(["tablex"]) {
        store.delete(name).unwrap();
    }
}
