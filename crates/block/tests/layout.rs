//! Where blocks and pages of an aged store come to lie, and what that costs its disk.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{CheckpointStep, Engine, Format, Idleness, Settings, Tidying, check::check};
use onefold_core::{Block, BlockRead, Disk, Lba, VolumeId};
use support::{Counted, content, persevere};

/// A store, and the next content to write.
struct Aged {
    disk: Arc<Counted>,
    engine: Engine,
    volume: VolumeId,
    next: u64,
}

impl Aged {
    fn new(zones: u64, zone_blocks: u32, volume_blocks: u64) -> Aged {
        let blocks = zones * u64::from(zone_blocks);
        let disk = Counted::new(Arc::new(MemoryDisk::new(blocks)));
        let format = Format { zone_blocks, ..Format::new([1; 16], [2; 32], blocks) };
        Engine::format(&*disk, &format).unwrap();
        let settings = Settings {
            records_max: 6_000,
            window_blocks: 32,
            unflushed_blocks: 128,
            tidying: Tidying::Moves,
            settled_after: Duration::ZERO,
            ..Settings::for_memory(32 << 20)
        };
        let engine = Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap();
        let (volume, _) = persevere(&engine, || engine.create_volume("one", volume_blocks));
        Aged { disk, engine, volume, next: 0 }
    }

    fn write(&mut self, lba: u64) {
        self.next += 1;
        let block = content(self.next);
        let write = || self.engine.write(self.volume, lba * 4096, &block);
        if write().is_err() {
            // No checkpoint before one is needed.
            self.engine.flush().unwrap();
            persevere(&self.engine, write);
        }
    }

    fn settle(&self) {
        self.engine.flush().unwrap();
        self.engine.checkpoint().unwrap();
    }

    /// A pause until nothing is left to move.
    fn pause(&self) {
        for _ in 0..500 {
            let before = self.moved();
            let more = (0..100_000).all(|_| self.engine.idle_step(Idleness::Pause).unwrap());
            assert!(!more, "idle work does not end");
            self.settle();
            self.settle();
            if self.moved() == before {
                return;
            }
        }
        panic!("moving does not end");
    }

    fn moved(&self) -> u64 {
        let counts = self.engine.counts();
        counts.neighbour_blocks + counts.emptied_blocks
    }

    fn read_in_order(&self, end: u64) {
        for first in (0..end).step_by(100) {
            let mut blocks = Block::zeroed_vec(100.min(end - first) as usize);
            let mut reads = [BlockRead { first: Lba(first), into: &mut blocks, result: Ok(()) }];
            self.engine.read_in_order(self.volume, &mut reads);
            let [BlockRead { result, .. }] = reads;
            result.unwrap();
        }
    }
}

#[test]
fn rule_20_a_step_writes_all_its_copies_at_once() {
    let mut aged = Aged::new(1_024, 16, 1_500);
    (0..1_500).for_each(|n| aged.write(n * 7 % 1_500));
    aged.settle();
    let mut most = 0;
    for _ in 0..10_000 {
        let before = aged.disk.writes.load(Relaxed);
        if !aged.engine.idle_step(Idleness::Share).unwrap() {
            break;
        }
        most = most.max(aged.disk.writes.load(Relaxed) - before);
    }
    assert!(aged.moved() > 700, "{} moved", aged.moved());
    assert_eq!(most, 1, "writes that wait for each other");
}

#[test]
fn rule_23_among_small_holes_a_leaf_is_not_moved_each_time_it_is_read() {
    let all = 12_000;
    let mut aged = Aged::new(1_024, 16, all + 1_000);
    (0..1_000).for_each(|n| aged.write(all + n * 7 % 1_000));
    (0..all).for_each(|lba| aged.write(lba));
    // Free runs are short, and so is every zone that is free as a whole.
    for start in (0..all).step_by(60) {
        let (volume, engine) = (aged.volume, &aged.engine);
        persevere(engine, || engine.trim(volume, start * 4096, 36 * 4096));
    }
    aged.settle();
    aged.settle();
    aged.pause();
    for pass in 0..4 {
        let before = aged.moved();
        aged.read_in_order(all + 1_000);
        aged.pause();
        let moved = aged.moved() - before;
        assert!(pass == 0 || moved == 0, "{moved} moved again, pass {pass}");
    }
}

#[test]
fn decision_95_clients_come_between_the_steps_in_which_a_checkpoint_releases_its_blocks() {
    let all = 12_000;
    let mut aged = Aged::new(512, 64, all);
    (0..all).for_each(|lba| aged.write(lba));
    aged.settle();
    aged.settle();
    let free = aged.engine.status().unused_blocks;
    // Each block that is overwritten is released by the next checkpoint.
    (0..4_000).for_each(|lba| aged.write(lba * 3));
    aged.engine.flush().unwrap();
    let (mut steps, mut released) = (0, 0);
    while released < 4_000 {
        match aged.engine.checkpoint_step().unwrap() {
            CheckpointStep::NeedsFlush => drop(aged.engine.make_durable().unwrap()),
            CheckpointStep::Idle => break,
            _ => {}
        }
        let now = aged.engine.filled().released;
        assert!(now <= 2_048, "{now} released in a step");
        released += now;
        steps += u64::from(now > 0);
        // What is written meanwhile gets other places, and what it names stays.
        aged.write(steps * 3 + 1);
    }
    assert!(steps >= 3 && released >= 4_000, "{released} released in {steps} steps");
    aged.settle();
    aged.settle();
    let after = aged.engine.status().unused_blocks;
    assert!(after + 600 >= free, "{after} free, and {free} before");
    aged.read_in_order(all);
    aged.engine.close().unwrap();
    let disk: Arc<dyn Disk> = aged.disk.clone();
    let report = check(&disk, &mut |_| {}).unwrap();
    assert_eq!(report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
}
