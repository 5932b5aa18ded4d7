//! A file system whose locks do not hold, as that of some file servers: nothing that was
//! acknowledged is overwritten by a process that could have known.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, ContainerKind, Format, Settings, check, record_damage, restore_chunks,
};
use onefold_backend::Directory;
use onefold_core::{File, Files, Hold, Lock, Result};
use parking_lot::Mutex;
use support::{Watch, Watched, get, noise, put};

/// Files whose locks are there for everybody at once.
struct Lying(Arc<dyn Files>);

struct NoLock;

impl Lock for NoLock {}

impl Files for Lying {
    fn names(&self) -> Result<Vec<String>> {
        self.0.names()
    }
    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.0.create(name)
    }
    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.0.open(name)
    }
    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }
    fn sync_names(&self) -> Result<()> {
        self.0.sync_names()
    }
    fn lock(&self, _name: &str, _hold: Hold, _wait: bool) -> Result<Box<dyn Lock>> {
        Ok(Box::new(NoLock))
    }
}

fn open(directory: &Path, watch: Watch) -> Arc<Archive> {
    let files: Arc<dyn Files> = Arc::new(Directory::open(directory, true).unwrap());
    let files = Watched { files: Arc::new(Lying(files)), watch };
    Arc::new(Archive::open(Arc::new(files), true, Settings::default()).unwrap())
}

fn plainly() -> Watch {
    Arc::new(|_, _, does| does())
}

fn streams(directory: &Path) -> Vec<String> {
    open(directory, plainly()).tables().streams.keys().cloned().collect()
}

/// An archive with the streams one, two and three.
fn archive(directory: &Path) {
    Archive::create(
        &Directory::create(directory).unwrap(),
        &Format::new([1; 16], [2; 32], [3; 16]),
    )
    .unwrap();
    for (seed, name) in (1..).zip(["one", "two", "three"]) {
        put(&open(directory, plainly()), name, &noise(seed, 50_000)).unwrap();
    }
}

#[test]
fn rule_16_an_append_finds_what_another_process_appended_since_the_end_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("a");
    archive(&directory);
    let looks = Arc::new(AtomicU32::new(u32::MAX));
    let (looks_there, path) = (looks.clone(), directory.clone());
    // A process looks into `vouched` before it reads the log, and at its first append once more:
    // then the other one removes a stream.
    let watch: Watch = Arc::new(move |name, _, does| {
        if name == "vouched" && looks_there.fetch_sub(1, Relaxed) == 1 {
            open(&path, plainly()).remove("one")?;
        }
        does()
    });
    let late = open(&directory, watch);
    looks.store(2, Relaxed);
    let error = late.remove("two").unwrap_err();
    assert!(error.to_string().contains("locks do not hold"), "{error}");
    // The other's change, which was acknowledged, is there; ours, which was not, is not. And we
    // stop.
    assert_eq!(streams(&directory), ["three", "two"]);
    assert!(late.remove("three").is_err());
    assert_eq!(streams(&directory), ["three", "two"]);
}

#[test]
fn rule_16_an_append_that_was_overwritten_is_not_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("a");
    archive(&directory);
    let armed = Arc::new(AtomicBool::new(false));
    let (armed_there, path) = (armed.clone(), directory.clone());
    // Whoever read the same end writes its own frame over ours as soon as ours is written.
    let watch: Watch = Arc::new(move |name, call, does| {
        let log = path.join("log-0000000001");
        let writes = name == "log-0000000001"
            && matches!(call, support::Call::Change)
            && armed_there.load(Relaxed);
        let before = std::fs::metadata(&log).map_or(0, |file| file.len());
        does()?;
        if writes && std::fs::metadata(&log).unwrap().len() > before {
            armed_there.store(false, Relaxed);
            std::os::unix::fs::FileExt::write_all_at(
                &std::fs::File::options().write(true).open(&log).unwrap(),
                &[7; 64],
                before,
            )
            .unwrap();
        }
        Ok(())
    });
    let archive = open(&directory, watch);
    armed.store(true, Relaxed);
    let error = archive.remove("two").unwrap_err();
    assert!(!armed.load(Relaxed) && error.to_string().contains("locks do not hold"), "{error}");
    assert_eq!(streams(&directory), ["one", "three", "two"]);
}

#[test]
fn a_heal_whose_append_was_lost_and_comes_back_has_its_containers() {
    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().join("a");
    archive(&directory);
    let log = directory.join("log-0000000001");
    let (appends, lost) = (Arc::new(AtomicU32::new(u32::MAX)), Arc::new(Mutex::new(None)));
    let (appends_there, lost_there, path) = (appends.clone(), lost.clone(), log.clone());
    // The second frame, by which the chunks move, is gone as soon as it is written.
    let watch: Watch = Arc::new(move |name, call, does| {
        let before = std::fs::metadata(&path).map_or(0, |file| file.len());
        does()?;
        let writes = name == "log-0000000001" && matches!(call, support::Call::Change);
        if writes && std::fs::metadata(&path).unwrap().len() > before {
            let frame = std::fs::read(&path).unwrap().split_off(before as usize);
            if appends_there.fetch_sub(1, Relaxed) == 1 {
                overwrite(&path, before, &vec![0; frame.len()]);
                *lost_there.lock() = Some((before, frame));
            }
        }
        Ok(())
    });
    let healing = open(&directory, watch);
    let container = healing
        .tables()
        .containers
        .iter()
        .map(|container| container.unwrap().stored)
        .find(|stored| stored.kind == ContainerKind::Data)
        .map(|stored| (stored.id, vec![0xff; stored.chunks.div_ceil(8) as usize]));
    record_damage(&healing, &BTreeMap::from_iter(container)).unwrap();
    let report = check(&healing, false, &mut |_, _, _| {}).unwrap();
    appends.store(2, Relaxed);
    let error = restore_chunks(&healing, &report.lost, &mut |_, _| {}).unwrap_err();
    assert!(error.to_string().contains("loses writes"), "{error}");
    let (at, frame) = lost.lock().take().unwrap();
    overwrite(&log, at, &frame);
    let archive = open(&directory, plainly());
    for (seed, name) in (1..).zip(["one", "two", "three"]) {
        assert_eq!(get(&archive, name).unwrap(), noise(seed, 50_000));
    }
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
}
