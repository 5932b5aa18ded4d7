//! Cold blocks become fragments of packs: what is packed, how it is read, shared, freed, checked and repaired;
//! crashes are the simulator's.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use damage::{copy, flip, forge, forge_superblock, get, pages, persevere, put, root, superblock};
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Format, Idleness, NoDedup, Setting, Settings, Tidying,
    check::{Report, check, repair, scrub},
    format::{
        catalogue::Volume,
        page::{Form, MapEntry, ReferenceEntry, Table},
        superblock::SchemeName,
    },
};
use onefold_core::{Block, BlockRead, Disk, Kind, Lba, Pba, Result, Ticket, VolumeId};

const ZONES: u64 = 512;
const BLOCKS: u64 = 600;

fn settings() -> Settings {
    Settings {
        records_max: 4000,
        window_blocks: 32,
        unflushed_blocks: 128,
        settled_after: Duration::from_secs(3600),
        pack_after: Some(Duration::ZERO),
        ..Settings::for_memory(32 << 20)
    }
}

fn open(disk: &Arc<MemoryDisk>, settings: Settings) -> Result<Engine> {
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings)
}

fn formatted(scheme: SchemeName) -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new(ZONES * 16));
    let format = Format { zone_blocks: 16, scheme, ..Format::new([1; 16], [2; 32], ZONES * 16) };
    Engine::format(&*disk, &format).unwrap();
    disk
}

/// Bytes that shrink to some 600; of each seventh block to none less.
fn content(n: u64) -> [u8; 4096] {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let end = if n.is_multiple_of(7) { 4096 } else { 600 };
    std::array::from_fn(|at| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if at < end { (state >> 56) as u8 } else { 0 }
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
    /// A volume that was written once.
    fn filled(settings: Settings) -> (World, VolumeId) {
        World::of(SchemeName::Thin, settings)
    }

    fn of(scheme: SchemeName, settings: Settings) -> (World, VolumeId) {
        let disk = formatted(scheme);
        let engine = open(&disk, settings).unwrap();
        let (volume, _) = persevere_with(&engine, || engine.create_volume("one", BLOCKS));
        let maps = BTreeMap::from([(volume, vec![0; BLOCKS as usize])]);
        let mut world = World { disk, engine, maps, next: 0 };
        world.write(volume, 0..BLOCKS);
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

    fn trim(&mut self, volume: VolumeId, addresses: std::ops::Range<u64>) {
        let (first, blocks) = (addresses.start, addresses.end - addresses.start);
        persevere(&self.engine, || self.engine.trim(volume, first * 4096, blocks * 4096));
        let cells = self.maps.get_mut(&volume).unwrap();
        addresses.for_each(|lba| cells[lba as usize] = 0);
    }

    fn settle(&self) {
        self.engine.flush().unwrap();
        self.engine.checkpoint().unwrap();
    }

    fn act(&mut self, of: VolumeId, make: impl Fn(&Acts<'_>) -> Result<VolumeId>) -> VolumeId {
        let made =
            persevere_with(&self.engine, || make(&Acts::of(&self.engine)).map(|id| (id, ())));
        self.settle();
        self.settle();
        let cells = self.maps[&of].clone();
        self.maps.insert(made.0, cells);
        made.0
    }

    fn snapshot(&mut self, volume: VolumeId, name: &str) -> VolumeId {
        let wanted = [(volume, name.to_owned())];
        self.act(volume, |acts| Ok(acts.snapshot(&wanted, 1)?.0[0]))
    }

    fn delete(&mut self, map: VolumeId) {
        persevere(&self.engine, || self.engine.delete_volume(map));
        self.maps.remove(&map);
        (0..4).for_each(|_| self.settle());
    }

    /// Works as long as that packs anything; how many blocks were packed.
    fn idle(&self) -> u64 {
        let packed = || self.engine.counts().packed_blocks;
        let begun = packed();
        for _ in 0..100 {
            let before = packed();
            while self.engine.idle_step(Idleness::Pause).unwrap() {}
            (0..3).for_each(|_| self.settle());
            if packed() == before {
                return before - begun;
            }
        }
        panic!("packing does not end");
    }

    fn verify(&self) {
        for (&map, cells) in &self.maps {
            for (lba, &number) in (0..).zip(cells) {
                let wanted = if number == 0 { [0; 4096] } else { content(number) };
                assert!(
                    read(&self.engine, map, lba).unwrap() == wanted,
                    "map {map:?}, block {lba}"
                );
            }
            // And together, as who reads in order does.
            let mut blocks = Block::zeroed_vec(cells.len());
            let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
            self.engine.read(map, &mut reads);
            let [all] = reads;
            all.result.unwrap();
            let wanted = |number| if number == 0 { [0; 4096] } else { content(number) };
            assert!(blocks.iter().zip(cells).all(|(block, &number)| block.0 == wanted(number)));
        }
    }

    /// Closes the store, whose check and scrub find nothing wrong, and opens it again.
    fn reopen(self, settings: Settings) -> World {
        let World { disk, engine, maps, next } = self;
        engine.close().unwrap();
        let report = checked(&disk);
        assert_eq!(report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
        assert!(scrubbed(&disk).is_well());
        let engine = open(&disk, settings).unwrap();
        World { disk, engine, maps, next }
    }
}

fn persevere_with<T>(
    engine: &Engine,
    mut change: impl FnMut() -> Result<(VolumeId, T)>,
) -> (VolumeId, ()) {
    let mut made = None;
    persevere(engine, || {
        made = Some(change()?.0);
        Ok(Ticket(0))
    });
    (made.unwrap(), ())
}

fn read(engine: &Engine, map: VolumeId, lba: u64) -> Result<[u8; 4096]> {
    damage::read(engine, map, lba)
}

fn checked(disk: &Arc<MemoryDisk>) -> Report {
    let disk: Arc<dyn Disk> = disk.clone();
    check(&disk, &mut |_| {}).unwrap()
}

fn scrubbed(disk: &Arc<MemoryDisk>) -> onefold_block::check::ScrubReport {
    let disk: Arc<dyn Disk> = disk.clone();
    scrub(&disk, &mut |_| {}, &mut || false).unwrap()
}

fn repaired(disk: &Arc<MemoryDisk>) -> onefold_block::check::Repaired {
    let disk: Arc<dyn Disk> = disk.clone();
    repair(&disk, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {}).unwrap()
}

/// The mappings to fragments of a map in a closed store: address, pack, number.
fn fragments(disk: &MemoryDisk, map: u32) -> Vec<(u64, Pba, u8)> {
    let mut all = Vec::new();
    for (id, pointer) in pages(disk, Table::Map, map, &root(disk, Table::Map, map)) {
        let page = get(disk, pointer.address);
        for slot in (0..288).filter(|_| id.level == 0) {
            if let Some(MapEntry::Block { pba, form: Form::Packed(number), .. }) =
                MapEntry::get(&page, slot)
            {
                all.push((id.index * 288 + slot, pba, number));
            }
        }
    }
    all
}

#[test]
fn rule_16_what_lies_still_and_compresses_is_packed_and_read() {
    for scheme in [SchemeName::Thin, SchemeName::Ordered, SchemeName::Cow] {
        let (world, _) = World::of(scheme, settings());
        let before = world.engine.status();
        assert_eq!((before.packs, before.fragments), (0, 0));
        let packed = world.idle();
        let status = world.engine.status();
        assert!(packed > BLOCKS * 5 / 6 && status.fragments == packed, "{packed} packed");
        // Six blocks of some 620 bytes are in a pack.
        assert!(status.packs <= packed / 5 && status.packs > packed / 7, "{} packs", status.packs);
        assert_eq!(before.live_blocks - status.live_blocks, packed - status.packs);
        assert_eq!(before.mapped_blocks, status.mapped_blocks);
        world.verify();
        let world = world.reopen(settings());
        assert_eq!(world.idle(), 0, "all that can be packed is");
        world.verify();
        // Who does not pack reads packs.
        let off = Settings { pack_after: None, ..settings() };
        world.reopen(off).verify();
    }
}

#[test]
fn a_store_packs_nothing_unless_it_is_asked_to_and_has_no_feature() {
    let off = Settings { pack_after: None, ..settings() };
    let (world, _) = World::filled(off.clone());
    assert_eq!(world.idle(), 0);
    let world = world.reopen(off);
    assert_eq!((world.idle(), superblock(&world.disk).state.features), (0, 0));
    assert_eq!(superblock(&world.disk).version(), 1);
    // Nor while requests flow, or before it lay still for long enough.
    let later = Settings { pack_after: Some(Duration::from_secs(3600)), ..settings() };
    let world = world.reopen(later);
    assert_eq!(world.idle(), 0);
    let world = world.reopen(settings());
    while world.engine.idle_step(Idleness::Share).unwrap() {}
    assert_eq!(world.engine.counts().packed_blocks, 0);
    assert!(world.idle() > 0);
    let (disk, _) = (world.disk.clone(), world.reopen(settings()));
    assert_eq!((superblock(&disk).state.features, superblock(&disk).version()), (2, 3));
}

#[test]
fn who_can_not_pack_says_so() {
    let refused = |disk: &Arc<MemoryDisk>, settings| match open(disk, settings) {
        Ok(_) => panic!("it was opened"),
        Err(e) => (e.kind(), e.to_string()),
    };
    let (kind, what) = refused(&formatted(SchemeName::OrderMerge), settings());
    assert!(kind == Kind::Unsupported && what.contains("in place"), "{what}");
    let still = Settings { tidying: Tidying::Off, ..settings() };
    let (kind, what) = refused(&formatted(SchemeName::Thin), still);
    assert!(kind == Kind::Unsupported && what.contains("turned off"), "{what}");
}

#[test]
fn rule_17_a_pack_is_free_when_its_last_fragment_goes_and_not_before() {
    let (mut world, volume) = World::filled(settings());
    world.idle();
    let packs = world.engine.status().packs;
    // One of each pack stays at least.
    world.write(volume, (0..BLOCKS).filter(|lba| lba % 3 != 0));
    world.settle();
    world.settle();
    assert!(world.engine.status().packs > packs * 9 / 10);
    world.verify();
    let mut world = world.reopen(Settings { pack_after: None, ..settings() });
    world.trim(volume, 0..BLOCKS);
    (0..3).for_each(|_| world.settle());
    let status = world.engine.status();
    assert_eq!((status.packs, status.fragments, status.live_blocks), (0, 0, 0));
    world.write(volume, 0..BLOCKS);
    world.settle();
    world.verify();
    world.reopen(settings()).verify();
}

#[test]
fn rule_18_the_last_fragment_of_a_pack_is_packed_again() {
    let (world, volume) = World::filled(settings());
    world.idle();
    let mut world = world.reopen(settings());
    let alone: BTreeSet<u64> = {
        let mut seen = BTreeSet::new();
        let all = fragments(&world.disk, volume.0);
        all.into_iter().filter(|(_, pack, _)| seen.insert(*pack)).map(|(lba, ..)| lba).collect()
    };
    world.write(volume, (0..BLOCKS).filter(|lba| !alone.contains(lba)));
    world.settle();
    world.settle();
    let before = world.engine.status();
    assert_eq!(before.fragments, before.packs, "one fragment is left in each pack");
    world.idle();
    let after = world.engine.status();
    assert!(after.fragments > before.fragments && after.packs < after.fragments / 4, "{after:?}");
    world.verify();
    world.reopen(settings()).verify();
}

#[test]
fn rule_21_maps_that_share_a_leaf_share_its_packs() {
    let (mut world, volume) = World::filled(settings());
    let monday = world.snapshot(volume, "monday");
    let clone = world.act(monday, |acts| Ok(acts.clone_volume(monday, "two", 1)?.0));
    world.write(clone, (0..BLOCKS).step_by(50));
    world.settle();
    let before = world.engine.status();
    let packed = world.idle();
    let after = world.engine.status();
    assert!(packed > BLOCKS / 2, "{packed} packed");
    assert_eq!(
        before.live_blocks - after.live_blocks,
        packed - after.packs,
        "nothing is stored twice"
    );
    world.verify();
    let mut world = world.reopen(settings());
    world.write(volume, (0..BLOCKS).step_by(2));
    world.settle();
    world.verify();
    world.delete(monday);
    world.verify();
    let mut world = world.reopen(settings());
    world.idle();
    world.delete(volume);
    world.verify();
    let mut world = world.reopen(settings());
    world.delete(clone);
    let status = world.engine.status();
    assert_eq!((status.live_blocks, status.packs, status.fragments), (0, 0, 0));
    world.reopen(settings());
}

#[test]
fn shared_leaves_of_a_store_that_nobody_writes_to_are_packed() {
    let off = Settings { pack_after: None, ..settings() };
    let (mut world, volume) = World::filled(off);
    world.snapshot(volume, "monday");
    let world = world.reopen(settings());
    // No checkpoint has come since the store was opened.
    while world.engine.idle_step(Idleness::Pause).unwrap() {}
    assert!(world.engine.counts().packed_blocks > BLOCKS / 2);
    world.idle();
    world.verify();
    world.reopen(settings()).verify();
}

#[test]
fn what_a_client_writes_while_packs_are_made_stays() {
    let (mut world, volume) = World::filled(settings());
    for round in 0..4 {
        // A few steps, and no checkpoint.
        (0..3).for_each(|_| _ = world.engine.idle_step(Idleness::Pause).unwrap());
        world.write(volume, (round..BLOCKS).step_by(11));
        world.trim(volume, round * 7..round * 7 + 5);
        world.settle();
        world.verify();
    }
    world.idle();
    world.verify();
    world.reopen(settings()).verify();
}

#[test]
fn duplicates_stay_raw_and_what_is_packed_is_stored_again() {
    let (mut world, volume) = World::filled(settings());
    let (twin, ()) = persevere_with(&world.engine, || world.engine.create_volume("two", BLOCKS));
    world.maps.insert(twin, vec![0; BLOCKS as usize]);
    let copy_of = |world: &mut World, range: std::ops::Range<u64>| {
        for lba in range {
            let number = world.maps[&volume][lba as usize];
            persevere(&world.engine, || world.engine.write(twin, lba * 4096, &content(number)));
            world.maps.get_mut(&twin).unwrap()[lba as usize] = number;
        }
        world.settle();
    };
    copy_of(&mut world, 0..100);
    world.idle();
    assert!(fragments_below(&world, volume, 100) == 0, "two addresses name these");
    let before = world.engine.status().live_blocks;
    copy_of(&mut world, 0..50);
    assert_eq!(world.engine.status().live_blocks, before, "they are found");
    copy_of(&mut world, 100..200);
    assert!(world.engine.status().live_blocks > before, "packed ones are not");
    world.verify();
    world.idle();
    world.reopen(settings()).verify();
}

/// How many addresses below this one are in packs.
fn fragments_below(world: &World, map: VolumeId, end: u64) -> usize {
    (0..3).for_each(|_| world.settle());
    let all = fragments(&world.disk, map.0);
    all.iter().filter(|(lba, ..)| *lba < end).count()
}

#[test]
fn damage_of_a_pack_is_found_with_everybody_who_loses_it_and_one_bit_is_restored() {
    let (world, volume) = World::filled(settings());
    world.idle();
    let world = world.reopen(settings());
    let World { disk, engine, maps, .. } = world;
    engine.close().unwrap();
    let all = fragments(&disk, volume.0);
    let (_, pack, _) = all[40];
    let named: BTreeSet<u64> =
        all.iter().filter(|(_, at, _)| *at == pack).map(|(lba, ..)| *lba).collect();
    for bit in [0, 5 * 8, 40 * 8, 60 * 8, 1000 * 8, 4000 * 8 + 3] {
        let bad = copy(&disk);
        flip(&bad, pack, bit);
        let lost: BTreeSet<u64> = {
            let engine = open(&copy(&bad), Settings { pack_after: None, ..settings() }).unwrap();
            let cells = &maps[&volume];
            (0..BLOCKS)
                .filter(|&lba| match read(&engine, volume, lba) {
                    Ok(found) => {
                        assert!(found == content(cells[lba as usize]), "other data at {lba}");
                        false
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), Kind::Corrupt);
                        true
                    }
                })
                .collect()
        };
        assert!(lost.is_subset(&named), "bit {bit}");
        let report = scrubbed(&bad);
        assert_eq!((report.bad_found, report.bad[0].pba), (1, pack), "bit {bit}");
        let told: BTreeSet<u64> = report.bad[0].names.iter().map(|(_, lba)| lba.0).collect();
        assert_eq!(told, lost, "bit {bit}");
        assert!(!report.bad[0].whole || lost.is_empty(), "bit {bit}");
        assert_eq!(checked(&bad).problems_found, 1, "bit {bit}");
        let outcome = repaired(&bad);
        assert!(outcome.after.is_well() && outcome.lost_addresses == 0, "{outcome:#?}");
        assert!(outcome.restored[0].contains("pack"), "{outcome:#?}");
        assert!(get(&bad, pack).0 == get(&disk, pack).0);
    }
    // Two bits stay, and cost what they hit.
    let bad = copy(&disk);
    flip(&bad, pack, 4000);
    flip(&bad, pack, 4100);
    let outcome = repaired(&bad);
    assert_eq!(outcome.after.problems_found, 1, "{outcome:#?}");
    assert!(!scrubbed(&bad).is_well());
}

#[test]
fn mappings_of_a_stranger_are_errors_and_become_lost() {
    let (world, volume) = World::filled(settings());
    world.idle();
    let World { disk, engine, maps, .. } = world.reopen(settings());
    engine.close().unwrap();
    let carrier = {
        let page = pages(&disk, Table::References, 0, &root(&disk, Table::References, 0));
        let packs: BTreeSet<Pba> =
            fragments(&disk, volume.0).iter().map(|(_, at, _)| *at).collect();
        let leaves = page.into_iter().filter(|(id, _)| id.level == 0);
        let raw = leaves.flat_map(|(id, pointer)| {
            let page = get(&disk, pointer.address);
            (0..1008).filter_map(move |slot| {
                let entry = ReferenceEntry::get(&page, slot);
                (entry.references > 0).then_some(Pba(id.index * 1008 + slot))
            })
        });
        raw.into_iter().find(|at| !packs.contains(at)).unwrap()
    };
    let leaf = pages(&disk, Table::Map, volume.0, &root(&disk, Table::Map, volume.0))
        .into_iter()
        .find(|(id, _)| id.level == 0)
        .unwrap()
        .0;
    let mut wrong = Vec::new();
    let map = forge(&disk, &root(&disk, Table::Map, volume.0), leaf, &mut |page| {
        let packed = (0..288).filter_map(|slot| match MapEntry::get(page, slot) {
            Some(MapEntry::Block { pba, form: Form::Packed(number), prefix }) => {
                Some((slot, pba, number, prefix))
            }
            _ => None,
        });
        let packed: Vec<_> = packed.collect();
        let forged = [
            (Form::Packed(31), packed[3].1, packed[3].3),
            (Form::Packed(packed[4].2), packed[4].1, packed[4].3 ^ 1),
            (Form::Packed(packed[5].2 ^ 1), packed[5].1, packed[5].3),
            (Form::Carried, packed[20].1, packed[20].3),
            (Form::Raw, packed[21].1, packed[21].3),
            (Form::Packed(0), carrier, packed[30].3),
        ];
        for ((form, pba, prefix), at) in forged.into_iter().zip([3, 4, 5, 20, 21, 30]) {
            MapEntry::Block { pba, form, prefix }.set(page, packed[at].0);
            wrong.push(leaf.index * 288 + packed[at].0);
        }
    });
    let catalogue = pages(&disk, Table::Catalogue, 0, &root(&disk, Table::Catalogue, 0));
    let catalogue = catalogue.into_iter().find(|(id, _)| id.level == 0).unwrap().0;
    let new = forge(&disk, &root(&disk, Table::Catalogue, 0), catalogue, &mut |page| {
        let volume = Volume { map, ..Volume::get(page, 0).unwrap() };
        volume.set(page, 0);
    });
    forge_superblock(&disk, |superblock| superblock.state.catalogue = new);
    let off = Settings { pack_after: None, ..settings() };
    let engine = open(&copy(&disk), off.clone()).unwrap();
    for lba in 0..BLOCKS {
        match read(&engine, volume, lba) {
            Ok(found) => assert!(found == content(maps[&volume][lba as usize]), "{lba}"),
            Err(e) => assert!(wrong.contains(&lba) && e.kind() == Kind::Corrupt, "{lba}: {e}"),
        }
    }
    assert!(wrong.iter().all(|&lba| read(&engine, volume, lba).is_err()));
    drop(engine);
    let report = checked(&disk);
    let told: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.problems_found >= 6, "{told:#?}");
    let outcome = repaired(&disk);
    assert!(outcome.after.is_well() && outcome.lost_addresses == 6, "{outcome:#?}");
    let engine = open(&disk, off).unwrap();
    for lba in 0..BLOCKS {
        match read(&engine, volume, lba) {
            Ok(found) => assert!(found == content(maps[&volume][lba as usize]), "{lba}"),
            Err(_) => assert!(wrong.contains(&lba), "{lba}"),
        }
    }
    engine.close().unwrap();
    assert!(checked(&disk).is_well());
}

#[test]
fn tables_that_are_gone_are_built_anew_with_their_packs() {
    let (mut world, volume) = World::filled(settings());
    world.snapshot(volume, "monday");
    world.idle();
    let World { disk, engine, maps, next } = world.reopen(settings());
    engine.close().unwrap();
    let state = superblock(&disk).state;
    for table in [Table::References, Table::Fingerprints] {
        let bad = copy(&disk);
        for (id, pointer) in pages(&disk, table, 0, &root(&disk, table, 0)) {
            if id.level == 0 {
                put(&bad, pointer.address, &Block([0x5a; 4096]));
            }
        }
        assert!(!checked(&bad).is_well());
        let outcome = repaired(&bad);
        assert!(outcome.after.is_well() && outcome.lost_addresses == 0, "{outcome:#?}");
        let after = superblock(&bad).state;
        assert_eq!((after.packs, after.fragments), (state.packs, state.fragments));
        let engine = open(&bad, settings()).unwrap();
        let world = World { disk: bad, engine, maps: maps.clone(), next };
        world.verify();
        let mut world = world.reopen(settings());
        world.write(volume, (0..BLOCKS).step_by(3));
        world.settle();
        world.reopen(settings()).verify();
    }
}

/// A clock that stands still unless somebody moves it.
#[derive(Default)]
struct Hands(std::sync::atomic::AtomicU64);

impl Hands {
    fn set(&self, seconds: u64) {
        self.0.store(seconds, std::sync::atomic::Ordering::Relaxed);
    }
}

impl onefold_core::Clock for Hands {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(std::sync::atomic::Ordering::Relaxed))
    }
}

impl World {
    /// Writes what another volume holds at the same addresses.
    fn write_again(&mut self, from: VolumeId, to: VolumeId, addresses: std::ops::Range<u64>) {
        for lba in addresses {
            let number = self.maps[&from][lba as usize];
            persevere(&self.engine, || self.engine.write(to, lba * 4096, &content(number)));
            self.maps.get_mut(&to).unwrap()[lba as usize] = number;
        }
        self.settle();
    }

    fn create(&mut self, name: &str) -> VolumeId {
        let (volume, ()) = persevere_with(&self.engine, || self.engine.create_volume(name, BLOCKS));
        self.maps.insert(volume, vec![0; BLOCKS as usize]);
        volume
    }
}

#[test]
fn what_is_packed_and_written_again_comes_to_the_pack_that_is_there() {
    let (mut world, first) = World::filled(settings());
    let packed = world.idle();
    let before = world.engine.status();
    let second = world.create("two");
    world.write_again(first, second, 0..BLOCKS);
    assert_eq!(
        world.engine.status().live_blocks,
        before.live_blocks + packed,
        "until it lies still it is stored as it is"
    );
    assert_eq!(world.idle(), packed);
    let after = world.engine.status();
    assert_eq!((after.packs, after.live_blocks), (before.packs, before.live_blocks));
    assert_eq!(after.fragments, 2 * packed);
    world.verify();
    // Who opened the store anew learns from the maps what is in packs.
    let mut world = world.reopen(settings());
    world.idle();
    let third = world.create("three");
    world.write_again(first, third, 0..BLOCKS);
    world.idle();
    let after = world.engine.status();
    assert_eq!((after.packs, after.live_blocks), (before.packs, before.live_blocks));
    assert_eq!(after.fragments, 3 * packed);
    world.verify();
    // What one map lets go of the others have.
    world.delete(first);
    world.write(second, (0..BLOCKS).step_by(3));
    world.settle();
    world.verify();
    let mut world = world.reopen(settings());
    world.idle();
    world.verify();
    for map in [second, third] {
        world.delete(map);
    }
    let status = world.engine.status();
    assert_eq!((status.live_blocks, status.packs, status.fragments), (0, 0, 0));
    world.reopen(settings());
}

#[test]
fn maps_that_share_a_leaf_come_to_the_pack_that_is_there_together() {
    let (mut world, first) = World::filled(settings());
    world.idle();
    let before = world.engine.status();
    let second = world.create("two");
    world.write_again(first, second, 0..BLOCKS);
    let monday = world.snapshot(second, "monday");
    world.act(monday, |acts| Ok(acts.clone_volume(monday, "three", 1)?.0));
    world.idle();
    let after = world.engine.status();
    assert_eq!((after.packs, after.live_blocks), (before.packs, before.live_blocks));
    world.verify();
    let mut world = world.reopen(settings());
    world.write(second, (0..BLOCKS).step_by(5));
    world.delete(first);
    world.verify();
    world.reopen(settings()).verify();
}

#[test]
fn a_walk_passes_leaves_that_were_changed_lately() {
    let clock = Arc::new(Hands::default());
    let after = Duration::from_secs(3600);
    let disk = formatted(SchemeName::Thin);
    let set = Settings { pack_after: Some(after), ..settings() };
    let engine = Engine::open(disk.clone(), clock.clone(), set).unwrap();
    let mut world = World { disk, engine, maps: BTreeMap::new(), next: 0 };
    let volume = world.create("one");
    world.write(volume, 0..BLOCKS);
    world.settle();
    assert_eq!(world.idle(), 0);
    clock.set(3000);
    world.write(volume, 0..10);
    world.settle();
    clock.set(3601);
    assert!(world.idle() > 0);
    assert_eq!(fragments_below(&world, volume, 288), 0, "somebody wrote to it");
    assert!(fragments_below(&world, volume, BLOCKS) > 200);
    clock.set(6601);
    assert!(world.idle() > 200 && fragments_below(&world, volume, 288) > 200);
    world.verify();
}

#[test]
fn a_block_that_is_critical_in_any_map_of_the_family_stays_raw() {
    let (mut world, volume) = World::filled(settings());
    let monday = world.snapshot(volume, "monday");
    let clone = world.act(monday, |acts| Ok(acts.clone_volume(monday, "two", 1)?.0));
    let no_dedup = NoDedup::new(vec![0..50, 50..100]).unwrap();
    persevere(&world.engine, || world.engine.set(clone, Setting::NoDedup(no_dedup.clone())));
    // The clone has some of its own, and shares the leaf no more: the blocks are still one.
    world.write(clone, [150, 300].into_iter());
    world.settle();
    assert!(world.idle() > BLOCKS / 2);
    for map in [volume, clone] {
        assert_eq!(fragments_below(&world, map, 100), 0, "{map:?}");
    }
    assert!(fragments_below(&world, volume, BLOCKS) > 0);
    world.verify();
    world.reopen(settings()).verify();
}

#[test]
fn fragments_that_a_trim_left_alone_are_packed_together() {
    let (world, volume) = World::filled(settings());
    world.idle();
    let mut world = world.reopen(settings());
    let alone: BTreeSet<u64> = {
        let mut seen = BTreeSet::new();
        let all = fragments(&world.disk, volume.0);
        all.into_iter().filter(|(_, pack, _)| seen.insert(*pack)).map(|(lba, ..)| lba).collect()
    };
    for lba in (0..BLOCKS).filter(|lba| !alone.contains(lba)) {
        world.trim(volume, lba..lba + 1);
    }
    (0..3).for_each(|_| world.settle());
    let before = world.engine.status();
    assert_eq!((before.fragments, before.live_blocks), (before.packs, before.packs));
    world.idle();
    let after = world.engine.status();
    assert!(after.fragments == before.fragments && after.packs < before.packs / 4, "{after:?}");
    world.verify();
    world.reopen(settings()).verify();
}

#[test]
fn a_store_that_is_nearly_full_fills_its_packs() {
    let (mut world, volume) = World::filled(settings());
    // Blocks that shrink to nothing less take the rest.
    let hog = persevere_with(&world.engine, || world.engine.create_volume("hog", 9000)).0;
    let mut lba = 0;
    loop {
        let noise = content(7 * (1 << 20) + 7 * lba);
        match world.engine.write(hog, lba * 4096, &noise) {
            Ok(_) => lba += 1,
            Err(e) if e.kind() == Kind::NoSpace => break,
            Err(_) => world.settle(),
        }
    }
    // Room for a few packs and for the pages that name them.
    persevere(&world.engine, || world.engine.trim(hog, 0, 900 * 4096));
    (0..3).for_each(|_| world.settle());
    world.idle();
    let status = world.engine.status();
    assert!(status.fragments > BLOCKS * 3 / 4, "{status:?}");
    assert!(status.packs <= status.fragments / 5, "{status:?}");
    world.verify();
    world.trim(volume, 0..3);
    world.settle();
    world.verify();
}

#[test]
fn packing_rests_while_requests_flow() {
    let (world, _) = World::filled(settings());
    let packed = || world.engine.counts().packed_blocks;
    while packed() == 0 {
        assert!(world.engine.idle_step(Idleness::Pause).unwrap());
    }
    let some = packed();
    for _ in 0..50 {
        world.engine.idle_step(Idleness::Share).unwrap();
    }
    assert_eq!(packed(), some, "what a pause began");
    assert!(world.idle() > 0);
    assert!(packed() > BLOCKS * 3 / 4);
    world.verify();
}

/// A disk that counts what is read of it.
struct Counting {
    disk: Arc<MemoryDisk>,
    reads: std::sync::atomic::AtomicU64,
    blocks: std::sync::atomic::AtomicU64,
}

impl Disk for Counting {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [onefold_core::Read<'_>]) {
        use std::sync::atomic::Ordering::Relaxed;
        self.reads.fetch_add(reads.len() as u64, Relaxed);
        let blocks: usize = reads.iter().map(|read| read.into.len()).sum();
        self.blocks.fetch_add(blocks as u64, Relaxed);
        self.disk.read(reads);
    }

    fn write(&self, runs: &[onefold_core::Run<'_>]) -> Result<()> {
        self.disk.write(runs)
    }

    fn write_durable(&self, run: &onefold_core::Run<'_>) -> Result<()> {
        self.disk.write_durable(run)
    }

    fn flush(&self) -> Result<()> {
        self.disk.flush()
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(at, blocks)
    }
}

/// Opens a closed store on a disk that counts.
fn counted(disk: &Arc<MemoryDisk>, settings: Settings) -> (Arc<Counting>, Engine) {
    let counting = Arc::new(Counting {
        disk: disk.clone(),
        reads: Default::default(),
        blocks: Default::default(),
    });
    let engine = Engine::open(counting.clone(), Arc::new(MonotonicClock::new()), settings).unwrap();
    (counting, engine)
}

#[test]
fn neighbours_in_packs_that_are_neighbours_are_one_read_of_the_disk() {
    use std::sync::atomic::Ordering::Relaxed;
    let (world, volume) = World::filled(settings());
    world.idle();
    let off = Settings { pack_after: None, ..settings() };
    let World { disk, engine, maps, .. } = world.reopen(off.clone());
    engine.close().unwrap();
    let (counting, engine) = counted(&disk, off);
    let mut blocks = Block::zeroed_vec(BLOCKS as usize);
    let mut all = || {
        let before = (counting.reads.load(Relaxed), counting.blocks.load(Relaxed));
        let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
        engine.read(volume, &mut reads);
        let [read] = reads;
        read.result.unwrap();
        (counting.reads.load(Relaxed) - before.0, counting.blocks.load(Relaxed) - before.1)
    };
    // Pages of the map are in memory then.
    all();
    let (reads, read) = all();
    // Each seventh block is as it was: a read for itself. The 88 packs lie in a few runs.
    assert!(read < 85 + 100, "{read} blocks");
    assert!(reads < 85 + 40, "{reads} reads");
    for (block, &number) in blocks.iter().zip(&maps[&volume]) {
        assert!(block.0 == content(number));
    }
}

#[test]
fn what_does_not_shrink_is_not_read_each_time_that_a_store_is_opened() {
    use std::sync::atomic::Ordering::Relaxed;
    let (mut world, volume) = World::filled(Settings { pack_after: None, ..settings() });
    world.next = 7 * 1000;
    for lba in 0..BLOCKS {
        world.next += 6;
        world.write(volume, lba..lba + 1);
    }
    world.settle();
    let World { disk, engine, maps, next } =
        world.reopen(Settings { pack_after: None, ..settings() });
    engine.close().unwrap();
    let (counting, engine) = counted(&disk, settings());
    let world = World { disk, engine, maps, next };
    let before = counting.blocks.load(Relaxed);
    assert_eq!(world.idle(), 0);
    let read = counting.blocks.load(Relaxed) - before;
    assert!(read < BLOCKS / 3, "{read} blocks, with tables");
    world.verify();
}
