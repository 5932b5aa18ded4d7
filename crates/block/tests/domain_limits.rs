//! Quotas and reserves of domains: what a domain may store, and what is kept for it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod support;

use std::{sync::Arc, time::Duration};

use onefold_backend::MemoryDisk;
use onefold_block::{
    Acts, DomainLimits, DomainStatus, Engine, Format, Idleness, KeySource, NewVolume, Settings,
    check::{MEMORY, check_with, repair},
    create_domain, domain_limits_durable, erase_domain, identified, set_domain_limits,
};
use onefold_core::{Block, Clock, Disk, Error, Kind, Pba, Read, Result, Ticket, VolumeId};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret};
use support::content;

const BLOCKS: u64 = 4096;
const BLOCK: u64 = 4096;

struct Noon;

impl Clock for Noon {
    fn now(&self) -> Duration {
        Duration::from_secs(12 * 3600)
    }
}

/// Chance that repeats itself.
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

    fn accepts_older(&self) -> bool {
        false
    }

    fn random(&self) -> Arc<dyn Random> {
        Arc::new(Repeated)
    }
}

fn keys() -> KeySource {
    KeySource::new(Arc::new(Holder))
}

fn settings() -> Settings {
    let settings = Settings::for_memory(32 << 20);
    Settings { window_blocks: 32, unflushed_blocks: 256, keys: keys(), ..settings }
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    let disk: Arc<dyn Disk> = disk.clone();
    Engine::open(disk, Arc::new(Noon), settings()).unwrap()
}

/// A sealed store with domains 1 and 2, called `one` and `other`, and volumes `v0`, `v1`, `v2` in the
/// three.
fn made() -> (Arc<MemoryDisk>, Engine) {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    let mut keys = Keys::create([0x72; 16], &Repeated).unwrap();
    keys.add_slot((SlotKind::File, ""), &secret(), Argon::LEAST, (0, 0), &Repeated).unwrap();
    let format = Format { zone_blocks: 64, ..Format::new([0x72; 16], [0; 32], BLOCKS) };
    onefold_block::format_sealed(&*disk, &format, &mut keys, &Repeated).unwrap();
    assert_eq!(create_domain(&*disk, &settings(), "one").unwrap(), 1);
    assert_eq!(create_domain(&*disk, &settings(), "other").unwrap(), 2);
    let engine = open(&disk);
    for (name, domain) in [("v0", 0), ("v1", 1), ("v2", 2)] {
        let new = NewVolume { domain, ..NewVolume::default() };
        engine.create_volume_with(name, 1 << 16, new).unwrap();
    }
    settle(&engine);
    (disk, engine)
}

fn settle(engine: &Engine) {
    engine.flush().unwrap();
    while engine.checkpoint_useful() {
        engine.checkpoint().unwrap();
    }
}

fn id(engine: &Engine, name: &str) -> VolumeId {
    engine.find_volume(name).unwrap()
}

/// The answer of a change, when all that would make room is done.
fn answer<T>(engine: &Engine, mut change: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..64 {
        match change() {
            Err(error) if error.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            answer => return answer,
        }
    }
    panic!("it waits for ever");
}

fn write(engine: &Engine, volume: &str, lba: u64, n: u64) -> Result<(), Kind> {
    let id = id(engine, volume);
    let written = answer(engine, || engine.write(id, lba * BLOCK, &content(n)));
    written.map(|_: Ticket| ()).map_err(|error| error.kind())
}

fn set(engine: &Engine, domain: u32, quota: u64, reserve: u64) -> Result<()> {
    let limits = DomainLimits { quota, reserve };
    let number = answer(engine, || set_domain_limits(engine, domain, limits))?;
    while domain_limits_durable(engine) < number {
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
    Ok(())
}

fn stored(engine: &Engine, domain: u32) -> Option<u64> {
    settle(engine);
    let status: Vec<DomainStatus> = engine.status().domains;
    status.iter().find(|one| one.number == domain).unwrap().stored_blocks
}

fn copy(disk: &MemoryDisk) -> Arc<MemoryDisk> {
    let to = MemoryDisk::new(disk.blocks());
    for at in (0..disk.blocks()).map(Pba) {
        let block = get(disk, at);
        put(&to, at, &block);
    }
    Arc::new(to)
}

fn get(disk: &MemoryDisk, at: Pba) -> Block {
    let mut blocks = Block::zeroed_vec(1);
    let mut reads = [Read::new(at, &mut blocks)];
    disk.read(&mut reads);
    let [read] = reads;
    read.result.unwrap();
    blocks.swap_remove(0)
}

fn put(disk: &MemoryDisk, at: Pba, block: &Block) {
    let blocks = [onefold_core::BlockRef { block, class: onefold_core::Class::Data }];
    disk.write(&[onefold_core::Run { at, blocks: &blocks }]).unwrap();
}

fn problems(disk: &Arc<MemoryDisk>) -> Vec<String> {
    let shared: Arc<dyn Disk> = copy(disk);
    let report = check_with(&shared, &keys(), MEMORY, &mut |_| {}).unwrap();
    report.problems.iter().map(ToString::to_string).collect()
}

fn is_well(disk: &Arc<MemoryDisk>) {
    let problems = problems(disk);
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Runs steps until an act is durable.
fn act(engine: &Engine, number: u64) {
    while Acts::of(engine).done() < number {
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
}

#[test]
fn pages_of_maps_count_in_the_quota_of_a_domain() {
    let (disk, engine) = made();
    set(&engine, 1, 200, 0).unwrap();
    let new = NewVolume { domain: 1, ..NewVolume::default() };
    engine.create_volume_with("wide", 1 << 20, new).unwrap();
    // One block again and again, each time in another leaf: 67 pages are free, and 200 are charged.
    let mut taken = 0;
    while taken < 1000 && write(&engine, "wide", taken * 288, 1).is_ok() {
        taken += 1;
    }
    assert!((240..266).contains(&taken), "{taken}");
    assert_eq!(stored(&engine, 1), Some(1));
    // Another volume of the domain has no room either, and those of other domains do.
    assert_eq!(write(&engine, "v1", 0, 1), Err(Kind::NoSpace));
    assert_eq!(write(&engine, "v2", 0, 1), Ok(()));
    // An opened store counts the pages first.
    engine.close().unwrap();
    drop(engine);
    let engine = open(&disk);
    assert_eq!(write(&engine, "v1", 0, 1), Err(Kind::NoSpace));
    answer(&engine, || engine.trim(id(&engine, "wide"), 0, 100 * 288 * BLOCK)).unwrap();
    for n in 0..50 {
        assert_eq!(write(&engine, "v1", n * 288, n), Ok(()), "{n}");
    }
    engine.close().unwrap();
    is_well(&disk);
}

#[test]
fn a_domain_stores_as_much_as_its_quota_and_its_neighbours_go_on() {
    let (disk, engine) = made();
    set(&engine, 1, 20, 0).unwrap();
    for n in 0..20 {
        assert_eq!(write(&engine, "v1", n * 300, n), Ok(()), "{n}");
    }
    let volume = id(&engine, "v1");
    let error = answer(&engine, || engine.write(volume, BLOCK, &content(99))).unwrap_err();
    assert!(error.to_string().contains("domain 'one' has reached its quota of 81920"), "{error}");
    assert_eq!(stored(&engine, 1), Some(20));
    // What is stored already takes nothing; zeroes neither. A new part of a block takes one.
    assert_eq!(write(&engine, "v1", 7, 3), Ok(()));
    answer(&engine, || engine.write(volume, 9 * BLOCK, &[0; 8192])).unwrap();
    assert_eq!(
        answer(&engine, || engine.write(volume, 17, b"part")).unwrap_err().kind(),
        Kind::NoSpace
    );
    assert_eq!(stored(&engine, 1), Some(20));
    for n in 0..60 {
        assert_eq!(write(&engine, "v2", n, n), Ok(()));
        assert_eq!(write(&engine, "v0", n, n), Ok(()));
    }
    // A trim makes room when nothing names the block any more: number 3 is named twice.
    for (lba, room) in [(3 * 300, false), (7, true)] {
        answer(&engine, || engine.trim(volume, lba * BLOCK, BLOCK)).unwrap();
        let expected = if room { Ok(()) } else { Err(Kind::NoSpace) };
        assert_eq!(write(&engine, "v1", 5000 + lba, 500 + lba), expected);
    }
    assert_eq!(stored(&engine, 1), Some(20));
    set(&engine, 1, 0, 0).unwrap();
    assert_eq!(write(&engine, "v1", 6000, 600), Ok(()));
    engine.close().unwrap();
    is_well(&disk);
}

#[test]
fn a_long_write_is_taken_up_to_the_quota() {
    let (_, engine) = made();
    set(&engine, 1, 20, 0).unwrap();
    let volume = id(&engine, "v1");
    let data: Vec<u8> = (0..32).flat_map(content).collect();
    let mut taken = 0;
    let error = answer(&engine, || engine.write_from(volume, 0, &data, &mut taken)).unwrap_err();
    assert_eq!((error.kind(), taken), (Kind::NoSpace, 20 * BLOCK));
    assert_eq!(stored(&engine, 1), Some(20));
}

#[test]
fn counts_are_true_through_snapshots_clones_rollbacks_deletions_and_crashes() {
    let (disk, mut engine) = made();
    set(&engine, 1, 2000, 0).unwrap();
    for round in 0..12u64 {
        for n in 0..20 {
            let lba = (n * 97 + round * 41) % 3000;
            write(&engine, "v1", lba, round * 100 + n % 17).unwrap();
        }
        let acts = Acts::of(&engine);
        let volume = id(&engine, "v1");
        let asked = match round % 4 {
            0 => {
                answer(&engine, || acts.snapshot(&[(volume, format!("s{round}"))], round))
                    .unwrap()
                    .1
            }
            1 => {
                let snapshot = id(&engine, &format!("v1@s{}", round - 1));
                answer(&engine, || acts.clone_volume(snapshot, &format!("c{round}"), round))
                    .unwrap()
                    .1
            }
            2 => {
                let clone = format!("c{}", round - 1);
                for n in 0..15 {
                    write(&engine, &clone, n * 200, 7000 + round * 100 + n).unwrap();
                }
                let snapshot = id(&engine, &format!("v1@s{}", round - 2));
                answer(&engine, || acts.rollback(volume, snapshot, None, round)).unwrap().1
            }
            _ => {
                let gone = [format!("c{}", round - 2), format!("v1@s{}", round - 3)];
                for name in gone {
                    let id = id(&engine, &name);
                    answer(&engine, || engine.delete_volume(id)).unwrap();
                }
                continue;
            }
        };
        act(&engine, asked.number);
        engine.flush().unwrap();
        is_well(&disk);
        if round % 3 == 0 {
            // The power fails.
            drop(engine);
            engine = open(&disk);
        }
    }
    settle(&engine);
    is_well(&disk);
    let all = id(&engine, "v1");
    answer(&engine, || engine.delete_volume(all)).unwrap();
    assert_eq!(stored(&engine, 1), Some(0));
    engine.close().unwrap();
    is_well(&disk);
}

#[test]
fn a_domain_that_gets_its_first_limits_is_counted_with_what_is_leaving_gone() {
    let (disk, engine) = made();
    for n in 0..40 {
        write(&engine, "v1", n * 3, n).unwrap();
        write(&engine, "v2", n * 3, n).unwrap();
    }
    let acts = Acts::of(&engine);
    let asked = acts.snapshot(&[(id(&engine, "v1"), "old".to_owned())], 1).unwrap().1;
    act(&engine, asked.number);
    for n in 0..10 {
        write(&engine, "v1", n * 3, 100 + n).unwrap();
    }
    let old = id(&engine, "v1@old");
    answer(&engine, || engine.delete_volume(old)).unwrap();
    set(&engine, 1, 45, 0).unwrap();
    assert_eq!(stored(&engine, 1), Some(40));
    set(&engine, 2, 45, 0).unwrap();
    assert_eq!(stored(&engine, 2), Some(40));
    for n in 0..5 {
        assert_eq!(write(&engine, "v1", 1000 + n, 1000 + n), Ok(()));
    }
    assert_eq!(write(&engine, "v1", 2000, 2000), Err(Kind::NoSpace));
    engine.close().unwrap();
    is_well(&disk);
}

#[test]
fn a_reserve_is_left_alone_by_others_and_taken_by_its_domain() {
    let (disk, engine) = made();
    set(&engine, 1, 0, 500).unwrap();
    let (mut others, mut n) = (0, 10_000);
    while write(&engine, "v2", others, n).is_ok() {
        (others, n) = (others + 1, n + 1);
    }
    while write(&engine, "v0", others, n).is_ok() {
        (others, n) = (others + 1, n + 1);
    }
    assert!(others > 2000, "{others}");
    for n in 0..500 {
        assert_eq!(write(&engine, "v1", n, n), Ok(()), "{n}");
    }
    assert_eq!(stored(&engine, 1), Some(500));
    engine.close().unwrap();
    is_well(&disk);
}

#[test]
fn limits_that_can_not_be_are_refused_with_a_sentence() {
    let (_, engine) = made();
    let refused = |domain, quota, reserve| {
        let error = set(&engine, domain, quota, reserve).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, what) = refused(1, 0, BLOCKS);
    assert!(kind == Kind::InvalidInput && what.contains("all reserves together need"), "{what}");
    set(&engine, 2, 0, 2000).unwrap();
    let (kind, what) = refused(1, 0, 2000);
    assert!(kind == Kind::InvalidInput && what.contains("all reserves together need"), "{what}");
    let (kind, what) = refused(1, 10, 11);
    assert!(kind == Kind::InvalidInput && what.contains("not larger than the quota"), "{what}");
    let (kind, what) = refused(0, 10, 0);
    assert!(kind == Kind::InvalidInput && what.contains("each store begins with"), "{what}");
    assert_eq!(refused(3, 10, 0).0, Kind::NotFound);
    // What others have taken already is kept for nobody.
    set(&engine, 2, 0, 0).unwrap();
    for n in 0..2500 {
        write(&engine, "v2", n, n).unwrap();
    }
    let (kind, what) = refused(1, 0, 2000);
    assert!(kind == Kind::NoSpace && what.contains("free and kept for nobody"), "{what}");
}

#[test]
fn limits_are_there_after_a_crash_and_go_with_an_erased_domain() {
    let (disk, engine) = made();
    set(&engine, 1, 30, 10).unwrap();
    for n in 0..30 {
        write(&engine, "v1", n, n).unwrap();
    }
    engine.flush().unwrap();
    drop(engine);
    let engine = open(&disk);
    assert_eq!(write(&engine, "v1", 99, 99), Err(Kind::NoSpace));
    assert_eq!(stored(&engine, 1), Some(30));
    engine.close().unwrap();
    drop(engine);
    let shared: Arc<dyn Disk> = disk.clone();
    erase_domain(&shared, Arc::new(Noon), &settings(), 1).unwrap();
    let engine = open(&disk);
    assert!(engine.status().domains.is_empty() && engine.status().kept_blocks == 0);
    let gone = id(&engine, "v1");
    answer(&engine, || engine.delete_volume(gone)).unwrap();
    write(&engine, "v2", 1, 1).unwrap();
    settle(&engine);
    engine.close().unwrap();
    is_well(&disk);
}

#[test]
fn a_store_has_not_a_byte_of_limits_before_the_first() {
    let (disk, engine) = made();
    write(&engine, "v1", 1, 1).unwrap();
    let wrong = set(&engine, 1, 0, BLOCKS).unwrap_err();
    assert_eq!(wrong.kind(), Kind::InvalidInput);
    engine.close().unwrap();
    let (superblock, _) = identified(&*disk, &keys()).unwrap();
    assert!(superblock.state.domains.is_empty() && !superblock.state.limits_domains());
    assert!(!superblock.state.shares_pages());
}

#[test]
fn a_repair_counts_what_domains_store() {
    let (disk, engine) = made();
    set(&engine, 1, 50, 10).unwrap();
    for n in 0..30 {
        write(&engine, "v1", n * 7, n).unwrap();
    }
    engine.close().unwrap();
    drop(engine);
    // One leaf of the map rots.
    let (superblock, identity) = identified(&*disk, &keys()).unwrap();
    let rotten = (0..BLOCKS).map(Pba).find(|&at| {
        let mut block = get(&disk, at);
        let header = onefold_block::format::page::header(&identity, at, &mut block.0);
        header.is_some_and(|(id, _)| {
            id.table == onefold_block::format::page::Table::Map && id.volume == 2
        })
    });
    assert_eq!(superblock.state.domains.len(), 1);
    let at = rotten.unwrap();
    put(&disk, at, &Block([7; 4096]));
    assert!(!problems(&disk).is_empty());
    let shared: Arc<dyn Disk> = disk.clone();
    repair(&shared, Arc::new(Noon), &settings(), &mut |_| {}).unwrap();
    is_well(&disk);
    let engine = open(&disk);
    assert_eq!(stored(&engine, 1), Some(0));
    engine.close().unwrap();
}

/// Copies of moved blocks take space until a checkpoint has put them into the maps: who needs it waits.
#[test]
fn copies_that_wait_for_a_checkpoint_make_no_reserve_too_large() {
    let (disk, engine) = made();
    engine.close().unwrap();
    let shared: Arc<dyn Disk> = disk.clone();
    let settings = Settings { settled_after: Duration::ZERO, ..settings() };
    let engine = Engine::open(shared, Arc::new(Noon), settings).unwrap();
    // Neighbours lie apart.
    for n in 0..1000 {
        write(&engine, "v1", n * 7 % 1000, n).unwrap();
    }
    settle(&engine);
    let ask = |reserve| set_domain_limits(&engine, 2, DomainLimits { quota: 0, reserve });
    let (mut fits, mut too_large) = (1, BLOCKS);
    while too_large - fits > 1 {
        let reserve = u64::midpoint(fits, too_large);
        match answer(&engine, || ask(reserve)) {
            Ok(_) => fits = reserve,
            Err(error) => {
                assert!(matches!(error.kind(), Kind::NoSpace | Kind::InvalidInput), "{error:?}");
                too_large = reserve;
            }
        }
        set(&engine, 2, 0, 0).unwrap();
        settle(&engine);
    }
    let unused = engine.status().unused_blocks;
    while engine.status().unused_blocks == unused {
        assert!(engine.idle_step(Idleness::Pause).unwrap(), "nothing is moved");
    }
    // Tables may take some pages more by then.
    let reserve = fits - 16;
    assert_eq!(ask(reserve).unwrap_err().kind(), Kind::Busy);
    answer(&engine, || ask(reserve)).unwrap();
    engine.close().unwrap();
    is_well(&disk);
}
