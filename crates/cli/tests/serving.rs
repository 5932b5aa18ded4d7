//! Stores that are served: clients, commands while it runs, its end in order and by force.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    },
    process::Command,
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use support::{Desk, Serving, noise, overwrite, qemu_io, try_qemu_io};

#[test]
fn a_store_is_served_until_it_is_asked_to_stop() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a");
    let uri = desk.uri("a", "v");
    assert!(serving.log().contains(&format!("serving a: {uri}")), "{}", serving.log());
    assert_eq!(fs::metadata(desk.path("a.sock")).unwrap().permissions().mode() & 0o777, 0o600);
    qemu_io(&uri, &["write -P 0xab 0 1M", "read -P 0xab 0 1M"]);
    let (status, log) = serving.terminate();
    assert!(status.success() && log.contains("closed a"), "{log}");
    assert!(!desk.path("a.sock").exists());
    assert_eq!(desk.status("a")["clean"], true);
    desk.ok("check a");
    let serving = desk.serve("a");
    qemu_io(&uri, &["read -P 0xab 0 1M", "read -P 0 1M 1M"]);
    serving.signal(Signal::INT);
    assert!(serving.end().0.success());
}

#[test]
fn what_was_flushed_survives_a_kill() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let uri = desk.uri("a", "v");
    let data = desk.path("data");
    fs::write(&data, noise(1, 4 << 20)).unwrap();
    let write = format!("write -s {} 0 4M", data.display());
    let serving = desk.serve("a");
    qemu_io(&uri, &[&write, "flush", "write -f -P 0x11 8M 64k", "write -P 0x22 9M 64k"]);
    serving.kill();
    assert_eq!(desk.status("a")["clean"], false);
    assert!(desk.ok("status a").contains("was not closed in order"));
    desk.ok("check a");
    let serving = desk.serve("a");
    qemu_io(&uri, &["read -P 0x11 8M 64k"]);
    let copy = desk.path("copy");
    let converted = Command::new("nbdcopy").arg(&uri).arg(&copy).status().unwrap();
    assert!(converted.success());
    assert!(fs::read(&copy).unwrap()[..4 << 20] == noise(1, 4 << 20));
    assert!(serving.terminate().0.success());
    desk.ok("check a");
}

#[test]
fn one_server_has_the_store() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a");
    let served = format!("store a is served by process {}", serving.pid());
    desk.fails("serve a --nbd unix:other.sock", 1, &[&served]);
    desk.fails("check a", 1, &[&served, "onefold scrub"]);
    desk.fails("create block a --size 64M", 1, &["a is in use by another process"]);
    assert!(serving.terminate().0.success());
    // A socket that somebody answers on is not taken over.
    desk.store_with_volume("b");
    let serving = desk.serve("b --nbd unix:shared.sock");
    desk.fails("serve a --nbd unix:shared.sock", 1, &["shared.sock"]);
    assert_eq!(desk.status("a")["clean"], true);
    assert!(serving.terminate().0.success());
}

#[test]
fn volumes_come_change_and_go_while_it_is_served() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a");
    desk.ok("volume create a w --size 1G");
    qemu_io(&desk.uri("a", "w"), &["write -P 7 512M 64k", "flush"]);
    desk.fails("volume create a w --size 1G", 1, &["'w' already"]);
    desk.ok("volume resize a w --size 2G");
    qemu_io(&desk.uri("a", "w"), &["read -P 7 512M 64k", "write -P 8 1536M 64k"]);
    desk.ok("volume rename a w x");
    qemu_io(&desk.uri("a", "x"), &["read -P 7 512M 64k"]);
    assert!(!try_qemu_io(&desk.uri("a", "w"), &["read 0 4k"]).status.success());
    assert_eq!(desk.ok("volume list a"), " 64.0 MiB  v\n 2.00 GiB  x\n");
    assert!(desk.ok("scrub a --only x").contains("all data of 'x' in a is well"));
    desk.fails("scrub a --only y", 1, &["no volume 'y'"]);
    desk.fails("volume resize a x --size 1G", 1, &["2.00 GiB", "would be lost", "--force"]);
    desk.ok("volume resize a x --size 1G --force");
    desk.ok("volume set a x --no-dedup 0-64K");
    desk.ok("volume delete a v");
    assert_eq!(desk.ok("volume list a"), " 1.00 GiB  x  (64.0 KiB not deduplicated)\n");
    // A content that repeats within the critical range and outside of it is stored three times:
    // twice there, once for all others.
    qemu_io(
        &desk.uri("a", "x"),
        &["write -P 9 0 8k", "write -P 9 128k 8k", "write -P 9 256k 8k", "flush"],
    );
    let (status, log) = serving.terminate();
    assert!(status.success() && log.contains("deleted volume 'v'"), "{log}");
    assert_eq!(desk.ok("volume list a"), " 1.00 GiB  x  (64.0 KiB not deduplicated)\n");
    // And one block of what was written before, 64 KiB of one content.
    assert_eq!(desk.status("a")["space"]["stored_bytes"], 4 * 4096);
    assert_eq!(desk.status("a")["space"]["mapped_bytes"], (6 + 16) * 4096);
    desk.ok("check a");
    desk.ok("scrub a");
}

#[test]
fn status_counts_what_happened() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a --memory 64M --persistence strong");
    fs::write(desk.path("data"), noise(2, 1 << 20)).unwrap();
    let data = desk.path("data");
    let write = |at: &str| format!("write -s {} {at} 1M", data.display());
    qemu_io(
        &desk.uri("a", "v"),
        &[&write("0"), &write("1M"), &write("2M"), "write -P 0 3M 1M", "flush"],
    );
    let status = desk.status("a");
    let server = &status["server"];
    assert_eq!(server["pid"], serving.pid());
    assert_eq!(server["persistence"], "strong");
    assert_eq!(server["memory"]["limit_bytes"], 64 << 20);
    assert_eq!(server["writes"]["client_blocks"], 1024);
    assert_eq!(server["writes"]["duplicate_blocks"], 512);
    assert_eq!(server["writes"]["zero_blocks"], 256);
    let amplification = server["writes"]["amplification"].as_f64().unwrap();
    assert!((0.25..0.4).contains(&amplification), "{amplification}");
    assert_eq!(server["nbd"]["written_bytes"], 4 << 20);
    assert!(status["clean"].is_null());
    let text = desk.ok("status a");
    for part in [
        "served by process",
        "strong persistence",
        "written",
        "4.00 MiB by clients",
        "duplicates",
        "windows",
        "index",
        "memory",
    ] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    assert!(serving.terminate().0.success());
    let status = desk.status("a");
    assert_eq!(status["space"]["mapped_bytes"], 3 << 20);
    assert_eq!(status["space"]["stored_bytes"], 1 << 20);
    assert_eq!(status["space"]["saved_bytes"], 2 << 20);
    assert_eq!(status["space"]["ratio"], 3.0);
    assert!(status["server"].is_null());
}

#[test]
fn tcp_is_served_when_it_is_insisted_on() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a --nbd tcp:127.0.0.1:0 --nbd unix:s --insecure");
    let log = serving.log();
    let uri = log.split_whitespace().find(|word| word.starts_with("nbd://127.0.0.1:")).unwrap();
    qemu_io(uri, &["write -P 1 0 64k"]);
    qemu_io(&format!("nbd+unix:///v?socket={}", desk.path("s").display()), &["read -P 1 0 64k"]);
    assert!(serving.terminate().0.success());
}

#[test]
fn data_is_scrubbed_while_it_is_served_and_after() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let data = noise(3, 1 << 20);
    fs::write(desk.path("data"), &data).unwrap();
    let serving = desk.serve("a");
    qemu_io(
        &desk.uri("a", "v"),
        &[&format!("write -s {} 4M 1M", desk.path("data").display()), "flush"],
    );
    desk.ok("scrub a");
    assert!(serving.terminate().0.success());
    assert_eq!(desk.ok("scrub a"), "1.00 MiB of data were read\nall data of a is well\n");
    // A bit of the fifth block rots.
    let store = fs::read(desk.path("a")).unwrap();
    let block = &data[4 * 4096..][..4096];
    let at = (0..store.len()).step_by(4096).find(|&at| &store[at..at + 4096] == block).unwrap();
    overwrite(&desk.path("a"), at as u64 + 77, &[block[77] ^ 1]);
    let hit = format!("problem: physical block {} ", at / 4096);
    let lost = format!("  lost: volume 'v', 4096 bytes at {}", (4 << 20) + 4 * 4096);
    let said = desk.fails("scrub a", 1, &["a is damaged: 1 block of its data"]);
    assert!(said.out.contains(&hit) && said.out.contains(&lost), "{}", said.out);
    desk.ok("volume create a w --size 1M");
    let of_one_volume = || {
        assert!(desk.ok("scrub a --only w").contains("all data of 'w' in a is well"));
        let said = desk.fails("scrub a --only v", 1, &["'v' in a is damaged"]);
        assert!(said.out.contains(&lost) && !said.out.contains(&hit), "{}", said.out);
    };
    of_one_volume();
    let serving = desk.serve("a");
    of_one_volume();
    let said = desk.fails("scrub a --json", 1, &["a is damaged: 1 block"]);
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(report["bad"][0]["hit"][0]["volume"], "v");
    assert!(
        !try_qemu_io(&desk.uri("a", "v"), &[&format!("read {} 4k", (4 << 20) + 4 * 4096)])
            .out
            .contains("read 4096/4096")
    );
    qemu_io(&desk.uri("a", "v"), &["read 4M 16k"]);
    assert!(serving.terminate().0.success());
}

#[test]
fn a_carrier_that_rots_beside_its_data_is_told_and_loses_nothing() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a");
    qemu_io(&desk.uri("a", "v"), &["write -P 5 8k 4k", "flush"]);
    assert!(serving.terminate().0.success());
    // A bit of the checksum rots, in each carrier that holds a compressed block.
    let store = fs::read(desk.path("a")).unwrap();
    for at in (0..store.len()).step_by(4096) {
        if store[at..].starts_with(b"OFc1") && store[at + 6..at + 8] != [0, 0] {
            overwrite(&desk.path("a"), at as u64 + 70, &[store[at + 70] ^ 1]);
        }
    }
    let whole = "a is damaged: 1 carrier whose data is whole";
    let said = desk.fails("scrub a", 1, &[whole]);
    assert!(said.out.contains(" is a damaged carrier, but its data is whole\n"), "{}", said.out);
    assert!(!said.out.contains("lost"), "{}", said.out);
    let said = desk.fails("scrub a --json", 1, &[whole]);
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&report["bad_blocks"], &report["whole_blocks"]), (&1.into(), &1.into()));
    assert_eq!(report["bad"][0]["data_is_whole"], true);
    assert_eq!(
        (&report["bad"][0]["addresses"], &report["bad"][0]["hit"][0]["volume"]),
        (&0.into(), &serde_json::Value::Null)
    );
    desk.ok("scrub a --only v");
    let serving = desk.serve("a");
    qemu_io(&desk.uri("a", "v"), &["read -P 5 8k 4k"]);
    desk.fails("scrub a", 1, &[whole]);
    assert!(serving.terminate().0.success());
    desk.ok("repair a");
    assert!(desk.ok("scrub a").contains("all data of a is well"));
}

#[test]
fn a_copy_of_a_store_is_another_store() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    fs::copy(desk.path("a"), desk.path("b")).unwrap();
    let serving = desk.serve("a");
    desk.ok("volume delete b v");
    assert_eq!(desk.ok("volume list b"), "no volumes\n");
    assert_eq!(desk.ok("volume list a"), " 64.0 MiB  v\n");
    // By another name it is the same one.
    fs::hard_link(desk.path("a"), desk.path("c")).unwrap();
    assert_eq!(desk.status("c")["server"]["pid"], serving.pid());
    let other = desk.serve("b");
    assert!(other.terminate().0.success());
    assert!(serving.terminate().0.success());
}

#[test]
fn a_volume_that_clients_have_open_is_deleted_only_by_force() {
    let desk = Desk::new();
    for (create, store) in [("block a --size 64M --preallocate none", "a"), ("archive b", "b")] {
        desk.ok(&format!("create {create}"));
        desk.ok(&format!("volume create {store} v --size 64M"));
        desk.ok(&format!("volume create {store} w --size 64M"));
        let serving = desk.serve(store);
        let uri = desk.uri(store, "v");
        let mut client = Command::new("qemu-io")
            .args(["-f", "raw", "-c", "write 0 4k", "-c", "sleep 60000", &uri])
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while desk.status(store)["server"]["nbd"]["writes"] != 1 {
            assert!(client.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(20));
        }
        desk.ok(&format!("volume delete {store} w"));
        let open = ["1 client has", "'v' open", "--force"];
        desk.fails(&format!("volume delete {store} v"), 1, &open);
        desk.ok(&format!("volume delete {store} v --force"));
        client.kill().unwrap();
        client.wait().unwrap();
        assert_eq!(desk.ok(&format!("volume list {store}")), "no volumes\n");
        assert!(serving.terminate().0.success());
    }
}

#[test]
fn a_full_store_says_so_and_recovers_space() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    desk.ok("volume resize a v --size 256M");
    let serving = desk.serve("a");
    let uri = desk.uri("a", "v");
    fs::write(desk.path("data"), noise(4, 96 << 20)).unwrap();
    let said = try_qemu_io(&uri, &[&format!("write -s {} 0 96M", desk.path("data").display())]);
    assert!((said.out.clone() + &said.err).contains("No space left"), "{said:?}");
    assert!(desk.status("a")["stopped"].is_null());
    qemu_io(&uri, &["discard 0 96M", "flush", "write -P 5 0 16M", "flush", "read -P 5 0 16M"]);
    assert!(serving.terminate().0.success());
    desk.ok("check a");
}

/// A guest gets "no space left" at its quota, alone; it overwrites what it has, and a trim makes room.
#[test]
fn a_volume_at_its_quota_is_refused_alone() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    desk.ok("volume create a small --size 1G --quota 4M");
    desk.ok("volume create a other --size 1G");
    fs::write(desk.path("data"), noise(5, 8 << 20)).unwrap();
    let write =
        |at: &str, bytes: &str| format!("write -s {} {at} {bytes}", desk.path("data").display());
    let serving = desk.serve("a");
    let (small, other) = (desk.uri("a", "small"), desk.uri("a", "other"));
    qemu_io(&small, &[&write("100M", "4M"), "flush"]);
    let full = |command: &str| {
        let said = try_qemu_io(&small, &[command]);
        assert!((said.out.clone() + &said.err).contains("No space left"), "{command}: {said:?}");
    };
    full("write -P 7 0 4k");
    full(&write("102M", "4M"));
    qemu_io(&other, &[&write("0", "8M"), "flush"]);
    qemu_io(&small, &["write -P 8 100M 4M", "write -z 0 64M", "flush", "read -P 8 100M 4M"]);
    let line = desk.ok("volume list a");
    assert!(
        line.contains("4.00 MiB mapped  small  (has taken 4.00 MiB of its quota of 4.00 MiB)"),
        "{line}"
    );
    assert!(
        desk.ok("status a").contains("'small' has taken 4.00 MiB of its quota of 4.00 MiB: new")
    );
    qemu_io(&small, &["discard 100M 1M", "write -P 9 0 1M", "flush"]);
    full("write -P 7 1M 4k");
    assert_eq!(
        desk.ok("volume set a small --quota 5M"),
        "volume 'small' has a quota of 5.00 MiB\n"
    );
    qemu_io(&small, &["write -P 9 1M 1M", "flush"]);
    full("write -P 7 2M 4k");
    // It outlives a crash of the server.
    serving.kill();
    let serving = desk.serve("a");
    full("write -P 7 2M 4k");
    let volumes = &desk.status("a")["volumes"];
    assert_eq!(volumes[1]["quota_bytes"], 5 << 20, "{volumes}");
    assert!(volumes[0].get("quota_bytes").is_none(), "{volumes}");
    desk.ok("volume set a small --quota none");
    qemu_io(&small, &["write -P 7 2M 1M", "flush"]);
    assert!(serving.terminate().0.success());
    desk.fails("volume create a odd --size 1G --quota 0", 2, &["0 would refuse all"]);
    desk.ok("check a");
}

#[test]
fn a_service_manager_is_told_and_its_sockets_are_used() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let manager = UnixDatagram::bind(desk.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let listener = UnixListener::bind(desk.path("activated.sock")).unwrap();
    // The shell hands the socket over as descriptor 3, and its own number as that of the process.
    let mut command = Command::new("sh");
    let script =
        format!("LISTEN_PID=$$ LISTEN_FDS=1 exec {} serve a", env!("CARGO_BIN_EXE_onefold"));
    command
        .arg("-c")
        .arg(format!("exec 3<&0 0</dev/null; {script}"))
        .env("NOTIFY_SOCKET", desk.path("notify"));
    command.env("RUNTIME_DIRECTORY", desk.runtime());
    command
        .stdin(std::process::Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .current_dir(desk.path("."));
    let mut serving = Serving::start(&mut command);
    let told = || {
        let mut message = [0; 1024];
        let n = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..n]).into_owned()
    };
    assert_eq!(told(), "STATUS=opening the store");
    let ready = told();
    assert!(
        ready.starts_with("READY=1\nSTATUS=serving 1 volume of a at nbd+unix:///?socket="),
        "{ready}"
    );
    assert!(!desk.path("a.sock").exists());
    let uri = format!("nbd+unix:///v?socket={}", desk.path("activated.sock").display());
    qemu_io(&uri, &["write -P 9 0 64k", "read -P 9 0 64k"]);
    // A service is asked to read files again, also where it has none.
    serving.signal(Signal::HUP);
    serving.wait_for("SIGHUP");
    serving.signal(Signal::TERM);
    assert_eq!(told(), "STOPPING=1");
    assert!(serving.end().0.success());
    assert!(desk.path("activated.sock").exists());
}

#[test]
fn a_store_that_can_write_no_more_is_still_read() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate full");
    desk.ok("volume create a v --size 64M");
    // Writes beyond 24 MiB of the file fail; the limit counts in 512 bytes.
    let mut command = Command::new("sh");
    let script = format!("ulimit -f {}; exec {} serve a", 24 << 11, env!("CARGO_BIN_EXE_onefold"));
    command
        .arg("-c")
        .arg(script)
        .current_dir(desk.path("."))
        .env("RUNTIME_DIRECTORY", desk.runtime());
    let mut serving = Serving::start(&mut command);
    let uri = desk.uri("a", "v");
    qemu_io(&uri, &["write -P 3 0 1M", "flush"]);
    fs::write(desk.path("data"), noise(5, 32 << 20)).unwrap();
    // The write may be acknowledged before it is on the disk; the flush can't be.
    let said =
        try_qemu_io(&uri, &[&format!("write -s {} 1M 32M", desk.path("data").display()), "flush"]);
    assert!(!said.status.success(), "{said:?}");
    serving.wait_for("the store takes no more writes until it is opened again");
    qemu_io(&uri, &["read -P 3 0 1M"]);
    assert!(
        !try_qemu_io(&uri, &["write 0 4k", "flush"])
            .out
            .contains("wrote 4096/4096 bytes at offset 0\nflush")
    );
    let reason = desk.status("a")["stopped"].as_str().unwrap().to_owned();
    assert!(reason.contains("File too large"), "{reason}");
    assert!(desk.ok("status a").contains("STOPPED"));
    desk.fails("volume create a w --size 1G", 1, &["takes no more writes"]);
    let (status, log) = serving.terminate();
    assert_eq!(status.code(), Some(1));
    assert!(log.contains("reads go on"), "{log}");
    // Without the limit it recovers.
    let serving = desk.serve("a");
    qemu_io(&uri, &["read -P 3 0 1M", "write -P 4 1M 1M", "flush"]);
    assert!(serving.terminate().0.success());
    desk.ok("check a");
}

#[test]
fn who_comes_while_descriptors_are_short_is_served_later_and_keeps_nobody_busy() {
    let desk = Desk::new();
    desk.store_with_volume("a");
    let serving = desk.serve("a --http unix:http.sock");
    let control = fs::read_dir(desk.runtime()).unwrap().map(|entry| entry.unwrap().path());
    let control = control.into_iter().find(|path| path.extension().is_some_and(|it| it == "ctl"));
    let process = Pid::from_raw(serving.pid() as i32);
    // Those of its three standard streams are all that it may open.
    let few = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let before = prlimit(process, Resource::Nofile, few).unwrap();
    let ask = |path: &std::path::Path, words: &str| {
        // The whole path may be longer than a socket's address can be.
        let above = fs::File::open(path.parent().unwrap()).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let short = format!("/proc/self/fd/{}/{name}", above.as_raw_fd());
        let mut client = UnixStream::connect(short).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        client.write_all(words.as_bytes()).unwrap();
        client
    };
    // Who waits in `accept` has the number of a descriptor already: one command may come through.
    let control = control.unwrap();
    let _first = ask(&control, "{\"ask\":\"pid\"}\n");
    let mut clients = [
        (ask(&desk.path("a.sock"), ""), "NBDMAGIC"),
        (ask(&desk.path("http.sock"), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1"),
        (ask(&control, "{\"ask\":\"pid\"}\n"), "{\"answer\""),
    ];
    // Hundredths of a second in which it was at work: behind its name, which stands in parentheses.
    let work = || -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", serving.pid())).unwrap();
        let fields = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    };
    let worked = work();
    for (client, _) in &mut clients {
        let error = client.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "it has a descriptor: {error}");
    }
    // Three threads each wait a while before they try again.
    let worked = work() - worked;
    assert!(worked < 10, "{worked} hundredths of a second in one and a half");
    prlimit(process, Resource::Nofile, before).unwrap();
    for (mut client, begins) in clients {
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut bytes = vec![0; begins.len()];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), begins);
    }
    qemu_io(&desk.uri("a", "v"), &["write -P 1 0 64k", "flush", "read -P 1 0 64k"]);
    assert!(desk.status("a")["stopped"].is_null());
    let (status, log) = serving.terminate();
    assert!(status.success(), "{log}");
    assert_eq!(log.matches("cannot accept a control connection").count(), 1, "{log}");
}
