//! Where a server listens, how it starts and stops, and what it counts.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod volumes;

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use onefold_core::{Kind, VolumeLimits};
use onefold_serve::nbd::{Limits, Peer, Right, Rights, Server};
use raw_client::*;
use volumes::{MemoryExports, MemoryVolume};

const GRACE: Duration = Duration::from_secs(5);

fn server(limits: Limits) -> (Server, Arc<MemoryVolume>) {
    let (exports, volume) = MemoryExports::one(1 << 20);
    (Server::new(exports, limits), volume)
}

fn started(limits: Limits, dir: &Path) -> (Server, Arc<MemoryVolume>, PathBuf) {
    let (mut server, volume) = server(limits);
    let socket = dir.join("nbd.sock");
    server.add_unix(&socket).unwrap();
    server.start().unwrap();
    (server, volume, socket)
}

/// Waits until the server's counters show what is expected.
fn until(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(10), "it did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_unix_socket_is_private_and_goes_with_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _, socket) = started(Limits::default(), dir.path());
    let metadata = std::fs::symlink_metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left there");
    let mut raw = Raw::go(&socket, Mode::Simple);
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
    server.stop(GRACE).unwrap();
    assert!(!socket.exists());
    assert!(raw.closed());
}

#[test]
fn a_stale_socket_is_replaced_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let (first, _, socket) = started(Limits::default(), dir.path());
    let (mut second, _) = server(Limits::default());
    assert_eq!(second.add_unix(&socket).unwrap_err().kind(), Kind::Busy);
    Raw::go(&socket, Mode::Simple);
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert_eq!(second.add_unix(&file).unwrap_err().kind(), Kind::Exists);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert_eq!(
        second.add_unix(&dir.path().join("x".repeat(120))).unwrap_err().kind(),
        Kind::InvalidInput
    );
    assert_eq!(
        second.add_unix(&dir.path().join("no/such/dir")).unwrap_err().kind(),
        Kind::NotFound
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);

    // A server removes its own file only.
    std::fs::remove_file(&socket).unwrap();
    second.add_unix(&socket).unwrap();
    second.start().unwrap();
    first.stop(GRACE).unwrap();
    Raw::go(&socket, Mode::Simple);
    drop(second);
    assert!(!socket.exists());
}

#[test]
fn of_many_servers_that_want_one_socket_one_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let results: Vec<_> = std::thread::scope(|scope| {
        let add = || {
            let (mut server, _) = server(Limits::default());
            server.add_unix(&socket).map(|()| server)
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(add)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    assert!(
        results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .all(|error| error.kind() == Kind::Busy)
    );
}

/// Another user may have the name of the socket, where everybody can write, and let nobody in.
#[test]
fn rule_03_who_listens_at_a_sockets_place_and_accepts_nobody_stalls_no_server() {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    };

    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nbd.sock");
    let _squatter = UnixListener::bind(&socket).unwrap();
    let knock = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let one = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        connect(&one, &SocketAddrUnix::new(&socket).unwrap()).map(|()| one).ok()
    };
    let _waiting: Vec<_> = std::iter::from_fn(knock).take(100_000).collect();
    assert!(knock().is_none());
    assert_eq!(server(Limits::default()).0.add_unix(&socket).unwrap_err().kind(), Kind::Busy);
}

#[test]
fn rule_11_tcp_serves_only_on_demand() {
    let (mut server, volume) = server(Limits::default());
    for address in ["0.0.0.0:0", "127.0.0.1:0", "[::1]:0"] {
        assert_eq!(
            server.add_tcp(address.parse().unwrap(), false).unwrap_err().kind(),
            Kind::Denied
        );
    }
    assert_eq!(server.start().unwrap_err().kind(), Kind::InvalidInput, "it listens nowhere");
    let addr = server.add_tcp("127.0.0.1:0".parse().unwrap(), true).unwrap();
    server.start().unwrap();
    assert!(server.start().is_err());
    let mut stream = TcpStream::connect(addr).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    // A client that never stops asking does not keep the server from stopping.
    let busy = std::thread::spawn(move || {
        use std::io::Write;
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&option_bytes(7, &info_data("disk", &[])));
        let mut drain = stream.try_clone().unwrap();
        std::thread::spawn(move || while drain.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {});
        while stream.write_all(&bytes).is_ok() {
            bytes = request_bytes(Mode::Simple, 0, WRITE, 0, 0, 4)
                .into_iter()
                .chain(*b"data")
                .collect();
        }
    });
    until(|| server.statistics().writes > 100);
    let began = Instant::now();
    server.stop(Duration::from_secs(20)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    busy.join().unwrap();
    assert_eq!(volume.peek(0, 4), b"data");
}

/// The server waited for the whole time that clients have for their last answers.
#[test]
fn a_client_that_takes_no_reply_delays_a_stop_by_little() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { send: Duration::from_secs(600), ..Limits::default() };
    let (server, volume, socket) = started(limits, dir.path());
    let mut raw = Raw::go(&socket, Mode::Simple);
    assert_eq!(raw.write(0, 0, &[7; 4096]), 0);
    let reads: Vec<u8> = (0..64)
        .flat_map(|cookie| request_bytes(Mode::Simple, 0, READ, cookie, 0, 1 << 20))
        .collect();
    raw.send(&reads);
    until(|| server.statistics().in_flight > 0 || server.statistics().reads > 0);
    let began = Instant::now();
    server.stop(Duration::from_secs(120)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert_eq!(volume.peek(0, 4096), [7; 4096]);
}

#[test]
fn listening_sockets_are_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("activated.sock");
    let (mut server, _) = server(Limits::default());
    server.add_listener(UnixListener::bind(&socket).unwrap().into(), false).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = tcp.local_addr().unwrap();
    assert_eq!(
        server.add_listener(tcp.try_clone().unwrap().into(), false).unwrap_err().kind(),
        Kind::Denied
    );
    server.add_listener(tcp.into(), true).unwrap();
    let (silent, _other) = UnixStream::pair().unwrap();
    assert_eq!(server.add_listener(silent.into(), false).unwrap_err().kind(), Kind::InvalidInput);
    server.start().unwrap();
    let mut raw = Raw::go(&socket, Mode::Extended);
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
    TcpStream::connect(addr).unwrap().read_exact(&mut [0; 18]).unwrap();
    server.stop(GRACE).unwrap();
    assert!(socket.exists(), "the file belongs to who made it");
}

#[test]
fn newcomers_are_refused_at_the_limit_and_stalled_handshakes_keep_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _, socket) = started(Limits { connections: 4, ..Limits::default() }, dir.path());
    let mut guests: Vec<Raw> = (0..3).map(|_| Raw::go(&socket, Mode::Simple)).collect();
    let mut again = 0;
    let mut connect = || loop {
        match Raw::connect(&socket) {
            Ok(raw) => break raw,
            // On a busy machine those that gave way have not left yet.
            Err(_) => {
                again += 1;
                assert!(again < 1000, "nobody is let in any more");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    let mut stalled: Vec<Raw> = (0..20).map(|_| connect()).collect();
    guests.push(connect().goes_to(Mode::Simple, "disk"));
    assert!(stalled[0].closed(), "the oldest handshake gave way");
    let mut late = connect();
    late.send(&[&3u32.to_be_bytes()[..], &option_bytes(7, &info_data("disk", &[]))].concat());
    assert!(late.closed(), "all four are at work");
    for guest in &mut guests {
        assert_eq!(guest.act(0, FLUSH, 0, 0, &[]), 0);
    }
    drop((guests.pop(), stalled));
    until(|| server.statistics().connections == 3);
    Raw::go(&socket, Mode::Simple);
    // Each handshake beyond the twelve connections that there may be ended another one, and the one
    // that came late was refused.
    assert_eq!(server.statistics().refused, (3 + 20 - 12) + 1 + 1 + 1 + again);
    server.stop(GRACE).unwrap();
}

/// A connection, in spite of those that gave way and have not left yet.
fn comes(connect: impl Fn() -> std::io::Result<Raw>) -> Raw {
    let began = Instant::now();
    loop {
        match connect() {
            Ok(raw) => return raw,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(10), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A stranger behind the same address holds all handshakes that there may be, and comes again whenever one
/// is cut off. Each of them is younger than that of a client who begins and goes on.
#[test]
fn rule_12_a_handshake_that_goes_on_gives_no_way_to_silent_ones_of_the_same_peer() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _, socket) = started(Limits { connections: 4, ..Limits::default() }, dir.path());
    let mut silent: Vec<Raw> = (0..14).map(|_| comes(|| Raw::connect(&socket))).collect();
    let mut client = comes(|| Raw::connect(&socket));
    client.send(&3u32.to_be_bytes());
    for _ in 0..40 {
        assert_eq!(client.option_end(99, &[]), ERR_UNSUP);
        silent.push(comes(|| Raw::connect(&socket)));
    }
    assert_eq!(client.option_end(7, &info_data("disk", &[])), ACK);
    assert!(silent[0].closed());
    drop(silent);
    server.stop(GRACE).unwrap();
}

/// Of two peers the one with more handshakes gives way, also when it has not half of all connections.
#[test]
fn rule_12_who_has_more_handshakes_gives_way_to_a_peer_with_fewer() {
    let dir = tempfile::tempdir().unwrap();
    let (mut server, _) = server(Limits { connections: 32, ..Limits::default() });
    let socket = dir.path().join("nbd.sock");
    server.add_unix(&socket).unwrap();
    let address = server.add_tcp("127.0.0.1:0".parse().unwrap(), true).unwrap();
    server.start().unwrap();
    let own: Vec<Raw> = (0..25).map(|_| Raw::go(&socket, Mode::Simple)).collect();
    let mut other: Vec<TcpStream> = (0..15)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.read_exact(&mut [0; 18]).unwrap();
            stream
        })
        .collect();
    // It says nothing for longer than all others.
    let mut first = comes(|| Raw::connect(&socket));
    let more: Vec<Raw> = (0..4).map(|_| comes(|| Raw::connect(&socket))).collect();
    first.send(&3u32.to_be_bytes());
    assert_eq!(first.option_end(7, &info_data("disk", &[])), ACK);
    assert_eq!(other[0].read(&mut [0]).unwrap_or(0), 0, "the other peer's oldest gave way");
    drop((own, more));
    server.stop(GRACE).unwrap();
}

#[test]
fn a_handshake_has_one_deadline_however_busy_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _, socket) =
        started(Limits { handshake: Duration::from_millis(300), ..Limits::default() }, dir.path());
    let mut silent = Raw::connect(&socket).unwrap();
    let mut done = Raw::go(&socket, Mode::Simple);
    let began = Instant::now();
    assert!(silent.closed());
    assert!(began.elapsed() < Duration::from_secs(5));
    use std::io::Write;
    let mut slow = Raw::connect(&socket).unwrap();
    let option = [&3u32.to_be_bytes(), &option_bytes(99, &[0; 8_000])[..]].concat();
    let trickle = option.iter().take(8_000).take_while(|byte| {
        std::thread::sleep(Duration::from_micros(300));
        slow.stream.write_all(&[**byte]).is_ok()
    });
    assert!(trickle.count() < 2000, "an option that comes byte by byte was waited for");
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(done.act(0, FLUSH, 0, 0, &[]), 0, "after its handshake a client may be silent");
    server.stop(GRACE).unwrap();
}

#[test]
fn counters_tell_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _, socket) = started(Limits::default(), dir.path());
    let mut raw = Raw::go(&socket, Mode::Structured);
    assert_eq!(raw.write(0, 0, &[1; 5000]), 0);
    assert_eq!(raw.read(0, 0, 3000).unwrap(), [1; 3000]);
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
    assert_eq!(raw.act(0, 99, 0, 0, &[]), 22);
    let check = |connections| {
        let s = server.statistics();
        assert_eq!((s.connections, s.accepted, s.refused, s.panics), (connections, 1, 0, 0));
        assert_eq!(
            (s.writes, s.written_bytes, s.reads, s.read_bytes, s.flushes, s.errors),
            (1, 5000, 1, 3000, 1, 1)
        );
        assert_eq!(s.in_flight, 0);
    };
    until(|| server.statistics().errors == 1);
    check(1);
    drop(raw);
    until(|| server.statistics().connections == 0);
    check(0);
    server.stop(GRACE).unwrap();
}

#[test]
fn a_bug_in_a_volume_ends_its_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let (server, volume, socket) = started(Limits::default(), dir.path());
    let mut other = Raw::go(&socket, Mode::Simple);
    volume.panic.store(true, SeqCst);
    let mut raw = Raw::go(&socket, Mode::Simple);
    raw.request(0, READ, 0, 1, &[]);
    assert!(raw.closed());
    // Requests that wait aside are answered even so.
    let mut raw = Raw::go(&socket, Mode::Simple);
    let flushes: Vec<u8> =
        (0..3).flat_map(|i| request_bytes(Mode::Simple, 0, FLUSH, i, 0, 0)).collect();
    raw.send(&flushes);
    for _ in 0..3 {
        assert_eq!(raw.chunk(0).unwrap().content, Content::Error(5, String::new(), None));
    }
    drop(raw);
    volume.panic.store(false, SeqCst);
    assert_eq!(other.read(0, 0, 1).unwrap(), [0]);
    until(|| server.statistics().panics == 2);
    server.stop(GRACE).unwrap();
}

#[test]
fn a_session_that_does_not_end_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (server, volume, socket) = started(Limits::default(), dir.path());
    let mut raw = Raw::go(&socket, Mode::Simple);
    volume.hold.store(true, SeqCst);
    raw.request(0, FLUSH, 0, 0, &[]);
    until(|| server.statistics().flushes == 1);
    let release = volume.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        release.hold.store(false, SeqCst);
    });
    let began = Instant::now();
    server.stop(Duration::from_millis(50)).unwrap();
    assert!(began.elapsed() > Duration::from_millis(400));
    assert!(raw.closed(), "too late for the answer");
}

/// Reading is all that anybody may do.
struct Readers;

impl Rights for Readers {
    fn right(&self, _: Peer, volume: &str) -> Right {
        if volume == "disk" { Right::Read } else { Right::Nothing }
    }
}

#[test]
fn rule_13_who_may_read_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (exports, volume) = MemoryExports::one(1 << 20);
    let mut server = Server::with_rights(exports, Arc::new(Readers), Limits::default());
    let socket = dir.path().join("nbd.sock");
    server.add_unix(&socket).unwrap();
    server.start().unwrap();
    let mut raw = Raw::go(&socket, Mode::Extended);
    assert_eq!(raw.act(0, FLUSH, 0, 0, &[]), 0);
    assert_eq!(raw.act(0, WRITE, 0, 4, b"data"), 1);
    assert_eq!(raw.act(0, TRIM, 0, 4096, &[]), 1);
    assert_eq!(raw.act(0, WRITE_ZEROES, 0, 4096, &[]), 1);
    assert_eq!(volume.peek(0, 4), [0; 4]);
    server.stop(GRACE).unwrap();
}

#[test]
fn rule_12_a_silent_connection_ends_when_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { idle: Some(Duration::from_millis(50)), ..Limits::default() };
    let (server, _, socket) = started(limits, dir.path());
    assert!(Raw::go(&socket, Mode::Simple).closed());
    until(|| server.statistics().connections == 0);
}

/// Gives everybody a right to one name.
struct Only(&'static str);

impl Rights for Only {
    fn right(&self, _: Peer, volume: &str) -> Right {
        if volume == self.0 { Right::Write } else { Right::Nothing }
    }
}

/// One client that reads a snapshot kept all snapshots of its volume from being deleted.
#[test]
fn rule_12_a_client_has_open_what_it_opened_and_nothing_that_shares_its_limits() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["disk", "disk@mon", "disk@tue"];
    let volumes = names.map(|name| (name.to_owned(), MemoryVolume::new(1 << 20)));
    let exports = MemoryExports::of(volumes);
    let mut server = Server::new(exports, Limits::default());
    let socket = dir.path().join("nbd.sock");
    server.add_unix(&socket).unwrap();
    server.start().unwrap();
    let mut raw = Raw::go_to(&socket, Mode::Simple, "disk@mon");
    raw.read(0, 0, 4096).unwrap();
    assert_eq!(names.map(|name| server.clients_of(name)), [0, 1, 0]);
    server.stop(Duration::from_secs(1)).unwrap();
}

/// It counted by the name with which it was opened, for as long as its clients stayed.
#[test]
fn rule_13_a_volume_that_was_renamed_counts_by_the_name_that_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let volume = MemoryVolume::new(1 << 20);
    let limits = VolumeLimits { iops: 2, ..VolumeLimits::default() };
    let exports = MemoryExports::limited([("disk".to_owned(), volume.clone())], "other", limits);
    let mut server = Server::with_rights(exports, Arc::new(Only("disk")), Limits::default());
    let socket = dir.path().join("nbd.sock");
    server.add_unix(&socket).unwrap();
    server.start().unwrap();
    let mut raw = Raw::go(&socket, Mode::Simple);
    let watch = server.watch();
    watch.look_again();
    raw.read(0, 0, 4096).unwrap();
    assert_eq!((server.clients_of("disk"), server.clients_of("other")), (1, 0));
    *volume.renamed.lock() = Some("other".to_owned());
    assert_eq!((server.clients_of("disk"), server.clients_of("other")), (0, 1));
    server.volumes_changed();
    let began = Instant::now();
    for _ in 0..3 {
        raw.read(0, 0, 4096).unwrap();
    }
    assert!(began.elapsed() > Duration::from_millis(900), "without the limits of its name");
    watch.look_again();
    assert!(raw.closed(), "nobody has a right to that name");
    server.stop(GRACE).unwrap();
}
