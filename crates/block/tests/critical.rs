//! Critical ranges: their blocks share nothing, through checkpoints, reopening, and a full store.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::{iter::once, ops::Range, sync::Arc};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Engine, Format, NewVolume, NoDedup, Setting, Settings,
    check::{check, scrub},
    format::superblock::SchemeName,
};
use onefold_core::{Block, BlockRead, Disk, Kind, Lba, VolumeId};

const COPIES: u64 = 20;

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    let settings = Settings {
        records_max: 2000,
        window_blocks: 32,
        unflushed_blocks: 128,
        ..Settings::for_memory(32 << 20)
    };
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap()
}

fn formatted(scheme: SchemeName) -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new(128 * 16));
    let format = Format { zone_blocks: 16, scheme, ..Format::new([1; 16], [2; 32], 128 * 16) };
    Engine::format(&*disk, &format).unwrap();
    disk
}

fn critical(blocks: Range<u64>) -> NoDedup {
    NoDedup::new(once(blocks).collect()).unwrap()
}

/// Writes one content to all addresses of the volume.
fn fill(engine: &Engine, volume: VolumeId, byte: u8) {
    for lba in 0..COPIES {
        engine.write(volume, lba * 4096, &[byte; 4096]).unwrap();
        if lba % 7 == 0 {
            engine.flush().unwrap();
        }
    }
    engine.flush().unwrap();
}

fn holds(engine: &Engine, volume: VolumeId, byte: u8) -> bool {
    let mut blocks = Block::zeroed_vec(COPIES as usize);
    let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
    engine.read(volume, &mut reads);
    let [read] = reads;
    read.result.unwrap();
    blocks.iter().all(|block| block.0 == [byte; 4096])
}

#[test]
fn critical_blocks_share_nothing_with_any_scheme() {
    for scheme in SchemeName::ALL.into_iter().filter(|scheme| *scheme != SchemeName::Ideal) {
        let disk = formatted(scheme);
        let engine = open(&disk);
        let no_dedup = NoDedup::new(vec![3..7, 10..11]).unwrap();
        let new = NewVolume { no_dedup, ..NewVolume::default() };
        let (volume, _) = engine.create_volume_with("one", COPIES, new).unwrap();
        fill(&engine, volume, 7);
        engine.close().unwrap();
        drop(engine);
        // Found again or not: the index is learnt anew from the tables.
        let engine = open(&disk);
        assert!(holds(&engine, volume, 7), "{scheme:?}");
        assert_eq!(engine.status().live_blocks, 5 + 1, "{scheme:?}");
        fill(&engine, volume, 7);
        engine.close().unwrap();
        drop(engine);
        let disk: Arc<dyn Disk> = disk;
        let found = check(&disk, &mut |_| {}).unwrap();
        assert!(
            found.is_well() && found.live_blocks == 6 && found.shared_critical == 0,
            "{scheme:?}: {found:?}"
        );
        assert!(scrub(&disk, &mut |_| {}, &mut || false).unwrap().is_well(), "{scheme:?}");
    }
}

#[test]
fn ranges_that_are_set_later_count_for_later_writes() {
    let disk = formatted(SchemeName::Thin);
    let engine = open(&disk);
    let (volume, _) = engine.create_volume("one", COPIES).unwrap();
    fill(&engine, volume, 1);
    engine.set(volume, Setting::NoDedup(critical(0..COPIES))).unwrap();
    engine.close().unwrap();
    drop(engine);
    let shared = |disk: &Arc<MemoryDisk>| {
        check(&(disk.clone() as Arc<dyn Disk>), &mut |_| {}).unwrap().shared_critical
    };
    assert_eq!(shared(&disk), COPIES);
    let engine = open(&disk);
    fill(&engine, volume, 1);
    assert!(holds(&engine, volume, 1));
    engine.set(volume, Setting::NoDedup(NoDedup::default())).unwrap();
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(engine.status().live_blocks, COPIES);
    fill(&engine, volume, 1);
    engine.close().unwrap();
    assert_eq!((engine.status().live_blocks, shared(&disk)), (1, 0));
}

#[test]
fn a_full_store_refuses_a_critical_block_that_is_stored_elsewhere() {
    let disk = Arc::new(MemoryDisk::new(64 * 16));
    Engine::format(&*disk, &Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], 64 * 16) })
        .unwrap();
    let engine = open(&disk);
    let new = NewVolume { no_dedup: critical(4000..4096), ..NewVolume::default() };
    let (volume, _) = engine.create_volume_with("one", 4096, new).unwrap();
    let content = |n: u64| {
        let mut block = [0x5a; 4096];
        block[..8].copy_from_slice(&n.to_le_bytes());
        block
    };
    let write = |lba: u64, n: u64| {
        for _ in 0..50 {
            match engine.write(volume, lba * 4096, &content(n)) {
                Err(e) if e.kind() == Kind::Busy => {
                    engine.flush().unwrap();
                    engine.checkpoint().unwrap();
                }
                other => return other.map(|_| ()),
            }
        }
        panic!("busy for ever");
    };
    let stored = (0..4000).take_while(|&n| write(n, n).is_ok()).count() as u64;
    assert!(stored > 300 && stored < 4000, "{stored}");
    write(3999, 5).unwrap();
    assert_eq!(write(4000, 5).unwrap_err().kind(), Kind::NoSpace);
}
