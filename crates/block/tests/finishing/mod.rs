//! The end of a change of a data key where something is in its way: stores without room, reserves and quotas, a
//! second domain with two keys, deleted volumes whose pages others borrow, snapshots and clones in all shapes.

use std::{collections::BTreeMap, iter::once};

use onefold_block::{
    Acts, DomainLimits, Engine, Hindered, NoDedup, create_domain, domain_limits_durable,
    set_domain_limits,
};
use onefold_core::{Kind, Result};

use super::{VOLUME_BLOCKS, World, bytes, settings};

impl World {
    /// The answer of a change, when all that would make room is done.
    fn answer<T>(&mut self, mut change: impl FnMut(&Engine) -> Result<T>) -> Result<T> {
        for _ in 0..64 {
            let engine = self.engine();
            match change(engine) {
                Err(error) if error.kind() == Kind::Busy => {
                    engine.flush().unwrap();
                    engine.checkpoint().unwrap();
                }
                answer => return answer,
            }
        }
        panic!("it waits for ever");
    }

    /// Writes new contents to addresses from one on until the store, a quota or the volume is full. Returns how many.
    fn fill(&mut self, name: &str, from: u64, number: u64) -> u64 {
        let id = self.maps[name].0;
        let mut count = 0;
        while from + count < VOLUME_BLOCKS {
            let (lba, number) = (from + count, number + count);
            match self.answer(|engine| engine.write(id, lba * 4096, &bytes(number))) {
                Ok(_) => {
                    self.maps.get_mut(name).unwrap().1.insert(lba, number);
                    count += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                    break;
                }
            }
        }
        self.settle();
        count
    }

    fn trim(&mut self, name: &str, from: u64, count: u64) {
        let id = self.maps[name].0;
        self.answer(|engine| engine.trim(id, from * 4096, count * 4096)).unwrap();
        let cells = &mut self.maps.get_mut(name).unwrap().1;
        cells.retain(|lba, _| !(from..from + count).contains(lba));
    }

    fn delete(&mut self, name: &str) {
        let id = self.maps.remove(name).unwrap().0;
        self.answer(|engine| engine.delete_volume(id)).unwrap();
    }

    /// Deletes a snapshot, or a volume with its snapshots.
    fn delete_all(&mut self, name: &str) {
        let below = format!("{name}@");
        let snapshots: Vec<String> =
            self.maps.keys().filter(|other| other.starts_with(&below)).cloned().collect();
        snapshots.iter().for_each(|snapshot| self.delete(snapshot));
        self.delete(name);
    }

    fn rollback(&mut self, name: &str, to: &str) {
        let (id, snapshot) = (self.maps[name].0, self.maps[to].clone());
        let back = |engine: &Engine| Acts::of(engine).rollback(id, snapshot.0, None, 1);
        let (_, asked) = self.answer(back).unwrap();
        while Acts::of(self.engine()).done() < asked.number {
            self.settle();
        }
        self.maps.get_mut(name).unwrap().1 = snapshot.1;
    }

    fn limit(&mut self, domain: u32, quota: u64, reserve: u64) {
        let limits = DomainLimits { quota, reserve };
        let number = self.answer(|engine| set_domain_limits(engine, domain, limits)).unwrap();
        while domain_limits_durable(self.engine()) < number {
            self.settle();
        }
    }

    fn stored(&mut self, domain: u32) -> Option<u64> {
        self.settle();
        let status = self.engine().status();
        status.domains.iter().find(|one| one.number == domain).unwrap().stored_blocks
    }
}

/// Each copy takes a block until a checkpoint releases what it was copied from, and moves leave twice the store's reserve.
/// A store in which clients found no room for a block more has none for a copy either: it says so, and keeps both keys.
#[test]
fn rule_24_a_store_that_clients_filled_comes_under_its_new_key_when_something_is_deleted() {
    let mut world = World::new();
    let mut counts = Vec::new();
    for (n, name) in (0..).zip(["v", "w", "x", "y", "z", "a", "b"]) {
        world.create(name, 0, None);
        counts.push(world.fill(name, 0, n * 10_000));
        if n == 1 {
            world.copy("w", "s", false);
            world.write("w", (0..600).map(|n| (n * 3, 50_000 + n)));
        }
    }
    assert!(counts[0] == VOLUME_BLOCKS && counts[6] < VOLUME_BLOCKS, "{counts:?}");
    world.rotate(0).unwrap();
    let left = world.finish(0).unwrap().unwrap();
    let hindered = Hindered { by_room: true, ..Hindered::default() };
    assert!(left.leaves > 0 && left.hindered == hindered, "{left:?}");
    assert!(world.has_older(0));
    world.verify();
    world.delete("v");
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
}

#[test]
fn rule_24_the_end_takes_the_reserve_of_its_domain_and_of_no_other() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.create("w", 1, None);
    world.write("v", (0..300).map(|n| (n, n)));
    world.write("w", (0..300).map(|n| (n, n)));
    world.limit(1, 0, 1500);
    // All that is no reserve is taken by others.
    for (n, name) in (1..).zip(["a", "b", "c", "d", "e"]) {
        world.create(name, 0, None);
        world.fill(name, 0, n * 10_000);
    }
    world.rotate(0).unwrap();
    world.rotate(1).unwrap();
    let stored = world.stored(1);
    // Copies of domain 1 lie in its reserve.
    assert_eq!(world.finish(1).unwrap(), None);
    world.verify();
    assert_eq!(world.stored(1), stored);
    assert!(world.has_older(0) && !world.has_older(1));
    // The reserve is there when its domain needs it, whatever the end of another one wanted.
    let ended = world.finish(0).unwrap();
    world.verify();
    let more = world.fill("w", 1000, 90_001);
    assert!(more >= 1000, "{more}");
    world.verify();
    if ended.is_some() {
        world.trim("a", 0, 2000);
        world.settle();
        assert_eq!(world.finish(0).unwrap(), None);
        world.verify();
    }
}

#[test]
fn rule_24_a_domain_at_its_quota_comes_under_its_new_key() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.create("w", 1, None);
    world.write("v", (0..100).map(|n| (n, n)));
    world.limit(1, 700, 0);
    let count = world.fill("w", 0, 1);
    assert!((600..=700).contains(&count), "{count}");
    world.copy("w", "s", false);
    let stored = world.stored(1);
    world.rotate(1).unwrap();
    // What is there already is stored a second time, and the quota has no room for that.
    assert_eq!(world.fill("w", 1000, 1), 0);
    assert_eq!(world.finish(1).unwrap(), None);
    assert_eq!(world.stored(1), stored);
    world.verify();
    // Now it is found, and takes no room but a page.
    world.limit(1, 720, 0);
    assert!(world.fill("w", 1000, 1) >= count);
    world.verify();
}

#[test]
fn rule_24_two_domains_with_two_keys_end_one_after_the_other() {
    let mut world = World::new();
    world.close();
    create_domain(&*world.disk, &settings(), "two").unwrap();
    for (name, domain) in [("v", 0), ("w", 1), ("x", 2)] {
        world.create(name, domain, None);
        world.write(name, (0..150).map(|n| (n, n)));
        world.copy(name, "s", false);
        world.write(name, (40..80).map(|n| (n, 1000 + n)));
        world.copy(name, &format!("{name}-clone"), true);
    }
    world.close();
    let before = world.keys();
    let all = || (0..150).chain(1040..1080);
    // Generations rise through all domains.
    assert_eq!((world.rotate(2).unwrap(), world.rotate(1).unwrap()), (1, 2));
    world.write("w", (200..230).map(|n| (n, n - 200)));
    world.write("x", (200..230).map(|n| (n, n - 200)));
    assert_eq!(world.finish(1).unwrap(), None);
    assert!(!world.has_older(1) && world.has_older(2));
    world.verify();
    let opened =
        |world: &World, domain| world.opened_by(before.domain(domain).unwrap(), all()).len();
    assert_eq!(opened(&world, 1), 0);
    assert!(
        opened(&world, 2) > 90 && opened(&world, 0) > 90,
        "others keep what is under their keys"
    );
    // A second change of the one, while the other still has two keys.
    assert_eq!(world.rotate(1).unwrap(), 3);
    world.write("w", (300..330).map(|n| (n, n - 300)));
    assert_eq!(world.finish(2).unwrap(), None);
    assert!(world.has_older(1) && !world.has_older(2));
    world.verify();
    assert_eq!(opened(&world, 2), 0);
    assert_eq!(world.finish(1).unwrap(), None);
    world.verify();
    assert!(opened(&world, 0) > 90);
}

#[test]
fn rule_24_domains_with_two_keys_each_move_beside_one_another() {
    let mut world = World::new();
    for (name, domain) in [("v", 0), ("w", 1)] {
        world.create(name, domain, None);
        world.write(name, (0..300).map(|n| (n, n % 170)));
        world.copy(name, "s", false);
        world.write(name, (100..140).map(|n| (n, 1000 + n)));
    }
    let live = world.live();
    world.rotate(0).unwrap();
    world.rotate(1).unwrap();
    for _ in 0..30 {
        while world.engine().idle_step(onefold_block::Idleness::Long).unwrap() {}
        world.settle();
    }
    assert_eq!(world.live(), live);
    world.verify();
    assert_eq!(world.finish(1).unwrap(), None);
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
}

/// The clone borrows pages of the volume, which is gone: its pages wait as orphans until they are handed over.
#[test]
fn rule_26_an_end_takes_apart_what_was_deleted_just_before() {
    for checkpoints in [0, 1, 3] {
        let mut world = World::new();
        world.create("v", 0, None);
        world.write("v", (0..900).map(|n| (n, n)));
        world.copy("v", "s", false);
        world.write("v", (0..900).step_by(9).map(|n| (n, 2000 + n)));
        world.copy("v", "c", true);
        world.write("c", (300..310).map(|n| (n, 4000 + n)));
        world.copy("c", "cs", false);
        world.rotate(0).unwrap();
        world.write("v", (500..520).map(|n| (n, 5000 + n)));
        // A volume with its snapshot, while a clone lives.
        world.delete("v@s");
        world.delete("v");
        world.trim("c", 600, 100);
        for _ in 0..checkpoints {
            world.settle();
        }
        world.close();
        let before = world.keys();
        assert_eq!(world.finish(0).unwrap(), None, "after {checkpoints} checkpoints");
        world.verify();
        let all = (0..900).chain((0..900).step_by(9).map(|n| 2000 + n));
        assert!(world.opened_by(before.older(0).unwrap(), all).is_empty());
    }
}

#[test]
fn rule_26_an_end_of_a_domain_without_volumes_overwrites_what_they_held() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.write("v", (0..50).map(|n| (n, n)));
    world.create("w", 1, None);
    world.write("w", (0..200).map(|n| (n, n)));
    world.copy("w", "s", false);
    world.close();
    let before = world.keys();
    world.rotate(1).unwrap();
    world.delete("w@s");
    world.delete("w");
    assert_eq!(world.finish(1).unwrap(), None);
    assert!(world.opened_by(before.domain(1).unwrap(), 0..200).is_empty());
    world.verify();
}

#[test]
fn rule_24_snapshots_and_clones_of_all_shapes_come_under_the_new_key() {
    let mut world = World::new();
    let critical = NoDedup::new(once(200..260).collect()).unwrap();
    world.create("v", 0, Some(critical));
    world.write("v", (0..600).map(|n| (n, n % 211)));
    world.copy("v", "a", false);
    world.write("v", (100..300).map(|n| (n, 1000 + n % 50)));
    world.copy("v", "b", false);
    world.copy("v", "c", true);
    world.write("c", (0..50).map(|n| (n, 1000 + n)));
    world.trim("c", 250, 100);
    world.copy("c", "a", false);
    world.copy("c@a", "d", true);
    world.write("d", (580..640).map(|n| (n, 3 * n)));
    world.rollback("v", "v@a");
    world.write("v", (20..40).map(|n| (n, 4000 + n)));
    world.copy("v", "e", false);
    let live = world.live();
    world.close();
    let before = world.keys();
    world.rotate(0).unwrap();
    // Clients go on in all of them.
    world.write("d", (0..10).map(|n| (n, 1000 + n)));
    world.write("c", (10..20).map(|n| (n, 5000 + n)));
    world.copy("d", "late", false);
    world.rollback("c", "c@a");
    world.verify();
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
    let all = (0..211).chain(1000..1050).chain((580..640).map(|n| 3 * n)).chain(4020..4040);
    assert!(world.opened_by(before.domain(0).unwrap(), all).is_empty());
    assert!(world.live() <= live + 20, "{} after {live}", world.live());
}

/// Chance decides what is done before, between and behind a change: what holds is that nothing is lost, and that
/// the end comes about, or says why not.
#[test]
fn rule_24_histories_by_chance_end_under_one_key() {
    for seed in 0..8 {
        let mut chance = Chance(seed * 2 + 1);
        let mut world = World::new();
        let (mut made, mut number) = (0, 0);
        for name in ["v", "w"] {
            world.create(name, u32::from(name == "w"), None);
        }
        let mut before = BTreeMap::new();
        for round in 0..3 {
            for _ in 0..chance.below(12) + 4 {
                step(&mut world, &mut chance, &mut made, &mut number);
            }
            for domain in 0..2 {
                if chance.below(2) == 0 && !world.has_older(domain) {
                    world.rotate(domain).unwrap();
                    before.insert(domain, world.keys());
                }
            }
            for _ in 0..chance.below(6) {
                step(&mut world, &mut chance, &mut made, &mut number);
            }
            for domain in 0..2 {
                if world.has_older(domain) && chance.below(3) > 0 {
                    let ended = world.finish(domain).unwrap();
                    assert_eq!(ended, None, "seed {seed}, round {round}, domain {domain}");
                    let keys = &before[&domain];
                    let opened = world.opened_by(keys.older(domain).unwrap(), 0..number);
                    assert!(
                        opened.is_empty(),
                        "seed {seed}, round {round}, domain {domain}: {opened:?}"
                    );
                }
            }
            world.verify();
        }
    }
}

/// A step of a history.
fn step(world: &mut World, chance: &mut Chance, made: &mut u64, number: &mut u64) {
    let all: Vec<String> = world.maps.keys().cloned().collect();
    let name = all[chance.below(all.len() as u64) as usize].clone();
    let is_snapshot = name.contains('@');
    *made += 1;
    match chance.below(9) {
        0..=3 if !is_snapshot => {
            let (from, count) = (chance.below(1900), chance.below(60) + 1);
            // Half of it is stored already, perhaps by the other domain.
            let first = if chance.below(2) == 0 { *number } else { chance.below(*number + 1) };
            *number = (*number).max(first + count);
            world.write(&name, (0..count).map(|n| (from + n, first + n)));
        }
        4 if !is_snapshot => {
            let (from, count) = (chance.below(1900), chance.below(100) + 1);
            world.trim(&name, from, count);
        }
        5 if !is_snapshot => world.copy(&name, &format!("s{made}"), false),
        6 => world.copy(&name, &format!("c{made}"), true),
        7 if all.len() > 2 => world.delete_all(&name),
        8 if is_snapshot => {
            let of = name.split('@').next().unwrap().to_owned();
            world.rollback(&of, &name);
        }
        _ => world.close(),
    }
}

/// Numbers by chance that a seed repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
