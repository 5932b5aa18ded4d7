//! Domains of a sealed block store: nothing is shared between two of them, and one that is erased is gone
//! while all others go on.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use damage::{copy, get, persevere, put};
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Copies, DomainListed, Engine, Format, KeySource, NewVolume, Settings, Store,
    StoreExports,
    check::{MEMORY, check_with, scrub_with},
    create_domain, domain_called, domains, erase_domain,
    format::{
        geometry::{KEY_AREAS, SUPERBLOCKS},
        superblock::{DOMAINS, Found, Superblock},
    },
    identified,
};
use onefold_core::{Block, Disk, Error, Exports, Kind, Pba, Read, Result, Run, Volume, VolumeId};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret};
use support::{changes, content, whole};

const ID: [u8; 16] = [0x72; 16];
const BLOCKS: u64 = 4096;

/// Chance that repeats itself, as in clones of a machine.
struct Repeated;

impl Random for Repeated {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        (0..).zip(into).for_each(|(n, byte): (u32, _)| *byte = (n * 7 + 3) as u8);
        Ok(())
    }
}

/// Who has the key, and perhaps takes an older key area.
struct Holder(bool);

fn secret() -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [1; 32]))
}

impl Opener for Holder {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&secret(), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }

    fn accepts_older(&self) -> bool {
        self.0
    }

    fn random(&self) -> Arc<dyn Random> {
        Arc::new(Repeated)
    }
}

fn keys() -> KeySource {
    KeySource::new(Arc::new(Holder(false)))
}

fn settings() -> Settings {
    Settings { keys: keys(), ..damage::settings() }
}

fn clock() -> Arc<MonotonicClock> {
    Arc::new(MonotonicClock::new())
}

/// A sealed store with its first domain alone.
fn sealed() -> Arc<MemoryDisk> {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    let mut keys = Keys::create(ID, &Repeated).unwrap();
    keys.add_slot((SlotKind::File, ""), &secret(), Argon::LEAST, (0, 0), &Repeated).unwrap();
    let format = Format { zone_blocks: 64, ..Format::new(ID, [0; 32], BLOCKS) };
    onefold_block::format_sealed(&*disk, &format, &mut keys, &Repeated).unwrap();
    disk
}

/// The same with domains 1 and 2, and a volume in each of the three: `v0`, `v1`, `v2`.
fn with_domains() -> Arc<MemoryDisk> {
    let disk = sealed();
    assert_eq!(create_domain(&*disk, &settings(), "one").unwrap(), 1);
    assert_eq!(create_domain(&*disk, &settings(), "other").unwrap(), 2);
    let engine = open(&disk);
    for (name, domain) in [("v0", 0), ("v1", 1), ("v2", 2)] {
        engine.create_volume_with(name, 512, in_domain(domain)).unwrap();
    }
    engine.close().unwrap();
    disk
}

fn in_domain(domain: u32) -> NewVolume {
    NewVolume { domain, ..NewVolume::default() }
}

fn open_by(disk: &Arc<MemoryDisk>, settings: Settings) -> Result<Engine> {
    Engine::open(disk.clone(), clock(), settings)
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    open_by(disk, settings()).unwrap()
}

fn erase(disk: &Arc<MemoryDisk>, number: u32) -> Result<()> {
    let shared: Arc<dyn Disk> = disk.clone();
    erase_domain(&shared, clock(), &settings(), number)
}

/// Every third block compresses, and travels in a carrier.
fn bytes(n: u64) -> Vec<u8> {
    if n.is_multiple_of(3) { vec![(n % 250) as u8 + 1; 4096] } else { content(n) }
}

fn fill(engine: &Engine, volume: &str, from: u64, blocks: u64) {
    let id = engine.find_volume(volume).unwrap();
    for lba in 0..blocks {
        persevere(engine, || engine.write(id, lba * 4096, &bytes(from + lba)));
    }
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
}

fn read(engine: &Engine, volume: &str, lba: u64) -> Result<Vec<u8>> {
    let id = engine.find_volume(volume)?;
    damage::read(engine, id, lba).map(|found| found.to_vec())
}

fn holds(engine: &Engine, volume: &str, from: u64, blocks: u64) {
    for lba in 0..blocks {
        assert!(read(engine, volume, lba).unwrap() == bytes(from + lba), "{volume}, block {lba}");
    }
}

fn is_erased<T>(result: Result<T>) {
    let error = result.err().unwrap();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("erased"), "{error}");
}

/// Runs steps until an act is durable.
fn act(engine: &Engine, number: u64) {
    while Acts::of(engine).done() < number {
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
}

/// The check finds nothing, and scrub neither, on a copy.
fn is_well(disk: &Arc<MemoryDisk>, erased: u64) {
    let shared: Arc<dyn Disk> = copy(disk);
    let report = check_with(&shared, &keys(), MEMORY, &mut |_| {}).unwrap();
    assert!(report.is_well(), "{:#?}", report.problems);
    let scrubbed = scrub_with(&shared, &keys(), &mut |_| {}, &mut || false).unwrap();
    assert!(scrubbed.is_well(), "{scrubbed:?}");
    assert_eq!(scrubbed.erased_blocks, erased);
}

#[test]
fn rule_25_equal_data_of_two_domains_is_stored_twice_and_of_one_once() {
    let disk = with_domains();
    let engine = open(&disk);
    let mut stored = 0;
    for volume in ["v0", "v1", "v2"] {
        fill(&engine, volume, 0, 60);
        stored += 60;
        assert_eq!(engine.status().live_blocks, stored, "{volume}");
    }
    for domain in 0..3 {
        let more = format!("more-{domain}");
        engine.create_volume_with(&more, 512, in_domain(domain)).unwrap();
        fill(&engine, &more, 0, 60);
        assert_eq!(engine.status().live_blocks, stored, "{more}");
    }
    // Nor within one window.
    for name in ["v1", "v2"] {
        let id = engine.find_volume(name).unwrap();
        persevere(&engine, || engine.write(id, 100 * 4096, &bytes(1000)));
    }
    engine.flush().unwrap();
    engine.checkpoint().unwrap();
    assert_eq!(engine.status().live_blocks, stored + 2);
    drop(engine);
    // Nor by an index that was learnt anew.
    let engine = open(&disk);
    while engine.idle_step(onefold_block::Idleness::Long).unwrap() {}
    fill(&engine, "v2", 0, 60);
    assert_eq!(engine.status().live_blocks, stored + 2);
    for (volume, domain) in [("v0", 0), ("v1", 1), ("v2", 2), ("more-1", 1)] {
        holds(&engine, volume, 0, 60);
        let id = engine.find_volume(volume).unwrap();
        assert_eq!(engine.volume(id).unwrap().domain, domain);
    }
    engine.close().unwrap();
    is_well(&disk, 0);
    let error = open(&disk).create_volume_with("x", 5, in_domain(3)).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[test]
fn rule_26_an_erased_domain_gives_errors_and_its_space_comes_back() {
    let disk = with_domains();
    let engine = open(&disk);
    for volume in ["v0", "v1", "v2"] {
        fill(&engine, volume, 0, 60);
    }
    let v1 = engine.find_volume("v1").unwrap();
    let (_, asked) = Acts::of(&engine).snapshot(&[(v1, "monday".into())], 1).unwrap();
    act(&engine, asked.number);
    fill(&engine, "v1", 500, 20);
    let before = engine.status();
    engine.close().unwrap();
    drop(engine);
    assert_eq!(erase(&disk, 3).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(erase(&disk, 0).unwrap_err().kind(), Kind::InvalidInput);
    erase(&disk, 1).unwrap();
    assert_eq!(erase(&disk, 1).unwrap_err().kind(), Kind::NotFound);
    is_well(&disk, 80);
    let engine = open(&disk);
    let listed = |number, name: Option<&str>| {
        let name = name.map(str::to_owned);
        DomainListed { number, name, generation: 0, has_older: false }
    };
    let right = [listed(0, Some("")), listed(1, None), listed(2, Some("other"))];
    assert_eq!(domains(&engine), right);
    assert!(domain_called(&engine, "one").is_err());
    assert_eq!(domain_called(&engine, "other").unwrap(), 2);
    let status = engine.status().volumes;
    let told: Vec<_> =
        status.iter().map(|one| (&*one.name, one.domain, one.domain_name.as_deref())).collect();
    assert_eq!(told, [("v0", 0, Some("")), ("v1", 1, None), ("v2", 2, Some("other"))]);
    for volume in ["v1", "v1@monday"] {
        // A hole too: nobody can tell whether it is one.
        [0, 5, 300].into_iter().for_each(|lba| is_erased(read(&engine, volume, lba)));
    }
    is_erased(engine.write(v1, 0, &[1; 4096]));
    is_erased(engine.write(v1, 5, &[1; 3]));
    is_erased(engine.write_zeroes(v1, 0, 4096, true, &mut 0));
    is_erased(engine.trim(v1, 0, 4096));
    is_erased(engine.resize_volume(v1, 600));
    let monday = engine.find_volume("v1@monday").unwrap();
    let acts = Acts::of(&engine);
    is_erased(acts.snapshot(&[(v1, "tuesday".into())], 1));
    is_erased(acts.clone_volume(monday, "c", 1));
    is_erased(acts.rollback(v1, monday, None, 1));
    holds(&engine, "v0", 0, 60);
    holds(&engine, "v2", 0, 60);
    // Idle work and checkpoints pass it over.
    fill(&engine, "v2", 1000, 60);
    while engine.idle_step(onefold_block::Idleness::Long).unwrap() {}
    for gone in [monday, v1] {
        persevere(&engine, || engine.delete_volume(gone));
        engine.flush().unwrap();
    }
    while engine.checkpoint_useful() {
        engine.checkpoint().unwrap();
        while engine.idle_step(onefold_block::Idleness::Long).unwrap() {}
    }
    let after = engine.status();
    assert_eq!(after.live_blocks, before.live_blocks - 80);
    assert!(after.free_blocks > before.free_blocks + 70, "{} blocks", after.free_blocks);
    engine.close().unwrap();
    is_well(&disk, 0);
    assert_eq!(create_domain(&*disk, &settings(), "one").unwrap(), 3);
}

/// A disk on which power fails: so many blocks are written or flushed yet, and then nothing.
struct Failing {
    disk: Arc<MemoryDisk>,
    left: AtomicU64,
}

impl Failing {
    fn spend(&self) -> Result<()> {
        let spent = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        spent.map(drop).map_err(|_| Error::new(Kind::Io, "no power"))
    }
}

impl Disk for Failing {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        self.disk.read(reads);
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        for run in runs {
            for (n, block) in (0..).zip(run.blocks) {
                self.spend()?;
                put(&self.disk, run.at.plus(n), block.block);
            }
        }
        Ok(())
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.write(std::slice::from_ref(run))
    }

    fn flush(&self) -> Result<()> {
        self.spend()
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        self.disk.allocate(at, blocks)
    }
}

/// A store that was killed with writes in no checkpoint.
fn killed() -> Arc<MemoryDisk> {
    let disk = with_domains();
    let engine = open(&disk);
    for volume in ["v0", "v1", "v2"] {
        fill(&engine, volume, 0, 12);
    }
    for (volume, n) in [("v0", 100), ("v1", 200), ("v2", 300)] {
        let id = engine.find_volume(volume).unwrap();
        for lba in 0..6 {
            persevere(&engine, || engine.write(id, lba * 4096, &bytes(n + lba)));
        }
        engine.flush().unwrap();
    }
    disk
}

#[test]
fn rule_27_recovery_judges_what_is_in_no_checkpoint_by_each_domains_key() {
    let disk = killed();
    let engine = open(&disk);
    for (volume, n) in [("v0", 100), ("v1", 200), ("v2", 300)] {
        holds(&engine, volume, n, 6);
    }
    // Also of a volume that no checkpoint knows.
    engine.create_volume_with("new", 64, in_domain(2)).unwrap();
    let id = engine.find_volume("new").unwrap();
    for lba in 0..6 {
        engine.write(id, lba * 4096, &bytes(400 + lba)).unwrap();
    }
    engine.flush().unwrap();
    drop(engine);
    holds(&open(&disk), "new", 400, 6);
    is_well(&disk, 0);
}

#[test]
fn rule_26_a_crash_in_the_making_or_erasing_of_a_domain_leaves_it_as_it_was_or_done() {
    let disk = killed();
    let areas = |disk: &Arc<MemoryDisk>| {
        KEY_AREAS.map(|first| -> Vec<u8> {
            (first.0..first.0 + 3).flat_map(|at| get(disk, Pba(at)).0).collect()
        })
    };
    for erases in [false, true] {
        let (mut before, mut after) = (0, 0);
        for left in 0.. {
            let failing = Arc::new(Failing { disk: copy(&disk), left: AtomicU64::new(left) });
            let shared: Arc<dyn Disk> = failing.clone();
            let done = match erases {
                true => erase_domain(&shared, clock(), &settings(), 1),
                false => create_domain(&*shared, &settings(), "third").map(drop),
            };
            let disk = copy(&failing.disk);
            let engine = open(&disk);
            let copies = areas(&disk);
            assert!(copies[0] == copies[1], "{left}: the copies differ");
            let found = domains(&engine);
            let changed = if erases { found[1].name.is_none() } else { found.len() == 4 };
            assert!(changed || done.is_err(), "{left}: told as done, and is not");
            holds(&engine, "v0", 100, 6);
            holds(&engine, "v2", 300, 6);
            match changed && erases {
                true => is_erased(read(&engine, "v1", 0)),
                false => holds(&engine, "v1", 200, 6),
            }
            if changed && !erases {
                engine.create_volume_with("v3", 64, in_domain(3)).unwrap();
            }
            engine.close().unwrap();
            let (superblock, _) = identified(&*disk, &keys()).unwrap();
            let next = if changed && !erases { 4 } else { 3 };
            assert_eq!(
                (superblock.state.features & DOMAINS, superblock.state.next_domain),
                (16, next)
            );
            // Once the new state is seen, the old key area opens nothing.
            if done.is_ok() {
                is_well(&disk, if erases { 12 } else { 0 });
                assert!(before > 3 && after > 1, "{before} as before, {after} done");
                break;
            }
            if changed { after += 1 } else { before += 1 }
        }
    }
}

#[test]
fn rule_26_an_old_key_area_does_not_bring_an_erased_domain_back() {
    let disk = with_domains();
    fill(&open(&disk), "v1", 0, 12);
    open(&disk).close().unwrap();
    let old: Vec<_> = (1..4).map(|at| get(&disk, Pba(at))).collect();
    erase(&disk, 1).unwrap();
    for copies in [1, 2] {
        let attacked = copy(&disk);
        for first in KEY_AREAS.into_iter().take(copies) {
            (first.0..).zip(&old).for_each(|(at, block)| put(&attacked, Pba(at), block));
        }
        match open_by(&attacked, settings()) {
            Ok(engine) => {
                assert_eq!(copies, 1);
                is_erased(read(&engine, "v1", 0));
            }
            Err(error) => {
                assert!(copies == 2 && error.kind() == Kind::Denied, "{error}");
                assert!(error.to_string().contains("domains that were erased"), "{error}");
            }
        }
    }
    // By the operator's word it is back.
    let put_back = |disk: &Arc<MemoryDisk>, old: &[onefold_core::Block]| {
        for first in KEY_AREAS {
            (first.0..).zip(old).for_each(|(at, block)| put(disk, Pba(at), block));
        }
    };
    let accepting = Settings { keys: KeySource::new(Arc::new(Holder(true))), ..settings() };
    let back = copy(&disk);
    put_back(&back, &old);
    holds(&open_by(&back, accepting.clone()).unwrap(), "v1", 0, 12);
    assert_eq!(create_domain(&*back, &accepting, "third").unwrap(), 3);
    // No number is given twice, also by a key area from before all domains.
    let first = sealed();
    let oldest: Vec<_> = (1..4).map(|at| get(&first, Pba(at))).collect();
    put_back(&disk, &oldest);
    let engine = open_by(&disk, accepting.clone()).unwrap();
    is_erased(read(&engine, "v1", 0));
    assert_eq!(domains(&engine).iter().filter(|one| one.name.is_none()).count(), 2);
    drop(engine);
    assert_eq!(create_domain(&*disk, &accepting, "third").unwrap(), 3);
}

#[test]
fn rule_35_a_store_without_domains_stays_as_it_was_and_its_first_one_is_a_feature() {
    let disk = sealed();
    let engine = open(&disk);
    engine.create_volume("v", 512).unwrap();
    fill(&engine, "v", 0, 12);
    engine.close().unwrap();
    drop(engine);
    let features = || {
        SUPERBLOCKS.map(|at| {
            let block = get(&disk, at);
            let place = u32::from(at == SUPERBLOCKS[1]);
            assert!(matches!(Superblock::decode(&block, place), Found::Sealed(_)));
            block.0[1192]
        })
    };
    assert_eq!(features(), [8; 2]);
    let (superblock, _) = identified(&*disk, &keys()).unwrap();
    assert_eq!(superblock.state.next_domain, 0);
    // A name that does not fit changes nothing.
    let long = "a-name-that-is-longer-than-thirty";
    assert_eq!(create_domain(&*disk, &settings(), long).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(features(), [8; 2]);
    create_domain(&*disk, &settings(), "one").unwrap();
    assert_eq!(features(), [24; 2]);
    assert_eq!(create_domain(&*disk, &settings(), "one").unwrap_err().kind(), Kind::Exists);
    let engine = open(&disk);
    holds(&engine, "v", 0, 12);
    fill(&engine, "v", 50, 12);
    engine.close().unwrap();
    is_well(&disk, 0);
    // A plain store has none.
    let plain = Arc::new(MemoryDisk::new(BLOCKS));
    Engine::format(&*plain, &Format { zone_blocks: 64, ..Format::new(ID, [5; 32], BLOCKS) })
        .unwrap();
    let error = create_domain(&*plain, &settings(), "one").unwrap_err();
    assert!(error.to_string().contains("not encrypted"), "{error}");
    let engine = Engine::open(plain, clock(), damage::settings()).unwrap();
    assert_eq!(domains(&engine).len(), 1);
    assert!(engine.create_volume_with("x", 5, in_domain(1)).is_err());
}

#[test]
fn rule_25_snapshots_clones_and_rollbacks_stay_in_their_domain() {
    let disk = with_domains();
    let engine = open(&disk);
    fill(&engine, "v1", 0, 24);
    fill(&engine, "v2", 0, 24);
    let id = |name: &str| -> VolumeId { engine.find_volume(name).unwrap() };
    let acts = Acts::of(&engine);
    let wanted = [(id("v1"), "a".to_owned()), (id("v2"), "a".to_owned())];
    act(&engine, acts.snapshot(&wanted, 1).unwrap().1.number);
    act(&engine, acts.clone_volume(id("v1@a"), "copy", 1).unwrap().1.number);
    fill(&engine, "v1", 100, 24);
    fill(&engine, "copy", 200, 6);
    act(&engine, acts.rollback(id("v1"), id("v1@a"), Some("b"), 1).unwrap().1.number);
    let right = |engine: &Engine| {
        let id = |name: &str| -> VolumeId { engine.find_volume(name).unwrap() };
        for (name, domain) in
            [("v1", 1), ("v1@a", 1), ("v1@b", 1), ("copy", 1), ("v2@a", 2), ("v0", 0)]
        {
            assert_eq!(engine.volume(id(name)).unwrap().domain, domain, "{name}");
        }
        holds(engine, "v1", 0, 24);
        holds(engine, "v1@b", 100, 24);
        holds(engine, "copy", 200, 6);
        holds(engine, "v2@a", 0, 24);
    };
    right(&engine);
    drop(engine);
    right(&open(&disk));
    open(&disk).close().unwrap();
    is_well(&disk, 0);
    erase(&disk, 1).unwrap();
    let engine = open(&disk);
    for name in ["v1", "v1@a", "v1@b", "copy"] {
        is_erased(read(&engine, name, 0));
    }
    holds(&engine, "v2@a", 0, 24);
}

#[test]
fn rule_25_a_damaged_block_is_found_beside_those_of_an_erased_domain() {
    let disk = with_domains();
    let engine = open(&disk);
    fill(&engine, "v1", 0, 30);
    fill(&engine, "v2", 0, 30);
    engine.close().unwrap();
    drop(engine);
    erase(&disk, 1).unwrap();
    is_well(&disk, 30);
    let (superblock, identity) = identified(&*disk, &keys()).unwrap();
    let geometry = superblock.fixed.geometry;
    let (mut found, mut erased) = (0, 0);
    for at in (geometry.start_of(geometry.first_zone()).0..BLOCKS).map(Pba) {
        let block = get(&disk, at);
        let is_page = onefold_block::format::page::header(&identity, at, &mut block.0.clone());
        if block.is_zero() || is_page.is_some() {
            continue;
        }
        let damaged = copy(&disk);
        let mut block = block.clone();
        block.0[77] ^= 1;
        put(&damaged, at, &block);
        let shared: Arc<dyn Disk> = damaged;
        let scrubbed = scrub_with(&shared, &keys(), &mut |_| {}, &mut || false).unwrap();
        match scrubbed.bad.first() {
            Some(bad) => {
                assert_eq!((bad.pba, scrubbed.bad_found), (at, 1));
                found += 1;
            }
            None => erased += 1,
        }
    }
    assert!(found >= 30 && erased > 0, "{found} found, {erased} of nobody");
}

/// A store with its threads.
struct Site {
    store: Arc<Store>,
    disk: Arc<MemoryDisk>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Site {
    fn of(disk: Arc<MemoryDisk>) -> Site {
        let store = Store::open(disk.clone(), clock(), settings()).unwrap();
        let (one, other) = (store.clone(), store.clone());
        let threads = vec![
            thread::spawn(move || one.run_writer()),
            thread::spawn(move || other.run_background()),
        ];
        Site { store, disk, threads }
    }

    fn volume(&self, name: &str) -> Result<Arc<dyn Volume>> {
        StoreExports(self.store.clone()).open(name)
    }

    fn end(self) -> Arc<MemoryDisk> {
        self.store.stop();
        self.threads.into_iter().for_each(|one| one.join().unwrap());
        self.store.close().unwrap();
        self.disk
    }
}

#[test]
fn rule_25_what_is_received_belongs_to_the_domain_that_is_named() {
    let here = Site::of(with_domains());
    let there = Site::of(with_domains());
    let volume = here.volume("v1").unwrap();
    for lba in 0..20 {
        volume.write(lba * 4096, &bytes(lba)).unwrap();
    }
    here.store.snapshot(&["v1@a".to_owned()], &mut || {}).unwrap();
    volume.write(0, &bytes(700)).unwrap();
    here.store.snapshot(&["v1@b".to_owned()], &mut || {}).unwrap();
    drop(volume);
    let send = |what| {
        let mut stream = Vec::new();
        Copies::of(&here.store).send(&what, &mut stream).unwrap();
        stream
    };
    let receive = |domain, into: Option<&str>, stream: &[u8]| {
        let copies = Copies::of(&there.store).in_domain(domain);
        copies.receive(into, false, stream, &mut |_| Ok(()))
    };
    let (all, rest) = (send(whole("v1@a")), send(changes("v1@a", "v1@b")));
    receive(Some(2), Some("copy"), &all).unwrap();
    receive(None, Some("plain"), &all).unwrap();
    // What is there stays in its domain.
    assert_eq!(receive(Some(1), Some("copy"), &rest).unwrap_err().kind(), Kind::InvalidInput);
    receive(None, Some("copy"), &rest).unwrap();
    let domain = |name: &str| {
        let id = there.store.engine().find_volume(name).unwrap();
        there.store.engine().volume(id).unwrap().domain
    };
    assert_eq!(["copy", "copy@a", "copy@b", "plain"].map(domain), [2, 2, 2, 0]);
    here.end();
    let disk = there.end();
    is_well(&disk, 0);
    erase(&disk, 2).unwrap();
    let there = Site::of(disk);
    is_erased(there.volume("copy").map(drop));
    is_erased(there.volume("copy@a").map(drop));
    there.volume("plain").unwrap();
    let copies = Copies::of(&there.store);
    is_erased(copies.receive(Some("copy"), false, &rest[..], &mut |_| Ok(())));
    is_erased(copies.send(&whole("copy@a"), &mut Vec::new()));
    is_erased(copies.export("copy", &mut Vec::new()));
    there.end();
}

/// The image of a store with three domains, one of them erased; `data/README.md` tells of it.
fn image() -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("tests/data/v3-domains-killed.zst")
}

/// A block of each domain is written, one domain is erased, and the others go on, until the program is
/// killed.
fn with_one_erased() -> Arc<MemoryDisk> {
    let disk = with_domains();
    let engine = open(&disk);
    for volume in ["v0", "v1", "v2"] {
        fill(&engine, volume, 0, 60);
    }
    let v2 = engine.find_volume("v2").unwrap();
    let (_, asked) = Acts::of(&engine).snapshot(&[(v2, "monday".into())], 1).unwrap();
    act(&engine, asked.number);
    engine.close().unwrap();
    drop(engine);
    erase(&disk, 1).unwrap();
    let engine = open(&disk);
    fill(&engine, "v0", 60, 40);
    fill(&engine, "v2", 500, 20);
    disk
}

#[test]
#[ignore = "makes the image, once"]
fn make() {
    if !image().exists() {
        let disk = with_one_erased();
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|at| get(&disk, Pba(at)).0).collect();
        std::fs::write(image(), zstd::encode_all(&bytes[..], 19).unwrap()).unwrap();
    }
}

#[test]
fn rule_26_the_image_of_a_store_with_domains_opens_and_goes_on() {
    let packed = std::fs::read(image()).unwrap();
    let unpacked = zstd::decode_all(&packed[..]).unwrap();
    assert_eq!(unpacked.len() as u64, BLOCKS * 4096);
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    for (at, block) in (0..).zip(unpacked.as_chunks::<4096>().0) {
        put(&disk, Pba(at), &Block(*block));
    }
    is_well(&disk, 60);
    let engine = open(&disk);
    let told: Vec<_> = domains(&engine).into_iter().map(|one| (one.number, one.name)).collect();
    let right = [(0, Some(String::new())), (1, None), (2, Some("other".to_owned()))];
    assert_eq!(told, right);
    let whole = |engine: &Engine| {
        holds(engine, "v0", 60, 40);
        (40..60).for_each(|lba| assert_eq!(read(engine, "v0", lba).unwrap(), bytes(lba)));
        holds(engine, "v2", 500, 20);
        holds(engine, "v2@monday", 0, 60);
        is_erased(read(engine, "v1", 5));
    };
    whole(&engine);
    engine.create_volume_with("more", 64, in_domain(2)).unwrap();
    fill(&engine, "more", 0, 60);
    engine.close().unwrap();
    drop(engine);
    assert_eq!(create_domain(&*disk, &settings(), "one").unwrap(), 3);
    whole(&open(&disk));
}
