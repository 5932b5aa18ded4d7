//! Backups of what can't be read whole, through the command: what is left out is counted, listed, and told
//! by the exit status.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
#![allow(clippy::disallowed_methods, reason = "nobody else is in the directory of a test")]

mod support;

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::Value;
use support::Desk;

/// A tree with a file that nobody may read; false when this process can't make a command that obeys its
/// mode.
fn plant(desk: &Desk) -> bool {
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    fs::write(desk.path("tree/open"), b"open").unwrap();
    let closed = desk.path("tree/closed");
    fs::write(&closed, b"closed").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let can = desk.run_obeying_modes("ls a").is_some();
    if !can {
        println!("NOT TESTED: root reads all, and there is no setpriv to take that away");
    }
    can
}

#[test]
fn a_dry_run_that_can_t_read_something_says_so_by_its_status_in_json_too() {
    let desk = Desk::new();
    if !plant(&desk) {
        return;
    }
    let said = desk.run_obeying_modes("backup a tree --set t --dry-run").unwrap();
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let said = desk.run_obeying_modes("backup a tree --set t --dry-run --json").unwrap();
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let counts: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(counts["left_out"].as_u64(), Some(1), "{counts}");
}

#[test]
fn a_file_that_can_t_be_read_makes_the_snapshot_partial_in_json_too() {
    let desk = Desk::new();
    if !plant(&desk) {
        return;
    }
    let said = desk.run_obeying_modes("backup a tree --set t").unwrap();
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    assert!(said.err.contains("tree/closed") && said.err.contains("partial"), "{said:?}");
    let said = desk.run_obeying_modes("backup a tree --set t --json").unwrap();
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    let made: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((made["state"].as_str(), made["left_out"].as_u64()), (Some("partial"), Some(1)));
    let all: Value = serde_json::from_str(&desk.ok("snapshots a --json")).unwrap();
    assert!(all.as_array().unwrap().iter().all(|one| one["state"] == "partial"), "{all}");
    assert!(!desk.ok("ls a t").contains("closed"));
}

#[test]
fn rule_15_a_file_that_can_t_be_read_any_more_is_not_taken_from_the_parent() {
    let desk = Desk::new();
    if !plant(&desk) {
        return;
    }
    let closed = desk.path("tree/closed");
    let mode = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    let said = desk.run_obeying_modes("backup a tree --set t").unwrap();
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert!(desk.ok("ls a t").contains("closed"));
    mode(0);
    let said = desk.run_obeying_modes("backup a tree --set t").unwrap();
    assert_eq!(said.status.code(), Some(3), "{said:?}");
    // It was most of the set, so that a warning comes with the list.
    assert!(!desk.run("ls a t").out.contains("closed"));
    assert!(desk.ok("ls a t~1").contains("closed"));
}

#[test]
fn rule_13_the_number_of_readers_changes_nothing_in_a_snapshot() {
    let desk = Desk::new();
    if !plant(&desk) {
        return;
    }
    for n in 0..20 {
        let deep = desk.path(&format!("tree/d{n}/e"));
        fs::create_dir_all(&deep).unwrap();
        for m in 0..20 {
            fs::write(deep.join(format!("{m}")), format!("{n} {m}").repeat(100)).unwrap();
        }
        fs::hard_link(deep.join("3"), desk.path(&format!("tree/d{n}/link"))).unwrap();
    }
    let backup = |readers: u32| -> Value {
        let line =
            format!("backup a tree --set t --read-all --exclude d7 --readers {readers} --json");
        let said = desk.run_obeying_modes(&line).unwrap();
        assert_eq!(said.status.code(), Some(3), "{said:?}");
        serde_json::from_str(&said.out).unwrap()
    };
    let first = backup(1);
    assert!(first["pages_written"].as_u64() > Some(0), "{first}");
    for readers in [4, 0, 64] {
        // A snapshot of the same bytes needs no page of its own. Between two backups a time of change
        // may become one that is trusted, so a pair that differs is made again.
        let pages: Vec<_> = (0..3)
            .map(|_| {
                let one = backup(1);
                let again = backup(readers);
                assert_eq!(again["entries"], one["entries"]);
                again["pages_written"].as_u64()
            })
            .take_while(|pages| *pages != Some(0))
            .collect();
        assert!(pages.len() < 3, "{readers} readers: {pages:?}");
    }
}

#[test]
fn what_was_left_out_is_listed_a_line_each_whatever_its_name_is() {
    let desk = Desk::new();
    if !plant(&desk) {
        return;
    }
    desk.ok("backup a tree/open --set whole");
    assert_eq!(desk.ok("ls a whole --left-out"), "0 paths left out\n");
    assert_eq!(desk.ok("ls a whole --left-out --json"), "");
    let odd = desk.path("tree/od\nd");
    fs::write(&odd, b"x").unwrap();
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o000)).unwrap();
    desk.run_obeying_modes("backup a tree --set t").unwrap();
    let said = desk.ok("ls a t --left-out");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.len(), lines[2]), (3, "2 paths left out"), "{said}");
    assert!(lines[0].contains("tree/closed") && lines[1].contains("tree/od\\nd"), "{said}");
    let said = desk.ok("ls a t --left-out --json");
    let problems: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(problems.len(), 2);
    assert!(problems[0]["problem"].as_str().unwrap().contains("tree/closed"), "{said}");
    desk.fails("ls a --left-out", 2, &["NAME is missing"]);
}

#[test]
fn a_snapshot_tells_of_its_machine() {
    let desk = Desk::new();
    desk.ok("create archive a");
    fs::create_dir(desk.path("tree")).unwrap();
    desk.ok("backup a tree --set t");
    let all: Value = serde_json::from_str(&desk.ok("snapshots a --json")).unwrap();
    let known = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let known = known.trim();
    assert_eq!(all[0]["machine"].as_str(), (known.len() == 32).then_some(known), "{all}");
}

#[test]
fn where_times_of_change_mean_nothing_the_user_says_what_counts() {
    let Ok(shared) = tempfile::tempdir_in("/dev/shm") else {
        println!("NOT TESTED: there is no /dev/shm");
        return;
    };
    let desk = Desk::new();
    desk.ok("create archive a");
    let file = shared.path().join("file");
    fs::write(&file, b"1234").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let touch = || fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    touch();
    let backup = |arguments: &str| -> (u64, u64) {
        let line = format!("backup a {} --set t --reread 0 --json", shared.path().display());
        let made: Value = serde_json::from_str(&desk.ok(&format!("{line} {arguments}"))).unwrap();
        (made["files_read"].as_u64().unwrap(), made["files_unchanged"].as_u64().unwrap())
    };
    assert_eq!(backup(""), (1, 0));
    assert_eq!(backup(""), (1, 0), "the times of tmpfs say nothing");
    // The time was not known to count when the file was read.
    assert_eq!(backup("--match mtime,size"), (1, 0));
    assert_eq!(backup("--match mtime,size"), (0, 1));
    // Another inode and another time of change, and the same time and length.
    let replace = || {
        fs::remove_file(&file).unwrap();
        fs::write(&file, b"5678").unwrap();
        touch();
    };
    replace();
    assert_eq!(backup("--match mtime,size"), (0, 1));
    replace();
    assert_eq!(backup("--match mtime,size,ctime"), (1, 0));
    fs::write(&file, b"12345").unwrap();
    touch();
    assert_eq!(backup("--match mtime,size"), (1, 0));
    desk.fails("backup a x --match ctime", 2, &["mtime,size"]);
}
