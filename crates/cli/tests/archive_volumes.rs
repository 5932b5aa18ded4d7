//! A served archive: backup volumes over NBD, and puts through its server.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use support::{Desk, noise, qemu_io};

fn nbdcopy(from: &str, to: &str) {
    let copied =
        Command::new("timeout").args(["60", "nbdcopy", "--flush", from, to]).status().unwrap();
    assert!(copied.success(), "nbdcopy {from} {to}");
}

fn get(desk: &Desk, name: &str) -> Vec<u8> {
    let said = desk.command(&format!("get a {name} --verify")).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    said.stdout
}

#[test]
fn a_volume_is_written_over_nbd_and_survives_a_kill() {
    let desk = Desk::new();
    desk.ok("create archive a --compress lz4");
    desk.fails("volume create a disk", 2, &["size"]);
    desk.ok("volume create a disk --size 16M");
    desk.fails("volume create a disk --size 16M", 1, &["already"]);
    let mut serving = desk.serve("a");
    desk.fails("serve a", 1, &["served by process"]);
    let mut image = noise(3, 12 << 20);
    image[1 << 20..4 << 20].fill(0);
    fs::write(desk.path("image"), &image).unwrap();
    let uri = desk.uri("a", "disk");
    nbdcopy(desk.path("image").to_str().unwrap(), &uri);
    qemu_io(
        &uri,
        &[
            "write -P 7 8191 70000",
            "flush",
            "discard 9M 1M",
            "write -z 11M 100k",
            "flush",
            "write -P 9 5M 1M",
        ],
    );
    image[8191..78191].fill(7);
    image[9 << 20..10 << 20].fill(0);
    image[11 << 20..(11 << 20) + (100 << 10)].fill(0);
    // qemu-io flushes when it closes the volume.
    image[5 << 20..6 << 20].fill(9);
    let status = desk.status("a");
    assert_eq!(status["volumes"][0]["name"], "disk");
    assert_eq!(status["server"]["pid"], serving.pid());
    serving.kill();
    serving = desk.serve("a");
    nbdcopy(&uri, desk.path("back").to_str().unwrap());
    assert!(fs::read(desk.path("back")).unwrap()[..12 << 20] == image);
    assert!(desk.ok("check a").contains("1 volume with"));
    desk.ok("scrub a");
    desk.ok("gc a");
    let (status, log) = serving.terminate();
    assert!(status.success() && log.contains("closed"), "{log}");
    desk.ok("scrub a");
    desk.ok("volume delete a disk --json");
    desk.ok("gc a");
    assert_eq!(desk.status("a")["stored_bytes"], 0);
    assert_eq!(desk.ok("volume list a"), "no volumes\n");
}

#[test]
fn volumes_come_and_go_while_the_archive_is_served() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let serving = desk.serve("a");
    desk.ok("volume create a one --size 1M");
    qemu_io(&desk.uri("a", "one"), &["write -P 5 0 1M", "flush"]);
    desk.fails("volume resize a one --size 200K", 1, &["1.00 MiB", "--force"]);
    desk.ok("volume resize a one --size 200K --force");
    desk.ok("volume resize a one --size 2M");
    qemu_io(&desk.uri("a", "one"), &["read -P 5 0 256k", "read -P 0 256k 1792k"]);
    desk.ok("volume rename a one two");
    qemu_io(&desk.uri("a", "two"), &["read -P 5 0 256k"]);
    let list: serde_json::Value = serde_json::from_str(&desk.ok("volume list a --json")).unwrap();
    assert_eq!(
        (&list[0]["name"], &list[0]["bytes"], &list[0]["mapped_bytes"]),
        (&"two".into(), &(2u64 << 20).into(), &(256u64 << 10).into())
    );
    desk.fails("volume delete a one", 1, &["no volume 'one'"]);
    desk.ok("volume delete a two");
    assert!(serving.terminate().0.success());
    desk.ok("scrub a");
}

#[test]
fn a_put_into_a_served_archive_goes_through_its_server() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    desk.ok("volume create a disk --size 8M");
    let bytes = noise(5, 3_000_000);
    fs::write(desk.path("file"), &bytes).unwrap();
    let serving = desk.serve("a");
    nbdcopy(desk.path("file").to_str().unwrap(), &desk.uri("a", "disk"));
    // A volume's content is a duplicate for a stream, and the other way round.
    let said: serde_json::Value = serde_json::from_str(&desk.ok("put a one file --json")).unwrap();
    assert_eq!(said["bytes"].as_u64(), Some(3_000_000));
    assert!(said["new_bytes"].as_u64().unwrap() < 200_000, "{said}");
    assert!(desk.ok("put a again file").starts_with("stored 'again': "));
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/x"), &bytes[..100_000]).unwrap();
    fs::write(desk.path("tree/y"), b"short").unwrap();
    desk.ok("put a tree -r tree");
    let mut child =
        desk.command("put a piped").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes[..1_000_000]).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(get(&desk, "one") == bytes && get(&desk, "piped") == bytes[..1_000_000]);
    desk.ok("get a tree -C out");
    assert!(
        fs::read(desk.path("out/x")).unwrap() == bytes[..100_000]
            && fs::read(desk.path("out/y")).unwrap() == b"short"
    );
    desk.fails("put a nothing missing-file", 1, &["missing-file"]);
    desk.fails("put a nothing -r missing-tree", 1, &["missing-tree"]);
    desk.ok("rm a one");
    desk.ok("gc a");
    assert!(get(&desk, "again") == bytes);
    assert!(serving.terminate().0.success());
    desk.ok("scrub a");
}

#[test]
fn a_killed_client_leaves_only_garbage() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    let serving = desk.serve("a");
    let bytes = noise(6, 20_000_000);
    for (n, taken) in [0, 300_000, 5_000_000, 20_000_000].into_iter().enumerate() {
        let mut child = desk
            .command("put a killed")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let _ = input.write_all(&bytes[..taken]);
        std::thread::sleep(Duration::from_millis(20 * n as u64));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    desk.fails("get a killed", 1, &["no stream 'killed'"]);
    fs::write(desk.path("file"), &bytes).unwrap();
    desk.ok("put a killed file");
    assert!(get(&desk, "killed") == bytes);
    assert!(serving.terminate().0.success());
    desk.ok("rm a killed");
    desk.ok("gc a --keep-partial 0");
    assert_eq!(desk.status("a")["stored_bytes"], 0);
}

#[test]
fn there_is_one_ingesting_process() {
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    desk.ok("volume create a disk --size 1M");
    let mut putting =
        desk.command("put a slow").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = putting.stdin.take().unwrap();
    input.write_all(b"first").unwrap();
    // The put has the lock as soon as another put can't have it.
    while desk.run("put a other /dev/null --no-wait").status.success() {
        std::thread::sleep(Duration::from_millis(20));
    }
    desk.fails("serve a --no-wait", 1, &["another process stores into the archive"]);
    let mut command = desk.command("serve a");
    let mut serving = support::Serving::start_saying(&mut command, "waiting for a put");
    // A put that waits is served by whichever process is first afterwards.
    let mut waiting = desk.command("put a later /dev/null").stdout(Stdio::null()).spawn().unwrap();
    drop(input);
    assert!(putting.wait().unwrap().success());
    serving.wait_for("serving ");
    assert!(waiting.wait().unwrap().success());
    assert_eq!(get(&desk, "slow"), b"first");
    assert_eq!(get(&desk, "later"), b"");
    assert!(serving.terminate().0.success());
}

#[test]
fn configuration_for_iscsi_names_the_servers_socket_and_lets_nothing_strange_in() {
    let desk = Desk::new();
    desk.ok("create archive a");
    desk.ok("volume create a disk --size 16M");
    let unserved = desk.ok("volume iscsi a disk");
    assert!(unserved.contains("nbd+unix:///disk?socket=SOCKET"), "{unserved}");
    assert!(unserved.contains("    initiator-address 127.0.0.1\n"), "{unserved}");
    let serving = desk.serve("a");
    let served = desk.ok("volume iscsi a disk --initiator 192.0.2.0/24,192.0.2.7");
    assert!(served.contains(&desk.uri("a", "disk")), "{served}");
    assert_eq!(served.matches("initiator-address").count(), 2);
    // Its disk stays the same one for initiators.
    let serial =
        |text: &str| text.lines().find(|line| line.contains("scsi_sn")).unwrap().to_owned();
    assert_eq!(serial(&unserved), serial(&served));
    serving.terminate();
    desk.fails("volume iscsi a none", 1, &["there is no volume 'none'"]);
    desk.fails("volume iscsi a disk --initiator ALL", 2, &["'ALL'"]);
    desk.fails("volume iscsi a disk --target a>b", 2, &["'a>b'"]);
    desk.fails("volume iscsi a disk --file volume", 2, &["'volume'"]);
    // Names that targets can't have stay apart.
    desk.ok("volume create a Disk --size 16M");
    desk.ok("volume create a dis_k --size 16M");
    let target = |name: &str| desk.ok(&format!("volume iscsi a {name}"));
    assert!(target("Disk").contains("<target iqn.2026-11.onefold.local:-isk-"));
    assert_ne!(serial(&target("Disk")), serial(&target("dis_k")));
    desk.store_with_volume("b");
    assert!(desk.ok("volume iscsi b v").contains("vendor_id Onefold"));
}

#[test]
fn rule_62_read_only_clones_are_snapshots_for_retention() {
    let desk = Desk::new();
    desk.ok("create archive a");
    desk.ok("volume create a disk --size 1M");
    let clone = |name: &str| drop(desk.ok(&format!("volume clone a disk {name} --read-only")));
    for name in ["disk@1", "disk@2", "disk@3", "other@1", "plain", "@odd", "odd@"] {
        clone(name);
    }
    // A clone that can be written is a volume, whatever its name is.
    desk.ok("volume clone a disk disk@0");
    let listed = || -> Vec<String> {
        let all: Value = serde_json::from_str(&desk.ok("snapshots a --clones --json")).unwrap();
        let name = |one: &Value| one["volume"].as_str().unwrap().to_owned();
        // They come by their age, in whole seconds.
        let mut names: Vec<String> = all.as_array().unwrap().iter().map(name).collect();
        names.sort();
        names
    };
    assert_eq!(listed(), ["disk@1", "disk@2", "disk@3", "other@1"]);
    assert!(desk.ok("snapshots a --clones --set other").contains("other@1"));
    assert_eq!(desk.ok("snapshots a"), "no snapshots\n");
    // Policies for snapshots of directories leave them alone.
    desk.ok("forget a --keep-last 1");
    let said = desk.ok("forget a --clones --keep-last 2 --dry-run");
    assert!(said.contains("disk@1") && said.contains("1 clone would be deleted"), "{said}");
    assert_eq!(listed().len(), 4);
    let said = desk.ok("forget a --clones --keep-last 2 --json");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said[0]["volume"], &said[0]["verdict"]), (&"disk@1".into(), &"deleted".into()));
    assert_eq!(listed(), ["disk@2", "disk@3", "other@1"]);
    // The guards hold: no set loses its last one.
    desk.fails("forget a --clones --keep-tag none --set other", 1, &["last whole snapshot"]);
    assert_eq!(listed().len(), 3);
    // A server deletes what is served.
    clone("disk@4");
    let serving = desk.serve("a");
    let policy = "[[keep]]\nset = 'disk'\nlast = 2\n";
    fs::write(desk.path("p.toml"), policy).unwrap();
    let said = desk.ok("forget a --clones --policy p.toml");
    assert!(said.contains("set 'other': kept, no policy fits it"), "{said}");
    assert_eq!(listed(), ["disk@3", "disk@4", "other@1"]);
    serving.terminate();
    let volumes = desk.ok("volume list a");
    for name in ["disk\n", "disk@0", "plain", "@odd", "odd@"] {
        assert!(volumes.contains(name), "{name}: {volumes}");
    }
    desk.ok("check a");
}

#[test]
fn a_volume_is_cloned_while_it_is_written_and_afterwards() {
    let desk = Desk::new();
    desk.ok("create archive a");
    desk.ok("volume create a disk --size 16M");
    let serving = desk.serve("a");
    let uri = desk.uri("a", "disk");
    qemu_io(&uri, &["write -P 7 0 1M", "flush"]);
    assert!(
        desk.ok("volume clone a disk monday --read-only").contains("read-only volume 'monday'")
    );
    qemu_io(&uri, &["write -P 8 0 1M", "flush"]);
    let monday = desk.uri("a", "monday");
    nbdcopy(&monday, desk.path("back").to_str().unwrap());
    assert_eq!(fs::read(desk.path("back")).unwrap()[..1 << 20], vec![7; 1 << 20]);
    let refused = support::try_qemu_io(&monday, &["write -P 9 0 1M"]);
    assert!(!refused.status.success(), "{refused:?}");
    assert!(desk.ok("volume list a").contains("monday  read-only"));
    assert!(desk.ok("volume iscsi a monday").contains("        readonly 1\n"));
    desk.fails("volume clone a disk monday", 1, &["already"]);
    serving.terminate();
    desk.ok("volume clone a disk vm");
    desk.fails("volume resize a monday --size 32M", 1, &["read-only"]);
    desk.ok("check a");
    desk.ok("create cluster c");
    desk.ok("volume create c disk --size 16M");
    desk.ok("volume clone c disk vm");
    desk.store_with_volume("b");
    desk.fails("volume clone b v vm --read-only", 2, &["onefold snapshot create b 'v@NAME'"]);
    desk.ok("volume clone b v vm");
    assert!(desk.ok("volume list b").contains("vm"));
}
