//! A store in memory with its threads, for tests that copy volumes between stores.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its own part, and panics where it fails"
)]

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Asked, Copies, Engine, Format, Received, SendWhat, Settings, Store, StoreExports,
    check::{Report, check},
};
use onefold_core::{Block, BlockRead, Disk, Exports, Kind, Lba, Pba, Read, Result, Run, Volume};

/// A store with its threads.
pub(crate) struct Site {
    pub(crate) store: Arc<Store>,
    pub(crate) disk: Arc<MemoryDisk>,
    threads: Vec<thread::JoinHandle<()>>,
}

/// A new store.
pub(crate) fn formatted(format: &Format) -> Site {
    let disk = Arc::new(MemoryDisk::new(format.blocks));
    Engine::format(&*disk, format).unwrap();
    opened(disk)
}

/// The store of a disk.
pub(crate) fn opened(disk: Arc<MemoryDisk>) -> Site {
    let mut site = opened_without_background(disk);
    let store = site.store.clone();
    site.threads.push(thread::spawn(move || store.run_background()));
    site
}

/// The same, in which nobody reads the index anew or makes checkpoints by himself.
pub(crate) fn opened_without_background(disk: Arc<MemoryDisk>) -> Site {
    let clock = Arc::new(MonotonicClock::new());
    let store = Store::open(disk.clone(), clock, Settings::for_memory(32 << 20)).unwrap();
    let writer = store.clone();
    let threads = vec![thread::spawn(move || writer.run_writer())];
    Site { store, disk, threads }
}

impl Site {
    /// Closes it.
    pub(crate) fn close(self) -> Arc<MemoryDisk> {
        self.store.stop();
        self.threads.into_iter().for_each(|one| one.join().unwrap());
        self.store.close().unwrap();
        self.disk
    }

    /// Closes it; its check finds nothing wrong.
    pub(crate) fn end(self) -> Report {
        let disk: Arc<dyn Disk> = self.close();
        let report = check(&disk, &mut |_| {}).unwrap();
        assert_eq!(report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
        report
    }

    /// Closes it and opens it anew: its index knows nothing yet.
    pub(crate) fn reopened(self) -> Site {
        let disk = self.disk.clone();
        self.end();
        opened(disk)
    }

    pub(crate) fn volume(&self, name: &str) -> Arc<dyn Volume> {
        StoreExports(self.store.clone()).open(name).unwrap()
    }

    pub(crate) fn read(&self, name: &str) -> Vec<Block> {
        let volume = self.volume(name);
        let mut blocks = Block::zeroed_vec((volume.size() / 4096) as usize);
        let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
        volume.read(&mut reads);
        let [read] = reads;
        read.result.unwrap();
        blocks
    }

    /// Writes the contents of these numbers from a block on.
    pub(crate) fn fill(&self, name: &str, first: u64, contents: Range<u64>) {
        let volume = self.volume(name);
        for (lba, n) in (first..).zip(contents) {
            volume.write(lba * 4096, &content(n)).unwrap();
        }
    }

    pub(crate) fn snapshot(&self, name: &str) {
        self.store.snapshot(&[name.to_owned()], &mut || {}).unwrap();
    }

    pub(crate) fn receive(&self, bytes: &[u8]) -> Result<Received> {
        Copies::of(&self.store).receive(None, false, bytes, &mut |_| Ok(()))
    }
}

/// Bytes that nothing compresses, so that they lie on the disk as they are.
pub(crate) fn content(n: u64) -> Vec<u8> {
    let mut state = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = (0..4096).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    bytes.collect()
}

/// A snapshot, sent whole.
pub(crate) fn whole(name: &str) -> SendWhat {
    SendWhat { snapshot: name.to_owned(), ..SendWhat::default() }
}

/// The changes between two snapshots.
pub(crate) fn changes(from: &str, to: &str) -> SendWhat {
    SendWhat { from: Some(from.to_owned()), ..whole(to) }
}

pub(crate) fn same(one: &[Block], other: &[Block]) {
    assert_eq!(one.len(), other.len());
    assert_eq!(one.iter().zip(other).position(|(one, other)| one.0 != other.0), None);
}

/// Asks again as long as steps must be run first.
pub(crate) fn persevere<T>(engine: &Engine, mut change: impl FnMut() -> Result<T>) -> T {
    for _ in 0..200 {
        match change() {
            Err(e) if e.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            other => return other.unwrap(),
        }
    }
    panic!("busy for ever");
}

/// Runs steps until acts are durable.
pub(crate) fn wait(engine: &Engine, asked: Asked) {
    engine.flush().unwrap();
    for _ in 0..20 {
        if Acts::of(engine).done() >= asked.number {
            return;
        }
        engine.checkpoint().unwrap();
    }
    panic!("the acts are never durable");
}

/// Counts the blocks that are read from a disk, and the calls by which it is written.
pub(crate) struct Counted {
    pub(crate) disk: Arc<MemoryDisk>,
    pub(crate) read: AtomicU64,
    pub(crate) writes: AtomicU64,
}

impl Counted {
    pub(crate) fn new(disk: Arc<MemoryDisk>) -> Arc<Counted> {
        Arc::new(Counted { disk, read: AtomicU64::new(0), writes: AtomicU64::new(0) })
    }
}

impl Disk for Counted {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        let blocks: usize = reads.iter().map(|read| read.into.len()).sum();
        self.read.fetch_add(blocks as u64, Relaxed);
        self.disk.read(reads);
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        self.writes.fetch_add(1, Relaxed);
        self.disk.write(runs)
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.disk.write_durable(run)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn allocate(&self, start: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(start, blocks)
    }
}
