//! The maps of backup volumes on the disk: damage of a page, told and mended.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

use onefold_archive::{
    Archive, ArchiveExports, BackgroundReplay, Format, Ingest, Pace, ReplayStep, Settings, Volumes,
    check, mend_leaves,
};
use onefold_backend::Directory;
use onefold_core::{BLOCK_BYTES, Block, BlockRead, Exports, Lba, block::bytes_mut};
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

/// Mappings all over a thin volume of 64 MiB a leaf, by a writer with these settings.
fn write_all_over(at: &Path, leaves: u64, settings: Settings) {
    let format = Format { reserve_bytes: 4096, ..Format::new([7; 16], [8; 32], [9; 16]) };
    Archive::create(&Directory::create(at).unwrap(), &format).unwrap();
    let files = Arc::new(Directory::open(at, true).unwrap());
    let archive = Arc::new(Archive::open(files, true, settings).unwrap());
    archive.create_volume("v", leaves * LEAF, 1).unwrap();
    let volumes = Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100);
    let volume = ArchiveExports(volumes.clone()).open("v").unwrap();
    for leaf in 0..leaves {
        volume.write(leaf * LEAF, &tiny(leaf)).unwrap();
    }
    volume.flush().unwrap();
    drop(volume);
    volumes.close().unwrap();
}

/// What is written at the beginning of a leaf.
fn tiny(leaf: u64) -> [u8; 512] {
    let mut bytes = [7; 512];
    bytes[..8].copy_from_slice(&leaf.to_le_bytes());
    bytes
}

/// Looks whether the volume has what was written at the beginning of some leaves.
fn compare(archive: &Arc<Archive>, leaves: impl Iterator<Item = u64>) {
    let volumes = Volumes::new(&Ingest::begin(archive, false, true).unwrap(), 100);
    let volume = ArchiveExports(volumes).open("v").unwrap();
    for leaf in leaves {
        let mut found = Block::zeroed_vec(1);
        let first = Lba(leaf * LEAF / BLOCK_BYTES as u64);
        let mut reads = [BlockRead { first, into: &mut found, result: Ok(()) }];
        volume.read(&mut reads);
        let [read] = reads;
        read.result.unwrap();
        assert!(bytes_mut(&mut found)[..512] == tiny(leaf), "leaf {leaf}");
    }
}

/// Versions before made no checkpoint by the number of changed leaves.
fn without_checkpoint() -> Settings {
    Settings { changed_maps: usize::MAX, log_bytes: u64::MAX, ..Settings::default() }
}

#[test]
fn rule_09_a_log_of_tiny_writes_all_over_a_thin_volume_takes_what_its_bytes_allow() {
    const MANY: u64 = 3000;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = dir.path().join("a");
    write_all_over(&at, MANY, without_checkpoint());
    assert!(!at.join("maps").exists());
    // No more than the log itself allows, but for some small tables.
    let settings = Settings { memory: 256 << 10, ..Settings::default() };
    let files = Arc::new(Directory::open(&at, false).unwrap());
    let archive = Archive::open(files, false, settings).unwrap();
    assert_eq!(archive.tables().volumes.named("v").unwrap().1.block_index.used(), MANY);
}

#[test]
fn rule_09_changed_leaves_of_a_map_make_a_commit_write_a_checkpoint() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (changed_maps, is_due) in [(40, false), (39, true)] {
        let at = dir.path().join(changed_maps.to_string());
        write_all_over(&at, 40, Settings { changed_maps, ..without_checkpoint() });
        assert_eq!(at.join("maps").exists(), is_due, "{changed_maps}");
        compare(&open(&at, u64::MAX), 0..40);
    }
}

#[test]
fn a_checkpoint_beside_clients_writes_leaves_of_maps_in_portions() {
    const MANY: u64 = 100;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = dir.path().join("a");
    write_all_over(&at, MANY, without_checkpoint());
    let settings = Settings { changed_maps: 150, map_portion: 7, ..without_checkpoint() };
    let files = Arc::new(Directory::open(&at, true).unwrap());
    let archive = Arc::new(Archive::open(files, true, settings.clone()).unwrap());
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, 1000, Pace::default());
    let portions = |replay: &mut BackgroundReplay, most: usize| {
        let steps = std::iter::from_fn(|| replay.step(1000).unwrap());
        steps.filter(|step| *step == ReplayStep::Checkpoint).take(most).count()
    };
    assert_eq!((portions(&mut replay, 6), replay.done.checkpoints), (6, 0));
    // Meanwhile a leaf changes that was written ahead, and a copy of two others is lost.
    drop((replay, ingest));
    let maps = at.join("maps");
    let file = fs::File::options().write(true).open(&maps).unwrap();
    file.write_all_at(&[0; 4096], 3 * 2 * PAGE).unwrap();
    file.write_all_at(&[0; 4096], (5 * 2 + 1) * PAGE).unwrap();
    write(&archive, &[1], 5);
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let mut replay = BackgroundReplay::new(&ingest, 1000, Pace::default());
    assert!(portions(&mut replay, usize::MAX) >= 9);
    assert_eq!(replay.done.checkpoints, 1);
    drop((replay, ingest, archive));
    // The log is new, and all leaves have pages with two whole copies.
    let archive = open(&at, u64::MAX);
    assert_eq!(problems(&archive), Vec::<String>::new());
    compare(&archive, (0..MANY).filter(|leaf| *leaf != 1));
    assert_eq!(fs::metadata(maps).unwrap().len(), MANY * 2 * PAGE);
}
