//! The status of a store at work: whoever looks waits for no disk, and checkpoints are timed.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::{
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{Engine, Format, Settings, Store, StoreExports};
use onefold_core::{Disk, Exports, Pba, Read, Result, Run};

/// How long anything may take that is not expected to take long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A disk on which writes and flushes stand still for a while.
struct Slow {
    disk: MemoryDisk,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    waiting: u32,
}

impl Slow {
    fn close(&self, closed: bool) {
        self.gate.lock().unwrap().closed = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut gate = self.gate.lock().unwrap();
        gate.waiting += 1;
        self.changed.notify_all();
        while gate.closed {
            gate = self.changed.wait(gate).unwrap();
        }
        gate.waiting -= 1;
    }

    /// Waits until somebody stands still.
    fn until_waiting(&self) {
        let gate = self.gate.lock().unwrap();
        let (gate, _) =
            self.changed.wait_timeout_while(gate, PATIENCE, |gate| gate.waiting == 0).unwrap();
        assert!(gate.waiting > 0, "nobody writes");
    }
}

impl Disk for Slow {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        self.pass();
        self.disk.write(runs)
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.pass();
        self.disk.write_durable(run)
    }

    fn flush(&self) -> Result<()> {
        self.pass();
        self.disk.flush()
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(at, blocks)
    }
}

/// Lets all threads end, also when the test fails.
struct End<'a>(&'a Slow, &'a Store);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.close(false);
        self.1.stop();
    }
}

#[test]
fn whoever_looks_waits_for_no_write_and_no_flush() {
    let disk = MemoryDisk::new(16_384);
    Engine::format(&disk, &Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], 16_384) })
        .unwrap();
    let disk = Arc::new(Slow { disk, gate: Mutex::default(), changed: Condvar::new() });
    let clock = Arc::new(MonotonicClock::new());
    let store = Store::open(disk.clone(), clock, Settings::for_memory(32 << 20)).unwrap();
    thread::scope(|scope| {
        let _end = End(&disk, &store);
        scope.spawn(|| store.run_writer());
        scope.spawn(|| store.run_background());
        store.create_volume("v", 4 << 20).unwrap();
        let volume = StoreExports(store.clone()).open("v").unwrap();
        volume.write(0, &[7; 65_536]).unwrap();
        disk.close(true);
        let (flushed, flushing) = (volume.clone(), disk.clone());
        let flush = scope.spawn(move || flushed.flush());
        flushing.until_waiting();
        let (tell, heard) = mpsc::channel();
        let looked = store.clone();
        scope.spawn(move || drop(tell.send((looked.status(), looked.checkpoint_times()))));
        let seen = heard.recv_timeout(PATIENCE);
        disk.close(false);
        let (status, times) = seen.expect("a look waits for the disk");
        assert_eq!((status.volumes.len(), times.count), (1, 0));
        flush.join().unwrap().unwrap();
        // A checkpoint comes by itself when the store is quiet.
        let begun = Instant::now();
        while store.checkpoint_times().count == 0 {
            assert!(begun.elapsed() < PATIENCE, "no checkpoint is counted");
            thread::sleep(Duration::from_millis(10));
        }
        let times = store.checkpoint_times();
        assert!(times.sum > Duration::ZERO && times.count <= store.status().counts.checkpoints);
    });
}
