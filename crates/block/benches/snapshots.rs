//! What snapshots cost, in pages and blocks and not in seconds. In process, by one thread, over a
//! disk that keeps metadata and drops data. `cargo xtask bench snapshots` runs it.
//!
//! usage: snapshots [--quick]
//!
//! - pages that the checkpoint of a snapshot writes, of a small volume and of a large one;
//! - pages that 500 scattered writes and their checkpoint cost after a snapshot, beside none;
//! - blocks of the device for random writes after a snapshot, beside none;
//! - pages that are read for a clone of a clone, and so on, beside its origin;
//! - pages that are read for deleting a snapshot of which 1,000 leaves differ.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;

use onefold_backend::{MetadataDisk, MonotonicClock};
use onefold_block::{Acts, Asked, Engine, Format, Settings};
use onefold_core::{Block, BlockRead, Kind, Lba, Result, VolumeId};
use support::{Arguments, Contents, GIB, Random, verdict};

/// The memory of the engine: as much as the command has by default.
const MEMORY: u64 = 512 << 20;

/// Entries of a leaf of a map.
const PER_LEAF: u64 = 288;

/// The bars.
const SNAPSHOT_PAGES: u64 = 16;
const SCATTERED: f64 = 1.5;
const DEVICE_BLOCKS: f64 = 1.08;
const CLONE_READS: f64 = 1.0 / 0.97;
const DELETE_READS: f64 = 8.0;

fn main() {
    let quick = Arguments::new().has("--quick");
    println!("| what | | without | with | ratio | bar | |\n|---|---|---|---|---|---|---|");
    pages_of_a_snapshot(quick);
    scattered_writes(quick);
    random_writes(quick);
    clones_of_clones(quick);
    deletion(quick);
}

/// A store with a volume, worked on by this thread alone.
struct Subject {
    disk: Arc<MetadataDisk>,
    engine: Engine,
    volume: VolumeId,
    contents: Contents,
    next: u64,
}

impl Subject {
    /// A store of `store` blocks with a volume of `volume` blocks.
    fn new(store: u64, volume: u64) -> Subject {
        let disk = Arc::new(MetadataDisk::new(store).unwrap());
        Engine::format(&*disk, &Format::new([1; 16], [2; 32], store)).unwrap();
        let engine = open(&disk);
        let (id, _) = engine.create_volume("bench", volume).unwrap();
        Subject { disk, engine, volume: id, contents: Contents::incompressible(), next: 0 }
    }

    /// As if the store were closed and opened again: nothing is in memory.
    fn reopened(self) -> Subject {
        let Subject { disk, engine, volume, contents, next } = self;
        engine.close().unwrap();
        drop(engine);
        let engine = open(&disk);
        Subject { disk, engine, volume, contents, next }
    }

    /// Writes a block of new content.
    fn write_to(&mut self, volume: VolumeId, lba: u64) {
        let mut data = [0; 4096];
        self.next += 1;
        self.contents.fill(self.next, &mut data);
        persevere(&self.engine, || self.engine.write(volume, lba * 4096, &data));
    }

    fn write(&mut self, lba: u64) {
        self.write_to(self.volume, lba);
    }

    fn settle(&self) {
        self.engine.flush().unwrap();
        self.engine.checkpoint().unwrap();
    }

    fn perform(&self, asked: Asked) {
        while Acts::of(&self.engine).done() < asked.number {
            self.settle();
        }
    }

    fn snapshot(&self, name: &str) -> VolumeId {
        let acts = Acts::of(&self.engine);
        let wanted = [(self.volume, name.to_owned())];
        let (ids, asked) = persevere(&self.engine, || acts.snapshot(&wanted, 1));
        self.perform(asked);
        ids[0]
    }

    fn clone_of(&self, of: VolumeId, name: &str) -> VolumeId {
        let acts = Acts::of(&self.engine);
        let (id, asked) = persevere(&self.engine, || acts.clone_volume(of, name, 1));
        self.perform(asked);
        id
    }

    /// Pages that checkpoints wrote.
    fn pages(&self) -> u64 {
        self.engine.counts().checkpoint_blocks
    }

    /// Pages of tables that were read.
    fn pages_read(&self) -> u64 {
        self.engine.status().cache_misses
    }
}

fn open(disk: &Arc<MetadataDisk>) -> Engine {
    let settings = Settings::for_memory(MEMORY);
    Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings).unwrap()
}

fn persevere<T>(engine: &Engine, mut change: impl FnMut() -> Result<T>) -> T {
    loop {
        match change() {
            Err(e) if e.kind() == Kind::Busy => {
                engine.flush().unwrap();
                engine.checkpoint().unwrap();
            }
            other => return other.unwrap(),
        }
    }
}

fn row(what: &str, size: &str, (without, with): (f64, f64), bar: f64) {
    let ratio = with / without;
    println!(
        "| {what} | {size} | {without:.0} | {with:.0} | {ratio:.3} | {bar:.2} | {} |",
        verdict(ratio <= bar)
    );
}

/// The pages of the checkpoint of a snapshot do not depend on the size of its volume.
fn pages_of_a_snapshot(quick: bool) {
    let mut pages = Vec::new();
    for (name, blocks, step) in sizes(quick) {
        let mut side = Subject::new(4 * GIB, blocks);
        for lba in (0..blocks).step_by(step as usize) {
            side.write(lba);
        }
        side.settle();
        // The first one gives the store its tables of shared pages.
        side.snapshot("first");
        side.write(3);
        side.settle();
        let before = side.pages();
        side.snapshot("second");
        let written = side.pages() - before;
        println!(
            "| pages for a snapshot | {name} | | {written} | | {SNAPSHOT_PAGES} | {} |",
            verdict(written <= SNAPSHOT_PAGES)
        );
        pages.push(written);
    }
    let same = pages.windows(2).all(|two| two[0] == two[1]);
    println!("| they are as many for both | | | | | | {} |", verdict(same));
}

/// Sizes of volumes, and how far apart their blocks lie: a leaf each in the small one, every 16th
/// leaf in the large one.
fn sizes(quick: bool) -> [(&'static str, u64, u64); 2] {
    match quick {
        true => [("256 MiB", GIB / 4, PER_LEAF), ("64 GiB", 64 * GIB, 16 * PER_LEAF)],
        false => [("1 GiB", GIB, PER_LEAF), ("1 TiB", 1024 * GIB, 16 * PER_LEAF)],
    }
}

/// Scattered writes after a snapshot, beside as many before it.
fn scattered_writes(quick: bool) {
    let [_, (name, blocks, step)] = sizes(quick);
    let mut side = Subject::new(4 * GIB, blocks);
    for lba in (0..blocks).step_by(step as usize) {
        side.write(lba);
    }
    side.settle();
    let mut random = Random(11);
    let mut pages = |side: &mut Subject| {
        let before = side.pages();
        for _ in 0..500 {
            side.write(random.below(blocks / step) * step);
        }
        side.settle();
        (side.pages() - before) as f64
    };
    let without = pages(&mut side);
    side.snapshot("monday");
    let with = pages(&mut side);
    row("pages of 500 scattered writes", name, (without, with), SCATTERED);
}

/// Random writes over a full volume after a snapshot, beside none.
fn random_writes(quick: bool) {
    let (name, blocks, writes) =
        if quick { ("1 GiB", GIB, 44_000) } else { ("16 GiB", 16 * GIB, 700_000) };
    let written = [false, true].map(|with| {
        let mut side = Subject::new(3 * blocks, blocks);
        for lba in 0..blocks {
            side.write(lba);
        }
        side.settle();
        if with {
            side.snapshot("monday");
        }
        let mut random = Random(12);
        let before = side.disk.counters().now();
        for n in 0..writes {
            side.write(random.below(blocks));
            if n % 32 == 31 {
                side.engine.flush().unwrap();
            }
        }
        side.settle();
        side.disk.counters().now().since(&before).blocks_written() as f64
    });
    row(
        &format!("device blocks of {writes} writes"),
        name,
        (written[0], written[1]),
        DEVICE_BLOCKS,
    );
}

/// Reads of the last one of many clones, each made of the one before and changed, beside reads of the
/// first volume.
fn clones_of_clones(quick: bool) {
    let count = if quick { 100 } else { 1000 };
    let blocks = GIB / 4;
    let mut side = Subject::new(2 * GIB, blocks);
    for lba in 0..blocks {
        side.write(lba);
    }
    side.settle();
    let mut last = side.volume;
    let mut random = Random(13);
    for n in 0..count {
        last = side.clone_of(last, &format!("clone {n}"));
        side.write_to(last, random.below(blocks));
    }
    side.settle();
    let mut reads = Vec::new();
    for id in [side.volume, last] {
        side = side.reopened();
        let mut random = Random(14);
        let before = side.pages_read();
        for _ in 0..1000 {
            let mut into = Block::zeroed_vec(1);
            let lba = Lba(random.below(blocks));
            let mut read = [BlockRead { first: lba, into: &mut into, result: Ok(()) }];
            side.engine.read(id, &mut read);
        }
        reads.push((side.pages_read() - before) as f64);
    }
    row(
        &format!("pages read for 1,000 reads of clone {count}"),
        "256 MiB",
        (reads[0], reads[1]),
        CLONE_READS,
    );
}

/// Deleting a snapshot of which 1,000 leaves differ.
fn deletion(quick: bool) {
    let leaves = if quick { 200 } else { 1000 };
    let [_, (name, blocks, step)] = sizes(quick);
    let mut side = Subject::new(4 * GIB, blocks);
    for lba in (0..blocks).step_by(step as usize) {
        side.write(lba);
    }
    side.settle();
    let snapshot = side.snapshot("monday");
    for n in 0..leaves {
        side.write(n * (blocks / step / leaves) * step);
    }
    side.settle();
    side = side.reopened();
    let before = side.pages_read();
    persevere(&side.engine, || side.engine.delete_volume(snapshot));
    side.settle();
    while side.engine.status().leftovers {
        side.settle();
    }
    let each = (side.pages_read() - before) as f64 / leaves as f64;
    println!(
        "| pages read for each of {leaves} leaves of a deleted snapshot | {name} | | {each:.2} | | {DELETE_READS:.0} | {} |",
        verdict(each <= DELETE_READS)
    );
}
