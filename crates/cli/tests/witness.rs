//! `--witness`: a program that keeps elsewhere in which state block stores are, well behaved and hostile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use support::Desk;

/// A program of this desk.
fn program(desk: &Desk, name: &str, text: &str) -> PathBuf {
    let path = desk.path(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    let file = fs::File::open(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// The script that is packaged, with options, by a directory of this desk.
fn keeps(desk: &Desk, name: &str, options: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/onefold-witness");
    let directory = desk.path("elsewhere");
    fs::create_dir_all(&directory).unwrap();
    let (script, directory) = (script.display(), directory.display());
    program(desk, name, &format!("exec sh {script} {directory} {options}"))
}

/// The script's file of the one store. What is being written is called `.ID.PID.new`.
fn file_of(desk: &Desk) -> Option<PathBuf> {
    let files = fs::read_dir(desk.path("elsewhere")).unwrap();
    files.map(|file| file.unwrap().path()).find(|path| path.extension().is_none())
}

/// The state of the one store as the script knows it.
fn known(desk: &Desk) -> Option<(u64, String)> {
    let line = fs::read_to_string(file_of(desk)?).ok()?;
    let (sequence, tag) = line.trim_end().split_once(' ')?;
    Some((sequence.parse().unwrap(), tag.to_owned()))
}

/// Runs a verb of which the witness hears for the first time.
fn first(desk: &Desk, arguments: &str) {
    let said = desk.run(arguments);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
    assert!(said.err.contains("the witness knows nothing of the store"), "{said:?}");
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(40);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Copies the state directory of this user, and what else is there to be rolled back.
fn copied(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copied(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Host and disk are rolled back together: the state directory knows nothing newer than the image.
fn rolled_back(key: &str, verbs: &[&str]) {
    let desk = Desk::new();
    let witness = keeps(&desk, "witness", "");
    let config = format!("witness = '{}'\n", witness.display());
    fs::write(desk.path("config"), config).unwrap();
    let by = format!("{key} --witness {}", witness.display());
    desk.ok(&format!("create block disk --size 64M {key}"));
    let _ = fs::create_dir(desk.path("state"));
    first(&desk, &format!("volume create disk vm1 --size 1M {key} --config config"));
    fs::copy(desk.path("disk"), desk.path("older")).unwrap();
    copied(&desk.path("state"), &desk.path("state.older"));
    for name in ["vm2", "vm3"] {
        desk.ok(&format!("volume create disk {name} --size 1M {by}"));
    }
    desk.ok(&format!("check disk {by}"));
    let back = || {
        fs::write(desk.path("disk"), fs::read(desk.path("older")).unwrap()).unwrap();
        copied(&desk.path("state.older"), &desk.path("state"));
    };
    back();
    for verb in verbs {
        desk.fails(&format!("{verb} {by}"), 1, &["older", "the witness knows", "--accept-older"]);
    }
    desk.fails(&format!("volume list disk {key} --config config"), 1, &["the witness"]);
    // Without it nobody notices.
    desk.ok(&format!("volume list disk {key}"));
    // The operator takes it, and then it counts.
    desk.ok(&format!("volume create disk vm4 --size 1M {by} --accept-older"));
    desk.ok(&format!("volume list disk {by}"));
    // A server tells it of its end.
    let before = known(&desk).unwrap();
    desk.serve(&format!("disk {by}")).terminate();
    let after = known(&desk).unwrap();
    assert!(after.0 > before.0 && after.1 != before.1, "{before:?} {after:?}");
    desk.ok(&format!("volume list disk {by}"));
    // A history that has the same number, and another tag.
    let id = file_of(&desk).unwrap();
    let newest = (after.0 + 1..after.0 + 4).find(|sequence| {
        fs::write(&id, format!("{sequence} {}\n", "0".repeat(32))).unwrap();
        let said = desk.run(&format!("volume list disk {by}"));
        said.err.contains("is not the one that the witness knows")
    });
    assert!(newest.is_some());
}

#[test]
fn rule_43_an_image_that_was_rolled_back_with_its_host_is_refused_thanks_to_the_witness() {
    let verbs = [
        "serve disk",
        "volume list disk",
        "check disk",
        "repair disk",
        "volume create disk vm4 --size 1M",
        "key add disk --new other",
    ];
    rolled_back("--key key", &verbs);
    // Whoever has no keys notices mistakes, at least.
    rolled_back("", &verbs[..5]);
}

#[test]
fn rule_43_a_witness_that_fails_lies_or_hangs_refuses_an_opening_in_one_sentence() {
    let desk = Desk::new();
    desk.ok("create block disk --size 64M");
    let tag = "0".repeat(32);
    for (n, (text, says)) in [
        ("exit 1", "failure"),
        ("echo none; exit 3", "failure"),
        ("printf 'no \\033[31mroute\\n\\n' >&2; exit 255", "no [31mroute"),
        ("cat /dev/zero", "too long"),
        ("cat /dev/zero >&2; echo none", "none"),
        ("true", "its answer is not"),
        ("printf '\\033]0;x\\007'", "its answer is not"),
        ("echo 1", "its answer is not"),
        (&format!("echo 1 {tag} 2"), "its answer is not"),
        (&format!("echo 99999999999999999999 {tag}"), "its answer is not"),
        (&format!("echo 18446744073709551615 {tag}"), "older"),
        ("sleep 100", "within 20 s"),
    ]
    .into_iter()
    .enumerate()
    {
        let witness = program(&desk, &format!("witness{n}"), text);
        let verb = format!("volume list disk --witness {}", witness.display());
        if says == "none" {
            // It says too much to nobody, and answers.
            let said = desk.run(&verb);
            assert!(said.status.success(), "{said:?}");
            continue;
        }
        let said = desk.fails(&verb, 1, &["witness", says, "--accept-older"]);
        assert!(said.err.len() < 1500 && !said.err.contains('\u{1b}'), "{said:?}");
        desk.ok(&format!("{verb} --accept-older"));
    }
    desk.fails("volume list disk --witness nowhere", 1, &["whole path"]);
    let none = desk.path("none");
    desk.fails(&format!("serve disk --witness {}", none.display()), 1, &["none"]);
}

#[test]
fn rule_43_a_server_that_is_killed_at_any_moment_is_never_refused_by_an_honest_witness() {
    let desk = Desk::new();
    let witness = keeps(&desk, "witness", "");
    let by = format!("--witness {}", witness.display());
    desk.ok("create block disk --size 64M");
    let mut told = 0;
    for n in 0..6 {
        let serving = desk.serve(&format!("disk {by}"));
        desk.ok(&format!("volume create disk vm{n} --size 1M"));
        if n % 2 == 0 {
            wait_until("it is told", || known(&desk).is_some_and(|(state, _)| state > told));
        }
        told = known(&desk).map_or(0, |(state, _)| state);
        desk.ok(&format!("volume create disk other{n} --size 1M"));
        std::thread::sleep(Duration::from_millis(150 * n));
        serving.kill();
    }
    assert_eq!(desk.ok(&format!("volume list disk --json {by}")).matches("\"name\"").count(), 12);
}

#[test]
fn rule_43_writes_go_on_while_the_witness_fails_and_the_status_says_so() {
    let desk = Desk::new();
    let keeps = keeps(&desk, "keeps", "");
    let bad = desk.path("bad");
    let text = format!(
        "read line; case $line in put*) [ ! -e {} ] || {{ echo gone >&2; exit 1; }};; esac\n\
         echo \"$line\" | {}",
        bad.display(),
        keeps.display()
    );
    let witness = program(&desk, "witness", &text);
    desk.ok("create block disk --size 64M");
    fs::write(&bad, "").unwrap();
    let serving = desk.serve(&format!("disk --witness {}", witness.display()));
    let of = || desk.status("disk")["server"]["witness"].clone();
    wait_until("it failed", || of()["failures"].as_u64() > Some(0));
    desk.ok("volume create disk vm1 --size 1M");
    let shown = of();
    assert!(shown["failure"].as_str().unwrap().contains("gone"), "{shown}");
    assert_eq!((&shown["told_state"], &shown["taken"]), (&serde_json::Value::Null, &0.into()));
    assert!(serving.log().contains("the witness does not know the newest state"));
    assert!(desk.ok("status disk").contains("it does not know the newest one"));
    fs::remove_file(&bad).unwrap();
    wait_until("it is told", || of()["taken"].as_u64() > Some(0));
    wait_until("it says so", || serving.log().contains("takes the store's states again"));
    assert_eq!(of()["failure"], serde_json::Value::Null);
    serving.terminate();
    desk.ok(&format!("check disk --witness {}", witness.display()));
    // What is not taken is told by verbs, too, and keeps nobody from their work.
    fs::write(&bad, "").unwrap();
    let verb = format!("volume create disk vm2 --size 1M --witness {}", witness.display());
    let said = desk.run(&verb);
    assert!(said.status.success() && said.err.contains("warning: the witness"), "{said:?}");
}

#[test]
fn rule_43_a_witness_that_takes_no_lower_number_is_not_talked_out_of_what_it_knows() {
    let desk = Desk::new();
    let witness = keeps(&desk, "witness", "rising");
    let by = format!("--witness {}", witness.display());
    desk.ok("create block disk --size 64M");
    fs::copy(desk.path("disk"), desk.path("older")).unwrap();
    first(&desk, &format!("volume create disk vm1 --size 1M {by}"));
    for name in ["vm2", "vm3"] {
        desk.ok(&format!("volume create disk {name} --size 1M {by}"));
    }
    let before = known(&desk);
    fs::copy(desk.path("older"), desk.path("disk")).unwrap();
    let said = desk.run(&format!("volume create disk vm1 --size 1M {by} --accept-older"));
    assert!(said.status.success() && said.err.contains("takes no lower number"), "{said:?}");
    assert_eq!(known(&desk), before);
    desk.fails(&format!("volume list disk {by}"), 1, &["older"]);
}

/// A key that may ask the packaged script, and nothing else, gives it a request without an end.
#[test]
fn rule_43_the_packaged_witness_reads_no_more_than_a_request() {
    use std::{io::Write, process::Stdio};
    let desk = Desk::new();
    let mut command = std::process::Command::new(keeps(&desk, "witness", ""));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let ends = Instant::now() + Duration::from_secs(60);
    while input.write_all(&[b'a'; 1 << 16]).is_ok() {
        assert!(Instant::now() < ends, "it reads for ever");
    }
    let said = child.wait_with_output().unwrap();
    assert_eq!(said.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&said.stderr), "onefold-witness: no request\n");
    assert!(file_of(&desk).is_none());
}

/// Gives the packaged script, with these words behind its directory, a request; what it answers, or why not.
fn asks(desk: &Desk, words: &str, request: &str) -> Result<String, String> {
    use std::{io::Write, process::Stdio};
    let mut command = std::process::Command::new(keeps(desk, "witness", words));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{request}").unwrap();
    let said = child.wait_with_output().unwrap();
    let [out, err] = [said.stdout, said.stderr].map(|text| String::from_utf8(text).unwrap());
    if said.status.success() { Ok(out) } else { Err(err) }
}

#[test]
fn rule_43_the_packaged_witness_keeps_states_of_the_stores_that_it_was_told_of() {
    let desk = Desk::new();
    let [own, other, stranger] = ["0a", "0b", "0c"].map(|byte| byte.repeat(16));
    let put = |id: &str, n: u32| format!("put {id} {n} {}", "d".repeat(32));
    let words = format!("{own} rising {other}");
    for id in [&own, &other] {
        assert_eq!(asks(&desk, &words, &put(id, 7)).unwrap(), format!("7 {}\n", "d".repeat(32)));
    }
    for request in [put(&stranger, 7), format!("get {stranger}")] {
        let why = asks(&desk, &words, &request).unwrap_err();
        assert!(why.contains("not one of those"), "{why}");
    }
    assert!(asks(&desk, &words, &put(&own, 6)).unwrap_err().contains("no lower number"));
    assert!(asks(&desk, &words, &put(&own, 8)).is_ok());
}

/// Whatever two puts do at one time, the higher number stays.
#[test]
fn rule_43_the_packaged_witness_compares_and_writes_in_one_step() {
    use rustix::fs::{FlockOperation, flock};
    let desk = Desk::new();
    let (id, tag) = ("0a".repeat(16), "d".repeat(32));
    keeps(&desk, "witness", "rising");
    let directory = fs::File::open(desk.path("elsewhere")).unwrap();
    flock(&directory, FlockOperation::LockExclusive).unwrap();
    let own = desk.path("elsewhere").join(&id);
    // What an earlier put left that was killed.
    let left = desk.path("elsewhere").join(format!(".{id}.77.new"));
    fs::write(&left, "").unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| asks(&desk, "rising", &format!("put {id} 6 {tag}")));
        std::thread::sleep(Duration::from_millis(500));
        // Another put is at work, and is done now.
        assert!(!own.exists() && left.exists());
        fs::write(&own, format!("7 {tag}\n")).unwrap();
        flock(&directory, FlockOperation::Unlock).unwrap();
        let why = late.join().unwrap().unwrap_err();
        assert!(why.contains("knows 7"), "{why}");
    });
    assert!(!left.exists());
    assert_eq!(fs::read_to_string(&own).unwrap(), format!("7 {tag}\n"));
}

#[test]
fn rule_43_the_packaged_witness_makes_no_files_without_number() {
    let desk = Desk::new();
    let id = |n: u32| format!("{n:032x}");
    let put = |n: u32| format!("put {} 7 {}", id(n), "d".repeat(32));
    assert!(asks(&desk, "", &put(0)).is_ok());
    for n in 1..1024 {
        fs::write(desk.path("elsewhere").join(id(n)), "7 d\n").unwrap();
    }
    let why = asks(&desk, "", &put(1024)).unwrap_err();
    assert!(why.contains("1024 files"), "{why}");
    // Those that it knows go on.
    assert!(asks(&desk, "", &put(0)).is_ok());
    assert_eq!(asks(&desk, "", &format!("get {}", id(2000))).unwrap(), "none\n");
}
