//! Volumes of cluster stores: images in and out, and snapshots copied to stores of either engine, served or not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{fs, io::Write, os::unix::fs::MetadataExt, process::Stdio};

use support::{Desk, noise, qemu_io};

const MIB: usize = 1 << 20;

/// An image with data, holes, and a block that is there twice.
fn image(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 24 * MIB];
    let data = noise(seed, 5 * MIB);
    bytes[MIB..6 * MIB].copy_from_slice(&data);
    bytes[9 * MIB..10 * MIB].copy_from_slice(&data[..MIB]);
    bytes[20 * MIB + 100..21 * MIB].copy_from_slice(&noise(seed + 1, MIB - 100));
    bytes
}

/// A cluster store with the image as volume `vm1`.
fn store_with_image(desk: &Desk, store: &str, bytes: &[u8]) {
    desk.ok(&format!("create cluster {store}"));
    fs::write(desk.path("image"), bytes).unwrap();
    desk.ok(&format!("import {store} vm1 image"));
}

/// What an export gives, through a file.
fn exported(desk: &Desk, store: &str, name: &str) -> Vec<u8> {
    let _ = fs::remove_file(desk.path("out"));
    desk.ok(&format!("export {store} {name} out"));
    fs::read(desk.path("out")).unwrap()
}

/// What `send` with these arguments writes.
fn sent(desk: &Desk, arguments: &str) -> Vec<u8> {
    let sent = desk.command(&format!("send {arguments}")).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    sent.stdout
}

/// Gives a stream to a command; true when it took it, and what it said.
fn takes(desk: &Desk, arguments: &str, stream: &[u8]) -> (bool, String) {
    let mut command = desk.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Who refuses the stream does not read it.
    let _ = child.stdin.take().unwrap().write_all(stream);
    let said = child.wait_with_output().unwrap();
    let text = [said.stdout, said.stderr].concat();
    (said.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn received(desk: &Desk, arguments: &str, stream: &[u8]) -> String {
    let (took, said) = takes(desk, &format!("receive {arguments}"), stream);
    assert!(took, "{said}");
    said
}

fn is_well(desk: &Desk, store: &str) {
    desk.ok(&format!("worker {store} --once --cold 0"));
    assert!(desk.ok(&format!("check {store}")).contains("is well"));
}

#[test]
fn images_go_in_and_out_of_cluster_stores_served_or_not() {
    let desk = Desk::new();
    let bytes = image(1);
    store_with_image(&desk, "a", &bytes);
    let mut serving = Some(desk.serve("a --cold 0"));
    for served in [true, false] {
        assert!(exported(&desk, "a", "vm1") == bytes);
        let held = fs::metadata(desk.path("out")).unwrap().blocks() * 512;
        assert!(held < 8 * MIB as u64, "{held}");
        // Through pipes, whose length nobody knows.
        let name = format!("pipe{served}");
        let out = desk.command("export a vm1 -").output().unwrap();
        assert!(out.status.success() && out.stdout == bytes);
        let (took, said) = takes(&desk, &format!("import a {name} - --json"), &bytes);
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(took && report["bytes"] == 24 * MIB as u64, "{said}");
        assert!(exported(&desk, "a", &name) == bytes);
        desk.fails("import a vm1 image", 1, &["is there already"]);
        desk.fails("export a none out2", 1, &["there is no volume 'none'"]);
        desk.fails("export a vm1@none out2", 1, &["there is no snapshot 'vm1@none'"]);
        desk.fails("import a vm1 image --domain x", 1, &["one domain"]);
        if served {
            // What was imported is there for clients.
            qemu_io(&desk.uri("a", &name), &["write -P 0x11 0 1M"]);
            qemu_io(&desk.uri("a", "vm1"), &["write -P 0x22 9M 64k"]);
            desk.ok("snapshot create a vm1@s");
            qemu_io(&desk.uri("a", "vm1"), &["write -P 0x33 9M 64k"]);
            let snapshot = exported(&desk, "a", "vm1@s");
            assert!(snapshot[9 * MIB..][..65_536].iter().all(|byte| *byte == 0x22));
            assert!(snapshot[..9 * MIB] == bytes[..9 * MIB]);
            qemu_io(&desk.uri("a", "vm1"), &["discard 9M 64k"]);
            serving.take().unwrap().terminate();
            desk.ok("snapshot delete a vm1@s");
            let mut before = exported(&desk, "a", "vm1");
            before[9 * MIB..9 * MIB + 65_536].copy_from_slice(&bytes[9 * MIB..9 * MIB + 65_536]);
            assert!(before == bytes);
            desk.ok("volume delete a vm1");
            desk.ok("import a vm1 image");
        }
    }
    // An image that ends early leaves nothing.
    desk.ok("create cluster b");
    desk.fails("import b v none", 1, &["none"]);
    let (took, _) = takes(&desk, "import b v -", b"");
    assert!(!took);
    assert!(desk.ok("volume list b").contains("no volumes"));
    is_well(&desk, "a");
    is_well(&desk, "b");
}

#[test]
fn snapshots_go_between_cluster_and_block_stores_served_or_not() {
    let desk = Desk::new();
    let bytes = image(5);
    store_with_image(&desk, "a", &bytes);
    // What a worker deduplicates between two snapshots is sent with the changes.
    desk.ok("worker a --once --cold 0");
    desk.ok("snapshot create a vm1@monday");
    desk.ok("create cluster c");
    desk.ok("create block d --size 128M --preallocate none");
    let whole = sent(&desk, "a vm1@monday");
    for (store, shown) in [("c", "vm1@monday"), ("d", "vm1@monday")] {
        assert!(received(&desk, store, &whole).contains(shown));
        assert!(exported(&desk, store, "vm1@monday") == bytes);
    }
    // A block store's goes to a cluster store, and the numbers stay.
    received(&desk, "c from-block", &sent(&desk, "d vm1@monday"));
    let source = desk.serve("a --cold 0");
    qemu_io(&desk.uri("a", "vm1"), &["write -P 0x44 2M 1M", "discard 9M 512k"]);
    desk.ok("snapshot create a vm1@tuesday");
    let changes = sent(&desk, "a vm1@tuesday --from vm1@monday");
    assert!(changes.len() < whole.len() / 20, "{}", changes.len());
    let target = desk.serve("c --cold 0");
    // Clients read a replica meanwhile, and don't write.
    let read = |store: &str, what: &str| {
        let mut reads = std::process::Command::new("qemu-io");
        reads.args(["-r", "-f", "raw", "-c", what, &desk.uri(store, "vm1")]);
        reads.stdout(Stdio::null()).status().unwrap().success()
    };
    assert!(read("c", "read 2M 64k"));
    for into in ["c", "d", "c from-block"] {
        received(&desk, into, &changes);
    }
    assert!(read("c", "read -P 0x44 2M 1M"));
    let written = support::try_qemu_io(&desk.uri("c", "vm1"), &["write -P 1 0 4k"]);
    assert!(!written.status.success());
    let now = exported(&desk, "a", "vm1@tuesday");
    for (store, name) in [("c", "vm1"), ("d", "vm1"), ("c", "from-block@tuesday")] {
        assert!(exported(&desk, store, name) == now, "{store} {name}");
    }
    // It is refused where it does not fit.
    for (into, why) in [
        ("c", "exists already"),
        ("c other", "there is no volume 'other'"),
        ("c from-block --domain x", "one domain"),
    ] {
        let (took, said) = takes(&desk, &format!("receive {into}"), &changes);
        assert!(!took && said.contains(why), "{said}");
    }
    let (took, said) = takes(&desk, "receive c", &whole);
    assert!(!took && said.contains("is there already"), "{said}");
    // Promoted, it is written, and wants a rollback then.
    desk.ok("volume promote c vm1");
    qemu_io(&desk.uri("c", "vm1"), &["write -P 0x55 0 64k"]);
    desk.ok("snapshot create a vm1@wednesday");
    let changes = sent(&desk, "a vm1@wednesday --from vm1@tuesday");
    let (took, said) = takes(&desk, "receive c", &changes);
    assert!(!took && said.contains("--rollback"), "{said}");
    received(&desk, "c --rollback", &changes);
    assert!(exported(&desk, "c", "vm1") == now);
    desk.fails("send a vm1@monday --negotiate true", 1, &["without --negotiate"]);
    let (took, said) = takes(&desk, "receive d", b"onefold stream\0\x02");
    assert!(!took, "{said}");
    let (took, said) = takes(&desk, "receive c", b"onefold stream\0\x02");
    assert!(!took && said.contains("without --negotiate"), "{said}");
    source.terminate();
    target.terminate();
    ["a", "c"].iter().for_each(|store| is_well(&desk, store));
}

#[test]
fn a_receive_of_a_cluster_store_goes_on_and_is_given_up() {
    let desk = Desk::new();
    store_with_image(&desk, "a", &image(9));
    desk.ok("snapshot create a vm1@one");
    desk.ok("create cluster c");
    desk.fails("receive c --token", 1, &["nothing is being received"]);
    let whole = sent(&desk, "a vm1@one");
    for served in [true, false] {
        let serving = served.then(|| desk.serve("c --cold 0"));
        let name = format!("copy{served}");
        let (took, said) = takes(&desk, &format!("receive c {name}"), &whole[..whole.len() - 70]);
        assert!(!took, "{said}");
        assert!(!desk.ok("volume list c").contains(&name));
        assert!(desk.ok("snapshot list c").contains("receiving"));
        let listed: serde_json::Value =
            serde_json::from_str(&desk.ok("receive c --token --json")).unwrap();
        assert_eq!(listed[0]["name"], format!("{name}@one"));
        assert_eq!(listed[0]["bytes"], 24 * MIB as u64);
        let token = desk.ok(&format!("receive c {name} --token"));
        let rest = sent(&desk, &format!("a vm1@one --resume {}", token.trim()));
        assert!(rest.len() < whole.len() / 3, "{}", rest.len());
        received(&desk, &format!("c {name}"), &rest);
        assert!(exported(&desk, "c", &name) == exported(&desk, "a", "vm1@one"));
        let (took, _) = takes(&desk, &format!("receive c x{name}"), &whole[..whole.len() / 2]);
        assert!(!took);
        desk.ok(&format!("receive c x{name} --abort"));
        desk.fails(&format!("receive c x{name} --abort"), 1, &["nothing is being received"]);
        let (took, _) = takes(&desk, &format!("receive c y{name}"), &whole[..whole.len() / 2]);
        assert!(!took);
        assert!(desk.ok("receive c --expire 1").contains("nothing was given up"));
        assert!(desk.ok("receive c --expire 0").contains("gave up"));
        if let Some(serving) = serving {
            serving.terminate();
        }
    }
    is_well(&desk, "c");
}
