//! The whole life of a store, against a plain model, without faults; crashes are the simulator's.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{Engine, Format, Idleness, Settings, Tidying};
use onefold_core::{Block, BlockRead, Kind, Lba, Ticket, VolumeId};

fn small() -> Settings {
    Settings {
        records_max: 2000,
        window_blocks: 32,
        unflushed_blocks: 128,
        ..Settings::for_memory(32 << 20)
    }
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), small()).unwrap()
}

fn formatted(zones: u64) -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new(zones * 16));
    let format = Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], zones * 16) };
    Engine::format(&*disk, &format).unwrap();
    disk
}

fn content(n: u64) -> [u8; 4096] {
    let mut block = [0; 4096];
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let end = if n.is_multiple_of(3) { 4096 } else { 3000 };
    for byte in &mut block[..end] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    block
}

fn persevere(
    engine: &Engine,
    mut change: impl FnMut() -> onefold_core::Result<Ticket>,
) -> onefold_core::Result<Ticket> {
    for _ in 0..20 {
        match change() {
            Err(e) if e.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            other => return other,
        }
    }
    panic!("busy for ever");
}

fn read(engine: &Engine, volume: VolumeId, lba: u64) -> onefold_core::Result<[u8; 4096]> {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
    engine.read(volume, &mut reads);
    let [read] = reads;
    read.result?;
    Ok(blocks[0].0)
}

#[test]
fn what_is_written_is_read_through_checkpoints_and_reopening() {
    let disk = formatted(128);
    let mut engine = open(&disk);
    let (volume, _) = engine.create_volume("one", 600).unwrap();
    engine.flush().unwrap();
    let mut model: BTreeMap<u64, [u8; 4096]> = BTreeMap::new();
    let mut state = 3u64;
    let (mut checkpoints, mut duplicates, mut hidden) = (0, 0, 0);
    for step in 0..6000u64 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let lba = (state >> 33) % 600;
        match (state >> 20) % 16 {
            0..=10 => {
                let data = content((state >> 45) % 200);
                persevere(&engine, || engine.write(volume, lba * 4096, &data)).unwrap();
                model.insert(lba, data);
            }
            11 => {
                let count = ((state >> 50) % 40).min(600 - lba);
                persevere(&engine, || engine.trim(volume, lba * 4096, count * 4096)).unwrap();
                for lba in lba..lba + count {
                    model.remove(&lba);
                }
            }
            12 => {
                let part = [step as u8; 700];
                persevere(&engine, || engine.write(volume, lba * 4096 + 1000, &part)).unwrap();
                model.entry(lba).or_insert([0; 4096])[1000..1700].copy_from_slice(&part);
            }
            13 => {
                engine.flush().unwrap();
            }
            14 => {
                engine.checkpoint_step().unwrap();
            }
            _ => {
                let expected = model.get(&lba).copied().unwrap_or([0; 4096]);
                assert!(
                    read(&engine, volume, lba).unwrap() == expected,
                    "step {step}, block {lba}"
                );
            }
        }
        if step % 1500 == 1499 {
            for lba in 0..600 {
                let expected = model.get(&lba).copied().unwrap_or([0; 4096]);
                assert!(
                    read(&engine, volume, lba).unwrap() == expected,
                    "step {step}, block {lba}"
                );
            }
            if step % 3000 == 2999 {
                engine.close().unwrap();
            } else {
                engine.flush().unwrap();
            }
            let counts = engine.counts();
            checkpoints += counts.checkpoints;
            duplicates += counts.duplicate_blocks;
            hidden += counts.hidden_records;
            engine = open(&disk);
            for lba in 0..600 {
                let expected = model.get(&lba).copied().unwrap_or([0; 4096]);
                assert!(
                    read(&engine, volume, lba).unwrap() == expected,
                    "reopened at step {step}, block {lba}"
                );
            }
        }
    }
    assert!(
        checkpoints > 2 && duplicates > 100 && hidden > 100,
        "{checkpoints} {duplicates} {hidden}"
    );
}

#[test]
fn duplicates_are_found_when_the_index_outgrew_its_memory() {
    let blocks = 24 << 10;
    let disk = Arc::new(MemoryDisk::new(40 << 10));
    Engine::format(&*disk, &Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], 40 << 10) })
        .unwrap();
    let settings =
        Settings { index_memory: 64 << 10, records_max: 8000, ..Settings::for_memory(32 << 20) };
    let open =
        || Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings.clone()).unwrap();
    let engine = open();
    let (volume, _) = engine.create_volume("one", 2 * blocks).unwrap();
    for lba in 0..blocks {
        persevere(&engine, || engine.write(volume, lba * 4096, &content(lba * 3 + 1))).unwrap();
    }
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    let status = engine.status();
    assert!(status.index_on_disk > blocks * 3 / 4 && status.memory_bytes < 32 << 20, "{status:?}");
    // First as after a kill, then after a clean shutdown.
    for _ in 0..2 {
        let engine = open();
        while engine.idle_step(Idleness::None).unwrap() {}
        let before = engine.counts().duplicate_blocks;
        for lba in 0..blocks {
            persevere(&engine, || {
                engine.write(volume, (blocks + lba) * 4096, &content(lba * 3 + 1))
            })
            .unwrap();
        }
        engine.flush().unwrap();
        assert_eq!(engine.counts().duplicate_blocks - before, blocks);
        persevere(&engine, || engine.trim(volume, blocks * 4096, blocks * 4096)).unwrap();
        engine.close().unwrap();
    }
}

#[test]
fn scattered_blocks_lie_together_again_after_idle_time() {
    [Tidying::Records, Tidying::Moves].into_iter().for_each(scattered_blocks_lie_together_again);
}

fn scattered_blocks_lie_together_again(tidying: Tidying) {
    let disk = formatted(512);
    let settings =
        Settings { unflushed_blocks: 512, tidying, settled_after: Duration::ZERO, ..small() };
    let engine = Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap();
    let blocks = 1500;
    let (volume, _) = engine.create_volume("one", blocks).unwrap();
    // Written in an order that scatters neighbours.
    for n in 0..blocks {
        let lba = n * 7 % blocks;
        persevere(&engine, || engine.write(volume, lba * 4096, &content(lba * 3 + 2))).unwrap();
    }
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    let moved = || engine.counts().moved_blocks + engine.counts().neighbour_blocks;
    let idle = || {
        for _ in 0..200 {
            let before = moved();
            while engine.idle_step(Idleness::Long).unwrap() {}
            engine.flush().unwrap();
            engine.checkpoint().unwrap();
            if moved() == before {
                return;
            }
        }
        panic!("compaction does not end");
    };
    idle();
    let first = moved();
    assert!(first > blocks * 3 / 4, "{first} moved");
    for lba in 0..blocks {
        assert!(read(&engine, volume, lba).unwrap() == content(lba * 3 + 2), "block {lba}");
    }
    // A second pass finds nothing, also after a change elsewhere.
    persevere(&engine, || engine.trim(volume, 0, 4096)).unwrap();
    idle();
    assert!(moved() - first < blocks / 4);
    engine.close().unwrap();
}

#[test]
fn a_growing_store_takes_from_the_host_what_the_checkpoint_after_a_crash_needs() {
    let disk = Arc::new(MemoryDisk::new(1 << 17));
    Engine::format(
        &*disk,
        &Format { zone_blocks: 16, grow: true, ..Format::new([1; 16], [2; 32], 1 << 17) },
    )
    .unwrap();
    let open = || {
        Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), Settings::for_memory(32 << 20))
            .unwrap()
    };
    let engine = open();
    let (volume, _) = engine.create_volume("sparse", 1 << 25).unwrap();
    // Each block changes a leaf of its own: the checkpoint writes more pages than there is data.
    for n in 0..6000u64 {
        let mut block = [0; 4096];
        block[..8].copy_from_slice(&(n + 1).to_le_bytes());
        engine.write(volume, n * 4096 * 4096, &block).unwrap();
        if n % 100 == 99 {
            engine.flush().unwrap();
        }
    }
    drop(engine);
    let engine = open();
    engine.checkpoint().unwrap();
    engine.close().unwrap();
}
