//! Clients that mean harm: each costs at most its own connection. Beside every attack a witness
//! goes on reading and writing, and a region that nobody else was allowed to touch must stay as it
//! is.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onefold_serve::nbd::{self, Limits, Server};
use raw_client::*;
use volumes::{MemoryExports, MemoryVolume};

const SIZE: u64 = 64 << 20;
/// The last MiB belongs to the witness; attackers write below it.
const WITNESS: u64 = SIZE - (1 << 20);

struct Attacked {
    server: Server,
    volume: Arc<MemoryVolume>,
    socket: PathBuf,
    pattern: Vec<u8>,
    _dir: tempfile::TempDir,
}

impl Attacked {
    fn new(limits: Limits) -> Attacked {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nbd.sock");
        let (exports, volume) = MemoryExports::one(SIZE);
        let mut server = Server::new(exports, limits);
        server.add_unix(&socket).unwrap();
        server.start().unwrap();
        let pattern: Vec<u8> =
            (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
        assert_eq!(Raw::go(&socket, Mode::Simple).write(FUA, WITNESS, &pattern), 0);
        Attacked { server, volume, socket, pattern, _dir: dir }
    }

    /// A newcomer is served; the witness region is intact. For an answer it waits 20 s, as long as
    /// a hang is told from a busy machine.
    fn witness(&self) {
        for mode in MODES {
            let mut raw = Raw::go(&self.socket, mode);
            assert!(raw.read(0, WITNESS, 1 << 20).unwrap() == self.pattern);
            assert_eq!(raw.write(0, WITNESS, &self.pattern[..5000]), 0);
            assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
        }
        assert!(self.volume.peek(WITNESS, 1 << 20) == self.pattern);
    }

    /// All is well after the attack, and the server still stops as it should.
    fn end(self) {
        self.witness();
        assert_eq!(self.server.statistics().panics, 0);
        self.server.stop(Duration::from_secs(5)).unwrap();
    }
}

/// Small random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn connect_and_send(socket: &Path, bytes: &[u8]) -> Raw {
    let mut raw = Raw::connect(socket).unwrap();
    // The server may close before it has taken everything.
    let _ = raw.stream.write_all(bytes);
    raw
}

#[test]
fn lengths_of_options_are_limited_before_memory_is_taken() {
    let attacked = Attacked::new(Limits::default());
    for length in [nbd::limits::OPTION_BYTES + 1, 1 << 20, 1 << 31, u32::MAX] {
        for option in [1u32, 3, 6, 7, 9, 10, 99] {
            let mut bytes = 3u32.to_be_bytes().to_vec();
            bytes.extend_from_slice(b"IHAVEOPT");
            bytes.extend_from_slice(&option.to_be_bytes());
            bytes.extend_from_slice(&length.to_be_bytes());
            let mut raw = connect_and_send(&attacked.socket, &bytes);
            let reply = raw.take(20).unwrap();
            assert_eq!(be32(&reply[12..]), ERR_TOO_BIG);
        }
    }
    let mut raw = Raw::connect(&attacked.socket).unwrap();
    raw.send(&3u32.to_be_bytes());
    assert_eq!(
        raw.option_end(99, &vec![0; nbd::limits::OPTION_BYTES as usize]),
        ERR_UNSUP,
        "the limit itself is allowed"
    );
    for _ in 1..128 {
        assert_eq!(raw.option_end(99, &[]), ERR_UNSUP);
    }
    assert!(raw.closed(), "and so are 128 options, but no more");
    attacked.end();
}

#[test]
fn rule_12_what_a_client_asks_for_again_and_again_is_told_once() {
    let attacked = Attacked::new(Limits::default());
    let mut raw = Raw::connect(&attacked.socket).unwrap();
    raw.send(&3u32.to_be_bytes());
    // Name and block size, 3,000 times: the replies of one option took 200 KB.
    let replies = raw.option(6, &info_data("disk", &[1, 3].repeat(1500)));
    assert_eq!(replies.len(), 4, "size, name, block size, and the end");
    attacked.end();
}

#[test]
fn truncated_and_random_handshakes() {
    let attacked =
        Attacked::new(Limits { handshake: Duration::from_millis(200), ..Limits::default() });
    let mut whole = 3u32.to_be_bytes().to_vec();
    whole.extend_from_slice(&option_bytes(11, &[]));
    whole.extend_from_slice(&option_bytes(10, &meta_data("disk", &["base:allocation"])));
    whole.extend_from_slice(&option_bytes(7, &info_data("disk", &[1, 2, 3])));
    for cut in 0..whole.len() {
        let raw = connect_and_send(&attacked.socket, &whole[..cut]);
        if cut % 2 == 0 {
            raw.stream.shutdown(Shutdown::Write).unwrap();
        }
    }
    let mut dice = Dice(0x5eed);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..=dice.roll(4) {
            let at = dice.roll(bytes.len() as u64) as usize;
            bytes[at] = dice.roll(256) as u8;
        }
        let raw = connect_and_send(&attacked.socket, &bytes);
        raw.stream.shutdown(Shutdown::Write).unwrap();
    }
    for _ in 0..100 {
        let bytes: Vec<u8> = (0..dice.roll(2000)).map(|_| dice.roll(256) as u8).collect();
        connect_and_send(&attacked.socket, &bytes);
    }
    attacked.end();
}

#[test]
fn two_hundred_stalled_handshakes_keep_nobody_out() {
    let attacked = Attacked::new(Limits { connections: 64, ..Limits::default() });
    let mut stalled = Vec::new();
    for i in 0..200 {
        let mut raw = Raw::connect(&attacked.socket).unwrap();
        let _ = raw.stream.write_all(&[0, 0, 0, 3, b'I', b'H'][..i % 7]);
        stalled.push(raw);
        if i % 50 == 49 {
            attacked.witness();
        }
    }
    attacked.end();
}

#[test]
fn ranges_that_wrap_and_lengths_of_four_gib() {
    let attacked = Attacked::new(Limits::default());
    let edges = [
        0,
        1,
        4095,
        WITNESS,
        SIZE - 1,
        SIZE,
        1 << 31,
        1 << 32,
        1 << 62,
        (1 << 63) - 1,
        1 << 63,
        u64::MAX - 4095,
        u64::MAX,
    ];
    for mode in MODES {
        let mut raw = Raw::go(&attacked.socket, mode);
        for command in [READ, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS] {
            for offset in edges {
                for length in [
                    u64::from(u32::MAX),
                    1 << 31,
                    (1 << 32) + 1,
                    u64::MAX,
                    u64::MAX - offset,
                    (u64::MAX - offset).wrapping_add(2),
                ] {
                    let length = if mode == Mode::Extended { length } else { length & 0xffff_ffff };
                    let legal = offset.checked_add(length).is_some_and(|end| end <= SIZE);
                    if legal {
                        continue;
                    }
                    let code = raw.act(0, command, offset, length, &[]);
                    assert_eq!(code, if command == WRITE_ZEROES { 28 } else { 22 });
                }
            }
        }
        // A write of 4 GiB is refused without waiting for its bytes.
        let flags = if mode == Mode::Extended { PAYLOAD_LEN } else { 0 };
        let cookie = raw.request(flags, WRITE, 0, u64::from(u32::MAX), &[]);
        assert!(matches!(raw.reply(cookie, 0)[..], [Content::Error(22, _, _)]));
        assert!(raw.closed());
    }
    let mut raw = Raw::go(&attacked.socket, Mode::Extended);
    raw.request(PAYLOAD_LEN, BLOCK_STATUS, 0, u64::MAX, &[]);
    assert!(matches!(raw.chunk(0).unwrap().content, Content::Error(22, _, _)));
    attacked.end();
}

#[test]
fn random_command_streams() {
    let attacked = Attacked::new(Limits::default());
    let mut dice = Dice(0xc0de);
    for round in 0..150 {
        let mode = MODES[round % 3];
        let mut raw = Raw::go(&attacked.socket, mode);
        let mut bytes = Vec::new();
        for cookie in 0..dice.roll(40) {
            let command =
                if dice.roll(10) == 0 { dice.roll(65_536) as u16 } else { dice.roll(9) as u16 };
            let flags =
                if dice.roll(3) == 0 { dice.roll(65_536) as u16 } else { dice.roll(64) as u16 };
            // Changes stay below the witness, whatever else is wrong with them; a payload may be
            // missing.
            let offset = dice.roll(WITNESS - (1 << 20));
            let length = dice.roll(1 << 16);
            bytes.extend_from_slice(&request_bytes(mode, flags, command, cookie, offset, length));
            if dice.roll(20) > 0
                && (command == WRITE || (mode == Mode::Extended && flags & PAYLOAD_LEN != 0))
            {
                bytes.extend(std::iter::repeat_n(dice.roll(256) as u8, length as usize));
            }
        }
        // A client that sends without reading must not wait for ever, and neither must the server.
        raw.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = raw.stream.write_all(&bytes);
        let _ = raw.stream.shutdown(Shutdown::Write);
        if round % 2 == 0 {
            let _ = raw.stream.read_to_end(&mut Vec::new());
        }
    }
    attacked.end();
}

#[test]
fn cut_payloads_write_nothing_of_a_small_request() {
    let attacked = Attacked::new(Limits::default());
    for cut in [0, 1, 100, 4095, 65_535] {
        let mut raw = Raw::go(&attacked.socket, Mode::Simple);
        raw.request(0, WRITE, 0, 65_536, &vec![0xff; cut]);
        raw.stream.shutdown(Shutdown::Write).unwrap();
        assert!(raw.closed());
    }
    assert_eq!(attacked.volume.peek(0, 65_536), [0; 65_536]);
    // A large one may be there in part, and nowhere else.
    let mut raw = Raw::go(&attacked.socket, Mode::Simple);
    raw.request(0, WRITE, 4096, 16 << 20, &vec![0xff; 5 << 20]);
    raw.stream.shutdown(Shutdown::Write).unwrap();
    assert!(raw.closed());
    assert_eq!(attacked.volume.peek(0, 4096), [0; 4096]);
    assert_eq!(attacked.volume.peek(4096 + (5 << 20), 4096), [0; 4096]);
    attacked.end();
}

#[test]
fn readers_that_never_read_cost_only_their_own_connection() {
    let attacked = Attacked::new(Limits { send: Duration::from_millis(300), ..Limits::default() });
    let mut deaf = Vec::new();
    for i in 0..24 {
        let mode = MODES[i % 3];
        let mut raw = Raw::go(&attacked.socket, mode);
        let requests: Vec<u8> =
            (0..20).flat_map(|i| request_bytes(mode, 0, READ, i, 0, 32 << 20)).collect();
        raw.send(&requests);
        deaf.push(raw);
    }
    attacked.witness();
    let began = Instant::now();
    while attacked.server.statistics().connections > 0 {
        assert!(began.elapsed() < Duration::from_secs(120), "who never reads is not sent away");
        std::thread::sleep(Duration::from_millis(20));
    }
    attacked.end();
}

#[test]
fn two_hundred_resets_with_reads_in_flight() {
    let attacked = Attacked::new(Limits::default());
    for i in 0..200 {
        let mode = MODES[i % 3];
        let mut raw = Raw::go(&attacked.socket, mode);
        let requests: Vec<u8> =
            (0..8).flat_map(|i| request_bytes(mode, 0, READ, i, i << 16, 65_536)).collect();
        raw.send(&requests);
        if i % 2 == 0 {
            let _ = raw.take(100);
        }
        // Unread data makes this a reset.
        drop(raw);
    }
    attacked.end();
}

#[test]
fn sixty_four_connections_at_once_and_three_hundred_in_a_row() {
    let attacked = Attacked::new(Limits::default());
    let mut many: Vec<Raw> = (0..64).map(|i| Raw::go(&attacked.socket, MODES[i % 3])).collect();
    for (i, raw) in many.iter_mut().enumerate() {
        assert_eq!(raw.write(0, (i as u64) << 13, &[i as u8; 5000]), 0);
    }
    for (i, raw) in many.iter_mut().enumerate() {
        let other = 63 - i;
        assert_eq!(raw.read(0, (other as u64) << 13, 5000).unwrap(), [other as u8; 5000]);
    }
    drop(many);
    for i in 0..300 {
        let mut raw = Raw::go(&attacked.socket, MODES[i % 3]);
        assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
    }
    attacked.end();
}
