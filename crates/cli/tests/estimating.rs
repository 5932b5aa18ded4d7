//! `estimate` on files whose duplicates are known.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{fs, os::unix::fs::symlink};

use support::{Desk, noise};

fn estimate(desk: &Desk, arguments: &str) -> serde_json::Value {
    serde_json::from_str(&desk.ok(&format!("estimate --json {arguments}"))).unwrap()
}

#[test]
fn duplicates_zeroes_and_holes_are_found_in_all_files_of_a_directory() {
    let desk = Desk::new();
    fs::create_dir_all(desk.path("d/deeper")).unwrap();
    let data = noise(1, 1 << 20);
    fs::write(desk.path("d/one"), &data).unwrap();
    fs::write(desk.path("d/deeper/two"), &data).unwrap();
    // 100 blocks of the same, 50 other ones, 20 of zeroes, and a part of a block.
    let mut mixed = data[..100 * 4096].to_vec();
    mixed.extend(noise(2, 50 * 4096));
    mixed.extend(vec![0; 20 * 4096]);
    mixed.extend(noise(3, 1000));
    fs::write(desk.path("d/three"), &mixed).unwrap();
    fs::File::create(desk.path("d/sparse")).unwrap().set_len(1 << 30).unwrap();
    fs::write(desk.path("d/empty"), b"").unwrap();
    // Neither of these counts again.
    fs::hard_link(desk.path("d/one"), desk.path("d/same")).unwrap();
    symlink("one", desk.path("d/link")).unwrap();
    symlink("nowhere", desk.path("d/broken")).unwrap();
    let found = estimate(&desk, "d");
    let blocks = 256 + 256 + 171 + (1 << 18);
    assert_eq!(found["files"], 5);
    assert_eq!(found["blocks"], blocks);
    assert_eq!(found["zero_blocks"], 20 + (1 << 18));
    assert_eq!(found["different_blocks"], 256 + 50 + 1);
    assert_eq!(found["duplicate_blocks"], 256 + 100);
    assert_eq!(found["sampled_one_of"], 1);
    assert_eq!(found["unreadable"], 0);
    let text = desk.ok("estimate d");
    for line in ["read", "zeroes", "duplicates", "to store", "LZ4"] {
        assert!(text.lines().any(|found| found.starts_with(line)), "no {line} in {text}");
    }
    // A link that is given is followed.
    assert_eq!(estimate(&desk, "d/link")["different_blocks"], 256);
}

#[test]
fn compression_is_told() {
    let desk = Desk::new();
    // Half of each block is compressible.
    let half: Vec<u8> =
        noise(4, 1 << 20).chunks(2048).flat_map(|part| [part, &[7; 2048]].concat()).collect();
    fs::write(desk.path("half"), half).unwrap();
    fs::write(desk.path("none"), noise(5, 1 << 20)).unwrap();
    let half = estimate(&desk, "half");
    assert!((0.5..0.53).contains(&half["lz4_ratio"].as_f64().unwrap()), "{half}");
    assert_eq!(half["roomy_share"], 1.0);
    let none = estimate(&desk, "none");
    assert_eq!((none["lz4_ratio"].as_f64(), none["roomy_share"].as_f64()), (Some(1.0), Some(0.0)));
}

#[test]
fn with_little_memory_a_sample_is_counted_and_it_says_so() {
    let desk = Desk::new();
    let data = noise(6, 300 << 20);
    fs::write(desk.path("data"), &data).unwrap();
    fs::write(desk.path("again"), &data[..100 << 20]).unwrap();
    let found = estimate(&desk, "--memory 1 data again");
    assert!(found["sampled_one_of"].as_u64().unwrap() > 1);
    let different = found["different_blocks"].as_f64().unwrap() / (300.0 * 256.0);
    assert!((0.97..1.03).contains(&different), "{different}");
    assert!(
        desk.ok("estimate --memory 1 data again")
            .contains("note: the fingerprints did not fit into --memory")
    );
}

#[test]
fn what_is_not_there_is_an_error() {
    let desk = Desk::new();
    desk.fails("estimate", 2, &["PATH… is missing"]);
    desk.fails("estimate missing", 1, &["there is no file, directory or device missing"]);
    assert_eq!(desk.ok("estimate .").lines().next().unwrap(), "read           0 bytes  in 0 files");
}

/// Anybody makes files of holes that are larger together than any number tells.
#[test]
fn rule_09_files_of_holes_end_no_estimate() {
    // A file system that takes such files.
    let Ok(home) = tempfile::tempdir_in("/dev/shm") else { return };
    for name in ["a", "b", "c"] {
        let file = fs::File::create(home.path().join(name)).unwrap();
        if file.set_len(i64::MAX as u64).is_err() {
            println!("NOT TESTED: /dev/shm takes no files of 8 EiB");
            return;
        }
    }
    fs::write(home.path().join("d"), noise(7, 4096)).unwrap();
    let desk = Desk::new();
    let found = estimate(&desk, &home.path().display().to_string());
    assert_eq!((&found["files"], &found["different_blocks"]), (&4.into(), &1.into()));
    assert_eq!(found["bytes"], u64::MAX);
    let told = desk.ok(&format!("estimate {}", home.path().display()));
    assert!(told.contains("16.0 EiB") && told.contains("in 4 files"), "{told}");
}
