//! The clients that people use, against the server from outside: libnbd's tools, qemu's, and fio.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod volumes;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use onefold_serve::nbd::{Limits, Server};
use volumes::{MemoryExports, MemoryVolume};

/// A server on a socket of its own, and its volume `disk`.
struct Served {
    server: Server,
    volume: Arc<MemoryVolume>,
    dir: tempfile::TempDir,
}

impl Served {
    fn new(size: u64) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let (exports, volume) = MemoryExports::one(size);
        let mut server = Server::new(exports, Limits::default());
        server.add_unix(&dir.path().join("nbd.sock")).unwrap();
        server.start().unwrap();
        Served { server, volume, dir }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.dir.path().join("nbd.sock").display())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Ends the server, which must not have met anything unexpected.
    fn stop(self) {
        let statistics = self.server.statistics();
        assert_eq!((statistics.panics, statistics.in_flight), (0, 0));
        self.server.stop(Duration::from_secs(5)).unwrap();
        assert!(!self.dir.path().join("nbd.sock").exists());
    }
}

/// Runs a command line whose parts have no spaces but in the last argument, and returns its output; it must succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{program} {arguments:?} failed ({status}):\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// Bytes that are different everywhere, with a hole in the middle.
fn sample(bytes: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut sample: Vec<u8> = (0..bytes)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect();
    sample[bytes / 4..bytes / 2].fill(0);
    sample
}

#[test]
fn nbdinfo_sees_the_volume_and_what_it_holds() {
    let served = Served::new(1 << 30);
    let list = run("nbdinfo", &["--list", &format!("nbd+unix:///?socket={}", served.file("nbd.sock").display())]);
    for line in ["export=\"disk\"", "export-size: 1073741824", "can_multi_conn: true", "can_fast_zero: true", "base:allocation"] {
        assert!(list.contains(line), "{line} is not in:\n{list}");
    }
    let script = "h.pwrite(b'x' * 8192, 4096); h.zero(4096, 16384, nbd.CMD_FLAG_NO_HOLE)";
    run("/usr/bin/python3", &["-m", "nbd", "--base-allocation", "-u", &served.uri(), "-c", script]);
    let map = run("nbdinfo", &["--map", &served.uri()]);
    let words: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["0", "4096", "3", "hole,zero"]);
    assert_eq!(words[1], ["4096", "8192", "0", "data"]);
    assert_eq!(words[2], ["12288", "4096", "3", "hole,zero"]);
    assert_eq!(words[3], ["16384", "4096", "2", "zero"]);
    assert_eq!(words[4], ["20480", "1073721344", "3", "hole,zero"]);
    served.stop();
}

#[test]
fn nbdcopy_brings_an_image_in_and_out() {
    let served = Served::new(48 << 20);
    let image = sample(48 << 20);
    std::fs::write(served.file("in"), &image).unwrap();
    run("nbdcopy", &["--flush", served.file("in").to_str().unwrap(), &served.uri()]);
    assert!(served.volume.peek(0, image.len()) == image);
    assert_eq!(served.volume.volatile(), 0, "a flushed copy is durable");
    run("nbdcopy", &[&served.uri(), served.file("out").to_str().unwrap()]);
    assert!(std::fs::read(served.file("out")).unwrap() == image);
    served.stop();
}

#[test]
fn nbdsh_uses_every_command() {
    let served = Served::new(64 << 20);
    let script = r#"
assert h.can_fua() and h.can_df() and h.can_cache() and h.can_multi_conn() and h.can_meta_context("base:allocation")
h.pwrite(b"a" * 5000, 100, nbd.CMD_FLAG_FUA)
assert h.pread(5002, 99) == b"\0" + b"a" * 5000 + b"\0"
assert h.pread_structured(5002, 99, lambda *a: 0, nbd.CMD_FLAG_DF) == b"\0" + b"a" * 5000 + b"\0"
h.zero(100, 150, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
assert h.pread(200, 100) == b"a" * 50 + b"\0" * 100 + b"a" * 50
h.trim(4096, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(8192, 0) == b"\0" * 100 + b"a" * 50 + b"\0" * 100 + b"a" * 3846 + b"\0" * 4096
h.cache(8192, 0)
h.flush()
big = bytes(range(256)) * (32 << 12)
h.pwrite(big, 1 << 20)
assert h.pread(len(big), 1 << 20) == big
assert h.pread_structured(len(big), 1 << 20, lambda *a: 0, nbd.CMD_FLAG_DF) == big
chunks = []
h.pread_structured(65536, 0, lambda buf, off, kind, err: chunks.append((len(buf), off, kind)))
assert chunks == [(4096, 0, nbd.READ_DATA), (61440, 4096, nbd.READ_HOLE)], chunks
h.set_strict_mode(0)
for call in [lambda: h.pread(10, (64 << 20) - 5), lambda: h.pwrite(b"x" * 10, (64 << 20) - 5), lambda: h.trim(1, 1 << 62)]:
    try:
        call()
        raise SystemExit("a range beyond the end was accepted")
    except nbd.Error as e:
        assert e.errno in ("EINVAL", "ENOSPC"), e.errno
h.shutdown()
"#;
    run("/usr/bin/python3", &["-m", "nbd", "--base-allocation", "-u", &served.uri(), "-c", script]);
    served.stop();
}
