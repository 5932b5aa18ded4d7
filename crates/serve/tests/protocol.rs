//! Every option and every command of the protocol, in each of its three ways of talking.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use onefold_core::Exports;
use onefold_serve::nbd::{Limits, Server};
use raw_client::*;
use volumes::{MemoryExports, MemoryVolume};

const SIZE: u64 = 64 << 20;
/// The flags of a volume before anything is negotiated.
const FLAGS: u16 = 0b1101_0110_1101;

struct Served {
    volume: Arc<MemoryVolume>,
    socket: PathBuf,
    _server: Server,
    _dir: tempfile::TempDir,
}

fn serve(exports: Arc<dyn Exports>, volume: Arc<MemoryVolume>) -> Served {
    serve_with(exports, volume, Limits::default())
}

fn serve_with(exports: Arc<dyn Exports>, volume: Arc<MemoryVolume>, limits: Limits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let mut server = Server::new(exports, limits);
    server.add_unix(&socket).unwrap();
    server.start().unwrap();
    Served { volume, socket, _server: server, _dir: dir }
}

fn served() -> Served {
    let (exports, volume) = MemoryExports::one(SIZE);
    serve(exports, volume)
}

fn served_with(limits: Limits) -> Served {
    let (exports, volume) = MemoryExports::one(SIZE);
    serve_with(exports, volume, limits)
}

fn three() -> Served {
    let volume = MemoryVolume::new(SIZE);
    let volumes = ["a", "b", "disk"].map(|name| {
        (name.to_owned(), if name == "disk" { volume.clone() } else { MemoryVolume::new(4096) })
    });
    serve(MemoryExports::of(volumes), volume)
}

fn start(served: &Served) -> Raw {
    let mut raw = Raw::connect(&served.socket).unwrap();
    raw.send(&3u32.to_be_bytes());
    raw
}

#[test]
fn export_name_gives_size_and_flags_with_and_without_zeroes() {
    let served = served();
    for (client_flags, zeroes) in [(1u32, 124), (3, 0)] {
        let mut raw = Raw::connect(&served.socket).unwrap();
        raw.send(&client_flags.to_be_bytes());
        raw.send(&option_bytes(1, b"disk"));
        let reply = raw.take(10 + zeroes).unwrap();
        assert_eq!((be64(&reply), be16(&reply[8..])), (SIZE, FLAGS));
        assert_eq!(raw.write(0, 0, b"hello"), 0);
        assert_eq!(raw.read(0, 0, 6).unwrap(), b"hello\0");
    }
    let mut raw = start(&served);
    raw.send(&option_bytes(1, b"nothing"));
    assert!(raw.closed(), "this option has no other way to say no");
}

#[test]
fn unknown_handshake_flags_end_the_connection() {
    let served = served();
    let mut raw = Raw::connect(&served.socket).unwrap();
    raw.send(&7u32.to_be_bytes());
    assert!(raw.closed());
}

#[test]
fn list_names_all_volumes() {
    let served = three();
    let mut raw = start(&served);
    let replies = raw.option(3, &[]);
    assert_eq!(replies.len(), 4);
    assert_eq!(replies[0], (2, b"\0\0\0\x01a".to_vec()));
    assert_eq!(replies[2], (2, b"\0\0\0\x04disk".to_vec()));
    assert_eq!(raw.option_end(3, b"x"), ERR_INVALID);
}

#[test]
fn info_tells_what_go_will_do_and_the_handshake_goes_on() {
    let served = three();
    let mut raw = start(&served);
    let replies = raw.option(6, &info_data("disk", &[1, 2, 3, 77]));
    let mut export = vec![0, 0];
    export.extend_from_slice(&SIZE.to_be_bytes());
    export.extend_from_slice(&FLAGS.to_be_bytes());
    assert_eq!(replies[0], (3, export));
    assert_eq!(replies[1], (3, b"\0\x01disk".to_vec()));
    assert_eq!(&replies[2].1[..2], b"\0\x02");
    assert_eq!(replies[3], (3, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0".to_vec()));
    assert_eq!(replies[4..], [(ACK, vec![])]);

    assert_eq!(raw.option_end(6, &info_data("nothing", &[])), ERR_UNKNOWN);
    assert_eq!(
        raw.option_end(7, &info_data("", &[])),
        ERR_UNKNOWN,
        "the empty name is ambiguous here"
    );
    assert_eq!(raw.option_end(7, &info_data(&"x".repeat(300), &[])), ERR_UNKNOWN);
    assert_eq!(raw.option_end(7, &info_data(&"x".repeat(5000), &[])), ERR_TOO_BIG);
    assert_eq!(raw.option_end(7, b"\0\0\0\x04disk"), ERR_INVALID);
    assert_eq!(raw.option_end(7, b"\xff\xff\xff\xffdisk\0\0"), ERR_INVALID);
    assert_eq!(raw.option_end(7, b"\0\0\0\x04disk\0\x01\0\x01!"), ERR_INVALID);
    assert_eq!(raw.option_end(7, b"\0\0\0\x02\xff\xfe\0\0"), ERR_UNKNOWN);
    assert_eq!(raw.option_end(7, &info_data("disk", &[])), ACK);
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
}

#[test]
fn the_empty_name_means_the_only_volume() {
    let served = served();
    let mut raw = start(&served);
    let replies = raw.option(7, &info_data("", &[1]));
    assert_eq!(replies[1], (3, b"\0\x01disk".to_vec()));
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
}

#[test]
fn flags_follow_what_was_negotiated() {
    let served = served();
    let flags =
        |raw: &mut Raw, option| be16(&raw.option(option, &info_data("disk", &[]))[0].1[10..]);
    let mut raw = start(&served);
    assert_eq!(flags(&mut raw, 6), FLAGS);
    raw.negotiate(Mode::Structured);
    assert_eq!(flags(&mut raw, 6), FLAGS | 1 << 7);
    raw.negotiate(Mode::Extended);
    assert_eq!(flags(&mut raw, 6), FLAGS | 1 << 7 | 1 << 12);
    assert_eq!(flags(&mut raw, 7), FLAGS | 1 << 7, "no context was set");
    let mut raw = start(&served);
    raw.negotiate(Mode::Extended);
    raw.option(10, &meta_data("disk", &["base:allocation"]));
    assert_eq!(flags(&mut raw, 7), FLAGS | 1 << 7 | 1 << 12);
}

#[test]
fn modes_are_negotiated_once_and_never_down() {
    let served = served();
    let mut raw = start(&served);
    assert_eq!(raw.option_end(8, b"x"), ERR_INVALID);
    assert_eq!(raw.option_end(11, b"x"), ERR_INVALID);
    assert_eq!(raw.option_end(8, &[]), ACK);
    assert_eq!(raw.option_end(8, &[]), ERR_INVALID);
    assert_eq!(raw.option_end(11, &[]), ACK);
    assert_eq!(raw.option_end(11, &[]), ERR_INVALID);
    assert_eq!(raw.option_end(8, &[]), ERR_EXT_HEADER_REQD);
}

#[test]
fn metadata_contexts_are_listed_and_set() {
    let served = three();
    let mut raw = start(&served);
    assert_eq!(
        raw.option_end(9, &meta_data("disk", &[])),
        ERR_INVALID,
        "structured replies come first"
    );
    assert_eq!(raw.option_end(10, &meta_data("disk", &[])), ERR_INVALID);
    raw.negotiate(Mode::Structured);
    let found = [(4, b"\0\0\0\0base:allocation".to_vec()), (ACK, vec![])];
    assert_eq!(raw.option(9, &meta_data("disk", &[])), found);
    assert_eq!(raw.option(9, &meta_data("disk", &["base:"])), found);
    assert_eq!(raw.option(9, &meta_data("disk", &["x:y", "base:allocation"])), found);
    assert_eq!(raw.option(9, &meta_data("disk", &["x:y"])), [(ACK, vec![])]);
    assert_eq!(raw.option_end(9, &meta_data("nothing", &[])), ERR_UNKNOWN);
    assert_eq!(
        raw.option(10, &meta_data("disk", &["base:"])),
        [(ACK, vec![])],
        "a set takes whole names"
    );
    assert_eq!(raw.option(10, &meta_data("disk", &["base:allocation"])).len(), 2);
    assert_eq!(raw.option_end(10, &meta_data("disk", &["q"; 65])), ERR_INVALID);
    assert_eq!(raw.option_end(10, b"\0\0\0\x04disk\0\0\0\x01\xff\xff\xff\xff"), ERR_INVALID);
    // The failed set took the context away again.
    assert_eq!(raw.option_end(7, &info_data("disk", &[])), ACK);
    assert_eq!(raw.act(0, BLOCK_STATUS, 0, 4096, &[]), 22);
}

#[test]
fn a_context_of_one_volume_is_not_used_for_another() {
    let served = three();
    let mut raw = start(&served);
    raw.negotiate(Mode::Structured);
    assert_eq!(raw.option_end(10, &meta_data("a", &["base:allocation"])), ACK);
    assert_eq!(raw.option_end(7, &info_data("disk", &[])), ACK);
    assert_eq!(raw.act(0, BLOCK_STATUS, 0, 4096, &[]), 22);
}

#[test]
fn unknown_options_and_tls_are_refused_and_the_handshake_goes_on() {
    let served = served();
    let mut raw = start(&served);
    for (option, data) in [(5, &b""[..]), (4, b"x"), (12, b""), (0, b""), (u32::MAX, &[7; 1000])] {
        assert_eq!(raw.option_end(option, data), ERR_UNSUP);
    }
    assert_eq!(raw.option_end(2, &[]), ACK);
    assert!(raw.closed());
}

#[test]
fn reads_and_writes_of_any_alignment() {
    let served = served();
    for mode in MODES {
        let mut raw = Raw::go(&served.socket, mode);
        let data: Vec<u8> = (1..=255).cycle().take(20_000).collect();
        for (offset, length) in [
            (0, 1),
            (4095, 2),
            (1, 4096),
            (8192, 4096),
            (100, 20_000),
            (SIZE - 7, 7),
            (5, 0),
            (SIZE, 0),
        ] {
            assert_eq!(raw.write(0, offset, &data[..length]), 0);
            assert_eq!(served.volume.peek(offset, length), &data[..length]);
            assert_eq!(raw.read(0, offset, length).unwrap(), &data[..length]);
        }
        assert_eq!(raw.act(0, TRIM, 0, SIZE, &[]), 0);
        raw.request(0, DISC, 0, 0, &[]);
        assert!(raw.closed());
    }
}

#[test]
fn large_reads_and_writes_pass_in_pieces() {
    let served = served();
    let data: Vec<u8> = (0..32usize << 20).map(|i| (i >> 9) as u8 | 1).collect();
    for mode in MODES {
        let mut raw = Raw::go(&served.socket, mode);
        for (offset, length) in [(0, 32 << 20), (4097, (1 << 20) + 77), (511, 600 << 10)] {
            assert_eq!(raw.write(FUA, offset, &data[..length]), 0);
            assert_eq!(served.volume.volatile(), 0);
            assert!(raw.read(0, offset, length).unwrap() == data[..length]);
            if mode != Mode::Simple {
                assert!(raw.read(DF, offset, length).unwrap() == data[..length]);
            }
        }
        assert_eq!(raw.read(0, 0, (32 << 20) + 1), Err(22));
        if mode != Mode::Simple {
            assert_eq!(raw.read(DF, 0, (32 << 20) + 1), Err(75));
        }
    }
}

#[test]
fn zeroes_travel_as_holes_unless_fragments_are_unwanted() {
    let served = served();
    for mode in [Mode::Structured, Mode::Extended] {
        let mut raw = Raw::go(&served.socket, mode);
        assert_eq!(raw.write(0, 1 << 20, &[7; 4096]), 0);
        let start = (1 << 20) - 65536;
        let cookie = raw.request(0, READ, start, 131_072, &[]);
        assert_eq!(
            raw.reply(cookie, 0),
            [
                Content::Hole(start, 65536),
                Content::Data(1 << 20, vec![7; 4096]),
                Content::Hole((1 << 20) + 4096, 61440)
            ]
        );
        let cookie = raw.request(DF, READ, start, 131_072, &[]);
        assert!(matches!(&raw.reply(cookie, 0)[..],
                [Content::Data(at, bytes)] if *at == start && bytes.len() == 131_072));
        let cookie = raw.request(0, READ, 0, 0, &[]);
        assert_eq!(raw.reply(cookie, 0), [Content::None]);
        assert_eq!(raw.act(0, WRITE_ZEROES, 1 << 20, 4096, &[]), 0);
    }
}

#[test]
fn reads_of_a_pipeline_reach_the_volume_as_one_batch() {
    let served = served();
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    assert_eq!(raw.write(0, 0, &[1; 65536]), 0);
    let before = served.volume.read_batches.load(SeqCst);
    // More would be read in two parts, by two threads.
    let requests: Vec<u8> =
        (0..7).flat_map(|i| request_bytes(Mode::Simple, 0, READ, i, i * 4096, 4096)).collect();
    raw.send(&requests);
    for i in 0..7 {
        let chunk = raw.chunk(4096).unwrap();
        assert_eq!((chunk.cookie, chunk.content), (i, Content::Data(u64::MAX, vec![1; 4096])));
    }
    assert_eq!(served.volume.read_batches.load(SeqCst) - before, 1);
}

#[test]
fn many_large_reads_under_way_are_each_answered_once_with_their_data() {
    const LENGTH: u64 = 128 << 10;
    let served = served();
    let mut raw = Raw::go(&served.socket, Mode::Simple);
    let data: Vec<u8> = (0..64 * LENGTH as usize).map(|i| (i / 4096) as u8 | 1).collect();
    assert_eq!(raw.write(0, 0, &data), 0);
    for _ in 0..5 {
        let requests: Vec<u8> = (0..64)
            .flat_map(|i| request_bytes(Mode::Simple, 0, READ, i, i * LENGTH, LENGTH))
            .collect();
        raw.send(&requests);
        let mut answered: Vec<u64> = Vec::new();
        for _ in 0..64 {
            let chunk = raw.chunk(LENGTH as usize).unwrap();
            let start = (chunk.cookie * LENGTH) as usize;
            assert!(
                chunk.content
                    == Content::Data(u64::MAX, data[start..start + LENGTH as usize].to_vec())
            );
            answered.push(chunk.cookie);
        }
        answered.sort_unstable();
        assert!(answered.into_iter().eq(0..64));
    }
}

#[test]
fn trims_and_zeroes_of_any_alignment_show_in_the_status() {
    let served = served();
    for mode in [Mode::Structured, Mode::Extended] {
        let mut raw = Raw::go(&served.socket, mode);
        assert_eq!(raw.write(0, 0, &[9; 40960]), 0);
        assert_eq!(raw.act(0, TRIM, 4096, 8192, &[]), 0);
        assert_eq!(raw.act(NO_HOLE | FAST_ZERO, WRITE_ZEROES, 16384, 4096, &[]), 0);
        assert_eq!(raw.act(FAST_ZERO | FUA, WRITE_ZEROES, 20480, 4096, &[]), 0);
        assert_eq!(raw.act(0, WRITE_ZEROES, 100, 50, &[]), 0);
        assert_eq!(served.volume.peek(99, 52), [&[9][..], &[0; 50], &[9]].concat());
        let cookie = raw.request(0, BLOCK_STATUS, 0, SIZE, &[]);
        let whole = vec![
            (4096, 0),
            (8192, 3),
            (4096, 0),
            (4096, 2),
            (4096, 3),
            (16384, 0),
            (SIZE - 40960, 3),
        ];
        assert_eq!(raw.reply(cookie, 0), [Content::Status(whole)]);
        let cookie = raw.request(REQ_ONE, BLOCK_STATUS, 4097, 100_000, &[]);
        assert_eq!(raw.reply(cookie, 0), [Content::Status(vec![(8191, 3)])]);
        assert_eq!(raw.act(0, BLOCK_STATUS, 0, 0, &[]), 22);
        assert_eq!(raw.act(0, BLOCK_STATUS, SIZE, 1, &[]), 22);
        assert_eq!(raw.act(0, CACHE, 0, SIZE, &[]), 0);
        assert_eq!(raw.act(0, TRIM, 0, SIZE, &[]), 0);
    }
    assert_eq!(served.volume.prefetches.load(SeqCst), 2);
}

#[test]
fn a_status_request_can_name_its_contexts_in_a_payload() {
    let served = served();
    let mut raw = Raw::go(&served.socket, Mode::Extended);
    let payload = |length: u64, contexts: &[u32]| {
        let mut payload = length.to_be_bytes().to_vec();
        contexts.iter().for_each(|context| payload.extend_from_slice(&context.to_be_bytes()));
        payload
    };
    let good = payload(8192, &[1]);
    let cookie = raw.request(PAYLOAD_LEN, BLOCK_STATUS, 4096, good.len() as u64, &good);
    assert_eq!(raw.reply(cookie, 0), [Content::Status(vec![(8192, 3)])]);
    for bad in [
        payload(8192, &[2]),
        payload(8192, &[]),
        payload(8192, &[1, 1]),
        payload(SIZE, &[1]),
        payload(0, &[1]),
        vec![1; 7],
    ] {
        assert_eq!(raw.act(PAYLOAD_LEN, BLOCK_STATUS, 4096, bad.len() as u64, &bad), 22);
    }
    // Payloads of commands that take none are skipped.
    assert_eq!(raw.act(PAYLOAD_LEN, FLUSH, 0, 100, &[0; 100]), 22);
    assert_eq!(raw.act(PAYLOAD_LEN, BLOCK_STATUS, 0, 1 << 20, &vec![0; 1 << 20]), 22);
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
}

#[test]
fn ranges_beyond_the_end_have_the_errors_of_the_protocol() {
    let served = served();
    for mode in MODES {
        let mut raw = Raw::go(&served.socket, mode);
        let write = if mode == Mode::Extended { PAYLOAD_LEN } else { 0 };
        for offset in [SIZE - 1, SIZE, 1 << 63, u64::MAX - 1, u64::MAX] {
            assert_eq!(raw.read(0, offset, 2), Err(22));
            assert_eq!(raw.act(write, WRITE, offset, 2, b"xx"), 28);
            assert_eq!(raw.act(0, TRIM, offset, 2, &[]), 22);
            assert_eq!(raw.act(0, CACHE, offset, 2, &[]), 22);
            assert_eq!(raw.act(0, WRITE_ZEROES, offset, 2, &[]), 28);
        }
        assert_eq!(raw.act(write, WRITE, 0, (32 << 20) + 1, &vec![0; (32 << 20) + 1]), 22);
        for command in [8, 9, 100, u16::MAX] {
            assert_eq!(raw.act(0, command, 0, 0, &[]), 22);
        }
        assert_eq!(raw.act(1 << 9, FLUSH, 0, 0, &[]), 22);
        assert_eq!(raw.act(DF, FLUSH, 0, 0, &[]), 22);
        assert_eq!(raw.act(1 << 9 | write, WRITE, 0, 3, b"abc"), 22);
        assert_eq!(served.volume.peek(0, 3), [0; 3]);
        assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0, "the stream is still understood");
    }
}

#[test]
fn errors_of_the_volume_reach_the_client() {
    let served = served();
    let mut raw = Raw::go(&served.socket, Mode::Structured);
    assert_eq!(raw.write(0, 0, &[5; 3 * 4096]), 0);
    served.volume.set_bad(Some(1));
    let cookie = raw.request(0, READ, 100, 12_000, &[]);
    assert_eq!(
        raw.reply(cookie, 0),
        [Content::Error(5, "block 1 fails its checksum".to_owned(), Some(100))]
    );
    // One bad read in a pipeline does not touch the others.
    let requests: Vec<u8> =
        (0..3).flat_map(|i| request_bytes(Mode::Structured, 0, READ, i, i * 4096, 4096)).collect();
    raw.send(&requests);
    for i in 0..3 {
        let chunk = raw.chunk(0).unwrap();
        assert_eq!((chunk.cookie, matches!(chunk.content, Content::Error(5, _, _))), (i, i == 1));
    }
    // A large read in pieces ends at the piece that fails.
    served.volume.set_bad(Some((3 << 20) / 4096));
    assert_eq!(raw.read(0, 0, 8 << 20), Err(5));
    assert_eq!(raw.read(DF, 0, 8 << 20), Err(5));
    served.volume.set_bad(None);
    served.volume.set_full(true);
    assert_eq!(raw.write(0, 0, &[6; 4096]), 0, "an overwrite needs no room");
    assert_eq!(raw.write(FUA, 1 << 20, &[6; 4096]), 28);
    assert_eq!(raw.write(FUA, 1 << 20, &vec![6; 8 << 20]), 28);
    assert_eq!(raw.act(0, TRIM, 0, 4096, &[]), 0);
    served.volume.set_stopped();
    assert_eq!(raw.write(0, 8192, &[6; 10]), 5);
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 5);
    assert_eq!(raw.read(0, 8192, 1).unwrap(), [5]);
}

#[test]
fn a_reply_that_has_begun_and_cannot_be_completed_ends_the_connection() {
    let served = served();
    for (mode, flags, announced) in
        [(Mode::Simple, 0, 16), (Mode::Structured, DF, 28), (Mode::Extended, DF, 40)]
    {
        let mut raw = Raw::go(&served.socket, mode);
        // 8 MiB are read once in 16 pieces, and the disk breaks in the middle of the second time.
        served.volume.fail_after.store(served.volume.read_batches.load(SeqCst) + 24, SeqCst);
        raw.request(flags, READ, 0, 8 << 20, &[]);
        let mut bytes = Vec::new();
        raw.stream.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), announced + (4 << 20), "never an error in the place of data");
        served.volume.fail_after.store(0, SeqCst);
    }
}

#[test]
fn with_no_memory_to_spare_large_requests_are_served_in_small_pieces() {
    let limits = Limits { connections: 4, places: 2, ..Limits::default() };
    let served = served_with(Limits { buffer_bytes: limits.needed_bytes(), ..limits });
    let data: Vec<u8> = (0..6 << 20).map(|n: u32| (n >> 9) as u8 | 1).collect();
    for (mode, flags) in
        [(Mode::Simple, 0), (Mode::Structured, 0), (Mode::Structured, DF), (Mode::Extended, 0)]
    {
        let mut raw = Raw::go(&served.socket, mode);
        assert_eq!(raw.write(0, 4096, &data), 0);
        for (offset, length) in [(4096_u64, 6 << 20), (5000, 40_000), (4097, 1), (12_000, 1 << 20)]
        {
            let from = offset as usize - 4096;
            assert!(
                raw.read(flags, offset, length).unwrap() == data[from..from + length],
                "{mode:?} {offset} {length}"
            );
        }
    }
}

#[test]
fn replies_that_pile_up_are_sent_before_the_batch_ends() {
    let served = served();
    let mut raw = Raw::go(&served.socket, Mode::Structured);
    // An error is a reply with a text; a receive buffer holds thousands of requests.
    let requests: Vec<u8> =
        (0..2_000).flat_map(|i| request_bytes(Mode::Structured, 0, READ, i, u64::MAX, 1)).collect();
    raw.send(&requests);
    for i in 0..2_000 {
        assert_eq!(raw.chunk(0).unwrap().cookie, i);
    }
}
