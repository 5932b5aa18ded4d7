//! Archives on another host: a client that sends anything, and another end that answers anything.

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::{FileExt, symlink},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use super::readers::{bounded, identity};
use crate::support::{Desk, noise};

/// Kinds of errors as they travel.
const NOT_FOUND: u8 = 1;
pub(super) const DENIED: u8 = 8;

/// A client that says each byte itself.
pub(super) struct Client {
    pub(super) child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
    next: u64,
}

impl Client {
    pub(super) fn new(desk: &Desk, arguments: &str) -> Client {
        let mut command = bounded(desk, arguments);
        // Addresses that the system's allocator reserves for each thread count as memory here.
        command.env("MALLOC_ARENA_MAX", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut client = Client { child, input, output, next: 1 };
        let mut greeting = [0; 20];
        client.output.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[..16], *b"onefold files 1\n");
        let mut rest = vec![0; u32::from_le_bytes(greeting[16..].try_into().unwrap()) as usize];
        client.output.read_exact(&mut rest).unwrap();
        client
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        self.input.as_mut().unwrap().write_all(bytes).is_ok()
    }

    /// Sends a request.
    pub(super) fn ask(&mut self, what: u8, rest: &[u8]) -> bool {
        let id = self.next.to_le_bytes();
        self.next += 1;
        let length = (9 + rest.len() as u32).to_le_bytes();
        self.send(&[&length[..], &id, &[what], rest].concat())
    }

    /// The next answer: nothing or the kind of an error, and what is behind it.
    pub(super) fn answer(&mut self) -> Option<(Option<u8>, Vec<u8>)> {
        let mut length = [0; 4];
        self.output.read_exact(&mut length).ok()?;
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        self.output.read_exact(&mut frame).ok()?;
        match frame[8] {
            0 => Some((None, frame.split_off(9))),
            _ => Some((Some(frame[9]), frame.split_off(10))),
        }
    }

    /// Its request is answered by this kind of an error.
    #[track_caller]
    pub(super) fn refused(&mut self, what: u8, rest: &[u8], kind: u8) {
        assert!(self.ask(what, rest));
        let (found, said) = self.answer().unwrap();
        assert_eq!(found, Some(kind), "{}", String::from_utf8_lossy(&said));
    }

    /// Ends its stream; the other end ends by itself.
    #[track_caller]
    pub(super) fn ends(mut self) {
        drop(self.input.take());
        let (send, ended) = mpsc::channel();
        let mut child = self.child;
        std::thread::spawn(move || send.send(child.wait().unwrap()));
        let mut rest = self.output;
        std::thread::spawn(move || std::io::copy(&mut rest, &mut std::io::sink()));
        let status = ended.recv_timeout(Duration::from_secs(120)).unwrap();
        assert!(matches!(status.code(), Some(0 | 1)), "{status:?}");
    }
}

pub(super) fn named(handle: u32, between: &[u8], name: &str) -> Vec<u8> {
    [&handle.to_le_bytes()[..], between, name.as_bytes()].concat()
}

/// A desk with an archive `a` that holds a stream.
pub(super) fn desk() -> Desk {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::write(desk.path("image"), noise(1, 300_000)).unwrap();
    desk.ok("put a image image");
    desk
}

#[test]
fn rule_46_a_client_reaches_no_file_but_those_of_the_archive() {
    let desk = desk();
    fs::write(desk.path("a/nodes.old"), "other").unwrap();
    fs::write(desk.path("secret"), "secret").unwrap();
    symlink(desk.path("secret"), desk.path("a/segment-00000099")).unwrap();
    let mut client = Client::new(&desk, "accept a");
    for other in ["nodes", "nodes.old", "nodes.new", "fast", "claim", "belongs-to", "x"] {
        client.refused(1, &named(1, b"", other), DENIED);
        client.refused(2, &named(1, b"\0", other), DENIED);
        client.refused(4, other.as_bytes(), DENIED);
        client.refused(6, &named(1, b"\x01", other), DENIED);
    }
    // A link is no file of the archive, whatever it is called.
    assert!(client.ask(2, &named(1, b"\0", "segment-00000099")));
    assert!(client.answer().unwrap().0.is_some());
    client.refused(2, &named(1, b"\0", "segment-00000077"), NOT_FOUND);
    client.ends();
    for path in ["../secret", "/etc/passwd", "a/label", "..", ".", "", "label\0"] {
        let mut client = Client::new(&desk, "accept a");
        client.ask(2, &named(1, b"\0", path));
        assert_eq!(client.answer(), None, "{path}");
        client.ends();
    }
    assert_eq!(fs::read(desk.path("secret")).unwrap(), b"secret");
    desk.ok("check a");
}

#[test]
fn rule_46_a_client_that_may_read_changes_nothing() {
    let desk = desk();
    let before = |name: &str| fs::read(desk.path(name)).unwrap();
    let label = before("a/label");
    let mut client = Client::new(&desk, "accept a --right read");
    assert!(client.ask(2, &named(1, b"\0", "label")));
    assert_eq!(client.answer().unwrap().0, None);
    let (at, bytes) = (0_u64.to_le_bytes(), 4096_u64.to_le_bytes());
    client.refused(11, &[&1_u32.to_le_bytes()[..], &at, b"rubbish"].concat(), DENIED);
    client.refused(14, &[&1_u32.to_le_bytes()[..], &at].concat(), DENIED);
    for what in [15, 16] {
        client.refused(what, &[&1_u32.to_le_bytes()[..], &at, &bytes].concat(), DENIED);
    }
    client.refused(1, &named(2, b"", "segment-00000050"), DENIED);
    client.refused(4, b"label", DENIED);
    client.refused(6, &named(1, b"\x01", "lock-writer"), DENIED);
    client.ends();
    assert_eq!(before("a/label"), label);
    desk.ok("check a");
}

#[test]
fn rule_46_a_client_costs_its_own_connection_and_bounded_memory() {
    let desk = desk();
    // Lengths of nothing, and requests that are none.
    for bytes in [
        &[0xff; 64][..],
        &[0xff, 0xff, 0xff, 0x7f, 0, 0],
        &[0, 0, 0, 0],
        &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 99],
        &[13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 13, 9, 9, 9, 9],
    ] {
        let mut client = Client::new(&desk, "accept a");
        client.send(bytes);
        client.ends();
    }
    // It reads 8 MiB again and again, and takes no answer.
    let mut client = Client::new(&desk, "accept a");
    client.ask(2, &named(1, b"\0", "reserve"));
    assert_eq!(client.answer().unwrap().0, None);
    let read = [&1_u32.to_le_bytes()[..], &[0; 8], &(8_u32 << 20).to_le_bytes(), &[0]].concat();
    let mut input = client.input.take().unwrap();
    let length = (9 + read.len() as u32).to_le_bytes();
    let asked = [&length[..], &7_u64.to_le_bytes(), &[10], &read].concat();
    let flood = std::thread::spawn(move || (0..150).all(|_| input.write_all(&asked).is_ok()));
    std::thread::sleep(Duration::from_secs(1));
    client.ends();
    drop(flood);
    // It opens all that it can, and takes locks.
    let mut client = Client::new(&desk, "accept a");
    let mut refused = 0;
    for handle in 0..5000 {
        client.ask(2, &named(handle, b"\0", "label"));
        refused += u32::from(client.answer().unwrap().0.is_some());
    }
    assert!(refused >= 5000 - 4096, "{refused}");
    let mut refused = 0;
    for handle in 0..100 {
        client.ask(6, &named(handle, b"\x02", "epoch-0"));
        refused += u32::from(client.answer().unwrap().0.is_some());
    }
    assert_eq!(refused, 100 - 64);
    client.ends();
    desk.ok("put a again image");
    desk.ok("check a");
}

#[test]
fn rule_46_a_lock_of_a_client_ends_with_its_connection_or_its_silence() {
    let desk = desk();
    let mut client = Client::new(&desk, "accept a");
    client.ask(6, &named(1, b"\x01", "lock-writer"));
    assert_eq!(client.answer().unwrap().0, None);
    desk.fails("put a other image --no-wait", 1, &["another process"]);
    client.ends();
    desk.ok("put a other image --no-wait");
    let begun = Instant::now();
    let mut client = Client::new(&desk, "accept a --idle 2s");
    client.ask(6, &named(1, b"\x01", "lock-writer"));
    assert_eq!(client.answer().unwrap().0, None);
    desk.fails("put a third image --no-wait", 1, &["another process"]);
    // It keeps its pipes, and says nothing.
    assert_eq!(client.child.wait().unwrap().code(), Some(1));
    assert!(begun.elapsed() >= Duration::from_secs(2));
    desk.ok("put a third image --no-wait");
    // One that may only read says that it is there, and asks for nothing.
    let mut client = Client::new(&desk, "accept a --right read --idle 2s");
    client.ask(6, &named(1, b"\0", "epoch-0"));
    assert_eq!(client.answer().unwrap().0, None);
    let begun = Instant::now();
    while client.ask(17, b"") {
        assert!(begun.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.child.wait().unwrap().code(), Some(1));
}

/// Another end that says these bytes behind a greeting, and takes what comes.
fn liar(desk: &Desk, said: &[u8]) -> Desk {
    let greeting = [&b"onefold files 1\n"[..], &5_u32.to_le_bytes(), &[2, 0, 0, 0, 0]].concat();
    fs::write(desk.path("said"), [&greeting, said].concat()).unwrap();
    desk.by_ssh("liar", &format!("cat {}; exec cat > /dev/null", desk.path("said").display()))
}

fn answer(id: u64, body: &[u8]) -> Vec<u8> {
    let length = (8 + body.len() as u32).to_le_bytes();
    [&length[..], &id.to_le_bytes(), body].concat()
}

#[test]
fn rule_46_an_other_end_that_lies_costs_the_verb_alone() {
    let desk = desk();
    let opened = answer(1, &[0]);
    let lies: [&[u8]; 9] = [
        b"",
        &[0xff; 4096],
        &[0xff, 0xff, 0xff, 0x03],
        &answer(77, &[0]),
        &answer(1, &[0, 1, 2, 3]),
        &answer(1, &[1, 99]),
        &answer(1, b"\x01\x05damaged\x1b[2J\n"),
        // A file of all bytes that there are, and more than was asked for.
        &[&opened[..], &answer(2, &[[0].as_slice(), &[0xff; 8]].concat())].concat(),
        &[&opened[..], &answer(2, &vec![0; 1 << 20])].concat(),
    ];
    for (n, lie) in lies.iter().enumerate() {
        let desk = liar(&desk, lie);
        for verb in ["ls X", "get X image", "put X new image", "check X", "gc X", "status X"] {
            let arguments = verb.replace('X', "ssh://vault/a");
            let mut command = bounded(&desk, &arguments);
            command.env("ONEFOLD_SSH", desk.path("liar")).env("XDG_STATE_HOME", desk.path("state"));
            let said = command.stdin(Stdio::null()).output().unwrap();
            let words = String::from_utf8_lossy(&said.stderr).into_owned();
            assert_eq!(said.status.code(), Some(1), "{n} {verb}: {words}");
            assert_eq!(words.lines().count(), 1, "{n} {verb}: {words}");
            assert!(!words.contains('\u{1b}'), "{n} {verb}: {words}");
        }
    }
}

/// A snapshot says that it has 40 GiB, in a file of holes, and all its checksums that need no key are right.
#[test]
fn rule_46_sizes_that_another_host_states_take_no_memory_of_the_client() {
    for key in ["", " --key key"] {
        let desk = Desk::new().by_ssh("ssh", "exec onefold accept a");
        desk.ok(&format!("create archive a{key}"));
        fs::create_dir(desk.path("home")).unwrap();
        fs::write(desk.path("home/file"), noise(1, 300_000)).unwrap();
        desk.ok(&format!("backup a home --set s{key}"));
        desk.ok(&format!("put a image home/file{key}"));
        let number = |name: String| name.strip_prefix("snapshot-")?.parse::<u64>().ok();
        let names = fs::read_dir(desk.path("a")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let newest = names.filter_map(number).max().unwrap();
        let path = desk.path(&format!("a/snapshot-{newest:010}"));
        let mut header = fs::read(&path).unwrap()[..40].to_vec();
        header[16..24].copy_from_slice(&(40_u64 << 30).to_le_bytes());
        let sum = identity(&desk.path("a")).checksum(&header[..32]);
        header[32..40].copy_from_slice(&sum.to_le_bytes());
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&header, 0).unwrap();
        file.set_len(41 << 30).unwrap();
        for verb in [
            "backup X home --set s",
            "put X new home/file",
            "rm X image",
            "mv X image other",
            "forget X --set s --keep-last 1",
            "gc X",
            "snapshots X",
            "get X image",
        ] {
            let arguments = format!("{}{key}", verb.replace('X', "ssh://vault/a"));
            let mut command = bounded(&desk, &arguments);
            command.env("ONEFOLD_SSH", desk.path("ssh")).env("XDG_STATE_HOME", desk.path("state"));
            let said = command.stdin(Stdio::null()).output().unwrap();
            let words = String::from_utf8_lossy(&said.stderr).into_owned();
            assert_eq!(said.status.code(), Some(1), "{arguments}: {words}");
            assert_eq!(words.lines().count(), 1, "{arguments}: {words}");
            assert!(words.contains("another host says"), "{arguments}: {words}");
        }
    }
}

#[test]
fn rule_46_an_archive_that_another_end_changes_is_noticed_or_the_same() {
    let desk = desk();
    // Each connection has another byte wrong behind the greeting.
    for at in (30..2400).step_by(173) {
        let script = format!(
            "onefold accept a | {{ head -c {at}; head -c 1 > /dev/null; printf '\\377'; cat; }}"
        );
        let desk = desk.by_ssh("liar", &script);
        let arguments = format!("get ssh://vault{} image --verify", desk.path("a").display());
        // A length that became larger is an answer that is withheld: its reader waits.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "5", env!("CARGO_BIN_EXE_onefold")]);
        command.args(arguments.split_whitespace()).current_dir(desk.path("."));
        command.env("ONEFOLD_SSH", desk.path("liar")).env("XDG_STATE_HOME", desk.path("state"));
        let said = command.stdin(Stdio::null()).output().unwrap();
        let words = String::from_utf8_lossy(&said.stderr).into_owned();
        match said.status.code() {
            Some(0) => assert!(said.stdout == noise(1, 300_000), "{at}"),
            // It was ended.
            None | Some(137) => {}
            code => {
                assert!(code == Some(1) && words.lines().count() == 1, "{at}: {code:?} {words}")
            }
        }
    }
    desk.ok("check a");
}
