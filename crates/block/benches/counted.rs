//! Figures that are counted and not timed: device bytes, flushes, memory; and how long a store
//! takes to open after a kill. In process. `cargo xtask bench counted` runs it.
//!
//! usage: counted writes|memory|open [--quick] [--file PATH] [--gib N] [--memory MIB] (not for
//! `writes`)
//!
//! - `writes`: device blocks for each block written at dedup ratio 2, beside the ideal: the blocks
//!   whose content is not live at that moment. The disk keeps metadata and drops data.
//! - `memory`: resident memory after unique blocks in random order over such a disk, and whether
//!   duplicates are then found.
//! - `open`: a store on a sparse file, dropped without being closed while it is written at random,
//!   with as many uncommitted records as there may be.
//!
//! Each part is a process of its own, so that `memory` measures nothing but itself.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_backend::{Access, FileDisk, MetadataDisk, MonotonicClock, Preallocate, process};
use onefold_block::{Engine, Format, Settings};
use onefold_core::{Block, BlockRead, Class, Disk, Exports, Kind, Lba, VolumeId};
use support::{Arguments, Contents, GIB, Live, Ours, Random, verdict};

/// The command's own `--memory`.
const MEMORY: u64 = 512 << 20;

/// Windows that device bytes are counted for.
const WINDOWS: [u64; 3] = [8, 32, 256];

/// Checkpoints that are counted; one before them is not.
const CHECKPOINTS: u64 = 3;

/// How much smaller `--quick` is.
const QUICK: u64 = 16;

/// Flushes beside those of windows, for each of these: far fewer than checkpoints would make that
/// flush by themselves. With `--quick` there are as many for fewer windows.
const FLUSHES_BESIDE: f64 = 0.001;

fn main() {
    let arguments = Arguments::new();
    let quick = arguments.has("--quick");
    match arguments.first() {
        Some("writes") => writes(quick),
        Some("memory") => memory(quick, &arguments),
        Some("open") => open(quick, &arguments),
        _ => println!("usage: counted writes|memory|open [--quick] [--file PATH]"),
    }
}

/// The counts between two moments of a run.
struct Counted {
    blocks: u64,
    ideal: u64,
    device: onefold_backend::Counts,
    windows: u64,
    checkpoints: u64,
}

/// A store over a disk that drops data.
struct Writes {
    disk: Arc<MetadataDisk>,
    ours: Ours,
    live: Live,
    random: Random,
    blocks: u64,
}

impl Writes {
    /// As large as its volume, which is written once at ratio 2: half full. The new blocks of that
    /// do not compress: the disk keeps carriers with the data in them, which would take memory.
    fn over(range: u64, settings: Settings) -> Writes {
        let disk = Arc::new(MetadataDisk::new(range).unwrap());
        let mut ours = Ours::create(disk.clone(), range, settings);
        let (mut live, mut random) = (Live::new(range), Random(5));
        ours.fill(&mut live, &mut random, 50, false);
        Writes { disk, ours, live, random, blocks: 0 }
    }

    fn window(&mut self, blocks: u64) {
        let range = self.live.blocks();
        for _ in 0..blocks {
            let lba = self.random.below(range);
            let content = self.live.write(&mut self.random, lba, 0..range, 50);
            self.ours.write(lba, content);
        }
        self.ours.volume.flush().unwrap();
        self.blocks += blocks;
    }

    fn checkpoints(&self) -> u64 {
        self.ours.store.engine().counts().checkpoints
    }

    fn moment(&self) -> (u64, u64, onefold_backend::Counts, onefold_block::Counts) {
        (
            self.blocks,
            self.live.newest(),
            self.disk.counters().now(),
            self.ours.store.engine().counts(),
        )
    }

    /// Windows of `blocks` blocks until `done` says so.
    fn count(&mut self, blocks: u64, done: impl Fn(&Writes) -> bool) -> Counted {
        let before = self.moment();
        while !done(self) {
            self.window(blocks);
        }
        let after = self.moment();
        Counted {
            blocks: after.0 - before.0,
            ideal: after.1 - before.1,
            device: after.2.since(&before.2),
            windows: after.3.windows - before.3.windows,
            checkpoints: after.3.checkpoints - before.3.checkpoints,
        }
    }
}

impl Counted {
    /// Prints a row.
    fn row(&self, what: &str, bar: Option<f64>, flushes_bar: f64) {
        let per_block = |blocks: u64| blocks as f64 / self.blocks as f64;
        let over = self.device.blocks_written() as f64 / self.ideal as f64 - 1.0;
        let flushes =
            (self.device.flushes + self.device.durable_writes) as f64 / self.windows as f64;
        println!(
            "| {what} | {:.4} | {:.4} | +{:.1} % | {} | {:.4} / {:.4} / {:.4} | {flushes:.3} | {} | {} |",
            per_block(self.device.blocks_written()),
            per_block(self.ideal),
            over * 100.0,
            bar.map_or_else(|| "report".to_owned(), |bar| format!("+{:.0} %", bar * 100.0)),
            per_block(self.device.written(Class::Data)),
            per_block(self.device.written(Class::Carrier)),
            per_block(self.device.written(Class::Table) + self.device.written(Class::Super)),
            self.checkpoints,
            bar.map_or("", |bar| verdict(over <= bar && flushes <= flushes_bar)),
        );
    }
}

/// Device bytes and flushes.
fn writes(quick: bool) {
    // The share of memory for records decides how often there are checkpoints.
    let settings = Settings::for_memory(if quick { MEMORY / QUICK } else { MEMORY });
    let flushes_bar = 1.0 + FLUSHES_BESIDE * if quick { QUICK as f64 } else { 1.0 };
    let ranges: [(u64, Option<f64>); 2] =
        if quick { [(1, Some(0.08)), (7, None)] } else { [(16, Some(0.08)), (120, None)] };
    // Fewer than a checkpoint waits for.
    let without = settings.records_max / 5 * 2;
    println!(
        "Half of the blocks are duplicates of what a random address holds then; 80 % of the others compress to 0.8. Checkpoints begin at {} records.\n",
        settings.records_max / 4 * 3
    );
    println!(
        "| windows | device bytes for each byte | ideal | over it | bar | data / carriers / tables | flushes a window (bar {flushes_bar}) | checkpoints | |",
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (n, (gib, bar)) in ranges.into_iter().enumerate() {
        let begun = Instant::now();
        let mut side = Writes::over(gib * GIB, settings.clone());
        eprintln!("filled {gib} GiB in {:.0} s", begun.elapsed().as_secs_f64());
        for blocks in WINDOWS.into_iter().filter(|_| n == 0) {
            side.ours.make_durable();
            let end = side.blocks + without;
            let counted = side.count(blocks, |side| side.blocks >= end);
            assert_eq!(counted.checkpoints, 0, "a checkpoint where none was due");
            counted.row(&format!("of {blocks}, without checkpoints"), Some(0.03), flushes_bar);
        }
        for blocks in WINDOWS {
            side.ours.make_durable();
            let first = side.checkpoints() + 1;
            side.count(blocks, |side| side.checkpoints() >= first);
            let counted = side.count(blocks, |side| side.checkpoints() >= first + CHECKPOINTS);
            counted.row(&format!("of {blocks}, random over {gib} GiB"), bar, flushes_bar);
        }
        eprintln!(
            "{gib} GiB took {:.0} s; the disk keeps {} MiB",
            begun.elapsed().as_secs_f64(),
            side.disk.kept_bytes().unwrap() >> 20
        );
        side.ours.close();
    }
}

/// A number below 2^`bits` in another order: each comes once.
fn shuffled(n: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    let half = bits / 2 + 1;
    let mut n = n;
    for odd in [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        n = n.wrapping_mul(odd) & mask;
        n ^= n >> half;
    }
    n
}

/// Resident memory after unique blocks in random order; duplicates found then.
fn memory(quick: bool, arguments: &Arguments) {
    let usual = |full: u64, small: u64| if quick { small } else { full };
    let memory = arguments.number("--memory", usual(MEMORY, MEMORY / QUICK) >> 20) << 20;
    // A power of two.
    let bits = (arguments.number("--gib", usual(64, 2)) * GIB).ilog2();
    let (blocks, duplicates) = (1u64 << bits, 1u64 << (bits - 4));
    let disk = Arc::new(MetadataDisk::new(blocks * 2).unwrap());
    let mut ours = Ours::create(disk.clone(), blocks, Settings::for_memory(memory));
    let begun = Instant::now();
    for n in 0..blocks {
        ours.write(shuffled(n, bits), n + 1);
    }
    ours.volume.flush().unwrap();
    let now = process::memory().unwrap();
    let status = ours.store.status();
    let bar = memory + (64 << 20);
    println!(
        "{} GiB of unique blocks in random order, --memory {}M, {:.0} s; the disk keeps {} MiB beside it.\n",
        blocks / GIB,
        memory >> 20,
        begun.elapsed().as_secs_f64(),
        disk.kept_bytes().unwrap() >> 20
    );
    println!("| memory | MiB | bar | |");
    println!("|---|---|---|---|");
    println!(
        "| resident at the end | {} | {} | {} |",
        now.resident_bytes >> 20,
        bar >> 20,
        verdict(now.resident_bytes <= bar)
    );
    println!(
        "| most that was resident | {} | {} | {} |",
        now.peak_bytes >> 20,
        bar >> 20,
        verdict(now.peak_bytes <= bar)
    );
    println!("| counted by the engine | {} | | |", status.memory_bytes >> 20);
    println!(
        "\nIndex: {} entries in memory, {} on disk, {} without room; uncommitted: {} records in {} zones.",
        status.index_entries,
        status.index_on_disk,
        status.index_refused,
        status.uncommitted_records,
        status.uncommitted_zones
    );

    // Once more at addresses of their own, from all of the range.
    ours.store.create_volume("duplicates", duplicates * 4096).unwrap();
    let before = ours.store.engine().counts().duplicate_blocks;
    ours.volume = onefold_block::StoreExports(ours.store.clone()).open("duplicates").unwrap();
    for n in 0..duplicates {
        ours.write(n, shuffled(n * (blocks / duplicates), bits) + 1);
    }
    ours.volume.flush().unwrap();
    let found = ours.store.engine().counts().duplicate_blocks - before;
    println!(
        "Duplicates: {found} of {duplicates} found; bar: all; {}.",
        verdict(found == duplicates)
    );
    let after = process::memory().unwrap();
    println!(
        "Resident after them: {} MiB, {} MiB at most; {}.",
        after.resident_bytes >> 20,
        after.peak_bytes >> 20,
        verdict(after.peak_bytes <= bar)
    );
    ours.close();
}

/// Longest that opening may take.
const OPEN_BAR: Duration = Duration::from_secs(1);

/// Most windows that are closed and not yet durable.
const WINDOWS_IN_FLIGHT: u64 = 256;

/// An engine on a sparse file, driven by one thread, so that it is dropped exactly when nothing
/// more may wait.
struct Killed {
    path: PathBuf,
    settings: Settings,
    contents: Contents,
    live: Live,
    random: Random,
    volume: VolumeId,
}

/// The cost of an opening.
struct Opening {
    time: Duration,
    cpu: Duration,
    blocks_read: u64,
}

impl Killed {
    fn engine(&self) -> (Engine, Opening) {
        let disk = Arc::new(FileDisk::open(&self.path, Access::ReadWrite).unwrap());
        let (begun, cpu) = (Instant::now(), process::cpu_time());
        let engine =
            Engine::open(disk.clone(), Arc::new(MonotonicClock::new()), self.settings.clone())
                .unwrap();
        let opening = Opening {
            time: begun.elapsed(),
            cpu: process::cpu_time() - cpu,
            blocks_read: disk.counters().now().blocks_read,
        };
        (engine, opening)
    }

    /// Writes windows of `blocks` random blocks until no more records may wait for a checkpoint. As
    /// much as may be unflushed is written, but not flushed; what was written before is flushed
    /// many windows at a time, which leaves the same on the disk.
    fn write_to_the_limit(&mut self, engine: &Engine, blocks: u64) {
        let tail = (self.settings.unflushed_blocks as u64).min((WINDOWS_IN_FLIGHT - 1) * blocks);
        let flushed_after = (WINDOWS_IN_FLIGHT / 2 * blocks).min(256);
        let mut block = vec![0; 4096];
        let mut unflushed = 0;
        let mut full = false;
        while !full {
            for _ in 0..blocks {
                let lba = self.random.below(self.live.blocks());
                let before = self.live.at(lba);
                let content = self.live.write(&mut self.random, lba, 0..1, 0);
                self.contents.fill(content, &mut block);
                match engine.write(self.volume, lba * 4096, &block) {
                    Ok(_) => unflushed += 1,
                    Err(e) if e.kind() == Kind::Busy => {
                        self.live.set(lba, before);
                        full = true;
                        break;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
            engine.close_window();
            while engine.prepare_window().unwrap() {}
            while engine.write_window().unwrap() {}
            if unflushed >= flushed_after
                && engine.status().uncommitted_records + tail <= self.settings.records_max
            {
                engine.make_durable().unwrap();
                unflushed = 0;
            }
        }
    }

    /// Reads some addresses and compares them.
    fn verify(&mut self, engine: &Engine) {
        let (mut found, mut expected) = (Block::zeroed_vec(1), Block::zeroed());
        for _ in 0..1000 {
            let lba = self.random.below(self.live.blocks());
            self.contents.fill(self.live.at(lba), &mut expected.0);
            let mut reads = [BlockRead { first: Lba(lba), into: &mut found, result: Ok(()) }];
            engine.read(self.volume, &mut reads);
            let [read] = reads;
            read.result.unwrap();
            assert!(found[0].0 == expected.0, "address {lba} has another content than was written");
        }
    }

    /// Writes a block and makes it durable; where no more records may wait, it waits for a
    /// checkpoint.
    fn write_one(&mut self, engine: &Engine) {
        let content = self.live.write(&mut self.random, 0, 0..1, 0);
        let mut block = vec![0; 4096];
        self.contents.fill(content, &mut block);
        while let Err(e) = engine.write(self.volume, 0, &block) {
            assert_eq!(e.kind(), Kind::Busy);
            engine.checkpoint().unwrap();
        }
        engine.flush().unwrap();
    }
}

/// Opening after a kill.
fn open(quick: bool, arguments: &Arguments) {
    let usual = |full: u64, small: u64| if quick { small } else { full };
    let store_gib = usual(1024, 64);
    let gib = arguments.number("--gib", usual(16, 1));
    let memory = arguments.number("--memory", usual(MEMORY, MEMORY / QUICK) >> 20) << 20;
    let path = arguments
        .text("--file")
        .map_or_else(|| std::env::temp_dir().join("onefold-counted"), PathBuf::from);
    let _ = std::fs::remove_file(&path);
    let disk =
        FileDisk::create(&path, Some(store_gib * GIB), Preallocate::None, &mut |_, _| {}).unwrap();
    Engine::format(&disk, &Format { grow: true, ..Format::new([1; 16], [2; 32], disk.blocks()) })
        .unwrap();
    drop(disk);
    let mut side = Killed {
        path: path.clone(),
        settings: Settings::for_memory(memory),
        contents: Contents::new(),
        live: Live::new(gib * GIB),
        random: Random(11),
        volume: VolumeId(0),
    };
    let (mut engine, _) = side.engine();
    (side.volume, _) = engine.create_volume("bench", gib * GIB).unwrap();
    let begun = Instant::now();
    let mut buffer = vec![0; 256 * 4096];
    for at in (0..side.live.blocks()).step_by(256) {
        for (lba, block) in (at..).zip(buffer.chunks_mut(4096)) {
            let content = side.live.write(&mut side.random, lba, 0..1, 0);
            side.contents.fill(content, block);
        }
        engine.write(side.volume, at * 4096, &buffer).unwrap();
        engine.flush().unwrap();
        if engine.checkpoint_due() {
            engine.checkpoint().unwrap();
        }
    }
    eprintln!("filled {gib} GiB in {:.0} s", begun.elapsed().as_secs_f64());
    println!(
        "A sparse store of {store_gib} GiB with {gib} GiB of unique blocks, --memory {}M, dropped while it was written at random.\n",
        memory >> 20
    );
    println!(
        "| windows | uncommitted records | zones | opened in | bar | | CPU | read | opened again in | first write after it |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for blocks in [256, 32, 1] {
        engine.checkpoint().unwrap();
        side.write_to_the_limit(&engine, blocks);
        let status = engine.status();
        drop(engine);
        let (opened, first) = side.engine();
        drop(opened);
        let again;
        (engine, again) = side.engine();
        side.verify(&engine);
        let begun = Instant::now();
        side.write_one(&engine);
        let written = begun.elapsed();
        println!(
            "| of {blocks} | {} of {} | {} of {} | {:.3} s | {:.0} s | {} | {:.3} s | {} MiB | {:.3} s | {:.3} s |",
            status.uncommitted_records,
            status.records_max,
            status.uncommitted_zones,
            status.zones_max,
            first.time.as_secs_f64(),
            OPEN_BAR.as_secs_f64(),
            verdict(first.time <= OPEN_BAR),
            first.cpu.as_secs_f64(),
            first.blocks_read >> 8,
            again.time.as_secs_f64(),
            written.as_secs_f64(),
        );
    }
    drop(engine);
    let _ = std::fs::remove_file(&path);
}
