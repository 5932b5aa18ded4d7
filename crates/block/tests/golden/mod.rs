//! Stores that programs of all versions made: what each holds, and how an engine is brought there.
//!
//! The makers in `tests/data/README.md` compile this file against the engines of older programs. So it
//! uses few calls, and takes those that changed since as closures. What it does never changes: the
//! images hold it.
#![allow(dead_code, clippy::unwrap_used, reason = "each user has its own part, and panics")]

use std::collections::BTreeMap;

use onefold_block::Engine;
use onefold_core::{Block, BlockRead, Kind, Lba, Result, Ticket, VolumeId};

/// Blocks of a store: 64 MiB.
pub(crate) const BLOCKS: u64 = 16 << 10;

/// Blocks of the volumes `vm1` and `vm2`.
pub(crate) const VM1: u64 = 1500;
pub(crate) const VM2: u64 = 300;

/// A step of the history of a store.
pub(crate) enum Step {
    /// The content of this number is written to a block.
    Write(&'static str, u64, u64),
    /// So many blocks become zeroes that were written.
    Zeroes(&'static str, u64, u64),
    /// So many blocks become a hole.
    Trim(&'static str, u64, u64),
    /// All is durable and in the tables.
    Checkpoint,
    /// A snapshot of a volume, as `vm1@monday`.
    Snapshot(&'static str, &'static str),
    /// A clone of a snapshot.
    Clone(&'static str, &'static str),
    /// A volume or a snapshot is deleted.
    Delete(&'static str),
}

use Step::{Checkpoint, Clone, Delete, Snapshot, Trim, Write, Zeroes};

/// The history of a store: three rounds of changes, the last of which no checkpoint holds yet. With
/// `acts` snapshots and clones come in between.
pub(crate) fn history(acts: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..3 {
        steps.extend(
            (0..40).map(|n| Write("vm1", (n * 31 + round * 7) % VM1, content_at(n, round))),
        );
        steps.extend((0..10).map(|n| Write("vm2", n * 17, n * 3 + round)));
        steps.extend([Zeroes("vm1", 200 + round * 10, 30), Trim("vm1", 700, 100 + round)]);
        match round {
            0 => {
                steps.extend((0..10).map(|n| Write("gone", n, 60 + n)));
                steps.push(Checkpoint);
                steps.push(Delete("gone"));
                if acts {
                    steps.extend([Snapshot("vm1", "monday"), Snapshot("vm2", "old")]);
                }
            }
            1 => {
                steps.push(Checkpoint);
                if acts {
                    steps.push(Clone("vm1@monday", "clone"));
                    steps.extend((0..10).map(|n| Write("clone", n * 13, 70 + n)));
                    steps.extend([Snapshot("clone", "first"), Delete("vm2@old")]);
                    steps.extend((0..5).map(|n| Write("clone", n * 13, 80 + n)));
                }
            }
            _ => {}
        }
    }
    steps
}

/// What is written to `vm1`: a third of it comes again in the next rounds.
fn content_at(n: u64, round: u64) -> u64 {
    (n * 3 + round * 20) % 90
}

/// Changes behind an opening by another program.
pub(crate) fn later() -> Vec<Step> {
    let mut steps: Vec<Step> = (0..60).map(|n| Write("vm1", n * 23, 100 + n % 40)).collect();
    steps.extend((0..20).map(|n| Write("vm2", n * 11, 50 + n)));
    steps.extend([Zeroes("vm2", 50, 20), Trim("vm1", 900, 200)]);
    steps
}

/// A block: few of them can't be compressed.
pub(crate) fn content(n: u64) -> Vec<u8> {
    let mut state = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; 4096];
    for byte in &mut bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    if n % 45 != 1 {
        let piece = bytes[..32].to_vec();
        bytes = piece.repeat(4096 / 32);
    }
    bytes
}

/// The contents of each map by their numbers; what is not here is zeroes.
pub(crate) type Model = BTreeMap<String, BTreeMap<u64, u64>>;

/// What a store holds after some steps.
pub(crate) fn play(model: &mut Model, steps: &[Step]) {
    for step in steps {
        match *step {
            Write(volume, lba, n) => {
                model.entry(volume.to_owned()).or_default().insert(lba, n);
            }
            Zeroes(volume, lba, blocks) | Trim(volume, lba, blocks) => {
                let cells = model.entry(volume.to_owned()).or_default();
                cells.retain(|at, _| !(lba..lba + blocks).contains(at));
            }
            Checkpoint => {}
            Snapshot(volume, name) => {
                let cells = model[volume].clone();
                model.insert(format!("{volume}@{name}"), cells);
            }
            Clone(of, name) => {
                let cells = model[of].clone();
                model.insert(name.to_owned(), cells);
            }
            Delete(name) => {
                model.remove(name);
            }
        }
    }
}

/// Changes a volume as long as steps of the engine must be made first.
pub(crate) fn persevere<T>(engine: &Engine, mut change: impl FnMut() -> Result<T>) -> T {
    for _ in 0..50 {
        match change() {
            Err(e) if e.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            other => return other.unwrap(),
        }
    }
    panic!("busy for ever");
}

/// Calls that differ between the programs.
pub(crate) struct Calls<'c> {
    /// Writes zeroes: volume, first byte, bytes.
    pub(crate) zeroes: &'c dyn Fn(&Engine, VolumeId, u64, u64) -> Result<Ticket>,
    /// Makes a snapshot or a clone durable.
    pub(crate) act: &'c dyn Fn(&Engine, &Step),
}

/// Makes the volumes of a history.
pub(crate) fn begin(engine: &Engine) {
    for (name, blocks) in [("vm1", VM1), ("gone", 64), ("vm2", VM2)] {
        persevere(engine, || engine.create_volume(name, blocks));
    }
}

/// Does some steps, and makes them durable.
pub(crate) fn fill(engine: &Engine, steps: &[Step], calls: &Calls<'_>) {
    let id = |name: &str| engine.find_volume(name).unwrap();
    for step in steps {
        match *step {
            Write(volume, lba, n) => {
                persevere(engine, || engine.write(id(volume), lba * 4096, &content(n)));
            }
            Zeroes(volume, lba, n) => {
                persevere(engine, || (calls.zeroes)(engine, id(volume), lba * 4096, n * 4096));
            }
            Trim(volume, lba, n) => {
                persevere(engine, || engine.trim(id(volume), lba * 4096, n * 4096));
            }
            Delete(name) => {
                persevere(engine, || engine.delete_volume(id(name)));
            }
            Checkpoint => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            Snapshot(..) | Clone(..) => (calls.act)(engine, step),
        }
    }
    engine.flush().unwrap();
}

/// Asserts that the maps of a store are those of the model, and hold what it says.
pub(crate) fn assert_holds(engine: &Engine, model: &Model, of: &str) {
    for (name, cells) in model {
        let id = engine.find_volume(name).unwrap();
        let volume = engine.volume(id).unwrap();
        let mut blocks = Block::zeroed_vec(volume.blocks as usize);
        let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
        engine.read(id, &mut reads);
        let [read] = reads;
        read.result.unwrap();
        for (lba, block) in (0..).zip(&blocks) {
            let expected = cells.get(&lba).map_or_else(|| vec![0; 4096], |&n| content(n));
            assert!(block.0[..] == expected[..], "{of}: {name}, block {lba}");
        }
    }
}
