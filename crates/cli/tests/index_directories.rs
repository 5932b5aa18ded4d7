//! `create archive --fast` and `index`: the chunk index on another disk, which may be lost, be somebody
//! else's, or belong to the archive of which this one is a copy.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::fs::{PermissionsExt, symlink},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use support::{Desk, noise};

/// An archive `a` whose index is in `fast`, and has entries.
fn with_index(desk: &Desk) {
    desk.ok("create archive a --fast fast");
    fs::write(desk.path("file"), noise(1, 2_000_000)).unwrap();
    desk.ok("put a one file");
    // Few chunks are imported by a repair alone.
    desk.ok("repair a");
    assert!(!index_files(desk, "fast").is_empty());
    assert_eq!(index_files(desk, "a"), Vec::<String>::new());
}

fn index_files(desk: &Desk, name: &str) -> Vec<String> {
    let names = fs::read_dir(desk.path(name)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("index-")).collect()
}

fn answer(desk: &Desk, arguments: &str) -> Value {
    serde_json::from_str(&desk.ok(arguments)).unwrap()
}

/// Stores the same content again, none of which is new.
fn is_found(desk: &Desk, archive: &str) {
    let said = answer(desk, &format!("put {archive} again file --json"));
    assert_eq!(said["new_bytes"], 0, "{said}");
    desk.ok(&format!("check {archive}"));
    assert_eq!(answer(desk, &format!("status {archive} --json"))["index_lost_files"], 0);
}

#[test]
fn an_index_on_another_disk_is_used_and_may_be_lost() {
    let desk = Desk::new();
    assert!(desk.ok("create archive b --fast other").contains("chunk index in other"));
    with_index(&desk);
    let mode = fs::metadata(desk.path("fast")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let status = answer(&desk, "status a --json");
    let fast = fs::canonicalize(desk.path("fast")).unwrap().display().to_string();
    assert_eq!(status["index_directory"], *fast);
    assert_eq!(status["index_directory_unused"], Value::Null);
    assert!(status["index_entries"].as_u64() > Some(100));
    assert!(desk.ok("status a").contains(&fast));
    desk.ok("status a --check");
    is_found(&desk, "a");
    // Nothing is mounted: an empty directory stands there.
    fs::rename(desk.path("fast"), desk.path("away")).unwrap();
    fs::create_dir(desk.path("fast")).unwrap();
    let said = desk.fails("status a --check", 1, &["need an operator"]);
    assert!(said.out.contains("nothing is mounted") && said.out.contains("lost"), "{}", said.out);
    assert!(desk.ok("check a").contains("the chunk index lost"));
    desk.ok("get a one --output back");
    assert!(fs::read(desk.path("back")).unwrap() == fs::read(desk.path("file")).unwrap());
    let said = desk.run("put a two file --json");
    assert!(said.status.success(), "{said:?}");
    for told in ["works without its index directory", "a --beside-data` forgets", "makes it anew"] {
        assert_eq!(said.err.matches(told).count(), 1, "{said:?}");
    }
    let put: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(put["new_bytes"], 0, "{put}");
    assert!(!index_files(&desk, "a").is_empty());
    assert_eq!(fs::read_dir(desk.path("fast")).unwrap().count(), 0);
    // It is back, with files that nothing names any more.
    let said = desk.run("repair a");
    let told = said.err.matches("works without its index directory").count();
    assert!(said.status.success() && told == 1, "it is told once: {said:?}");
    fs::remove_dir(desk.path("fast")).unwrap();
    fs::rename(desk.path("away"), desk.path("fast")).unwrap();
    desk.ok("status a --check");
    is_found(&desk, "a");
    desk.ok("index a --fast fast");
    assert_eq!((index_files(&desk, "a").len(), index_files(&desk, "fast").len()), (0, 1));
    is_found(&desk, "a");
    // An archive without the file `fast`, as of a copy of its own directory.
    fs::remove_file(desk.path("a/fast")).unwrap();
    let said = desk.run("put a three file --json");
    assert!(said.status.success() && said.err.contains("makes it anew"), "{said:?}");
    let put: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(put["new_bytes"], 0, "{put}");
}

#[test]
fn an_index_goes_there_and_back() {
    let desk = Desk::new();
    with_index(&desk);
    desk.fails("index a", 2, &["--fast"]);
    let said = answer(&desk, "index a --fast other --json");
    assert!(said["index_entries"].as_u64() > Some(100), "{said}");
    assert_eq!(fs::read_dir(desk.path("fast")).unwrap().count(), 0);
    assert_eq!(index_files(&desk, "other").len(), 1);
    is_found(&desk, "a");
    assert!(desk.ok("index a --beside-data").contains("beside the data"));
    assert_eq!(fs::read_dir(desk.path("other")).unwrap().count(), 0);
    assert!(!desk.path("a/fast").exists());
    is_found(&desk, "a");
    assert_eq!(answer(&desk, "status a --json")["index_directory"], Value::Null);
    // Away from a disk that is gone.
    desk.ok("index a --fast other");
    fs::remove_dir_all(desk.path("other")).unwrap();
    desk.ok("index a --beside-data");
    is_found(&desk, "a");
}

#[test]
fn a_directory_of_something_else_is_not_taken() {
    let desk = Desk::new();
    with_index(&desk);
    desk.fails("create archive b --fast fast", 1, &["not empty"]);
    assert!(!desk.path("b").exists());
    desk.ok("create archive b");
    desk.fails("index b --fast fast", 1, &["another archive"]);
    desk.fails("index a --fast b", 1, &["not empty"]);
    desk.fails("index a --fast a/within", 1, &["within one another"]);
    desk.fails("create archive fast/c --fast fast", 1, &["within one another"]);
    // A link in its place is not followed.
    fs::rename(desk.path("fast"), desk.path("moved")).unwrap();
    symlink(desk.path("moved"), desk.path("fast")).unwrap();
    assert!(desk.run("put a two file").err.contains("is a link"));
    fs::remove_file(desk.path("fast")).unwrap();
    fs::rename(desk.path("moved"), desk.path("fast")).unwrap();
    // A copy of the archive has no index directory, and leaves that of the first one as it is.
    let kept = index_files(&desk, "fast");
    assert!(
        Command::new("cp")
            .args(["-a", "a", "copy"])
            .current_dir(desk.path("."))
            .status()
            .unwrap()
            .success()
    );
    let said = desk.run("put copy again file --json");
    assert!(said.status.success() && said.err.contains("is a copy"), "{said:?}");
    assert!(desk.run("repair copy").status.success());
    assert_eq!(index_files(&desk, "fast"), kept);
    is_found(&desk, "a");
    desk.ok("index copy --fast of-the-copy");
    is_found(&desk, "copy");
    is_found(&desk, "a");
}

#[test]
fn several_nodes_and_servers_keep_their_index() {
    let desk = Desk::new();
    desk.fails("create archive n --nodes n0,n1,n2 --code 3,2 --fast fast", 2, &["--fast"]);
    desk.ok("create archive n --nodes n0,n1,n2 --code 3,2");
    desk.fails("index n --fast fast", 1, &["stays on them"]);
    with_index(&desk);
    let serving = desk.serve("a");
    desk.fails("index a --beside-data", 1, &["stop it first"]);
    serving.terminate();
    desk.ok("index a --beside-data");
}

#[test]
fn a_move_that_is_killed_costs_time_alone() {
    let desk = Desk::new();
    with_index(&desk);
    for n in 0..12 {
        // Directories of killed moves are this archive's, and are taken again.
        let to = format!("f{}", n % 3);
        let arguments = match n % 4 {
            3 => "index a --beside-data".to_owned(),
            _ => format!("index a --fast {to}"),
        };
        let mut child =
            desk.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 * n));
        // It may have ended.
        let _ = child.kill();
        child.wait().unwrap();
        let said = desk.run("put a again file --json");
        assert!(said.status.success(), "{arguments}: {said:?}");
        let put: Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!(put["new_bytes"], 0, "{arguments}: {put}");
        is_found(&desk, "a");
    }
    desk.ok("index a --fast last");
    is_found(&desk, "a");
}

#[test]
fn a_put_that_waited_for_a_move_finds_the_index_in_its_new_place() {
    let desk = Desk::new();
    with_index(&desk);
    let mut first = desk
        .command("put a piped")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // A pipe holds less: it stores.
    let mut input = first.stdin.take().unwrap();
    input.write_all(&noise(2, 1_000_000)).unwrap();
    let mut moving = desk.command("index a --fast other").stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let mut second = desk
        .command("put a again file --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut waits, mut errors) = (String::new(), BufReader::new(second.stderr.take().unwrap()));
    while !waits.contains("waiting for it to end") {
        assert!(errors.read_line(&mut waits).unwrap() > 0, "{waits}");
    }
    drop(input);
    assert!(first.wait().unwrap().success() && moving.wait().unwrap().success());
    let said = second.wait_with_output().unwrap();
    errors.read_to_string(&mut waits).unwrap();
    assert!(said.status.success() && !waits.contains("anew"), "{waits}");
    let put: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(put["new_bytes"], 0, "{put}");
    assert_eq!((index_files(&desk, "a").len(), index_files(&desk, "fast").len()), (0, 0));
    assert!(!index_files(&desk, "other").is_empty());
    is_found(&desk, "a");
}
