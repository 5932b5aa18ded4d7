//! Archives of older programs through the command: what an upgrade says, does, and refuses.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{fs, io::Write, process::Stdio};

use onefold_archive::{Archive, Format};
use onefold_backend::Directory;
use support::{Desk, noise};

/// An archive as the first program made it.
fn older(desk: &Desk) {
    let format = Format { reserve_bytes: 1 << 20, ..Format::new([1; 16], [2; 32], [3; 16]) };
    Archive::create(&Directory::create(&desk.path("a")).unwrap(), &format).unwrap();
    fs::write(desk.path("file"), noise(1, 300_000)).unwrap();
    desk.ok("put a one file");
}

fn json(said: &str) -> serde_json::Value {
    serde_json::from_str(said).unwrap()
}

#[test]
fn an_older_archive_is_upgraded_once_and_takes_snapshots_then() {
    let desk = Desk::new();
    older(&desk);
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/f"), noise(2, 100_000)).unwrap();
    desk.fails("backup a tree", 1, &["version without snapshots", "onefold upgrade"]);
    let label = fs::read(desk.path("a/label")).unwrap();
    let said = desk.ok("upgrade a --dry-run");
    assert!(said.contains("would give a: snapshots of directories"), "{said}");
    assert!(said.contains("programs that do not know these refuse it"), "{said}");
    let said = json(&desk.ok("upgrade a --dry-run --json"));
    assert_eq!((said["features"].as_array().unwrap().len(), &said["upgraded"]), (5, &false.into()));
    assert!(fs::read(desk.path("a/label")).unwrap() == label);
    let said = json(&desk.ok("upgrade a --json"));
    assert_eq!((said["features"].as_array().unwrap().len(), &said["upgraded"]), (5, &true.into()));
    desk.ok("backup a tree");
    desk.ok("check a");
    desk.ok("get a one --output out --verify");
    assert!(fs::read(desk.path("out")).unwrap() == noise(1, 300_000));
    let said = desk.ok("upgrade a");
    assert!(said.starts_with("nothing to upgrade: a has all features"), "{said}");
    // What `create` makes has all of them.
    desk.ok("create archive b");
    assert!(desk.ok("upgrade b --dry-run").starts_with("nothing to upgrade"));
    let said = json(&desk.ok("upgrade b --json"));
    assert_eq!((said["features"].as_array().unwrap().len(), &said["upgraded"]), (0, &false.into()));
}

#[test]
fn an_upgrade_names_who_has_the_archive_and_other_engines_need_none() {
    let desk = Desk::new();
    older(&desk);
    let serving = desk.serve("a");
    desk.fails("upgrade a", 1, &["is served by process", "end the server first"]);
    assert!(desk.ok("upgrade a --dry-run").contains("would give"));
    drop(serving);
    let mut put = desk
        .command("put a two")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = put.stdin.take().unwrap();
    // More than a pipe holds: the put reads it.
    input.write_all(&noise(3, 2 << 20)).unwrap();
    let said =
        desk.fails("upgrade a", 1, &["a put, a backup, a server", "an upgrade needs it alone"]);
    assert!(said.err.contains("locked by"), "{}", said.err);
    drop(input);
    assert!(put.wait().unwrap().success());
    desk.ok("upgrade a");
    desk.ok("create block disk.onefold --size 64M --preallocate none");
    desk.fails("upgrade disk.onefold", 1, &["is a block store", "it needs no upgrade"]);
    desk.fails("upgrade missing", 1, &["missing"]);
}
