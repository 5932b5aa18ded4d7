//! Archives that are looked after: what gc tells, what monitoring hears, servers that take additions
//! alone, and servers that keep the archive well by themselves.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_archive::{Archive, Collection, CollectionOptions, Settings, note_scrubbed};
use onefold_backend::Directory;
use serde_json::Value;
use support::{Desk, noise, qemu_io, try_qemu_io};

fn json(desk: &Desk, arguments: &str) -> Value {
    serde_json::from_str(&desk.ok(&format!("{arguments} --json"))).unwrap()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// A snapshot of a file of 300,000 new bytes.
fn backup(desk: &Desk, n: u64) {
    fs::create_dir_all(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/file"), noise(n, 300_000)).unwrap();
    desk.ok("backup a tree --set t --json");
}

fn snapshots(desk: &Desk) -> usize {
    json(desk, "snapshots a").as_array().unwrap().len()
}

/// The volume holds what was written before.
#[track_caller]
fn reads_as_written(desk: &Desk) {
    let mut command = std::process::Command::new("timeout");
    command.args(["60", "qemu-io", "-r", "-f", "raw", "-c", "read -P 5 0 1M"]);
    let output = command.arg(desk.uri("a", "disk")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("read 1048576/1048576"), "{output:?}");
    assert!(!said.contains("failed"), "{said}");
}

/// Waits until something is so.
#[track_caller]
fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} takes too long");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn gc_says_what_it_would_free_and_what_it_leaves() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::write(desk.path("one"), noise(9, 6_000_000)).unwrap();
    desk.ok("put a one one --json");
    desk.fails("forget a one", 1, &["no snapshot 'one', but a stream", "`onefold rm` removes it"]);
    desk.ok("rm a one");
    desk.ok("forget a --set t --keep-last 1");
    for n in 0..2 {
        backup(&desk, n);
    }
    desk.fails("forget a t", 1, &["'t' is a set", "'t~0' names its newest snapshot"]);
    desk.fails("rm a t", 1, &["`onefold forget a t~0` forgets that"]);
    desk.fails("mount a nowhere", 1, &["there is no directory nowhere: `mkdir -p nowhere`"]);
    let host = json(&desk, "snapshots a")[0]["host"].as_str().unwrap().to_owned();
    let says = format!("`--host '{host}' --set 't' --keep-");
    desk.fails(&format!("forget a {host}:t"), 1, &[&says]);
    desk.fails("forget a --set tt --keep-last 1", 1, &["no snapshot of a set 'tt': there is 't'"]);
    desk.fails("forget a --set t --host h --keep-last 1", 1, &["of host 'h'"]);
    desk.fails("undelete a abc", 1, &["4 digits or more"]);
    desk.fails("backup a tree --host=", 2, &["--host"]);
    desk.ok("forget a t~1");
    let plan = json(&desk, "gc a --dry-run");
    assert!(number(&plan, "dead_bytes") > 5_900_000, "{plan}");
    assert!(number(&plan, "droppable_bytes") > 3_000_000, "{plan}");
    assert!((300_000..350_000).contains(&number(&plan, "trash_bytes")), "{plan}");
    assert_eq!(number(&plan, "trash_snapshots"), 1);
    assert!(number(&plan, "trash_until") > 1_700_000_000 && number(&plan, "free_bytes") > 0);
    let text = desk.ok("gc a --dry-run");
    for says in ["would free", "in the trash", "free on the disk"] {
        assert!(text.contains(says), "{text}");
    }
    // It changed nothing.
    assert_eq!(json(&desk, "gc a --dry-run")["dead_bytes"], plan["dead_bytes"]);
    let done = json(&desk, "gc a");
    assert_eq!(done["dropped_bytes"], plan["droppable_bytes"], "{done} {plan}");
    assert_eq!(number(&done["left"], "droppable_bytes"), 0, "{done}");
    assert_eq!(done["left"]["trash_bytes"], plan["trash_bytes"], "{done} {plan}");
    assert!(desk.ok("gc a").contains("in the trash"));
    desk.fails("gc a --dry-run --for 5m", 2, &["--dry-run"]);
}

#[test]
fn forget_names_each_set_that_a_policy_would_take_too_much_of() {
    let desk = Desk::new();
    desk.ok("create archive a");
    for n in 0..4 {
        backup(&desk, n);
        desk.ok("backup a tree --set s --json");
    }
    desk.fails("forget a --keep-last 1", 1, &["set 's' of", "set 't' of", "3 of its 4"]);
    assert_eq!(snapshots(&desk), 8);
}

#[test]
fn gc_names_who_holds_something_back() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let server = desk.serve("a");
    let plan = json(&desk, "gc a --dry-run");
    let holders = plan["holders"].as_array().unwrap();
    let is_server = |holder: &&Value| {
        holder["pid"] == server.pid() && holder["command"].as_str() == Some("onefold serve")
    };
    assert_eq!(holders.iter().filter(is_server).count(), 1, "{plan}");
    server.terminate();
    assert_eq!(json(&desk, "gc a --dry-run")["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn monitoring_hears_of_overdue_gc_and_scrub_and_of_damage() {
    let desk = Desk::new();
    desk.ok("create archive a");
    backup(&desk, 1);
    let limits = "status a --check --max-gc-age 1d --max-scrub-age 40d";
    // The first rounds have their time, from the first snapshot on.
    desk.ok(limits);
    desk.ok("status a --check --min-free 1M");
    let said = desk.fails("status a --check --min-free 1E", 1, &["1 thing needs"]);
    assert!(said.out.contains("free, less than 1.00 EiB"), "{said:?}");
    desk.ok("create archive nodes --nodes n0,n1,n2 --code 3,2");
    let said = desk.fails("status nodes --check --min-free 1E", 1, &["3 things need"]);
    assert!(said.out.contains("n2 has "), "{said:?}");
    std::thread::sleep(Duration::from_millis(2100));
    let soon = "status a --check --max-gc-age 1s --max-scrub-age 40d";
    let said = desk.fails(soon, 1, &["1 thing needs"]);
    assert!(said.out.contains("gc is overdue: none ever went through to its end"), "{said:?}");
    let soon = "status a --check --max-gc-age 1d --max-scrub-age 1s";
    assert!(desk.fails(soon, 1, &["1 thing needs"]).out.contains("scrub is overdue"));
    desk.ok("gc a");
    desk.ok(limits);
    desk.ok("scrub a");
    desk.ok(limits);
    std::thread::sleep(Duration::from_millis(2100));
    desk.fails("status a --check --max-gc-age 1s --max-scrub-age 1s", 1, &["2 things need"]);
    assert!(desk.ok("status a").contains("scrub"));
    assert!(number(&desk.status("a")["care"], "gc_ended") > 0);
    // A round goes on, and ends; a damaged byte is heard of.
    desk.ok("scrub a --round 1d");
    desk.fails("scrub a --round 30d --only x", 2, &["--only"]);
    let segment = fs::read_dir(desk.path("a")).unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        let is_largest = fs::metadata(&path).unwrap().len() > 250_000;
        (path.to_str().unwrap().contains("segment-") && is_largest).then_some(path)
    });
    support::overwrite(&segment.unwrap(), 150_000, &[1, 2, 3, 4]);
    desk.fails("scrub a --round 1d", 1, &["is damaged", "onefold repair"]);
    let said = desk.fails("status a --check", 1, &["1 thing needs"]);
    assert!(said.out.contains("damaged"), "{said:?}");
}

#[test]
fn a_server_of_additions_refuses_all_else() {
    let desk = Desk::new();
    desk.ok("create archive a");
    desk.ok("volume create a disk --size 4M");
    fs::write(desk.path("one"), noise(1, 100_000)).unwrap();
    fs::write(desk.path("two"), noise(2, 90_000)).unwrap();
    let first = desk.serve("a");
    qemu_io(&desk.uri("a", "disk"), &["write -P 5 0 1M", "flush"]);
    first.terminate();
    desk.store_with_volume("block");
    desk.fails("serve block --append-only", 2, &["for archives"]);
    let server = desk.serve("a --append-only");
    assert_eq!(desk.status("a")["server"]["append_only"], true);
    // New streams and snapshots.
    desk.ok("put a one one --json");
    backup(&desk, 1);
    backup(&desk, 2);
    assert_eq!(snapshots(&desk), 2);
    // No stream takes the place of another one.
    desk.fails("put a one two", 1, &["'one'", "--append-only"]);
    assert!(desk.command("get a one").output().unwrap().stdout == noise(1, 100_000));
    // Nobody says for the operator that a set shrank on purpose.
    desk.fails("backup a tree --set t --accept", 1, &["--accept"]);
    for change in [
        "volume create a other --size 1M",
        "volume resize a disk --size 8M",
        "volume rename a disk other",
        "volume delete a disk",
    ] {
        desk.fails(change, 1, &["--append-only"]);
    }
    // Volumes are read.
    for change in ["write -P 6 0 4k", "discard 0 1M", "write -z 0 1M"] {
        let said = try_qemu_io(&desk.uri("a", "disk"), &[change]);
        assert!(said.err.contains("Permission denied"), "{change}: {said:?}");
    }
    reads_as_written(&desk);
    // Who has the directory forgets, by rules that no added snapshot defeats.
    desk.fails("forget a --keep-last 1", 1, &["stolen key"]);
    // A snapshot goes by its id with the verb for snapshots alone.
    let id = json(&desk, "snapshots a")[0]["id"].as_str().unwrap()[..8].to_owned();
    desk.fails(
        &format!("rm a {id}"),
        1,
        &["there is no stream", &format!("onefold forget a {id}")],
    );
    desk.fails("rm a nothing", 1, &["there is no stream 'nothing'\n"]);
    let restore = format!("onefold restore a {id} -C DIR");
    desk.fails(&format!("get a {id} -C out"), 1, &["there is no stream", &restore]);
    desk.fails(&format!("mv a {id} other"), 1, &["there is no stream", "names a snapshot"]);
    desk.ok(&format!("forget a {id}"));
    assert_eq!(snapshots(&desk), 1);
    desk.ok(&format!("undelete a {id}"));
    let said = json(&desk, "forget a --keep-daily 1 --dry-run");
    let verdicts: Vec<&str> =
        said.as_array().unwrap().iter().map(|one| one["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["kept", "kept"], "the first of the day, and the last");
    server.terminate();
    let said = json(&desk, "forget a --keep-daily 1 --dry-run");
    assert_eq!(said[0]["verdict"], "would_go");
    let said = json(&desk, "forget a --keep-daily 1 --append-only --dry-run");
    assert_eq!(said[0]["verdict"], "kept");
}

#[test]
fn policies_of_a_file_are_for_sets_by_their_names() {
    let desk = Desk::new();
    desk.ok("create archive a");
    (0..3).for_each(|n| backup(&desk, n));
    desk.ok("backup a tree --set other --json");
    fs::write(desk.path("p.toml"), "[[keep]]\nset = 't'\nlast = 2\n").unwrap();
    let said = desk.ok("forget a --policy p.toml");
    assert!(said.contains("'other'") && said.contains("no policy fits"), "{said}");
    assert_eq!(snapshots(&desk), 3);
    fs::write(desk.path("p.toml"), "[[keep]]\nset = 't'\n").unwrap();
    desk.fails("forget a --policy p.toml", 1, &["policy 1 keeps nothing"]);
    desk.fails("forget a --policy none.toml", 1, &["none.toml"]);
    fs::write(desk.path("p.toml"), "[[keep]]\nlast = 2\n").unwrap();
    desk.fails("forget a --policy p.toml --append-only", 1, &["stolen key"]);
    desk.fails("forget a --policy p.toml --keep-last 1", 2, &["not both"]);
}

#[test]
fn a_server_looks_after_its_archive() {
    let desk = Desk::new();
    desk.ok("create archive a");
    (0..4).for_each(|n| backup(&desk, n));
    fs::write(
        desk.path("p.toml"),
        "[[keep]]\nlast = 2\n[gc]\nevery = '1d'\ntrash = '0s'\n[load]\nidle = '1s'\nlimit = '20M'\n",
    )
    .unwrap();
    let server = desk.serve("a --maintenance p.toml");
    let care = |desk: &Desk, key: &str| desk.status("a")["care"][key].as_u64().is_some();
    wait("gc", || care(&desk, "gc_ended"));
    assert_eq!(snapshots(&desk), 2);
    let status = desk.status("a");
    assert_eq!(number(&status, "forgotten_snapshots"), 0, "{status}");
    assert!(status["server"]["maintenance"].is_string(), "{status}");
    wait("scrub", || care(&desk, "scrub_ended") || care(&desk, "scrub_began"));
    desk.ok("restore a t~1 -C out");
    desk.ok("check a");
    // It ends at once, whatever it does.
    let ending = Instant::now();
    let (status, log) = server.terminate();
    assert!(status.success() && ending.elapsed() < Duration::from_secs(15), "{log}");
    assert!(log.contains("forgot 2 snapshots") && log.contains("gc freed"), "{log}");
    desk.fails("serve a --append-only --maintenance p.toml", 1, &["policy 1", "stolen key"]);
}

/// A gc and a scrub of the archive by a clock that is 1,000 days ahead.
fn look_after_in_the_future(desk: &Desk) {
    let ahead = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + 1000 * 86_400;
    let files = Arc::new(Directory::open(&desk.path("a"), true).unwrap());
    let archive = Arc::new(Archive::open(files, true, Settings::default()).unwrap());
    let options = CollectionOptions {
        now: ahead,
        keep_partial: 0,
        trash: 0,
        wait: true,
        reserve_bytes: 0,
        encode_all: false,
        doubts_clock: false,
    };
    let mut collection = Collection::begin(&archive, options).unwrap();
    while collection.step().unwrap() {}
    drop(collection);
    note_scrubbed(&archive, ahead).unwrap();
}

/// One moment of a wrong clock silenced monitoring, and kept a server from gc, for as long as it
/// was ahead.
#[test]
fn what_a_wrong_clock_dated_in_the_future_is_overdue() {
    let desk = Desk::new();
    desk.ok("create archive a");
    backup(&desk, 1);
    look_after_in_the_future(&desk);
    let check = "status a --check --max-age 26h --max-gc-age 8d --max-scrub-age 62d";
    let said = desk.fails(check, 1, &["2 things need an operator"]);
    for overdue in [
        "gc is overdue: the end of the last one is dated in the future",
        "scrub is overdue: the end of the last round is dated in the future",
    ] {
        assert!(said.out.contains(overdue), "{said:?}");
    }
    fs::write(desk.path("p.toml"), "[[keep]]\nlast = 2\n[gc]\nevery = '1d'\n[load]\nidle = '1s'\n")
        .unwrap();
    let before = number(&desk.status("a")["care"], "gc_ended");
    let server = desk.serve("a --maintenance p.toml");
    wait("gc", || number(&desk.status("a")["care"], "gc_ended") < before);
    server.terminate();
}

#[test]
fn work_in_the_background_gives_way_to_clients() {
    let desk = Desk::new();
    desk.ok("create archive a");
    desk.ok("volume create a disk --size 4M");
    backup(&desk, 1);
    fs::write(desk.path("p.toml"), "[[keep]]\nlast = 1\n[load]\nidle = '8s'\n").unwrap();
    let server = desk.serve("a --maintenance p.toml");
    // Somebody asks again and again.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(10) {
        qemu_io(&desk.uri("a", "disk"), &["write -P 5 0 64k", "flush"]);
        let care = &desk.status("a")["care"];
        assert!(care["gc_ended"].is_null() && care["scrub_began"].is_null(), "{care}");
    }
    wait("gc", || desk.status("a")["care"]["gc_ended"].is_u64());
    server.terminate();
}

#[test]
fn a_served_archive_that_idles_leaves_nothing_to_do() {
    let desk = Desk::new();
    desk.ok("create archive a");
    let server = desk.serve("a --replay-after 1s");
    fs::write(desk.path("one"), noise(1, 3_000_000)).unwrap();
    fs::write(desk.path("two"), noise(2, 3_000_000)).unwrap();
    desk.ok("put a one one --json");
    desk.ok("put a two two --json");
    desk.ok("rm a one");
    let left = |desk: &Desk| {
        let due = &desk.status("a")["due"];
        number(due, "import_containers") + number(due, "count_changes") + number(due, "merge_files")
    };
    wait("the replay", || left(&desk) == 0);
    let status = desk.status("a");
    let replay = &status["server"]["replay"];
    assert!(number(replay, "imports") > 0 && number(replay, "counts") > 0, "{status}");
    assert_eq!(number(replay, "idle_seconds"), 1);
    assert!(status["server"]["maintenance"].is_null());
    assert!(desk.ok("status a").contains("to be replayed 0 containers to import into"));
    server.terminate();
    assert_eq!(left(&desk), 0);
    desk.ok("check a");
    // It is turned off, and left to puts and gc.
    let server = desk.serve("a --replay-after never");
    desk.ok("put a one one --json");
    std::thread::sleep(Duration::from_secs(3));
    assert!(left(&desk) > 0 && desk.status("a")["server"]["replay"].is_null());
    server.terminate();
    desk.store_with_volume("block");
    desk.fails("serve block --replay-after 5s", 2, &["for archives"]);
    desk.fails("serve a --replay-after often", 2, &["a time like 10s"]);
}

#[test]
fn rule_34_a_backup_takes_over_nothing_that_others_added_to_its_set() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/file"), noise(1, 10_000)).unwrap();
    let server = desk.serve("a --append-only");
    let backup = |cache: &str| -> serde_json::Value {
        let mut command = desk.command("backup a tree --set s --host h --json");
        let out = command.env_remove("CACHE_DIRECTORY").env("XDG_CACHE_HOME", desk.path(cache));
        let out = out.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let mine = backup("mine");
    assert!(mine["parent"].is_null());
    let other = backup("other");
    assert!(other["parent"].is_null(), "it takes over nothing of mine: {other}");
    let again = backup("mine");
    assert_eq!(again["parent"], mine["id"], "nor I of the other one");
    assert_eq!(backup("other")["parent"], other["id"]);
    // A file of names that others could write to is not believed.
    let made = fs::read_dir(desk.path("mine/onefold")).unwrap().next().unwrap().unwrap().path();
    fs::set_permissions(&made, fs::Permissions::from_mode(0o622)).unwrap();
    assert!(backup("mine")["parent"].is_null());
    assert!(server.terminate().0.success());
    // Where all may do everything, the newest snapshot of the set counts.
    let server = desk.serve("a");
    assert!(!backup("third")["parent"].is_null());
    assert!(server.terminate().0.success());
}

#[test]
fn what_the_guard_holds_back_is_shown_and_monitoring_hears_of_it() {
    let desk = Desk::new();
    desk.ok("create archive a");
    (0..4).for_each(|n| backup(&desk, n));
    fs::write(desk.path("p.toml"), "[[keep]]\nlast = 1\n[load]\nidle = '1s'\n").unwrap();
    for dry in [" --dry-run", ""] {
        let said = desk.fails(&format!("forget a --policy p.toml{dry}"), 1, &["3 of its 4"]);
        assert_eq!(said.out.matches("held back: the policy").count(), 3, "{said:?}");
        assert_eq!(said.out.matches("kept: last").count(), 1, "{said:?}");
        assert!(said.out.contains("3 snapshots held back"), "{said:?}");
    }
    let said = desk.fails("forget a --keep-last 1 --dry-run --json", 1, &["3 of its 4"]);
    let said: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&said[0]["verdict"], &said[3]["verdict"]), (&"held_back".into(), &"kept".into()));
    assert_eq!(snapshots(&desk), 4);
    desk.ok("status a --check");
    let said = desk.fails("status a --check --policy p.toml", 1, &["1 thing needs"]);
    assert!(said.out.contains("set 't'") && said.out.contains("3 of its 4"), "{said:?}");
    let server = desk.serve("a --maintenance p.toml");
    wait("gc", || desk.status("a")["care"]["gc_ended"].is_u64());
    for command in ["status a --check", "status a --check --policy p.toml"] {
        let said = desk.fails(command, 1, &["1 thing needs"]);
        assert!(said.out.contains("3 of its 4"), "{said:?}");
    }
    server.terminate();
}

/// Runs `onefold-backup` for the directory `tree` and the archive `a`.
fn nightly(desk: &Desk, variables: &[(&str, &str)]) -> std::process::Output {
    let script =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/onefold-backup");
    let command = std::path::Path::new(env!("CARGO_BIN_EXE_onefold")).parent().unwrap().to_owned();
    let path = format!("{}:{}", command.display(), std::env::var("PATH").unwrap());
    let mut nightly = std::process::Command::new("sh");
    nightly.arg(script).args(["a", "tree"]).env("PATH", &*path).envs(variables.iter().copied());
    nightly.current_dir(desk.path(".")).env("RUNTIME_DIRECTORY", desk.runtime());
    nightly.output().unwrap()
}

#[test]
fn the_nightly_backup_frees_space_although_its_policy_is_refused() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::write(desk.path("one"), noise(9, 3_000_000)).unwrap();
    (0..4).for_each(|n| backup(&desk, n));
    let freed = |policy: &str| {
        desk.ok("put a one one --json");
        desk.ok("rm a one");
        assert!(number(&json(&desk, "gc a --dry-run"), "droppable_bytes") > 2_900_000);
        let said = nightly(&desk, &[("SET", "t"), ("KEEP", policy)]);
        let left = number(&json(&desk, "gc a --dry-run"), "droppable_bytes");
        assert!(left < 400_000, "{left}: {said:?}");
        (said.status.code(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    let (status, said) = freed("--keep-last 1");
    assert!(status == Some(1) && said.contains("4 of its 5"), "{said}");
    assert_eq!(snapshots(&desk), 5, "one more, and none went");
    assert_eq!(freed("--keep-last 5").0, Some(0));
    assert_eq!(snapshots(&desk), 5);
}

#[test]
fn the_nightly_backup_goes_by_the_name_of_a_host_that_is_given() {
    let desk = Desk::new();
    desk.ok("create archive a");
    // The set has snapshots of this host, which stay.
    backup(&desk, 1);
    desk.ok("backup a tree --set web1 --json");
    for n in 2..4 {
        fs::write(desk.path("tree/file"), noise(n, 300_000)).unwrap();
        let said = nightly(&desk, &[("AS_HOST", "web1"), ("KEEP", "--keep-last 1")]);
        assert_eq!(said.status.code(), Some(0), "{said:?}");
    }
    let all = json(&desk, "snapshots a");
    let of = |name: &str| {
        let all = all.as_array().unwrap().iter();
        all.filter(|one| one["host"] == name && one["set"] == "web1").count()
    };
    assert_eq!((of("web1"), all.as_array().unwrap().len()), (1, 3), "{all}");
}

#[test]
fn the_nightly_backup_by_a_put_key_only_adds_and_ends_well() {
    let desk = Desk::new();
    desk.ok("create archive a --roles --key vault.key");
    desk.ok("key grant a put --to web1.key --name web1 --set web1 --key vault.key");
    fs::create_dir_all(desk.path("tree")).unwrap();
    for n in 0..2 {
        fs::write(desk.path("tree/file"), noise(n, 300_000)).unwrap();
        let said =
            nightly(&desk, &[("SET", "web1"), ("KEY", "web1.key"), ("KEEP", "--keep-last 1")]);
        assert_eq!(said.status.code(), Some(0), "{said:?}");
    }
    let all = json(&desk, "snapshots a --key vault.key");
    let hosts = all.as_array().unwrap().iter().filter(|one| one["host"] == "web1");
    assert_eq!(hosts.count(), 2, "{all}");
    desk.fails(
        "backup a tree --set web1 --host db1 --key web1.key",
        1,
        &["adds snapshots of host 'web1'", "not of 'db1'"],
    );
    // Who manages forgets and frees, and so does whoever is told to, and fails.
    let said = nightly(&desk, &[("SET", "web1"), ("KEY", "web1.key"), ("ADDS", "more")]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let manages = [("SET", "web1"), ("KEY", "vault.key"), ("AS_HOST", "web1")];
    let said = nightly(&desk, &[&manages[..], &[("KEEP", "--keep-last 2 --yes")]].concat());
    assert!(!String::from_utf8_lossy(&said.stderr).contains("put key"), "{said:?}");
}

#[test]
fn a_server_that_takes_commands_elsewhere_is_named_and_not_waited_for_without_end() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::write(desk.path("one"), noise(1, 50_000)).unwrap();
    (0..3).for_each(|n| backup(&desk, n));
    let server = desk.serve("a --append-only --control elsewhere");
    let named = format!("served by process {} on host", server.pid());
    for verb in ["put a one one", "backup a tree --set t"] {
        let said = desk.run(&format!("{verb} --wait 2s"));
        let lines: Vec<&str> = said.err.lines().collect();
        assert_eq!((said.status.code(), lines.len()), (Some(1), 2), "{said:?}");
        assert!(lines.iter().all(|line| line.contains(&named) && line.contains("--control DIR")));
        assert!(lines[0].contains("waiting for it for at most 2 s"), "{said:?}");
        assert!(lines[1].contains("still after 2 s: nothing is stored"), "{said:?}");
        desk.fails(&format!("{verb} --no-wait"), 1, &[&named, "nothing is stored", "--control"]);
    }
    // The rules of the server hold for who looks for it in another place.
    desk.fails("volume create a v --size 1M", 1, &[&named, "--control"]);
    let said = desk.run("forget a --keep-last 1");
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.err.contains(&named) && said.err.contains("stolen key"), "{said:?}");
    let said = desk.run("forget a --keep-daily 1 --dry-run --json");
    let verdicts: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(verdicts[0]["verdict"], "kept", "the first of the day: {said:?}");
    assert_eq!(snapshots(&desk), 3);
    desk.ok("put a one one --control elsewhere --json");
    // A killed one is nobody's server.
    server.kill();
    desk.ok("put a two one --wait 2s --json");
    desk.ok("volume create a v --size 1M");
    assert_eq!(json(&desk, "forget a --keep-last 1 --force --dry-run")[0]["verdict"], "would_go");
}

#[test]
fn gc_names_those_that_it_waits_for_and_ends_with_its_budget() {
    use std::{io::Read, process::Stdio};
    let desk = Desk::new();
    desk.ok("create archive a --compress none");
    fs::write(desk.path("old"), noise(1, 24_000_000)).unwrap();
    desk.ok("put a old old --json");
    let mut reader = desk.command("get a old").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = reader.stdout.take().unwrap();
    output.read_exact(&mut vec![0; 100_000]).unwrap();
    desk.ok("rm a old");
    let begun = Instant::now();
    let said = desk.run("gc a --for 5s");
    let (code, took) = (said.status.code(), begun.elapsed());
    assert!(code == Some(0) && took < Duration::from_secs(30), "{took:?} {said:?}");
    let named = format!("process {} (onefold get)", reader.id());
    assert!(said.err.contains(&named) && said.err.contains("--no-wait"), "{said:?}");
    assert!(said.out.contains("hold more back"), "{said:?}");
    drop(output);
    reader.wait().unwrap();
    assert_eq!(json(&desk, "gc a")["held_back"], false);
    assert_eq!(desk.status("a")["stored_bytes"], 0);
}
