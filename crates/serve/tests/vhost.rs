//! vhost-user-blk: what a guest's driver sees, when all is well and when it is not.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod vhost_driver;
mod volumes;

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use onefold_core::VolumeLimits;
use onefold_serve::nbd::{Limits, Peer, Right, Rights, Server};
use rustix::fs::SealFlags;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost_driver::*;
use vm_memory::{Bytes, GuestAddress};
use volumes::{MemoryExports, MemoryVolume};

struct Served {
    volume: Arc<MemoryVolume>,
    server: Server,
    socket: PathBuf,
    guest: Guest,
    _dir: tempfile::TempDir,
}

const SIZE: u64 = 64 << 20;

fn served() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    let (exports, volume) = MemoryExports::one(SIZE);
    let mut server = Server::new(exports, Limits::default());
    server.add_vhost("disk", &socket).unwrap();
    server.start().unwrap();
    Served { volume, server, socket, guest: Guest::new(SealFlags::SHRINK), _dir: dir }
}

impl Served {
    fn start(&self, wants: Wants) -> Driver {
        Driver::start(&self.socket, &self.guest, wants).unwrap()
    }
}

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// All ways in which rings are used.
fn ways() -> [Wants; 4] {
    [0, INDIRECT, EVENT_IDX, INDIRECT | EVENT_IDX].map(|not| Wants { not, ..Wants::default() })
}

#[test]
fn what_was_written_is_read_in_every_kind_of_ring() {
    let served = served();
    let guest = &served.guest;
    for (n, wants) in ways().into_iter().enumerate() {
        let mut driver = served.start(wants);
        assert_eq!(driver.size(), SIZE);
        let queue = &mut driver.queues[0];
        let data = pattern(n as u8, 8192 + 512);
        assert_eq!(queue.write(guest, 7, &data), OK);
        assert_eq!(served.volume.peek(7 * 512, data.len()), data);
        assert_eq!(queue.read(guest, 7, data.len() as u32), (OK, data.clone()));
        assert_eq!(queue.read(guest, 8, 512), (OK, data[512..1024].to_vec()));
        assert!(served.volume.volatile() > 0);
        assert_eq!(queue.flush(guest), OK);
        assert_eq!(served.volume.volatile(), 0);
        let (status, id) = queue.act(guest, ID, 0, &[], 20);
        assert_eq!((status, &id[..5]), (OK, &b"disk\0"[..]));
        assert_eq!(queue.act(guest, 99, 0, &[], 0).0, UNSUPPORTED);
        // More than the ring has places, so that its indices go round.
        for i in 0..300u64 {
            assert_eq!(queue.write(guest, 64 + i, &pattern(i as u8, 512)), OK);
        }
        drop(driver);
        wait_until_left(&served);
    }
    assert_eq!(served.server.statistics().panics, 0);
}

fn wait_until_left(served: &Served) {
    for _ in 0..2000 {
        if served.server.statistics().connections == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the client is still there");
}

/// A moment in which what can come has come.
const MOMENT: Duration = Duration::from_millis(200);

#[test]
fn a_parked_flush_holds_up_nothing_and_is_answered() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    assert_eq!(queue.write(guest, 0, &[1; 512]), OK);
    served.volume.hold.store(true, SeqCst);
    let flush = queue.add(guest, FLUSH, 0, &[], 0);
    queue.show(guest);
    for i in 0..20 {
        assert_eq!(queue.write(guest, i, &[2; 512]), OK);
        assert_eq!(queue.read(guest, i, 512).0, OK);
    }
    let second = queue.add(guest, FLUSH, 0, &[], 0);
    queue.show(guest);
    assert_eq!(queue.wait_for(guest, MOMENT), None, "nothing is durable");
    served.volume.hold.store(false, SeqCst);
    let mut answered = [queue.wait(guest), queue.wait(guest)].map(|(slot, status, _)| {
        assert_eq!(status, OK);
        slot
    });
    answered.sort_unstable();
    let mut flushes = [flush, second];
    flushes.sort_unstable();
    assert_eq!((answered, served.volume.volatile()), (flushes, 0));
}

#[test]
fn a_volume_that_acknowledges_late_holds_up_no_later_requests() {
    let served = served();
    let guest = &served.guest;
    served.volume.late.store(true, SeqCst);
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    served.volume.hold.store(true, SeqCst);
    for n in 0..20 {
        queue.add(guest, OUT, 8 * n, &[n as u8 + 1; 4096], 0);
    }
    queue.show(guest);
    // Each of them is taken and read by others before the first is durable.
    assert_eq!(queue.read(guest, 8 * 19, 4096), (OK, vec![20; 4096]));
    assert_eq!(queue.wait_for(guest, MOMENT), None, "nothing is durable");
    served.volume.hold.store(false, SeqCst);
    for _ in 0..20 {
        assert_eq!(queue.wait(guest).1, OK);
    }
    assert_eq!(served.volume.volatile(), 0);
}

#[test]
fn changes_without_room_hold_up_nothing_and_are_made_when_there_is() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    assert_eq!(queue.write(guest, 0, &[1; 4096]), OK);
    served.volume.set_room(false);
    let changes = [
        queue.add(guest, OUT, 8, &[2; 4096], 0),
        queue.add(guest, DISCARD, 0, &range(16, 8, 0), 0),
        queue.add(guest, ZEROES, 0, &range(24, 8, 0), 0),
    ];
    queue.show(guest);
    for _ in 0..20 {
        assert_eq!(queue.read(guest, 0, 4096), (OK, vec![1; 4096]));
        assert_eq!(queue.flush(guest), OK);
    }
    assert!(served.volume.awaited() > 0);
    assert_eq!(served.volume.peek(4096, 1), [0]);
    assert_eq!(queue.wait_for(guest, MOMENT), None, "there is no room");
    served.volume.set_room(true);
    assert_eq!([0; 3].map(|_| queue.wait(guest)), changes.map(|slot| (slot, OK, 1)));
    assert_eq!(served.volume.peek(4096, 4096), [2; 4096]);
}

#[test]
fn a_write_of_which_one_piece_failed_late_is_an_error() {
    let served = served();
    let guest = &served.guest;
    served.volume.late.store(true, SeqCst);
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    let large = vec![1; 700 << 10];
    // The first piece fails, and the last one does not.
    for (refused, answer) in [(1, IOERR), (0, OK)] {
        served.volume.refused.store(refused, SeqCst);
        let slot = queue.add(guest, OUT, 0, &large, 0);
        queue.show(guest);
        assert_eq!(queue.wait(guest), (slot, answer, 1));
    }
}

#[test]
fn more_changes_than_may_wait_for_room_are_made_all_the_same() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    served.volume.set_room(false);
    for n in 0..120u64 {
        queue.add(guest, OUT, 8 * n, &[n as u8 + 1; 4096], 0);
    }
    queue.show(guest);
    // The queue waits with the first that may not, and the volume makes room for it; the rest waits.
    for _ in 0..114 {
        assert_eq!(queue.wait(guest).1, OK);
    }
    assert_eq!(queue.wait_for(guest, MOMENT), None);
    // A ring that stops has all of them made first.
    assert!(driver.frontend.get_vring_base(0).is_ok());
    for _ in 114..120 {
        assert_eq!(driver.queues[0].wait_for(guest, Duration::ZERO).unwrap().1, OK);
    }
    for block in 0..120u64 {
        assert_eq!(served.volume.peek(block * 4096, 1), [block as u8 + 1]);
    }
}

#[test]
fn who_does_not_flush_or_keeps_no_marks_hears_of_changes_when_they_are_durable() {
    let served = served();
    let guest = &served.guest;
    let never_flushes = Wants { not: F_FLUSH, ..Wants::default() };
    let no_marks = Wants { marks: false, ..Wants::default() };
    for wants in [never_flushes, no_marks] {
        let mut driver = served.start(wants);
        let queue = &mut driver.queues[0];
        for (kind, data) in [(OUT, vec![1; 512]), (DISCARD, range(8, 8, 0))] {
            served.volume.hold.store(true, SeqCst);
            queue.add(guest, kind, 0, &data, 0);
            queue.show(guest);
            assert_eq!(queue.wait_for(guest, MOMENT), None, "it is not durable");
            served.volume.hold.store(false, SeqCst);
            assert_eq!(queue.wait(guest).1, OK);
            assert_eq!(served.volume.volatile(), 0);
        }
        drop(driver);
        wait_until_left(&served);
    }
}

/// A range to discard or to fill with zeroes.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn ranges_are_discarded_and_filled_with_zeroes() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    let act = |queue: &mut Queue, kind, data: &[u8]| queue.act(guest, kind, 0, data, 0).0;
    assert_eq!(queue.write(guest, 0, &[7; 65_536]), OK);
    let two = [range(8, 8, 0), range(32, 8, 0)].concat();
    assert_eq!(act(queue, DISCARD, &two), OK);
    assert_eq!(act(queue, ZEROES, &range(16, 8, 1)), OK);
    assert_eq!(act(queue, ZEROES, &range(25, 2, 0)), OK);
    let mut expected = [7; 65_536];
    for zero in [8..16, 16..24, 25..27, 32..40] {
        expected[zero.start * 512..zero.end * 512].fill(0);
    }
    assert_eq!(served.volume.peek(0, 65_536), expected);
    assert_eq!(act(queue, DISCARD, &range(0, 8, 1)), UNSUPPORTED, "a flag of zeroes");
    assert_eq!(act(queue, ZEROES, &range(0, 8, 2)), UNSUPPORTED, "no flag");
    assert_eq!(act(queue, DISCARD, &range(SIZE / 512 - 1, 2, 0)), IOERR);
    assert_eq!(act(queue, DISCARD, &range(u64::MAX, 8, 0)), IOERR);
    assert_eq!(act(queue, DISCARD, &range(0, 8, 0)[..15]), IOERR);
    assert_eq!(act(queue, DISCARD, &range(0, 1, 0).repeat(33)), IOERR);
    assert_eq!(served.volume.peek(0, 65_536), expected);
}

#[test]
fn what_can_not_be_done_is_an_error_and_no_more() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants { not: INDIRECT, ..Wants::default() });
    let queue = &mut driver.queues[0];
    let end = SIZE / 512;
    assert_eq!(queue.write(guest, end - 1, &[1; 512]), OK);
    assert_eq!(queue.write(guest, end - 1, &[1; 1024]), IOERR);
    assert_eq!(queue.write(guest, u64::MAX / 512, &[1; 1024]), IOERR);
    assert_eq!(queue.write(guest, 0, &[1; 513]), IOERR);
    assert_eq!(queue.read(guest, end - 1, 1024).0, IOERR);
    assert_eq!(queue.read(guest, 0, 700).0, IOERR);
    assert_eq!(queue.read(guest, 0, 0).0, OK);
    let huge = [(32 << 20, 9 << 20), (32 << 20, 9 << 20)];
    offer_parts(queue, guest, OUT, &huge);
    assert_eq!(queue.wait(guest).1, IOERR, "more than a request may have");
    served.volume.set_bad(Some(1));
    let bad = queue.add(guest, IN, 8, &[], 512);
    let good = queue.add(guest, IN, 16, &[], 512);
    queue.show(guest);
    for _ in 0..2 {
        let (slot, status, bytes) = queue.wait(guest);
        assert_eq!((status, bytes), if slot == bad { (IOERR, 0) } else { (OK, 513) });
        assert!(slot == bad || slot == good);
    }
    served.volume.set_full(true);
    assert_eq!(queue.write(guest, 64, &[1; 512]), IOERR);
    served.volume.set_stopped();
    assert_eq!(queue.flush(guest), IOERR);
    let statistics = served.server.statistics();
    assert_eq!((statistics.in_flight, statistics.panics), (0, 0));
    assert_eq!(statistics.errors, 9);
}

#[test]
fn queues_work_beside_each_other() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants { queues: 3, ..Wants::default() });
    std::thread::scope(|scope| {
        for (n, queue) in driver.queues.iter_mut().enumerate() {
            scope.spawn(move || {
                for i in 0..200u64 {
                    let sector = n as u64 * 4096 + i * 8;
                    let data = pattern((i + 100 * n as u64) as u8, 4096);
                    assert_eq!(queue.write(guest, sector, &data), OK);
                    assert_eq!(queue.read(guest, sector, 4096), (OK, data));
                }
                assert_eq!(queue.flush(guest), OK);
            });
        }
    });
    assert_eq!(driver.queues[0].read(guest, 2 * 4096, 4096).1, pattern(200, 4096));
}

#[test]
fn many_requests_come_together_and_are_one_batch() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    let before = served.volume.read_batches.load(SeqCst);
    for i in 0..32 {
        queue.add(guest, IN, i * 8, &[], 4096);
    }
    queue.show(guest);
    for _ in 0..32 {
        assert_eq!(queue.wait(guest).1, OK);
    }
    assert!(served.volume.read_batches.load(SeqCst) - before <= 3);
    assert!(queue.kicks <= 2);
}

/// A chain of a header, `parts` of data and an answer in the ring's own table, offered at place 0.
fn offer_parts(queue: &mut Queue, guest: &Guest, kind: u32, parts: &[(u64, u32)]) {
    queue.reserve(0);
    let at = queue.at(0);
    guest.put(kind, at);
    guest.put(0u32, at + 4);
    guest.put(0u64, at + 8);
    guest.put(0xffu8, at + 16);
    queue.describe(guest, 0, (at, 16, NEXT, 1));
    let flags = if kind == IN { WRITE } else { 0 };
    for (n, (address, bytes)) in parts.iter().enumerate() {
        let place = n as u16 + 1;
        queue.describe(guest, place, (*address, *bytes, NEXT | flags, place + 1));
    }
    queue.describe(guest, parts.len() as u16 + 1, (at + 16, 1, WRITE, 0));
    queue.offer(guest, 0);
    queue.show(guest);
}

#[test]
fn requests_larger_than_the_buffer_go_piece_by_piece() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants { not: INDIRECT, ..Wants::default() });
    let queue = &mut driver.queues[0];
    // 3 MiB and some sectors, in parts that end in the middle of blocks.
    let parts = [(32 << 20, 700_003), (34 << 20, 1_400_000), (36 << 20, 1_045_725u32)];
    let all: usize = parts.iter().map(|(_, bytes)| *bytes as usize).sum();
    assert_eq!(all % 512, 0);
    let data = pattern(3, all);
    let mut from = 0;
    for (address, bytes) in parts {
        let piece = &data[from..from + bytes as usize];
        guest.memory.write_slice(piece, GuestAddress(address)).unwrap();
        from += bytes as usize;
    }
    offer_parts(queue, guest, OUT, &parts);
    assert_eq!(queue.wait(guest).1, OK);
    assert_eq!(served.volume.peek(0, all), data);
    let parts = parts.map(|(address, bytes)| (address + (8 << 20), bytes));
    offer_parts(queue, guest, IN, &parts);
    assert_eq!(queue.wait(guest), (0, OK, all as u32 + 1));
    let read: Vec<u8> =
        parts.iter().flat_map(|(address, bytes)| guest.bytes(*address, *bytes as usize)).collect();
    assert!(read == data);
}

#[test]
fn rule_47_a_second_client_is_refused() {
    let served = served();
    let mut driver = served.start(Wants::default());
    assert!(connect(&served.socket, Wants::default()).is_err());
    assert_eq!(driver.queues[0].write(&served.guest, 0, &[1; 512]), OK);
    drop(driver);
    wait_until_left(&served);
    let mut driver = served.start(Wants::default());
    assert_eq!(driver.queues[0].read(&served.guest, 0, 512), (OK, vec![1; 512]));
    assert_eq!(served.server.statistics().refused, 1);
}

struct ReadersOnly;

impl Rights for ReadersOnly {
    fn right(&self, _: Peer, _: &str) -> Right {
        Right::Read
    }
}

#[test]
fn what_may_only_be_read_says_so_and_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    let (exports, volume) = MemoryExports::one(SIZE);
    let mut server = Server::with_rights(exports, Arc::new(ReadersOnly), Limits::default());
    assert!(server.add_vhost("other", &socket).is_err(), "there is no such volume");
    server.add_vhost("disk", &socket).unwrap();
    server.start().unwrap();
    let guest = Guest::new(SealFlags::SHRINK);
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    assert_ne!(driver.features & RO, 0);
    let queue = &mut driver.queues[0];
    assert_eq!(queue.write(&guest, 0, &[1; 512]), IOERR);
    assert_eq!(queue.act(&guest, DISCARD, 0, &range(0, 8, 0), 0).0, IOERR);
    assert_eq!(queue.act(&guest, ZEROES, 0, &range(0, 8, 0), 0).0, IOERR);
    assert_eq!(queue.read(&guest, 0, 512), (OK, vec![0; 512]));
    assert_eq!((queue.flush(&guest), volume.peek(0, 512)), (OK, vec![0; 512]));
}

#[test]
fn rule_47_memory_that_can_shrink_is_refused() {
    let served = served();
    for seals in [SealFlags::empty(), SealFlags::GROW] {
        let guest = Guest::new(seals);
        let (frontend, _) = connect(&served.socket, Wants::default()).unwrap();
        assert!(share(&frontend, &guest).is_err());
        // A file that was cut off after all is one that was not sealed.
        guest.file.set_len(4096).unwrap();
        wait_until_left(&served);
    }
    assert!(served.guest.file.set_len(4096).is_err(), "sealed");
    served.start(Wants::default());
}

/// What a hostile guest does to its ring.
type Hostility = (&'static str, fn(&mut Queue, &Guest));

const HOSTILE: [Hostility; 12] = [
    ("an index far ahead", |queue, guest| queue.jump(guest, 129)),
    ("an index behind", |queue, guest| queue.jump(guest, u16::MAX)),
    ("a place that the ring lacks", |queue, guest| {
        queue.offer(guest, 128);
        queue.show(guest);
    }),
    ("a circle of buffers", |queue, guest| {
        queue.describe(guest, 0, (queue.at(0), 16, NEXT, 1));
        queue.describe(guest, 1, (queue.at(0), 16, NEXT, 0));
        queue.offer(guest, 0);
        queue.show(guest);
    }),
    ("a next buffer that the ring lacks", |queue, guest| {
        queue.describe(guest, 0, (queue.at(0), 16, NEXT, 500));
        queue.offer(guest, 0);
        queue.show(guest);
    }),
    ("a header outside the memory", |queue, guest| {
        queue.describe(guest, 0, (1 << 40, 16, NEXT, 1));
        queue.describe(guest, 1, (queue.at(0) + 16, 1, WRITE, 0));
        queue.offer(guest, 0);
        queue.show(guest);
    }),
    ("data outside the memory", |queue, guest| {
        offer_parts(queue, guest, OUT, &[((64 << 20) - 512, 1024)]);
    }),
    ("data at the end of all addresses", |queue, guest| {
        offer_parts(queue, guest, IN, &[(u64::MAX - 511, 1024)]);
    }),
    ("what it gives behind what it takes", |queue, guest| {
        queue.describe(guest, 0, (queue.at(0), 16, NEXT | WRITE, 1));
        queue.describe(guest, 1, (queue.at(0) + 16, 16, 0, 0));
        queue.offer(guest, 0);
        queue.show(guest);
    }),
    ("no room for an answer", |queue, guest| {
        queue.describe(guest, 0, (queue.at(0), 16, 0, 0));
        queue.offer(guest, 0);
        queue.show(guest);
    }),
    ("a table inside a table", |queue, guest| {
        let table = queue.at(0) + 0x1000;
        guest.put(table, table);
        guest.put(16u32, table + 8);
        guest.put(TABLE, table + 12);
        queue.describe(guest, 0, (table, 16, TABLE, 0));
        queue.offer(guest, 0);
        queue.show(guest);
    }),
    ("a table without an end", |queue, guest| {
        let table = queue.at(0) + 0x1000;
        for place in 0..2000u64 {
            guest.put(queue.at(0), table + 16 * place);
            guest.put(1u32, table + 16 * place + 8);
            guest.put(NEXT, table + 16 * place + 12);
            guest.put((place + 1) as u16, table + 16 * place + 14);
        }
        queue.describe(guest, 0, (table, 2000 * 16, TABLE, 0));
        queue.offer(guest, 0);
        queue.show(guest);
    }),
];

#[test]
fn rule_47_a_hostile_ring_stops_its_device_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let sockets = ["bad", "good"].map(|name| dir.path().join(name));
    let volumes = ["bad", "good"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    let mut server = Server::new(MemoryExports::of(volumes), Limits::default());
    for (name, socket) in ["bad", "good"].iter().zip(&sockets) {
        server.add_vhost(name, socket).unwrap();
    }
    server.start().unwrap();
    let (guest, other) = (Guest::new(SealFlags::SHRINK), Guest::new(SealFlags::SHRINK));
    let mut good = Driver::start(&sockets[1], &other, Wants::default()).unwrap();
    for (what, act) in HOSTILE {
        let wants = Wants { queues: 2, ..Wants::default() };
        let mut bad = Driver::start(&sockets[0], &guest, wants).unwrap();
        act(&mut bad.queues[0], &guest);
        // The other queue of the device is stopped too, a moment later.
        let began = Instant::now();
        loop {
            bad.queues[1].add(&guest, IN, 0, &[], 512);
            bad.queues[1].show(&guest);
            match bad.queues[1].wait_for(&guest, MOMENT) {
                None => break,
                Some(_) => assert!(began.elapsed() < Duration::from_secs(10), "{what}"),
            }
        }
        assert_eq!(bad.queues[0].wait_for(&guest, Duration::ZERO), None, "{what}");
        assert_eq!(good.queues[0].write(&other, 8, &[5; 512]), OK);
        // The guest's driver may start again.
        assert!(bad.frontend.get_vring_base(0).is_ok(), "{what}");
        drop(bad);
        let began = Instant::now();
        while server.statistics().connections > 1 && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let mut bad = Driver::start(&sockets[0], &guest, Wants::default()).unwrap();
    assert_eq!(bad.queues[0].write(&guest, 0, &[1; 512]), OK);
    assert_eq!(server.statistics().panics, 0);
}

#[test]
fn rule_47_a_request_is_not_taken_twice() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    let queue = &mut driver.queues[0];
    served.volume.hold.store(true, SeqCst);
    let flush = queue.add(guest, FLUSH, 0, &[], 0);
    // The same one again and again: what waits would have no end.
    for _ in 0..50 {
        queue.offer(guest, flush);
    }
    queue.show(guest);
    std::thread::sleep(MOMENT);
    served.volume.hold.store(false, SeqCst);
    assert_eq!(queue.wait(guest), (flush, OK, 1));
    assert_eq!(queue.wait_for(guest, MOMENT), None);
}

#[test]
fn messages_that_the_protocol_does_not_have_end_the_connection() {
    let served = served();
    for bytes in [&[0xff; 64][..], &[5, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]] {
        let mut stream = UnixStream::connect(&served.socket).unwrap();
        std::io::Write::write_all(&mut stream, bytes).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
        wait_until_left(&served);
    }
    let (frontend, _) = connect(&served.socket, Wants::default()).unwrap();
    assert!(frontend.set_vring_num(64, 128).is_err(), "no such queue");
    wait_until_left(&served);
    let (frontend, _) = connect(&served.socket, Wants::default()).unwrap();
    assert!(frontend.set_vring_num(0, 100).is_err(), "no power of two");
    wait_until_left(&served);
    let driver = served.start(Wants::default());
    assert!(driver.frontend.set_vring_base(0, 5).is_err(), "a ring that runs");
    wait_until_left(&served);
    served.start(Wants::default());
}

#[test]
fn a_client_learns_that_the_volume_has_grown() {
    let served = served();
    let mut driver = served.start(Wants::default());
    let (mut news, theirs) = UnixStream::pair().unwrap();
    driver.frontend.set_backend_request_fd(&theirs).unwrap();
    served.volume.size.store(2 * SIZE, SeqCst);
    news.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut message = [0; 12];
    news.read_exact(&mut message).unwrap();
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(driver.size(), 2 * SIZE);
    assert_eq!(driver.queues[0].write(&served.guest, SIZE / 512, &[1; 512]), OK);
}

#[test]
fn a_ring_goes_on_in_other_memory_and_where_it_stopped() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    assert_eq!(driver.queues[0].write(guest, 0, &[1; 512]), OK);
    share(&driver.frontend, guest).unwrap();
    assert_eq!(driver.queues[0].read(guest, 0, 512), (OK, vec![1; 512]));
    assert_eq!(driver.frontend.get_vring_base(0).unwrap(), 2);
    driver.queues[0].add(guest, IN, 0, &[], 512);
    driver.queues[0].show(guest);
    assert_eq!(driver.queues[0].wait_for(guest, MOMENT), None, "it is stopped");
    driver.set_up(guest, 0).unwrap();
    assert_eq!(driver.queues[0].wait(guest).1, OK);
    driver.frontend.set_vring_enable(0, false).unwrap();
    driver.queues[0].add(guest, IN, 0, &[], 512);
    driver.queues[0].show(guest);
    assert_eq!(driver.queues[0].wait_for(guest, MOMENT), None, "it is disabled");
    driver.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(driver.queues[0].wait(guest).1, OK);
    driver.frontend.reset_device().unwrap();
    driver.queues[0].add(guest, IN, 0, &[], 512);
    driver.queues[0].show(guest);
    assert_eq!(driver.queues[0].wait_for(guest, MOMENT), None, "it was reset");
    driver.set_up(guest, 0).unwrap();
    assert_eq!(driver.queues[0].wait(guest).1, OK);
}

#[test]
fn what_a_killed_server_had_taken_is_done_again_and_once() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    assert_eq!(driver.queues[0].write(guest, 0, &[1; 512]), OK);
    let file = driver.in_flight.as_ref().unwrap().1.try_clone().unwrap();
    // The client goes; then a server takes a request, marks it, and is killed.
    driver.frontend.reset_owner().unwrap();
    let Driver { frontend, mut queues, features, in_flight } = driver;
    drop(frontend);
    wait_until_left(&served);
    let queue = &mut queues[0];
    let marked = queue.add(guest, OUT, 8, &[2; 512], 0);
    let waiting = queue.add(guest, OUT, 16, &[3; 512], 0);
    queue.show(guest);
    let mark = 16 + 16 * u64::from(marked);
    file.write_all_at(&[1], mark).unwrap();
    let (frontend, _) = connect(&served.socket, Wants::default()).unwrap();
    let mut driver = Driver { frontend, queues, features, in_flight };
    let before = served.volume.volatile();
    driver.run(guest).unwrap();
    let answered = [driver.queues[0].wait(guest), driver.queues[0].wait(guest)];
    assert_eq!(answered.map(|(slot, status, _)| (slot, status)), [(marked, OK), (waiting, OK)]);
    assert_eq!(driver.queues[0].wait_for(guest, MOMENT), None);
    assert_eq!(served.volume.volatile() - before, 2);
    assert_eq!(driver.queues[0].read(guest, 8, 512), (OK, vec![2; 512]));
}

#[test]
fn a_volume_that_panics_costs_its_client_and_no_more() {
    let served = served();
    let guest = &served.guest;
    for kind in [IN, FLUSH] {
        let mut driver = served.start(Wants { queues: 2, ..Wants::default() });
        // The helper of the queue runs.
        assert_eq!(driver.queues[0].flush(guest), OK);
        served.volume.panic.store(true, SeqCst);
        driver.queues[0].add(guest, kind, 0, &[], if kind == IN { 512 } else { 0 });
        driver.queues[0].show(guest);
        if kind == IN {
            // The client sees it, and may connect again.
            wait_until_left(&served);
        } else {
            assert_eq!(driver.queues[0].wait(guest).1, IOERR);
        }
        served.volume.panic.store(false, SeqCst);
        drop(driver);
        wait_until_left(&served);
        let mut driver = served.start(Wants::default());
        assert_eq!(driver.queues[0].read(guest, 0, 512).0, OK);
        drop(driver);
        wait_until_left(&served);
    }
    assert_eq!(served.server.statistics().panics, 2);
}

#[test]
fn a_volume_has_its_pace_whoever_the_client_is() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("vm.sock");
    let limits = VolumeLimits { iops: 100, bytes: 0 };
    let volumes = [("disk".to_owned(), MemoryVolume::new(SIZE))];
    let mut server =
        Server::new(MemoryExports::limited(volumes, "disk", limits), Limits::default());
    server.add_vhost("disk", &socket).unwrap();
    server.start().unwrap();
    let guest = Guest::new(SealFlags::SHRINK);
    let mut driver = Driver::start(&socket, &guest, Wants::default()).unwrap();
    let began = Instant::now();
    for i in 0..250 {
        assert_eq!(driver.queues[0].write(&guest, i, &[1; 512]), OK);
    }
    assert!(began.elapsed() > Duration::from_millis(900), "{:?}", began.elapsed());
}

#[test]
fn a_server_that_stops_answers_what_it_took() {
    let served = served();
    let guest = &served.guest;
    let mut driver = served.start(Wants::default());
    served.volume.flush_us.store(300_000, SeqCst);
    for i in 0..10 {
        driver.queues[0].add(guest, OUT, i * 8, &[1; 512], 0);
    }
    driver.queues[0].add(guest, FLUSH, 0, &[], 0);
    driver.queues[0].show(guest);
    for _ in 0..10 {
        assert_eq!(driver.queues[0].wait(guest).1, OK);
    }
    served.server.stop(Duration::from_secs(10)).unwrap();
    let last = driver.queues[0].wait_for(guest, Duration::ZERO).unwrap();
    assert_eq!((last.1, served.volume.volatile()), (OK, 0));
    assert!(!served.socket.exists());
}
