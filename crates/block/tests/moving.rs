//! Blocks move while snapshots and clones share the leaves that name them, and when readers in order hand them
//! over; crashes are the simulator's.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Format, Idleness, Settings, Tidying, check::check, format::page::Table,
};
use onefold_core::{Block, BlockRead, BlockRef, Class, Disk, Lba, Pba, Read, Run, VolumeId};
use support::{Counted, persevere, wait};

const ZONES: u64 = 1024;
const BLOCKS: u64 = 1_500;

fn settings() -> Settings {
    Settings {
        records_max: 4000,
        window_blocks: 32,
        unflushed_blocks: 128,
        tidying: Tidying::Moves,
        settled_after: Duration::ZERO,
        ..Settings::for_memory(32 << 20)
    }
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings()).unwrap()
}

fn formatted() -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new(ZONES * 16));
    let format = Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], ZONES * 16) };
    Engine::format(&*disk, &format).unwrap();
    disk
}

/// Bytes that nothing compresses.
fn content(n: u64) -> [u8; 4096] {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::array::from_fn(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
}

/// A store with maps, and what each must hold.
struct World {
    disk: Arc<MemoryDisk>,
    engine: Engine,
    maps: BTreeMap<VolumeId, Vec<u64>>,
    next: u64,
}

impl World {
    /// A volume whose neighbours lie apart.
    fn scattered() -> (World, VolumeId) {
        let disk = formatted();
        let engine = open(&disk);
        let (volume, _) = persevere(&engine, || engine.create_volume("one", BLOCKS));
        let maps = BTreeMap::from([(volume, vec![0; BLOCKS as usize])]);
        let mut world = World { disk, engine, maps, next: 0 };
        world.write(volume, (0..BLOCKS).map(|n| n * 7 % BLOCKS));
        world.settle();
        (world, volume)
    }

    fn write(&mut self, volume: VolumeId, addresses: impl Iterator<Item = u64>) {
        for lba in addresses {
            self.next += 1;
            let block = content(self.next);
            persevere(&self.engine, || self.engine.write(volume, lba * 4096, &block));
            self.maps.get_mut(&volume).unwrap()[lba as usize] = self.next;
        }
    }

    fn settle(&self) {
        self.engine.flush().unwrap();
        self.engine.checkpoint().unwrap();
    }

    fn snapshot(&mut self, volume: VolumeId, name: &str) -> VolumeId {
        let wanted = [(volume, name.to_owned())];
        let (ids, asked) = persevere(&self.engine, || Acts::of(&self.engine).snapshot(&wanted, 1));
        wait(&self.engine, asked);
        let cells = self.maps[&volume].clone();
        self.maps.insert(ids[0], cells);
        ids[0]
    }

    fn delete(&mut self, map: VolumeId) {
        persevere(&self.engine, || self.engine.delete_volume(map));
        self.maps.remove(&map);
        self.settle();
    }

    fn moved(&self) -> u64 {
        self.engine.counts().neighbour_blocks
    }

    /// Works as long as that moves anything.
    fn idle(&self) -> u64 {
        let begun = self.moved();
        for _ in 0..200 {
            let before = self.moved();
            while self.engine.idle_step(Idleness::Pause).unwrap() {}
            self.settle();
            self.settle();
            if self.moved() == before {
                return before - begun;
            }
        }
        panic!("moving does not end");
    }

    fn verify(&self) {
        for (&map, cells) in &self.maps {
            for (lba, &number) in (0..).zip(cells) {
                let wanted = if number == 0 { [0; 4096] } else { content(number) };
                assert!(self.read(map, lba) == wanted, "map {map:?}, block {lba}");
            }
        }
    }

    fn read(&self, map: VolumeId, lba: u64) -> [u8; 4096] {
        let mut blocks = Block::zeroed_vec(1);
        let mut reads = [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
        self.engine.read(map, &mut reads);
        let [read] = reads;
        read.result.unwrap();
        blocks[0].0
    }

    /// Closes the store, whose check finds nothing wrong, and opens it again.
    fn reopen(self) -> World {
        let World { disk, engine, maps, next } = self;
        engine.close().unwrap();
        let all: Arc<dyn Disk> = disk.clone();
        let report = check(&all, &mut |_| {}).unwrap();
        assert_eq!(report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
        let engine = open(&disk);
        World { disk, engine, maps, next }
    }
}

#[test]
fn rule_21_blocks_of_a_leaf_that_snapshots_and_clones_share_move_once_for_all() {
    let (mut world, volume) = World::scattered();
    let monday = world.snapshot(volume, "monday");
    let (clone, asked) =
        persevere(&world.engine, || Acts::of(&world.engine).clone_volume(monday, "two", 1));
    wait(&world.engine, asked);
    world.maps.insert(clone, world.maps[&monday].clone());
    let stored = world.engine.status().live_blocks;
    let moved = world.idle();
    assert!(moved > BLOCKS * 3 / 4 && moved <= BLOCKS, "{moved} moved");
    assert_eq!(world.engine.status().live_blocks, stored, "nothing is stored twice");
    world.verify();
    // Nobody finds a leaf in many runs, whichever map he looks at.
    let world = world.reopen();
    let again = world.idle();
    assert!(again < BLOCKS / 10, "{again} moved again");
    world.verify();
    world.reopen().verify();
}

#[test]
fn rule_21_leaves_that_differ_and_lend_to_each_other_do_not_take_turns() {
    let (mut world, volume) = World::scattered();
    for (n, day) in ["1", "2", "3"].into_iter().enumerate() {
        world.snapshot(volume, day);
        world.write(volume, (0..BLOCKS).filter(move |lba| lba % 5 == n as u64));
        world.settle();
    }
    let stored = world.engine.status().live_blocks;
    let moved = world.idle();
    assert!(moved > BLOCKS / 2, "{moved} moved");
    assert_eq!(world.engine.status().live_blocks, stored, "nothing is stored twice");
    world.verify();
    let world = world.reopen();
    let again = world.idle();
    assert!(again < BLOCKS / 4, "{again} moved again");
    world.reopen().verify();
}

#[test]
fn rule_21_what_is_left_of_deleted_maps_moves_or_waits_and_all_goes_in_the_end() {
    let (mut world, volume) = World::scattered();
    let first = world.snapshot(volume, "first");
    world.write(volume, (0..BLOCKS).step_by(3));
    let second = world.snapshot(volume, "second");
    world.write(volume, (0..BLOCKS).step_by(4));
    persevere(&world.engine, || world.engine.trim(volume, 0, 300 * 4096));
    world.maps.get_mut(&volume).unwrap()[..300].fill(0);
    world.delete(first);
    world.idle();
    world.verify();
    let mut world = world.reopen();
    world.delete(second);
    world.idle();
    world.verify();
    let mut world = world.reopen();
    world.delete(volume);
    for _ in 0..20 {
        world.settle();
    }
    assert_eq!(world.engine.status().live_blocks, 0);
    world.reopen().verify();
}

/// Reads the first blocks of a volume, in order or not.
fn read_through(engine: &Engine, volume: VolumeId, end: u64, in_order: bool) {
    for first in (0..end).step_by(100) {
        let mut blocks = Block::zeroed_vec(100.min(end - first) as usize);
        let mut reads = [BlockRead { first: Lba(first), into: &mut blocks, result: Ok(()) }];
        if in_order {
            engine.read_in_order(volume, &mut reads);
        } else {
            engine.read(volume, &mut reads);
        }
        let [BlockRead { result, .. }] = reads;
        result.unwrap();
    }
}

/// Blocks that are read from the disk while a volume is moved, after a reader went through it.
fn read_while_moving(in_order: bool) -> (u64, u64) {
    let (world, volume) = World::scattered();
    let World { disk, engine, .. } = world;
    engine.close().unwrap();
    let counted = Counted::new(disk);
    let engine =
        Engine::open(counted.clone(), Arc::new(MonotonicClock::new()), settings()).unwrap();
    read_through(&engine, volume, BLOCKS, in_order);
    let before = counted.read.load(Relaxed);
    while engine.idle_step(Idleness::Share).unwrap() {}
    let read = counted.read.load(Relaxed) - before;
    engine.checkpoint().unwrap();
    (engine.counts().neighbour_blocks, read)
}

#[test]
fn rule_23_what_a_reader_in_order_found_scattered_is_moved_without_another_read() {
    let (moved, read) = read_while_moving(true);
    let (moved_alone, read_alone) = read_while_moving(false);
    assert!(moved > BLOCKS / 2 && moved_alone > BLOCKS / 2, "{moved}, {moved_alone} moved");
    assert!(read + moved / 2 < read_alone, "{read} read, and {read_alone} without a reader");
}

/// Idle steps until nothing is left to do, which are not many.
fn idle_steps(engine: &Engine, idleness: Idleness) {
    let more = (0..10_000).all(|_| engine.idle_step(idleness).unwrap());
    assert!(!more, "idle work does not end");
}

/// Flips a bit in every leaf of references.
fn damage_references(disk: &MemoryDisk) {
    let mut hit = 0;
    for at in (0..ZONES * 16).map(Pba) {
        let mut blocks = Block::zeroed_vec(1);
        disk.read(&mut [Read::new(at, &mut blocks)]);
        if blocks[0].0.starts_with(&[b'O', b'F', b'p', b'1', Table::References as u8, 0]) {
            blocks[0].0[700] ^= 1;
            let block = BlockRef { block: &blocks[0], class: Class::Data };
            disk.write(&[Run { at, blocks: &[block] }]).unwrap();
            hit += 1;
        }
    }
    assert!(hit > 0, "nothing was hit");
}

#[test]
fn rule_23_a_damaged_page_of_references_does_not_keep_idle_work_busy_for_ever() {
    let (world, volume) = World::scattered();
    let World { disk, engine, .. } = world;
    engine.close().unwrap();
    damage_references(&disk);
    let engine = open(&disk);
    read_through(&engine, volume, BLOCKS, true);
    idle_steps(&engine, Idleness::Share);
    assert_eq!(engine.counts().neighbour_blocks, 0, "nobody knows who else names them");
}

#[test]
fn rule_23_a_leaf_that_does_not_come_together_is_not_moved_each_time_it_is_read() {
    let (world, volume) = World::scattered();
    // Two of five blocks stay: another volume names them, too.
    let (other, _) = persevere(&world.engine, || world.engine.create_volume("two", BLOCKS));
    for lba in (0..BLOCKS).filter(|lba| lba % 5 == 1 || lba % 5 == 3) {
        let block = content(world.maps[&volume][lba as usize]);
        persevere(&world.engine, || world.engine.write(other, (lba * 7 % BLOCKS) * 4096, &block));
    }
    world.settle();
    let stored = world.engine.status().live_blocks;
    assert_eq!(stored, BLOCKS, "the other volume shares its blocks");
    world.idle();
    for pass in 0..2 {
        let before = world.moved();
        read_through(&world.engine, volume, BLOCKS, true);
        idle_steps(&world.engine, Idleness::Share);
        world.settle();
        let moved = world.moved() - before;
        assert!(pass == 0 || moved == 0, "{moved} moved again");
    }
}
