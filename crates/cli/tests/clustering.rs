//! Stores of the cluster engine: objects that are put, volumes that are served, a server that is
//! killed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    io::{self, BufRead, BufReader, Lines, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use support::{Desk, Serving, leaves_nothing_on_a_full_disk, noise, qemu_io};

fn status(desk: &Desk) -> serde_json::Value {
    serde_json::from_str(&desk.ok("status a --json")).unwrap()
}

#[test]
fn what_is_put_twice_is_stored_once_and_comes_back() {
    let desk = Desk::new();
    let data = noise(1, 3 << 20);
    fs::write(desk.path("one"), &data).unwrap();
    fs::write(desk.path("two"), [&data[..500], &data[..]].concat()).unwrap();
    desk.ok("create cluster a");
    desk.ok("put a one one");
    desk.ok("put a two two");
    assert_eq!(status(&desk)["dirty_bytes"], (6 << 20) + 500);
    assert!(desk.ok("worker a --once --cold 0").starts_with("deduplicated"));
    let found = status(&desk);
    assert_eq!(
        (&found["dirty_bytes"], &found["backlog"], &found["cached_bytes"]),
        (&0.into(), &0.into(), &0.into())
    );
    let stored = found["chunk_bytes"].as_u64().unwrap();
    assert!(((3 << 20)..(3 << 20) + (200 << 10)).contains(&stored), "{stored}");
    desk.ok("get a two --output copy");
    assert!(fs::read(desk.path("copy")).unwrap() == fs::read(desk.path("two")).unwrap());
    desk.fails("get a two --output copy", 1, &["copy"]);
    // The verbs that all kinds of store have.
    assert_eq!(desk.status("a")["chunk_bytes"], stored);
    assert!(desk.ok("scrub a").contains("a is well"));
    assert!(desk.ok("check a").contains("a is well"));
    assert!(desk.ok("repair a").contains(" 0 stale and 0 missing references"));
    desk.ok("rm a one");
    desk.ok("put a two one");
    desk.ok("worker a --once --cold 0");
    assert!(desk.ok("repair a").contains(" 0 stale and 0 missing references"));
    desk.ok("rm a two");
    desk.ok("worker a --once --cold 0");
    assert_eq!((&status(&desk)["chunks"], &status(&desk)["objects"]), (&0.into(), &0.into()));
    desk.fails("get a two", 1, &["there is no stream 'two'"]);
    desk.fails("create cluster a", 1, &["not empty"]);
    desk.fails("ls none", 1, &["there is nothing at none"]);
}

#[test]
fn a_scrub_in_portions_looks_at_everything_and_finds_what_is_lost() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    fs::write(desk.path("data"), noise(5, 3 << 20)).unwrap();
    for n in 0..90 {
        fs::write(desk.path("small"), format!("content {n}")).unwrap();
        desk.ok(&format!("put a small-{n} small"));
    }
    desk.ok("put a large data");
    desk.ok("worker a --once --cold 0");
    let json = |line: &str| -> serde_json::Value { serde_json::from_str(&desk.ok(line)).unwrap() };
    let whole = json("scrub a --json");
    let (mut objects, mut chunks, mut calls) = (0, 0, 0);
    loop {
        let portion = json("scrub a --cursor c --for 0s --json");
        objects += portion["objects"].as_u64().unwrap();
        chunks += portion["chunks"].as_u64().unwrap();
        calls += 1;
        assert_eq!(desk.path("c").exists(), portion["ended"] == false, "{portion}");
        if portion["ended"] == true {
            break;
        }
    }
    assert!(calls > 3, "{calls}");
    assert_eq!(
        (whole["objects"].as_u64(), whole["chunks"].as_u64()),
        (Some(objects), Some(chunks))
    );
    assert!(desk.ok("scrub a --cursor c --for 0s").contains("the next scrub goes on"));
    assert!(desk.ok("scrub a --cursor c --rate 100M").contains("a is well"));
    // A file that says something else is no cursor.
    desk.ok("create cluster b");
    desk.ok("scrub a --cursor c --for 0s");
    desk.fails("scrub b --cursor c", 1, &["another file"]);
    fs::write(desk.path("c"), "nothing").unwrap();
    desk.fails("scrub a --cursor c", 1, &["another file"]);
    desk.fails("scrub a --for 1s", 2, &["--cursor"]);
    desk.fails("estimate data --cursor c", 2, &["pools"]);
    let names: Vec<serde_json::Value> = serde_json::from_str(&desk.ok("ls a --json")).unwrap();
    assert_eq!((names.len(), &names[0]["name"]), (91, &"large".into()));
    assert_eq!(desk.ok("ls a").lines().count(), 91);
    assert_eq!(desk.ok("ls b --json").trim(), "[]");
}

#[test]
fn a_store_is_made_in_no_address_of_another_host() {
    let desk = Desk::new();
    desk.fails("create cluster ssh://vault/srv/pool", 2, &["only archives have addresses of ssh"]);
    assert!(!desk.path("ssh:").exists());
}

#[test]
#[ignore = "needs root"]
fn rule_08_a_store_that_a_full_disk_ended_leaves_nothing() {
    for create in ["create cluster c", "create cluster some/where/c"] {
        leaves_nothing_on_a_full_disk(env!("CARGO_BIN_EXE_onefold"), create);
    }
}

#[test]
fn volumes_are_served_deduplicated_and_there_after_a_kill() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    desk.fails("volume create a v --size 64M", 1, &["is there already"]);
    let data = desk.path("data");
    fs::write(&data, noise(2, 4 << 20)).unwrap();
    let uri = desk.uri("a", "v");
    let serving = desk.serve("a --cold 0 --workers 2");
    desk.fails("check a", 1, &["one owner"]);
    let write = |at: &str| format!("write -s {} {at} 4M", data.display());
    qemu_io(
        &uri,
        &[&write("0"), &write("8M"), "write -P 0x11 1M 4k", "discard 9M 1M", "write -z 10M 64k"],
    );
    std::thread::sleep(Duration::from_millis(500));
    qemu_io(&uri, &["write -P 0x22 2M 5000", "read -P 0x11 1M 4k"]);
    serving.kill();
    let serving = desk.serve("a --cold 0");
    qemu_io(
        &uri,
        &[
            "read -P 0x11 1M 4k",
            "read -P 0x22 2M 5000",
            "read -P 0 9M 1M",
            "read -P 0 10M 64k",
            "read -P 0 16M 1M",
        ],
    );
    let (ended, log) = serving.terminate();
    assert!(ended.success() && log.contains("closed a"), "{log}");
    desk.ok("worker a --once --cold 0");
    let found = status(&desk);
    assert!(found["chunk_bytes"].as_u64().unwrap() < (4 << 20) + (200 << 10), "{found}");
    assert!(desk.ok("repair a").contains("repaired    0 stale and 0 missing"));
    desk.fails("volume resize a v --size 4M", 1, &["--force"]);
    desk.ok("volume resize a v --size 4M --force");
    assert!(desk.ok("volume list a").contains("4.00 MiB  v"));
    desk.ok("volume delete a v");
    desk.ok("worker a --once --cold 0");
    assert_eq!(status(&desk)["chunks"], 0);
}

/// A client that writes piece after piece, each with a flush, and connects again when its server is gone.
struct Writer {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

const PIECES: usize = 400;

fn piece(n: usize) -> String {
    format!("-P {} {}k 64k", n % 250 + 1, 64 * n)
}

impl Writer {
    /// qemu, whose NBD driver connects again.
    fn qemu(desk: &Desk) -> Writer {
        let server = desk.path("a.sock");
        let connect =
            format!("server.type=unix,server.path={},reconnect-delay=60", server.display());
        let image = format!("driver=nbd,export=v,{connect}");
        let mut command = Command::new("timeout");
        command.args(["120", "stdbuf", "-oL", "qemu-io", "--image-opts"]);
        for n in 0..PIECES {
            command.args(["-c", &format!("write {}", piece(n)), "-c", "flush", "-c", "sleep 5"]);
        }
        Writer::of(command.arg(image))
    }

    /// A client that does not connect again, of nbdkit, which does.
    fn nbdkit(desk: &Desk) -> Writer {
        let mut client = "exec stdbuf -oL qemu-io --image-opts".to_owned();
        for n in 0..PIECES {
            client.push_str(&format!(" -c 'write {}' -c flush -c 'sleep 5'", piece(n)));
        }
        client.push_str(" driver=nbd,server.type=unix,server.path=$unixsocket");
        let uri = format!("uri={}", desk.uri("a", "v"));
        let mut command = Command::new("timeout");
        command.args(["120", "nbdkit", "-U", "-", "--filter=retry", "nbd", &uri, "retries=60"]);
        command.args(["retry-delay=1", "retry-exponential=no", "--run", &client]);
        Writer::of(&mut command)
    }

    /// A program that uses libnbd, and makes a new handle when the connection is gone.
    fn libnbd(desk: &Desk) -> Writer {
        let program = "import nbd, sys, time\n\
            def connected():\n\
            \x20   for _ in range(600):\n\
            \x20       handle = nbd.NBD()\n\
            \x20       try:\n\
            \x20           handle.connect_uri(sys.argv[1])\n\
            \x20           return handle\n\
            \x20       except nbd.Error:\n\
            \x20           time.sleep(0.1)\n\
            \x20   sys.exit('no server')\n\
            handle = connected()\n\
            for n in range(int(sys.argv[2])):\n\
            \x20   while True:\n\
            \x20       try:\n\
            \x20           handle.pwrite(bytes([n % 250 + 1]) * 65536, n * 65536)\n\
            \x20           handle.flush()\n\
            \x20           break\n\
            \x20       except nbd.Error:\n\
            \x20           if handle.aio_is_ready():\n\
            \x20               raise\n\
            \x20           handle = connected()\n\
            \x20   print('wrote', n, flush=True)\n\
            \x20   time.sleep(0.005)\n";
        let mut command = Command::new("timeout");
        // The library's module is Debian's, and so is its interpreter.
        command.args(["120", "/usr/bin/python3", "-c", program, &desk.uri("a", "v")]);
        Writer::of(command.arg(PIECES.to_string()))
    }

    fn of(command: &mut Command) -> Writer {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Writer { child, lines }
    }

    /// Waits until so many more pieces are written and flushed, but for the last one.
    fn writes(&mut self, pieces: usize) {
        let wrote = |line: &io::Result<String>| line.as_ref().unwrap().starts_with("wrote");
        assert_eq!(self.lines.by_ref().filter(wrote).take(pieces).count(), pieces);
    }

    /// Waits for its end, at which no request had failed.
    fn ends_well(mut self) {
        let said: Vec<String> = self.lines.map(Result::unwrap).collect();
        assert!(self.child.wait().unwrap().success(), "{said:?}");
    }
}

#[test]
fn servers_follow_each_other_and_qemu_notices_no_error() {
    follow_each_other(Writer::qemu);
}

#[test]
fn servers_follow_each_other_and_a_client_behind_nbdkit_notices_no_error() {
    follow_each_other(Writer::nbdkit);
}

#[test]
fn servers_follow_each_other_and_a_program_that_makes_a_new_handle_of_libnbd_goes_on() {
    follow_each_other(Writer::libnbd);
}

fn follow_each_other(client: fn(&Desk) -> Writer) {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 64M");
    let first = desk.serve("a --standby --cold 0");
    let stands_by = || {
        let mut command = desk.command("serve a --standby --cold 0");
        Serving::start_saying(&mut command, "standing by: ")
    };
    let mut others = vec![stands_by(), stands_by()];
    let mut client = client(&desk);
    client.writes(PIECES / 4);
    first.kill();
    client.writes(PIECES / 4);
    // Exactly one of the two took over.
    others.sort_by_key(|other| !other.log().contains("serving "));
    assert!(!others[1].log().contains("serving "), "{}", others[1].log());
    let (ended, log) = others.remove(0).terminate();
    assert!(ended.success() && log.contains("serving ") && log.contains("closed a"), "{log}");
    let mut last = others.remove(0);
    client.writes(PIECES / 4);
    last.wait_for("serving ");
    client.ends_well();
    let reads: Vec<String> = (0..PIECES).map(|n| format!("read {}", piece(n))).collect();
    let reads: Vec<&str> = reads.iter().map(String::as_str).collect();
    qemu_io(&desk.uri("a", "v"), &reads);
    // A server that waits ends at once.
    let waits = stands_by();
    let (ended, log) = waits.terminate();
    assert!(ended.success() && !log.contains("serving "), "{log}");
    last.terminate();
}

#[test]
fn a_folder_that_is_served_answers_status_and_verbs_of_volumes() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    let serving = desk.serve("a --cold 0");
    assert!(desk.ok("volume list a").contains("no volumes"));
    desk.ok("volume create a v --size 64M");
    desk.fails("volume create a v --size 64M", 1, &["is there already"]);
    qemu_io(&desk.uri("a", "v"), &["write -P 0x33 0 1M"]);
    let found = status(&desk);
    assert_eq!((&found["volumes"], &found["volume_bytes"]), (&1.into(), &(64u64 << 20).into()));
    assert_eq!((&found["servers"], &found["problems"]), (&1.into(), &serde_json::json!([])));
    assert!(desk.ok("status a").contains("64.0 MiB together"));
    assert_eq!(desk.ok("status a --check --min-free 1"), "nothing needs you\n");
    let all = desk.run("status a --check --min-free 1000T");
    assert!(all.status.code() == Some(1) && all.out.contains("should be"), "{all:?}");
    desk.fails("status a --exact", 1, &["is served"]);
    // The server keeps a volume attached that no client has open.
    desk.fails("volume resize a v --size 1M", 1, &["--force"]);
    desk.ok("volume resize a v --size 1M --force");
    qemu_io(&desk.uri("a", "v"), &["read -P 0x33 0 1M"]);
    desk.ok("volume rename a v w");
    let listed: serde_json::Value = serde_json::from_str(&desk.ok("volume list a --json")).unwrap();
    assert_eq!(listed, serde_json::json!([{ "name": "w", "bytes": 1 << 20 }]));
    qemu_io(&desk.uri("a", "w"), &["read -P 0x33 0 1M"]);
    let mut client = Command::new("qemu-io");
    client.args(["-f", "raw", &desk.uri("a", "w")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = client.spawn().unwrap();
    let mut asked = client.stdin.take().unwrap();
    writeln!(asked, "read 0 4k").unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("read 4096")));
    desk.fails("volume delete a w", 1, &["client has"]);
    desk.fails("volume delete a w --force", 1, &["client has"]);
    desk.fails("volume resize a w --size 2M", 1, &["in use"]);
    drop(asked);
    client.wait().unwrap();
    desk.ok("volume delete a w");
    assert_eq!(status(&desk)["volumes"], 0);
    serving.terminate();
    let serving = desk.serve("a --read-only");
    desk.fails("volume create a v --size 64M", 1, &["only reads"]);
    serving.terminate();
    desk.ok("volume create a v --size 64M");
    assert!(desk.ok("check a").contains("a is well"));
    // Clients are told that they can't write, and not only refused.
    let serving = desk.serve("a --read-only");
    let writes = support::try_qemu_io(&desk.uri("a", "v"), &["read 0 4k"]);
    assert!(!writes.status.success() && writes.err.contains("denied"), "{writes:?}");
    let reads = Command::new("qemu-io")
        .args(["-r", "-f", "raw", "-c", "read -P 0 0 4k", &desk.uri("a", "v")])
        .status();
    assert!(reads.unwrap().success());
    serving.terminate();
}

#[test]
fn volumes_of_a_folder_get_snapshots_clones_and_rollbacks_served_or_not() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 8M");
    let serving = desk.serve("a --cold 0");
    let uri = |name: &str| desk.uri("a", name);
    qemu_io(&uri("v"), &["write -P 0x11 0 1M"]);
    desk.ok("snapshot create a v@one");
    desk.fails("snapshot create a v@one", 1, &["exists already"]);
    qemu_io(&uri("v"), &["read -P 0x11 0 1M", "write -P 0x22 4k 4k"]);
    let reads = Command::new("qemu-io")
        .args(["-r", "-f", "raw", "-c", "read -P 0x11 0 1M", &uri("v@one")])
        .status();
    assert!(reads.unwrap().success());
    desk.ok("snapshot clone a v@one c");
    desk.ok("volume clone a v d");
    qemu_io(&uri("c"), &["read -P 0x11 0 1M", "write -P 0x33 0 4k"]);
    qemu_io(&uri("d"), &["read -P 0x11 0 4k", "read -P 0x22 4k 4k", "read -P 0x11 8k 1016k"]);
    desk.fails("volume delete a v", 1, &["has snapshots"]);
    serving.terminate();
    let listed: serde_json::Value =
        serde_json::from_str(&desk.ok("snapshot list a --json")).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["bytes"]), (&"v@one".into(), &(8 << 20).into()));
    desk.ok("snapshot rollback a v@one");
    for (verb, why) in [
        ("snapshot rename a v@one two", "renamed"),
        ("snapshot rollback a v@one --keep two", "--keep"),
        ("snapshot create a v@two c@two", "one snapshot at a time"),
        ("snapshot list a --space", "not counted"),
        ("snapshot clone a v@two e", "there is no snapshot"),
    ] {
        desk.fails(verb, 1, &[why]);
    }
    desk.ok("worker a --once --cold 0");
    assert!(desk.ok("check a").contains("a is well"));
    let serving = desk.serve("a --cold 0");
    qemu_io(&uri("v"), &["read -P 0x11 0 1M"]);
    desk.ok("snapshot delete a v@one");
    qemu_io(&uri("v"), &["read -P 0x11 0 1M"]);
    qemu_io(&uri("c"), &["read -P 0x33 0 4k", "read -P 0x11 4k 1020k"]);
    qemu_io(&uri("d"), &["read -P 0x22 4k 4k"]);
    assert!(desk.ok("snapshot list a").contains("no snapshots"));
    desk.ok("volume delete a v c d");
    serving.terminate();
    desk.ok("worker a --once --cold 0");
    assert!(desk.ok("check a").contains("a is well"));
}

#[test]
fn a_client_goes_on_while_snapshots_and_clones_are_made_of_its_volume() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    desk.ok("volume create a v --size 8M");
    let serving = desk.serve("a --cold 0");
    let uri = |name: &str| desk.uri("a", name);
    let mut client = Command::new("qemu-io")
        .args(["-f", "raw", &uri("v")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asks = client.stdin.take().unwrap();
    let mut said = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut write = |pattern: &str| {
        writeln!(asks, "write -P {pattern} 0 1M").unwrap();
        let wrote = |line: &String| line.contains("wrote 1048576/1048576");
        assert!(said.by_ref().map_while(Result::ok).any(|line| wrote(&line)), "{pattern}");
    };
    write("0x11");
    desk.ok("snapshot create a v@one");
    write("0x22");
    desk.ok("volume clone a v c");
    desk.fails("volume clone a v c", 1, &["is there already"]);
    desk.fails("snapshot create a v@one", 1, &["exists already"]);
    write("0x33");
    desk.ok("snapshot create a v@two");
    write("0x44");
    desk.fails("snapshot rollback a v@one", 1, &["in use"]);
    desk.fails("volume resize a v --size 16M", 1, &["in use"]);
    for (name, pattern) in [("v@one", "0x11"), ("c", "0x22"), ("v@two", "0x33"), ("v", "0x44")] {
        let read = format!("read -P {pattern} 0 1M");
        let mut reads = Command::new("qemu-io");
        reads.args(["-r", "-f", "raw", "-c", &read, &uri(name)]);
        assert!(reads.status().unwrap().success(), "{name}");
    }
    drop(asks);
    assert!(client.wait().unwrap().success());
    serving.terminate();
    desk.ok("worker a --once --cold 0");
    assert!(desk.ok("check a").contains("a is well"));
}

#[test]
fn a_server_that_takes_over_runs_a_command_before_it_listens() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    fs::write(desk.path("command"), "test ! -e a.sock && echo $ONEFOLD_STORE > ran").unwrap();
    let mut command = desk.command("serve a --standby --on-takeover");
    let serving = Serving::start(command.arg("sh ./command"));
    assert_eq!(fs::read_to_string(desk.path("ran")).unwrap(), "a\n");
    serving.terminate();
    let mut command = desk.command("serve a --standby --on-takeover");
    let said = command.arg("exit 7").output().unwrap();
    let said = (said.status.code(), String::from_utf8(said.stderr).unwrap());
    assert!(said.0 == Some(1) && said.1.contains("--on-takeover failed"), "{said:?}");
    desk.ok("create archive archive");
    desk.fails("serve archive --standby", 2, &["cluster engine"]);
    desk.fails("serve a --stand-by-again", 2, &["--standby"]);
    desk.fails("serve a --standby --vhost v=unix:v.sock", 2, &["--vhost", "NBD"]);
}

#[test]
fn a_server_that_serves_no_more_runs_a_command_whatever_ended_it() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    let back = "echo $ONEFOLD_STORE $ONEFOLD_WHY >> back; exit 7";
    let said = || fs::read_to_string(desk.path("back")).unwrap_or_default();
    let serve = |takeover: &str| {
        let mut command = desk.command("serve a --standby --on-takeover");
        command.args([takeover, "--on-replaced", back]);
        command
    };
    let serving = Serving::start(&mut serve("true"));
    assert_eq!(said(), "");
    // It failed, and all else is as it would be without it.
    let (ended, log) = serving.terminate();
    assert!(
        ended.success() && log.contains("--on-replaced failed") && log.contains("closed a"),
        "{log}"
    );
    assert_eq!(said(), "a asked\n");
    // The command of a takeover may have done half of its work.
    assert_eq!(serve("exit 7").status().unwrap().code(), Some(1));
    assert_eq!(said(), "a asked\na failed\n");
    // A server that never took over has nothing to take back.
    let serving = Serving::start(&mut serve("true"));
    let waits = Serving::start_saying(&mut serve("true"), "standing by: ");
    assert!(waits.terminate().0.success());
    assert_eq!(said(), "a asked\na failed\n");
    serving.terminate();
    desk.fails("serve a --on-replaced true", 2, &["--standby"]);
}

/// Waits until a server has a thread of this name, or has ended.
fn has_thread(server: &mut Child, name: &str) {
    let tasks = format!("/proc/{}/task", server.id());
    let is_named = |task: io::Result<fs::DirEntry>| {
        let comm = task.and_then(|task| fs::read_to_string(task.path().join("comm")));
        comm.is_ok_and(|comm| comm.trim() == name)
    };
    while server.try_wait().unwrap().is_none()
        && !fs::read_dir(&tasks).is_ok_and(|mut tasks| tasks.any(is_named))
    {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_that_stands_by_ends_though_its_cluster_does_not_answer() {
    let desk = Desk::new();
    // Nobody answers there, and it would be asked for an hour.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    fs::write(
        desk.path("ceph.conf"),
        format!("[global]\nmon_host = [v2:{at}]\nauth_client_required = none\n"),
    )
    .unwrap();
    let mut command =
        desk.command("serve rados:ceph.conf --standby --timeout 3600 --nbd unix:nowhere.sock");
    let mut serving = command.stderr(Stdio::piped()).spawn().unwrap();
    // From then on it takes signals.
    has_thread(&mut serving, "signals");
    let _ = Command::new("kill").arg(serving.id().to_string()).status();
    let ended = serving.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    if said.contains("librados") {
        return println!("NOT TESTED: librados is not installed");
    }
    assert!(ended.status.success() && said.contains("ending without it"), "{said}");
}

#[test]
fn a_signal_ends_the_command_of_a_takeover_with_all_that_it_began() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    let mut command = desk.command("serve a --standby --on-takeover");
    let mut serving = command.arg("sleep 1000 & echo $! > began; wait").spawn().unwrap();
    let began = || fs::read_to_string(desk.path("began")).ok().filter(|pid| pid.ends_with('\n'));
    let sleeper = loop {
        match began() {
            Some(pid) => break format!("/proc/{}/stat", pid.trim()),
            None => thread::sleep(Duration::from_millis(10)),
        }
    };
    let pid = serving.id().to_string();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert!(serving.wait().unwrap().success());
    // It is gone, or its parent has not looked yet.
    let lives = || fs::read_to_string(&sleeper).is_ok_and(|stat| !stat.contains(") Z "));
    while lives() {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn volumes_and_streams_get_other_names_and_clients_find_them() {
    let desk = Desk::new();
    desk.ok("create cluster a");
    let data = noise(3, 1 << 20);
    fs::write(desk.path("data"), &data).unwrap();
    for name in ["one", "two"] {
        desk.ok(&format!("put a {name} data"));
    }
    desk.ok("volume create a v --size 64M");
    assert_eq!(desk.ok("mv a one eins"), "renamed 'one' to 'eins'\n");
    desk.fails("mv a eins two", 1, &["'two' is there already"]);
    desk.fails("mv a eins v", 1, &["'v' is there already"]);
    desk.fails("mv a one drei", 1, &["there is no stream 'one'"]);
    desk.fails("mv a v w", 1, &["there is no stream 'v'"]);
    desk.fails("volume rename a eins w", 1, &["there is no volume 'eins'"]);
    // Names in many shards, and back again.
    let mut name = "eins".to_owned();
    for next in (0..20).map(|n| format!("name-{n}")).chain(["one".into()]) {
        desk.ok(&format!("mv a {name} {next}"));
        name = next;
    }
    desk.ok("get a one --output copy");
    assert!(fs::read(desk.path("copy")).unwrap() == data);
    assert!(desk.ok("ls a").lines().map(|line| line.trim_start()[10..].trim()).eq(["one", "two"]));
    // Renamed streams are replaced and removed.
    fs::write(desk.path("data"), b"other").unwrap();
    desk.ok("put a one data");
    desk.ok("rm a one two");
    let uri = desk.uri("a", "v");
    let serving = desk.serve("a --cold 0");
    qemu_io(&uri, &["write -P 0x33 1M 64k"]);
    let renamed = desk.ok("volume rename a v w --json");
    serving.terminate();
    let renamed: serde_json::Value = serde_json::from_str(&renamed).unwrap();
    assert_eq!(renamed, serde_json::json!({ "done": "rename", "name": "v", "new_name": "w" }));
    let serving = desk.serve("a --cold 0");
    qemu_io(&desk.uri("a", "w"), &["read -P 0x33 1M 64k", "write -P 0x44 1M 4k"]);
    assert!(!support::try_qemu_io(&uri, &["read 0 4k"]).status.success());
    serving.kill();
    desk.ok("volume rename a w v");
    let serving = desk.serve("a --cold 0");
    qemu_io(&uri, &["read -P 0x44 1M 4k", "read -P 0x33 1028k 60k"]);
    serving.terminate();
    desk.ok("volume resize a v --size 1M --force");
    desk.ok("volume delete a v");
    desk.ok("worker a --once --cold 0");
    assert!(desk.ok("repair a").contains(" 0 stale and 0 missing references"));
    assert_eq!((&status(&desk)["chunks"], &status(&desk)["objects"]), (&0.into(), &0.into()));
}

#[test]
fn a_server_deduplicates_by_itself_inline_or_flushing_through() {
    for way in ["inline", "flush-through"] {
        let desk = Desk::new();
        desk.ok("create cluster a");
        desk.ok("volume create a v --size 64M");
        let data = desk.path("data");
        fs::write(&data, noise(3, 2 << 20)).unwrap();
        let uri = desk.uri("a", "v");
        let serving = desk.serve(&format!("a --workers 0 --dedup {way}"));
        let write = |at: &str| format!("write -s {} {at} 2M", data.display());
        qemu_io(
            &uri,
            &[
                &write("0"),
                &write("8M"),
                "write -P 0x11 8M 20k",
                "write -P 0x22 9000k 5000",
                "write -z 9M 64k",
            ],
        );
        qemu_io(
            &uri,
            &[
                "read -P 0x11 8M 20k",
                "read -P 0x22 9000k 5000",
                "read -P 0 9M 64k",
                "read -P 0 16M 1M",
            ],
        );
        serving.terminate();
        let found = status(&desk);
        assert_eq!(
            (&found["dirty_bytes"], &found["cached_bytes"]),
            (&0.into(), &0.into()),
            "{found}"
        );
        assert!((found["chunk_bytes"].as_u64().unwrap() >> 10).abs_diff(2 << 10) < 200, "{found}");
        desk.ok("worker a --once --cold 0");
        assert!(
            desk.ok("repair a")
                .contains("repaired    0 stale and 0 missing references, 0 unused chunks")
        );
        desk.ok("volume delete a v");
        desk.ok("worker a --once --cold 0");
        assert_eq!(status(&desk)["chunks"], 0);
    }
}

#[test]
fn volumes_cut_by_their_content_find_what_moved_by_blocks() {
    let desk = Desk::new();
    desk.fails("create cluster b --chunk 16K --volume-cut content", 1, &["32 or 64 KiB"]);
    desk.ok("create cluster a --volume-cut content");
    desk.ok("volume create a v --size 64M");
    let data = desk.path("data");
    fs::write(&data, noise(4, 3 << 20)).unwrap();
    let uri = desk.uri("a", "v");
    let serving = desk.serve("a --cold 0 --workers 1");
    let write = |at: &str| format!("write -s {} {at} 3M", data.display());
    qemu_io(&uri, &[&write("0"), &write("8212k"), "write -P 0x11 1M 5000"]);
    std::thread::sleep(Duration::from_millis(700));
    qemu_io(
        &uri,
        &[
            "write -P 0x22 2000k 4k",
            "write -z 8256k 40k",
            "read -P 0x11 1M 5000",
            "read -P 0 16M 1M",
        ],
    );
    serving.kill();
    let serving = desk.serve("a --workers 0");
    qemu_io(&uri, &["read -P 0x11 1M 5000", "read -P 0x22 2000k 4k", "read -P 0 8256k 40k"]);
    desk.fails("serve a --dedup inline", 1, &["one owner"]);
    serving.terminate();
    desk.ok("worker a --once --cold 0");
    let found = status(&desk);
    assert!(found["chunk_bytes"].as_u64().unwrap() < (3 << 20) + (400 << 10), "{found}");
    // The killed server may have left references that nobody needs; nothing else is wrong.
    let repaired = desk.ok("repair a");
    assert!(
        repaired.contains(" 0 missing references, ") && repaired.contains(" 0 restored chunks")
    );
    let repaired = desk.ok("repair a");
    assert!(repaired.contains("repaired    0 stale and 0 missing references, 0 unused chunks"));
    desk.ok("volume delete a v");
    desk.ok("worker a --once --cold 0");
    assert_eq!(status(&desk)["chunks"], 0);
}

/// The folders that a program of 2026-11-28 made, packed; the second one opens by 32 bytes of 1.
const OLDER: [&str; 2] = ["cluster", "cluster-sealed"];

fn packed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.tar.gz"))
}

/// Runs `tar` on the desk.
fn tar(desk: &Desk, options: &str, name: &str, of: &str) {
    let mut command = Command::new("tar");
    command.arg(options).arg(packed(name)).arg("-C").arg(desk.path("."));
    command.args(["--no-same-owner", of].into_iter().filter(|word| !word.is_empty()));
    assert!(command.status().unwrap().success());
}

/// A desk with the key of the sealed folder, and the options for a folder of this name.
fn desk_for(name: &str) -> (Desk, &'static str) {
    let desk = Desk::new();
    fs::write(desk.path("key"), [1; 32]).unwrap();
    let key = fs::File::open(desk.path("key")).unwrap();
    key.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    (desk, if name == "cluster-sealed" { " --key file:key" } else { "" })
}

/// The content of the streams `one` and `two` of a folder, and of its volume at 0 and at 8 MiB.
fn held() -> [Vec<u8>; 3] {
    let data = noise(1, 300 << 10);
    let longer = [&data[..500], &data].concat();
    [data, longer, noise(2, 256 << 10)]
}

#[test]
#[ignore = "makes the folders, once"]
fn make() {
    for name in OLDER.into_iter().filter(|name| !packed(name).exists()) {
        let ((desk, key), [one, two, data]) = (desk_for(name), held());
        for (name, data) in [("one", one), ("two", two), ("data", data)] {
            fs::write(desk.path(name), data).unwrap();
        }
        desk.ok(&format!("create cluster a{key}"));
        desk.ok(&format!("put a one one{key}"));
        desk.ok(&format!("put a two two{key}"));
        desk.ok(&format!("worker a --once --cold 0{key}"));
        desk.ok(&format!("volume create a v --size 16M{key}"));
        let (uri, data) = (desk.uri("a", "v"), desk.path("data"));
        let write = |at: &str| format!("write -s {} {at} 256k", data.display());
        let serving = desk.serve(&format!("a --cold 0 --workers 2{key}"));
        qemu_io(&uri, &[&write("0"), &write("8M")]);
        std::thread::sleep(Duration::from_millis(800));
        qemu_io(&uri, &["write -P 0x22 128k 5000", "discard 8M 64k"]);
        serving.kill();
        tar(&desk, "-czf", name, "a");
    }
}

#[test]
fn folders_that_older_programs_made_open_and_go_on() {
    for name in OLDER {
        let ((desk, key), [one, two, mut data]) = (desk_for(name), held());
        tar(&desk, "-xzf", name, "");
        if !key.is_empty() {
            desk.fails("ls a", 1, &["--key"]);
        }
        desk.ok(&format!("check a{key}"));
        for (stream, right) in [("one", one), ("two", two)] {
            desk.ok(&format!("get a {stream} --output {stream}{key}"));
            assert!(fs::read(desk.path(stream)).unwrap() == right, "{name}, {stream}");
        }
        let mut trimmed = data.clone();
        trimmed[..64 << 10].fill(0);
        data[128 << 10..][..5000].fill(0x22);
        let serving = desk.serve(&format!("a --cold 0{key}"));
        let (uri, image) = (desk.uri("a", "v"), desk.path("image"));
        let mut convert = Command::new("qemu-img");
        convert.args(["convert", "-f", "raw", "-O", "raw", &uri]).arg(&image);
        assert!(convert.status().unwrap().success());
        let image = fs::read(&image).unwrap();
        for (at, right) in [(0, &data), (8 << 20, &trimmed)] {
            assert!(image[at..at + right.len()] == right[..], "{name}, {at}");
        }
        assert_eq!(image.len(), 16 << 20);
        qemu_io(&uri, &["write -P 0x33 9M 64k"]);
        assert!(serving.terminate().0.success());
        desk.ok(&format!("put a three two{key}"));
        desk.ok(&format!("worker a --once --cold 0{key}"));
        desk.ok(&format!("scrub a{key}"));
        assert!(desk.ok(&format!("repair a{key}")).contains(" 0 stale and 0 missing references"));
    }
}
