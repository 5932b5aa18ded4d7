//! Archives on another host: all verbs by an address, with a script in place of ssh, and with OpenSSH.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use support::{Desk, noise};

/// Runs what the other end is told, here.
const LOCAL: &str = "exec sh -c \"$last\"";

/// A desk whose addresses lead back to it.
fn desk() -> Desk {
    Desk::new().by_ssh("ssh", LOCAL)
}

/// The address of an archive of the desk.
fn address(desk: &Desk, name: &str) -> String {
    format!("ssh://vault{}", desk.path(name).display())
}

#[test]
fn verbs_of_archives_work_by_an_address() {
    let desk = desk();
    let far = address(&desk, "a");
    fs::create_dir_all(desk.path("home/below")).unwrap();
    fs::write(desk.path("home/below/file"), noise(1, 300_000)).unwrap();
    fs::write(desk.path("home/letter"), "dear all").unwrap();
    fs::write(desk.path("image"), noise(2, 2_000_000)).unwrap();

    desk.fails("create archive ssh://vault/no/such/place", 1, &["ssh://vault/no/such/place: "]);
    assert!(desk.ok(&format!("create archive {far}")).contains(&format!("created {far}")));
    desk.fails(&format!("create archive {far}"), 1, &[&far, "is not empty"]);
    desk.ok(&format!("put {far} image image"));
    desk.ok(&format!("put {far} again image"));
    desk.ok(&format!("get {far} image --output image.back"));
    assert_eq!(fs::read(desk.path("image")).unwrap(), fs::read(desk.path("image.back")).unwrap());
    assert!(desk.ok(&format!("ls {far}")).contains("again"));
    desk.ok(&format!("rm {far} image"));
    desk.ok(&format!("mv {far} again only"));

    desk.ok(&format!("backup {far} home --set home"));
    fs::write(desk.path("home/letter"), "dear others").unwrap();
    desk.ok(&format!("backup {far} home --set home"));
    assert_eq!(
        desk.ok(&format!("snapshots {far}")).lines().filter(|l| l.contains("home")).count(),
        2
    );
    desk.ok(&format!("restore {far} home -C back"));
    let back = desk.path("back").join(desk.path("home").strip_prefix("/").unwrap());
    assert_eq!(fs::read(back.join("letter")).unwrap(), b"dear others");
    assert_eq!(fs::read(back.join("below/file")).unwrap(), noise(1, 300_000));
    let letter = desk.path("home/letter");
    assert_eq!(desk.ok(&format!("cat {far} home~1 {}", letter.display())), "dear all");
    assert!(desk.ok(&format!("diff {far} home~1 home")).contains("letter"));
    assert!(desk.ok(&format!("find {far} letter")).contains("letter"));
    desk.ok(&format!("forget {far} --keep-last 1 --set home"));
    assert!(desk.ok(&format!("gc {far} --trash 0")).contains("freed"));
    desk.ok(&format!("check {far}"));
    desk.ok(&format!("scrub {far}"));
    desk.ok(&format!("repair {far}"));
    let status = desk.status(&far);
    assert_eq!(status["archive"], *far);
    assert!(status["free_bytes"].as_u64().unwrap() > 0, "{status}");
    desk.ok(&format!("volume create {far} v --size 64M"));
    assert!(desk.ok(&format!("volume list {far}")).contains('v'));
    desk.ok(&format!("upgrade {far}"));

    // Without the connection it is the same archive.
    desk.ok("check a");
    assert_eq!(desk.ok("ls a"), desk.ok(&format!("ls {far}")));
    assert_eq!(desk.ok("snapshots a --json"), desk.ok(&format!("snapshots {far} --json")));

    desk.fails(
        &format!("serve {far} --nbd unix:{}", desk.path("s").display()),
        1,
        &["another host"],
    );
    desk.fails(&format!("index {far} --fast x"), 1, &["another host"]);
    desk.fails(&format!("create archive {far}2 --fast x"), 2, &["without --nodes and --fast"]);
}

#[test]
fn a_create_that_failed_leaves_nothing_at_the_other_end() {
    let mut lengths = (0..32).map(|n| if n == 0 { 0 } else { 16u64 << n });
    let failed = lengths.by_ref().take_while(|bytes| {
        // The connection breaks when it has carried so much.
        let script = format!("stdbuf -o0 head -c {bytes} | sh -c \"$last\"");
        let desk = Desk::new().by_ssh("ssh", &script);
        let said = desk.run(&format!("create archive {}", address(&desk, "a")));
        let made = said.status.success();
        assert_eq!(desk.path("a").exists(), made, "after {bytes} bytes: {said:?}");
        !made
    });
    assert!(failed.count() > 3);
    assert!(lengths.next().is_some(), "a whole connection makes an archive");
    // A directory that was there stays.
    let desk = Desk::new().by_ssh("ssh", "stdbuf -o0 head -c 64 | sh -c \"$last\"");
    fs::create_dir(desk.path("a")).unwrap();
    assert!(!desk.run(&format!("create archive {}", address(&desk, "a"))).status.success());
    assert!(desk.path("a").exists());
}

#[test]
fn a_create_whose_other_end_was_killed_is_made_again() {
    let mut left = 0;
    for bytes in (4..24).map(|n| 16u64 << n) {
        // The other end is killed when it got so much.
        let script = format!(
            "pid=$(mktemp); {{ stdbuf -o0 head -c {bytes}; kill -9 $(cat $pid); }} \
             | sh -c \"echo \\$\\$ > $pid; exec $last\""
        );
        let desk = Desk::new().by_ssh("ssh", &script);
        let far = address(&desk, "a");
        let made = desk.run(&format!("create archive {far}")).status.success();
        left += u32::from(!made && desk.path("a").exists());
        let desk = desk.by_ssh("ssh", LOCAL);
        match made {
            true => desk.fails(&format!("create archive {far}"), 1, &["is not empty"]).err,
            false => desk.ok(&format!("create archive {far}")),
        };
        desk.ok(&format!("put {far} s ssh"));
        desk.ok("check a");
        if made {
            break;
        }
    }
    assert!(left > 3, "{left}");
}

#[test]
fn rule_02_what_is_removed_for_a_new_archive_is_a_dead_creation_and_nothing_else() {
    let desk = desk();
    let far = address(&desk, "a");
    let create = [format!("create archive {far}"), "create archive a".to_owned()];
    let refused = |why: &str| create.iter().for_each(|verb| drop(desk.fails(verb, 1, &[why])));
    // A copy of the keys, or a file of somebody's own with such a name, is no creation.
    for name in ["keys", "reserve", "snapshot-0000000001", "label", "lock-gc"] {
        fs::create_dir(desk.path("a")).unwrap();
        fs::File::open(desk.path("a"))
            .unwrap()
            .set_permissions(PermissionsExt::from_mode(0o700))
            .unwrap();
        fs::write(desk.path("a").join(name), "").unwrap();
        refused("is not empty");
        assert!(desk.path("a").join(name).exists(), "{name}");
        fs::remove_dir_all(desk.path("a")).unwrap();
    }
    for (verb, label) in create.iter().flat_map(|verb| [(verb, true), (verb, false)]) {
        let _ = fs::remove_dir_all(desk.path("a"));
        desk.ok("create archive a");
        match label {
            true => fs::write(desk.path("a/label"), "").unwrap(),
            false => fs::remove_file(desk.path("a/label")).unwrap(),
        }
        // A creation that is at work has the directory locked.
        let own = fs::File::open(desk.path("a")).unwrap();
        rustix::fs::flock(&own, rustix::fs::FlockOperation::LockExclusive).unwrap();
        refused("another process makes an archive in");
        drop(own);
        // Another's file, also one that is not an archive's first, keeps it.
        for name in ["letter", "segment-0000000001", "nodes"] {
            fs::write(desk.path("a").join(name), "").unwrap();
            refused("is not empty");
            fs::remove_file(desk.path("a").join(name)).unwrap();
        }
        // So does a log with something in it: an archive that lost its label.
        fs::write(desk.path("a/log-0000000001"), "x").unwrap();
        refused("is not empty");
        fs::write(desk.path("a/log-0000000001"), "").unwrap();
        // And a directory that others can open, since they could hold it up.
        let own = fs::File::open(desk.path("a")).unwrap();
        let mode = |mode| own.set_permissions(PermissionsExt::from_mode(mode));
        mode(0o755).unwrap();
        assert!(!desk.run(verb).status.success());
        mode(0o700).unwrap();
        drop(own);
        // The link is removed, and the file stays to which it leads.
        fs::write(desk.path("precious"), "precious").unwrap();
        fs::remove_file(desk.path("a/reserve")).unwrap();
        std::os::unix::fs::symlink("../precious", desk.path("a/reserve")).unwrap();
        desk.ok(verb);
        assert_eq!(fs::read(desk.path("precious")).unwrap(), b"precious");
        assert!(!desk.path("a/reserve").is_symlink());
        desk.ok("put a s precious");
        desk.ok("check a");
    }
}

#[test]
fn keys_of_a_sealed_archive_stay_on_this_side() {
    let desk = Desk::new();
    // What the other end is told and sent, and its environment.
    let spying = "env > env.$$; printf '%s\\n' \"$@\" >> told; tee -a sent | sh -c \"$last\"";
    let desk = desk.by_ssh("ssh", spying);
    let far = address(&desk, "a");
    fs::write(desk.path("plain"), "a secret that nobody may read ".repeat(10_000)).unwrap();
    let made = desk.ok(&format!("create archive {far} --key own.key"));
    assert!(made.contains("it is encrypted"));
    desk.ok(&format!("put {far} s plain --key own.key"));
    desk.ok(&format!("get {far} s --output back --key own.key"));
    assert_eq!(fs::read(desk.path("plain")).unwrap(), fs::read(desk.path("back")).unwrap());
    desk.ok(&format!("key add {far} --new second.key --key own.key"));
    desk.ok(&format!("key test {far} --key second.key"));
    assert!(desk.ok(&format!("key list {far}")).contains("   2  file"));
    desk.ok(&format!("check {far} --key second.key"));
    desk.fails(&format!("ls {far}"), 1, &["it is encrypted: say where its key is"]);

    let key = fs::read_to_string(desk.path("own.key")).unwrap();
    let key = key.split_whitespace().last().unwrap();
    assert!(key.len() > 30, "{key}");
    let mut looked_at = 0;
    let (own, above) =
        (fs::read_dir(desk.path("a")).unwrap(), fs::read_dir(desk.path("")).unwrap());
    for entry in own.chain(above).map(Result::unwrap) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !entry.file_type().unwrap().is_file()
            || name.ends_with(".key")
            || name == "plain"
            || name == "back"
        {
            continue;
        }
        let bytes = fs::read(entry.path()).unwrap();
        let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        assert!(!has(key.as_bytes()) && !has(b"a secret that nobody"), "{name}");
        looked_at += 1;
    }
    assert!(looked_at > 15, "{looked_at}");

    // A plain archive in its place is refused.
    fs::rename(desk.path("a"), desk.path("a.sealed")).unwrap();
    desk.ok("create archive a");
    desk.fails(&format!("ls {far}"), 1, &["is not encrypted, and an encrypted store was here"]);
}

/// A put that has sent so much, and waits for more.
fn putting(desk: &Desk, far: &str) -> Child {
    let mut command = desk.command(&format!("put {far} half"));
    let mut child =
        command.stdin(Stdio::piped()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(&noise(3, 80 << 20)).unwrap();
    child
}

/// Tries until it succeeds.
#[track_caller]
fn soon(desk: &Desk, arguments: &str) {
    let begun = Instant::now();
    loop {
        let said = desk.run(arguments);
        if said.status.success() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{arguments}: {said:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_client_that_vanishes_leaves_an_archive_that_opens() {
    let desk = desk();
    let far = address(&desk, "a");
    desk.ok(&format!("create archive {far}"));
    fs::write(desk.path("image"), noise(2, 2_000_000)).unwrap();
    desk.ok(&format!("put {far} image image"));
    let mut child = putting(&desk, &far);
    desk.fails("put a other image --no-wait", 1, &["another process"]);
    child.kill().unwrap();
    child.wait().unwrap();
    // Its locks end with the connection.
    soon(&desk, "put a other image --no-wait");
    desk.ok("check a");
    desk.ok("scrub a");
    assert!(!desk.ok("ls a").contains("half"));
    desk.ok("gc a");
    desk.ok(&format!("get {far} image --output back"));
    assert_eq!(fs::read(desk.path("image")).unwrap(), fs::read(desk.path("back")).unwrap());
}

#[test]
fn an_other_end_that_vanishes_fails_the_verb_in_a_sentence() {
    let desk = Desk::new();
    let script = "sh -c \"$last\" & echo $! > pid; wait";
    // A job in the background has no input unless it is told.
    let script = script
        .replace("sh -c \"$last\" &", "exec 3<&0; sh -c \"exec $last\" <&3 3<&- & exec 3<&-;");
    let desk = desk.by_ssh("ssh", &script);
    let far = address(&desk, "a");
    desk.ok(&format!("create archive {far}"));
    let mut command = desk.command(&format!("put {far} half"));
    let mut child =
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&noise(3, 80 << 20)).unwrap();
    let pid = fs::read_to_string(desk.path("pid")).unwrap();
    let killed = std::process::Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
    assert!(killed.success());
    let _ = input.write_all(&noise(4, 80 << 20));
    drop(input);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.lines().last().unwrap().starts_with("onefold: "), "{said}");
    assert!(said.contains("the connection"), "{said}");
    soon(&desk, "check a");
}

#[test]
fn the_command_of_a_key_decides_and_not_the_client() {
    let plain = desk();
    plain.ok("create archive a");
    plain.ok("create archive b");
    fs::write(plain.path("image"), noise(2, 200_000)).unwrap();
    plain.ok("put a image image");
    let far = address(&plain, "a");
    let forced = |name: &str, command: &str| {
        plain.by_ssh(name, &format!("export SSH_ORIGINAL_COMMAND=\"$last\"; exec {command}"))
    };

    let reader = forced("reader", "onefold accept a --right read");
    assert!(reader.ok(&format!("ls {far}")).contains("image"));
    reader.ok(&format!("get {far} image --output back"));
    reader.ok(&format!("check {far}"));
    for verb in ["put X new image", "rm X image", "gc X", "upgrade X", "backup X image"] {
        let verb = verb.replace('X', &far);
        reader.fails(&verb, 1, &[&far, "can't be changed", "read it, and change nothing"]);
    }
    reader.fails(&format!("ls {}", address(&plain, "b")), 1, &["this key is for a on this host"]);
    reader.fails(&format!("create archive {far}"), 1, &["this key makes no archive"]);

    let owner = forced("owner", "onefold accept a");
    owner.ok(&format!("put {far} new image"));
    owner.fails(&format!("create archive {far}"), 1, &["this key makes no archive"]);
    let maker = forced("maker", "onefold accept c --new");
    let new = address(&plain, "c");
    maker.fails(&format!("ls {new}"), 1, &[&new, "there is nothing at c"]);
    assert!(!plain.path("c").exists());
    maker.ok(&format!("create archive {new}"));
    maker.ok(&format!("put {new} image image"));
    maker.fails(&format!("create archive {new}"), 1, &["is not empty"]);

    let mut other = plain.command("accept a");
    let other = other.env("SSH_ORIGINAL_COMMAND", "rm -rf a").stdin(Stdio::null());
    let said = other.output().unwrap();
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("for no other command"), "{said:?}");
}

#[test]
fn rule_46_a_key_of_ssh_that_may_put_lets_a_put_key_add_and_take_nothing_away() {
    let vault = desk();
    vault.ok("create archive a --roles --key vault.key");
    for name in ["web1", "db1"] {
        vault.ok(&format!(
            "key grant a put --to {name}.key --name {name} --set {name} --key vault.key"
        ));
    }
    fs::create_dir(vault.path("home")).unwrap();
    fs::write(vault.path("home/letter"), "dear all").unwrap();
    fs::write(vault.path("home/image"), noise(2, 3_000_000)).unwrap();
    let far = address(&vault, "a");
    let forced = |right: &str| {
        let command = format!("onefold accept a --right {right}");
        vault.by_ssh(right, &format!("export SSH_ORIGINAL_COMMAND=\"$last\"; exec {command}"))
    };
    let host = forced("put");
    for night in 0..3 {
        host.ok(&format!("backup {far} home --set web1 --key web1.key"));
        host.ok(&format!("backup {far} home --set db1 --key db1.key"));
        fs::write(vault.path("home/letter"), format!("dear all, {night}")).unwrap();
        if night == 1 {
            vault.ok("gc a --key vault.key");
        }
    }
    let listed = host.ok(&format!("snapshots {far} --key web1.key"));
    assert_eq!(listed.lines().filter(|line| line.contains("web1")).count(), 3, "{listed}");
    for verb in ["forget X --keep-last 1 --set web1", "gc X", "repair X", "scrub X"] {
        let verb = verb.replace('X', &far);
        let said = host.run(&format!("{verb} --key web1.key"));
        assert!(!said.status.success(), "{verb}: {said:?}");
    }
    // Another key than a put key is of no use there.
    let more = "lets this user only add, by a put key";
    host.fails(&format!("backup {far} home --set web1 --key vault.key"), 1, &[&far, more]);
    host.fails(&format!("gc {far} --key vault.key"), 1, &[&far, more]);
    vault.ok("check a --key vault.key");
    vault.ok("scrub a --key vault.key");
    vault.ok("restore a web1 -C back --key vault.key");
    let back = vault.path("back").join(vault.path("home").strip_prefix("/").unwrap());
    assert_eq!(fs::read(back.join("letter")).unwrap(), b"dear all, 1");
    assert_eq!(fs::read(back.join("image")).unwrap(), noise(2, 3_000_000));
    vault.ok("repair a --cut-log --key vault.key");
    vault.fails("repair a --cut-log --key web1.key", 1, &["--cut-log is for who manages"]);
    host.ok(&format!("backup {far} home --set web1 --key web1.key"));
    // Without roles whoever stores can take away.
    vault.ok("create archive plain");
    let plain = vault.by_ssh("putting", "exec onefold accept plain --right put");
    plain.fails(&format!("ls {}", address(&vault, "plain")), 1, &["have no roles"]);
    vault.fails("repair plain --cut-log", 1, &["put back from a copy"]);
}

#[test]
fn who_can_not_be_reached_is_told_in_a_sentence() {
    let desk = Desk::new();
    let ls = "ls ssh://vault/srv/backups";
    let failing = |script: &str, says: &[&str]| {
        let said = desk.by_ssh("ssh", script).fails(ls, 1, says);
        assert!(said.err.starts_with("onefold: ssh://vault/srv/backups"), "{}", said.err);
    };
    failing(
        "echo 'Permission denied (publickey).' >&2; exit 255",
        &["can't be reached", "Permission denied"],
    );
    failing("exit 127", &["vault has no command `onefold`"]);
    failing("exit 3", &["ended with status 3"]);
    failing(
        "echo 'This account is closed. Have a good day.'",
        &["does not speak", "This account is "],
    );
    failing("printf 'onefold files 1\\n'; head -c 100 /dev/zero", &["does not speak"]);
    failing("head -c 10000000 /dev/urandom", &["does not speak"]);
    failing("printf 'a\\033[2Jb\\n' >&2; exit 1", &["a [2Jb"]);
    let nowhere = Desk::new();
    let mut command = nowhere.command(ls);
    let said = command.env("ONEFOLD_SSH", "/no/such/program").output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("can't be reached by /no/such/program"), "{said}");
    // Words of the other end beside its work are shown as such.
    desk.ok("create archive a");
    let chatty = desk.by_ssh("ssh", &format!("echo 'disk is old' >&2; {LOCAL}"));
    let said = chatty.run(&format!("ls {}", address(&desk, "a")));
    assert!(said.status.success() && said.err.contains("warning: vault: disk is old"), "{said:?}");
}

#[test]
fn what_lies_elsewhere_or_is_served_is_refused_in_a_sentence() {
    let desk = desk();
    desk.ok("create archive fast --fast ssd");
    desk.ok("create archive many --nodes n0,n1,n2 --code 3,2");
    desk.ok("create block disk --size 64M");
    for (name, says) in [
        ("fast", "its chunk index is in another directory"),
        ("many", "its nodes are in other directories"),
        ("disk", "is no archive"),
        ("none", "there is nothing at"),
    ] {
        let far = address(&desk, name);
        desk.fails(&format!("ls {far}"), 1, &[&far, says]);
    }
    desk.ok("create archive a");
    fs::write(desk.path("image"), noise(2, 200_000)).unwrap();
    desk.ok("backup a image --set t");
    let _serving = desk.serve(&format!("a --nbd unix:{}", desk.path("a.sock").display()));
    let far = address(&desk, "a");
    desk.ok(&format!("ls {far}"));
    desk.fails(&format!("put {far} image image"), 1, &[&far, "serves it there"]);
    // The server may take additions alone: a policy counts as it does beside such a server.
    let said = desk.run(&format!("forget {far} --keep-last 1"));
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.err.contains("serves it there") && said.err.contains("stolen key"), "{said:?}");
}

#[test]
fn nodes_of_an_archive_lie_on_other_hosts() {
    let desk = desk();
    let far = |name: &str| address(&desk, name);
    fs::write(desk.path("image"), noise(3, 3_000_000)).unwrap();
    fs::write(desk.path("later"), noise(4, 300_000)).unwrap();
    let nodes = format!("n0,{},n2,{},n4", far("n1"), far("n3"));
    desk.fails(
        "create archive b --nodes bucket:n0,n1,n2 --code 3,2",
        1,
        &["a node is a directory"],
    );
    let made = desk.ok(&format!("create archive a --nodes {nodes} --code 5,3"));
    assert!(made.contains("on 5 nodes of which 2 may be lost"), "{made}");
    assert!(desk.path("n1/node").exists() && desk.path("n3/node").exists());
    let same = |name: &str, kept: &str| {
        desk.ok(&format!("get a {name} --output back"));
        assert_eq!(fs::read(desk.path("back")).unwrap(), fs::read(desk.path(kept)).unwrap());
        fs::remove_file(desk.path("back")).unwrap();
    };
    desk.ok("put a image image");
    same("image", "image");
    desk.ok("check a");
    // A node on another host counts as any other: two may be lost, whichever.
    fs::rename(desk.path("n1"), desk.path("gone")).unwrap();
    fs::remove_dir_all(desk.path("n2")).unwrap();
    same("image", "image");
    desk.ok("rm a image");
    // One that was away and missed changes, and a new one, are filled.
    fs::rename(desk.path("gone"), desk.path("n1")).unwrap();
    desk.ok(&format!("node replace a 1 {}", far("n1")));
    desk.ok("put a again image --degraded");
    desk.ok(&format!("node replace a 2 {}", far("new")));
    desk.ok("put a later later");
    desk.ok("node rebuild a");
    desk.ok("check a");
    desk.ok("scrub a");
    fs::remove_dir_all(desk.path("n0")).unwrap();
    fs::remove_dir_all(desk.path("n4")).unwrap();
    same("again", "image");
    same("later", "later");
    // The list is anew from the addresses.
    fs::remove_dir_all(desk.path("a")).unwrap();
    let nodes = format!("n0,{},{},{},n4", far("n1"), far("new"), far("n3"));
    desk.ok(&format!("node attach a --nodes {nodes}"));
    same("again", "image");
    // A node of an archive is none by itself.
    let said = desk.run(&format!("put {} x image", far("n1")));
    assert_eq!(said.status.code(), Some(1), "{said:?}");
}

#[test]
fn a_node_whose_host_is_not_reached_is_absent_and_one_that_is_read_only_stops_changes() {
    let desk = desk();
    fs::write(desk.path("image"), noise(3, 400_000)).unwrap();
    let nodes = format!("n0,{},n2", address(&desk, "n1"));
    desk.ok(&format!("create archive a --nodes {nodes} --code 3,2"));
    desk.ok("put a image image");
    let down = desk.by_ssh("down", "echo no route >&2; exit 255");
    down.ok("get a image --output back");
    assert_eq!(fs::read(desk.path("back")).unwrap(), fs::read(desk.path("image")).unwrap());
    let said = down.run("put a other ssh");
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let reads = desk.by_ssh("reads", "exec sh -c \"$last --right read\"");
    reads.ok("get a image --output again");
    reads.fails("put a other ssh", 1, &["ssh://vault/", "can't be changed"]);
    // The put without it left it behind.
    desk.ok(&format!("node replace a 1 {}", address(&desk, "n1")));
    desk.ok("put a other ssh");
    desk.ok("check a");
}

#[test]
fn rule_02_only_a_list_that_its_user_wrote_for_its_place_leads_to_another_host() {
    let desk = desk();
    let nodes = format!("n0,{},n2", address(&desk, "n1"));
    desk.ok(&format!("create archive mine --nodes {nodes} --code 3,2"));
    // Whoever connects leaves a trace.
    let traced = desk.by_ssh("traced", &format!("touch trace; {LOCAL}"));
    let list = fs::read_to_string(desk.path("mine/nodes")).unwrap();
    let bare: String = list.lines().take(3).map(|line| format!("{line}\n")).collect();
    // The right path shows nothing: whoever has something unpacked knows where.
    fs::rename(desk.path("mine"), desk.path("moved")).unwrap();
    for (trap, text) in [("copied", list.clone()), ("bare", bare), ("mine", list.clone())] {
        fs::create_dir(desk.path(trap)).unwrap();
        let directory = fs::File::open(desk.path(trap)).unwrap();
        directory.set_permissions(fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(desk.path(trap).join("nodes"), text).unwrap();
        for verb in ["ls T", "status T", "gc T", "put T x ssh", "check T"] {
            traced.run(&verb.replace(" T", &format!(" {trap}")));
            assert!(!desk.path("trace").exists(), "{trap} {verb}");
        }
    }
    // The directory itself may be moved.
    traced.ok("ls moved");
    assert!(desk.path("trace").exists());
    fs::remove_dir_all(desk.path("mine")).unwrap();
    desk.ok(&format!("node attach mine --nodes {nodes}"));
    desk.ok("ls mine");
}

#[test]
fn a_healthy_node_on_another_host_is_never_filled() {
    let desk = desk();
    let far = |name: &str| address(&desk, name);
    fs::write(desk.path("image"), noise(3, 400_000)).unwrap();
    let nodes = format!("n0,{},n2,{}", far("n1"), far("n3"));
    desk.ok(&format!("create archive a --nodes {nodes} --code 3,2"));
    desk.fails(
        "create archive b --nodes ssh://vault/x,n8,ssh://vault/x --code 3,2",
        1,
        &["ssh://vault/x"],
    );
    desk.ok("put a image image");
    let whole = |desk: &Desk| {
        desk.ok("check a");
        desk.ok("get a image --output back");
        assert_eq!(fs::read(desk.path("image")).unwrap(), fs::read(desk.path("back")).unwrap());
        fs::remove_file(desk.path("back")).unwrap();
    };
    // Another spelling of an address is another connection.
    let spelled = far("n3").replace("ssh://vault/", "ssh://vault:22/");
    for to in [far("n3"), spelled, far("n1")] {
        desk.fails(&format!("node replace a 3 {to}"), 1, &["is there, and whole"]);
    }
    desk.fails(&format!("node replace a 0 {}", far("n3")), 1, &["is there, and whole"]);
    whole(&desk);
    // Node 2 is lost: the directories of the others are nothing to fill.
    fs::rename(desk.path("n2"), desk.path("away")).unwrap();
    for (to, number) in [(far("n3"), 3), (far("n1"), 1), (far("n0"), 0)] {
        let why = format!("node {number}, which counts");
        desk.fails(&format!("node replace a 2 {to}"), 1, &[&why]);
    }
    // Nor are strangers'.
    desk.ok("create archive other");
    desk.fails(&format!("node replace a 2 {}", far("other")), 1, &["not empty"]);
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/letter"), "dear all").unwrap();
    desk.fails(&format!("node replace a 2 {}", far("home")), 1, &["not empty"]);
    assert!(desk.path("home/letter").exists());
    fs::rename(desk.path("away"), desk.path("n2")).unwrap();
    whole(&desk);
}

/// A connection to this directory breaks when it has carried so many bytes.
fn broken(directory: &str, bytes: u64) -> String {
    format!(
        "case \"$*\" in *{directory}*) stdbuf -o0 head -c {bytes} | sh -c \"$last\" ;; *) {LOCAL} ;; esac"
    )
}

#[test]
fn the_filling_of_a_far_node_that_is_cut_off_goes_on() {
    let desk = desk();
    fs::write(desk.path("image"), noise(3, 6_000_000)).unwrap();
    let there = |name: &str| format!("ssh://attic{}", desk.path(name).display());
    desk.ok(&format!("create archive a --nodes n0,{},n2 --code 3,2", address(&desk, "n1")));
    desk.ok("put a image image");
    for number in [1, 2] {
        fs::remove_dir_all(desk.path(&format!("n{number}"))).unwrap();
        let (to, mut cut) = (format!("new{number}"), 0);
        let replace = format!("node replace a {number} {}", there(&to));
        for bytes in (6..26).map(|n| 1u64 << n) {
            let said = desk.by_ssh("breaks", &broken(&to, bytes)).run(&replace);
            if said.status.success() {
                break;
            }
            assert_eq!(said.status.code(), Some(1), "after {bytes} bytes: {said:?}");
            cut += u32::from(desk.path(&to).join("rebuild").exists());
        }
        assert!(cut > 2, "{cut}");
        desk.ok("check a");
        // All units of the others and of this one are whole.
        assert!(desk.ok("node rebuild a").contains(" 0 bad, 0 made anew"));
        assert!(!desk.path(&to).join("rebuild").exists());
    }
    desk.ok("get a image --output back");
    assert_eq!(fs::read(desk.path("image")).unwrap(), fs::read(desk.path("back")).unwrap());
}

#[test]
fn a_far_node_whose_host_fails_in_the_middle_costs_one_node_and_no_data() {
    let desk = desk();
    fs::write(desk.path("first"), noise(3, 2_000_000)).unwrap();
    fs::write(desk.path("next"), noise(4, 2_000_000)).unwrap();
    let there = format!("ssh://attic{}", desk.path("n1").display());
    desk.ok(&format!("create archive a --nodes n0,{there},n2,n3 --code 3,2"));
    desk.ok("put a first first");
    let same = |desk: &Desk, name: &str, kept: &str| {
        desk.ok(&format!("get a {name} --output back"));
        assert_eq!(fs::read(desk.path(kept)).unwrap(), fs::read(desk.path("back")).unwrap());
        fs::remove_file(desk.path("back")).unwrap();
    };
    let mut left_out = 0;
    for (n, bytes) in (8..24).map(|n| 1u64 << n).enumerate() {
        // The other end is killed when it got so much: its locks end with it, and nothing else of it is done.
        let script = format!(
            "case \"$*\" in *attic*) pid=$(mktemp); {{ stdbuf -o0 head -c {bytes}; kill -9 $(cat $pid); }} \
             | sh -c \"echo \\$\\$ > $pid; exec $last\" ;; *) {LOCAL} ;; esac"
        );
        let breaks = desk.by_ssh("breaks", &script);
        for verb in [&*format!("put a next{n} next"), "gc a --trash 0", "node rebuild a"] {
            let said = breaks.run(verb);
            let is_told = said.status.success() || said.status.code() == Some(1);
            assert!(is_told && !said.err.contains("panicked"), "{verb}: {said:?}");
            if said.status.success() && verb.starts_with("put") {
                same(&desk, &format!("next{n}"), "next");
            }
            same(&desk, "first", "first");
        }
        // Whole again, by its own directory if it missed something.
        let said = desk.run(&format!("node replace a 1 {there}"));
        assert!(said.status.success() || said.err.contains("is there, and whole"), "{said:?}");
        left_out += u32::from(said.status.success());
        desk.ok("check a");
    }
    assert!(left_out > 3, "{left_out}");
    assert!(desk.ok("node rebuild a").contains(" 0 bad, 0 made anew"));
}

#[test]
fn an_archive_goes_on_without_a_host_as_far_as_its_code_allows_and_says_so() {
    let desk = desk();
    fs::write(desk.path("image"), noise(3, 400_000)).unwrap();
    let there = format!("ssh://attic{}", desk.path("n1").display());
    desk.ok(&format!("create archive a --nodes n0,{there},n2,n3 --code 3,2"));
    desk.ok(&format!("create archive b --nodes m0,{},m2 --code 3,2", there.replace("n1", "m1")));
    desk.ok("put a image image");
    desk.ok("put b image image");
    let down = desk.by_ssh(
        "down",
        &format!("case \"$*\" in *attic*) echo no route >&2; exit 255 ;; *) {LOCAL} ;; esac"),
    );
    // Three of four nodes are enough for a stripe of three.
    down.ok("put a again image");
    let said = down.run("put b again image");
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(said.err.contains("--degraded") || said.err.contains("node replace"), "{said:?}");
    for verb in ["status a", "put a third image"] {
        let said = down.run(verb);
        assert!(
            said.status.success() && format!("{said:?}").contains("no route"),
            "{verb}: {said:?}"
        );
    }
    // Another archive's node behind the address is no node of this one.
    let swapped =
        desk.by_ssh("swapped", &format!("last=$(echo \"$last\" | sed s/n1/m1/); {LOCAL}"));
    swapped.ok("get a image --output back");
    assert!(swapped.ok("status a").contains("it is another node"));
    desk.ok(&format!("node replace a 1 {there}"));
    desk.ok("check a");
}

#[test]
fn two_hosts_do_not_store_into_one_archive_at_once() {
    let desk = desk();
    fs::write(desk.path("image"), noise(3, 400_000)).unwrap();
    let nodes = format!(
        "{},{},{},{}",
        address(&desk, "n0"),
        address(&desk, "n1"),
        address(&desk, "n2"),
        address(&desk, "n3")
    );
    desk.ok(&format!("create archive a --nodes {nodes} --code 3,2"));
    desk.ok(&format!("node attach b --nodes {nodes}"));
    desk.ok("put a image image");
    let mut command = desk.command("put a slow");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut first = command.spawn().unwrap();
    first.stdin.as_mut().unwrap().write_all(&noise(5, 3_000_000)).unwrap();
    let mut command = desk.command("put b last image");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let second = command.spawn().unwrap();
    // Readers wait for neither.
    desk.ok("get b image --output back");
    fs::remove_file(desk.path("back")).unwrap();
    // The locks of a killed process end with its connections, and then the second one stores.
    first.kill().unwrap();
    first.wait().unwrap();
    let said = second.wait_with_output().unwrap();
    assert!(said.status.success(), "{said:?}");
    desk.ok("check a");
    desk.ok("get a last --output back");
    assert_eq!(fs::read(desk.path("image")).unwrap(), fs::read(desk.path("back")).unwrap());
}

#[test]
fn a_silent_other_host_is_left_after_a_while() {
    let desk = desk();
    desk.ok("create archive a");
    let mut command = desk.command("accept a --idle 1s");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = command.spawn().unwrap();
    let input = child.stdin.take().unwrap();
    let status = child.wait().unwrap();
    drop(input);
    assert_eq!(status.code(), Some(1));
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "onefold: the other host was silent for too long (--idle 1s)\n");
}

/// A client that may read, and asks for one lock, shared; gives whether it got it. It says nothing more,
/// and goes when the other end does.
fn holder(desk: &Desk, name: &str) -> (Child, bool) {
    let mut command = desk.command("accept a --right read --idle 4s");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut frame = |before: usize| -> std::io::Result<Vec<u8>> {
        let mut head = vec![0; before + 4];
        output.read_exact(&mut head)?;
        let mut body = vec![0; u32::from_le_bytes(head[before..].try_into().unwrap()) as usize];
        output.read_exact(&mut body)?;
        Ok(body)
    };
    frame(16).unwrap();
    let length = (14 + name.len() as u32).to_le_bytes();
    let asked =
        [&length[..], &[1, 0, 0, 0, 0, 0, 0, 0, 6, 5, 0, 0, 0, 2], name.as_bytes()].concat();
    input.write_all(&asked).unwrap();
    let is_held = frame(0).is_ok_and(|answer| answer[8] == 0);
    child.stdin = Some(input);
    (child, is_held)
}

/// Clients that may read take turns at the lock for which a backup waits, so that one of them always
/// asks for it.
#[test]
fn rule_46_no_number_of_readers_stops_who_writes() {
    let desk = desk();
    desk.ok("create archive a");
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/f"), noise(1, 10_000)).unwrap();
    for name in ["lock-writer", "lock-gc", "lock-importer", "label"] {
        let (mut child, is_held) = holder(&desk, name);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!is_held, "{name}");
    }
    let is_over = AtomicBool::new(false);
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for n in 0..3 {
            let (desk, is_over, ended) = (&desk, &is_over, &ended);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(1_300 * n));
                while !is_over.load(Relaxed) {
                    let (mut child, is_held) = holder(desk, "lock-commit");
                    // `wait` would end its input.
                    let _input = child.stdin.take();
                    let status = child.wait().unwrap();
                    ended.fetch_add(usize::from(is_held && status.code() == Some(1)), Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(2));
        let mut backup = desk.command("backup a home --set h").spawn().unwrap();
        let begun = Instant::now();
        let mut status = None;
        while status.is_none() && begun.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(50));
            status = backup.try_wait().unwrap();
        }
        is_over.store(true, Relaxed);
        let _ = backup.kill();
        let _ = backup.wait();
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    });
    assert!(ended.load(Relaxed) > 0, "nobody held it for too long");
}

/// A server of OpenSSH on the loopback address, ended when it is forgotten.
struct Sshd {
    child: Child,
    port: u16,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where OpenSSH's server is, and its libraries if it is not installed.
fn sshd() -> Option<(PathBuf, PathBuf)> {
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../tools/sshd");
    let places = ["/usr/sbin/sshd".into(), unpacked.join("usr/sbin/sshd")];
    let found = places.into_iter().find(|place: &PathBuf| place.exists())?;
    let libraries = if cfg!(target_arch = "aarch64") { "aarch64" } else { "x86_64" };
    Some((found, unpacked.join(format!("usr/lib/{libraries}-linux-gnu"))))
}

/// Runs it; whoever has the key `NAME` may run the command.
fn run_sshd(desk: &Desk, keys: &[(&str, &str)]) -> Option<Sshd> {
    let ((program, libraries), Some(_)) = (sshd()?, which("ssh")) else { return None };
    let mut lines = String::new();
    for (name, command) in [("host", "")].iter().chain(keys) {
        let file = desk.path(name);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-t", "ed25519", "-N", "", "-f"])
            .arg(&file)
            .status();
        assert!(made.ok()?.success());
        let public = fs::read_to_string(file.with_extension("pub")).unwrap();
        match *command {
            _ if *name == "host" => {}
            "" => lines += &public,
            command => lines += &format!("command=\"{command}\",restrict {public}"),
        }
    }
    fs::write(desk.path("authorized"), lines).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let path = std::env::var("PATH").unwrap();
    let folder = desk.command("ls").get_program().to_owned();
    let folder = Path::new(&folder).parent().unwrap().to_owned();
    let configuration = format!(
        "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\n\
         UsePAM no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n\
         SetEnv PATH={}:{path} XDG_STATE_HOME={}\n",
        desk.path("host").display(),
        desk.path("authorized").display(),
        folder.display(),
        desk.path("state").display()
    );
    fs::write(desk.path("sshd.conf"), configuration).unwrap();
    let run = format!("exec {} -D -e -f {}", program.display(), desk.path("sshd.conf").display());
    let mut command = match rustix::process::geteuid().is_root() {
        false => Command::new("sh"),
        // The superuser's server wants a user and a directory of its own, which this machine may lack.
        true => {
            let users = fs::read_to_string("/etc/passwd").unwrap();
            let own = "sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin\n";
            let users = if users.contains("\nsshd:") { users } else { users + own };
            fs::write(desk.path("users"), users).unwrap();
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh"]);
            command
        }
    };
    let run = match rustix::process::geteuid().is_root() {
        false => run,
        true => format!(
            "mount --bind {} /etc/passwd && mount -t tmpfs none /run && mkdir -m 755 /run/sshd && {run}",
            desk.path("users").display()
        ),
    };
    command.args(["-c", &run]).env("LD_LIBRARY_PATH", libraries);
    let log = fs::File::create(desk.path("sshd.log")).unwrap();
    let child = command.stdin(Stdio::null()).stderr(log).spawn().ok()?;
    let mut sshd = Sshd { child, port };
    let begun = Instant::now();
    while !fs::read_to_string(desk.path("sshd.log")).unwrap().contains("listening") {
        let is_over = sshd.child.try_wait().unwrap().is_some();
        if is_over || begun.elapsed() > Duration::from_secs(10) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(sshd)
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|at| at.join(program)).find(|at| at.exists())
}

/// The desk with OpenSSH's client and this key.
fn with_key(desk: &Desk, key: &str) -> Desk {
    let options = format!(
        "exec ssh -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o IdentitiesOnly=yes -i {} \"$@\"",
        desk.path(key).display()
    );
    desk.by_ssh(&format!("ssh-{key}"), &options)
}

#[test]
fn openssh_carries_archives_and_its_keys_decide() {
    let desk = Desk::new();
    let at = |name: &str| desk.path(name).display().to_string();
    let keys = [
        ("all", String::new()),
        ("own", format!("onefold accept {} --new", at("own archive").replace(' ', "\\ "))),
        ("look", format!("onefold accept {} --right read", at("b"))),
    ];
    let keys: Vec<(&str, &str)> = keys.iter().map(|(name, command)| (*name, &**command)).collect();
    let Some(sshd) = run_sshd(&desk, &keys) else {
        println!("NOT TESTED: OpenSSH's client and server are missing (cargo xtask test packages)");
        return;
    };
    let address = |name: &str| format!("ssh://127.0.0.1:{}{}", sshd.port, at(name));
    fs::create_dir(desk.path("home")).unwrap();
    fs::write(desk.path("home/file"), noise(1, 3_000_000)).unwrap();

    // A key for all commands.
    let (all, b) = (with_key(&desk, "all"), address("b"));
    all.ok(&format!("create archive {b}"));
    all.ok(&format!("backup {b} home --set home"));
    all.ok(&format!("backup {b} home --set home"));
    all.ok(&format!("restore {b} home -C back"));
    let back = desk.path("back").join(desk.path("home/file").strip_prefix("/").unwrap());
    assert_eq!(fs::read(back).unwrap(), noise(1, 3_000_000));
    all.ok(&format!("forget {b} --keep-last 1 --set home"));
    all.ok(&format!("gc {b} --trash 0"));
    all.ok(&format!("check {b}"));
    desk.ok("scrub b");

    // One for one archive, which it makes. The path has a space.
    let own = with_key(&desk, "own");
    let new = format!("ssh://127.0.0.1:{}{}", sshd.port, at("own archive"));
    let mut create = own.command("create archive");
    assert!(create.arg(&new).status().unwrap().success());
    let mut put = own.command("put");
    assert!(put.args([&*new, "file", "home/file"]).status().unwrap().success());
    own.fails(&format!("ls {b}"), 1, &["this key is for", "own archive"]);

    // One that may read.
    let look = with_key(&desk, "look");
    assert!(look.ok(&format!("snapshots {b}")).contains("home"));
    look.fails(&format!("put {b} x home/file"), 1, &["read it, and change nothing"]);

    // A stranger's key, and a command that a key has not.
    let stranger = with_key(&desk, "host");
    stranger.fails(&format!("ls {b}"), 1, &[&b, "can't be reached", "Permission denied"]);
    let look = desk.path("ssh-look").display().to_string();
    let port = sshd.port.to_string();
    let said = Command::new(look).args(["-p", &port, "127.0.0.1", "id"]).output().unwrap();
    assert!(!said.status.success() && !String::from_utf8_lossy(&said.stdout).contains("uid="));

    // A client that vanishes.
    let mut child = putting(&all, &b);
    child.kill().unwrap();
    child.wait().unwrap();
    soon(&desk, "put b other home/file --no-wait");
    desk.ok("check b");
}
