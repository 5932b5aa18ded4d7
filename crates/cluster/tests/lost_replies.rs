//! A store that loses replies: what is written is right all the same, and what is published says how many were lost.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_backend::MemoryObjects;
use onefold_cluster::{Dedup, Format, Marks, Mode, Session, Settings, Volume, Worker, create};
use onefold_core::object::{Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, Refusal, Sight, Space, Version, Write};

/// Every third operation has no reply; one in two of these is applied.
struct Lossy {
    store: MemoryObjects,
    asked: AtomicU64,
    lost: AtomicU64,
}

impl ObjectStore for Lossy {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.store.kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let one = |op: &Write| {
            let asked = self.asked.fetch_add(1, Relaxed);
            if !asked.is_multiple_of(3) {
                return self.store.write(std::slice::from_ref(op)).remove(0);
            }
            self.lost.fetch_add(1, Relaxed);
            if asked.is_multiple_of(2) {
                let _ = self.store.write(std::slice::from_ref(op));
            }
            Err(Refusal::Unknown)
        };
        batch.iter().map(one).collect()
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<Sight, Refusal>> {
        self.store.read(batch)
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        self.store.list(pool, from, most)
    }

    fn lock(&self, object: &ObjectName, lock: &'static str, cookie: &str, lease: Option<Duration>) -> Result<(), Refusal> {
        self.store.lock(object, lock, cookie, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.store.unlock(object, lock, cookie)
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        self.store.holder(object, lock)
    }

    fn break_lock(&self, object: &ObjectName, lock: &'static str, holder: &Holder) -> Result<(), Refusal> {
        self.store.break_lock(object, lock, holder)
    }

    fn identity(&self) -> String {
        self.store.identity()
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.store.fence(identity)
    }

    fn time(&self) -> Duration {
        self.store.time()
    }

    fn space(&self) -> Result<Space, Refusal> {
        self.store.space()
    }
}

fn publish(session: &Session, works: bool) {
    while session.publish(works).is_err() {}
}

#[test]
fn status_counts_the_operations_that_had_no_reply() {
    let store = MemoryObjects::new(PoolKind::Replicated);
    create(&store, &Format { object_bytes: 64 << 10, chunk_bytes: 16 << 10, ..Format::new([1; 16], [2; 32], PoolKind::Replicated) })
        .unwrap();
    let looks = Session::open(Arc::new(store.session("looks")), Settings::default()).unwrap();
    looks.create_volume("v", 1 << 20).unwrap();
    assert_eq!(looks.status().unwrap().sessions.unknown, 0);

    for (name, dedup) in [("writes", Dedup::PostProcessing), ("deduplicates", Dedup::Inline)] {
        let lossy = Arc::new(Lossy { store: store.session(name), asked: AtomicU64::new(0), lost: AtomicU64::new(0) });
        let settings = Settings { dedup, cold: Duration::ZERO, ..Settings::default() };
        let session = Arc::new(Session::open(lossy.clone(), settings).unwrap());
        let volume = Volume::attach(&session, "v", Mode::TakeOver).unwrap();
        let data: Vec<u8> = (0..300_000u32).map(|n| (n / 4096) as u8 + 1).collect();
        // Of many objects together, and of one.
        volume.write_at(4096, &data).unwrap();
        volume.write_at(0, &data[..5000]).unwrap();
        let mut read = vec![0; data.len() - 5000];
        volume.read_at(4096 + 5000, &mut read).unwrap();
        assert!(read == data[5000..]);
        let mut worker = Worker::new(session.clone(), Marks::NONE);
        while session.backlog().unwrap() > 0 {
            let _ = worker.step();
        }
        volume.detach().unwrap();
        let before = looks.status().unwrap().sessions.unknown;
        publish(&session, false);
        let lost = lossy.lost.load(Relaxed);
        assert!(lost > 5, "{lost} replies were lost");
        // The last publication may have been lost, too, and is not in itself.
        let said = looks.status().unwrap().sessions.unknown - before;
        assert!(said == lost || said + 1 == lost, "{said} of {lost}");
        session.unpublish().or_else(|_| session.unpublish()).unwrap();
        assert_eq!(looks.status().unwrap().sessions.unknown, before);
    }
}
