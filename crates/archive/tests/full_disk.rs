//! A file system that is full to its last block, in each step that writes: what was acknowledged
//! stays, deletion and collection work, and then there is room again.
//!
//! The file system is a small one in memory, mounted in a namespace of its own, in which this test
//! runs itself once more.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, ArchiveExports, Chunking, Collection, CollectionOptions as Options, Compression,
    Format, Ingest, Settings, Volumes, check,
};
use onefold_backend::Directory;
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Error, Exports, Kind, Lba, Result, Volume, block::bytes_mut,
};
use parking_lot::Mutex;
use support::{Call, Watch, Watched, get, noise, put};

const MOUNTED: &str = "ONEFOLD_TEST_FULL_DISK";

#[test]
fn what_is_full_can_be_emptied_and_filled_again() {
    on_a_small_disk("what_is_full_can_be_emptied_and_filled_again", fill_and_empty);
}

#[test]
fn rule_12_a_volume_whose_data_finds_no_room_keeps_no_other_from_storing() {
    let name = "rule_12_a_volume_whose_data_finds_no_room_keeps_no_other_from_storing";
    on_a_small_disk(name, volumes_on_a_full_disk);
}

/// Does something in a small file system, in a process of its own that runs the test of this name.
fn on_a_small_disk(name: &str, does: fn(&Path)) {
    if let Some(place) = std::env::var_os(MOUNTED) {
        return does(Path::new(&place));
    }
    let place = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size=24m none '{0}' && {MOUNTED}='{0}' exec \"$0\" --exact \"$1\" --nocapture",
        place.path().display()
    );
    let done = Command::new("unshare")
        .args(["-Urm", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        done.status.success(),
        "needs namespaces that a user can make, as Debian has:\n{}{}",
        text(&done.stdout),
        text(&done.stderr)
    );
    assert!(text(&done.stdout).contains("1 passed"));
}

/// Remembers in files of which kinds no room was found.
fn noting(full: &Arc<Mutex<BTreeSet<String>>>) -> Watch {
    let full = full.clone();
    Arc::new(move |name, _, does| {
        let done = does();
        if done.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace) {
            full.lock().insert(name.split('-').next().unwrap_or_default().to_owned());
        }
        done
    })
}

/// Limits so small that a put imports, collects and takes snapshots all the time.
fn settings() -> Settings {
    Settings {
        auxiliary_entries: 400,
        cached_containers: 4,
        container_bytes: 256 << 10,
        sync_bytes: 512 << 10,
        log_bytes: 600,
        log_ahead_bytes: 32 << 10,
        ahead_bytes: 512 << 10,
        count_slots: 2000,
        ..Settings::default()
    }
}

const RESERVE: u64 = 1 << 20;

fn collect(archive: &Arc<Archive>) -> Result<()> {
    let options = Options { wait: true, reserve_bytes: RESERVE, ..support::options(1000) };
    Collection::begin(archive, options)?.run(&mut |_| {}).map(|_| ())
}

/// Fills all blocks but `left` bytes with a file of somebody else.
fn fill(place: &Path, left: u64) {
    let mut filler =
        fs::File::options().append(true).create(true).open(place.join("filler")).unwrap();
    let block = vec![1; 4096];
    while filler.write_all(&block).is_ok() {}
    let bytes = filler.metadata().unwrap().len();
    filler.set_len(bytes.saturating_sub(left)).unwrap();
}

fn fill_and_empty(place: &Path) {
    let full: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let directory = place.join("a");
    let format = Format {
        chunking: Chunking::FastCdc(2048),
        compression: Compression::None,
        reserve_bytes: RESERVE,
        segment_bytes: 2 << 20,
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    Archive::create(&Directory::create(&directory).unwrap(), &format).unwrap();
    let open = || {
        let files = Watched {
            files: Arc::new(Directory::open(&directory, true).unwrap()),
            watch: noting(&full),
        };
        Arc::new(Archive::open(Arc::new(files), true, settings()).unwrap())
    };
    let mut there: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let same = |archive: &Arc<Archive>, there: &BTreeMap<String, Vec<u8>>| {
        assert!(there.iter().all(|(name, bytes)| get(archive, name).unwrap() == *bytes));
        assert!(check(archive, true, &mut |_, _, _| {}).unwrap().is_well());
    };
    let mut refused = 0;
    for round in 0..40u64 {
        // Each put shares its first half with the one before, so that collection has something to
        // merge.
        let archive = open();
        let _ = fs::remove_file(place.join("filler"));
        for n in 0..3 {
            let mut bytes = noise(round / 2, 300_000);
            bytes.extend(noise(1000 + round * 10 + n, 300_000));
            let name = format!("s{}", (round * 3 + n) % 11);
            put(&archive, &name, &bytes).unwrap();
            there.insert(name, bytes);
        }
        fill(place, [0, 4096, 12288, 40960, 131_072, 262_144, 700_000][round as usize % 7]);
        // Puts until one is refused, which changes nothing.
        for n in 0..8 {
            let (name, bytes) = (format!("t{n}"), noise(5000 + round * 10 + n, 150_000));
            match put(&archive, &name, &bytes) {
                Ok(_) => {
                    there.insert(name, bytes);
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                    refused += 1;
                    break;
                }
            }
        }
        same(&archive, &there);
        // The importer finds no room, and leaves it for later.
        fill(place, 0);
        Ingest::begin(&archive, false, false).unwrap().import(true).unwrap();
        // A collection with nothing to free, another process, and all can be removed, collected and
        // put again.
        collect(&archive).unwrap();
        let archive = if round % 2 == 0 { open() } else { archive };
        // Enough goes for the reserve to be whole again, and for more.
        let kept = if there.len() > 8 { there.len() / 4 } else { 0 };
        let gone: Vec<String> =
            there.keys().rev().take(there.len().saturating_sub(kept)).cloned().collect();
        for name in gone {
            archive.remove(&name).unwrap();
            there.remove(&name);
        }
        fill(place, 0);
        collect(&archive).unwrap();
        same(&archive, &there);
        let bytes = noise(9000 + round, 150_000);
        put(&archive, "again", &bytes).unwrap_or_else(|error| panic!("round {round}: {error}"));
        there.insert("again".to_owned(), bytes);
        same(&archive, &there);
    }
    let full = full.lock();
    println!("full in {full:?}, {refused} puts refused");
    // Puts and collection in segments, import in files of the index, checkpoints in snapshots and
    // logs, counts.
    for kind in ["segment", "index", "snapshot", "counts"] {
        assert!(
            full.contains(kind),
            "nobody found the disk full in a file of the kind {kind}, but in {full:?}"
        );
    }
}

fn volumes_on_a_full_disk(place: &Path) {
    const MIB: u64 = 1 << 20;
    let directory = place.join("a");
    let format = Format {
        compression: Compression::None,
        reserve_bytes: RESERVE,
        segment_bytes: 2 << 20,
        clones: true,
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    Archive::create(&Directory::create(&directory).unwrap(), &format).unwrap();
    let serve = || {
        let settings = Settings {
            dirty_bytes: 8 * MIB,
            patched_parts: 0,
            log_bytes: 1 << 20,
            zeroed_ranges: 4,
            ..settings()
        };
        let files = Arc::new(Directory::open(&directory, true).unwrap());
        let archive = Arc::new(Archive::open(files, true, settings).unwrap());
        Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100)
    };
    let read = |volume: &dyn Volume, offset: u64, bytes: usize| -> Vec<u8> {
        let mut blocks = Block::zeroed_vec(bytes / BLOCK_BYTES);
        let first = Lba(offset / BLOCK_BYTES as u64);
        let mut reads = [BlockRead { first, into: &mut blocks, result: Ok(()) }];
        volume.read(&mut reads);
        let [read] = reads;
        read.result.unwrap();
        bytes_mut(&mut blocks)[..bytes].to_vec()
    };
    let (volumes, piece) = (serve(), 64 << 10);
    let open = |volumes: &Arc<Volumes>, name| ArchiveExports(volumes.clone()).open(name).unwrap();
    for name in ["big", "small"] {
        volumes.archive().create_volume(name, 32 * MIB, 1).unwrap();
    }
    let (big, small) = (open(&volumes, "big"), open(&volumes, "small"));
    small.write(0, &noise(1, 4096)).unwrap();
    small.flush().unwrap();
    fill(place, 4 * MIB);
    // More than there is room for, and not flushed.
    let more = |n: u64| big.write(n * piece, &noise(100 + n, piece as usize));
    (0..80).for_each(|n| assert!(more(n).is_ok()));
    small.write(0, &noise(2, 4096)).unwrap();
    small.write(MIB, &noise(3, 4096)).unwrap();
    small.flush().unwrap();
    assert!(volumes.counts().dirty_bytes >= 80 * piece);
    // Each has its own error, and what found no room stays.
    let last = small.write(2 * MIB, &noise(4, 4096)).unwrap();
    assert_eq!(big.flush().unwrap_err().kind(), Kind::NoSpace);
    small.wait(last).unwrap();
    let refused = (80..200).find(|&n| more(n).is_err()).unwrap();
    assert_eq!(more(refused).unwrap_err().kind(), Kind::NoSpace);
    // The volume can still be trimmed, in more places than may wait: zeroes take no room.
    for n in 0..12 {
        big.trim(16 * MIB + n * (256 << 10), 128 << 10).unwrap();
    }
    drop(big);
    for n in 0..8 {
        small.write(3 * MIB + n * piece, &noise(5 + n, piece as usize)).unwrap();
    }
    small.trim(2 * MIB, 128 << 10).unwrap();
    small.flush().unwrap();
    volumes.clone_volume("small", "monday", true).unwrap();
    assert_eq!(volumes.clone_volume("big", "no", true).unwrap_err().kind(), Kind::NoSpace);
    // What lies idle is written back beside what finds no room, which is tried now and then.
    small.write(4 * MIB, &noise(50, 4096)).unwrap();
    volumes.tend(200).unwrap_err();
    let before = volumes.counts().dirty_bytes;
    (201..204).for_each(|now| volumes.tend(now).unwrap());
    assert!(volumes.counts().dirty_bytes < before);
    volumes.tend(210).unwrap_err();
    assert_eq!(volumes.close().unwrap_err().kind(), Kind::NoSpace);
    fs::remove_file(place.join("filler")).unwrap();
    volumes.tend(220).unwrap();
    assert_eq!(volumes.counts().dirty_bytes, 0);
    volumes.close().unwrap();
    drop((small, volumes));
    let volumes = serve();
    let (big, small) = (open(&volumes, "big"), open(&volumes, "small"));
    for n in 0..refused {
        assert!(read(&*big, n * piece, piece as usize) == noise(100 + n, piece as usize), "{n}");
    }
    for (at, seed) in [(0, 2), (MIB, 3), (3 * MIB, 5), (4 * MIB, 50)] {
        assert!(read(&*small, at, 4096)[..] == noise(seed, 4096), "at {at}");
    }
    assert!(read(&*small, 2 * MIB, 4096).iter().all(|&byte| byte == 0));
}

/// Another one made the archive, with a reserve of holes: to give it up frees nothing.
#[test]
fn rule_09_a_reserve_of_holes_is_not_given_up_in_a_thousand_steps() {
    const STEPS_MAX: u32 = 1000;
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("a");
    let format = Format { reserve_bytes: RESERVE, ..Format::new([1; 16], [2; 32], [3; 16]) };
    Archive::create(&Directory::create(&directory).unwrap(), &format).unwrap();
    let open = |watch: Watch| {
        let files = Watched { files: Arc::new(Directory::open(&directory, true).unwrap()), watch };
        Arc::new(Archive::open(Arc::new(files), true, Settings::default()).unwrap())
    };
    put(&open(Arc::new(|_, _, does| does())), "s", &noise(1, 10_000)).unwrap();
    let reserve = fs::File::options().write(true).open(directory.join("reserve")).unwrap();
    reserve.set_len(1 << 43).unwrap();
    // The log finds no room, whatever is given up.
    let (full, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (is_full, count) = (full.clone(), steps.clone());
    let archive = open(Arc::new(move |name, call, does| {
        if !matches!(call, Call::Change) || !is_full.load(Relaxed) {
            return does();
        }
        if name == "reserve" && count.fetch_add(1, Relaxed) > STEPS_MAX {
            return Err(Error::new(Kind::Io, "there are too many steps"));
        }
        if name.starts_with("log-") {
            return Err(Error::new(Kind::NoSpace, "the disk is full"));
        }
        does()
    }));
    full.store(true, Relaxed);
    assert_eq!(archive.remove("s").unwrap_err().kind(), Kind::NoSpace);
    assert!(steps.load(Relaxed) < STEPS_MAX);
}
