//! Whoever has a copy of a sealed archive gives back files of it that bear the same numbers, and whoever has
//! its directory watches which bytes are read.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod golden;
mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex},
};

use golden::{Form, collect, forms, text};
use onefold_archive::{Archive, ArchiveExports, Ingest, KeySource, Settings, Volumes, check};
use onefold_backend::Directory;
use onefold_core::{BLOCK_BYTES, Block, BlockRead, Exports, Lba, block::bytes_mut};
use support::{By, Call, Watch, Watched, get, noise, put};

/// Bytes of both copies of a page of the maps.
const PAGE: usize = 8192;

fn sealed() -> Form {
    forms().into_iter().find(|form| form.sealed).unwrap()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The newest file of usage counts.
fn newest(at: &Path) -> String {
    let names = fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("counts-")).max().unwrap()
}

#[test]
fn rule_29_counts_of_a_copy_of_the_archive_are_refused_and_free_nothing() {
    for in_pages in [true, false] {
        let mut form = sealed();
        form.kinds.counts_in_pages = in_pages;
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (at, other) = (dir.path().join("a"), dir.path().join("b"));
        form.create(&at);
        form.fill_created(&at);
        collect(&form.open(&at, u64::MAX));
        copy(&at, &other);
        let archive = form.open(&other, u64::MAX);
        archive.remove("last").unwrap();
        archive.remove("renamed").unwrap();
        collect(&archive);
        drop(archive);
        let archive = form.open(&at, u64::MAX);
        put(&archive, "new", &text(900)).unwrap();
        collect(&archive);
        drop(archive);
        let name = newest(&at);
        assert_eq!(newest(&other), name, "both gave their counts one number");
        let bytes = fs::read(other.join(&name)).unwrap();
        assert_ne!(fs::read(at.join(&name)).unwrap(), bytes);
        fs::write(at.join(&name), bytes).unwrap();
        let archive = form.open(&at, u64::MAX);
        let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
        let told = report.problems.iter().any(|problem| problem.contains("others were put in"));
        assert!(told && report.counts.is_none(), "{in_pages}: {:?}", report.problems);
        (0..3).for_each(|_| collect(&archive));
        form.is_whole(&archive);
        assert_eq!(get(&archive, "new").unwrap(), text(900));
    }
}

/// Writes to one block of the volume `v`, and lets a checkpoint come.
fn write(form: Form, at: &Path, seed: u64) {
    let archive = form.open(at, u64::MAX);
    let volumes = Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100);
    let volume = ArchiveExports(volumes).open("v").unwrap();
    volume.write(seed * (128 << 10), &noise(seed, 32 << 10)).unwrap();
    volume.flush().unwrap();
    drop((volume, archive));
    form.open(at, 1).rename_volume("v", "w").unwrap();
    form.open(at, u64::MAX).rename_volume("w", "v").unwrap();
}

/// The beginning of a block of the volume `v`.
fn read(archive: &Arc<Archive>, block: u64) -> Vec<u8> {
    let volumes = Volumes::new(&Ingest::begin(archive, false, true).unwrap(), 100);
    let volume = ArchiveExports(volumes).open("v").unwrap();
    let mut blocks = Block::zeroed_vec((32 << 10) / BLOCK_BYTES);
    let first = Lba(block * (128 << 10) / BLOCK_BYTES as u64);
    let mut reads = [BlockRead { first, into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result.unwrap();
    bytes_mut(&mut blocks).to_vec()
}

#[test]
fn rule_29_a_page_of_a_map_of_a_copy_of_the_archive_is_refused() {
    let form = sealed();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (at, other) = (dir.path().join("a"), dir.path().join("b"));
    form.create(&at);
    form.fill_created(&at);
    copy(&at, &other);
    write(form, &other, 1);
    write(form, &at, 2);
    let (good, bytes) = (fs::read(at.join("maps")).unwrap(), fs::read(other.join("maps")).unwrap());
    let pages = good.chunks(PAGE).zip(bytes.chunks(PAGE)).enumerate();
    let others: Vec<usize> = pages.filter(|(_, (a, b))| a != b).map(|(page, _)| page).collect();
    assert_eq!(others.len(), 1, "each wrote one page");
    let place = others[0] * PAGE;
    let file = fs::File::options().write(true).open(at.join("maps")).unwrap();
    file.write_all_at(&bytes[place..place + PAGE], place as u64).unwrap();
    // The snapshot that names the page can't be read: the one before and its log say the same.
    let archive = form.open(&at, u64::MAX);
    let problems = check(&archive, true, &mut |_, _, _| {}).unwrap().problems;
    let told = problems.iter().any(|problem| problem.contains("lost the page of block 0"));
    assert!(told, "{problems:?}");
    assert_eq!(read(&archive, 2), noise(2, 32 << 10));
    assert_eq!(read(&archive, 1), vec![0; 32 << 10]);
}

#[test]
fn rule_34_containers_and_counts_of_a_sealed_archive_are_read_in_steps() {
    let form = sealed();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = dir.path().join("a");
    form.create(&at);
    form.fill_created(&at);
    let odd = Arc::new(Mutex::new(Vec::new()));
    let seen = odd.clone();
    let watch: Watch = Arc::new(move |name, call, does| {
        if let Call::Read(from, bytes) = call
            && (name.starts_with("segment-") && (from % 4096, bytes % 4096) != (0, 0)
                || name.starts_with("counts-")
                    && *from > 0
                    && (from % 4096, bytes % 4096) != (0, 0))
        {
            seen.lock().unwrap().push(format!("{bytes} bytes at {from} of {name}"));
        }
        does()
    });
    let files = Arc::new(Directory::open(&at, true).unwrap());
    let settings = Settings {
        opener: KeySource::new(Arc::new(By(1, false))),
        container_bytes: 16 << 10,
        log_ahead_bytes: 4096,
        ahead_bytes: 0,
        ..Settings::default()
    };
    let archive = Archive::open(Arc::new(Watched { files, watch }), true, settings).unwrap();
    let archive = Arc::new(archive);
    form.is_whole(&archive);
    archive.remove("last").unwrap();
    (0..2).for_each(|_| collect(&archive));
    let odd = odd.lock().unwrap();
    assert!(odd.is_empty(), "{} reads tell lengths: {:?}", odd.len(), &odd[..odd.len().min(5)]);
}
