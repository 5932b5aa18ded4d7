//! What is read before the client asks: for whom, how much, and that nobody gets what has changed.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use onefold_core::{Volume, VolumeLimits};
use onefold_serve::nbd::{Limits, Server};
use raw_client::*;
use volumes::{MemoryExports, MemoryVolume};

const SIZE: u64 = 8 << 20;
const K: u64 = 1 << 10;

struct Served {
    volume: Arc<MemoryVolume>,
    socket: PathBuf,
    _server: Server,
    _dir: tempfile::TempDir,
}

fn pattern(offset: u64, length: u64) -> Vec<u8> {
    (offset..offset + length).map(|at| (at / 4096 % 251) as u8 + 1).collect()
}

fn serve(limits: Limits, of_volume: VolumeLimits) -> Served {
    let volume = MemoryVolume::new(SIZE);
    volume.write(0, &pattern(0, SIZE)).unwrap();
    volume.says_what_changes();
    let exports = MemoryExports::limited([("disk".to_owned(), volume.clone())], "disk", of_volume);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let mut server = Server::new(exports, limits);
    server.add_unix(&socket).unwrap();
    server.start().unwrap();
    Served { volume, socket, _server: server, _dir: dir }
}

fn served() -> Served {
    serve(Limits::default(), VolumeLimits::default())
}

/// Waits until a count has reached a value.
fn reached(count: &AtomicU64, value: u64) {
    for _ in 0..5000 {
        if count.load(SeqCst) >= value {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{} of {value}", count.load(SeqCst));
}

/// Reads so many ranges of 32 KiB, one after the other, from `offset` on.
fn read_on(raw: &mut Raw, offset: u64, ranges: u64) {
    for at in (0..ranges).map(|n| offset + n * 32 * K) {
        assert_eq!(raw.read(0, at, 32 << 10).unwrap(), pattern(at, 32 * K), "at {at}");
    }
}

#[test]
fn a_sequential_reader_gets_what_was_read_ahead_and_each_block_is_read_once() {
    for mode in MODES {
        let served = served();
        let mut raw = Raw::go(&served.socket, mode);
        read_on(&mut raw, 0, SIZE / 32 / K);
        let asked = served.volume.asked_bytes.load(SeqCst);
        assert_eq!(asked, SIZE - 3 * 32 * K, "all but the first three");
        let (reads, ahead) = (&served.volume.read_batches, &served.volume.ahead);
        assert_eq!(reads.load(SeqCst), 3 + ahead.load(SeqCst), "nothing was read twice");
        assert!(ahead.load(SeqCst) < SIZE / 32 / K / 3, "the parts grow");
    }
}

#[test]
fn many_requests_under_way_are_answered_from_what_is_read_ahead() {
    let served = served();
    served.volume.read_us.store(300, SeqCst);
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    let ask = |raw: &mut Raw, n: u64| raw.request(0, READ, n * 128 * K, 128 * K, &[]);
    let mut cookies: Vec<u64> = (0..8).map(|n| ask(&mut raw, n)).collect();
    let all = SIZE / 128 / K;
    let mut missing: Vec<u64> = (0..all).collect();
    while !missing.is_empty() {
        let chunk = raw.chunk(128 << 10).unwrap();
        let n = cookies.iter().position(|cookie| *cookie == chunk.cookie).unwrap() as u64;
        assert_eq!(chunk.content, Content::Data(u64::MAX, pattern(n * 128 * K, 128 * K)));
        missing.retain(|other| *other != n);
        if (cookies.len() as u64) < all {
            let next = cookies.len() as u64;
            cookies.push(ask(&mut raw, next));
        }
    }
    assert!(served.volume.asked_bytes.load(SeqCst) > SIZE / 2);
}

#[test]
fn a_change_on_another_connection_is_seen_by_who_reads_afterwards() {
    let served = served();
    let (mut reader, mut other) =
        (Raw::go(&served.socket, Mode::Simple), Raw::go(&served.socket, Mode::Simple));
    read_on(&mut reader, 0, 3);
    // 256 KiB in four parts.
    reached(&served.volume.ahead, 4);
    assert_eq!(other.write(0, 100 * K, &[0xfe; 512]), 0);
    assert_eq!(other.act(0, TRIM, 300 * K, 8 * K, &[]), 0);
    assert_eq!(reader.read(0, 96 * K, 32 << 10).unwrap()[4 << 10..][..512], [0xfe; 512]);
    read_on(&mut reader, 128 * K, 4);
    let last = reader.read(0, 256 * K, 64 << 10).unwrap();
    assert_eq!(last[44 << 10..][..8 << 10], [0; 8 << 10]);
    read_on(&mut reader, 320 * K, 4);
    assert!(served.volume.asked_bytes.load(SeqCst) > 0);
}

#[test]
fn what_was_read_ahead_is_not_given_while_others_may_change_the_volume() {
    let served = served();
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    read_on(&mut raw, 0, 3);
    reached(&served.volume.ahead, 4);
    served.volume.unsure.store(true, SeqCst);
    read_on(&mut raw, 96 * K, 1);
    assert_eq!(served.volume.asked_bytes.load(SeqCst), 0);
    served.volume.unsure.store(false, SeqCst);
    read_on(&mut raw, 128 * K, 1);
    assert_eq!(served.volume.asked_bytes.load(SeqCst), 32 * K);
}

#[test]
fn a_change_of_the_client_itself_is_seen_too() {
    let served = served();
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    read_on(&mut raw, 0, 3);
    reached(&served.volume.ahead, 4);
    assert_eq!(raw.write(0, 96 * K, &[0xfd; 4096]), 0);
    assert_eq!(raw.read(0, 96 * K, 4096).unwrap(), [0xfd; 4096]);
}

#[test]
fn what_a_client_says_it_will_read_is_read_ahead_within_the_limit() {
    let limits = Limits { read_ahead_bytes: 1 << 20, ..Limits::default() };
    let served = serve(limits, VolumeLimits::default());
    let mut raw = Raw::go(&served.socket, Mode::Structured);
    assert_eq!(raw.act(0, CACHE, 4 << 20, 2 << 20, &[]), 0);
    reached(&served.volume.ahead, 2);
    let reads = served.volume.read_batches.load(SeqCst);
    for at in [(4 << 20) + 700 * K, (4 << 20) + 9 * K] {
        assert_eq!(raw.read(0, at, 9999).unwrap(), pattern(at, 9999));
    }
    assert_eq!(served.volume.read_batches.load(SeqCst), reads);
    assert_eq!(served.volume.prefetches.load(SeqCst), 1);
    raw.read(0, 5 << 20, 4096).unwrap();
    assert_eq!(served.volume.read_batches.load(SeqCst), reads + 1, "it is beyond the limit");
}

#[test]
fn nothing_is_read_ahead_for_random_readers_with_limits_or_when_it_is_off() {
    let served_at = |limits, of_volume, step: u64| {
        let served = serve(limits, of_volume);
        let mut raw = Raw::go(&served.socket, Mode::Simple);
        (0..20).for_each(|n| drop(raw.read(0, n * step % SIZE, 4096).unwrap()));
        assert_eq!(raw.act(0, CACHE, 0, if step == 4096 { 1 << 20 } else { 1 }, &[]), 0);
        std::thread::sleep(Duration::from_millis(20));
        served.volume.ahead.load(SeqCst)
    };
    let off = Limits { read_ahead_bytes: 0, ..Limits::default() };
    assert!(served_at(Limits::default(), VolumeLimits::default(), 4096) > 0);
    assert_eq!(served_at(off, VolumeLimits::default(), 4096), 0);
    let limited = VolumeLimits { iops: 100_000, bytes: 1 << 30 };
    assert_eq!(served_at(Limits::default(), limited, 4096), 0);
    assert_eq!(served_at(Limits::default(), VolumeLimits::default(), 92 * K), 1, "as was asked");
}

#[test]
fn damage_that_is_read_ahead_is_told_to_who_asks_for_it_alone() {
    let served = served();
    served.volume.set_bad(Some(40));
    let mut raw = Raw::go(&served.socket, Mode::Structured);
    read_on(&mut raw, 0, 5);
    assert_eq!(raw.read(0, 160 * K, 32 << 10), Err(5));
    read_on(&mut raw, 192 * K, 20);
    assert!(served.volume.asked_bytes.load(SeqCst) > 15 * 32 * K);
}

#[test]
fn what_is_read_ahead_is_given_back_when_somebody_else_wants_the_place() {
    let limits = Limits { places: 1, ..Limits::default() };
    let served = serve(limits, VolumeLimits::default());
    std::thread::scope(|scope| {
        for n in 0..3 {
            let socket = &served.socket;
            scope.spawn(move || {
                let mut raw = Raw::go(socket, Mode::Simple);
                read_on(&mut raw, n << 20, 32);
            });
        }
    });
}
