//! Stores that older programs made open, and go on: `tests/data` has an image of each version.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod golden;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use golden::{BLOCKS, Calls, Model, Step, assert_holds, begin, fill, history, later, play};
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Acts, Engine, Format, Idleness, Settings,
    check::{check, scrub},
    format::{
        geometry::SUPERBLOCKS,
        superblock::{Leftover, SchemeName},
    },
};
use onefold_core::{Algorithm, Block, BlockRef, Class, Disk, Kind, Pba, Read, Run};

/// An image.
struct Golden {
    name: &'static str,
    /// The version of the format, and the numbers of fingerprint, leftover and scheme.
    label: [u8; 4],
    killed: bool,
}

const fn golden(name: &'static str, label: [u8; 4], killed: bool) -> Golden {
    Golden { name, label, killed }
}

const ALL: [Golden; 9] = [
    golden("v1-thin", [1, 1, 0, 0], false),
    golden("v1-thin-killed", [1, 1, 0, 0], true),
    golden("v1-ordered", [1, 1, 1, 1], false),
    golden("v1-cow", [1, 1, 0, 2], false),
    golden("v1-ordermerge", [1, 1, 0, 4], false),
    golden("v1-sha256-table-killed", [1, 2, 1, 0], true),
    golden("v2-sha256", [2, 5, 0, 0], false),
    golden("v3-snapshots-killed", [3, 1, 0, 0], true),
    golden(PACKS, [3, 1, 0, 0], false),
];

/// The image whose cold blocks are packed.
const PACKS: &str = "v3-packs";

impl Golden {
    fn file(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{}.zst", self.name))
    }

    /// The store, unpacked.
    fn disk(&self) -> Arc<MemoryDisk> {
        let packed = fs::read(self.file()).unwrap();
        let bytes = zstd::decode_all(&packed[..]).unwrap();
        assert_eq!(bytes.len() as u64, BLOCKS * 4096);
        let disk = MemoryDisk::new(BLOCKS);
        for (at, bytes) in (0..).zip(bytes.as_chunks::<4096>().0) {
            let block = &Block(*bytes);
            if !block.is_zero() {
                let blocks = &[BlockRef { block, class: Class::Data }];
                disk.write(&[Run { at: Pba(at), blocks }]).unwrap();
            }
        }
        Arc::new(disk)
    }

    fn has_acts(&self) -> bool {
        self.label[0] == 3
    }

    /// What it holds.
    fn model(&self) -> Model {
        let mut model = Model::new();
        play(&mut model, &history(self.has_acts()));
        model
    }

    /// All is whole, and the maps hold what they should.
    fn is_whole(&self, disk: &Arc<MemoryDisk>, model: &Model) {
        let name = self.name;
        let shared: Arc<dyn Disk> = disk.clone();
        let report = check(&shared, &mut |_| {}).unwrap();
        assert!(report.is_well(), "{name}: {:#?}", report.problems);
        let scrubbed = scrub(&shared, &mut |_| {}, &mut || false).unwrap();
        assert!(scrubbed.is_well() && scrubbed.blocks > 0, "{name}: {scrubbed:?}");
        let engine = open(&copied(disk));
        assert_holds(&engine, model, name);
        let volumes = engine.volumes().len();
        let expected = model.keys().filter(|name| !name.contains('@')).count();
        assert_eq!(volumes, expected, "{name}");
    }
}

fn open(disk: &Arc<MemoryDisk>) -> Engine {
    let settings = Settings::for_memory(32 << 20);
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap()
}

/// As [`open`], by who packs what he finds.
fn packing(disk: &Arc<MemoryDisk>) -> Engine {
    let settings = Settings { pack_after: Some(Duration::ZERO), ..Settings::for_memory(32 << 20) };
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap()
}

fn get(disk: &MemoryDisk, at: Pba) -> Block {
    let mut blocks = Block::zeroed_vec(1);
    disk.read(&mut [Read::new(at, &mut blocks)]);
    blocks.swap_remove(0)
}

fn copied(disk: &MemoryDisk) -> Arc<MemoryDisk> {
    let new = MemoryDisk::new(BLOCKS);
    for at in (0..BLOCKS).map(Pba) {
        let block = &get(disk, at);
        if !block.is_zero() {
            new.write(&[Run { at, blocks: &[BlockRef { block, class: Class::Data }] }]).unwrap();
        }
    }
    Arc::new(new)
}

/// What both superblocks say: version, fingerprint, leftover, scheme.
fn label(disk: &MemoryDisk) -> [u8; 4] {
    let of = |at| {
        let bytes = get(disk, at).0;
        [bytes[8], bytes[88], bytes[91], bytes[1168]]
    };
    assert_eq!(of(SUPERBLOCKS[0]), of(SUPERBLOCKS[1]));
    of(SUPERBLOCKS[0])
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

/// The images that are missing, made by the program of today: of the version that it writes for these
/// options. Others stay as they are.
#[test]
#[ignore = "makes images, once for each new form"]
fn make() {
    for (n, golden) in (1..).zip(&ALL) {
        let [_, fingerprint, leftover, scheme] = golden.label;
        let format = Format {
            algorithm: Algorithm::from_code(fingerprint).unwrap(),
            verify_bytes: fingerprint == 2,
            leftover: if leftover == 1 { Leftover::Table } else { Leftover::Log },
            scheme: SchemeName::ALL[usize::from(scheme)],
            ..Format::new([n; 16], [n + 100; 32], BLOCKS)
        };
        let file = golden.file();
        if file.exists() {
            continue;
        }
        let disk = Arc::new(MemoryDisk::new(BLOCKS));
        Engine::format(&*disk, &format).unwrap();
        let mut engine = open(&disk);
        begin(&engine);
        fill(&engine, &history(golden.has_acts()), &CALLS);
        if golden.name == PACKS {
            drop(engine);
            engine = packing(&disk);
            for _ in 0..5 {
                while engine.idle_step(Idleness::Pause).unwrap() {}
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            assert!(engine.status().fragments > 50);
        }
        if !golden.killed {
            engine.close().unwrap();
        }
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|at| get(&disk, Pba(at)).0).collect();
        fs::write(file, zstd::encode_all(&bytes[..], 19).unwrap()).unwrap();
    }
}

const CALLS: Calls<'static> = Calls {
    zeroes: &|engine, id, at, bytes| engine.write_zeroes(id, at, bytes, true, &mut 0),
    act: &act,
};

/// Goes on with a store.
fn go_on(disk: &Arc<MemoryDisk>, steps: &[Step], model: &mut Model) {
    let engine = open(disk);
    fill(&engine, steps, &CALLS);
    play(model, steps);
    engine.close().unwrap();
}

#[test]
fn a_store_of_each_older_program_opens_and_goes_on() {
    for golden in &ALL {
        let (disk, mut model, name) = (golden.disk(), golden.model(), golden.name);
        assert_eq!(label(&disk), golden.label, "{name}");
        assert_eq!(get(&disk, SUPERBLOCKS[0]).0[93], u8::from(!golden.killed), "{name}");
        golden.is_whole(&disk, &model);
        // It is written to, and keeps its version.
        go_on(&disk, &later(), &mut model);
        assert_eq!(label(&disk), golden.label, "{name}");
        golden.is_whole(&disk, &model);
        if name == "v1-ordermerge" {
            let engine = open(&disk);
            let volume = engine.find_volume("vm1").unwrap();
            let refused = Acts::of(&engine).snapshot(&[(volume, "new".to_owned())], 1);
            assert_eq!(refused.unwrap_err().kind(), Kind::Unsupported);
            continue;
        }
        // Snapshots and clones make it one of version 3.
        let mut steps = vec![Step::Snapshot("vm1", "new"), Step::Clone("vm1@new", "copy")];
        steps.extend(later().into_iter().rev());
        steps.extend((0..30).map(|n| Step::Write("copy", n * 9, 200 + n)));
        steps.push(Step::Snapshot("copy", "again"));
        steps.extend((0..30).map(|n| Step::Write("copy", n * 9, 210 + n)));
        go_on(&disk, &steps, &mut model);
        let [_, rest @ ..] = golden.label;
        assert_eq!(label(&disk), [[3].as_slice(), &rest].concat()[..], "{name}");
        golden.is_whole(&disk, &model);
        // All snapshots go, and the rest is whole.
        let deleted = ["vm1@new", "copy@again", "copy"].map(Step::Delete);
        go_on(&disk, &deleted, &mut model);
        golden.is_whole(&disk, &model);
    }
}

#[test]
fn a_killed_store_had_records_that_no_checkpoint_held() {
    for golden in ALL.iter().filter(|golden| golden.killed) {
        let disk: Arc<dyn Disk> = golden.disk();
        let report = check(&disk, &mut |_| {}).unwrap();
        assert!(!report.clean, "{}", golden.name);
        let bytes = get(&golden.disk(), SUPERBLOCKS[0]).0;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        // The windows that the tables hold end before those that the store has.
        let engine = open(&golden.disk());
        assert!(engine.durable().0 > number(112), "{}", golden.name);
    }
}

#[test]
fn packs_of_an_older_program_are_read_and_shared() {
    let golden = ALL.iter().find(|golden| golden.name == PACKS).unwrap();
    let (disk, model) = (golden.disk(), golden.model());
    let features = get(&disk, SUPERBLOCKS[0]).0[1192];
    assert_eq!(features & 2, 2);
    let engine = packing(&disk);
    let before = engine.status();
    assert!(before.packs > 0 && before.fragments > 2 * before.packs, "{before:?}");
    let step = || {
        while engine.idle_step(Idleness::Pause).unwrap() {}
        engine.flush().unwrap();
        engine.checkpoint().unwrap();
    };
    step();
    // All of `clone` again, in a volume of its own.
    let (id, _) = engine.create_volume("again", 1500).unwrap();
    for (lba, &n) in &model["clone"] {
        golden::persevere(&engine, || engine.write(id, lba * 4096, &golden::content(n)));
    }
    (0..3).for_each(|_| step());
    assert!(engine.status().fragments > before.fragments);
    assert_holds(&engine, &model, PACKS);
    engine.close().unwrap();
    let disk: Arc<dyn Disk> = disk;
    assert!(check(&disk, &mut |_| {}).unwrap().is_well());
    assert!(scrub(&disk, &mut |_| {}, &mut || false).unwrap().is_well());
}
