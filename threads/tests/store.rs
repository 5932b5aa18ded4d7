//! Group commit, tickets and the two working threads of a store, under schedules that look for
//! races.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![cfg(scheduled)]

mod world;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use onefold_backend::MemoryDisk;
use onefold_block::Store;
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Disk, Error, Kind, Lba, Pba, Read, Result, Run, VolumeId,
};
use parking_lot::thread;
use world::{disk, finds, open, schedules, store};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A block that says who wrote it.
fn content(client: u64, round: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [client as u8; BLOCK_BYTES];
    block[..8].copy_from_slice(&round.to_le_bytes());
    block
}

fn read(store: &Store, volume: VolumeId, lba: u64) -> [u8; BLOCK_BYTES] {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
    store.engine().read(volume, &mut reads);
    let [read] = reads;
    read.result.unwrap();
    blocks[0].0
}

/// Three clients write, and each waits for what it wrote.
fn clients_that_wait() {
    let store = store(disk());
    let volume = store.engine().create_volume("disk", 64).unwrap().0;
    let clients: Vec<_> = (0..3)
        .map(|client| {
            let store = store.clone();
            thread::spawn(move || {
                for round in 0..2 {
                    let ticket = store
                        .engine()
                        .write(volume, client * BLOCK, &content(client, round))
                        .unwrap();
                    store.wait(ticket).unwrap();
                    assert!(
                        store.engine().durable() >= ticket,
                        "it is not durable, and was acknowledged"
                    );
                    assert_eq!(read(&store, volume, client), content(client, round));
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    store.close().unwrap();
}

/// The same beside the working threads, with checkpoints and trims; what was flushed is there after
/// a crash.
fn working_threads() {
    let disk = disk();
    let store = store(disk.clone());
    let volume = store.create_volume("disk", 64 * BLOCK).unwrap();
    let (writing, background) = (store.clone(), store.clone());
    let working = [
        thread::spawn(move || writing.run_writer()),
        thread::spawn(move || background.run_background()),
    ];
    let clients: Vec<_> = (0..2)
        .map(|client| {
            let store = store.clone();
            thread::spawn(move || client_at_work(&store, volume, client))
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    store.stop();
    working.into_iter().for_each(|thread| thread.join().unwrap());
    drop(store);
    let store = open(disk);
    for client in 0..2 {
        for round in 0..20 {
            let expected = if round < 4 { [0; BLOCK_BYTES] } else { content(client, round) };
            assert_eq!(
                read(&store, volume, client * 32 + round),
                expected,
                "what was flushed is gone"
            );
        }
    }
}

fn client_at_work(store: &Arc<Store>, volume: VolumeId, client: u64) {
    let exports = onefold_block::StoreExports(store.clone());
    let disk = onefold_core::Exports::open(&exports, "disk").unwrap();
    for round in 0..20 {
        disk.write((client * 32 + round) * BLOCK, &content(client, round)).unwrap();
        if round % 7 == 3 {
            disk.flush().unwrap();
        }
    }
    disk.trim(client * 32 * BLOCK, 4 * BLOCK).unwrap();
    disk.flush().unwrap();
    assert_eq!(read(store, volume, client * 32 + 19), content(client, 19));
}

/// A disk that fails after so many writes and flushes.
struct Failing {
    disk: Arc<MemoryDisk>,
    left: AtomicU64,
}

impl Failing {
    fn may(&self) -> Result<()> {
        let left = self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| Error::new(Kind::Io, "the disk is gone"))
    }
}

impl Disk for Failing {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        self.may().and_then(|()| self.disk.write(runs))
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.may().and_then(|()| self.disk.write_durable(run))
    }

    fn flush(&self) -> Result<()> {
        self.may().and_then(|()| self.disk.flush())
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(at, blocks)
    }
}

/// When a write fails, all who wait learn of it, and nobody is told that his change is durable when
/// it is not.
fn failing_disk() {
    let failing = Arc::new(Failing { disk: disk(), left: AtomicU64::new(u64::MAX) });
    let store = store(failing.clone());
    let volume = store.create_volume("disk", 64 * BLOCK).unwrap();
    failing.left.store(3, SeqCst);
    let clients: Vec<_> = (0..3)
        .map(|client| {
            let store = store.clone();
            thread::spawn(move || {
                for round in 0..4 {
                    let Ok(ticket) =
                        store.engine().write(volume, client * BLOCK, &content(client, round))
                    else {
                        return;
                    };
                    let waited = store.wait(ticket);
                    assert!(
                        waited.is_err() || store.engine().durable() >= ticket,
                        "it is not durable, and was acknowledged"
                    );
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(store.engine().stopped().is_some());
}

#[test]
fn clients_that_wait_are_answered_when_their_changes_are_durable() {
    schedules(400, clients_that_wait);
}

#[test]
fn what_was_flushed_beside_the_working_threads_is_there_after_a_crash() {
    schedules(30, working_threads);
}

#[test]
fn all_who_wait_learn_of_a_failed_write() {
    schedules(400, failing_disk);
}

#[test]
fn a_round_that_wakes_nobody_to_go_on_is_found() {
    finds("nobody is woken to commit next", 400, clients_that_wait);
}

#[test]
fn a_client_that_is_woken_and_does_not_look_is_found() {
    finds("who is woken does not look", 400, clients_that_wait);
}
