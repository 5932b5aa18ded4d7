//! Images in and out, and snapshots copied to another store, served or not; either side is killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    io::{Read, Write},
    os::unix::fs::MetadataExt,
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
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

/// A store with the image as volume `vm1`.
fn store_with_image(desk: &Desk, store: &str, bytes: &[u8]) {
    desk.ok(&format!("create block {store} --size 128M --preallocate none"));
    fs::write(desk.path("image"), bytes).unwrap();
    desk.ok(&format!("import {store} vm1 image"));
}

/// What an export gives, through a file.
fn exported(desk: &Desk, store: &str, name: &str) -> Vec<u8> {
    let _ = fs::remove_file(desk.path("out"));
    desk.ok(&format!("export {store} {name} out"));
    fs::read(desk.path("out")).unwrap()
}

#[test]
fn images_go_in_and_out_served_or_not() {
    let desk = Desk::new();
    let bytes = image(1);
    store_with_image(&desk, "a", &bytes);
    let mut serving = Some(desk.serve("a"));
    for served in [true, false] {
        assert!(exported(&desk, "a", "vm1") == bytes);
        let held = fs::metadata(desk.path("out")).unwrap().blocks() * 512;
        assert!(held < 8 * MIB as u64, "{held}");
        // Through pipes, whose length nobody knows.
        let name = format!("pipe{served}");
        let out = desk.command("export a vm1 -").output().unwrap();
        assert!(out.status.success() && out.stdout == bytes);
        let mut import = desk.command(&format!("import a {name} - --json"));
        let mut import = import.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        import.stdin.take().unwrap().write_all(&bytes).unwrap();
        let said = import.wait_with_output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!(report["bytes"], bytes.len());
        assert!(exported(&desk, "a", &name) == bytes);
        // A size that is no whole block, from a file with holes.
        let odd = fs::File::create(desk.path("odd")).unwrap();
        odd.set_len(40 * MIB as u64 + 5).unwrap();
        (&odd).write_all(b"begin").unwrap();
        desk.ok(&format!("import a odd{served} odd"));
        let found = exported(&desk, "a", &format!("odd{served}"));
        assert_eq!((found.len(), &found[..5]), (40 * MIB + 4096, &b"begin"[..]));
        assert!(found[5..].iter().all(|&byte| byte == 0));
        desk.fails("import a vm1 image", 1, &["there is a volume 'vm1' already"]);
        desk.fails("export a nothing nothing.raw", 1, &["there is no volume 'nothing'"]);
        assert!(!desk.path("nothing.raw").exists());
        desk.fails("export a vm1 out", 1, &["out"]);
        if served {
            desk.ok("snapshot create a vm1@a");
            qemu_io(&desk.uri("a", "vm1"), &["write -P 0x11 0 1M", "flush"]);
            assert!(exported(&desk, "a", "vm1@a") == bytes);
            assert!(exported(&desk, "a", "vm1")[..MIB].iter().all(|&byte| byte == 0x11));
            qemu_io(&desk.uri("a", "vm1"), &["write -z 0 1M", "flush"]);
            assert!(serving.take().unwrap().terminate().0.success());
        }
    }
    desk.ok("check a");
    desk.ok("create archive backups");
    desk.fails("export backups vm1 x", 1, &["backups is an archive"]);
    desk.fails("send backups vm1@a", 1, &["backups is an archive"]);
}

#[test]
fn an_import_that_is_cut_off_leaves_no_volume() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    fs::write(desk.path("image"), noise(1, 2 * MIB)).unwrap();
    let serving = desk.serve("a");
    let mut command = desk.command("import a vm1 -");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(&noise(1, 3 * MIB)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = || desk.ok("volume list a").contains("no volumes");
    for _ in 0..500 {
        if gone() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(gone());
    desk.ok("import a vm1 image");
    assert!(serving.terminate().0.success());
    desk.ok("check a");
}

/// Passes bytes on until the end, or until so many went through. True at the end.
fn pass(from: &mut Child, to: &mut Child, most: usize) -> bool {
    let (out, input) = (from.stdout.as_mut().unwrap(), to.stdin.as_mut().unwrap());
    let (mut buffer, mut done) = (vec![0; 64 << 10], 0);
    while done < most {
        let wanted = buffer.len().min(most - done);
        let n = out.read(&mut buffer[..wanted]).unwrap();
        if n == 0 {
            return true;
        }
        // A receiver that was killed takes nothing.
        if input.write_all(&buffer[..n]).is_err() {
            return false;
        }
        done += n;
    }
    false
}

/// Copies a snapshot from `a` to `b`; either side is killed again and again, at most so often, each
/// time so many bytes later.
fn copy(desk: &Desk, what: &str, kills: usize, step: usize) -> usize {
    let mut killed = 0;
    loop {
        let tokens = desk.run("receive b vm1 --token").out;
        let resume =
            if tokens.is_empty() { String::new() } else { format!(" --resume {}", tokens.trim()) };
        let mut send = desk.command(&format!("send a {what}{resume}"));
        let mut send = send.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut receive = desk.command("receive b");
        receive.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut receive = receive.spawn().unwrap();
        let most = if killed < kills { 200 + killed * step } else { usize::MAX };
        let whole = pass(&mut send, &mut receive, most);
        if !whole {
            let victim = if killed.is_multiple_of(2) { &mut receive } else { &mut send };
            victim.kill().unwrap();
            killed += 1;
        }
        drop((send.stdout.take(), receive.stdin.take()));
        send.wait().unwrap();
        if receive.wait().unwrap().success() {
            return killed;
        }
        if whole {
            panic!("the whole stream was refused");
        }
        assert!(desk.run("snapshot list b --json").out.matches('@').count() < 2);
    }
}

#[test]
fn a_copy_is_killed_at_twenty_places_on_either_side_and_comes_over() {
    let desk = Desk::new();
    let bytes = image(3);
    store_with_image(&desk, "a", &bytes);
    desk.ok("create block b --size 128M --preallocate none");
    desk.ok("snapshot create a vm1@a");
    assert!(copy(&desk, "vm1@a", 14, 40_000) >= 14);
    assert!(exported(&desk, "b", "vm1@a") == bytes);
    let serving = desk.serve("a");
    let uri = desk.uri("a", "vm1");
    qemu_io(&uri, &["write -P 0x11 2M 2M", "discard 9M 512k", "write -z 5M 64k", "flush"]);
    desk.ok("snapshot create a vm1@b");
    assert!(copy(&desk, "vm1@b --from vm1@a", 8, 1500) >= 6);
    let now = exported(&desk, "a", "vm1@b");
    assert!(now != bytes);
    assert!(exported(&desk, "b", "vm1") == now && exported(&desk, "b", "vm1@b") == now);
    assert!(exported(&desk, "b", "vm1@a") == bytes);
    assert!(serving.terminate().0.success());
    desk.ok("check a");
    desk.ok("check b");
    assert!(desk.ok("volume list b").contains("vm1  (replica)"));
    // The same increment once more, as a timer that runs twice sends it.
    desk.ok("send a vm1@b --from vm1@a --output again");
    let mut twice = desk.command("receive b");
    let twice = twice.stdin(fs::File::open(desk.path("again")).unwrap()).output().unwrap();
    let said = String::from_utf8(twice.stderr).unwrap();
    assert!(said.contains("the snapshot 'vm1@b' is there already, whole"), "{said}");
    desk.fails("volume resize b vm1 --size 1G", 1, &["replica", "onefold volume promote"]);
    desk.ok("volume promote b vm1");
    desk.ok("volume resize b vm1 --size 1G --force");
}

#[test]
fn a_stream_that_nobody_reads_ends_with_a_sentence_and_holds_nothing_up() {
    let desk = Desk::new();
    store_with_image(&desk, "a", &image(7));
    desk.ok("snapshot create a vm1@a");
    for served in [true, false] {
        let serving = served.then(|| desk.serve("a"));
        let mut send = desk.command("send a vm1@a");
        let send = send.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It has filled the pipe, and waits.
        std::thread::sleep(std::time::Duration::from_millis(500));
        if served {
            qemu_io(&desk.uri("a", "vm1"), &["write -P 0x22 0 1M", "flush"]);
            desk.ok("snapshot create a vm1@b");
            desk.ok("snapshot delete a vm1@b");
        }
        let pid = Pid::from_raw(send.id() as i32).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let ended = send.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(130), "{said}");
        assert!(said.contains("interrupted: the stream of 'vm1@a' is not whole"), "{said}");
        serving.into_iter().for_each(|serving| assert!(serving.terminate().0.success()));
        desk.ok("check a");
        desk.ok("snapshot create a vm1@c");
        desk.ok("snapshot delete a vm1@c");
    }
}

#[test]
fn copies_between_served_stores_can_be_given_up() {
    let desk = Desk::new();
    let bytes = image(5);
    store_with_image(&desk, "a", &bytes);
    desk.ok("create block b --size 128M --preallocate none");
    let (a, b) = (desk.serve("a"), desk.serve("b"));
    desk.ok("snapshot create a vm1@a");
    let sent = desk.ok("send a vm1@a --output stream --json");
    let sent: serde_json::Value = serde_json::from_str(&sent).unwrap();
    assert_eq!(sent["repeated_bytes"], MIB);
    let stream = fs::read(desk.path("stream")).unwrap();
    let receive = |bytes: &[u8]| {
        let mut command = desk.command("receive b copy --json");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It may have refused the rest.
        let _ = child.stdin.take().unwrap().write_all(bytes);
        child.wait_with_output().unwrap()
    };
    let cut = receive(&stream[..stream.len() / 2]);
    let said = String::from_utf8(cut.stderr).unwrap();
    assert!(said.contains("the stream ends before its end"), "{said}");
    assert!(desk.ok("receive b --token").contains("copy@a"));
    desk.fails("volume create b copy --size 1M", 1, &["there is a volume 'copy' already"]);
    desk.ok("receive b copy --abort");
    desk.fails("receive b --token", 1, &["nothing is being received"]);
    let mut damaged = stream.clone();
    damaged[3 * MIB] ^= 1;
    assert!(String::from_utf8(receive(&damaged).stderr).unwrap().contains("damaged"));
    let whole = receive(&stream);
    let report: serde_json::Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!((&report["name"], &report["bytes"]), (&"copy@a".into(), &bytes.len().into()));
    assert!(exported(&desk, "b", "copy") == bytes);
    assert!(a.terminate().0.success() && b.terminate().0.success());
    desk.ok("check b");
}

#[test]
fn a_stream_gets_no_name_that_keeps_an_import_out() {
    let desk = Desk::new();
    store_with_image(&desk, "a", &image(1));
    desk.ok("create block b --size 128M --preallocate none");
    desk.ok("volume rename a vm1 .vm2.part");
    desk.ok("snapshot create a .vm2.part@s");
    desk.ok("send a .vm2.part@s --output stream");
    let receive = |arguments: &str| {
        let mut command = desk.command(arguments);
        command.stdin(fs::File::open(desk.path("stream")).unwrap()).output().unwrap()
    };
    let refused = receive("receive b");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("what an import of 'vm2' makes"), "{said}");
    desk.ok("import b vm2 image");
    assert!(receive("receive b vm3").status.success());
}
