//! Volumes for a server: one whose attachment takes long keeps nobody from the others, whether
//! these are attached already or not.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use onefold_cluster::{ClusterExports, Format, Mode, Named, Session, Settings, What, create};
use onefold_core::{
    Exports, checksum,
    object::{Change, ObjectName, ObjectStore, PoolKind, Write},
};
use onefold_testbed::MemoryObjects;
use support::{Faulty, READ};

#[test]
fn rule_12_a_volume_that_is_being_attached_keeps_nobody_from_the_others() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    // While it is set, writes of the session stand still.
    let (holds, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (set, count) = (holds.clone(), held.clone());
    let slow = move |_: &Write| {
        count.fetch_add(u64::from(set.load(SeqCst)), SeqCst);
        while set.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    };
    let slow = Arc::new(Faulty { store: store.session("serves"), fault: slow });
    let session = Session::open(slow, Settings::default()).unwrap();
    for name in ["one", "other"] {
        session.create_volume(name, 1 << 20).unwrap();
    }
    let exports = Arc::new(ClusterExports::new(Arc::new(session), Mode::Own));
    drop(exports.open("one").unwrap());
    holds.store(true, SeqCst);
    let opens = {
        let exports = exports.clone();
        std::thread::spawn(move || exports.open("other").map(drop))
    };
    while held.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (tell, told) = mpsc::channel();
    {
        let exports = exports.clone();
        std::thread::spawn(move || {
            let looked = (exports.cached_bytes(), exports.open("one").is_ok(), exports.renew());
            tell.send(looked.2.map(|()| looked.1))
        });
    }
    let answered = told.recv_timeout(Duration::from_secs(20));
    holds.store(false, SeqCst);
    assert!(answered.unwrap().unwrap(), "the first volume is used, and its lock is kept");
    opens.join().unwrap().unwrap();
    exports.close().unwrap();
}

#[test]
fn rule_12_a_volume_that_is_being_attached_keeps_no_other_from_being_attached() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    // The first write after it is set stands still until the end; others go on.
    let (stops, stands, ends) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (first, still, end) = (stops.clone(), stands.clone(), ends.clone());
    let slow = move |_: &Write| {
        if first.swap(false, SeqCst) {
            still.store(true, SeqCst);
            while !end.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        None
    };
    let slow = Arc::new(Faulty { store: store.session("serves"), fault: slow });
    let session = Session::open(slow, Settings::default()).unwrap();
    for name in ["stuck", "other"] {
        session.create_volume(name, 1 << 20).unwrap();
    }
    let exports = Arc::new(ClusterExports::new(Arc::new(session), Mode::Own));
    stops.store(true, SeqCst);
    let opens = |name: &'static str| {
        let exports = exports.clone();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || tell.send(exports.open(name).map(drop)));
        told
    };
    let stuck = opens("stuck");
    while !stands.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (again, other) = (opens("stuck"), opens("other"));
    let answered = other.recv_timeout(Duration::from_secs(20));
    // Whoever asks for the same volume waits for it, and gets the same one.
    assert!(again.try_recv().is_err());
    ends.store(true, SeqCst);
    answered.expect("the other volume is attached meanwhile").unwrap();
    for told in [stuck, again] {
        told.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    }
    exports.close().unwrap();
}

#[test]
fn rule_12_the_locks_of_all_volumes_are_kept_though_one_is_lost() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    let session = Session::open(Arc::new(store.session("serves")), Settings::default()).unwrap();
    let mut headers = Vec::new();
    for name in ["one", "other"] {
        session.create_volume(name, 1 << 20).unwrap();
        let id = session.find(name).unwrap().unwrap().id;
        headers.push(ObjectName::metadata(format!("v.{id:010x}")));
    }
    headers.sort();
    let exports = ClusterExports::new(Arc::new(session), Mode::Own);
    for name in ["one", "other"] {
        drop(exports.open(name).unwrap());
    }
    // Another one takes the first lock, and the second is gone as if its lease were over.
    for header in &headers {
        let holder = store.holder(header, "owner").unwrap().unwrap();
        store.break_lock(header, "owner", &holder).unwrap();
    }
    store.session("takes").lock(&headers[0], "owner", "a", None).unwrap();
    exports.renew().unwrap_err();
    assert_eq!(store.holder(&headers[1], "owner").unwrap().unwrap().identity, "serves");
}

/// Each client that asked for the list read all names, also those of streams, and all at one time.
#[test]
fn rule_12_clients_that_ask_for_lists_do_not_read_all_names_each() {
    const NAMES: u64 = 20_000;
    const CLIENTS: u64 = 32;
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format::new([1; 16], [2; 32], PoolKind::Replicated)).unwrap();
    for id in 0..NAMES {
        let name = format!("stream {id}");
        let shard = format!("n.{:02x}", checksum::fast(5, name.as_bytes()) % 256);
        let named = Named { what: What::Put, id: 1 << 20 | id, bytes: 0, pieces: 0, moves: 0 };
        let pair = (format!("n{name}").into_bytes(), named.encode());
        let changes = vec![Change::SetOmap(vec![pair])];
        let op = Write { object: ObjectName::metadata(shard), guards: Vec::new(), changes };
        store.write(&[op]).remove(0).unwrap();
    }
    let counted = Arc::new(Faulty { store: store.session("serves"), fault: |_: &Write| None });
    let session = Session::open(counted, Settings::default()).unwrap();
    session.create_volume("one", 1 << 20).unwrap();
    let exports = Arc::new(ClusterExports::new(Arc::new(session), Mode::Own));
    let before = READ.load(SeqCst);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let exports = exports.clone();
            std::thread::spawn(move || exports.list().len())
        })
        .collect();
    assert!(clients.into_iter().all(|client| client.join().unwrap() == 1));
    let read = READ.load(SeqCst) - before;
    assert!(read < CLIENTS * 256 / 2, "{read} pages of names were read");
    // What is new is told soon.
    let session = Session::open(Arc::new(store.session("other")), Settings::default()).unwrap();
    session.create_volume("two", 1 << 20).unwrap();
    let began = std::time::Instant::now();
    while exports.list().len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}
