//! Promises of the documents about servers that were killed, trimmed ranges and sentences.

use std::{
    io::Write as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Desk, qemu_io};

fn status(desk: &Desk) -> serde_json::Value {
    serde_json::from_str(&desk.ok("status a --json")).unwrap()
}

/// Writes 4 KiB here and there into the first 64 MiB of a volume, as fast as `qemu-io` takes it,
/// for so long.
fn scribble(uri: &str, seed: u64, time: Duration) -> Child {
    let mut child = Command::new("qemu-io")
        .args(["-f", "raw", "-t", "none", uri])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let (begun, mut state) = (Instant::now(), seed);
    while begun.elapsed() < time {
        for _ in 0..32 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (block, pattern) = ((state >> 33) % (16 << 10), (state >> 20) & 0xff | 1);
            writeln!(input, "aio_write -q -P {pattern} {}k 4k", 4 * block).unwrap();
        }
        writeln!(input, "aio_flush").unwrap();
    }
    // The client lives until it is killed: its last writes are on their way when the server is
    // killed.
    child.stdin = Some(input);
    child
}

#[test]
fn rule_00_promise_workers_collect_what_a_killed_server_left() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    let uri = desk.uri("a", "v");
    for round in 0..3 {
        let serving = desk.serve("a --cold 0 --workers 2 --low-iops 1000000000 --low-bytes 1000G");
        let mut client = scribble(&uri, round, Duration::from_secs(3));
        serving.kill();
        client.kill().unwrap();
        client.wait().unwrap();
    }
    // A minute of idling is enough where the machine has nothing else to do.
    for _ in 0..5 {
        let serving = desk.serve("a --cold 0 --workers 2");
        std::thread::sleep(Duration::from_secs(60));
        assert!(serving.terminate().0.success());
        let looked: serde_json::Value = serde_json::from_str(&desk.ok("check a --json")).unwrap();
        if (&looked["stale_references"], &looked["collected_chunks"]) == (&0.into(), &0.into()) {
            break;
        }
    }
    let found = status(&desk);
    assert_eq!((&found["backlog"], &found["dirty_bytes"]), (&0.into(), &0.into()), "{found}");
    let scrubbed: serde_json::Value = serde_json::from_str(&desk.ok("repair a --json")).unwrap();
    assert!(scrubbed["references"].as_u64().unwrap() > 100, "{scrubbed}");
    assert_eq!(
        (&scrubbed["stale_references"], &scrubbed["collected_chunks"]),
        (&0.into(), &0.into()),
        "{scrubbed}"
    );
}

#[test]
fn rule_00_promise_what_is_trimmed_is_a_hole_at_once() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    let serving = desk.serve("a");
    let uri = desk.uri("a", "v");
    qemu_io(
        &uri,
        &[
            "write -P 0x11 0 40M",
            "discard 0 40M",
            "write -P 0x22 8M 4k",
            "discard 8M 4k",
            "write -P 0x33 50M 4k",
        ],
    );
    let map = Command::new("qemu-img")
        .args(["map", "--output=json", "-f", "raw", &uri])
        .output()
        .unwrap();
    let map: serde_json::Value = serde_json::from_slice(&map.stdout).unwrap();
    let data: Vec<_> =
        map.as_array().unwrap().iter().filter(|extent| extent["data"] == true).collect();
    assert!(
        data.len() == 1
            && data[0]["start"] == 50 << 20
            && data[0]["length"].as_u64().unwrap() <= 32 << 10,
        "{map}"
    );
    qemu_io(&uri, &["read -P 0 0 40M", "read -P 0x33 50M 4k"]);
    serving.terminate();
    assert_eq!(status(&desk)["logical_bytes"], 32 << 10);
}

#[test]
fn rule_00_promise_sentences_about_a_folder_are_true() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    let before = status(&desk);
    assert!(desk.ok("check a").contains("a is well"));
    assert_eq!(status(&desk)["chunks"], before["chunks"]);
    desk.ok("repair a");
    let serving = desk.serve("a");
    for verb in ["check a", "repair a", "scrub a", "ls a"] {
        let said = desk.fails(verb, 1, &["one owner"]);
        assert!(said.err.contains("stop the process that serves it"), "{verb}: {said:?}");
    }
    assert_eq!(status(&desk)["volumes"], 1);
    serving.terminate();
    let help = desk.ok("status --help");
    assert!(help.contains("The store may be served meanwhile."), "{help}");
}

#[test]
fn rule_09_the_name_of_a_store_gives_a_terminal_no_orders() {
    let desk = Desk::new();
    let name = "a\u{1b}]0;x\u{7}";
    for words in [
        &["create", "block", name, "--size", "64M"][..],
        &["status", name],
        &["check", name],
        &["status", &format!("{name}b")],
    ] {
        let said = desk.command("").args(words).output().unwrap();
        let text = [said.stdout, said.stderr].concat();
        assert!(
            !text.is_empty() && !text.contains(&0x1b) && !text.contains(&7),
            "{words:?}: {}",
            String::from_utf8_lossy(&text).escape_debug()
        );
    }
}

#[test]
fn rule_00_promise_a_frozen_guest_goes_on_when_a_signal_ends_the_snapshot() {
    let desk = Desk::new();
    desk.store_with_volume("s");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let (frozen, going) = (desk.path("frozen"), desk.path("going"));
        let mut child = desk
            .command("snapshot create s v@a")
            .args(["--freeze", "touch frozen; sleep 2", "--thaw", "touch going"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !frozen.exists() {
            assert!(begun.elapsed() < Duration::from_secs(30), "--freeze does not run");
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(going.exists(), "{signal:?} left the guest frozen");
        std::fs::remove_file(frozen).unwrap();
        std::fs::remove_file(going).unwrap();
    }
}

/// The agent of a guest may never answer, while others are frozen already.
#[test]
fn rule_12_a_freeze_that_never_ends_is_given_up_after_a_signal() {
    let desk = Desk::new();
    desk.store_with_volume("s");
    let (frozen, going) = (desk.path("frozen"), desk.path("going"));
    let mut child = desk
        .command("snapshot create s v@a")
        .args(["--freeze", "touch frozen; exec sleep 600", "--thaw", "touch going"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let in_time = || begun.elapsed() < Duration::from_secs(30);
    while !frozen.exists() && in_time() {
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    while !going.exists() && in_time() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let thawed = going.exists();
    while thawed && child.try_wait().unwrap().is_none() && in_time() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = child.try_wait().unwrap();
    let _ = child.kill();
    assert!(thawed && ended.is_some_and(|status| status.code() == Some(130)), "{ended:?}");
}

#[test]
fn rule_00_promise_a_server_lists_all_snapshots_that_it_may_have() {
    let desk = Desk::new();
    desk.store_with_volume("s");
    let _serving = desk.serve("s");
    // More than 64 KiB of names.
    for round in 0..3 {
        let names = (0..200).map(|n| format!(" v@{:0>120}", 200 * round + n));
        let out = desk.ok(&format!("snapshot create s{}", names.collect::<String>()));
        assert!(out.starts_with("took snapshots"), "{out}");
    }
    assert_eq!(desk.ok("snapshot list s").lines().count(), 600);
}

/// Runs `onefold-nightly` for volumes of the store `a`.
fn nightly(desk: &Desk, volumes: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/onefold-nightly");
    let command = Path::new(env!("CARGO_BIN_EXE_onefold")).parent().unwrap().to_owned();
    let path = format!("{}:{}", command.display(), std::env::var("PATH").unwrap());
    let mut nightly = Command::new("sh");
    nightly.arg(script).arg("a").args(volumes.split_whitespace()).env("PATH", path);
    nightly.current_dir(desk.path(".")).env("RUNTIME_DIRECTORY", desk.runtime());
    nightly.output().unwrap()
}

/// A client may keep a snapshot of its own volume open for as long as it likes.
#[test]
fn rule_12_who_keeps_a_snapshot_open_keeps_no_other_volume_from_its_nightly_one() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    for name in ["v1", "v2"] {
        desk.ok(&format!("volume create a {name} --size 8M"));
    }
    let _serving = desk.serve("a");
    assert!(nightly(&desk, "v1 v2").status.success());
    let before = desk.ok("snapshot list a --json");
    assert!(nightly(&desk, "v1 v2").status.success(), "that of last week goes before");
    let list: serde_json::Value = serde_json::from_str(&before).unwrap();
    let day = list[0]["name"].as_str().unwrap().split_once('@').unwrap().1.to_owned();
    let uri = desk.uri("a", &format!("v1@{day}"));
    let mut client = Command::new("qemu-io")
        .args(["-r", "-f", "raw", &uri])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let is_open = || desk.status("a")["server"]["nbd"]["connections"] == 1;
    let begun = Instant::now();
    while !is_open() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the client does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    let made = |name: &str| {
        let list: serde_json::Value =
            serde_json::from_str(&desk.ok("snapshot list a --json")).unwrap();
        let all = list.as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap()["created_ms"].as_u64().unwrap()
    };
    let [one, two] = [made(&format!("v1@{day}")), made(&format!("v2@{day}"))];
    let said = nightly(&desk, "v1 v2");
    let err = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && err.contains("v1"), "it is told: {err}");
    assert_eq!(made(&format!("v1@{day}")), one);
    assert!(made(&format!("v2@{day}")) > two, "{err}");
    let two = made(&format!("v2@{day}"));
    assert!(made(&format!("v1@{day}-new")) > one, "tonight's is there: {err}");
    // A name that is not there costs no other volume what it had, nor tonight's.
    let said = nightly(&desk, "v3 v2");
    let err = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && err.contains("volume 'v3' is not there"), "{err}");
    assert!(made(&format!("v2@{day}")) > two, "{err}");
    drop(client.stdin.take());
    client.wait().unwrap();
}
