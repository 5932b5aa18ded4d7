//! The engine alone, in process, against the raw file through the same disk interface: random 4 KiB
//! writes in groups, durable after each group. `cargo xtask bench engine` runs it.
//!
//! usage: engine [--quick] [--file PATH] [--gib N] [--blocks N] [--rounds N] [--memory MIB] [--only
//! TEXT] [--counts]
//!
//! Both sides work on a file that was written once. The raw side writes each block of a group at
//! its random place (one io_uring batch) and flushes. Content: 80 % of the blocks compress to 0.8,
//! the others not at all. A duplicate is what a random address holds at that moment. Rounds of both
//! sides take turns, and the figures are medians. A round of ours is longer than the time between
//! two checkpoints, and ends with another one, which is measured with it: it leaves no work for the
//! other side's time.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use onefold_backend::{Access, FileDisk, Preallocate};
use onefold_block::Settings;
use onefold_core::{Block, BlockRef, Class, Disk, Pba, Run};
use support::{Arguments, Contents, GIB, Live, Ours, Random, verdict};

/// Size of the store in units of the range: with four the zone list is half full, and forces a
/// checkpoint, before the records do.
const STORE_RANGES: u64 = 5;

/// Checkpoints that a row must have seen.
const CHECKPOINTS_MIN: u64 = 3;

/// How often each address of the aged store is written again, on average.
const OVERWRITTEN: u64 = 3;

/// Duplicates in hundredths.
struct Job {
    name: &'static str,
    group: usize,
    duplicates: u64,
    /// The least ratio; of the aged store it is an aim.
    bar: f64,
}

const fn job(name: &'static str, group: usize, duplicates: u64, bar: f64) -> Job {
    Job { name, group, duplicates, bar }
}

const JOBS: [Job; 6] = [
    job("groups of 32, unique", 32, 0, 2.0),
    job("groups of 256, unique", 256, 0, 2.0),
    job("groups of 32, half duplicates", 32, 50, 2.5),
    job("groups of 256, half duplicates", 256, 50, 2.5),
    job("groups of 32, all duplicates", 32, 100, 4.0),
    job("groups of 256, all duplicates", 256, 100, 4.0),
];

const AGED: Job = job("groups of 32, unique, aged store", 32, 0, 1.0);

/// The raw file.
struct Raw {
    disk: FileDisk,
    contents: Contents,
    buffer: Vec<Block>,
    written: u64,
}

impl Raw {
    fn create(path: &Path, range: u64) -> Raw {
        let disk = FileDisk::create(path, Some(range), Preallocate::Full, &mut |_, _| {}).unwrap();
        // Numbers that our side does not use.
        Raw { disk, contents: Contents::new(), buffer: Block::zeroed_vec(256), written: 1 << 40 }
    }

    fn group(&mut self, random: &mut Random, blocks: usize) {
        let mut at: Vec<u64> = (0..blocks).map(|_| random.below(self.disk.blocks())).collect();
        for block in &mut self.buffer[..blocks] {
            self.written += 1;
            self.contents.fill(self.written, &mut block.0);
        }
        // The raw disk takes one write for each place.
        at.sort_unstable();
        at.dedup();
        let refs: Vec<BlockRef<'_>> =
            self.buffer.iter().map(|block| BlockRef { block, class: Class::Data }).collect();
        let runs: Vec<Run<'_>> = at
            .iter()
            .zip(refs.chunks(1))
            .map(|(&at, blocks)| Run { at: Pba(at), blocks })
            .collect();
        self.disk.write(&runs).unwrap();
        self.disk.flush().unwrap();
    }
}

/// Our store on a file, and what its volume holds.
struct Side {
    ours: Ours,
    disk: Arc<FileDisk>,
    live: Live,
}

impl Side {
    /// A store of `blocks` blocks whose volume of `range` blocks was written once.
    fn create(
        path: &Path,
        blocks: u64,
        range: u64,
        settings: Settings,
        random: &mut Random,
    ) -> Side {
        drop(FileDisk::create(path, Some(blocks), Preallocate::Full, &mut |_, _| {}).unwrap());
        let disk = Arc::new(FileDisk::open(path, Access::ReadWrite).unwrap());
        let mut ours = Ours::create(disk.clone(), range, settings);
        let mut live = Live::new(range);
        ours.fill(&mut live, random, 0, true);
        Side { ours, disk, live }
    }

    fn group(&mut self, random: &mut Random, blocks: usize, duplicates: u64) {
        for _ in 0..blocks {
            let lba = random.below(self.live.blocks());
            let content = self.live.write(random, lba, 0..self.live.blocks(), duplicates);
            self.ours.write(lba, content);
        }
        self.ours.volume.flush().unwrap();
    }
}

/// How much is measured.
struct Effort {
    rounds: u64,
    blocks: u64,
    raw_blocks: u64,
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Measures a job and prints its row.
fn row(raw: &mut Raw, side: &mut Side, job: &Job, effort: &Effort, random: &mut Random) {
    let (groups, raw_groups) =
        (effort.blocks / job.group as u64, effort.raw_blocks / job.group as u64);
    let (mut raw_rates, mut our_rates) = (Vec::new(), Vec::new());
    side.ours.make_durable();
    let before = (side.ours.store.engine().counts(), side.disk.counters().now());
    for round in 0..effort.rounds {
        for turn in [round % 2, 1 - round % 2] {
            let begun = Instant::now();
            if turn == 0 {
                (0..raw_groups).for_each(|_| raw.group(random, job.group));
                raw_rates
                    .push((raw_groups * job.group as u64) as f64 / begun.elapsed().as_secs_f64());
            } else {
                (0..groups).for_each(|_| side.group(random, job.group, job.duplicates));
                side.ours.make_durable();
                our_rates.push((groups * job.group as u64) as f64 / begun.elapsed().as_secs_f64());
            }
        }
    }
    let counts = side.ours.store.engine().counts();
    let device = side.disk.counters().now().since(&before.1);
    let checkpoints = counts.checkpoints - before.0.checkpoints;
    let mut ratios: Vec<f64> =
        our_rates.iter().zip(&raw_rates).map(|(ours, raw)| ours / raw).collect();
    ratios.sort_by(f64::total_cmp);
    let (raw, ours) = (median(&raw_rates), median(&our_rates));
    let ratio = ours / raw;
    println!(
        "| {} | {raw:.0} | {ours:.0} | {ratio:.2} | {:.2}–{:.2} | {:.1} | {} | {:.3} | {:.3} | {:.2} | {checkpoints} |",
        job.name,
        ratios[0],
        ratios[ratios.len() - 1],
        job.bar,
        if job.name == AGED.name { "an aim" } else { verdict(ratio >= job.bar) },
        device.blocks_written() as f64 / (groups * effort.rounds * job.group as u64) as f64,
        (counts.duplicate_blocks - before.0.duplicate_blocks) as f64
            / (groups * effort.rounds * job.group as u64) as f64,
        (device.flushes + device.durable_writes) as f64 / (groups * effort.rounds) as f64,
    );
    assert!(
        checkpoints >= CHECKPOINTS_MIN,
        "a row without checkpoints says nothing: more --blocks or --rounds are needed"
    );
}

fn main() {
    let arguments = Arguments::new();
    let quick = arguments.has("--quick");
    let usual = |full: u64, small: u64| if quick { small } else { full };
    let base = arguments
        .text("--file")
        .map_or_else(|| std::env::temp_dir().join("onefold-bench"), PathBuf::from);
    let gib = arguments.number("--gib", usual(4, 1));
    let blocks = arguments.number("--blocks", usual(600_000, 60_000));
    let effort = Effort {
        rounds: arguments.number("--rounds", usual(5, 3)),
        blocks,
        raw_blocks: (blocks / 6).max(10_000),
    };
    let wanted = |job: &Job| arguments.text("--only").is_none_or(|text| job.name.contains(text));
    let range = gib * GIB;
    let paths = ["raw", "store"].map(|extension| base.with_extension(extension));
    let remove = || paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
    remove();
    let settings = Settings::for_memory(arguments.number("--memory", 512) << 20);
    let mut random = Random(7);
    let mut raw = Raw::create(&paths[0], range);
    let mut side =
        Side::create(&paths[1], range * STORE_RANGES, range, settings.clone(), &mut random);
    println!(
        "{} rounds, medians; a round of ours: {} blocks and a checkpoint, of the raw file: {}; random over {gib} GiB, store of {} GiB.\n",
        effort.rounds,
        effort.blocks,
        effort.raw_blocks,
        gib * STORE_RANGES
    );
    println!(
        "| job | raw, blocks/s | ours, blocks/s | ratio | from–to | bar | | device blocks for each | duplicates found | flushes a group | checkpoints |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for job in JOBS.iter().filter(|job| wanted(job)) {
        row(&mut raw, &mut side, job, &effort, &mut random);
    }
    if arguments.has("--counts") {
        side.ours
            .store
            .engine()
            .counts()
            .rows()
            .iter()
            .for_each(|(name, count)| println!("{name} {count}"));
    }
    side.ours.close();
    if wanted(&AGED) {
        // Four fifths of it hold data.
        drop(side.disk);
        let _ = std::fs::remove_file(&paths[1]);
        let mut side = Side::create(&paths[1], range * 5 / 4, range, settings, &mut random);
        for _ in 0..range * OVERWRITTEN / 256 {
            side.group(&mut random, 256, 0);
        }
        row(&mut raw, &mut side, &AGED, &effort, &mut random);
        let status = side.ours.store.status();
        println!(
            "\nThe aged store: {:.0} % of it holds data; each address was overwritten {OVERWRITTEN} times at random on average, in groups of 256. \
             1x is the aim there.",
            100.0 * status.live_blocks as f64 / status.usable_blocks as f64
        );
        side.ours.close();
    }
    remove();
}
