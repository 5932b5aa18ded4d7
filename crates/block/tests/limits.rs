//! Limits that a client can reach: whoever comes to one waits or is refused, and the store goes on.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Format, Idleness, Limits, Mark, Settings, check,
    format::{
        geometry::SUPERBLOCKS,
        superblock::{Found, Superblock},
    },
};
use onefold_core::{
    Block, BlockRead, BlockRef, Class, Disk, Error, Kind, Lba, Pba, Read, Result, Run, Ticket,
    VolumeId,
};
use support::Counted;

/// Blocks of the map that one leaf of it holds.
const LEAF: u64 = 288;

/// Leaves that are trimmed.
const LEAVES: u64 = 24;

fn formatted(blocks: u64) -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new(blocks));
    Engine::format(&*disk, &Format { zone_blocks: 64, ..Format::new([1; 16], [2; 32], blocks) })
        .unwrap();
    disk
}

fn open(disk: &Arc<MemoryDisk>, limits: Limits) -> Engine {
    let settings = Settings {
        window_blocks: 32,
        unflushed_blocks: 256,
        limits,
        ..Settings::for_memory(32 << 20)
    };
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap()
}

fn discards(discards: u64) -> Limits {
    Limits { discards, ..Limits::default() }
}

/// Makes a change as a served store does: when it must wait, with flushes and checkpoints between.
fn persevere(engine: &Engine, mut change: impl FnMut() -> Result<Ticket>) -> Result<Ticket> {
    for _ in 0..16 {
        match change() {
            Err(e) if e.kind() == Kind::Busy => {
                engine.flush()?;
                engine.checkpoint()?;
            }
            other => return other,
        }
    }
    panic!("busy for ever");
}

fn first_byte(engine: &Engine, volume: VolumeId, lba: u64) -> u8 {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
    engine.read(volume, &mut reads);
    let [read] = reads;
    read.result.unwrap();
    blocks[0].0[0]
}

fn problems(disk: &Arc<MemoryDisk>) -> Vec<String> {
    let disk: Arc<dyn Disk> = disk.clone();
    check::check(&disk, &mut |_| {}).unwrap().problems.iter().map(ToString::to_string).collect()
}

/// A block that no other number gives.
fn content(n: u64) -> [u8; 4096] {
    let mut block = [0; 4096];
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in &mut block {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    block
}

/// Every fourth address of the first `LEAVES` leaves of the map.
fn striped() -> impl Iterator<Item = u64> {
    (0..LEAVES * LEAF).step_by(4)
}

/// A store with the same block at every fourth address of volume 1, and otherwise full, so that a
/// checkpoint works through few discards.
fn crowded() -> (Arc<MemoryDisk>, VolumeId) {
    let disk = formatted(2048);
    let engine = open(&disk, Limits::default());
    let (volume, _) = engine.create_volume("one", LEAVES * LEAF).unwrap();
    for lba in striped() {
        persevere(&engine, || engine.write(volume, lba * 4096, &[7; 4096])).unwrap();
    }
    let (rest, _) = engine.create_volume("rest", 4096).unwrap();
    let full = (0..4096)
        .find(|&n| persevere(&engine, || engine.write(rest, n * 4096, &content(n))).is_err());
    assert!(full.is_some(), "the store is full");
    engine.close().unwrap();
    (disk, volume)
}

fn trim_all(engine: &Engine, volume: VolumeId) {
    for lba in striped() {
        persevere(engine, || engine.trim(volume, lba * 4096, 4096)).unwrap();
    }
}

/// All is trimmed; the store takes a write, is closed in order, and found sound.
fn goes_on(disk: &Arc<MemoryDisk>, engine: Engine, volume: VolumeId) {
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    for lba in striped() {
        assert_eq!(first_byte(&engine, volume, lba), 0, "address {lba}");
    }
    persevere(&engine, || engine.write(volume, 0, &[9; 4096])).unwrap();
    engine.close().unwrap();
    drop(engine);
    assert_eq!(problems(disk), Vec::<String>::new());
    assert_eq!(first_byte(&open(disk, Limits::default()), volume, 0), 9);
}

#[test]
fn rule_00_many_separate_trims_wait_and_never_stop_the_store() {
    let (disk, volume) = crowded();
    let engine = open(&disk, discards(64));
    trim_all(&engine, volume);
    let waited = engine.reached().iter().any(|(branch, _)| *branch == Mark::RangesWait);
    assert!(waited, "the limit was reached");
    goes_on(&disk, engine, volume);
}

/// The same addresses, such that neighbours in the list are in different leaves.
fn scattered() -> Vec<u64> {
    let mut lbas: Vec<u64> = striped().collect();
    lbas.sort_by_key(|lba| (lba % LEAF, lba / LEAF));
    lbas
}

/// Trims of one block each, as many as are taken at once.
fn trims(engine: &Engine, volume: VolumeId, lbas: &mut [u64]) -> usize {
    (0..200)
        .take_while(|_| {
            lbas.rotate_left(1);
            engine.trim(volume, lbas[0] * 4096, 4096).is_ok()
        })
        .count()
}

/// Asks for a snapshot from a place again and again, while others trim all the time; gives the rounds
/// that it took, and how many trims came before it.
fn overtaken(engine: &Engine, volume: VolumeId, lbas: &mut [u64]) -> Option<(usize, usize)> {
    let place = Acts::of(engine).take_place();
    let acts = Acts::at(engine, place);
    let (mut before, mut told) = (0, None);
    for round in 0..200 {
        before += trims(engine, volume, lbas);
        match acts.snapshot(&[(volume, format!("{}", lbas[0]))], 1) {
            Ok((_, asked)) => {
                told = Some((round, asked.number));
                break;
            }
            Err(error) => assert_eq!(error.kind(), Kind::Busy, "{error}"),
        }
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
    acts.give_back(place);
    let (round, number) = told?;
    while acts.done() < number {
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
    Some((round, before))
}

/// Clients that trim all the time are faster than who asks for a snapshot, after every checkpoint.
#[test]
fn rule_04_an_act_gets_its_turn_however_many_trims_wait_and_so_do_they() {
    let (disk, volume) = crowded();
    let engine = open(&disk, discards(64));
    let mut lbas = scattered();
    let (rounds, before) =
        overtaken(&engine, volume, &mut lbas).expect("the snapshot waits for ever");
    assert!(rounds > 0 && before > 0, "it never waited: {rounds}, {before}");
    // Clients go on.
    persevere(&engine, || engine.trim(volume, lbas[1] * 4096, 4096)).unwrap();
    engine.close().unwrap();
    drop(engine);
    assert_eq!(problems(&disk), Vec::<String>::new());
}

/// An act that nobody asks for any more keeps no trim waiting.
#[test]
fn rule_04_no_trim_waits_for_an_act_that_was_given_up() {
    let (disk, volume) = crowded();
    let engine = open(&disk, discards(64));
    let mut lbas = scattered();
    trims(&engine, volume, &mut lbas);
    let place = Acts::of(&engine).take_place();
    let asked = Acts::at(&engine, place).snapshot(&[(volume, "a".to_owned())], 1);
    assert_eq!(asked.unwrap_err().kind(), Kind::Busy);
    // The checkpoint makes room, which is the act's.
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(trims(&engine, volume, &mut lbas), 0);
    Acts::of(&engine).give_back(place);
    assert!(trims(&engine, volume, &mut lbas) > 0, "who asks no more keeps trims waiting");
    trim_all(&engine, volume);
    goes_on(&disk, engine, volume);
}

#[test]
fn rule_00_a_store_with_more_discards_than_fit_opens_and_goes_on() {
    let (disk, volume) = crowded();
    // As by a program that does not make trims wait.
    let engine = open(&disk, discards(u64::MAX));
    trim_all(&engine, volume);
    engine.flush().unwrap();
    drop(engine);
    assert_eq!(problems(&disk), Vec::<String>::new());
    let engine = open(&disk, discards(64));
    engine.checkpoint().unwrap();
    goes_on(&disk, engine, volume);
}

#[test]
fn rule_00_writes_with_many_runs_of_zeroes_wait_as_trims_do() {
    let disk = formatted(4096);
    let engine = open(&disk, discards(2));
    let (volume, _) = engine.create_volume("one", 4 * LEAF).unwrap();
    // Sixteen runs of zeroes in each write.
    for at in (0..4 * LEAF).step_by(32) {
        let mut taken = 0;
        let mut data = Vec::new();
        (0..32).for_each(|n| data.extend_from_slice(&[(n % 2) * 5; 4096]));
        for _ in 0..100 {
            match engine.write_from(volume, at * 4096, &data, &mut taken) {
                Ok(_) => break,
                Err(e) => assert_eq!(e.kind(), Kind::Busy, "{e}"),
            }
            engine.flush().unwrap();
            engine.checkpoint().unwrap();
        }
        assert_eq!(taken, data.len() as u64);
    }
    assert_eq!((first_byte(&engine, volume, 32), first_byte(&engine, volume, 33)), (0, 5));
    engine.close().unwrap();
    assert_eq!(problems(&disk), Vec::<String>::new());
}

#[test]
fn rule_00_volumes_that_are_deleted_and_made_again_wait_for_room_in_the_catalogue() {
    let disk = formatted(4096);
    let engine = open(&disk, Limits { volumes: 8, ..Limits::default() });
    for n in 0..40u8 {
        if n >= 4 {
            let old = engine.find_volume(&format!("volume {}", n - 4)).unwrap();
            persevere(&engine, || engine.delete_volume(old)).unwrap();
        }
        let mut id = VolumeId(0);
        persevere(&engine, || {
            let (volume, ticket) = engine.create_volume(&format!("volume {n}"), LEAF * 4)?;
            id = volume;
            Ok(ticket)
        })
        .unwrap();
        persevere(&engine, || engine.write(id, 0, &[n + 1; 4096])).unwrap();
        engine.flush().unwrap();
    }
    let refused = engine.create_volume("one more", 1).unwrap_err();
    assert_eq!(refused.to_string(), "a store holds at most 4 volumes");
    engine.close().unwrap();
    drop(engine);
    assert_eq!(problems(&disk), Vec::<String>::new());
    assert_eq!(open(&disk, Limits::default()).volumes().len(), 4);
}

#[test]
fn rule_00_a_store_whose_deleted_volumes_overfill_its_catalogue_opens_and_goes_on() {
    let disk = formatted(4096);
    // As by a program that does not make new volumes wait, and a checkpoint works through one leaf.
    let limits = |volumes| Limits { volumes, discard_leaves: 0, ..Limits::default() };
    let engine = open(&disk, limits(1000));
    let volumes: Vec<VolumeId> =
        (0..12).map(|n| engine.create_volume(&format!("old {n}"), LEAF * 6).unwrap().0).collect();
    for &volume in &volumes {
        for leaf in 0..6 {
            persevere(&engine, || engine.write(volume, leaf * LEAF * 4096, &content(leaf)))
                .unwrap();
        }
    }
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    for &volume in &volumes {
        engine.delete_volume(volume).unwrap();
    }
    for n in 0..4 {
        engine.create_volume(&format!("new {n}"), LEAF).unwrap();
    }
    engine.flush().unwrap();
    drop(engine);
    let engine = open(&disk, limits(8));
    engine.checkpoint().unwrap();
    let volume = engine.find_volume("new 3").unwrap();
    persevere(&engine, || engine.write(volume, 0, &[9; 4096])).unwrap();
    engine.close().unwrap();
    assert_eq!(problems(&disk), Vec::<String>::new());
}

#[test]
fn rule_00_a_store_that_has_given_all_numbers_of_volumes_says_so_and_goes_on() {
    let disk = formatted(4096);
    let engine = open(&disk, Limits { volume_number: 2, ..Limits::default() });
    engine.create_volume("one", 1).unwrap();
    let (two, _) = engine.create_volume("two", 1).unwrap();
    let refused = engine.create_volume("three", 1).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "this store has given all numbers of volumes, 2, and makes no more volumes"
    );
    engine.delete_volume(two).unwrap();
    engine.close().unwrap();
    assert_eq!(problems(&disk), Vec::<String>::new());
}

/// A disk that takes so many superblocks more, and then is gone.
struct Dying {
    disk: Arc<MemoryDisk>,
    superblocks: AtomicU64,
}

impl Disk for Dying {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        if runs.iter().flat_map(|run| run.blocks).any(|block| block.class == Class::Super) {
            let left = self.superblocks.load(SeqCst);
            if left == 0 {
                return Err(Error::new(Kind::Io, "the power failed"));
            }
            self.superblocks.store(left - 1, SeqCst);
        }
        self.disk.write(runs)
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.disk.write_durable(run)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn allocate(&self, first: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(first, blocks)
    }
}

#[test]
fn rule_00_a_store_opens_after_any_number_of_power_failures_in_its_recoveries() {
    let disk = formatted(4096);
    let engine = open(&disk, Limits::default());
    let (volume, _) = engine.create_volume("one", 1000).unwrap();
    engine.flush().unwrap();
    drop(engine);
    let mut opened = 0;
    for n in 0..100u8 {
        // The superblock of a recovery and its twin are written, but nothing of a checkpoint.
        let dying = Arc::new(Dying { disk: disk.clone(), superblocks: AtomicU64::new(2) });
        let Ok(engine) =
            Engine::open(dying, Arc::new(MonotonicClock::new()), Settings::for_memory(32 << 20))
        else {
            continue;
        };
        opened += 1;
        persevere(&engine, || engine.write(volume, u64::from(n) * 4096, &[n; 4096])).unwrap();
        engine.flush().unwrap();
    }
    assert_eq!(opened, 100);
    let engine = open(&disk, Limits::default());
    for n in 0..100 {
        assert_eq!(u64::from(first_byte(&engine, volume, n)), n);
    }
    engine.close().unwrap();
    assert_eq!(problems(&disk), Vec::<String>::new());
}

#[test]
fn rule_09_a_store_that_says_it_was_full_takes_no_memory_for_all_its_zones() {
    // A file of holes, with a superblock that somebody made.
    const BLOCKS: u64 = (1 << 40) - 16;
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    let format = Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], BLOCKS) };
    Engine::format(&*disk, &format).unwrap();
    for (place, at) in (0..).zip(SUPERBLOCKS) {
        let mut block = Block::zeroed_vec(1);
        let mut reads = [Read::new(at, &mut block)];
        disk.read(&mut reads);
        let [read] = reads;
        read.result.unwrap();
        let Found::Good(mut superblock) = Superblock::decode(&block[0], place) else { panic!() };
        superblock.state.high_water = superblock.fixed.geometry.zones;
        let block = superblock.encode(place);
        disk.write(&[Run { at, blocks: &[BlockRef { block: &block, class: Class::Super }] }])
            .unwrap();
    }
    let engine = open(&disk, Limits::default());
    assert!(engine.find_volume("none").is_err());
    assert!(problems(&disk).is_empty());
    // When it is idle it looks at zones until it knows enough of them.
    let learning = (0..4096).take_while(|_| engine.idle_step(Idleness::Short).unwrap()).count();
    assert!(learning < 4096 && engine.status().memory_bytes < 64 << 20, "{learning}");
}

/// The zones of a store whose zone table is damaged may all be in use. A check reads the maps once
/// for as many zones as memory has room for, and only zones that something names count.
#[test]
fn rule_09_a_check_reads_the_maps_for_what_they_name_and_not_for_zones_that_only_exist() {
    const BLOCKS: u64 = (1 << 40) - 16;
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    let format = Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], BLOCKS) };
    Engine::format(&*disk, &format).unwrap();
    let engine = open(&disk, Limits::default());
    let (volume, _) = engine.create_volume("one", 100_000).unwrap();
    for n in 1..=200u8 {
        persevere(&engine, || engine.write(volume, u64::from(n) * 4096 * 300, &[n; 4096])).unwrap();
    }
    engine.close().unwrap();
    for (place, at) in (0..).zip(SUPERBLOCKS) {
        let mut block = Block::zeroed_vec(1);
        let mut reads = [Read::new(at, &mut block)];
        disk.read(&mut reads);
        let [read] = reads;
        read.result.unwrap();
        let Found::Good(mut superblock) = Superblock::decode(&block[0], place) else { panic!() };
        superblock.state.high_water = superblock.fixed.geometry.zones;
        (superblock.state.zones.height, superblock.state.zones.page.checksum) = (6, 1);
        let block = superblock.encode(place);
        disk.write(&[Run { at, blocks: &[BlockRef { block: &block, class: Class::Super }] }])
            .unwrap();
    }
    let counted = Counted::new(disk);
    let report = check::check(&(counted.clone() as Arc<dyn Disk>), &mut |_| {}).unwrap();
    let read = counted.read.load(SeqCst);
    assert!(!report.is_well() && report.mapped_blocks == 200, "{:?}", report.problems);
    assert!(read < 20_000, "{read} blocks were read");
}
