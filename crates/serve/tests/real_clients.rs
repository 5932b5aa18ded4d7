//! The clients that people use, against the server from outside: what they leave in a volume that
//! can be looked into, and what of it is durable. The same clients on a store, with more jobs, are
//! the workshop's.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod volumes;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use onefold_core::Volume;
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

/// Runs a command line whose parts have no spaces but in the last argument, and returns its output;
/// it must succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        Command::new("timeout").arg("60").arg(program).args(arguments).output().unwrap();
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
    let list = run(
        "nbdinfo",
        &["--list", &format!("nbd+unix:///?socket={}", served.file("nbd.sock").display())],
    );
    for line in [
        "export=\"disk\"",
        "export-size: 1073741824",
        "can_multi_conn: true",
        "can_fast_zero: true",
        "base:allocation",
    ] {
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
    let script = format!("base, large = 0, 32 << 20\n{}", include_str!("clients/every-command.py"));
    run(
        "/usr/bin/python3",
        &["-m", "nbd", "--base-allocation", "-u", &served.uri(), "-c", &script],
    );
    served.stop();
}

#[test]
fn qemu_img_converts_maps_and_compares() {
    let served = Served::new(32 << 20);
    let image = sample(32 << 20);
    std::fs::write(served.file("in.raw"), &image).unwrap();
    let (raw, qcow) = (served.file("in.raw"), served.file("out.qcow2"));
    let (raw, qcow, uri) = (raw.to_str().unwrap(), qcow.to_str().unwrap(), served.uri());
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", raw, &uri]);
    assert!(served.volume.peek(0, image.len()) == image);
    assert_eq!(served.volume.volatile(), 0, "qemu-img flushes at the end");
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", raw, &uri]);
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    let zero = r#""start": 8388608, "length": 8388608, "depth": 0, "present": true, "zero": true, "data": false"#;
    let hole = r#""start": 8388608, "length": 8388608, "depth": 0, "present": false, "zero": true, "data": false"#;
    assert!(map.contains(zero) || map.contains(hole), "{map}");
    run("qemu-img", &["convert", "-m", "8", "-W", "-f", "raw", "-O", "qcow2", &uri, qcow]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, qcow]);
    served.stop();
}

#[test]
fn qemu_io_forces_trims_and_zeroes() {
    let served = Served::new(16 << 20);
    let uri = served.uri();
    let mut arguments = vec!["-f", "raw", "-t", "none", "--discard=unmap"];
    include_str!("clients/qemu-io.txt")
        .lines()
        .for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let output = run("qemu-io", &arguments);
    assert!(!output.contains("failed"), "{output}");
    assert_eq!(served.volume.volatile(), 0);
    let extents = served.volume.extents(0, 512 << 10, 100).unwrap();
    assert_eq!(
        extents.iter().map(|extent| extent.bytes >> 10).collect::<Vec<_>>(),
        [64, 64, 64, 64, 64, 192]
    );
    served.stop();
}

#[test]
fn four_connections_of_one_client_share_a_volume() {
    let served = Served::new(32 << 20);
    let image = sample(32 << 20);
    std::fs::write(served.file("in"), &image).unwrap();
    let input = served.file("in");
    run(
        "nbdcopy",
        &[
            "--threads=4",
            "--connections=4",
            "--requests=16",
            "--request-size=65536",
            "--flush",
            input.to_str().unwrap(),
            &served.uri(),
        ],
    );
    assert!(served.volume.peek(0, image.len()) == image);
    assert_eq!(served.volume.volatile(), 0);
    assert!(served.server.statistics().accepted >= 4);
    served.stop();
}
