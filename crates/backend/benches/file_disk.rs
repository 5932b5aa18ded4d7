//! The cost of durable writes and batches on a file of this machine: percentiles of single
//! requests, one thread.
//!
//! Run: `cargo bench -p onefold-backend [-- FILE]`. The file is created, filled with zeroes once,
//! used, and removed; without a name it lies in the target directory. Blocks hold pseudo-random
//! bytes; places are a fixed permutation of the file.
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::{path::PathBuf, time::Instant};

use onefold_backend::{Access, FileDisk, Io, Options, Preallocate};
use onefold_core::{Block, BlockRef, Class, Disk, Pba, Read, Run};

/// 256 MiB.
const CAPACITY: u64 = 65_536;

/// Requests measured for each line.
const ROUNDS: u64 = 400;

/// The `i`-th of the places; they come again after all of the file.
fn place(i: u64) -> Pba {
    Pba(i.wrapping_mul(40_503) % CAPACITY)
}

/// Runs `request` and prints its percentiles in microseconds.
fn measure(name: &str, mut request: impl FnMut(u64)) {
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|i| {
            let start = Instant::now();
            request(i);
            start.elapsed().as_micros()
        })
        .collect();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{name:<52} p50 {:>7} µs   p90 {:>7} µs   p99 {:>7} µs", at(50), at(90), at(99));
}

fn durable(disk: &FileDisk, list: &[BlockRef<'_>]) {
    for n in [1, 8, 32, 256] {
        measure(&format!("durable run of {n} blocks"), |i| {
            disk.write_durable(&Run {
                at: Pba(i * n % (CAPACITY - n)),
                blocks: &list[..n as usize],
            })
            .unwrap();
        });
    }
    measure("flush of nothing", |_| disk.flush().unwrap());
}

fn batches(disk: &FileDisk, way: &str, list: &[BlockRef<'_>]) {
    for n in [1, 8, 32, 256] {
        measure(&format!("{n} scattered blocks written and flushed, {way}"), |i| {
            let runs: Vec<_> = (0..n)
                .map(|k| Run { at: place(i * n + k), blocks: &list[k as usize..=k as usize] })
                .collect();
            disk.write(&runs).unwrap();
            disk.flush().unwrap();
        });
    }
    let mut into = Block::zeroed_vec(256);
    for n in [1, 8, 32, 256] {
        measure(&format!("{n} scattered blocks read, {way}"), |i| {
            let mut reads: Vec<_> = into[..n as usize]
                .chunks_mut(1)
                .zip(0..)
                .map(|(into, k)| Read::new(place(i * n + k), into))
                .collect();
            disk.read(&mut reads);
            assert!(reads.iter().all(|read| read.result.is_ok()));
        });
    }
}

fn main() {
    let named =
        std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    let path =
        named.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("onefold-bench"));
    let mut pool = Block::zeroed_vec(256);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in onefold_core::block::bytes_mut(&mut pool).chunks_exact_mut(8) {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&state.to_le_bytes());
    }
    let list: Vec<_> = pool.iter().map(|block| BlockRef { block, class: Class::Data }).collect();

    let disk = FileDisk::create(&path, Some(CAPACITY), Preallocate::Full, &mut |_, _| {}).unwrap();
    println!(
        "{} blocks at {}, direct {}, io_uring {}",
        disk.blocks(),
        path.display(),
        disk.direct(),
        disk.uring()
    );
    durable(&disk, &list);
    batches(&disk, "default", &list);
    drop(disk);
    let disk = Options { io: Io::Syscalls, direct: true }.open(&path, Access::ReadWrite).unwrap();
    batches(&disk, "system calls", &list);
    drop(disk);
    std::fs::remove_file(&path).unwrap();
}
