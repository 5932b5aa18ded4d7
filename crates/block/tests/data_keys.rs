//! The data key of a domain changes: what comes later is under the new key and shares nothing with what was
//! there, moving brings the rest under it, and then the older key is erased.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;
mod finishing;
mod support;

use std::{
    collections::BTreeMap,
    iter::once,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use damage::{copy, flip, get, persevere};
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Format, Hindered, Idleness, KeySource, NewVolume, NoDedup, Settings, StillOlder,
    check::{MEMORY, check_with, scrub_with},
    create_domain, domains, erase_domain, finish_data_key,
    format::superblock::DATA_KEYS,
    identified, rotate_data_key,
};
use onefold_core::{Block, Disk, Error, Fingerprinter, Kind, Pba, Read, Result, Run, VolumeId};
use onefold_seal::{
    Argon, CtrKey, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret, Use,
};
use support::content;

const ID: [u8; 16] = [0x94; 16];
const BLOCKS: u64 = 8192;
const VOLUME_BLOCKS: u64 = 2000;

/// A disk that fails for ever after so many writes and flushes.
struct Cut {
    disk: Arc<MemoryDisk>,
    left: AtomicI64,
}

impl Cut {
    fn spend(&self) -> Result<()> {
        let is_left = self.left.fetch_sub(1, Ordering::SeqCst) > 0;
        if is_left { Ok(()) } else { Err(Error::new(Kind::Io, "it was cut off")) }
    }
}

impl Disk for Cut {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        self.spend().and_then(|()| self.disk.write(runs))
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.spend().and_then(|()| self.disk.write_durable(run))
    }

    fn flush(&self) -> Result<()> {
        self.spend().and_then(|()| self.disk.flush())
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(at, blocks)
    }
}

struct Repeated;

impl Random for Repeated {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        (0..).zip(into).for_each(|(n, byte): (u32, _)| *byte = (n * 7 + 3) as u8);
        Ok(())
    }
}

struct Holder;

fn secret() -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [1; 32]))
}

impl Opener for Holder {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&secret(), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }

    fn random(&self) -> Arc<dyn Random> {
        Arc::new(Repeated)
    }
}

fn keys() -> KeySource {
    KeySource::new(Arc::new(Holder))
}

fn settings() -> Settings {
    Settings { keys: keys(), ..damage::settings() }
}

fn clock() -> Arc<MonotonicClock> {
    Arc::new(MonotonicClock::new())
}

/// A sealed store, and what its volumes and snapshots must hold.
struct World {
    disk: Arc<MemoryDisk>,
    engine: Option<Engine>,
    maps: BTreeMap<String, (VolumeId, BTreeMap<u64, u64>)>,
}

/// Every third block compresses, and travels in a carrier.
fn bytes(n: u64) -> Vec<u8> {
    if n.is_multiple_of(3) { vec![(n % 250) as u8 + 1; 4096] } else { content(n) }
}

impl World {
    /// With the domains 0 and 1.
    fn new() -> World {
        let disk = Arc::new(MemoryDisk::new(BLOCKS));
        let mut keys = Keys::create(ID, &Repeated).unwrap();
        keys.add_slot((SlotKind::File, ""), &secret(), Argon::LEAST, (0, 0), &Repeated).unwrap();
        let format = Format { zone_blocks: 64, ..Format::new(ID, [0; 32], BLOCKS) };
        onefold_block::format_sealed(&*disk, &format, &mut keys, &Repeated).unwrap();
        create_domain(&*disk, &settings(), "one").unwrap();
        World { disk, engine: None, maps: BTreeMap::new() }
    }

    fn shared(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    /// The open store, with an index that was learnt anew.
    fn engine(&mut self) -> &Engine {
        self.engine.get_or_insert_with(|| {
            let engine = Engine::open(self.disk.clone(), clock(), settings()).unwrap();
            while engine.idle_step(Idleness::None).unwrap() {}
            engine
        })
    }

    fn close(&mut self) {
        self.engine().close().unwrap();
        self.engine = None;
    }

    fn create(&mut self, name: &str, domain: u32, no_dedup: Option<NoDedup>) {
        let new =
            NewVolume { domain, no_dedup: no_dedup.unwrap_or_default(), ..NewVolume::default() };
        let (id, _) = self.engine().create_volume_with(name, VOLUME_BLOCKS, new).unwrap();
        self.maps.insert(name.to_owned(), (id, BTreeMap::new()));
    }

    /// Writes contents to addresses of a volume.
    fn write(&mut self, name: &str, blocks: impl Iterator<Item = (u64, u64)>) {
        let id = self.maps[name].0;
        for (lba, number) in blocks {
            let engine = self.engine();
            persevere(engine, || engine.write(id, lba * 4096, &bytes(number)));
            self.maps.get_mut(name).unwrap().1.insert(lba, number);
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.engine().flush().unwrap();
        self.engine().checkpoint().unwrap();
    }

    /// A snapshot, or a clone.
    fn copy(&mut self, name: &str, new: &str, is_clone: bool) {
        let (id, cells) = self.maps[name].clone();
        let engine = self.engine();
        let acts = Acts::of(engine);
        let (made, asked) = if is_clone {
            acts.clone_volume(id, new, 1).unwrap()
        } else {
            let (ids, asked) = acts.snapshot(&[(id, new.to_owned())], 1).unwrap();
            (ids[0], asked)
        };
        while Acts::of(engine).done() < asked.number {
            engine.flush().unwrap();
            engine.checkpoint().unwrap();
        }
        self.maps
            .insert(if is_clone { new.to_owned() } else { format!("{name}@{new}") }, (made, cells));
    }

    fn live(&mut self) -> u64 {
        self.engine().status().live_blocks
    }

    fn rotate(&mut self, domain: u32) -> Result<u32> {
        self.close();
        rotate_data_key(&self.shared(), clock(), &settings(), domain)
    }

    fn finish(&mut self, domain: u32) -> Result<Option<StillOlder>> {
        self.close();
        finish_data_key(&self.shared(), clock(), &settings(), domain)
    }

    /// All is there, and neither the check nor scrub finds anything.
    fn verify(&mut self) {
        for (name, (id, cells)) in self.maps.clone() {
            for (lba, number) in cells {
                let found = damage::read(self.engine(), id, lba).unwrap();
                assert!(found.to_vec() == bytes(number), "{name}, block {lba}");
            }
        }
        self.close();
        let disk: Arc<dyn Disk> = copy(&self.disk);
        let report = check_with(&disk, &keys(), MEMORY, &mut |_| {}).unwrap();
        assert!(report.is_well(), "{:#?}", report.problems);
        let scrubbed = scrub_with(&disk, &keys(), &mut |_| {}, &mut || false).unwrap();
        assert!(scrubbed.is_well() && scrubbed.erased_blocks == 0, "{scrubbed:?}");
    }

    /// The keys as they are on the disk: whoever had a slot may have copied them.
    fn keys(&self) -> Keys {
        let area: Vec<u8> = (1..4).flat_map(|at| get(&self.disk, Pba(at)).0).collect();
        let area = KeyArea::decode(&area).unwrap();
        let (_, root) = area.root(&secret(), 0).unwrap().unwrap();
        area.keys(&root).unwrap().unwrap()
    }

    /// The blocks of the disk that a data key opens, of those that hold one of these contents as it is.
    fn opened_by(&self, key: &Secret, contents: impl Iterator<Item = u64>) -> Vec<u64> {
        let algorithm = identified(&*self.disk, &keys()).unwrap().0.fixed.algorithm;
        let fingerprints = Fingerprinter::new(algorithm, key.derive(Use::FINGERPRINTS).expose());
        let blocks = CtrKey::new(&key.derive(Use::BLOCKS)).unwrap();
        let known: Vec<(u64, Vec<u8>)> = contents
            .map(|number| {
                let mut block = Block::zeroed();
                block.0.copy_from_slice(&bytes(number));
                (fingerprints.one(&block).prefix(), bytes(number))
            })
            .collect();
        let held: Vec<(u64, Block)> =
            (0..BLOCKS).map(|at| (at, get(&self.disk, Pba(at)))).collect();
        let opens = |(at, block): &&(u64, Block)| {
            !block.is_zero()
                && known.iter().any(|(prefix, content)| {
                    let mut start = block.0[..64].to_vec();
                    let counter = u128::from(*prefix) << 64 | u128::from(*at) << 8;
                    blocks.open(counter.to_be_bytes(), &mut start).unwrap();
                    start == content[..64]
                })
        };
        held.iter().filter(opens).map(|(at, _)| *at).collect()
    }

    fn has_older(&mut self, domain: u32) -> bool {
        domains(self.engine()).iter().any(|one| one.number == domain && one.has_older)
    }
}

#[test]
fn rule_24_what_comes_after_a_change_shares_nothing_with_what_was_there() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.create("w", 1, None);
    world.write("v", (0..60).map(|n| (n, n)));
    world.write("w", (0..60).map(|n| (n, n)));
    let before = world.live();
    assert_eq!(identified(&*world.disk, &keys()).unwrap().0.state.features & DATA_KEYS, 0);
    assert_eq!(world.rotate(0).unwrap(), 1);
    assert_eq!(identified(&*world.disk, &keys()).unwrap().0.state.features & DATA_KEYS, DATA_KEYS);
    assert!(world.has_older(0) && !world.has_older(1));
    world.verify();
    world.write("v", (100..160).map(|n| (n, n - 100)));
    world.write("w", (100..160).map(|n| (n, n - 100)));
    assert_eq!(world.live(), before + 60, "domain 1 has one key, and shares");
    world.write("v", (200..260).map(|n| (n, n - 200)));
    assert_eq!(world.live(), before + 60, "what is under the new key is found");
    world.verify();
    let error = world.rotate(0).unwrap_err();
    assert!(
        error.kind() == Kind::InvalidInput && error.to_string().contains("--finish"),
        "{error}"
    );
    assert_eq!(world.finish(1).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(world.finish(2).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(world.rotate(2).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(world.finish(0).unwrap(), None);
    assert!(!world.has_older(0));
    assert_eq!(world.live(), before, "what was stored twice is stored once");
    world.verify();
    // And once more.
    assert_eq!(world.rotate(0).unwrap(), 2);
    world.verify();
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
}

#[test]
fn rule_24_sharing_stays_when_blocks_are_sealed_again() {
    let mut world = World::new();
    world.create("v", 1, None);
    world.write("v", (0..1000).map(|n| (n, n)));
    world.copy("v", "monday", false);
    world.write("v", (0..300).step_by(7).map(|n| (n, 5000 + n)));
    // The same content at other addresses, in the volume, in its family, and in another one.
    world.write("v", (1500..1600).map(|n| (n, n - 1500)));
    world.copy("v", "tuesday", false);
    world.copy("v@monday", "clone", true);
    world.write("clone", (400..500).step_by(3).map(|n| (n, 9000 + n)));
    world.create("other", 1, None);
    world.write("other", (0..200).map(|n| (n, n + 100)));
    world.verify();
    let before = world.live();
    assert_eq!(world.rotate(1).unwrap(), 1);
    assert_eq!(world.finish(1).unwrap(), None);
    world.verify();
    assert_eq!(world.live(), before);
    // Old content is found by the new key.
    world.write("other", (300..400).map(|n| (n, n)));
    assert_eq!(world.live(), before);
    world.verify();
}

#[test]
fn rule_24_idle_work_brings_all_under_the_new_key() {
    let mut world = World::new();
    let critical = NoDedup::new(once(100..200).collect()).unwrap();
    world.create("v", 0, Some(critical));
    world.write("v", (0..300).map(|n| (n, n % 90)));
    world.copy("v", "monday", false);
    world.write("v", (0..40).map(|n| (n, 700 + n)));
    let before = world.live();
    world.rotate(0).unwrap();
    for _ in 0..30 {
        while world.engine().idle_step(Idleness::Long).unwrap() {}
        world.settle();
    }
    assert!(world.engine().counts().resealed_blocks >= 300, "{:?}", world.engine().counts());
    assert_eq!(world.live(), before);
    world.verify();
    // Clients go on.
    world.write("v", (0..20).map(|n| (n, 1000 + n)));
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
}

#[test]
fn rule_24_after_the_end_no_block_of_the_disk_opens_by_the_older_key() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.write("v", (0..200).map(|n| (n, n)));
    // Free already when the key changes.
    world.write("v", (0..40).map(|n| (n, 300 + n)));
    world.copy("v", "monday", false);
    world.write("v", (50..90).map(|n| (n, 400 + n)));
    world.close();
    let before = world.keys();
    let older = before.domain(0).unwrap();
    let all = || (0..200).chain(300..340).chain(450..490);
    assert!(world.opened_by(older, all()).len() > 150, "the test knows how blocks are sealed");
    world.rotate(0).unwrap();
    world.write("v", (100..120).map(|n| (n, 500 + n)));
    assert_eq!(world.finish(0).unwrap(), None);
    assert!(world.opened_by(older, all()).is_empty());
    let newest = world.keys();
    assert!(world.opened_by(newest.domain(0).unwrap(), all()).len() > 100);
    world.verify();
    assert!(world.opened_by(older, all()).is_empty());
}

#[test]
fn rule_24_an_end_takes_more_versions_of_a_part_than_moving_beside_clients() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.write("v", (0..20).map(|n| (n, n)));
    for n in 0..70 {
        world.copy("v", &format!("day{n}"), false);
        world.write("v", once((3, 1000 + n)));
    }
    world.rotate(0).unwrap();
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
}

#[test]
fn rule_24_keys_of_a_store_that_was_not_shut_down_are_not_erased() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.write("v", (0..20).map(|n| (n, n)));
    world.rotate(0).unwrap();
    world.write("v", (20..40).map(|n| (n, n)));
    // One of the two superblocks is gone: opening writes it again.
    world.close();
    flip(&world.disk, Pba(0), 9000);
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
}

#[test]
fn rule_22_a_change_that_is_cut_off_at_any_write_is_done_again() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.write("v", (0..30).map(|n| (n, n)));
    world.copy("v", "monday", false);
    world.write("v", (5..12).map(|n| (n, 100 + n)));
    world.close();
    let before = world.keys();
    let older = before.domain(0).unwrap();
    let all = || (0..30).chain(105..112);
    let cut = |world: &World, writes: i64| {
        let disk = copy(&world.disk);
        let cut: Arc<dyn Disk> = Arc::new(Cut { disk: disk.clone(), left: AtomicI64::new(writes) });
        (cut, World { disk, engine: None, maps: world.maps.clone() })
    };
    let mut writes = 0;
    loop {
        let (disk, mut after) = cut(&world, writes);
        let done = rotate_data_key(&disk, clock(), &settings(), 0);
        after.verify();
        match (done, after.rotate(0)) {
            (Ok(1), Err(error)) => {
                assert_eq!(error.kind(), Kind::InvalidInput);
                world = after;
                break;
            }
            (Err(_), Ok(1)) => {}
            // The key area has two keys, and the verb was not told that it has.
            (Err(_), Err(error)) => assert_eq!(error.kind(), Kind::InvalidInput),
            other => panic!("after {writes} writes: {other:?}"),
        }
        assert!(after.has_older(0));
        writes += 1;
    }
    assert!(writes > 10, "{writes}");
    world.close();
    let mut writes = 0;
    loop {
        let (disk, mut after) = cut(&world, writes);
        let done = finish_data_key(&disk, clock(), &settings(), 0);
        let is_erased = after.keys().older(0).is_none();
        if is_erased {
            assert!(after.opened_by(older, all()).is_empty(), "after {writes} writes");
        }
        after.verify();
        if let Ok(left) = done {
            assert_eq!(left, None);
            assert!(is_erased);
            break;
        }
        if after.has_older(0) {
            assert_eq!(after.finish(0).unwrap(), None, "after {writes} writes");
        }
        assert!(after.opened_by(older, all()).is_empty(), "after {writes} writes");
        after.verify();
        writes += 1;
    }
    assert!(writes > 20, "{writes}");
}

#[test]
fn rule_26_an_older_key_stays_while_something_needs_it() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.write("v", (0..10).map(|n| (n, 3 * n + 1)));
    // A block that nobody can read.
    world.close();
    let id = world.maps["v"].0;
    let hurts = |&at: &u64| {
        let hurt = copy(&world.disk);
        flip(&hurt, Pba(at), 77);
        let opened = Engine::open(hurt, clock(), settings());
        opened.is_ok_and(|engine| damage::read(&engine, id, 4).is_err())
    };
    let written = |&at: &u64| at >= 64 && !get(&world.disk, Pba(at)).is_zero();
    let at = (0..BLOCKS).filter(written).find(hurts).unwrap();
    flip(&world.disk, Pba(at), 77);
    world.rotate(0).unwrap();
    let hindered = Hindered { by_damage: true, ..Hindered::default() };
    let kept = StillOlder { leaves: 1, hindered, ..StillOlder::default() };
    assert_eq!(world.finish(0).unwrap(), Some(kept));
    assert!(world.has_older(0));
    assert_eq!(damage::read(world.engine(), id, 4).unwrap_err().kind(), Kind::Corrupt);
    world.write("v", once((4, 77)));
    assert_eq!(world.finish(0).unwrap(), None);
    world.verify();
}

#[test]
fn rule_26_an_older_key_stays_while_blocks_are_held_that_nobody_names() {
    let mut world = World::new();
    world.create("v", 0, None);
    world.write("v", (0..600).map(|n| (n, 3 * n + 1)));
    world.copy("v", "s", false);
    world.write("v", (0..600).step_by(7).map(|n| (n, 3 * n + 2)));
    world.close();
    let snapshot = world.maps.remove("v@s").unwrap().0;
    // Takes the snapshot apart; true when a page of it could not be read.
    let deleted = |engine: &Engine| -> Result<bool> {
        engine.delete_volume(snapshot)?;
        for _ in 0..8 {
            engine.flush()?;
            engine.checkpoint()?;
        }
        Ok(engine.status().inexact)
    };
    let hurts = |&at: &u64| {
        let hurt = copy(&world.disk);
        flip(&hurt, Pba(at), 77);
        let opened = Engine::open(hurt, clock(), settings());
        opened.and_then(|engine| deleted(&engine)).is_ok_and(|inexact| inexact)
    };
    let written = |&at: &u64| at >= 64 && !get(&world.disk, Pba(at)).is_zero();
    let at = (0..BLOCKS).filter(written).find(hurts).unwrap();
    flip(&world.disk, Pba(at), 77);
    assert!(deleted(world.engine()).unwrap());
    world.rotate(0).unwrap();
    let left = world.finish(0).unwrap().unwrap();
    assert!(left.hindered.by_counts && (left.leaves, left.leaving) == (0, 0), "{left:?}");
    assert!(world.has_older(0));
}

#[test]
fn rule_26_a_domain_with_two_keys_is_erased_with_both() {
    let mut world = World::new();
    world.create("v", 1, None);
    world.write("v", (0..50).map(|n| (n, n)));
    world.rotate(1).unwrap();
    world.write("v", (30..80).map(|n| (n, n)));
    world.close();
    erase_domain(&world.shared(), clock(), &settings(), 1).unwrap();
    let id = world.maps["v"].0;
    for lba in [0, 40, 70] {
        assert_eq!(damage::read(world.engine(), id, lba).unwrap_err().kind(), Kind::Corrupt);
    }
    world.close();
    let disk: Arc<dyn Disk> = copy(&world.disk);
    let scrubbed = scrub_with(&disk, &keys(), &mut |_| {}, &mut || false).unwrap();
    assert!(scrubbed.is_well() && scrubbed.erased_blocks > 0, "{scrubbed:?}");
}
