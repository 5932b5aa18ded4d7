//! Sessions over bytes in memory: whatever a client sends, a session ends, without a panic, and
//! answers in whole replies.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use onefold_serve::nbd::{Ending, Limits, session_over};
use proptest::collection::vec;
use proptest::prelude::*;
use raw_client::*;
use volumes::MemoryExports;

const SIZE: u64 = 1 << 20;

/// Small limits, so that their edges are met.
fn limits() -> Limits {
    Limits {
        payload_bytes: 256 << 10,
        receive_bytes: 4096,
        read_batch_bytes: 16 << 10,
        whole_read_bytes: 32 << 10,
        extents: 8,
        waits: 4,
        ..Limits::default()
    }
}

/// Reads a few bytes at a time, as a slow network would bring them.
struct Trickle<'a> {
    bytes: &'a [u8],
    step: usize,
}

impl std::io::Read for Trickle<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = self.step.min(into.len()).min(self.bytes.len());
        into[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        Ok(n)
    }
}

fn run(bytes: &[u8], step: usize) -> (Ending, Vec<u8>) {
    let (exports, _) = MemoryExports::one(SIZE);
    let mut replies = Vec::new();
    let ending = session_over(&*exports, &limits(), Trickle { bytes, step }, &mut replies);
    (ending, replies)
}

fn handshake(mode: Mode) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    match mode {
        Mode::Simple => {}
        Mode::Structured => bytes.extend_from_slice(&option_bytes(8, &[])),
        Mode::Extended => bytes.extend_from_slice(&option_bytes(11, &[])),
    }
    if mode != Mode::Simple {
        bytes.extend_from_slice(&option_bytes(10, &meta_data("disk", &["base:allocation"])));
    }
    bytes.extend_from_slice(&option_bytes(7, &info_data("disk", &[1, 2, 3])));
    bytes
}

fn a_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Simple), Just(Mode::Structured), Just(Mode::Extended)]
}

/// Offsets and lengths that are mostly sensible.
fn a_number() -> impl Strategy<Value = u64> {
    let at_the_end = (0..=20u64).prop_map(|n| SIZE - 10 + n);
    prop_oneof![6 => 0..SIZE, 2 => 0..10_000u64, 1 => at_the_end, 1 => any::<u64>()]
}

fn a_request() -> impl Strategy<Value = (u16, u16, u64, u64, bool)> {
    let flags = prop_oneof![4 => Just(0u16), 4 => 0..64u16, 1 => any::<u16>()];
    let command = prop_oneof![12 => prop_oneof![0..2u16, 3..8u16], 1 => any::<u16>()];
    (flags, command, a_number(), a_number(), prop::bool::weighted(0.97))
}

fn stream(mode: Mode, requests: &[(u16, u16, u64, u64, bool)]) -> Vec<u8> {
    let mut bytes = handshake(mode);
    for (cookie, &(flags, command, offset, length, payload)) in requests.iter().enumerate() {
        let length = if mode == Mode::Extended { length } else { length & 0xffff_ffff };
        bytes.extend_from_slice(&request_bytes(
            mode,
            flags,
            command,
            cookie as u64,
            offset,
            length,
        ));
        if payload && (command == WRITE || (mode == Mode::Extended && flags & PAYLOAD_LEN != 0)) {
            bytes.resize(bytes.len() + length.min(2 * SIZE) as usize, cookie as u8);
        }
    }
    bytes
}

/// Skips over the replies to the handshake and counts the requests that were answered.
fn answered(mode: Mode, requests: &[(u16, u16, u64, u64, bool)], mut replies: &[u8]) -> usize {
    replies = &replies[18..];
    while replies.len() >= 20 && be64(replies) == 0x0003_e889_0455_65a9 {
        replies = &replies[20 + be32(&replies[16..]) as usize..];
    }
    let mut count = 0;
    while !replies.is_empty() {
        match (mode, be32(replies)) {
            (Mode::Simple | Mode::Structured, 0x6744_6698) => {
                let (_, command, _, length, _) = requests[be64(&replies[8..]) as usize];
                let data = if mode == Mode::Simple && be32(&replies[4..]) == 0 && command == READ {
                    length as u32 as usize
                } else {
                    0
                };
                replies = &replies[16 + data..];
                count += 1;
            }
            (Mode::Structured, 0x668e_33ef) => {
                count += usize::from(be16(&replies[4..]) & 1);
                replies = &replies[20 + be32(&replies[16..]) as usize..];
            }
            (Mode::Extended, 0x6e8a_278c) => {
                count += usize::from(be16(&replies[4..]) & 1);
                let (_, _, offset, _, _) = requests[be64(&replies[8..]) as usize];
                assert_eq!(be64(&replies[16..]), offset);
                replies = &replies[32 + be64(&replies[24..]) as usize..];
            }
            other => panic!("a reply starts with {other:x?}"),
        }
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_bytes_at_all(bytes in vec(any::<u8>(), 0..3000), step in 1..5000usize) {
        run(&bytes, step);
    }

    #[test]
    fn any_options(
        options in vec(
            (prop_oneof![0..13u32, any::<u32>()], vec(any::<u8>(), 0..200), any::<bool>()), 0..20
        ),
        step in 1..300usize,
    ) {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        for (option, mut data, named) in options {
            if named {
                data = [&b"\0\0\0\x04disk"[..], &data].concat();
            }
            bytes.extend_from_slice(&option_bytes(option, &data));
        }
        run(&bytes, step);
    }

    #[test]
    fn every_whole_request_is_answered_once(
        mode in a_mode(),
        requests in vec(a_request(), 0..30),
        step in prop_oneof![1..200usize, 1000..100_000usize],
    ) {
        let (ending, replies) = run(&stream(mode, &requests), step);
        let count = answered(mode, &requests, &replies);
        prop_assert!(count <= requests.len());
        if matches!(ending, Ending::Closed) && requests.iter().all(|r| r.4 && r.1 != DISC) {
            prop_assert_eq!(count, requests.len());
        }
    }

    #[test]
    fn mutated_sessions(
        mode in a_mode(),
        requests in vec(a_request(), 1..10),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
        step in 1..5000usize,
    ) {
        let mut bytes = stream(mode, &requests);
        // Mostly near the start, where headers are; payloads are dull.
        let near = bytes.len().min(1000);
        for (at, byte) in flips {
            bytes[at.index(near)] = byte;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        run(&bytes, step);
    }
}
