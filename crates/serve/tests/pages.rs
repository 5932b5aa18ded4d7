//! The server of pages: clients that are slow or many, pages that fail, and its end.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use onefold_core::Kind;
use onefold_serve::http::{Answer, Audience, CONNECTIONS, Page, Server, Site};
use onefold_serve::nbd::Reach;
use parking_lot::Mutex;

const PATIENCE: Duration = Duration::from_secs(30);

/// Answers after it was let to; panics for `/panic`.
struct Gated {
    begun: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl Site for Gated {
    fn answer(&self, path: &str, audience: Audience) -> Answer {
        assert_eq!(audience == Audience::Anybody, path == "/anybody");
        match path {
            "/slow" => {
                self.begun.lock().send(()).unwrap();
                self.go.lock().recv_timeout(PATIENCE).unwrap();
            }
            "/panic" => panic!("a page panics, as this test wants it"),
            "/fast" | "/anybody" => {}
            _ => return Answer::Missing,
        }
        let body = vec![b'x'; if path == "/anybody" { 16 << 20 } else { 1 << 20 }];
        Answer::Page(Page { content_type: "text/plain", policy: "default-src 'none'".into(), body })
    }
}

struct Bench {
    server: Server,
    socket: PathBuf,
    address: SocketAddr,
    begun: Receiver<()>,
    go: Sender<()>,
    _dir: tempfile::TempDir,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let (tell, begun) = channel();
    let (go, wait) = channel();
    let mut server =
        Server::new(Arc::new(Gated { begun: Mutex::new(tell), go: Mutex::new(wait) }), Vec::new());
    let socket = dir.path().join("http.sock");
    server.add_unix(&socket, Reach::default()).unwrap();
    let address = server.add_tcp("127.0.0.1:0".parse().unwrap(), true).unwrap();
    server.start().unwrap();
    Bench { server, socket, address, begun, go, _dir: dir }
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The status line and the bytes of the page.
fn get(socket: &Path, path: &str) -> (String, usize) {
    let mut stream = connect(socket);
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.len())
}

fn asking(socket: &Path, path: &'static str) -> JoinHandle<(String, usize)> {
    let socket = socket.to_owned();
    std::thread::spawn(move || get(&socket, path))
}

#[test]
fn a_page_that_panics_costs_nobody_else_anything() {
    let bench = bench();
    assert_eq!(get(&bench.socket, "/panic").0, "HTTP/1.1 503 Service Unavailable");
    assert_eq!(get(&bench.socket, "/fast"), ("HTTP/1.1 200 OK".to_owned(), 1 << 20));
    assert_eq!(get(&bench.socket, "/other").0, "HTTP/1.1 404 Not Found");
}

#[test]
fn a_client_that_stands_still_is_cut_off() {
    let bench = bench();
    let mut silent = connect(&bench.socket);
    silent.write_all(b"GET /fast HT").unwrap();
    // It does not read its answer, which is larger than the buffers of the socket.
    let mut deaf = connect(&bench.socket);
    deaf.write_all(b"GET /fast HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    silent.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
    let begun = Instant::now();
    while deaf.write_all(b"more").is_ok() {
        assert!(begun.elapsed() < PATIENCE, "a client that does not read is kept");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn clients_that_wait_for_a_page_are_not_cut_off_by_newcomers() {
    let bench = bench();
    let first = asking(&bench.socket, "/slow");
    bench.begun.recv_timeout(PATIENCE).unwrap();
    // All the others send nothing, and give way to each other.
    let silent: Vec<UnixStream> = (0..3 * CONNECTIONS).map(|_| connect(&bench.socket)).collect();
    let mut cut = 0;
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        cut += usize::from(matches!(stream.read(&mut [0]), Ok(0)));
    }
    assert!(cut > CONNECTIONS, "{cut} were cut off");
    bench.go.send(()).unwrap();
    assert_eq!(first.join().unwrap(), ("HTTP/1.1 200 OK".to_owned(), 1 << 20));
}

#[test]
fn rule_12_clients_that_read_no_answers_keep_no_other_peer_out() {
    let bench = bench();
    // Their answers are larger than the buffers of their sockets: all of them are being answered.
    let deaf: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|_| {
            let mut stream = TcpStream::connect(bench.address).unwrap();
            stream.write_all(b"GET /anybody HTTP/1.0\r\n\r\n").unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.read_exact(&mut [0; 8]).unwrap();
            stream
        })
        .collect();
    for _ in 0..4 {
        assert_eq!(get(&bench.socket, "/fast"), ("HTTP/1.1 200 OK".to_owned(), 1 << 20));
    }
    // Those who keep others out have no more than before, and the client that came last is not cut
    // off for them before it has asked.
    let mut own = connect(&bench.socket);
    let more: Vec<TcpStream> =
        (0..3 * CONNECTIONS).map(|_| TcpStream::connect(bench.address).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(200));
    own.write_all(b"GET /fast HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    own.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    drop((deaf, more));
}

/// Takes a while for each page, and counts that.
struct Slow(AtomicU64);

impl Site for Slow {
    fn answer(&self, _: &str, _: Audience) -> Answer {
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        self.0.fetch_add(begun.elapsed().as_micros() as u64, SeqCst);
        Answer::Page(Page { content_type: "text/plain", policy: "x".into(), body: b"x".into() })
    }
}

#[test]
fn rule_12_strangers_who_ask_all_the_time_take_a_fifth_of_a_processor() {
    let slow = Arc::new(Slow(AtomicU64::new(0)));
    let mut server = Server::new(slow.clone(), Vec::new());
    let address = server.add_tcp("127.0.0.1:0".parse().unwrap(), true).unwrap();
    server.start().unwrap();
    let begun = Instant::now();
    let mut answers = 0;
    while begun.elapsed() < Duration::from_secs(2) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /a HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        answers += u32::from(text.ends_with("\r\n\r\nx"));
    }
    let (worked, whole) = (slow.0.load(SeqCst), begun.elapsed().as_micros() as u64);
    assert!(answers > 10 && worked < whole / 3, "{answers} answers: {worked} of {whole} us");
}

#[test]
fn the_end_waits_for_pages_that_are_being_made_and_for_nobody_else() {
    let bench = bench();
    let _silent: Vec<UnixStream> = (0..4).map(|_| connect(&bench.socket)).collect();
    let asked = asking(&bench.socket, "/fast");
    assert_eq!(asked.join().unwrap().0, "HTTP/1.1 200 OK");
    let begun = Instant::now();
    drop(bench.server);
    assert!(begun.elapsed() < PATIENCE && !bench.socket.exists());
}

#[test]
fn rule_10_a_socket_is_never_open_to_every_user() {
    let dir = tempfile::tempdir().unwrap();
    let site = Gated { begun: Mutex::new(channel().0), go: Mutex::new(channel().1) };
    let mut server = Server::new(Arc::new(site), Vec::new());
    let socket = dir.path().join("http.sock");
    for mode in [0o606, 0o666, 0o602, 0o601] {
        let refused = server.add_unix(&socket, Reach { mode, group: None }).unwrap_err();
        assert_eq!(refused.kind(), Kind::Denied);
        assert!(!socket.exists());
    }
    assert_eq!(
        server.add_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap_err().kind(),
        Kind::Denied
    );
    // Nor to those to whom its directory hands rights down.
    let set = std::process::Command::new("setfacl")
        .args(["-d", "-m", "u::rwx,u:daemon:rwx,g::rwx,o::rwx"])
        .arg(dir.path())
        .status();
    if !set.is_ok_and(|set| set.success()) {
        println!("no default ACLs here: the mode alone is tried");
    }
    server.add_unix(&socket, Reach { mode: 0o660, group: None }).unwrap();
    let list = rustix::fs::lgetxattr(&socket, "system.posix_acl_access", &mut [0; 64][..]);
    assert!(list.is_err(), "the socket has a list of rights");
    let mode = std::fs::symlink_metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}
