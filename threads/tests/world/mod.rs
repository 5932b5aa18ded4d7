//! A store on a disk in memory, and many schedules for what is done with it.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    panic::catch_unwind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_backend::MemoryDisk;
use onefold_block::{Engine, Format, Settings, Store};
use onefold_core::{Clock, Disk};
use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler},
};

/// A clock on which each look takes a while.
#[derive(Default)]
pub(crate) struct Steps(AtomicU64);

impl Clock for Steps {
    fn now(&self) -> Duration {
        Duration::from_micros(20 * self.0.fetch_add(1, Relaxed))
    }
}

/// A new store.
pub(crate) fn store(disk: Arc<dyn Disk>) -> Arc<Store> {
    let blocks = disk.blocks();
    Engine::format(&*disk, &Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], blocks) })
        .unwrap();
    open(disk)
}

/// The store that is on a disk, with settings under which windows fill and checkpoints are made
/// soon.
pub(crate) fn open(disk: Arc<dyn Disk>) -> Arc<Store> {
    let settings = Settings {
        records_max: 60,
        window_blocks: 4,
        unflushed_blocks: 16,
        ..Settings::for_memory(32 << 20)
    };
    Store::open(disk, Arc::new(Steps::default()), settings).unwrap()
}

/// A disk for it.
pub(crate) fn disk() -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::new(96 * 16))
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    // The seed repeats a failure.
    config.failure_persistence = FailurePersistence::None;
    config
}

/// Runs it under so many schedules of each kind: any thread next, and one thread long until it is
/// another's turn.
pub(crate) fn schedules(n: usize, does: fn()) {
    Runner::new(RandomScheduler::new_from_seed(7, n), config()).run(does);
    Runner::new(PctScheduler::new_from_seed(7, 3, n), config()).run(does);
}

/// A planted mistake must be found.
pub(crate) fn finds(mistake: &'static str, n: usize, does: fn()) {
    parking_lot::plant(mistake);
    let found = catch_unwind(|| schedules(n, does)).is_err();
    parking_lot::plant("");
    assert!(found, "{n} schedules of each kind do not find that {mistake}");
}
