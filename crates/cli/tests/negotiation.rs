//! Snapshots sent to a store of the same secret, whose receive is asked what is missing: served or not,
//! cut off on its way, and refused. Receives that were cut off, and how they go.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    io::Write,
    process::Stdio,
    time::{Duration, Instant},
};

use support::{Desk, Said, noise};

const MIB: usize = 1 << 20;

/// Stores `a` with an image as `vm1@a`, and `b` of the same secret that has half of it elsewhere.
fn desk() -> (Desk, Vec<u8>) {
    let desk = Desk::new();
    let mut image = vec![0; 24 * MIB];
    image[MIB..9 * MIB].copy_from_slice(&noise(1, 8 * MIB));
    desk.ok("create block a --size 128M --preallocate none");
    desk.ok("create block b --size 128M --preallocate none --like a");
    fs::write(desk.path("image"), &image).unwrap();
    desk.ok("import a vm1 image");
    desk.ok("snapshot create a vm1@a");
    fs::write(desk.path("half"), &image[MIB..5 * MIB]).unwrap();
    desk.ok("import b other half");
    (desk, image)
}

/// Sends `vm1@a` to a receive, whose input is kept in the file `wire`, or is cut off after so many
/// reads of 4 KiB at most.
fn send(desk: &Desk, store: &str, rest: &str, most: Option<usize>) -> Said {
    let mut command = desk.command(&format!("send a vm1@a --json {rest}"));
    let binary = command.get_program().to_str().unwrap().to_owned();
    let cut = most.map_or(String::new(), |most| format!("dd bs=4096 count={most} status=none | "));
    command.args(["--negotiate", &format!("{cut}tee wire | {binary} receive {store}")]);
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { status: output.status, out: text(output.stdout), err: text(output.stderr) }
}

fn sent(said: &Said) -> serde_json::Value {
    assert!(said.status.success(), "{said:?}");
    serde_json::from_str(&said.out).unwrap()
}

fn exported(desk: &Desk, store: &str, name: &str) -> Vec<u8> {
    let _ = fs::remove_file(desk.path("out"));
    desk.ok(&format!("export {store} {name} out"));
    fs::read(desk.path("out")).unwrap()
}

#[test]
fn only_what_is_missing_goes_over_served_or_not() {
    for (here, there) in [(false, false), (true, false), (false, true), (true, true)] {
        let (desk, image) = desk();
        let serving: Vec<_> = [(here, "a"), (there, "b")]
            .into_iter()
            .filter(|(served, _)| *served)
            .map(|(_, store)| desk.serve(store))
            .collect();
        let said = send(&desk, "b", "", None);
        let report = sent(&said);
        let bytes = |key: &str| report[key].as_u64().unwrap() as usize;
        assert_eq!(bytes("data_bytes") + bytes("held_bytes"), 8 * MIB);
        assert_eq!(bytes("held_bytes"), 4 * MIB);
        let wire = fs::metadata(desk.path("wire")).unwrap().len() as usize;
        // 16 bytes for each of 2,048 blocks, and some for each frame.
        let data = bytes("data_bytes");
        assert!((data..data + 48_000).contains(&wire), "{wire}");
        assert!(exported(&desk, "b", "vm1@a") == image);
        assert!(exported(&desk, "b", "vm1") == image);
        for serving in serving {
            assert!(serving.terminate().0.success());
        }
        desk.ok("check b");
    }
}

#[test]
fn a_copy_that_is_cut_off_goes_on_and_other_secrets_are_refused() {
    let (desk, image) = desk();
    for most in [0, 1, 2, 3, 4, 10, 200, 600] {
        let token = desk.run("receive b vm1 --token").out;
        let resume =
            if token.is_empty() { String::new() } else { format!("--resume {}", token.trim()) };
        let said = send(&desk, "b", &resume, Some(most));
        assert!(!said.status.success(), "{most}: {said:?}");
        assert!(said.err.contains("the stream ends before its end"), "{}", said.err);
        assert!(!desk.ok("snapshot list b").contains("vm1@a  "));
    }
    let token = desk.ok("receive b vm1 --token");
    let report = sent(&send(&desk, "b", &format!("--resume {}", token.trim()), None));
    assert!(report["data_bytes"].as_u64().unwrap() < 8 * MIB as u64, "{report}");
    assert!(exported(&desk, "b", "vm1") == image);
    desk.ok("check b");
    desk.ok("create block c --size 128M --preallocate none");
    let serving = desk.serve("c");
    let said = send(&desk, "c", "", None);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.err.contains("has another secret") && said.err.contains("--like"), "{}", said.err);
    desk.fails("receive c --token", 1, &["nothing is being received"]);
    assert!(serving.terminate().0.success());
    // What is no receive, and a receive of a stream that asks without a way back.
    let mut command = desk.command("send a vm1@a --negotiate cat");
    let said = command.output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("no answer of onefold receive"));
    let mut command = desk.command("send a vm1@a --negotiate");
    let said = command.arg("exit 3").output().unwrap();
    assert!(String::from_utf8_lossy(&said.stderr).contains("the receive ended before it was done"));
    desk.fails("send a vm1@a --negotiate cat --output x", 2, &["--output"]);
    desk.fails("create block d --size 128M --like a --verify bytes", 2, &["--like"]);
    desk.ok("create block e --size 128M --fingerprint md5 --verify bytes --preallocate none");
    desk.ok("create block f --size 128M --like e --preallocate none");
    assert_eq!(desk.status("f")["created"]["fingerprint"], "md5");
    let mut command = desk.command("create block g --size 128M --preallocate none --like -");
    command.stdin(fs::File::open(desk.path("a")).unwrap());
    assert!(command.output().unwrap().status.success());
    let report = sent(&send(&desk, "g", "", None));
    assert_eq!(report["held_bytes"], 0);
}

/// Runs a command whose input stays open, with so many bytes in it, and whose other side is silent.
fn silent(desk: &Desk, arguments: &str, rest: &[&str], input: &[u8]) -> Said {
    let begun = Instant::now();
    let mut child = desk
        .command(arguments)
        .args(rest)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        // What the shell started may outlive it.
        .stderr(fs::File::create(desk.path("said")).unwrap())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    let status = child.wait().unwrap();
    drop(stdin);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    Said { status, out: String::new(), err: fs::read_to_string(desk.path("said")).unwrap() }
}

#[test]
fn whoever_is_silent_is_waited_for_only_so_long_and_the_copy_goes_on() {
    let (desk, image) = desk();
    desk.ok("send a vm1@a --output stream");
    let stream = fs::read(desk.path("stream")).unwrap();
    let binary = desk.command("").get_program().to_str().unwrap().to_owned();
    for served in [false, true] {
        let serving: Vec<_> =
            ["a", "b"].into_iter().filter(|_| served).map(|store| desk.serve(store)).collect();
        // A receive that reads nothing and says nothing; one that is silent after it has welcomed the
        // sender; and one that takes no more in the middle.
        let welcomes = format!("{binary} receive b | head -c 80; sleep 40");
        let stops = format!("(head -c 3000000; sleep 40) | {binary} receive b");
        for command in ["exec sleep 40", welcomes.as_str(), stops.as_str()] {
            let said = silent(&desk, "send a vm1@a --wait 2 --negotiate", &[command], b"");
            assert_eq!(said.status.code(), Some(1), "{command}: {said:?}");
            assert!(said.err.contains("for 2 s, so it was given up (--wait)"), "{said:?}");
        }
        for bytes in [0, 10, stream.len() / 2] {
            let said = silent(&desk, "receive b --wait 1", &[], &stream[..bytes]);
            assert_eq!(said.status.code(), Some(1), "{bytes}: {said:?}");
            assert!(said.err.contains("nothing came from the sender for 1 s"), "{said:?}");
        }
        for serving in serving {
            assert!(serving.terminate().0.success());
        }
        desk.ok("check a");
        desk.ok("check b");
    }
    let token = desk.ok("receive b vm1 --token");
    let report = sent(&send(&desk, "b", &format!("--resume {}", token.trim()), None));
    assert!(report["data_bytes"].as_u64().unwrap() < 8 * MIB as u64, "{report}");
    assert!(exported(&desk, "b", "vm1") == image);
    desk.fails("send a vm1@a --wait 5", 2, &["--negotiate"]);
}

/// Cuts a stream of `vm1@NAME` off in the middle.
fn cut_off(desk: &Desk, store: &str, name: &str) {
    let _ = fs::remove_file(desk.path("stream"));
    desk.ok(&format!("send a vm1@{name} --output stream"));
    let stream = fs::read(desk.path("stream")).unwrap();
    fs::write(desk.path("stream"), &stream[..stream.len() / 2]).unwrap();
    let mut command = desk.command(&format!("receive {store}"));
    command.stdin(fs::File::open(desk.path("stream")).unwrap());
    assert!(!command.output().unwrap().status.success());
}

#[test]
fn a_sender_that_died_keeps_nothing_for_ever() {
    let (desk, image) = desk();
    desk.ok("snapshot create a vm1@b");
    for served in [false, true] {
        let serving = served.then(|| desk.serve("b"));
        cut_off(&desk, "b", "a");
        for verb in ["volume list", "snapshot list", "status"] {
            let said = desk.ok(&format!("{verb} b"));
            assert!(
                said.contains("'vm1@a': ") && said.contains("receive STORE vm1 --abort"),
                "{said}"
            );
        }
        let status = desk.status("b");
        assert_eq!(status["receives"][0]["name"], "vm1@a");
        assert!(status["receives"][0]["heard_ms"].as_u64().unwrap() > 1_600_000_000_000);
        assert_eq!(desk.ok("receive b --expire 1"), "nothing was given up\n");
        // Another snapshot of the volume takes its place.
        cut_off(&desk, "b", "b");
        assert_eq!(desk.status("b")["receives"].as_array().unwrap().len(), 1);
        assert_eq!(desk.status("b")["receives"][0]["name"], "vm1@b");
        assert!(desk.ok("receive b --expire 0").contains("'vm1@b'"));
        desk.fails("receive b --token", 1, &["nothing is being received"]);
        assert!(desk.ok("status b --check").contains("nothing needs you"));
        if let Some(serving) = serving {
            assert!(serving.terminate().0.success());
        }
    }
    cut_off(&desk, "b", "b");
    desk.ok("send a vm1@a --output whole");
    let mut command = desk.command("receive b");
    command.stdin(fs::File::open(desk.path("whole")).unwrap());
    assert!(command.output().unwrap().status.success());
    assert!(exported(&desk, "b", "vm1") == image);
    desk.ok("check b");
}
