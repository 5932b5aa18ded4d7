//! Usage, scrub and gc of an open store.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use onefold::{
    ArchiveFormat, BlockFormat, ErrorKind, Store, check, create_archive, create_block,
    create_cluster, repair,
};

/// Bytes that don't repeat.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let next = |state: &mut u64| {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        Some(*state)
    };
    let words = std::iter::successors(Some(seed), |state| next(&mut state.clone()));
    words.flat_map(u64::to_le_bytes).take(bytes).collect()
}

fn archive(folder: &Path) -> PathBuf {
    let path = folder.join("backups");
    create_archive(&path, &ArchiveFormat::default()).unwrap();
    path
}

/// Changes the bytes at `content` in whichever file of the archive holds them.
fn rot(archive: &Path, content: &[u8]) {
    for file in fs::read_dir(archive).unwrap().flatten().map(|entry| entry.path()) {
        let bytes = fs::read(&file).unwrap();
        if let Some(at) = bytes.windows(content.len()).position(|window| window == content) {
            let file = File::options().write(true).open(file).unwrap();
            file.write_all_at(&[content[0] ^ 1], at as u64).unwrap();
            return;
        }
    }
    panic!("the content is in no file");
}

#[test]
fn a_scrub_names_damage_and_the_content_is_stored_anew_when_it_is_put_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(folder.path());
    let content = noise(7, 100_000);
    let store = Store::open(&path).unwrap();
    store.put("good", &mut &*content).unwrap();
    assert!(store.scrub().unwrap().is_well());
    rot(&path, &content[50_000..50_100]);
    let findings = store.scrub().unwrap();
    assert!(!findings.is_well() && !findings.problems.is_empty(), "{findings:?}");
    assert!(store.get("good", &mut std::io::sink()).is_err());
    let again = store.put("again", &mut &*content).unwrap();
    assert!(again.new_bytes > Some(0), "{again:?}");
    let mut found = Vec::new();
    store.get("again", &mut found).unwrap();
    assert!(found == content);
    store.close().unwrap();
}

#[test]
fn gc_gives_space_back_also_while_volumes_are_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(folder.path());
    let store = Store::open(&path).unwrap();
    store.create_volume("disk1", 1 << 20).unwrap();
    let volume = store.volume("disk1").unwrap();
    volume.write_at(0, &noise(9, 1 << 20)).unwrap();
    volume.flush().unwrap();
    store.put("old", &mut &*noise(11, 1 << 20)).unwrap();
    let before = store.usage().unwrap();
    assert_eq!(before.content_bytes, 2 << 20);
    store.remove("old").unwrap();
    store.gc().unwrap();
    drop(volume);
    store.close().unwrap();
    // Nobody holds anything back any more.
    let store = Store::open(&path).unwrap();
    store.gc().unwrap();
    let after = store.usage().unwrap();
    assert_eq!(after.content_bytes, 1 << 20);
    assert!(after.stored_bytes < before.stored_bytes - (900 << 10), "{before:?} {after:?}");
    store.close().unwrap();
}

#[test]
fn a_block_store_tells_what_it_saves_and_needs_no_gc() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    create_block(&path, &BlockFormat::of_bytes(64 << 20)).unwrap();
    let store = Store::open(&path).unwrap();
    store.create_volume("vm1", 1 << 20).unwrap();
    let volume = store.volume("vm1").unwrap();
    for at in 0..10 {
        volume.write_at(at * 4096, &[7; 4096]).unwrap();
    }
    volume.flush().unwrap();
    drop(volume);
    assert_eq!(store.gc().unwrap_err().kind(), ErrorKind::Unsupported);
    store.close().unwrap();
    // Opened anew, the last checkpoint has all of it.
    let store = Store::open(&path).unwrap();
    let usage = store.usage().unwrap();
    assert_eq!((usage.content_bytes, usage.stored_bytes), (10 * 4096, 4096));
    assert!(store.scrub().unwrap().is_well());
    store.close().unwrap();
}

#[test]
fn a_repair_of_an_archive_puts_back_what_was_put_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = archive(folder.path());
    let content = noise(9, 100_000);
    let store = Store::open(&path).unwrap();
    store.put("good", &mut &*content).unwrap();
    rot(&path, &content[50_000..50_100]);
    assert!(!store.scrub().unwrap().is_well());
    store.put("again", &mut &*content).unwrap();
    store.close().unwrap();
    let outcome = repair(&path).unwrap();
    assert!(outcome.left.is_well() && !outcome.restored.is_empty(), "{outcome:?}");
    assert!(check(&path).unwrap().is_well());
    let store = Store::open(&path).unwrap();
    let mut found = Vec::new();
    store.get("good", &mut found).unwrap();
    assert!(found == content);
    store.close().unwrap();
}

#[test]
fn a_check_of_a_block_store_names_a_damaged_table_and_a_repair_tells_what_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    create_block(&path, &BlockFormat::of_bytes(64 << 20)).unwrap();
    let store = Store::open(&path).unwrap();
    store.create_volume("vm1", 1 << 24).unwrap();
    store.volume("vm1").unwrap().write_at(0, &noise(3, 1 << 20)).unwrap();
    assert_eq!(check(&path).unwrap_err().kind(), ErrorKind::Busy);
    store.close().unwrap();
    assert!(check(&path).unwrap().is_well());
    // All pages that hold no data, but superblocks and claim, rot.
    let data = noise(3, 1 << 20);
    let mut bytes = fs::read(&path).unwrap();
    for (n, block) in bytes.chunks_mut(4096).enumerate().skip(16) {
        let is_data = data.chunks(4096).any(|data| data == &*block);
        if !is_data && block.iter().any(|byte| *byte != 0) {
            block[100 + n % 100] ^= 1;
        }
    }
    fs::write(&path, bytes).unwrap();
    let findings = check(&path).unwrap();
    assert!(!findings.is_well() && !findings.problems.is_empty());
    let outcome = repair(&path).unwrap();
    assert!(!outcome.left.is_well(), "{outcome:?}");
    assert!(check(&path).unwrap().is_well(), "{outcome:?}");
}

#[test]
fn a_check_and_a_repair_of_a_cluster_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster");
    create_cluster(&path).unwrap();
    let store = Store::open(&path).unwrap();
    store.put("a", &mut &noise(4, 100_000)[..]).unwrap();
    store.close().unwrap();
    assert!(check(&path).unwrap().is_well());
    let outcome = repair(&path).unwrap();
    assert!(outcome.left.is_well(), "{outcome:?}");
}
