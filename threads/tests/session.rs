//! The halves of a connection: its thread, which takes requests, and the helpers that wait for the
//! disk and send through the same outbox.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![cfg(scheduled)]

#[path = "../../crates/serve/tests/raw_client/mod.rs"]
mod raw_client;
mod world;

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use onefold_block::{Store, StoreExports};
use onefold_core::{Exports, Ticket};
use onefold_serve::nbd::{Ending, Limits, session_over};
use parking_lot::{Mutex, thread};
use raw_client::*;
use world::{disk, finds, schedules, store};

const SIZE: u64 = 256 << 10;

/// Small limits, so that reads come in pieces and helpers have work.
fn limits() -> Limits {
    Limits {
        payload_bytes: 256 << 10,
        receive_bytes: 16 << 10,
        read_batch_bytes: 16 << 10,
        whole_read_bytes: 32 << 10,
        waits: 4,
        ..Limits::default()
    }
}

/// What a client sends, which arrives in parts; others may go on before each.
struct Sent {
    bytes: Mutex<Vec<u8>>,
    step: usize,
}

impl Read for Sent {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock();
        let n = self.step.min(into.len()).min(bytes.len());
        into[..n].copy_from_slice(&bytes[..n]);
        bytes.drain(..n);
        Ok(n)
    }
}

/// What a client got, and what was durable when each part of it was sent.
#[derive(Clone)]
struct Got {
    store: Arc<Store>,
    all: Arc<Mutex<Vec<(Vec<u8>, Ticket)>>>,
}

impl Write for Got {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A socket takes a part now and then.
        let n = bytes.len().min(1000);
        let durable = self.store.engine().durable();
        self.all.lock().push((bytes[..n].to_vec(), durable));
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Of each request: its flags, command, offset and length. The number of the request is its cookie.
const REQUESTS: [(u16, u16, u64, u64); 12] = [
    (0, WRITE, 0, 4096),
    (0, FLUSH, 0, 0),
    (FUA, WRITE, 8192, 4096),
    (DF, READ, 0, 128 << 10),
    (0, FLUSH, 0, 0),
    (FUA, WRITE, 4096, 8192),
    (0, READ, 0, 4096),
    (FUA, TRIM, 65536, 8192),
    (DF, READ, 4096, 192 << 10),
    (0, BLOCK_STATUS, 0, 65536),
    (0, FLUSH, 0, 0),
    (0, READ, 4096, 8192),
];

fn stream() -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option_bytes(8, &[]));
    bytes.extend(option_bytes(10, &meta_data("disk", &["base:allocation"])));
    bytes.extend(option_bytes(7, &info_data("disk", &[])));
    for (cookie, (flags, command, offset, length)) in (0u64..).zip(REQUESTS) {
        bytes.extend(request_bytes(Mode::Structured, flags, command, cookie, offset, length));
        if command == WRITE {
            bytes.resize(bytes.len() + length as usize, cookie as u8 + 1);
        }
    }
    bytes.extend(request_bytes(Mode::Structured, 0, DISC, 99, 0, 0));
    bytes
}

/// One connection: each request is answered once, in whole replies, and what was to be durable is
/// when it says so.
fn connection(store: &Arc<Store>) {
    let got = Got { store: store.clone(), all: Arc::default() };
    let before = store.engine().durable();
    let sent = Sent { bytes: Mutex::new(stream()), step: 7000 };
    let ending = session_over(&StoreExports(store.clone()), &limits(), sent, got.clone());
    assert!(matches!(ending, Ending::Closed), "{ending:?}");
    let all = got.all.lock();
    // What was durable when a byte of the replies was sent.
    let durable_at = |at: usize| {
        let mut end = 0;
        all.iter().find(|(part, _)| (end += part.len(), end > at).1).unwrap().1
    };
    let bytes: Vec<u8> = all.iter().flat_map(|(part, _)| part).copied().collect();
    let mut at = 18;
    while be64(&bytes[at..]) == 0x0003_e889_0455_65a9 {
        at += 20 + be32(&bytes[at + 16..]) as usize;
    }
    let mut answered = [0; REQUESTS.len()];
    while at < bytes.len() {
        let cookie = be64(&bytes[at + 8..]);
        let (done, refused, length) = match be32(&bytes[at..]) {
            0x6744_6698 => (1, be32(&bytes[at + 4..]) != 0, 16),
            0x668e_33ef => (
                be16(&bytes[at + 4..]) & 1,
                be16(&bytes[at + 6..]) & 0x8000 != 0,
                20 + be32(&bytes[at + 16..]),
            ),
            other => panic!("one reply lies in another: {other:x}"),
        };
        assert!(!refused, "request {cookie} was refused");
        answered[cookie as usize] += done;
        if matches!(REQUESTS[cookie as usize], (FUA, ..) | (_, FLUSH, ..)) {
            assert!(durable_at(at) > before, "request {cookie} was answered, and is not durable");
        }
        at += length as usize;
    }
    assert_eq!(answered, [1; REQUESTS.len()], "some requests were answered never, or twice");
}

/// What a reader sends, a request at a time, and for each request the version that was written by
/// then.
struct Asks {
    requests: std::vec::IntoIter<Vec<u8>>,
    written: Arc<Mutex<u64>>,
    then: Arc<Mutex<Vec<u64>>>,
}

impl Read for Asks {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        thread::yield_now();
        let Some(request) = self.requests.next() else { return Ok(0) };
        into[..request.len()].copy_from_slice(&request);
        self.then.lock().push(*self.written.lock());
        Ok(request.len())
    }
}

/// What it gets.
struct Gets(Arc<Mutex<Vec<u8>>>);

impl Write for Gets {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Blocks that one client reads, one after the other, while another one writes them all again and
/// again.
const READ_BLOCKS: u64 = 10;

fn a_sequential_reader_beside_a_writer() {
    let store = store(disk());
    store.create_volume("disk", SIZE).unwrap();
    let exports = StoreExports(store);
    let volume = Exports::open(&exports, "disk").unwrap();
    let written = Arc::new(Mutex::new(0));
    let versions = written.clone();
    let writer = thread::spawn(move || {
        for version in 1..4 {
            volume.write(0, &vec![version; READ_BLOCKS as usize * 4096]).unwrap();
            *versions.lock() = u64::from(version);
            volume.flush().unwrap();
        }
    });
    let mut handshake = 3u32.to_be_bytes().to_vec();
    handshake.extend(option_bytes(7, &info_data("disk", &[])));
    let mut requests = vec![handshake];
    requests.extend(
        (0..READ_BLOCKS).map(|n| request_bytes(Mode::Simple, 0, READ, n, n * 4096, 4096)),
    );
    requests.push(request_bytes(Mode::Simple, 0, DISC, 99, 0, 0));
    let (then, got) = (Arc::default(), Arc::default());
    let asks = Asks { requests: requests.into_iter(), written, then: Arc::clone(&then) };
    let limits = Limits { read_ahead_bytes: 16 << 10, ..limits() };
    let ending = session_over(&exports, &limits, asks, Gets(Arc::clone(&got)));
    assert!(matches!(ending, Ending::Closed), "{ending:?}");
    writer.join().unwrap();
    let (bytes, then): (Vec<u8>, Vec<u64>) = (got.lock().clone(), then.lock().clone());
    let replies = &bytes[bytes.len() - READ_BLOCKS as usize * (16 + 4096)..];
    for (n, reply) in replies.chunks(16 + 4096).enumerate() {
        assert_eq!((be32(reply), be32(&reply[4..])), (0x6744_6698, 0));
        let (version, least) = (reply[16], then[1 + be64(&reply[8..]) as usize]);
        assert!(reply[16..].iter().all(|byte| *byte == version), "request {n} got a torn block");
        assert!(u64::from(version) >= least, "request {n} got {version}, written was {least}");
    }
}

#[test]
fn who_reads_ahead_gets_what_was_written_before_the_request() {
    schedules(150, a_sequential_reader_beside_a_writer);
}

#[test]
fn what_changed_since_it_was_read_ahead_is_found() {
    finds("what changed is still given", 200, a_sequential_reader_beside_a_writer);
}

fn two_connections() {
    let store = store(disk());
    store.create_volume("disk", SIZE).unwrap();
    let other = store.clone();
    let beside = thread::spawn(move || connection(&other));
    connection(&store);
    beside.join().unwrap();
}

#[test]
fn each_request_is_answered_once_and_when_it_is_durable() {
    schedules(60, two_connections);
}

#[test]
fn a_reply_that_lets_others_between_its_parts_is_found() {
    finds("a reply in pieces lets others between", 200, two_connections);
}

#[test]
fn a_helper_that_waits_before_it_looks_is_found() {
    finds("a helper waits before it looks", 200, two_connections);
}
