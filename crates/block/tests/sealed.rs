//! Sealed stores: what their disk shows, who opens them, and what damage costs.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;
mod golden;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use damage::{copy, get, put};
use golden::{BLOCKS, Calls, Model, Step, assert_holds, begin, fill, history, later, play};
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Format, KeySource, Settings, change_keys,
    check::{MEMORY, What, check_with, inspect_with, repair, scrub_with},
    erase_keys,
    format::{
        geometry::{KEY_AREAS, SUPERBLOCKS},
        superblock::{Found, Layout, Leftover, SchemeName, Superblock},
    },
    identified,
};
use onefold_core::{Algorithm, Block, BlockRead, Disk, Error, Kind, Lba, Pba, Read, Result, Run};
use onefold_seal::{Argon, KeyArea, Keys, Opener, Random, Secret, SlotKind, SlotSecret};

const ID: [u8; 16] = [0x51; 16];

/// Chance that repeats itself.
struct Repeated;

impl Random for Repeated {
    fn fill(&self, into: &mut [u8]) -> Result<()> {
        (0..).zip(into).for_each(|(n, byte): (u32, _)| *byte = (n * 7 + 3) as u8);
        Ok(())
    }
}

/// Who has the key that is 32 times this byte.
struct Holder(u8);

impl Opener for Holder {
    fn root(&self, area: &KeyArea) -> Result<Secret> {
        let found = area.root(&secret(self.0), 0)?;
        found.map(|(_, root)| root).ok_or_else(|| Error::new(Kind::Denied, "no slot opens"))
    }

    fn refuses_plain(&self) -> bool {
        true
    }

    fn random(&self) -> Arc<dyn Random> {
        Arc::new(Repeated)
    }
}

fn secret(byte: u8) -> SlotSecret {
    SlotSecret::Key(Secret::take(&mut [byte; 32]))
}

fn by(byte: u8) -> KeySource {
    KeySource::new(Arc::new(Holder(byte)))
}

fn settings(byte: u8) -> Settings {
    Settings { keys: by(byte), ..damage::settings() }
}

fn add(keys: &mut Keys, byte: u8) -> Result<usize> {
    keys.add_slot((SlotKind::File, ""), &secret(byte), Argon::LEAST, (0, 0), &Repeated)
}

fn new_keys() -> Keys {
    let mut keys = Keys::create(ID, &Repeated).unwrap();
    add(&mut keys, 1).unwrap();
    keys
}

fn format() -> Format {
    Format { zone_blocks: 64, ..Format::new(ID, [0; 32], BLOCKS) }
}

fn open_by(disk: &Arc<MemoryDisk>, byte: u8) -> Result<Engine> {
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings(byte))
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    open_by(disk, 1).unwrap()
}

/// A sealed store with everything in it, which was killed, and what it holds.
fn filled() -> (Arc<MemoryDisk>, Model) {
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    onefold_block::format_sealed(&*disk, &format(), &mut new_keys(), &Repeated).unwrap();
    let engine = open(&disk);
    assert!(onefold_block::is_sealed(&engine));
    begin(&engine);
    fill(&engine, &history(true), &CALLS);
    engine.flush().unwrap();
    drop(engine);
    let mut model = Model::new();
    play(&mut model, &history(true));
    (disk, model)
}

/// Runs steps until an act is durable.
fn act(engine: &Engine, step: &Step) {
    let acts = Acts::of(engine);
    let asked = match *step {
        Step::Snapshot(volume, name) => {
            let volume = engine.find_volume(volume).unwrap();
            acts.snapshot(&[(volume, name.to_owned())], 1).unwrap().1
        }
        Step::Clone(of, name) => {
            acts.clone_volume(engine.find_volume(of).unwrap(), name, 1).unwrap().1
        }
        _ => return,
    };
    while acts.done() < asked.number {
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    }
}

const CALLS: Calls<'static> = Calls {
    zeroes: &|engine, id, at, bytes| engine.write_zeroes(id, at, bytes, true, &mut 0),
    act: &act,
};

fn is_whole(disk: &Arc<MemoryDisk>, model: &Model, name: &str) {
    let shared: Arc<dyn Disk> = disk.clone();
    let report = check_with(&shared, &by(1), MEMORY, &mut |_| {}).unwrap();
    assert!(report.is_well(), "{name}: {:#?}", report.problems);
    let scrubbed = scrub_with(&shared, &by(1), &mut |_| {}, &mut || false).unwrap();
    assert!(scrubbed.is_well() && scrubbed.blocks > 0, "{name}: {scrubbed:?}");
    assert_holds(&open(&copy(disk)), model, name);
}

#[test]
fn rule_32_a_sealed_store_holds_what_was_written_and_its_disk_shows_none_of_it() {
    let (disk, mut model) = filled();
    is_whole(&disk, &model, "killed");
    let engine = open(&disk);
    fill(&engine, &later(), &CALLS);
    play(&mut model, &later());
    engine.close().unwrap();
    drop(engine);
    is_whole(&disk, &model, "closed");
    let mut parts: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut whole: BTreeSet<Vec<u8>> = BTreeSet::new();
    for n in 0..150 {
        let content = golden::content(n);
        parts.extend(content.chunks(16).map(<[u8]>::to_vec));
    }
    for at in (0..BLOCKS).map(Pba) {
        let block = get(&disk, at);
        let is_key = KEY_AREAS.iter().any(|first| (first.0..first.0 + 3).contains(&at.0));
        if block.is_zero() || is_key {
            continue;
        }
        for canary in [&b"monday"[..], b"clone", b"OFp1", b"OFc1", b"OFz1"] {
            assert!(!block.0.windows(canary.len()).any(|part| part == canary), "block {at}");
        }
        assert!(!block.0.chunks(16).any(|part| parts.contains(part)), "block {at}");
        assert!(whole.insert(block.0.to_vec()), "block {at} is like another one");
    }
}

#[test]
fn rule_51_two_stores_of_one_content_share_no_16_bytes() {
    let (one, _) = filled();
    let other = Arc::new(MemoryDisk::new(BLOCKS));
    let id = [0x52; 16];
    struct Other;
    impl Random for Other {
        fn fill(&self, into: &mut [u8]) -> Result<()> {
            (0..).zip(into).for_each(|(n, byte): (u32, _)| *byte = (n * 11 + 5) as u8);
            Ok(())
        }
    }
    let mut keys = Keys::create(id, &Other).unwrap();
    keys.add_slot((SlotKind::File, ""), &secret(1), Argon::LEAST, (0, 0), &Other).unwrap();
    let format = Format { id, ..format() };
    onefold_block::format_sealed(&*other, &format, &mut keys, &Other).unwrap();
    let engine = open(&other);
    begin(&engine);
    fill(&engine, &history(true), &CALLS);
    engine.flush().unwrap();
    drop(engine);
    let parts = |disk: &Arc<MemoryDisk>| -> BTreeSet<Vec<u8>> {
        let blocks = (12..BLOCKS).map(|at| get(disk, Pba(at)));
        blocks
            .flat_map(|block| block.0.chunks(16).map(<[u8]>::to_vec).collect::<Vec<_>>())
            .filter(|part| part.iter().any(|&byte| byte != 0))
            .collect()
    };
    assert_eq!(parts(&one).intersection(&parts(&other)).count(), 0);
}

#[test]
fn rule_22_only_a_key_opens_it_and_a_plain_store_with_its_id_is_refused() {
    let (disk, _) = filled();
    assert_eq!(open_by(&disk, 2).err().unwrap().kind(), Kind::Denied);
    let without = Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), damage::settings());
    let error = without.err().unwrap();
    assert!(error.kind() == Kind::Denied && error.to_string().contains("--key"), "{error}");
    let plain = Arc::new(MemoryDisk::new(BLOCKS));
    Engine::format(&*plain, &format()).unwrap();
    assert_eq!(open_by(&plain, 1).err().unwrap().kind(), Kind::Denied);
    // One of the two superblocks of a plain store, put in place of a sealed one.
    let forged = copy(&disk);
    put(&forged, SUPERBLOCKS[1], &get(&plain, SUPERBLOCKS[1]));
    open(&forged);
}

#[test]
fn rule_24_slots_change_and_both_superblocks_bear_the_number() {
    let (disk, model) = filled();
    let old: Vec<Block> = (1..4).map(|at| get(&disk, Pba(at))).collect();
    let shared: &dyn Disk = &*disk;
    change_keys(shared, &settings(1), |keys, _| add(keys, 2).map(drop)).unwrap();
    is_whole(&disk, &model, "after a change of keys");
    open_by(&copy(&disk), 2).unwrap();
    change_keys(shared, &settings(2), |keys, _| keys.remove_slot(0)).unwrap();
    assert_eq!(open_by(&copy(&disk), 1).err().unwrap().kind(), Kind::Denied);
    let (superblock, _) = identified(shared, &by(2)).unwrap();
    assert_eq!(superblock.state.keys, 3);
    // The old key area, in both places: the superblocks bear a higher number.
    for first in KEY_AREAS {
        (first.0..).zip(&old).for_each(|(at, block)| put(&disk, Pba(at), block));
    }
    let error = open_by(&disk, 1).err().unwrap();
    assert!(
        error.kind() == Kind::Denied && error.to_string().contains("--accept-older"),
        "{error}"
    );
    let (disk, _) = filled();
    erase_keys(&*disk, &settings(1), &Repeated).unwrap();
    assert_eq!(open_by(&disk, 1).err().unwrap().kind(), Kind::Corrupt);
}

/// A disk on which power fails: so many blocks are written or flushed yet, and then nothing.
struct Failing {
    disk: Arc<MemoryDisk>,
    left: AtomicU64,
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

impl Failing {
    fn spend(&self) -> Result<()> {
        let spent = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        spent.map(drop).map_err(|_| Error::new(Kind::Io, "no power"))
    }
}

#[test]
fn rule_26_an_erasure_that_was_cut_off_is_ended_by_whoever_opens_the_store_to_write() {
    let (disk, model) = filled();
    let areas = |disk: &Arc<MemoryDisk>| {
        KEY_AREAS.map(|first| -> Vec<u8> {
            (first.0..first.0 + 3).flat_map(|at| get(disk, Pba(at)).0).collect()
        })
    };
    let (mut opened, mut ended) = (0, 0);
    for left in 0.. {
        let failing = Failing { disk: copy(&disk), left: AtomicU64::new(left) };
        let erased = erase_keys(&failing, &settings(1), &Repeated);
        let (after, again) = (failing.disk, copy(&disk));
        if let Ok(engine) = open_by(&copy(&after), 1) {
            assert_holds(&engine, &model, "an erasure that did not begin");
            assert!(left < 3, "{left}");
            opened += 1;
            continue;
        }
        // Whoever only looks changes nothing.
        let shared: Arc<dyn Disk> = after.clone();
        let seen = areas(&after);
        assert!(check_with(&shared, &by(1), MEMORY, &mut |_| {}).is_err());
        assert!(areas(&after) == seen);
        // Nor does whoever has no key of it.
        assert!(open_by(&after, 2).is_err());
        assert!(areas(&after) == seen);
        for n in 0..BLOCKS {
            put(&again, Pba(n), &get(&after, Pba(n)));
        }
        let by_opening = open_by(&after, 1).err().unwrap();
        assert_eq!(by_opening.kind(), Kind::Corrupt, "{by_opening}");
        if seen.iter().any(|area| KeyArea::decode(area).is_ok()) {
            assert!(by_opening.to_string().contains("destroyed"), "{by_opening}");
            // The verb once more ends it too.
            erase_keys(&*again, &settings(1), &Repeated).unwrap();
            assert!(areas(&again).iter().all(|area| KeyArea::decode(area).is_err()));
            ended += 1;
        }
        assert!(areas(&after).iter().all(|area| KeyArea::decode(area).is_err()), "{left}");
        if erased.is_ok() {
            break;
        }
    }
    assert!(opened == 3 && ended > 3, "{opened} opened, {ended} were ended");
}

#[test]
fn rule_22_a_damaged_copy_of_the_key_area_is_written_again() {
    let (disk, model) = filled();
    for first in KEY_AREAS {
        let mut block = get(&disk, first);
        block.0[200] ^= 1;
        put(&disk, first, &block);
        is_whole(&disk, &model, "a damaged copy");
        drop(open(&disk));
        let copies = KEY_AREAS.map(|first| get(&disk, first).0);
        assert!(copies[0] == copies[1]);
    }
}

#[test]
fn rule_31_what_does_not_go_with_encryption_is_refused_with_a_sentence() {
    let disk = MemoryDisk::new(BLOCKS);
    let refused = |format: Format, word: &str| {
        let error =
            onefold_block::format_sealed(&disk, &format, &mut new_keys(), &Repeated).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(Format { scheme: SchemeName::OrderMerge, ..format() }, "ordermerge");
    refused(Format { scheme: SchemeName::Ordered, ..format() }, "ordered");
    refused(Format { leftover: Leftover::Table, ..format() }, "leftover");
    for algorithm in [Algorithm::Sha1, Algorithm::Md5] {
        refused(Format { algorithm, verify_bytes: true, ..format() }, "sha1 and md5");
    }
    let bytes = Format { verify_bytes: true, algorithm: Algorithm::HmacSha256, ..format() };
    for scheme in [SchemeName::Thin, SchemeName::Cow] {
        let (disk, layout) = (Arc::new(MemoryDisk::new(BLOCKS)), Layout::Split);
        let format = Format { scheme, layout, ..bytes.clone() };
        onefold_block::format_sealed(&*disk, &format, &mut new_keys(), &Repeated).unwrap();
        let engine = open(&disk);
        begin(&engine);
        fill(&engine, &history(true), &CALLS);
        engine.close().unwrap();
        let mut model = Model::new();
        play(&mut model, &history(true));
        is_whole(&disk, &model, "comparing bytes");
    }
}

/// Asserts that each block of the maps reads as the model says, or as an error.
fn holds_or_fails(engine: &Engine, model: &Model) {
    for (name, cells) in model {
        let Ok(id) = engine.find_volume(name) else { continue };
        for (&lba, &n) in cells {
            let mut block = Block::zeroed_vec(1);
            let mut reads = [BlockRead { first: Lba(lba), into: &mut block, result: Ok(()) }];
            engine.read(id, &mut reads);
            let [read] = reads;
            let failed = read.result.is_err();
            assert!(failed || block[0].0[..] == golden::content(n)[..], "{name}, block {lba}");
        }
    }
}

/// Each block of a closed store, with a bit turned: what is read is right or an error, and repair mends
/// all metadata.
#[test]
fn rule_30_a_turned_bit_never_gives_other_data_and_metadata_are_mended() {
    let (disk, model) = filled();
    open(&disk).close().unwrap();
    let used: Vec<Pba> = (12..BLOCKS).map(Pba).filter(|&at| !get(&disk, at).is_zero()).collect();
    let (superblock, identity) = identified(&*disk, &by(1)).unwrap();
    let mut mended = 0;
    for (n, &at) in used.iter().enumerate().step_by(23) {
        let turned = copy(&disk);
        let mut block = get(&turned, at);
        let bit = n * 37 % (4096 * 8);
        block.0[bit / 8] ^= 1 << (bit % 8);
        put(&turned, at, &block);
        if let Ok(engine) = open_by(&copy(&turned), 1) {
            holds_or_fails(&engine, &model);
        }
        let mut page = get(&disk, at).0;
        let is_page = onefold_block::format::page::header(&identity, at, &mut page)
            .is_some_and(|(_, pointer)| pointer.birth <= superblock.state.committed);
        let shared: Arc<dyn Disk> = turned.clone();
        let clock = Arc::new(MonotonicClock::new());
        let before = check_with(&shared, &by(1), MEMORY, &mut |_| {}).unwrap();
        if is_page && !before.is_well() {
            let repaired = repair(&shared, clock, &settings(1), &mut |_| {}).unwrap();
            assert!(repaired.after.is_well(), "block {at}: {:?}", repaired.left);
            assert!(get(&turned, at).0 == get(&disk, at).0, "block {at} is as it was");
            mended += 1;
        }
    }
    assert!(mended > 1, "{mended} pages were mended");
}

#[test]
fn a_sealed_store_can_be_inspected_by_its_key() {
    let (disk, _) = filled();
    open(&disk).close().unwrap();
    let shown = |what| inspect_with(&*disk, &by(1), &what).unwrap();
    assert!(shown(What::Superblock(0)).contains("whole"));
    assert!(shown(What::Volume("vm1".into())).contains("vm1"));
    shown(What::ZoneList);
    let error = inspect_with(&*disk, &KeySource::default(), &What::ZoneList).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    let block = get(&disk, SUPERBLOCKS[0]);
    let Found::Sealed(seen) = Superblock::decode(&block, 0) else { panic!("it is sealed") };
    assert_eq!(seen.fixed.id, ID);
}

/// The image of a sealed store, whose key is 32 bytes of 1; `data/README.md` tells of it.
fn image() -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    folder.join("tests/data/v3-sealed-killed.zst")
}

#[test]
#[ignore = "makes the image, once"]
fn make() {
    if !image().exists() {
        let (disk, _) = filled();
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|at| get(&disk, Pba(at)).0).collect();
        std::fs::write(image(), zstd::encode_all(&bytes[..], 19).unwrap()).unwrap();
    }
}

#[test]
fn rule_35_the_image_of_a_sealed_store_opens_by_its_key_and_goes_on() {
    let bytes = zstd::decode_all(&std::fs::read(image()).unwrap()[..]).unwrap();
    assert_eq!(bytes.len() as u64, BLOCKS * 4096);
    let disk = Arc::new(MemoryDisk::new(BLOCKS));
    for (at, bytes) in (0..).zip(bytes.as_chunks::<4096>().0) {
        if bytes.iter().any(|&byte| byte != 0) {
            put(&disk, Pba(at), &Block(*bytes));
        }
    }
    let found = SUPERBLOCKS.map(|at| get(&disk, at).0[8]);
    assert_eq!(found, [3, 3], "the version that it was made with");
    assert_eq!(open_by(&disk, 2).err().unwrap().kind(), Kind::Denied);
    let mut model = Model::new();
    play(&mut model, &history(true));
    is_whole(&disk, &model, "as it was made");
    let engine = open(&disk);
    fill(&engine, &later(), &CALLS);
    play(&mut model, &later());
    engine.close().unwrap();
    is_whole(&disk, &model, "gone on");
    // Its keys change, and it is the same store.
    change_keys(&*disk, &settings(1), |keys, _| add(keys, 2).map(drop)).unwrap();
    change_keys(&*disk, &settings(2), |keys, _| keys.remove_slot(0)).unwrap();
    assert_holds(&open_by(&disk, 2).unwrap(), &model, "by another key");
}
