//! The hot parts of the engine: looking up fingerprints, building carriers, scanning for them after
//! a crash. `cargo xtask bench hot` runs it.
//!
//! usage: hot (medians of eleven rounds)

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../core/benches/measure/mod.rs"]
mod measure;
mod support;

use std::{hint::black_box, sync::Arc};

use measure::measure;
use onefold_backend::{MemoryDisk, MonotonicClock};
use onefold_block::{
    Engine, Format, Settings,
    bench_parts::{Carriers, Lookups},
};
use onefold_core::{Block, Disk, Fingerprint, Pba};
use support::{Contents, GIB, Random};

/// Blocks of a window.
const WINDOW: usize = 256;

fn lookups() {
    let mut random = Random(3);
    let mut fingerprint = || {
        let mut bytes = [0; 16];
        bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.next().to_le_bytes()));
        Fingerprint(bytes)
    };
    // More than the caches of a processor hold.
    let stored: Vec<Fingerprint> = (0..4 * GIB).map(|_| fingerprint()).collect();
    let unknown: Vec<Fingerprint> = (0..GIB).map(|_| fingerprint()).collect();
    let mut index = Lookups::new(64 << 20);
    stored.iter().zip(1..).for_each(|(fingerprint, pba)| index.insert(fingerprint, Pba(pba)));
    let mut found = Vec::new();
    for (name, wanted) in [("stored ones", &stored[..GIB as usize]), ("unknown ones", &unknown)] {
        measure(
            &format!("index lookup among {} blocks, {name}", stored.len()),
            "block",
            wanted.len(),
            || {
                for window in wanted.chunks(WINDOW) {
                    black_box(index.find(window, &mut found));
                }
            },
        );
    }
}

fn carriers() {
    let contents = Contents::new();
    let mut blocks = Block::zeroed_vec(WINDOW);
    blocks.iter_mut().zip(1..).for_each(|(block, n)| contents.fill(n, &mut block.0));
    let refs: Vec<&Block> = blocks.iter().collect();
    let mut carriers = Carriers::default();
    for (new, duplicates) in
        [(1, 0), (8, 0), (32, 0), (16, 16), (0, 32), (256, 0), (128, 128), (0, 256)]
    {
        let made = carriers.build(&refs[..new], duplicates);
        let windows = 2000 / (new + duplicates) + 1;
        let name = format!("carriers for {new} new blocks and {duplicates} duplicates: {made}");
        measure(&name, "record", windows * (new + duplicates), || {
            for _ in 0..windows {
                black_box(carriers.build(&refs[..new], duplicates));
            }
        });
    }
}

/// A store that ended without being closed, after `records` changes in windows of `blocks`.
fn unclean(records: u64, blocks: u64) -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new(4 * GIB));
    Engine::format(&*disk, &Format::new([1; 16], [2; 32], disk.blocks())).unwrap();
    let engine = Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings()).unwrap();
    let (volume, _) = engine.create_volume("bench", GIB).unwrap();
    let (contents, mut random, mut block) = (Contents::new(), Random(9), vec![0; 4096]);
    for n in 1..=records {
        contents.fill(n, &mut block);
        engine.write(volume, random.below(GIB) * 4096, &block).unwrap();
        if n.is_multiple_of(blocks) {
            engine.flush().unwrap();
        }
    }
    engine.flush().unwrap();
    disk
}

fn settings() -> Settings {
    Settings::for_memory(512 << 20)
}

fn scans() {
    const RECORDS: u64 = 32_768;
    for blocks in [1, 32, 256] {
        let disk = unclean(RECORDS, blocks);
        let name = format!("recovery of {RECORDS} records of windows of {blocks}");
        measure(&name, "record", RECORDS as usize, || {
            black_box(
                Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), settings()).unwrap(),
            );
        });
    }
}

fn main() {
    lookups();
    carriers();
    scans();
}
