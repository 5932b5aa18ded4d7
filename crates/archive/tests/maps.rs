//! The maps of backup volumes on the disk: damage of a page, told and mended.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

use onefold_archive::{
    Archive, ArchiveExports, Format, Ingest, Settings, Volumes, check, mend_leaves,
};
use onefold_backend::Directory;
use onefold_core::Exports;
use support::noise;

/// Bytes of a volume that one leaf names.
const LEAF: u64 = 64 << 20;

const LEAVES: u64 = 4;

/// Bytes of a page.
const PAGE: u64 = 4096;

fn open(at: &Path, log_bytes: u64) -> Arc<Archive> {
    let files = Arc::new(Directory::open(at, true).unwrap());
    let settings = Settings { log_bytes, ..Settings::default() };
    Arc::new(Archive::open(files, true, settings).unwrap())
}

/// Writes 64 KiB at the beginning of leaves of the volume `v`.
fn write(archive: &Arc<Archive>, leaves: &[u64], seed: u64) {
    let volumes = Volumes::new(&Ingest::begin(archive, false, true).unwrap(), 100);
    let volume = ArchiveExports(volumes).open("v").unwrap();
    for leaf in leaves {
        volume.write(leaf * LEAF, &noise(seed + leaf, 64 << 10)).unwrap();
    }
    volume.flush().unwrap();
}

fn problems(archive: &Arc<Archive>) -> Vec<String> {
    check(archive, true, &mut |_, _, _| {}).unwrap().problems
}

/// Damages a copy of the page of a leaf, as the first page that the file has for it.
fn rot(at: &Path, leaf: u64, copy: u64) {
    let path = at.join("maps");
    let bytes = fs::read(&path).unwrap();
    let is_leaf = |page: &u64| {
        let at = (2 * page * PAGE) as usize;
        u64::from(u32::from_le_bytes(bytes[at + 16..at + 20].try_into().unwrap())) == leaf
    };
    let page = (0..bytes.len() as u64 / PAGE / 2).find(is_leaf).unwrap();
    let place = (2 * page + copy) * PAGE + 1000;
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[bytes[place as usize] ^ 1], place).unwrap();
}

#[test]
fn a_page_of_a_map_with_one_damaged_copy_is_told_and_written_again() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = dir.path().join("a");
    let format = Format { reserve_bytes: 4096, ..Format::new([7; 16], [8; 32], [9; 16]) };
    Archive::create(&Directory::create(&at).unwrap(), &format).unwrap();
    let archive = open(&at, u64::MAX);
    archive.create_volume("v", LEAVES * LEAF, 1).unwrap();
    write(&archive, &[0, 1, 2, 3], 1);
    drop(archive);
    // A snapshot of the tables names the pages.
    open(&at, 1).rename_volume("v", "w").unwrap();
    open(&at, u64::MAX).rename_volume("w", "v").unwrap();
    assert_eq!(problems(&open(&at, u64::MAX)), Vec::<String>::new());
    for (leaf, copy) in [(0, 0), (1, 1), (2, 1)] {
        rot(&at, leaf, copy);
    }
    let archive = open(&at, u64::MAX);
    // What changed since is read by who opens the archive next.
    write(&archive, &[2], 9);
    let found = problems(&archive);
    let all = found.iter().all(|problem| problem.contains("of `maps` is damaged"));
    assert!(found.len() == 3 && all, "{found:?}");
    assert_eq!(mend_leaves(&archive).unwrap(), 3);
    assert_eq!((problems(&archive), mend_leaves(&archive).unwrap()), (Vec::new(), 0));
    drop(archive);
    // The other copies are needed no more.
    for (leaf, copy) in [(0, 1), (1, 0), (2, 0)] {
        rot(&at, leaf, copy);
    }
    let archive = open(&at, u64::MAX);
    assert_eq!((problems(&archive).len(), mend_leaves(&archive).unwrap()), (3, 3));
}
