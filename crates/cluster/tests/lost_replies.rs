//! A store that loses replies, or applies an operation again later: what is written is right all the
//! same, and what is published says how many replies were lost.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_cluster::{
    Dedup, Format, Found, Mode, Published, Session, Settings, Standby, Volume, Watermarks, Worker,
    create,
};
use onefold_core::{
    Kind, Volume as _,
    object::{
        Change, Guard, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, Refusal, Write,
    },
};
use onefold_testbed::MemoryObjects;
use support::{Fault, Faulty};

fn publish(session: &Session, works: bool) {
    while session.publish(works).is_err() {}
}

/// The number of lost replies that `status` shows for all sessions.
fn told(looks: &Session) -> u64 {
    looks.published().unwrap().since(&Published::default()).unknown
}

#[test]
fn status_counts_the_operations_that_had_no_reply() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(
        &store,
        &Format {
            object_bytes: 64 << 10,
            chunk_bytes: 16 << 10,
            ..Format::new([1; 16], [2; 32], PoolKind::Replicated)
        },
    )
    .unwrap();
    let looks = Session::open(Arc::new(store.session("looks")), Settings::default()).unwrap();
    looks.create_volume("v", 1 << 20).unwrap();
    assert_eq!(told(&looks), 0);

    for (name, dedup) in [("writes", Dedup::PostProcessing), ("deduplicates", Dedup::Inline)] {
        let (asked, lost) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
        let counted = lost.clone();
        // Every third operation has no reply; one in two of these is applied.
        let loses = move |_: &Write| {
            let number = asked.fetch_add(1, Relaxed);
            let lost = number
                .is_multiple_of(3)
                .then(|| Fault { refusal: Refusal::Unknown, applied: number.is_multiple_of(2) });
            counted.fetch_add(u64::from(lost.is_some()), Relaxed);
            lost
        };
        let lossy = Arc::new(Faulty { store: store.session(name), fault: loses });
        let settings = Settings { dedup, cold: Duration::ZERO, ..Settings::default() };
        let session = Arc::new(Session::open(lossy, settings).unwrap());
        let volume = Volume::attach(&session, "v", Mode::TakeOver).unwrap();
        let data: Vec<u8> = (0..300_000u32).map(|n| (n / 4096) as u8 + 1).collect();
        // Of many objects together, and of one.
        volume.write_at(4096, &data).unwrap();
        volume.write_at(0, &data[..5000]).unwrap();
        let mut read = vec![0; data.len() - 5000];
        volume.read_at(4096 + 5000, &mut read).unwrap();
        assert!(read == data[5000..]);
        let mut worker = Worker::new(session.clone(), Watermarks::NONE);
        while session.backlog().unwrap() > 0 {
            let _ = worker.step();
        }
        volume.detach().unwrap();
        let before = told(&looks);
        publish(&session, false);
        let lost = lost.load(Relaxed);
        assert!(lost > 5, "{lost} replies were lost");
        // The last publication may have been lost, too, and is not in itself.
        let said = told(&looks) - before;
        assert!(said == lost || said + 1 == lost, "{said} of {lost}");
        session.unpublish().or_else(|_| session.unpublish()).unwrap();
        assert_eq!(told(&looks), before);
    }
}

/// Deduplicates all that is on the dirty list.
fn deduplicate(session: &Arc<Session>) {
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    while session.backlog().unwrap() > 0 {
        worker.step().unwrap();
    }
}

/// Were *present* set wherever the state is *pending* with the stamp of its session, then the two steps of a
/// creation, applied again, would make a chunk that was removed meanwhile one whose data nobody writes.
#[test]
fn a_chunk_that_late_copies_make_anew_is_not_taken_for_one_with_data() {
    for pool in [PoolKind::Erasure, PoolKind::Replicated] {
        let store = MemoryObjects::new(pool);
        let format = Format {
            object_bytes: 64 << 10,
            chunk_bytes: 16 << 10,
            ..Format::new([1; 16], [2; 32], pool)
        };
        create(&store, &format).unwrap();
        let applied = Arc::new(Mutex::new(Vec::new()));
        let notes = applied.clone();
        let notes = move |op: &Write| {
            notes.lock().unwrap().push(op.clone());
            None
        };
        let noted = Arc::new(Faulty { store: store.session("first"), fault: notes });
        let settings = || Settings { cold: Duration::ZERO, ..Settings::default() };
        let first = Arc::new(Session::open(noted, settings()).unwrap());
        first.create_volume("v", 1 << 20).unwrap();
        let volume = Volume::attach(&first, "v", Mode::Own).unwrap();
        let (old, new) = (vec![7; 16 << 10], vec![8; 16 << 10]);
        volume.write_at(0, &old).unwrap();
        deduplicate(&first);
        volume.write_at(0, &new).unwrap();
        deduplicate(&first);
        volume.detach().unwrap();
        let chunks = || store.list(Pool::Chunks, None, 10).unwrap().names.len();
        assert_eq!(chunks(), 1);
        let applied = std::mem::take(&mut *applied.lock().unwrap());
        for late in applied.into_iter().filter(|op| op.object.pool == Pool::Metadata) {
            let _ = store.session("first").write(&[late]);
        }

        let second = Session::open(Arc::new(store.session("second")), settings()).unwrap();
        let second = Arc::new(second);
        second.create_volume("w", 1 << 20).unwrap();
        for (name, data) in [("w", &old), ("v", &new)] {
            let volume = Volume::attach(&second, name, Mode::TakeOver).unwrap();
            if name == "w" {
                volume.write_at(0, data).unwrap();
                deduplicate(&second);
            }
            let mut read = vec![0; data.len()];
            volume.read_at(0, &mut read).unwrap();
            assert!(read == **data, "{pool:?}: {name}");
            volume.detach().unwrap();
        }
    }
}

/// Workers may have judged, and removed, the attempt of a reference that came late. Where its step failed,
/// nobody else would know of it.
#[test]
fn a_step_that_fails_notes_its_attempts_again() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    let format = Format {
        object_bytes: 64 << 10,
        chunk_bytes: 16 << 10,
        shards: 1,
        ..Format::new([1; 16], [2; 32], PoolKind::Replicated)
    };
    create(&store, &format).unwrap();
    let attempts = || {
        let name = ObjectName::metadata("a.00");
        let answer = store.read(&[Read { object: name, parts: vec![ReadPart::Page(vec![], 100)] }]);
        let found = answer.into_iter().next().unwrap();
        let pairs = found.map(|found| found.pairs(0).0.to_vec()).unwrap_or_default();
        pairs.into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>()
    };
    // The store takes one chunk, and then it is full.
    let room = Arc::new(AtomicU64::new(1));
    let left = room.clone();
    let fills = move |op: &Write| {
        let is_new = op.object.pool == Pool::Chunks && op.guards.contains(&Guard::Absent);
        let is_full = is_new && left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_err();
        is_full.then_some(Fault { refusal: Refusal::Full, applied: false })
    };
    let full = Arc::new(Faulty { store: store.session("first"), fault: fills });
    let settings = Settings { cold: Duration::ZERO, ..Settings::default() };
    let session = Arc::new(Session::open(full, settings).unwrap());
    session.create_volume("v", 1 << 20).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    volume.write_at(0, &[[7; 16 << 10], [8; 16 << 10]].concat()).unwrap();
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    assert!((0..9).any(|_| worker.step().is_err()));
    let noted = attempts();
    assert_eq!(noted.len(), 2);
    // Judged by a worker that saw no reference yet.
    let gone = Change::DropOmap(noted.iter().cloned().collect());
    let object = ObjectName::metadata("a.00");
    store.write(&[Write { object, guards: vec![], changes: vec![gone] }]).remove(0).unwrap();
    room.store(u64::MAX, Relaxed);
    volume.write_at(0, &[0; 32 << 10]).unwrap();
    volume.write_at(512 << 10, &[9; 16 << 10]).unwrap();
    deduplicate(&session);
    assert!(attempts().is_superset(&noted));
    volume.detach().unwrap();
}

#[test]
fn a_write_that_was_refused_is_over_and_a_trim_that_panicked_may_still_come() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    let state = Arc::new(AtomicU64::new(0));
    let now = state.clone();
    let fails = move |_: &Write| match now.load(Relaxed) {
        0 => None,
        1 => Some(Fault { refusal: Refusal::Full, applied: false }),
        _ => panic!("as a test wants it"),
    };
    let faulty = Arc::new(Faulty { store: store.session("first"), fault: fails });
    let session = Arc::new(Session::open(faulty, Settings::default()).unwrap());
    session.create_volume("v", 1 << 20).unwrap();
    let Found::Mine(_gateway) = Standby::new(session.clone()).look().unwrap() else {
        panic!("it does not serve")
    };
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    volume.write_at(0, &[7; 8192]).unwrap();
    state.store(1, Relaxed);
    assert_eq!(volume.write_at(0, &[8; 4096]).unwrap_err().kind(), Kind::NoSpace);
    assert!(volume.changes().is_some(), "nothing of the write will come");
    state.store(2, Relaxed);
    let trim = std::panic::AssertUnwindSafe(|| volume.discard(0, 4096));
    assert!(std::panic::catch_unwind(trim).is_err());
    assert!(volume.changes().is_none(), "the trim may come");
    state.store(0, Relaxed);
}
