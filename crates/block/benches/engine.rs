//! The engine alone, in process, against the raw file through the same disk interface: random 4 KiB writes in groups, durable after each
//! group. `cargo xtask bench engine` runs it.
//!
//! usage: engine [--file PATH] [--gib N] [--groups N] [--rounds N]
//!
//! Both sides work on a file that was written once. The raw side writes each block of a group at its random place (one io_uring batch) and
//! flushes. Content: 80 % of the blocks compress to 0.8, the others not at all. The figures are medians of the rounds, which alternate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{path::PathBuf, sync::Arc, thread, time::Instant};

use onefold_backend::{Access, FileDisk, MonotonicClock, Preallocate};
use onefold_block::{Engine, Format, Settings, Store};
use onefold_core::{Block, BlockRef, Class, Disk, Pba, Run, VolumeId};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A block of content number `n`: four in five compress to 0.8.
    fn fill(n: u64, block: &mut [u8]) {
        let mut random = Random(n);
        let end = if n.is_multiple_of(5) { 4096 } else { 3277 };
        for part in block[..end].chunks_mut(8) {
            let bytes = random.next().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
        block[end..].fill(0);
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Share of duplicates in hundredths.
struct Job {
    name: &'static str,
    group: usize,
    duplicates: u64,
}

const JOBS: [Job; 6] = [
    Job { name: "groups of 32, unique", group: 32, duplicates: 0 },
    Job { name: "groups of 256, unique", group: 256, duplicates: 0 },
    Job { name: "groups of 32, half duplicates", group: 32, duplicates: 50 },
    Job { name: "groups of 256, half duplicates", group: 256, duplicates: 50 },
    Job { name: "groups of 32, all duplicates", group: 32, duplicates: 100 },
    Job { name: "groups of 256, all duplicates", group: 256, duplicates: 100 },
];

struct Ours {
    store: Arc<Store>,
    volume: VolumeId,
    unique: u64,
}

impl Ours {
    fn group(&mut self, random: &mut Random, job: &Job, lbas: u64, buffer: &mut [u8]) {
        for _ in 0..job.group {
            let n = if random.next() % 100 < job.duplicates && self.unique > 0 {
                random.next() % self.unique
            } else {
                self.unique += 1;
                self.unique
            };
            Random::fill(n, buffer);
            let lba = random.next() % lbas;
            loop {
                match self.store.engine().write(self.volume, lba * 4096, buffer) {
                    Ok(_) => break,
                    Err(e) if e.kind() == onefold_core::Kind::Busy => thread::yield_now(),
                    Err(e) => panic!("{e}"),
                }
            }
        }
        self.store.flush().unwrap();
    }
}

fn raw_group(disk: &FileDisk, random: &mut Random, job: &Job, blocks: u64, buffer: &mut [Block], n: &mut u64) {
    let mut at: Vec<u64> = Vec::with_capacity(job.group);
    for block in buffer.iter_mut().take(job.group) {
        *n += 1;
        Random::fill(*n, &mut block.0);
        at.push(random.next() % blocks);
    }
    // The raw disk takes one write for each place.
    at.sort_unstable();
    at.dedup();
    let refs: Vec<BlockRef<'_>> = buffer.iter().map(|block| BlockRef { block, class: Class::Data }).collect();
    let runs: Vec<Run<'_>> = at.iter().zip(refs.chunks(1)).map(|(&at, blocks)| Run { at: Pba(at), blocks }).collect();
    disk.write(&runs).unwrap();
    disk.flush().unwrap();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| arguments.iter().position(|a| a == name).and_then(|n| arguments.get(n + 1)).cloned();
    let number = |name: &str, otherwise: u64| option(name).map_or(otherwise, |value| value.parse().expect("a number"));
    let base = option("--file").map_or_else(|| std::env::temp_dir().join("onefold-bench"), PathBuf::from);
    let (gib, blocks_each, rounds) = (number("--gib", 4), number("--blocks", 200_000), number("--rounds", 5));
    let range = gib << 18;
    let (raw_path, our_path) = (base.with_extension("raw"), base.with_extension("store"));
    for path in [&raw_path, &our_path] {
        let _ = std::fs::remove_file(path);
    }
    let raw = FileDisk::create(&raw_path, Some(range), Preallocate::Full, &mut |_, _| {}).unwrap();
    drop(FileDisk::create(&our_path, Some(range * 2), Preallocate::Full, &mut |_, _| {}).unwrap());
    let ours = Arc::new(FileDisk::open(&our_path, Access::ReadWrite).unwrap());
    Engine::format(&*ours, &Format::new([1; 16], [2; 32], range * 2)).unwrap();
    let settings = Settings { records_max: number("--records", 1 << 20), ..Settings::for_memory(number("--memory", 512) << 20) };
    let store = Store::open(ours.clone(), Arc::new(MonotonicClock::new()), settings).unwrap();
    let workers: Vec<_> = {
        let (writer, background) = (store.clone(), store.clone());
        vec![thread::spawn(move || writer.run_writer()), thread::spawn(move || background.run_background())]
    };
    let volume = store.create_volume("bench", gib << 30).unwrap();
    let mut side = Ours { store: store.clone(), volume, unique: 0 };
    let mut random = Random(7);
    let mut buffer = vec![0u8; 4096];
    let mut raw_buffer = Block::zeroed_vec(256);
    let mut raw_content = 1 << 40;

    // The range is written once before, as the raw file was.
    let begun = Instant::now();
    let mut large = vec![0u8; 128 << 10];
    for at in (0..range).step_by(32) {
        for block in large.chunks_mut(4096) {
            side.unique += 1;
            Random::fill(side.unique, block);
        }
        while store.engine().write(volume, at * 4096, &large).is_err() {
            thread::yield_now();
        }
    }
    store.flush().unwrap();
    println!("filled {gib} GiB in {:.1} s; {} blocks a side and round, {rounds} rounds", begun.elapsed().as_secs_f64(), blocks_each);
    println!("| job | raw, blocks/s | ours, blocks/s | ratio | device blocks for each block | flushes a group | checkpoints |");
    println!("|---|---|---|---|---|---|---|");
    for job in &JOBS {
        let groups = blocks_each / job.group as u64;
        let (mut raw_rates, mut our_rates) = (Vec::new(), Vec::new());
        let before = (store.engine().counts(), ours.counters().now());
        for _ in 0..rounds {
            let begun = Instant::now();
            for _ in 0..groups {
                raw_group(&raw, &mut random, job, range, &mut raw_buffer, &mut raw_content);
            }
            raw_rates.push((groups * job.group as u64) as f64 / begun.elapsed().as_secs_f64());
            let begun = Instant::now();
            for _ in 0..groups {
                side.group(&mut random, job, range, &mut buffer);
            }
            our_rates.push((groups * job.group as u64) as f64 / begun.elapsed().as_secs_f64());
        }
        let after = (store.engine().counts(), ours.counters().now());
        let device = after.1.since(&before.1);
        let (raw, ours) = (median(raw_rates), median(our_rates));
        println!(
            "| {} | {raw:.0} | {ours:.0} | {:.2} | {:.3} | {:.2} | {} |",
            job.name,
            ours / raw,
            device.blocks_written() as f64 / (groups * rounds * job.group as u64) as f64,
            (device.flushes + device.durable_writes) as f64 / (groups * rounds) as f64,
            after.0.checkpoints - before.0.checkpoints,
        );
    }
    if arguments.iter().any(|a| a == "--counts") {
        for (name, count) in store.engine().counts().rows() {
            println!("{name} {count}");
        }
    }
    store.stop();
    for worker in workers {
        worker.join().unwrap();
    }
    store.close().unwrap();
    let _ = (std::fs::remove_file(&raw_path), std::fs::remove_file(&our_path));
}
