//! Random requests of 4 KiB to a volume that is served, so many at one time, over NBD or
//! vhost-user-blk: `load vhost|nbd SOCKET VOLUME read|write DEPTH SECONDS`. Prints the requests, the
//! seconds that they took, and the seconds of the processor that this client took.
//!
//! Both clients do as little as they can: they wait until something is answered, take all answers
//! that are there, and send as many new requests at once. `cargo xtask bench vhost` compares them.

#![allow(clippy::unwrap_used, reason = "a measurement that can't go on fails")]

#[path = "../tests/vhost_driver/mod.rs"]
mod vhost_driver;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use vhost_driver::{Driver, Guest, IN, OK, OUT, Wants};

const BYTES: usize = 4096;

/// What is asked for.
struct Job {
    writes: bool,
    depth: usize,
    time: Duration,
    /// Blocks of the volume.
    blocks: u64,
    state: u64,
    data: Vec<u8>,
}

impl Job {
    /// Where the next request goes.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        // No two blocks are the same.
        self.data[..8].copy_from_slice(&self.state.to_le_bytes());
        self.state % self.blocks
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [protocol, socket, volume, kind, depth, seconds] = &arguments[..] else {
        eprintln!("load vhost|nbd SOCKET VOLUME read|write DEPTH SECONDS");
        std::process::exit(2);
    };
    let mut job = Job {
        writes: kind == "write",
        depth: depth.parse().unwrap(),
        time: Duration::from_secs(seconds.parse().unwrap()),
        blocks: 1,
        state: 0x9e37_79b9_7f4a_7c15,
        data: vec![0x5a; BYTES],
    };
    let (requests, took) = match protocol.as_str() {
        "vhost" => vhost(Path::new(socket), &mut job),
        _ => nbd(Path::new(socket), volume, &mut job),
    };
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    println!("{requests} {} {cpu}", took.as_secs_f64());
}

fn vhost(socket: &Path, job: &mut Job) -> (u64, Duration) {
    let guest = Guest::new(SealFlags::SHRINK);
    let mut driver = Driver::start(socket, &guest, Wants::default()).unwrap();
    job.blocks = driver.size() / BYTES as u64;
    let queue = &mut driver.queues[0];
    let (mut under_way, mut requests, began) = (0, 0, Instant::now());
    loop {
        if began.elapsed() < job.time {
            let fresh = job.depth - under_way;
            for _ in 0..fresh {
                let sector = job.next() * 8;
                match job.writes {
                    true => queue.add(&guest, OUT, sector, &job.data, 0),
                    false => queue.add(&guest, IN, sector, &[], BYTES as u32),
                };
            }
            under_way = job.depth;
            if fresh > 0 {
                queue.show(&guest);
            }
        } else if under_way == 0 {
            return (requests, began.elapsed());
        }
        let (_, status, _) = queue.wait(&guest);
        assert_eq!(status, OK);
        (under_way, requests) = (under_way - 1, requests + 1);
        while queue.answered(&guest).is_some() {
            (under_way, requests) = (under_way - 1, requests + 1);
        }
    }
}

fn nbd(socket: &Path, volume: &str, job: &mut Job) -> (u64, Duration) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    // Without zeroes at the end of the answer.
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend_from_slice(b"IHAVEOPT");
    hello.extend_from_slice(&1u32.to_be_bytes());
    hello.extend_from_slice(&(volume.len() as u32).to_be_bytes());
    hello.extend_from_slice(volume.as_bytes());
    stream.write_all(&hello).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    job.blocks = u64::from_be_bytes(*answer.first_chunk().unwrap()) / BYTES as u64;
    let reply = 16 + if job.writes { 0 } else { BYTES };
    let mut received = vec![0; 2 * job.depth * reply];
    let (mut filled, mut under_way, mut requests) = (0, 0, 0);
    let began = Instant::now();
    loop {
        if began.elapsed() < job.time {
            let mut sent = Vec::with_capacity((job.depth - under_way) * (28 + BYTES));
            for _ in under_way..job.depth {
                let offset = job.next() * BYTES as u64;
                sent.extend_from_slice(&0x2560_9513u32.to_be_bytes());
                sent.extend_from_slice(&[0, 0, 0, u8::from(job.writes)]);
                sent.extend_from_slice(&[0; 8]);
                sent.extend_from_slice(&offset.to_be_bytes());
                sent.extend_from_slice(&(BYTES as u32).to_be_bytes());
                if job.writes {
                    sent.extend_from_slice(&job.data);
                }
            }
            under_way = job.depth;
            stream.write_all(&sent).unwrap();
        } else if under_way == 0 {
            return (requests, began.elapsed());
        }
        filled += stream.read(&mut received[filled..]).unwrap();
        let replies = filled / reply;
        assert!((0..replies).all(|n| received[n * reply + 4..n * reply + 8] == [0; 4]));
        (under_way, requests) = (under_way - replies, requests + replies as u64);
        received.copy_within(replies * reply..filled, 0);
        filled -= replies * reply;
    }
}
