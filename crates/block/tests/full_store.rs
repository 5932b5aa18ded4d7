//! A full store takes writes again when something was dropped, at every moment on the way.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{CheckpointStep, Engine, Format, Settings};
use onefold_core::{Kind, VolumeId};

const BLOCKS: u64 = 4096;

fn full() -> (Engine, VolumeId) {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    Engine::format(&*disk, &Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], BLOCKS) })
        .unwrap();
    let settings =
        Settings { window_blocks: 32, unflushed_blocks: 256, ..Settings::for_memory(32 << 20) };
    let engine = Engine::open(disk, Arc::new(MonotonicClock::new()), settings).unwrap();
    let (volume, _) = engine.create_volume("one", 2 * BLOCKS).unwrap();
    let mut lba = 0;
    loop {
        match write(&engine, volume, lba, lba + 1) {
            Ok(()) => lba += 1,
            Err(Kind::Busy) => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            Err(kind) => {
                assert_eq!(kind, Kind::NoSpace);
                return (engine, volume);
            }
        }
    }
}

/// Writes a block that no other `seed` gives.
fn write(engine: &Engine, volume: VolumeId, lba: u64, seed: u64) -> Result<(), Kind> {
    let mut block = [0; 4096];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in &mut block {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    engine.write(volume, lba * 4096, &block).map(|_| ()).map_err(|e| e.kind())
}

#[test]
fn a_write_after_a_trim_waits_for_the_space_and_is_never_refused() {
    let (engine, volume) = full();
    // One leaf of the map, which a single checkpoint drops.
    engine.trim(volume, 0, 250 * 4096).unwrap();
    engine.flush().unwrap();
    let mut steps = 0;
    loop {
        // Asked before every step: whatever state the checkpoint is in, the space is there or about
        // to come.
        match write(&engine, volume, 0, 1 << 40) {
            Ok(()) => break,
            Err(kind) => assert_eq!(kind, Kind::Busy, "after {steps} steps"),
        }
        if engine.checkpoint_step().unwrap() == CheckpointStep::NeedsFlush {
            engine.flush().unwrap();
            engine.make_durable().unwrap();
        }
        steps += 1;
        assert!(steps < 100);
    }
    assert!(steps > 0, "the store was not full");
    engine.flush().unwrap();
}
