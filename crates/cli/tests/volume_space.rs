//! What volumes of a block store hold, and what alone, as lists and figures tell it, served or not.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;

use serde_json::Value;
use support::{Desk, noise};

const MIB: u64 = 1 << 20;

/// The bytes that each volume holds, and holds alone, by name.
fn space(desk: &Desk) -> Vec<(String, u64, u64)> {
    let lines: Vec<Value> = serde_json::from_str(&desk.ok("volume list a --space --json")).unwrap();
    let number = |line: &Value, key: &str| line[key].as_u64().unwrap();
    let of = |line: &Value| {
        let name = line["name"].as_str().unwrap().to_owned();
        (name, number(line, "mapped_bytes"), number(line, "exclusive_bytes"))
    };
    lines.iter().map(of).collect()
}

#[test]
fn volumes_tell_what_they_hold_and_what_alone_served_or_not() {
    let desk = Desk::new();
    desk.ok("create block a --size 128M --preallocate none");
    fs::write(desk.path("image"), noise(1, 8 << 20)).unwrap();
    fs::write(desk.path("other"), noise(2, 2 << 20)).unwrap();
    desk.ok("import a one image");
    desk.ok("import a two other");
    // No map shares a page: pages of the maps count with the data.
    let alone = |bytes: u64, of: u64| (of..of + 64 * 4096).contains(&bytes);
    let found = space(&desk);
    assert_eq!((found[0].1, found[1].1), (8 * MIB, 2 * MIB), "{found:?}");
    assert!(alone(found[0].2, 8 * MIB) && alone(found[1].2, 2 * MIB), "{found:?}");
    desk.ok("snapshot create a one@1");
    desk.ok("snapshot clone a one@1 three");
    for served in [false, true] {
        let serving = served.then(|| desk.serve("a"));
        let found = space(&desk);
        let held: Vec<(&str, u64)> = found.iter().map(|one| (one.0.as_str(), one.1)).collect();
        assert_eq!(held, [("one", 8 * MIB), ("three", 8 * MIB), ("two", 2 * MIB)]);
        assert!(found[0].2 == 0 && found[1].2 == 0 && alone(found[2].2, 2 * MIB), "{found:?}");
        assert!(desk.ok("volume list a --space").contains("2.00 MiB mapped"));
        let status = desk.status("a");
        assert_eq!((&status["clones"], &status["acts_waiting"]), (&1.into(), &0.into()));
        if let Some(serving) = serving {
            assert!(serving.terminate().0.success());
        }
    }
    desk.ok("check a");
}
