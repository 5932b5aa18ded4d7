//! The promises of FLUSH and FUA, alone and in pipelines, on one connection and on several.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use onefold_serve::nbd::{Limits, Server};
use raw_client::*;
use volumes::{MemoryExports, MemoryVolume};

struct Served {
    volume: Arc<MemoryVolume>,
    server: Server,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

fn served(limits: Limits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let (exports, volume) = MemoryExports::one(64 << 20);
    let mut server = Server::new(exports, limits);
    server.add_unix(&socket).unwrap();
    server.start().unwrap();
    Served { volume, server, socket, _dir: dir }
}

fn requests(mode: Mode, list: &[(u16, u16, u64, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (i, &(flags, command, offset, payload)) in list.iter().enumerate() {
        bytes.extend_from_slice(&request_bytes(
            mode,
            flags,
            command,
            i as u64,
            offset,
            payload.len() as u64,
        ));
        bytes.extend_from_slice(payload);
    }
    bytes
}

#[test]
fn a_flush_and_a_forced_write_are_durable_when_answered() {
    let served = served(Limits::default());
    for mode in MODES {
        let mut raw = Raw::go(&served.socket, mode);
        for _ in 0..3 {
            assert_eq!(raw.write(0, 0, b"x"), 0);
            assert_eq!(served.volume.volatile(), 1);
            assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
            assert_eq!(served.volume.volatile(), 0);
            assert_eq!(raw.write(FUA, 0, b"x"), 0);
            assert_eq!(raw.act(FUA, TRIM, 0, 4096, &[]), 0);
            assert_eq!(raw.act(FUA, WRITE_ZEROES, 0, 4096, &[]), 0);
            assert_eq!(served.volume.volatile(), 0);
        }
        assert_eq!(raw.act(FUA, READ, 0, 0, &[]), 0, "the flag is allowed where it means nothing");
    }
    assert_eq!((served.volume.flushes.load(SeqCst), served.volume.waits.load(SeqCst)), (9, 27));
}

#[test]
fn a_flush_covers_what_was_answered_on_other_connections() {
    let served = served(Limits::default());
    let mut writers: Vec<Raw> =
        MODES.iter().chain(&MODES).map(|&mode| Raw::go(&served.socket, mode)).collect();
    for round in 0..20 {
        for (i, writer) in writers.iter_mut().enumerate() {
            assert_eq!(writer.write(0, (i as u64) << 16, &[round; 5000]), 0);
        }
        let flusher = &mut writers[usize::from(round) % 6];
        assert_eq!(flusher.act(0, FLUSH, 0, 0, &[]), 0);
        assert_eq!(served.volume.volatile(), 0);
        // And what one connection wrote, every other one reads.
        for (i, reader) in writers.iter_mut().enumerate() {
            assert_eq!(reader.read(0, ((5 - i) as u64) << 16, 5000).unwrap(), [round; 5000]);
        }
    }
}

#[test]
fn a_slow_flush_does_not_keep_later_requests_waiting() {
    let served = served(Limits::default());
    for mode in MODES {
        let mut raw = Raw::go(&served.socket, mode);
        served.volume.hold.store(true, SeqCst);
        let write = if mode == Mode::Extended { PAYLOAD_LEN } else { 0 };
        raw.send(&requests(
            mode,
            &[
                (0, FLUSH, 0, &[]),
                (write | FUA, WRITE, 0, b"abc"),
                (0, READ, 0, &[]),
                (0, CACHE, 0, &[]),
            ],
        ));
        let early = [raw.chunk(0).unwrap().cookie, raw.chunk(0).unwrap().cookie];
        assert_eq!(early, [2, 3]);
        // Requests that come while the helper waits are not held up either.
        assert_eq!(raw.read(0, 0, 3).unwrap(), b"abc");
        served.volume.hold.store(false, SeqCst);
        let mut late = [raw.chunk(0).unwrap().cookie, raw.chunk(0).unwrap().cookie];
        late.sort_unstable();
        assert_eq!(late, [0, 1]);
        assert_eq!(served.volume.volatile(), 0);
    }
}

#[test]
fn a_volume_that_acknowledges_late_holds_up_no_later_requests() {
    let served = served(Limits::default());
    served.volume.late.store(true, SeqCst);
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    served.volume.hold.store(true, SeqCst);
    raw.send(&requests(
        Mode::Simple,
        &[
            (0, WRITE, 0, b"abc"),
            (0, WRITE, 8192, b"def"),
            (0, WRITE_ZEROES, 4096, &[]),
            (0, TRIM, 16_384, &[]),
            (0, READ, 0, &[]),
        ],
    ));
    assert_eq!(raw.chunk(0).unwrap().cookie, 4);
    assert_eq!(raw.read(0, 8192, 3).unwrap(), b"def");
    served.volume.hold.store(false, SeqCst);
    let mut late = [0; 4].map(|_| raw.chunk(0).unwrap().cookie);
    late.sort_unstable();
    assert_eq!((late, served.volume.volatile()), ([0, 1, 2, 3], 0));
}

#[test]
fn as_many_writes_of_a_connection_are_waited_for_beside_each_other_as_the_volume_says() {
    for beside in [1, 3] {
        let served = served(Limits::default());
        let (late, waits) = (&served.volume.late, &served.volume.waits);
        late.store(true, SeqCst);
        served.volume.beside.store(beside, SeqCst);
        served.volume.hold.store(true, SeqCst);
        let mut raw = Raw::go(&served.socket, Mode::Simple);
        // A request alone would be waited for by the connection's own thread.
        let write = |raw: &mut Raw, at: u64| {
            raw.send(&requests(Mode::Simple, &[(0, WRITE, at, b"abc"), (0, READ, at, &[])]));
            assert_eq!(raw.chunk(0).unwrap().cookie, 1);
        };
        for n in 0..beside {
            write(&mut raw, n * 4096);
            while waits.load(SeqCst) <= n {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // Nobody is left to wait for this one, and reads go on.
        write(&mut raw, 1 << 20);
        assert_eq!(waits.load(SeqCst), beside);
        served.volume.hold.store(false, SeqCst);
        (0..=beside).for_each(|_| assert_eq!(raw.chunk(0).unwrap().cookie, 0));
        assert_eq!(served.volume.volatile(), 0);
    }
}

#[test]
fn flushes_that_wait_together_are_one_flush() {
    let served = served(Limits::default());
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    served.volume.flush_us.store(200_000, SeqCst);
    raw.send(&requests(Mode::Simple, &[(0, FLUSH, 0, &b""[..]); 100]));
    let mut answered: Vec<u64> = (0..100).map(|_| raw.chunk(0).unwrap().cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..100).collect::<Vec<u64>>());
    let flushes = served.volume.flushes.load(SeqCst);
    assert!(flushes <= 3, "{flushes} flushes for 100 that waited together");
}

#[test]
fn more_waiting_requests_than_the_limit_are_answered_all_the_same() {
    let served = served(Limits { waits: 2, ..Limits::default() });
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    let list: Vec<(u16, u16, u64, &[u8])> =
        (0..200).map(|i| (FUA, WRITE, i * 512, &b"0123"[..])).collect();
    raw.send(&requests(Mode::Simple, &list));
    let mut answered: Vec<u64> = (0..200).map(|_| raw.chunk(0).unwrap().cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..200).collect::<Vec<u64>>());
    assert_eq!(served.volume.volatile(), 0);
}

#[test]
fn a_failed_flush_is_an_error_for_everyone_who_waited() {
    let served = served(Limits::default());
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    assert_eq!(raw.write(0, 0, b"x"), 0);
    served.volume.set_stopped();
    raw.send(&requests(Mode::Simple, &[(0, FLUSH, 0, &b""[..]); 20]));
    for _ in 0..20 {
        assert_eq!(raw.chunk(0).unwrap().content, Content::Error(5, String::new(), None));
    }
}

/// A flush of such a volume tells of no failure: those are told by the tickets of the writes.
#[test]
fn a_write_that_failed_late_is_an_error_also_where_a_flush_waits_beside_it() {
    let served = served(Limits::default());
    served.volume.late.store(true, SeqCst);
    served.volume.hold.store(true, SeqCst);
    served.volume.refused.store(2, SeqCst);
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    raw.send(&requests(Mode::Simple, &[(0, WRITE, 0, &b"0123"[..])]));
    while served.volume.waits.load(SeqCst) == 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    raw.send(&requests(Mode::Simple, &[(0, WRITE, 512, &b"0123"[..]), (0, FLUSH, 0, &b""[..])]));
    std::thread::sleep(std::time::Duration::from_millis(100));
    served.volume.hold.store(false, SeqCst);
    let mut errors = 0;
    for _ in 0..3 {
        let is_error = matches!(raw.chunk(0).unwrap().content, Content::Error(28, ..));
        errors += u32::from(is_error);
    }
    assert_eq!(errors, 2, "both writes failed, and the flush did not");
}

#[test]
fn a_client_that_says_good_bye_after_a_flush_gets_its_answer() {
    let served = served(Limits::default());
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    served.volume.flush_us.store(50_000, SeqCst);
    raw.send(&requests(
        Mode::Simple,
        &[(0, WRITE, 0, b"x"), (0, FLUSH, 0, &[]), (0, DISC, 0, &[])],
    ));
    assert_eq!(raw.chunk(0).unwrap().cookie, 0);
    assert_eq!(raw.chunk(0).unwrap().cookie, 1);
    assert!(raw.closed());
    assert_eq!(served.volume.volatile(), 0);
}

#[test]
fn stopping_answers_what_has_arrived() {
    let served = served(Limits::default());
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    served.volume.flush_us.store(100_000, SeqCst);
    raw.send(&requests(
        Mode::Simple,
        &[(0, WRITE, 0, b"x"), (0, FLUSH, 0, &[]), (FUA, WRITE, 1, b"y")],
    ));
    // The first answer shows that they are being worked on.
    assert_eq!(raw.chunk(0).unwrap().cookie, 0);
    let began = Instant::now();
    served.server.stop(Duration::from_secs(10)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    let mut cookies = [raw.chunk(0).unwrap().cookie, raw.chunk(0).unwrap().cookie];
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2]);
    assert!(raw.closed());
    assert_eq!(served.volume.volatile(), 0);
}
