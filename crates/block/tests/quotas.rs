//! Quotas: how many blocks clients may map in a volume.

#![allow(clippy::unwrap_used)]

mod support;

use std::{sync::Arc, time::Duration};

use onefold_backend::MemoryDisk;
use onefold_block::{Acts, Copies, Engine, Format, NewVolume, Setting, Settings};
use onefold_core::{Clock, Disk, Kind, Result, Ticket, VolumeId};
use support::{content, formatted, whole};

const BLOCKS: u64 = 4096;
const BLOCK: u64 = 4096;

struct Noon;

impl Clock for Noon {
    fn now(&self) -> Duration {
        Duration::from_secs(12 * 3600)
    }
}

fn format() -> Format {
    Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], BLOCKS) }
}

fn settings() -> Settings {
    Settings { window_blocks: 32, unflushed_blocks: 256, ..Settings::for_memory(32 << 20) }
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    let disk: Arc<dyn Disk> = disk.clone();
    Engine::open(disk, Arc::new(Noon), settings()).unwrap()
}

/// An empty store.
fn made() -> (Arc<MemoryDisk>, Engine) {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    Engine::format(&*disk, &format()).unwrap();
    let engine = open(&disk);
    (disk, engine)
}

fn volume(engine: &Engine, name: &str, quota: u64) -> VolumeId {
    let new = NewVolume { quota, ..NewVolume::default() };
    engine.create_volume_with(name, 1 << 20, new).unwrap().0
}

/// The answer of a change, when all that would make room is done.
fn answer(engine: &Engine, mut change: impl FnMut() -> Result<Ticket>) -> Result<(), Kind> {
    for _ in 0..64 {
        match change() {
            Err(error) if error.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            answer => return answer.map(|_| ()).map_err(|error| error.kind()),
        }
    }
    panic!("it waits for ever");
}

fn write(engine: &Engine, volume: VolumeId, lba: u64, n: u64) -> Result<(), Kind> {
    answer(engine, || engine.write(volume, lba * BLOCK, &content(n)))
}

fn mapped(engine: &Engine, name: &str) -> Option<u64> {
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    let status = engine.status();
    status.volumes.iter().find(|volume| volume.name == name).unwrap().mapped_blocks
}

#[test]
fn a_volume_takes_as_many_blocks_as_its_quota_and_its_neighbour_goes_on() {
    let (_, engine) = made();
    let (small, other) = (volume(&engine, "small", 10), volume(&engine, "other", 0));
    for n in 0..10 {
        assert_eq!(write(&engine, small, n * 1000, n), Ok(()));
    }
    assert_eq!(write(&engine, small, 1, 99), Err(Kind::NoSpace));
    let error = loop {
        match engine.write(small, BLOCK, &content(99)) {
            Err(error) if error.kind() == Kind::NoSpace => break error,
            _ => engine.checkpoint().unwrap(),
        }
    };
    assert!(error.to_string().contains("its quota of 40960 bytes"), "{error}");
    // What is mapped is written again, whole and in part; zeroes and holes take nothing.
    for n in 0..10 {
        assert_eq!(write(&engine, small, n * 1000, 100 + n), Ok(()));
        assert_eq!(answer(&engine, || engine.write(small, n * 1000 * BLOCK + 7, b"part")), Ok(()));
    }
    assert_eq!(answer(&engine, || engine.write(small, BLOCK, &[0; 8192])), Ok(()));
    assert_eq!(
        answer(&engine, || engine.write(small, 3 * BLOCK + 17, b"part")),
        Err(Kind::NoSpace)
    );
    // A duplicate is a block like any other.
    assert_eq!(write(&engine, small, 2, 105), Err(Kind::NoSpace));
    for n in 0..100 {
        assert_eq!(write(&engine, other, n, n), Ok(()));
    }
    assert_eq!((mapped(&engine, "small"), mapped(&engine, "other")), (Some(10), Some(100)));
}

#[test]
fn a_write_that_passes_the_quota_is_taken_up_to_it() {
    let (_, engine) = made();
    let small = volume(&engine, "small", 10);
    let data: Vec<u8> = (0..16).flat_map(content).collect();
    let mut taken = 0;
    let answer = answer(&engine, || engine.write_from(small, 0, &data, &mut taken));
    assert_eq!((answer, taken), (Err(Kind::NoSpace), 10 * BLOCK));
    assert_eq!(mapped(&engine, "small"), Some(10));
}

#[test]
fn what_is_trimmed_can_be_written_at_once() {
    let (_, engine) = made();
    let small = volume(&engine, "small", 64);
    let fill = |from: u64| (from..from + 64).all(|lba| write(&engine, small, lba, lba).is_ok());
    assert!(fill(0));
    assert_eq!(write(&engine, small, 64, 64), Err(Kind::NoSpace));
    engine.trim(small, 8 * BLOCK, 8 * BLOCK).unwrap();
    // Nobody asks for a flush or a checkpoint but the write that waits.
    for lba in 100..108 {
        assert_eq!(write(&engine, small, lba, lba), Ok(()));
    }
    assert_eq!(write(&engine, small, 108, 108), Err(Kind::NoSpace));
    // A range over many leaves of the map is worked off by several checkpoints.
    engine.trim(small, 0, (1 << 20) * BLOCK).unwrap();
    assert!(fill(300_000));
    assert_eq!(write(&engine, small, 0, 0), Err(Kind::NoSpace));
    assert_eq!(mapped(&engine, "small"), Some(64));
}

#[test]
fn a_quota_survives_a_crash_and_counts_what_the_recovery_brings_back() {
    for checkpoint in [false, true] {
        let (disk, engine) = made();
        let small = volume(&engine, "small", 20);
        for lba in 0..15 {
            write(&engine, small, lba, lba).unwrap();
        }
        engine.flush().unwrap();
        if checkpoint {
            engine.checkpoint().unwrap();
        }
        for lba in 10..18 {
            write(&engine, small, lba, 100 + lba).unwrap();
        }
        engine.flush().unwrap();
        drop(engine);
        let engine = open(&disk);
        assert_eq!(engine.status().volumes[0].quota_blocks, 20);
        assert_eq!(write(&engine, small, 18, 1), Ok(()));
        assert_eq!(write(&engine, small, 19, 2), Ok(()));
        assert_eq!(write(&engine, small, 20, 3), Err(Kind::NoSpace));
        assert_eq!(mapped(&engine, "small"), Some(20));
    }
}

#[test]
fn a_volume_of_an_older_store_is_counted_when_it_gets_a_quota() {
    let (disk, engine) = made();
    let (id, _) = engine.create_volume("v", 1 << 20).unwrap();
    for n in 0..30 {
        write(&engine, id, n * 5000, n).unwrap();
    }
    assert_eq!(mapped(&engine, "v"), None, "a store without snapshots and quotas counts nothing");
    for n in 30..40 {
        write(&engine, id, n * 5000, n).unwrap();
    }
    engine.set(id, Setting::Quota(41)).unwrap();
    assert_eq!(write(&engine, id, 1, 1), Ok(()));
    assert_eq!(write(&engine, id, 2, 2), Err(Kind::NoSpace));
    assert_eq!(mapped(&engine, "v"), Some(41));
    // Lower than what is mapped: nothing new, and all that is there can be written.
    engine.set(id, Setting::Quota(7)).unwrap();
    assert_eq!(write(&engine, id, 3, 3), Err(Kind::NoSpace));
    assert_eq!(write(&engine, id, 5000, 3), Ok(()));
    engine.set(id, Setting::Quota(0)).unwrap();
    assert_eq!(write(&engine, id, 3, 3), Ok(()));
    engine.close().unwrap();
    drop(engine);
    let engine = open(&disk);
    assert_eq!(engine.status().volumes[0].quota_blocks, 0);
    assert_eq!(mapped(&engine, "v"), Some(42));
    let disk: Arc<dyn Disk> = disk;
    drop(engine);
    let report = onefold_block::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!(report.problems.len(), 0, "{:?}", report.problems);
}

#[test]
fn clones_have_the_quota_of_their_origin_and_snapshots_count_for_nothing() {
    let (_, engine) = made();
    let small = volume(&engine, "small", 8);
    (0..8).for_each(|lba| write(&engine, small, lba, lba).unwrap());
    let acts = Acts::of(&engine);
    engine.flush().unwrap();
    let (ids, _) = acts.snapshot(&[(small, "one".into())], 1).unwrap();
    engine.checkpoint().unwrap();
    // All of it is written anew, and the snapshot holds what it held.
    (0..8).for_each(|lba| write(&engine, small, lba, 100 + lba).unwrap());
    assert_eq!(write(&engine, small, 8, 8), Err(Kind::NoSpace));
    engine.flush().unwrap();
    let (clone, _) = acts.clone_volume(ids[0], "clone", 2).unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(write(&engine, clone, 8, 8), Err(Kind::NoSpace));
    engine.trim(clone, 0, BLOCK).unwrap();
    assert_eq!(write(&engine, clone, 8, 8), Ok(()));
    // A rollback leaves the quota as it is, and brings what it brings.
    engine.set(small, Setting::Quota(5)).unwrap();
    engine.trim(small, 0, 8 * BLOCK).unwrap();
    assert_eq!(write(&engine, small, 9, 9), Ok(()));
    engine.flush().unwrap();
    acts.rollback(small, ids[0], None, 3).unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(mapped(&engine, "small"), Some(8));
    assert_eq!(write(&engine, small, 8, 8), Err(Kind::NoSpace));
    assert_eq!(write(&engine, small, 7, 8), Ok(()));
}

#[test]
fn writers_side_by_side_do_not_pass_a_quota_together() {
    let site = formatted(&Format::new([1; 16], [1; 32], 65_536));
    let new = NewVolume { quota: 1000, ..NewVolume::default() };
    site.store.create_volume_as("v", 1 << 32, &new).unwrap();
    site.store.create_volume("other", 1 << 32).unwrap();
    let taken: u64 = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|thread| {
                let volume = site.volume("v");
                scope.spawn(move || {
                    let mut taken = 0;
                    for n in 0..600 {
                        let lba = thread * 10_000 + n;
                        let answer = volume.write(lba * BLOCK, &content(lba));
                        taken += u64::from(answer.is_ok());
                        if let Err(error) = answer {
                            assert_eq!(error.kind(), Kind::NoSpace);
                        }
                    }
                    taken
                })
            })
            .collect();
        site.fill("other", 0, 0..500);
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert_eq!(taken, 1000);
    let report = site.end();
    assert_eq!(report.mapped_blocks, 1500);
}

/// A store of 64 MiB with two volumes of 24 MiB each.
fn two_volumes() -> (Engine, VolumeId, VolumeId) {
    let disk = Arc::new(MemoryDisk::new(16_384));
    let format = Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], 16_384) };
    Engine::format(&*disk, &format).unwrap();
    let engine = open(&disk);
    let new = |name| {
        let new = NewVolume { quota: 6144, ..NewVolume::default() };
        engine.create_volume_with(name, 1 << 28, new).unwrap().0
    };
    let (sparse, dense) = (new("sparse"), new("dense"));
    (engine, sparse, dense)
}

#[test]
fn single_blocks_far_apart_leave_a_neighbour_its_quota() {
    let (engine, sparse, dense) = two_volumes();
    let mut taken = 0;
    while taken < 6144 && write(&engine, sparse, taken * 288, taken).is_ok() {
        taken += 1;
    }
    for n in 0..6144 {
        assert_eq!(write(&engine, dense, n, 10_000 + n), Ok(()), "block {n} after {taken}");
    }
    // Each block has a page of its own; a 64th of the quota and 64 pages are free.
    assert!((3100..3150).contains(&taken), "{taken}");
    assert_eq!(mapped(&engine, "sparse"), Some(taken));
    // Whatever is mapped is written again; what is trimmed gives its page back.
    assert_eq!(write(&engine, sparse, 288, 1), Ok(()));
    engine.trim(sparse, 0, 256 * 288 * BLOCK).unwrap();
    for n in 0..128 {
        assert_eq!(write(&engine, sparse, n * 288 + 1, n), Ok(()), "{n}");
    }
}

#[test]
fn zeroes_that_were_blocks_leave_no_pages() {
    let (engine, sparse, dense) = two_volumes();
    engine.set(sparse, Setting::Quota(256)).unwrap();
    assert_eq!(write(&engine, dense, 0, 1), Ok(()));
    for round in 0..75 {
        let all = (0..100).map(|n| (round * 100 + n) * 288 + 4096);
        for lba in all.clone() {
            assert_eq!(write(&engine, sparse, lba, lba), Ok(()));
        }
        engine.flush().unwrap();
        for lba in all {
            let zeroes = || engine.write_zeroes(sparse, lba * BLOCK, BLOCK, true, &mut 0);
            assert_eq!(answer(&engine, zeroes), Ok(()));
        }
    }
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    let tables = engine.status().table_blocks;
    assert!(tables < 1000, "the tables have {tables} blocks");
    assert_eq!(write(&engine, dense, 0, 2), Ok(()));
}

#[test]
fn what_is_received_has_no_quota() {
    let (from, to) = (formatted(&format()), formatted(&format()));
    from.store
        .create_volume_as("v", 1 << 20, &NewVolume { quota: 4, ..NewVolume::default() })
        .unwrap();
    from.fill("v", 0, 0..4);
    from.snapshot("v@one");
    let mut stream = Vec::new();
    Copies::of(&from.store).send(&whole("v@one"), &mut stream).unwrap();
    to.receive(&stream).unwrap();
    let volumes = to.store.status().volumes;
    assert_eq!((volumes[0].quota_blocks, volumes[0].mapped_blocks), (0, Some(4)));
    from.end();
    to.end();
}

#[test]
fn schemes_that_do_not_count_have_no_quotas() {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    let scheme = onefold_block::format::superblock::SchemeName::OrderMerge;
    Engine::format(&*disk, &Format { scheme, ..format() }).unwrap();
    let engine = open(&disk);
    let new = NewVolume { quota: 5, ..NewVolume::default() };
    let kind = |error: onefold_core::Error| error.kind();
    assert_eq!(engine.create_volume_with("v", 9, new).map_err(kind), Err(Kind::Unsupported));
    let (id, _) = engine.create_volume("v", 9).unwrap();
    assert_eq!(engine.set(id, Setting::Quota(5)).map_err(kind), Err(Kind::Unsupported));
}
