//! Rule 12 of SECURITY.md: neither a peer nor, within a peer, a volume keeps another one from
//! working.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use onefold_core::VolumeLimits;
use onefold_serve::nbd::{Limits, Peer, Right, Rights, Server};
use raw_client::*;
use volumes::{MemoryExports, MemoryVolume};

const SIZE: u64 = 8 << 20;

/// A server of two volumes: `greedy` is attacked with, and `disk` belongs to somebody else. Both
/// clients are one user, as the guests of one hypervisor are.
struct Shared {
    server: Server,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Shared {
    fn new(limits: Limits) -> Shared {
        let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
        Shared::of(MemoryExports::of(volumes), limits)
    }

    fn of(exports: Arc<MemoryExports>, limits: Limits) -> Shared {
        Shared::with(Server::new(exports, limits))
    }

    fn with(mut server: Server) -> Shared {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nbd.sock");
        server.add_unix(&socket).unwrap();
        server.start().unwrap();
        Shared { server, socket, _dir: dir }
    }

    /// The other one comes, works, and goes; it waits for each answer, and for none longer than 20
    /// s.
    fn neighbour_works(&self) {
        let mut raw = Raw::go(&self.socket, Mode::Structured);
        for round in 0..20u8 {
            assert_eq!(raw.write(0, u64::from(round) << 12, &[round | 1; 4096]), 0);
            assert_eq!(raw.read(0, u64::from(round) << 12, 4096).unwrap(), [round | 1; 4096]);
            assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
        }
    }

    fn end(self) {
        assert_eq!(self.server.statistics().panics, 0);
        self.server.stop(Duration::from_secs(5)).unwrap();
    }
}

fn greedy(socket: &Path, mode: Mode) -> Raw {
    Raw::go_to(socket, mode, "greedy")
}

#[test]
fn rule_12_idle_connections_to_one_volume_keep_no_client_of_another_out() {
    let shared = Shared::new(Limits { connections: 8, ..Limits::default() });
    let mut idle: Vec<Raw> = (0..8).map(|_| greedy(&shared.socket, Mode::Simple)).collect();
    shared.neighbour_works();
    // One of them gave way, and the others go on.
    let alive = idle
        .iter_mut()
        .filter_map(|raw| (!raw.is_closed_now()).then(|| raw.act(0, FLUSH, 0, 0, &[])))
        .collect::<Vec<_>>();
    assert_eq!(alive, [0; 7]);
    shared.end();
}

#[test]
fn rule_12_idle_connections_give_their_working_places_back() {
    let shared = Shared::new(Limits { rest: Duration::from_millis(200), ..Limits::default() });
    let mut idle: Vec<Raw> = (0..12).map(|n| greedy(&shared.socket, MODES[n % 3])).collect();
    let data = vec![7; 300_000];
    for raw in &mut idle {
        assert_eq!(raw.write(0, 4096, &data), 0);
        assert!(raw.read(0, 4096, data.len()).unwrap() == data);
    }
    let began = Instant::now();
    while shared.server.statistics().working > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "places are kept for nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(shared.server.statistics().connections, 12);
    for raw in &mut idle {
        assert!(
            raw.read(0, 4096, data.len()).unwrap() == data,
            "it works again, and nothing was lost"
        );
    }
    shared.end();
}

#[test]
fn rule_12_more_connections_than_places_all_work_in_turn() {
    let shared = Shared::new(Limits { places: 2, ..Limits::default() });
    std::thread::scope(|scope| {
        for n in 0..9u8 {
            let socket = &shared.socket;
            scope.spawn(move || {
                let mut raw = Raw::go_to(
                    socket,
                    MODES[usize::from(n) % 3],
                    ["disk", "greedy"][usize::from(n) % 2],
                );
                let place = u64::from(n) * 400_000;
                for round in 1..6 {
                    let data = vec![n ^ (round << 4); 200_000];
                    assert_eq!(raw.write(FUA, place, &data), 0);
                    assert!(raw.read(0, place, data.len()).unwrap() == data);
                }
            });
        }
    });
    shared.end();
}

#[test]
fn rule_12_a_flood_of_status_requests_lets_others_work() {
    let shared = Shared::new(Limits { places: 4, ..Limits::default() });
    let _idle: Vec<Raw> = (0..34).map(|_| greedy(&shared.socket, Mode::Simple)).collect();
    let flood: Vec<Raw> = (0..8).map(|_| greedy(&shared.socket, Mode::Extended)).collect();
    std::thread::scope(|scope| {
        for raw in &flood {
            let (mut asks, mut answers) =
                (raw.stream.try_clone().unwrap(), raw.stream.try_clone().unwrap());
            let requests: Vec<u8> = (0..64)
                .flat_map(|i| request_bytes(Mode::Extended, 0, BLOCK_STATUS, i, 0, SIZE))
                .collect();
            scope.spawn(move || while asks.write_all(&requests).is_ok() {});
            scope.spawn(move || while answers.read(&mut [0; 65_536]).is_ok_and(|n| n > 0) {});
        }
        let answered = || shared.server.statistics().statuses;
        let before = answered();
        while answered() == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        shared.neighbour_works();
        flood.iter().for_each(|raw| drop(raw.stream.shutdown(std::net::Shutdown::Both)));
    });
    shared.end();
}

/// Each of them kept its place for sixteen requests, and waited for its turn with each.
#[test]
fn rule_12_a_newcomer_waits_for_no_row_of_slow_status_requests() {
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    volumes[1].1.status_us.store(100_000, SeqCst);
    let shared = Shared::of(MemoryExports::of(volumes), Limits { places: 4, ..Limits::default() });
    let mut flood: Vec<Raw> = (0..8).map(|_| greedy(&shared.socket, Mode::Extended)).collect();
    let requests: Vec<u8> =
        (0..256).flat_map(|i| request_bytes(Mode::Extended, 0, BLOCK_STATUS, i, 0, SIZE)).collect();
    flood.iter_mut().for_each(|raw| raw.send(&requests));
    while shared.server.statistics().statuses < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut raw = Raw::go(&shared.socket, Mode::Structured);
    let began = Instant::now();
    raw.read(0, 0, 4096).unwrap();
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    flood.iter().for_each(|raw| drop(raw.stream.shutdown(std::net::Shutdown::Both)));
    drop(raw);
    shared.end();
}

/// Each of them kept its working place while it waited for its turn: four volumes had all places
/// together.
#[test]
fn rule_12_clients_that_wait_for_the_status_of_ranges_keep_their_places_from_nobody() {
    let names = ["disk", "a", "b", "c", "d"];
    let volumes = names.map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    volumes[1..].iter().for_each(|(_, volume)| volume.status_us.store(50_000, SeqCst));
    let shared = Shared::of(MemoryExports::of(volumes), Limits { places: 4, ..Limits::default() });
    let requests: Vec<u8> =
        (0..256).flat_map(|i| request_bytes(Mode::Extended, 0, BLOCK_STATUS, i, 0, SIZE)).collect();
    let mut flood: Vec<Raw> =
        (0..16).map(|n| Raw::go_to(&shared.socket, Mode::Extended, names[1 + n % 4])).collect();
    flood.iter_mut().for_each(|raw| raw.send(&requests));
    while shared.server.statistics().statuses < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut raw = Raw::go(&shared.socket, Mode::Structured);
    let began = Instant::now();
    for _ in 0..20 {
        raw.read(0, 0, 4096).unwrap();
    }
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
    flood.iter().for_each(|raw| drop(raw.stream.shutdown(std::net::Shutdown::Both)));
    drop(raw);
    shared.end();
}

#[test]
fn rule_12_clients_that_stop_in_the_middle_of_a_request_keep_their_places_from_nobody() {
    let shared = Shared::new(Limits {
        places: 4,
        patience: Duration::from_millis(300),
        ..Limits::default()
    });
    let mut stuck: Vec<Raw> = (0..8).map(|_| greedy(&shared.socket, Mode::Simple)).collect();
    for raw in &mut stuck {
        raw.request(0, WRITE, 0, 1 << 20, &[1; 60_000]);
    }
    shared.neighbour_works();
    shared.end();
}

#[test]
fn rule_12_clients_that_read_no_replies_keep_their_places_from_nobody() {
    let shared = Shared::new(Limits {
        places: 4,
        patience: Duration::from_millis(300),
        ..Limits::default()
    });
    assert_eq!(greedy(&shared.socket, Mode::Simple).write(0, 0, &[9; 4 << 20]), 0);
    let mut deaf: Vec<Raw> = (0..8).map(|n| greedy(&shared.socket, MODES[n % 3])).collect();
    for raw in &mut deaf {
        let requests: Vec<u8> =
            (0..20).flat_map(|i| request_bytes(raw.mode, 0, READ, i, 0, 4 << 20)).collect();
        raw.send(&requests);
    }
    shared.neighbour_works();
    shared.end();
}

#[test]
fn rule_12_clients_that_wait_for_their_volumes_pace_keep_their_places_from_nobody() {
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    let limits = VolumeLimits { iops: 1, ..VolumeLimits::default() };
    let exports = MemoryExports::limited(volumes, "greedy", limits);
    let shared = Shared::of(exports, Limits { places: 4, ..Limits::default() });
    let mut many: Vec<Raw> = (0..8).map(|n| greedy(&shared.socket, MODES[n % 3])).collect();
    for raw in &mut many {
        let requests: Vec<u8> =
            (0..200).flat_map(|i| request_bytes(raw.mode, 0, READ, i, 0, 4096)).collect();
        raw.send(&requests);
    }
    shared.neighbour_works();
    drop(many);
    shared.end();
}

#[test]
fn rule_12_a_client_that_sends_requests_without_end_gives_its_place_back_between_them() {
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    volumes[1].1.read_us.store(50_000, SeqCst);
    let shared = Shared::of(MemoryExports::of(volumes), Limits { places: 1, ..Limits::default() });
    let flood = greedy(&shared.socket, Mode::Simple);
    std::thread::scope(|scope| {
        let (mut asks, mut answers) =
            (flood.stream.try_clone().unwrap(), flood.stream.try_clone().unwrap());
        // 2,340 of them are in one receive buffer, and take two minutes.
        let requests: Vec<u8> =
            (0..512).flat_map(|i| request_bytes(Mode::Simple, 0, READ, i, 0, 1 << 20)).collect();
        scope.spawn(move || while asks.write_all(&requests).is_ok() {});
        scope.spawn(move || while answers.read(&mut [0; 65_536]).is_ok_and(|n| n > 0) {});
        while shared.server.statistics().reads < 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        shared.neighbour_works();
        drop(flood.stream.shutdown(std::net::Shutdown::Both));
    });
    shared.end();
}

/// Connects over TCP, and asks for the first bytes of `disk`.
fn reads_over_tcp(address: SocketAddr, bytes: u64) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut asks = stream.try_clone().unwrap();
    asks.write_all(&3u32.to_be_bytes()).unwrap();
    asks.write_all(&option_bytes(7, &info_data("disk", &[]))).unwrap();
    loop {
        let mut header = [0; 20];
        stream.read_exact(&mut header).unwrap();
        stream.read_exact(&mut vec![0; be32(&header[16..]) as usize]).unwrap();
        if be32(&header[12..]) == ACK {
            break;
        }
    }
    asks.write_all(&request_bytes(Mode::Simple, 0, READ, 1, 0, bytes)).unwrap();
    stream
}

#[test]
fn rule_12_peers_of_one_limited_volume_share_its_pace() {
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(64 << 20)));
    let limits = VolumeLimits { bytes: 4 << 20, ..VolumeLimits::default() };
    let exports = MemoryExports::limited(volumes, "disk", limits);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let mut server = Server::new(exports, Limits::default());
    server.add_unix(&socket).unwrap();
    let address = server.add_tcp("127.0.0.1:0".parse().unwrap(), true).unwrap();
    server.start().unwrap();
    // One peer asks for 512 MiB at once, which takes two minutes at the volume's pace.
    let many: Vec<TcpStream> = (0..16).map(|_| reads_over_tcp(address, 32 << 20)).collect();
    let mut other = Raw::go(&socket, Mode::Simple);
    for round in 0..10u8 {
        assert_eq!(other.write(0, u64::from(round) << 12, &[round; 4096]), 0, "within 20 s each");
    }
    drop(many);
    server.stop(Duration::from_secs(1)).unwrap();
}

#[test]
fn rule_12_volumes_of_one_shared_name_have_its_limits_once() {
    let names = ["disk", "disk@a", "disk@b", "greedy"];
    let volumes = names.map(|name| (name.to_owned(), MemoryVolume::new(64 << 20)));
    let limits = VolumeLimits { bytes: 4 << 20, ..VolumeLimits::default() };
    let shared = Shared::of(MemoryExports::limited(volumes, "disk@", limits), Limits::default());
    let began = Instant::now();
    for name in ["disk@a", "disk@b"] {
        let mut raw = Raw::go_to(&shared.socket, Mode::Simple, name);
        assert_eq!(raw.write(0, 0, &vec![5; 4 << 20]), 0);
    }
    assert!(began.elapsed() > Duration::from_millis(1500), "{:?}", began.elapsed());
    shared.end();
}

#[test]
fn rule_12_a_connection_that_is_cut_waits_for_nothing() {
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    // What it asks for takes a minute.
    let limits = VolumeLimits { bytes: 64 << 10, ..VolumeLimits::default() };
    let volume = volumes[1].1.clone();
    let exports = MemoryExports::limited(volumes, "greedy", limits);
    let shared = Shared::of(exports, Limits { connections: 1, ..Limits::default() });
    let mut raw = greedy(&shared.socket, Mode::Simple);
    raw.request(0, READ, 0, 4 << 20, &[]);
    while Arc::strong_count(&volume) == 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // It gives way, and its session lets the volume go.
    shared.neighbour_works();
    let began = Instant::now();
    while Arc::strong_count(&volume) > 2 {
        assert!(began.elapsed() < Duration::from_secs(20), "the session still has the volume");
        std::thread::sleep(Duration::from_millis(5));
    }
    shared.end();
}

/// Waits until so many sessions have a volume that the test and its server have, too.
fn only_sessions(volume: &Arc<MemoryVolume>, sessions: usize) {
    let began = Instant::now();
    while Arc::strong_count(volume) != 2 + sessions {
        assert!(began.elapsed() < Duration::from_secs(20), "a session still has the volume");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn rule_12_a_connection_that_is_cut_waits_for_no_turn() {
    let turns = (std::thread::available_parallelism().map_or(1, std::num::NonZero::get) / 2).max(1);
    let connections = 2 * turns + 2;
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    let volume = volumes[1].1.clone();
    let shared =
        Shared::of(MemoryExports::of(volumes), Limits { connections, ..Limits::default() });
    // All turns stand still, and the others wait for theirs.
    volume.hold_status.store(true, SeqCst);
    let mut asks: Vec<Raw> =
        (0..connections).map(|_| greedy(&shared.socket, Mode::Structured)).collect();
    for raw in &mut asks {
        raw.request(0, BLOCK_STATUS, 0, 1 << 20, &[]);
        while volume.statuses.load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    only_sessions(&volume, connections);
    while volume.statuses.load(SeqCst) < turns as u64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The clients that asked first give way: those that have turns, and one that waits for one.
    let _others: Vec<Raw> = (0..=turns).map(|_| Raw::go(&shared.socket, Mode::Simple)).collect();
    only_sessions(&volume, connections - 1);
    volume.hold_status.store(false, SeqCst);
    drop(asks);
    shared.end();
}

#[test]
fn rule_12_a_connection_that_is_cut_answers_no_more_requests() {
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    let volume = volumes[1].1.clone();
    let limits = Limits { connections: 1, ..Limits::default() };
    let shared = Shared::of(MemoryExports::of(volumes), limits);
    // What it asks for at once takes a minute.
    volume.status_us.store(150_000, SeqCst);
    let mut raw = greedy(&shared.socket, Mode::Structured);
    let requests: Vec<u8> = (0..400)
        .flat_map(|n| request_bytes(Mode::Structured, 0, BLOCK_STATUS, n, 0, 1 << 20))
        .collect();
    raw.send(&requests);
    while volume.statuses.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    shared.neighbour_works();
    only_sessions(&volume, 0);
    shared.end();
}

/// A server of `disk` and of two volumes, each of which takes all that one volume may have.
fn shared_by_three(limits: Limits) -> Shared {
    let volumes =
        ["disk", "greedy", "other"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    Shared::of(MemoryExports::of(volumes), limits)
}

#[test]
fn rule_12_two_volumes_with_half_of_the_connections_each_keep_no_third_out() {
    let shared = shared_by_three(Limits { connections: 8, ..Limits::default() });
    let idle: Vec<Raw> = (0..8)
        .map(|n| Raw::go_to(&shared.socket, Mode::Simple, ["greedy", "other"][n % 2]))
        .collect();
    shared.neighbour_works();
    drop(idle);
    shared.end();
}

/// Eight clients of two volumes.
fn eight(shared: &Shared) -> Vec<Raw> {
    (0..8).map(|n| Raw::go_to(&shared.socket, Mode::Simple, ["greedy", "other"][n % 2])).collect()
}

/// Lets clients send byte after byte while `works` runs, which ends the test when it panics.
fn byte_by_byte(slow: &[Raw], works: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    let worked = std::thread::scope(|scope| {
        for raw in slow {
            let (mut sends, ended) = (raw.stream.try_clone().unwrap(), &ended);
            scope.spawn(move || {
                while !ended.load(SeqCst) && sends.write_all(&[1]).is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
        }
        let worked = std::panic::catch_unwind(AssertUnwindSafe(works));
        ended.store(true, SeqCst);
        worked
    });
    if let Err(panic) = worked {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn rule_12_two_volumes_that_send_requests_byte_by_byte_keep_no_third_from_working() {
    let shared = shared_by_three(Limits {
        places: 4,
        // An honest client on a busy machine sends within it.
        patience: Duration::from_secs(1),
        rest: Duration::from_millis(200),
        ..Limits::default()
    });
    let mut slow = eight(&shared);
    for raw in &mut slow {
        raw.request(0, WRITE, 0, 1 << 20, &[1; 60_000]);
    }
    while shared.server.statistics().working < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    byte_by_byte(&slow, || shared.neighbour_works());
    drop(slow);
    shared.end();
}

/// Lets the others send writes byte by byte that are refused. None of them is cut: each gives its
/// place to whoever wants it.
fn refused_writes_keep_no_place(shared: Shared, mut slow: Vec<Raw>, offset: u64, length: u64) {
    for raw in &mut slow {
        raw.request(0, WRITE, offset, length, &[1; 100]);
    }
    while shared.server.statistics().working < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    byte_by_byte(&slow, || shared.neighbour_works());
    assert!(slow.iter_mut().all(|raw| !raw.is_closed_now()), "a client was cut for its place");
    drop(slow);
    shared.end();
}

fn few_places() -> Limits {
    // Nobody is cut before the test ends.
    let patience = Duration::from_secs(60);
    Limits { places: 4, patience, rest: Duration::from_millis(200), ..Limits::default() }
}

#[test]
fn rule_12_writes_that_are_refused_and_sent_byte_by_byte_keep_no_place() {
    let shared = shared_by_three(few_places());
    let slow = eight(&shared);
    refused_writes_keep_no_place(shared, slow, SIZE, 4 << 20);
}

#[test]
fn rule_12_writes_that_fail_and_are_sent_byte_by_byte_keep_no_place() {
    let volumes =
        ["disk", "greedy", "other"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    volumes[1..].iter().for_each(|(_, volume)| volume.set_stopped());
    let shared = Shared::of(MemoryExports::of(volumes), few_places());
    let mut slow = eight(&shared);
    for raw in &mut slow {
        // The first piece fails, and the rest is thrown away.
        raw.request(0, WRITE, 0, 8 << 20, &vec![1; 5 << 20]);
    }
    byte_by_byte(&slow, || shared.neighbour_works());
    assert!(slow.iter_mut().all(|raw| !raw.is_closed_now()), "a client was cut for its place");
    drop(slow);
    shared.end();
}

/// Clients may change `disk` only.
struct OneDisk;

impl Rights for OneDisk {
    fn right(&self, _: Peer, volume: &str) -> Right {
        if volume == "disk" { Right::Write } else { Right::Read }
    }
}

#[test]
fn rule_12_writes_of_clients_that_may_only_read_keep_no_place() {
    let volumes =
        ["disk", "greedy", "other"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    let exports = MemoryExports::of(volumes);
    let shared = Shared::with(Server::with_rights(exports, Arc::new(OneDisk), few_places()));
    let slow = eight(&shared);
    refused_writes_keep_no_place(shared, slow, 0, 4 << 20);
}

#[test]
fn rule_12_a_client_that_pauses_between_requests_is_not_cut_for_those_that_send_byte_by_byte() {
    let shared = shared_by_three(Limits {
        // Each volume has half of them, and the fifth is that of the client which pauses.
        places: 5,
        patience: Duration::from_millis(300),
        rest: Duration::from_millis(200),
        ..Limits::default()
    });
    let mut slow = eight(&shared);
    for raw in &mut slow {
        raw.request(0, WRITE, 0, 4 << 20, &[1; 100]);
    }
    byte_by_byte(&slow, || {
        let mut raw = Raw::go(&shared.socket, Mode::Structured);
        // Longer than anybody may keep a place for nothing.
        for round in 0..12u8 {
            assert_eq!(raw.write(FUA, u64::from(round) << 12, &[round; 4096]), 0);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    drop(slow);
    shared.end();
}

#[test]
fn rule_12_a_client_that_comes_again_has_not_paid_for_what_it_asked_before() {
    let volumes = ["disk", "greedy"].map(|name| (name.to_owned(), MemoryVolume::new(SIZE)));
    let limits = VolumeLimits { iops: 20, ..VolumeLimits::default() };
    let shared = Shared::of(MemoryExports::limited(volumes, "greedy", limits), Limits::default());
    let gone = || {
        while shared.server.statistics().connections > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let began = Instant::now();
    for _ in 0..20 {
        let mut raw = greedy(&shared.socket, Mode::Simple);
        (0..2).for_each(|_| assert_eq!(raw.write(0, 0, &[1; 4096]), 0));
        drop(raw);
        gone();
        // Another volume is opened while nobody has this one.
        drop(Raw::go(&shared.socket, Mode::Simple));
        gone();
    }
    assert!(
        began.elapsed() >= Duration::from_millis(1800),
        "40 requests, of which 2 are allowed at once and 20 a second"
    );
    shared.end();
}
