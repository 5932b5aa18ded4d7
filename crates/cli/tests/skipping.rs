//! `send --skip-damaged`: a copy goes on past data that can't be read, both ends say so, and nobody
//! takes it for a whole one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

use serde_json::Value;
use support::{Desk, noise, qemu_io, try_qemu_io};

const MIB: usize = 1 << 20;

/// Where the damage is in the volume.
const AT: usize = 3 * MIB + 40_960;

/// A store `a` with a volume `vm1` of 8 MiB, of whose snapshot `vm1@a` a block can't be read, and a store
/// `b` for copies; gives what the volume held.
fn desk() -> (Desk, Vec<u8>) {
    let desk = Desk::new();
    let mut bytes = vec![0; 8 * MIB];
    bytes[2 * MIB..5 * MIB].copy_from_slice(&noise(1, 3 * MIB));
    for store in ["a", "b"] {
        desk.ok(&format!("create block {store} --size 64M --preallocate none"));
    }
    fs::write(desk.path("image"), &bytes).unwrap();
    desk.ok("import a vm1 image");
    desk.ok("snapshot create a vm1@a");
    let disk = fs::read(desk.path("a")).unwrap();
    let block = disk.chunks(4096).position(|block| *block == bytes[AT..AT + 4096]).unwrap();
    let file = File::options().write(true).open(desk.path("a")).unwrap();
    file.write_all_at(b"rotten", block as u64 * 4096 + 99).unwrap();
    (desk, bytes)
}

/// Receives a stream into `b`; it ends with status 3, and says how much is lost.
fn receive(desk: &Desk, stream: &str) -> Value {
    let mut command = desk.command("receive b --json");
    let ended = command.stdin(File::open(desk.path(stream)).unwrap()).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("4.00 KiB of 'vm1@a' can't be read where it comes from"), "{said}");
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[test]
fn a_copy_goes_on_past_damage_and_says_how_much_is_lost() {
    let (desk, bytes) = desk();
    desk.fails("send a vm1@a --output no", 1, &["does not match its fingerprint"]);
    assert!(!desk.path("no").exists());
    for served in [false, true] {
        let serving = served.then(|| desk.serve("a"));
        let name = format!("stream{served}");
        let said = desk.fails(
            &format!("send a vm1@a --skip-damaged --output {name} --json"),
            3,
            &["4.00 KiB of 'vm1@a' can't be read where it comes from"],
        );
        let sent: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(
            (&sent["lost_bytes"], &sent["data_bytes"]),
            (&4096.into(), &(3 * MIB - 4096).into())
        );
        serving.into_iter().for_each(|serving| assert!(serving.terminate().0.success()));
    }
    assert_eq!(receive(&desk, "streamtrue")["lost_bytes"], 4096);
    // Everybody tells of it, and nobody takes it for new damage.
    assert_eq!(desk.status("b")["volumes"][0]["lost_bytes"], 4096);
    assert!(desk.ok("status b").contains("4.00 KiB of 'vm1' were lost before"));
    assert!(desk.ok("volume list b").contains("(4.00 KiB lost)"));
    assert!(desk.ok("check b").contains("1 block lost before"));
    let scrubbed = desk.ok("scrub b --only vm1@a");
    assert!(scrubbed.contains("1 block lost before"), "{scrubbed}");
    let scrubbed: Value = serde_json::from_str(&desk.ok("scrub b --only vm1@a --json")).unwrap();
    assert_eq!((&scrubbed["well"], &scrubbed["known_lost_blocks"]), (&true.into(), &1.into()));
    // A copy of the copy is whole for nobody either.
    desk.fails("send b vm1@a --output no", 1, &["the data is lost"]);
    desk.fails("export b vm1@a no", 1, &["the data is lost"]);
    desk.fails("send b vm1@a --skip-damaged --output onward", 3, &["4.00 KiB of 'vm1@a'"]);
    // A client gets an error, until somebody writes there.
    desk.ok("volume promote b vm1");
    let serving = desk.serve("b");
    let uri = desk.uri("b", "vm1");
    let place = format!("{AT} 4k");
    let said = try_qemu_io(&uri, &[&format!("read {place}")]);
    let said = said.out + &said.err;
    assert!(said.contains("Input/output error"), "{said}");
    qemu_io(&uri, &[&format!("write -P 0x5a {place}"), "flush"]);
    assert!(serving.terminate().0.success());
    desk.ok("export b vm1 whole");
    let mut right = bytes;
    right[AT..AT + 4096].fill(0x5a);
    assert!(fs::read(desk.path("whole")).unwrap() == right);
    desk.fails("export b vm1@a no", 1, &["the data is lost"]);
    desk.ok("check b");
}
