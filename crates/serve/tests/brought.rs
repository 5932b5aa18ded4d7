//! Descriptors that clients bring along, with which they try to hold the server's threads: a socket
//! that waits for its unsent bytes when its last reference is closed, and an event on which writing
//! waits. Each test is made twice, with what the kernel does against it since Linux 6.16, and without.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod raw_client;
mod vhost_driver;
mod volumes;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use onefold_serve::http;
use onefold_serve::nbd::{Limits, Peer, Reach, Right, Rights, Server};
use parking_lot::Mutex;
use raw_client::*;
use rustix::fs::SealFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use vhost_driver::{Driver, Guest, OK, Wants};
use volumes::MemoryExports;

const SIZE: u64 = 64 << 20;
/// Whether a socket takes descriptors, since Linux 6.16.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);
/// As long as a hang is told from a busy machine.
const SOON: Duration = Duration::from_secs(4);

/// A TCP socket with unsent bytes whose last close waits for them, and its peer, who does not read.
struct Lingering {
    socket: OwnedFd,
    peer: TcpStream,
}

impl Lingering {
    fn new() -> Lingering {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 64 << 10]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        sockopt::set_socket_linger(&socket, Some(LONG)).unwrap();
        Lingering { socket: socket.into(), peer }
    }

    /// Leaves the only reference with whoever reads `stream`, unless the kernel helps, and lets none
    /// pass. Gives its peer, to be kept.
    #[track_caller]
    fn send(self, stream: &UnixStream, bytes: &[u8], helps: bool) -> TcpStream {
        let sent = send_with(stream, bytes, &[self.socket.as_fd()]);
        assert!(!(sent && helps && knows_the_option()), "the kernel let it pass");
        self.leave()
    }

    /// Closes the socket, which may be the last reference.
    fn leave(self) -> TcpStream {
        std::thread::spawn(move || drop(self.socket));
        self.peer
    }
}

/// Sends bytes and descriptors; false when these do not pass.
fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
}

/// The numbers of this process's UNIX sockets that listen.
#[allow(unsafe_code, reason = "a number that the kernel listed becomes a descriptor")]
fn listening() -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let listens = |number: &i32| {
        // SAFETY: nothing is done with it but to ask, also when it is another one by now.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
        sockopt::socket_acceptconn(descriptor) == Ok(true)
            && sockopt::socket_domain(descriptor) == Ok(rustix::net::AddressFamily::UNIX)
    };
    numbers.filter(listens).collect()
}

/// True when the kernel can keep descriptors out of a socket.
#[allow(unsafe_code, reason = "no library has this option")]
fn knows_the_option() -> bool {
    let (one, _other) = UnixStream::pair().unwrap();
    let (mut value, mut bytes): (libc::c_int, libc::socklen_t) = (0, 4);
    let (level, at) = (libc::SOL_SOCKET, (&raw mut value).cast());
    // SAFETY: the option is a number of four bytes.
    unsafe { libc::getsockopt(one.as_raw_fd(), level, SO_PASSRIGHTS, at, &mut bytes) == 0 }
}

/// Lets a server listen; unless the kernel `helps`, as if it were an older one.
#[allow(unsafe_code, reason = "no library has this option")]
fn listen(helps: bool, add: impl FnOnce()) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let before = listening();
    add();
    let new: Vec<i32> = listening().into_iter().filter(|one| !before.contains(one)).collect();
    let [number] = new[..] else { panic!("one socket more: {new:?}") };
    let on: libc::c_int = 1;
    if helps {
        return;
    }
    // SAFETY: the server keeps its socket open, and the option is a number of four bytes.
    let set = unsafe {
        libc::setsockopt(number, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const on).cast(), 4)
    };
    let error = std::io::Error::last_os_error();
    assert!(set == 0 || error.raw_os_error() == Some(libc::ENOPROTOOPT), "{error}");
}

/// Lets in whoever comes, or nobody; whom it knows it says only when told to.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    asked: AtomicUsize,
    told: AtomicUsize,
}

impl Rights for Gate {
    fn right(&self, _: Peer, _: &str) -> Right {
        Right::Write
    }

    fn knows(&self, _: Peer) -> bool {
        let open = self.open.load(SeqCst);
        let turn = self.asked.fetch_add(1, SeqCst);
        let began = Instant::now();
        while !open && self.told.load(SeqCst) <= turn && began.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        open
    }
}

struct Served {
    server: Server,
    gate: Arc<Gate>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

fn served(helps: bool, limits: Limits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let (exports, _) = MemoryExports::one(SIZE);
    let gate = Arc::new(Gate::default());
    let mut server = Server::with_rights(exports, gate.clone(), limits);
    listen(helps, || server.add_unix(&socket).unwrap());
    server.start().unwrap();
    Served { server, gate, socket, _dir: dir }
}

impl Served {
    /// Another client is served in time.
    #[track_caller]
    fn witness(&self) {
        let (tell, told) = channel();
        let socket = self.socket.clone();
        std::thread::spawn(move || {
            let mut raw = Raw::go(&socket, Mode::Structured);
            assert_eq!(raw.write(0, 0, &[7; 4096]), 0);
            tell.send(raw.read(0, 0, 4096).unwrap() == [7; 4096])
        });
        assert_eq!(told.recv_timeout(SOON), Ok(true), "another client is not served");
    }

    #[track_caller]
    fn ends(self) {
        let began = Instant::now();
        assert_eq!(self.server.statistics().panics, 0);
        self.server.stop(Duration::ZERO).unwrap();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

fn strangers_are_sent_away(helps: bool) {
    let served = served(helps, Limits::default());
    let mut peers = Vec::new();
    for turn in 0..8 {
        let stream = UnixStream::connect(&served.socket).unwrap();
        let lingering = Lingering::new();
        if send_with(&stream, b"x", &[lingering.socket.as_fd()]) {
            // Nobody has received it yet.
            drop(lingering.socket);
            peers.push(lingering.peer);
        } else {
            assert!(helps && knows_the_option());
            peers.push(lingering.leave());
        }
        drop(stream);
        served.gate.told.store(turn + 1, SeqCst);
    }
    served.gate.open.store(true, SeqCst);
    served.witness();
    served.ends();
}

#[test]
fn rule_12_who_is_sent_away_holds_up_nobody_with_a_descriptor() {
    strangers_are_sent_away(true);
}

#[test]
fn rule_12_who_is_sent_away_holds_up_nobody_with_a_descriptor_on_an_older_kernel() {
    strangers_are_sent_away(false);
}

/// Sockets within sockets, the innermost of which is a lingering one.
fn nested(depth: usize) -> (OwnedFd, TcpStream) {
    let Lingering { socket, peer } = Lingering::new();
    let mut inner = socket;
    for _ in 0..depth {
        let (near, far) = UnixStream::pair().unwrap();
        assert!(send_with(&near, b"x", &[inner.as_fd()]));
        // The bytes stay in the other end, which nobody reads.
        inner = far.into();
    }
    (inner, peer)
}

#[test]
fn rule_12_sockets_within_sockets_hold_up_nobody() {
    let served = served(false, Limits::default());
    let mut peers = Vec::new();
    for turn in 0..6 {
        let stream = UnixStream::connect(&served.socket).unwrap();
        let all: Vec<_> = (0..8).map(|_| nested(turn)).collect();
        let descriptors: Vec<BorrowedFd<'_>> = all.iter().map(|(one, _)| one.as_fd()).collect();
        assert!(send_with(&stream, b"x", &descriptors));
        peers.extend(all.into_iter().map(|(_, peer)| peer));
        drop(stream);
        served.gate.told.store(turn + 1, SeqCst);
    }
    served.gate.open.store(true, SeqCst);
    served.witness();
    served.ends();
}

fn handshakes_end(helps: bool) {
    let served = served(helps, Limits::default());
    served.gate.open.store(true, SeqCst);
    let mut all = Vec::new();
    for _ in 0..8 {
        let raw = Raw::connect(&served.socket).unwrap();
        let peer = Lingering::new().send(&raw.stream, &3u32.to_be_bytes(), helps);
        all.push((raw, peer));
    }
    served.witness();
    served.ends();
}

#[test]
fn rule_12_descriptors_in_a_handshake_cost_their_own_connection() {
    handshakes_end(true);
}

#[test]
fn rule_12_descriptors_in_a_handshake_cost_their_own_connection_on_an_older_kernel() {
    handshakes_end(false);
}

fn places_are_given_back(helps: bool) {
    let limits = Limits { places: 4, ..Limits::default() };
    let served = served(helps, limits);
    served.gate.open.store(true, SeqCst);
    let mut all = Vec::new();
    for _ in 0..16 {
        let mut raw = Raw::go(&served.socket, Mode::Simple);
        for cookie in 0..8 {
            raw.send(&request_bytes(Mode::Simple, 0, 0, cookie, 4096 * cookie, 4096));
        }
        let last = request_bytes(Mode::Simple, 0, 0, 99, 0, 4096);
        let peer = Lingering::new().send(&raw.stream, &last, helps);
        all.push((raw, peer));
    }
    served.witness();
    served.ends();
}

#[test]
fn rule_12_a_descriptor_behind_requests_keeps_no_working_place() {
    places_are_given_back(true);
}

#[test]
fn rule_12_a_descriptor_behind_requests_keeps_no_working_place_on_an_older_kernel() {
    places_are_given_back(false);
}

/// A page for everybody.
struct Page;

impl http::Site for Page {
    fn answer(&self, _: &str, _: http::Audience) -> http::Answer {
        http::Answer::Page(http::Page {
            content_type: "text/plain",
            policy: "default-src 'none'".into(),
            body: b"here".to_vec(),
        })
    }
}

fn pages_come(helps: bool) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let mut server = http::Server::new(Arc::new(Page), Vec::new());
    listen(helps, || server.add_unix(&socket, Reach::default()).unwrap());
    server.start().unwrap();
    let mut all = Vec::new();
    for _ in 0..3 * http::CONNECTIONS {
        let stream = UnixStream::connect(&socket).unwrap();
        let peer = Lingering::new().send(&stream, b"GET / HTTP/1.0\r\n", helps);
        all.push((stream, peer));
    }
    let (tell, told) = channel();
    let getting = socket.clone();
    std::thread::spawn(move || {
        let mut stream = UnixStream::connect(getting).unwrap();
        write!(stream, "GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        tell.send(text.ends_with("here"))
    });
    assert_eq!(told.recv_timeout(SOON), Ok(true), "no page comes");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        drop(server);
        tell.send(())
    });
    assert_eq!(told.recv_timeout(SOON), Ok(()), "the server of pages does not end");
}

#[test]
fn rule_12_descriptors_hold_up_no_page() {
    pages_come(true);
}

#[test]
fn rule_12_descriptors_hold_up_no_page_on_an_older_kernel() {
    pages_come(false);
}

struct Device {
    server: Server,
    nbd: PathBuf,
    socket: PathBuf,
    guest: Guest,
    _dir: tempfile::TempDir,
}

/// A device, and the same volume over NBD.
fn device() -> Device {
    let dir = tempfile::tempdir().unwrap();
    let (socket, nbd) = (dir.path().join("s"), dir.path().join("n"));
    let (exports, _) = MemoryExports::one(SIZE);
    let mut server = Server::new(exports, Limits { places: 4, ..Limits::default() });
    listen(true, || server.add_vhost("disk", &socket).unwrap());
    listen(true, || server.add_unix(&nbd).unwrap());
    server.start().unwrap();
    Device { server, nbd, socket, guest: Guest::new(SealFlags::SHRINK), _dir: dir }
}

impl Device {
    #[track_caller]
    fn ends(self) {
        let (tell, told) = channel();
        let socket = self.nbd.clone();
        std::thread::spawn(move || {
            let mut raw = Raw::go(&socket, Mode::Structured);
            tell.send(raw.write(0, 0, &[7; 4096]))
        });
        assert_eq!(told.recv_timeout(SOON), Ok(0), "another client is not served");
        let began = Instant::now();
        assert_eq!(self.server.statistics().panics, 0);
        self.server.stop(Duration::ZERO).unwrap();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }

    /// The device can be had again, and works.
    #[track_caller]
    fn works(&self) {
        let began = Instant::now();
        let mut driver = loop {
            match Driver::start(&self.socket, &self.guest, Wants::default()) {
                Ok(driver) => break driver,
                Err(error) => assert!(began.elapsed() < SOON, "the device is not free: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(driver.queues[0].write(&self.guest, 0, &[3; 512]), OK);
    }
}

/// From now on writing to the event waits for somebody to read from it.
fn fill(event: &impl AsRawFd, flags: libc::c_int) {
    let number = event.as_raw_fd();
    // SAFETY: the event is open.
    #[allow(unsafe_code, reason = "the event is of a type that has no descriptor to borrow")]
    let event = unsafe { BorrowedFd::borrow_raw(number) };
    let _ = rustix::io::read(event, &mut [0; 8]);
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let flags = rustix::fs::OFlags::from_bits_retain(flags as u32);
    rustix::fs::fcntl_setfl(event, flags).unwrap();
}

#[test]
fn rule_47_an_event_on_which_writing_waits_stops_its_device_and_nothing_else() {
    let device = device();
    let guest = &device.guest;
    let wants = Wants { queues: 3, not: vhost_driver::EVENT_IDX, ..Wants::default() };
    let mut driver = Driver::start(&device.socket, guest, wants).unwrap();
    assert_eq!(driver.queues[0].write(guest, 0, &[1; 512]), OK);
    for queue in &mut driver.queues {
        fill(&queue.call, 0);
        queue.add(guest, vhost_driver::OUT, 0, &[2; 512], 0);
        queue.show(guest);
    }
    // The client still says things, and then leaves.
    std::thread::sleep(Duration::from_millis(500));
    let config = vhost::vhost_user::message::VhostUserConfigFlags::empty();
    let answered = vhost::vhost_user::VhostUserFrontend::get_config(
        &mut driver.frontend,
        0,
        8,
        config,
        &[0; 8],
    );
    assert!(answered.is_ok());
    drop(driver);
    device.works();
    device.ends();
}

#[test]
fn rule_47_the_event_for_errors_holds_nobody_up() {
    let device = device();
    let guest = &device.guest;
    let mut driver = Driver::start(&device.socket, guest, Wants::default()).unwrap();
    let error = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
    vhost::VhostBackend::set_vring_err(&driver.frontend, 0, &error).unwrap();
    fill(&error, 0);
    let queue = &mut driver.queues[0];
    queue.jump(guest, 1000);
    std::thread::sleep(Duration::from_millis(500));
    drop(driver);
    device.works();
    device.ends();
}

#[test]
fn rule_47_descriptors_that_linger_hold_up_no_device() {
    const SET_VRING_CALL: u32 = 13;
    let device = device();
    let mut peers = Vec::new();
    for count in [1, 8] {
        let all: Vec<Lingering> = (0..count).map(|_| Lingering::new()).collect();
        let stream = UnixStream::connect(&device.socket).unwrap();
        let message = [SET_VRING_CALL, 1, 8, 0, 0].map(u32::to_le_bytes).concat();
        let descriptors: Vec<BorrowedFd<'_>> = all.iter().map(|one| one.socket.as_fd()).collect();
        assert!(send_with(&stream, &message, &descriptors));
        peers.extend(all.into_iter().map(Lingering::leave));
        drop(stream);
        device.works();
    }
    device.ends();
}

/// Clock ticks for which the threads of queues have run, of all devices of this process.
fn ticks_of_queues() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (name, rest) = stat.split_once(") ")?;
            let mut numbers = rest.split(' ').skip(11).map(|number| number.parse::<u64>().unwrap());
            name.ends_with("(vhost queue")
                .then(|| numbers.next().unwrap() + numbers.next().unwrap())
        })
        .sum()
}

#[test]
fn rule_47_kicks_that_never_end_cost_next_to_nothing() {
    const SEMAPHORE: i32 = 1;
    let device = device();
    let guest = &device.guest;
    let wants = Wants { queues: 3, ..Wants::default() };
    let mut driver = Driver::start(&device.socket, guest, wants).unwrap();
    for (number, queue) in driver.queues.iter_mut().enumerate() {
        // Each look takes one of them.
        let kick = vmm_sys_util::eventfd::EventFd::new(SEMAPHORE).unwrap();
        kick.write(u64::MAX - 16).unwrap();
        vhost::VhostBackend::set_vring_kick(&driver.frontend, number, &kick).unwrap();
        queue.kick = kick;
    }
    std::thread::sleep(Duration::from_millis(200));
    let before = ticks_of_queues();
    std::thread::sleep(Duration::from_secs(1));
    let took = ticks_of_queues() - before;
    assert!(took <= 30, "{took} ticks of 100 in a second");
    // It is its own guest's requests that are late, by a moment.
    let queue = &mut driver.queues[0];
    let slot = queue.add(guest, vhost_driver::OUT, 0, &[5; 512], 0);
    let at = queue.at(slot);
    queue.jump(guest, 0);
    let began = Instant::now();
    while guest.get::<u8>(at + 16) == 0xff {
        assert!(began.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(guest.get::<u8>(at + 16), OK);
    drop(driver);
    device.works();
    device.ends();
}

#[test]
fn rule_47_a_client_that_gives_its_own_end_for_news_does_not_outlive_itself() {
    const SET_BACKEND_REQ_FD: u32 = 21;
    let device = device();
    let stream = UnixStream::connect(&device.socket).unwrap();
    let message = [SET_BACKEND_REQ_FD, 1, 0].map(u32::to_le_bytes).concat();
    assert!(send_with(&stream, &message, &[stream.as_fd()]));
    drop(stream);
    device.works();
    device.ends();
}
