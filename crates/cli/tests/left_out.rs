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
    fs::set_permissions(&closed, fs::Permissions::from_mode(0)).unwrap();
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
