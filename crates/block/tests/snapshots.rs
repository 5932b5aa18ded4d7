//! Snapshots, clones and rollbacks against a plain model, through checkpoints and reopening; crashes
//! are the simulator's.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::{collections::BTreeMap, sync::Arc};

use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{Acts, Engine, Format, Settings};
use onefold_core::{Block, BlockRead, Disk, Kind, Lba, VolumeId};
use support::{persevere, wait};

const ZONES: u64 = 512;
const BLOCKS: u64 = 2_000;

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    let settings = Settings {
        records_max: 2000,
        window_blocks: 32,
        unflushed_blocks: 128,
        ..Settings::for_memory(32 << 20)
    };
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap()
}

fn formatted() -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new(ZONES * 16));
    let format = Format { zone_blocks: 16, ..Format::new([1; 16], [2; 32], ZONES * 16) };
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

fn read(engine: &Engine, volume: VolumeId, lba: u64) -> [u8; 4096] {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
    engine.read(volume, &mut reads);
    let [read] = reads;
    read.result.unwrap();
    blocks[0].0
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[derive(Clone)]
struct Map {
    id: VolumeId,
    name: String,
    cells: BTreeMap<u64, u64>,
    /// Of a snapshot.
    of: Option<VolumeId>,
}

/// A store, and what it must hold.
struct World {
    disk: Arc<MemoryDisk>,
    engine: Option<Engine>,
    maps: Vec<Map>,
    dice: Dice,
    names: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let disk = formatted();
        let engine = open(&disk);
        let (id, _) = engine.create_volume("v0", BLOCKS).unwrap();
        engine.flush().unwrap();
        let map = Map { id, name: "v0".into(), cells: BTreeMap::new(), of: None };
        World { disk, engine: Some(engine), maps: vec![map], dice: Dice(seed), names: 1 }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn pick(&mut self, snapshots: bool) -> Option<usize> {
        let all: Vec<usize> =
            (0..self.maps.len()).filter(|&n| self.maps[n].of.is_some() == snapshots).collect();
        if all.is_empty() {
            return None;
        }
        Some(all[self.dice.roll(all.len() as u64) as usize])
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("m{}", self.names)
    }

    fn change(&mut self) {
        let Some(n) = self.pick(false) else { return };
        let (id, engine) = (self.maps[n].id, self.engine.take().unwrap());
        let lba = self.dice.roll(BLOCKS);
        if self.dice.roll(8) == 0 {
            let count = (1 + self.dice.roll(700)).min(BLOCKS - lba);
            persevere(&engine, || engine.trim(id, lba * 4096, count * 4096));
            self.maps[n].cells.retain(|at, _| !(lba..lba + count).contains(at));
        } else {
            let value = self.dice.roll(300);
            persevere(&engine, || engine.write(id, lba * 4096, &content(value)));
            self.maps[n].cells.insert(lba, value);
        }
        self.engine = Some(engine);
    }

    fn act(&mut self) {
        let engine = self.engine.take().unwrap();
        match self.dice.roll(10) {
            0..=3 if self.maps.len() < 12 => {
                let (n, name) = (self.pick(false).unwrap(), self.name());
                let of = self.maps[n].id;
                let wanted = [(of, name.clone())];
                let (ids, asked) = persevere(&engine, || Acts::of(&engine).snapshot(&wanted, 1));
                let cells = self.maps[n].cells.clone();
                self.maps.push(Map { id: ids[0], name, cells, of: Some(of) });
                // Written after the moment: no snapshot has it.
                if self.dice.roll(2) == 0 {
                    let at = self.dice.roll(BLOCKS);
                    persevere(&engine, || engine.write(of, at * 4096, &content(7)));
                    self.maps[n].cells.insert(at, 7);
                }
                wait(&engine, asked);
            }
            4 if self.maps.len() < 12 => {
                let n = self.dice.roll(self.maps.len() as u64) as usize;
                let (of, name) = (self.maps[n].id, self.name());
                let (id, asked) =
                    persevere(&engine, || Acts::of(&engine).clone_volume(of, &name, 1));
                let cells = self.maps[n].cells.clone();
                self.maps.push(Map { id, name, cells, of: None });
                wait(&engine, asked);
            }
            5 => {
                if let Some(snapshot) = self.pick(true) {
                    let (to, cells) = (self.maps[snapshot].id, self.maps[snapshot].cells.clone());
                    let of = self.maps[snapshot].of.unwrap();
                    let keep = (self.dice.roll(2) == 0).then(|| self.name());
                    let keep_name = keep.as_deref();
                    let (_, asked) =
                        persevere(&engine, || Acts::of(&engine).rollback(of, to, keep_name, 1));
                    assert_eq!(engine.write(of, 0, &content(1)).unwrap_err().kind(), Kind::Busy);
                    wait(&engine, asked);
                    let volume = self.maps.iter_mut().find(|map| map.id == of).unwrap();
                    let before = std::mem::replace(&mut volume.cells, cells);
                    if let Some(name) = keep {
                        let snapshots = Acts::of(&engine).snapshots(of);
                        let (id, _) = snapshots.iter().find(|(_, one)| one.name == name).unwrap();
                        self.maps.push(Map { id: *id, name, cells: before, of: Some(of) });
                    }
                }
            }
            6..=8 => {
                if let Some(n) = self.pick(true) {
                    let map = self.maps.remove(n);
                    persevere(&engine, || engine.delete_volume(map.id));
                }
            }
            _ => {
                let n = self.pick(false).unwrap();
                let id = self.maps[n].id;
                let volumes = self.maps.iter().filter(|map| map.of.is_none()).count();
                if volumes > 1 && self.maps.iter().all(|map| map.of != Some(id)) {
                    persevere(&engine, || engine.delete_volume(id));
                    self.maps.remove(n);
                }
            }
        }
        self.engine = Some(engine);
    }

    fn compare(&self) {
        for map in &self.maps {
            for lba in 0..BLOCKS {
                let right = map.cells.get(&lba).map_or([0; 4096], |&value| content(value));
                assert!(
                    read(self.engine(), map.id, lba) == right,
                    "block {lba} of '{}' ({}), snapshot of {:?}",
                    map.name,
                    map.id,
                    map.of
                );
            }
        }
    }

    fn reopen(&mut self) {
        self.engine.take().unwrap().close().unwrap();
        let disk: Arc<dyn Disk> = self.disk.clone();
        let report = onefold_block::check::check(&disk, &mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.leaked_blocks, 0);
        self.engine = Some(open(&self.disk));
    }
}

#[test]
fn every_map_holds_what_it_must_whatever_is_copied_and_deleted() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        for step in 0..400 {
            match world.dice.roll(20) {
                0 | 1 => world.act(),
                2 => world.engine().checkpoint().unwrap(),
                3 if step % 3 == 0 => world.reopen(),
                _ => (0..8).for_each(|_| world.change()),
            }
        }
        world.compare();
        world.reopen();
        world.compare();
        // All goes, and nothing is left.
        while let Some(n) = world.pick(true).or_else(|| world.pick(false)) {
            let map = world.maps.remove(n);
            persevere(world.engine(), || world.engine().delete_volume(map.id));
        }
        world.engine().flush().unwrap();
        for _ in 0..200 {
            world.engine().checkpoint().unwrap();
        }
        let status = world.engine().status();
        assert_eq!((status.live_blocks, status.mapped_blocks), (0, 0), "seed {seed}");
        assert!(!world.engine().checkpoint_useful(), "seed {seed}: something is left over");
        eprintln!("{:?} table blocks {}", world.engine().reached(), status.table_blocks);
        world.reopen();
    }
}

#[test]
fn snapshots_are_named_after_their_volume_and_only_read() {
    let disk = formatted();
    let engine = open(&disk);
    let (volume, _) = engine.create_volume("vm", 100).unwrap();
    engine.write(volume, 0, &content(1)).unwrap();
    let (ids, asked) = Acts::of(&engine).snapshot(&[(volume, "a".into())], 5).unwrap();
    assert!(engine.find_volume("vm@a").is_err(), "nobody sees it before it is durable");
    let again = Acts::of(&engine).snapshot(&[(volume, "a".into())], 5).unwrap_err();
    assert_eq!(again.kind(), Kind::Exists);
    wait(&engine, asked);
    assert_eq!(engine.find_volume("vm@a").unwrap(), ids[0]);
    assert_eq!(engine.volumes().len(), 1);
    assert_eq!(engine.write(ids[0], 0, &content(2)).unwrap_err().kind(), Kind::Denied);
    assert_eq!(engine.trim(ids[0], 0, 4096).unwrap_err().kind(), Kind::Denied);
    assert_eq!(engine.resize_volume(ids[0], 5).unwrap_err().kind(), Kind::Denied);
    let kept = engine.delete_volume(volume).unwrap_err();
    assert!(kept.to_string().contains("has a snapshot"), "{kept}");
    for name in ["", "a@b", "a/b", "a\nb", &"x".repeat(128)] {
        let refused = Acts::of(&engine).snapshot(&[(volume, name.into())], 5).unwrap_err();
        assert_eq!(refused.kind(), Kind::InvalidInput, "{name:?}");
    }
    assert_eq!(engine.create_volume("x@y", 5).unwrap_err().kind(), Kind::InvalidInput);
}

#[test]
fn rule_00_a_volume_has_no_more_snapshots_than_it_may_though_they_are_taken_together() {
    let disk = formatted();
    let mut settings = Settings::for_memory(32 << 20);
    settings.limits.snapshots = 3;
    let engine = Engine::open(disk, Arc::new(MonotonicClock::new()), settings).unwrap();
    let (volume, _) = engine.create_volume("vm", 100).unwrap();
    let wanted = |count: u8| (0..count).map(|n| (volume, n.to_string())).collect::<Vec<_>>();
    let refused = Acts::of(&engine).snapshot(&wanted(4), 5).unwrap_err();
    assert!(refused.to_string().contains("at most 3 snapshots"), "{refused}");
    let (ids, asked) = Acts::of(&engine).snapshot(&wanted(3), 5).unwrap();
    wait(&engine, asked);
    assert_eq!(ids.len(), Acts::of(&engine).snapshots(volume).len());
}
