//! A disk in memory that stands still when it is told to.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use onefold_backend::MemoryDisk;
use onefold_block::{Engine, Format, Store};
use onefold_core::{Disk, Pba, Read, Result, Run};

/// How long anything may take that is not expected to take long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A disk on which writes and flushes stand still for a while.
pub(crate) struct Slow {
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
    /// One with an empty store.
    pub(crate) fn formatted() -> Arc<Slow> {
        let disk = MemoryDisk::new(16_384);
        let format = Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], 16_384) };
        Engine::format(&disk, &format).unwrap();
        Arc::new(Slow { disk, gate: Mutex::default(), changed: Condvar::new() })
    }

    /// Lets nothing pass, or everything again.
    pub(crate) fn close(&self, closed: bool) {
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
    pub(crate) fn until_waiting(&self) {
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
pub(crate) struct End<'a>(pub(crate) &'a Slow, pub(crate) &'a Store);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.close(false);
        self.1.stop();
    }
}
