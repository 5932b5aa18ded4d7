//! Volumes over a real directory, against a plain model; and what they cost.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use onefold_archive::{
    Archive, ArchiveExports, Chunking, Collection, Compression, ContainerKind, FilterName, Format,
    Ingest, Settings, Volumes, check,
};
use onefold_backend::Directory;
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Exports, ExtentKind, Kind, Lba, Result, Volume, block::bytes_mut,
};
use support::{Call, Watch, Watched};

const BLOCK: usize = 128 << 10;

struct Served {
    archive: Arc<Archive>,
    volumes: Arc<Volumes>,
    exports: ArchiveExports,
}

fn create(directory: &std::path::Path, chunking: Chunking) {
    let format = Format {
        chunking,
        compression: Compression::Lz4,
        reserve_bytes: 1 << 20,
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    Archive::create(&Directory::create(directory).unwrap(), &format).unwrap();
}

fn open(directory: &std::path::Path, settings: Settings) -> Arc<Archive> {
    Arc::new(
        Archive::open(Arc::new(Directory::open(directory, true).unwrap()), true, settings).unwrap(),
    )
}

fn serve(directory: &std::path::Path, settings: Settings) -> Served {
    let archive = open(directory, settings);
    let volumes = Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100);
    Served { archive, exports: ArchiveExports(volumes.clone()), volumes }
}

fn read(volume: &dyn Volume, offset: usize, bytes: usize) -> Result<Vec<u8>> {
    let (first, end) = (offset / BLOCK_BYTES, (offset + bytes).div_ceil(BLOCK_BYTES));
    let mut blocks = Block::zeroed_vec(end - first);
    let mut reads = [BlockRead { first: Lba(first as u64), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result?;
    Ok(bytes_mut(&mut blocks)[offset % BLOCK_BYTES..][..bytes].to_vec())
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(bytes)
    .collect()
}

/// Small limits, so that much happens.
fn small() -> Settings {
    Settings {
        dirty_bytes: 8 * BLOCK as u64,
        container_bytes: 16 << 10,
        log_bytes: 200,
        sync_bytes: 64 << 10,
        auxiliary_entries: 64,
        cached_containers: 4,
        ..Settings::default()
    }
}

#[test]
fn rule_00_trimmed_ranges_wait_before_they_are_more_than_a_frame_of_the_log_takes() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(4096));
    let served = serve(directory.path(), Settings::default());
    served.archive.create_volume("v", 64 * BLOCK as u64, 1).unwrap();
    let volume = served.exports.open("v").unwrap();
    volume.write(0, &noise(1, 64 * BLOCK)).unwrap();
    volume.flush().unwrap();
    drop((volume, served));
    let served = serve(
        directory.path(),
        Settings { zeroed_ranges: 4, frame_bytes: 200, ..Settings::default() },
    );
    let volume = served.exports.open("v").unwrap();
    for block in (0..64).step_by(2) {
        volume.trim(block * BLOCK as u64, BLOCK as u64).unwrap();
    }
    volume.flush().unwrap();
    drop((volume, served));
    let served = serve(directory.path(), Settings::default());
    let volume = served.exports.open("v").unwrap();
    let bytes = read(&*volume, 0, 64 * BLOCK).unwrap();
    assert!(
        bytes
            .chunks(BLOCK)
            .enumerate()
            .all(|(n, block)| block.iter().all(|byte| *byte == 0) == (n % 2 == 0))
    );
}

#[test]
fn rule_00_a_change_that_no_frame_of_the_log_takes_is_refused_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(4096));
    let served = serve(directory.path(), Settings { frame_bytes: 100, ..Settings::default() });
    served.archive.create_volume("small", BLOCK as u64, 1).unwrap();
    let refused =
        served.archive.create_volume(&"long".repeat(60), BLOCK as u64, 1).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("nothing was changed"), "{refused}");
    served.archive.create_volume("other", BLOCK as u64, 1).unwrap();
    drop(served);
    let archive = open(directory.path(), Settings::default());
    assert_eq!(archive.tables().volumes.all().len(), 2);
}

#[test]
fn a_volume_reads_as_it_was_written() {
    for (round, chunking) in
        [Chunking::FastCdc(1024), Chunking::Static(4096), Chunking::Rabin(8192)]
            .into_iter()
            .enumerate()
    {
        let directory = tempfile::tempdir().unwrap();
        create(directory.path(), chunking);
        let mut served = serve(directory.path(), small());
        served.archive.create_volume("v", 10 * BLOCK as u64, 1).unwrap();
        let mut model = vec![0u8; 10 * BLOCK];
        let mut volume = served.exports.open("v").unwrap();
        let mut dice = noise(round as u64 + 7, 20_000).into_iter();
        let mut below = |n: usize| {
            let roll = u32::from_le_bytes(std::array::from_fn(|_| dice.next().unwrap())) as usize;
            roll % n
        };
        for step in 0..120 {
            let unit = [1, 512, 4096, BLOCK][below(4)];
            let offset = below(model.len() / unit) * unit;
            let n = ((1 + below(3 * BLOCK / unit)) * unit).min(model.len() - offset);
            match below(10) {
                0..4 => {
                    let mut data = noise(below(6) as u64, n);
                    if below(3) == 0 {
                        data[n / 3..].fill(0);
                    }
                    volume.write(offset as u64, &data).unwrap();
                    model[offset..offset + n].copy_from_slice(&data);
                }
                4 => {
                    volume.write_zeroes(offset as u64, n as u64, false).unwrap();
                    model[offset..offset + n].fill(0);
                }
                5 => {
                    volume.trim(offset as u64, n as u64).unwrap();
                    let (start, end) = (offset.next_multiple_of(4096), (offset + n) / 4096 * 4096);
                    if start < end {
                        model[start..end].fill(0);
                    }
                }
                6 => volume.flush().unwrap(),
                7 if below(3) == 0 => {
                    // Another process makes the server read a snapshot that is not its own.
                    let other = open(directory.path(), small());
                    other.create_volume("w", 1, 1).unwrap();
                    other.delete_volume("w").unwrap();
                    other.rename_volume("v", "u").unwrap();
                    other.rename_volume("u", "v").unwrap();
                    served.volumes.tend(200).unwrap();
                }
                7 if below(6) == 0 => {
                    drop(volume);
                    served.volumes.close().unwrap();
                    drop(served);
                    served = serve(directory.path(), small());
                    volume = served.exports.open("v").unwrap();
                }
                _ => {
                    let found = read(&*volume, offset, n).unwrap();
                    let wrong: Vec<usize> = (0..n)
                        .filter(|&at| found[at] != model[offset + at])
                        .map(|at| at + offset)
                        .collect();
                    assert!(
                        wrong.is_empty(),
                        "step {step}: {n} at {offset}, wrong {:?} to {:?}",
                        wrong.first(),
                        wrong.last()
                    );
                }
            }
        }
        served.volumes.close().unwrap();
        let report = check(&served.archive, true, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well() && report.volumes == 1, "{report:?}");
    }
}

#[test]
fn a_second_generation_needs_few_reads_of_the_index() {
    let image = noise(9, 4 << 20);
    let mut reads = Vec::new();
    for filters in
        [vec![FilterName::ChunkIndex], vec![FilterName::BlockIndex, FilterName::ChunkIndex]]
    {
        let directory = tempfile::tempdir().unwrap();
        create(directory.path(), Chunking::FastCdc(1024));
        let settings =
            Settings { filters, page_cache_bytes: 0, auxiliary_entries: 64, ..Settings::default() };
        let served = serve(directory.path(), settings.clone());
        served.archive.create_volume("v", image.len() as u64, 1).unwrap();
        served.exports.open("v").unwrap().write(0, &image).unwrap();
        // The end of a server imports what it stored.
        served.volumes.close().unwrap();
        drop(served);
        let served = serve(directory.path(), settings);
        served.exports.open("v").unwrap().write(0, &image).unwrap();
        served.volumes.close().unwrap();
        let counts = served.volumes.counts();
        assert!(
            counts.duplicates == counts.chunks && counts.chunks > 2000 && counts.new_bytes == 0,
            "{counts:?}"
        );
        reads.push(counts.page_reads);
    }
    assert!(reads[0] > 1000 && reads[1] * 5 <= reads[0], "{reads:?}");
}

#[test]
fn a_lone_synced_write_costs_little() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(8 << 10));
    let served = serve(directory.path(), Settings::default());
    served.archive.create_volume("v", 16 << 20, 1).unwrap();
    let volume = served.exports.open("v").unwrap();
    volume.write(0, &noise(11, 16 << 20)).unwrap();
    volume.flush().unwrap();
    let before = served.volumes.counts().added_bytes;
    for n in 0..20 {
        volume.write((n * 777_777) / 4096 * 4096, &noise(100 + n, 4096)).unwrap();
        volume.flush().unwrap();
    }
    let each = (served.volumes.counts().added_bytes - before) / 20;
    // Two containers begin pages, and the log has a frame.
    assert!(each + 3 * 4096 < 160 << 10, "{each} bytes");
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(1024));
    let served = serve(directory.path(), small());
    served.archive.create_volume("v", 4 * BLOCK as u64, 1).unwrap();
    let volume = served.exports.open("v").unwrap();
    let size = 4 * BLOCK as u64;
    volume.write(0, &noise(1, 4 * BLOCK)).unwrap();
    volume.flush().unwrap();
    // Durable, and in memory only.
    volume.write(2 * BLOCK as u64, &noise(2, BLOCK)).unwrap();
    served.archive.resize_volume("v", size / 2).unwrap();
    assert_eq!(volume.write(2 * BLOCK as u64, &[1]).unwrap_err().kind(), Kind::InvalidInput);
    served.archive.resize_volume("v", size).unwrap();
    assert!(read(&*volume, 2 * BLOCK, 2 * BLOCK).unwrap().iter().all(|&byte| byte == 0));
    volume.write(3 * BLOCK as u64 + 512, &[5; 512]).unwrap();
    volume.flush().unwrap();
    let found = read(&*volume, 2 * BLOCK, 2 * BLOCK).unwrap();
    assert!(
        found
            .iter()
            .enumerate()
            .all(|(at, &byte)| byte == u8::from((BLOCK + 512..BLOCK + 1024).contains(&at)) * 5)
    );
    served.archive.delete_volume("v").unwrap();
    volume.flush().unwrap();
    assert_eq!(volume.size(), 0);
    assert_eq!(volume.write(0, &[1]).unwrap_err().kind(), Kind::NotFound);
}

/// A volume `v` of four blocks, of which two are written, and a byte of the first one is damaged.
fn a_damaged_chunk_of_the_first_block(directory: &std::path::Path, settings: Settings) {
    {
        let served = serve(directory, settings);
        served.archive.create_volume("v", 4 * BLOCK as u64, 1).unwrap();
        let volume = served.exports.open("v").unwrap();
        volume.write(0, &noise(1, 2 * BLOCK)).unwrap();
        volume.flush().unwrap();
        drop(volume);
        served.volumes.close().unwrap();
    }
    let segment = directory.join("segment-00000001");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[50_000] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
}

#[test]
fn a_part_of_a_block_is_written_without_reading_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(8192));
    a_damaged_chunk_of_the_first_block(directory.path(), Settings::default());
    let served = serve(directory.path(), Settings::default());
    let volume = served.exports.open("v").unwrap();
    // One write begins and ends inside of chunks, whatever their cuts; one lies where the damage is.
    let mut expected = noise(1, 2 * BLOCK);
    let writes = [(BLOCK + 512, 512), (BLOCK + 5 * 4096, 4096), (30_720, 40_960), (0, 512)];
    for (n, (at, bytes)) in writes.into_iter().enumerate() {
        let data = noise(100 + n as u64, bytes);
        expected[at..at + bytes].copy_from_slice(&data);
        volume.write(at as u64, &data).unwrap();
        volume.flush().unwrap();
    }
    let counts = served.volumes.counts();
    assert_eq!(counts.new_bytes, writes.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>());
    drop(volume);
    served.volumes.close().unwrap();
    drop(served);
    let served = serve(directory.path(), Settings::default());
    let volume = served.exports.open("v").unwrap();
    // The damage was overwritten: its chunk may be damaged still, and what is left of it can't be read.
    let mut there = 0;
    for at in (0..2 * BLOCK).step_by(4096) {
        match read(&*volume, at, 4096) {
            Ok(bytes) => {
                assert!(bytes == expected[at..at + 4096], "at {at}");
                there += 4096;
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt);
                let written = 30_720 <= at && at + 4096 <= 71_680;
                assert!(at < BLOCK && !written, "{error} at {at}");
            }
        }
    }
    assert!(there >= BLOCK + 36_864, "only {there} bytes can be read");
}

#[test]
fn a_flush_tells_what_a_drain_in_the_background_lost() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(8192));
    // Blocks that are written in part are read.
    let settings = || Settings { log_bytes: 1 << 20, patched_parts: 0, ..Settings::default() };
    a_damaged_chunk_of_the_first_block(directory.path(), settings());
    let served = serve(directory.path(), settings());
    let volume = served.exports.open("v").unwrap();
    volume.write(0, &[1; 4096]).unwrap();
    // Idle writes are drained: the rest of the block can't be read.
    (0..3).for_each(|n| served.volumes.tend(200 + n).unwrap());
    let losses = served.volumes.take_losses();
    assert!(losses.len() == 1 && losses[0].error.to_string().contains("'v'"), "{losses:?}");
    assert!(served.volumes.take_losses().is_empty());
    let later = noise(3, BLOCK);
    volume.write(2 * BLOCK as u64, &later).unwrap();
    volume.flush().unwrap_err();
    // Told once; the other blocks are there.
    volume.flush().unwrap();
    assert!(read(&*volume, 2 * BLOCK, BLOCK).unwrap() == later);
    read(&*volume, 0, 4096).unwrap_err();
}

#[test]
fn rule_13_what_a_volume_lost_is_told_to_those_who_hold_it_and_to_nobody_else() {
    for idle in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let format = Format {
            chunking: Chunking::FastCdc(8192),
            reserve_bytes: 1 << 20,
            clones: true,
            ..Format::new([1; 16], [2; 32], [3; 16])
        };
        Archive::create(&Directory::create(directory.path()).unwrap(), &format).unwrap();
        // Blocks that are written in part are read.
        let settings = || Settings { log_bytes: 1 << 20, patched_parts: 0, ..Settings::default() };
        a_damaged_chunk_of_the_first_block(directory.path(), settings());
        let served = serve(directory.path(), settings());
        served.archive.create_volume("other", 4 * BLOCK as u64, 1).unwrap();
        let [his, beside, other] =
            ["v", "v", "other"].map(|name| served.exports.open(name).unwrap());
        let early = his.write(2 * BLOCK as u64, &[2; 4096]).unwrap();
        his.wait(early).unwrap();
        let lost = his.write(0, &[1; 4096]).unwrap();
        let theirs = other.write(0, &[3; 4096]).unwrap();
        if idle {
            (0..3).for_each(|n| served.volumes.tend(200 + n).unwrap());
        }
        // The other one comes first, and is told nothing.
        other.flush().unwrap();
        other.wait(theirs).unwrap();
        served.volumes.clone_volume("other", &format!("clone{idle}"), true).unwrap();
        let refused = served.volumes.clone_volume("v", "clone", true).unwrap_err();
        assert!(refused.to_string().contains("volume 'v'"), "{refused}");
        // Whoever waits for the write is told each time; a later write is told once beside it.
        // Whoever opens the volume is told too, until somebody who was told goes on: the answer may not have
        // arrived.
        assert_eq!(his.wait(lost).unwrap_err().kind(), Kind::Corrupt);
        let again = served.exports.open("v").unwrap();
        assert_eq!(again.flush().unwrap_err().kind(), Kind::Corrupt);
        assert_eq!(his.wait(lost).unwrap_err().kind(), Kind::Corrupt);
        served.exports.open("v").unwrap().flush().unwrap();
        let later = his.write(3 * BLOCK as u64, &[4; 4096]).unwrap();
        his.wait(later).unwrap();
        beside.wait(later).unwrap_err();
        beside.wait(later).unwrap();
        // Each who holds the volume is told by a flush, once.
        for client in [&his, &beside] {
            assert_eq!(client.flush().unwrap_err().kind(), Kind::Corrupt);
            client.flush().unwrap();
        }
        served.exports.open("v").unwrap().flush().unwrap();
        other.flush().unwrap();
        served.volumes.clone_volume("v", "clone", true).unwrap();
        assert_eq!(served.volumes.take_losses().len(), 1);
        served.volumes.close().unwrap();
        assert!(served.volumes.take_losses().is_empty());
    }
}

#[test]
fn rule_12_what_a_huge_range_holds_is_told_in_parts() {
    // Each block of it looked at, while all volumes of the archive wait, would take hours.
    let whole = 1 << 55;
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(4096));
    let served = serve(directory.path(), Settings::default());
    served.archive.create_volume("v", whole, 1).unwrap();
    let volume = served.exports.open("v").unwrap();
    volume.trim(0, whole).unwrap();
    let written = [3, 4, 1 << 20];
    for block in written {
        volume.write(block * BLOCK as u64, &noise(block, BLOCK)).unwrap();
    }
    for _ in 0..2 {
        let (mut at, mut told) = (0, Vec::new());
        while at < whole {
            let extents = volume.extents(at, whole - at, 2).unwrap();
            assert!((1..=2).contains(&extents.len()));
            for extent in extents {
                let block = at / BLOCK as u64;
                if extent.kind == ExtentKind::Data {
                    told.extend(block..block + extent.bytes / BLOCK as u64);
                }
                at += extent.bytes;
            }
        }
        assert_eq!((at, &told[..]), (whole, &written[..]));
        volume.flush().unwrap();
    }
}

#[test]
fn rule_12_a_write_that_reads_the_disk_keeps_no_other_volume_waiting() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), Chunking::FastCdc(4096));
    let served = serve(directory.path(), Settings::default());
    for name in ["one", "other"] {
        served.archive.create_volume(name, 1 << 20, 100).unwrap();
    }
    let one = served.exports.open("one").unwrap();
    one.write(0, &noise(1, BLOCK)).unwrap();
    one.flush().unwrap();
    drop(one);
    served.volumes.close().unwrap();
    drop(served);
    // While it is set, reads of data stand still.
    let (holds, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (set, count) = (holds.clone(), held.clone());
    let watch: Watch = Arc::new(move |name, call, does| {
        if name.starts_with("segment-") && matches!(call, Call::Read(..)) {
            count.fetch_add(u64::from(set.load(SeqCst)), SeqCst);
            while set.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        does()
    });
    let files = Arc::new(Directory::open(directory.path(), true).unwrap());
    let watched = Arc::new(Watched { files, watch });
    let archive = Arc::new(Archive::open(watched, true, Settings::default()).unwrap());
    let volumes = Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100);
    let exports = ArchiveExports(volumes.clone());
    let (one, other) = (exports.open("one").unwrap(), exports.open("other").unwrap());
    holds.store(true, SeqCst);
    // Part of a sector: the rest is read.
    let writes = std::thread::spawn(move || one.write(5, &[7; 100]).map(drop));
    while held.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(other.write(0, &noise(2, BLOCK)).map(drop)));
    let answered = told.recv_timeout(Duration::from_secs(20));
    holds.store(false, SeqCst);
    answered.unwrap().unwrap();
    writes.join().unwrap().unwrap();
    volumes.close().unwrap();
}

/// A directory with an archive that has clones.
fn with_clones() -> tempfile::TempDir {
    let dir =
        tempfile::Builder::new().prefix("clones").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let format =
        Format { reserve_bytes: 1 << 20, clones: true, ..Format::new([1; 16], [2; 32], [3; 16]) };
    Archive::create(&Directory::create(&dir.path().join("a")).unwrap(), &format).unwrap();
    dir
}

fn collect(archive: &Arc<Archive>) {
    let options = support::options(10_000);
    Collection::begin(archive, options).unwrap().run(&mut |_| ()).unwrap();
}

#[test]
fn a_clone_has_what_was_written_and_shares_it_until_one_of_both_is_written_to() {
    let dir = with_clones();
    let place = dir.path().join("a");
    let content = noise(5, 40 * BLOCK);
    let served = serve(&place, Settings::default());
    served.archive.create_volume("disk", 100 * BLOCK as u64, 1).unwrap();
    let disk = served.exports.open("disk").unwrap();
    disk.write(0, &content).unwrap();
    // All is counted, so that what a clone adds is counted by itself.
    disk.flush().unwrap();
    collect(&served.archive);
    disk.write(0, &noise(7, BLOCK)).unwrap();
    disk.write(0, &content[..BLOCK]).unwrap();
    // Nobody flushed; the clone has it.
    served.volumes.clone_volume("disk", "clone", false).unwrap();
    served.volumes.clone_volume("disk", "monday", true).unwrap();
    let stored = |archive: &Archive| -> u64 {
        archive
            .refresh()
            .unwrap()
            .containers
            .iter()
            .map(|one| u64::from(one.unwrap().stored.raw_bytes))
            .sum()
    };
    let before = stored(&served.archive);
    let clone = served.exports.open("clone").unwrap();
    assert_eq!(read(&*clone, 0, content.len()).unwrap(), content);
    let differs = noise(6, BLOCK);
    clone.write(0, &differs).unwrap();
    disk.trim(BLOCK as u64, BLOCK as u64).unwrap();
    disk.flush().unwrap();
    assert!(stored(&served.archive) - before < 3 * BLOCK as u64);
    // Nobody writes to the one that is read-only, or makes it smaller.
    let monday = served.exports.open("monday").unwrap();
    assert!(monday.is_read_only() && !disk.is_read_only());
    for refused in [
        monday.write(0, &differs).map(|_| ()),
        monday.trim(0, BLOCK as u64).map(|_| ()),
        monday.write_zeroes(0, 1, false).map(|_| ()),
        served.archive.resize_volume("monday", BLOCK as u64),
    ] {
        assert_eq!(refused.unwrap_err().kind(), Kind::Denied);
    }
    for (of, name, kind) in [
        ("none", "new", Kind::NotFound),
        ("disk", "clone", Kind::Exists),
        ("disk", "", Kind::InvalidInput),
    ] {
        let refused = served.volumes.clone_volume(of, name, false).unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    served.volumes.close().unwrap();
    drop((disk, clone, monday, served));

    // The source goes, and collections with it; the clones stay, also when opened anew.
    let archive = open(&place, Settings::default());
    archive.delete_volume("disk").unwrap();
    (0..3).for_each(|_| collect(&archive));
    drop(archive);
    let served = serve(&place, Settings::default());
    let of = |name: &str| read(&*served.exports.open(name).unwrap(), 0, content.len()).unwrap();
    assert_eq!(of("monday"), content);
    assert_eq!(of("clone")[..BLOCK], differs);
    assert_eq!(of("clone")[BLOCK..], content[BLOCK..]);
    assert!(served.exports.open("monday").unwrap().is_read_only());
    served.volumes.close().unwrap();
}

#[test]
fn rule_62_a_clone_that_is_written_with_what_its_source_has_stores_nothing() {
    let dir = with_clones();
    let place = dir.path().join("a");
    let image = noise(9, 4 << 20);
    let settings = || Settings {
        filters: vec![FilterName::BlockIndex, FilterName::ChunkIndex],
        page_cache_bytes: 0,
        auxiliary_entries: 64,
        ..Settings::default()
    };
    let served = serve(&place, settings());
    served.archive.create_volume("disk", image.len() as u64, 1).unwrap();
    served.exports.open("disk").unwrap().write(0, &image).unwrap();
    served.volumes.clone_volume("disk", "clone", false).unwrap();
    served.archive.create_volume("other", image.len() as u64, 1).unwrap();
    // The end of a server imports what it stored.
    served.volumes.close().unwrap();
    drop(served);
    // The cost of the source's content when it is written again.
    let written = |name: &str| {
        let served = serve(&place, settings());
        let volume = served.exports.open(name).unwrap();
        volume.write(0, &image).unwrap();
        volume.flush().unwrap();
        assert_eq!(read(&*volume, 0, image.len()).unwrap(), image);
        drop(volume);
        served.volumes.close().unwrap();
        let counts = served.volumes.counts();
        assert!(
            counts.duplicates == counts.chunks && counts.chunks > 400 && counts.new_bytes == 0,
            "{counts:?}"
        );
        counts.page_reads
    };
    // The block index answers for the blocks of a clone. It has nothing of the other volume.
    let (clone, other) = (written("clone"), written("other"));
    assert!(clone * 5 <= other && other > 200, "{clone} pages of the index, and {other}");
    let archive = open(&place, Settings::default());
    collect(&archive);
    let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well() && report.volumes == 3, "{report:?}");
}

#[test]
fn rule_62_a_clone_reads_no_data_when_it_is_made_and_when_it_is_counted() {
    let dir = with_clones();
    let place = dir.path().join("a");
    let content = noise(5, 40 * BLOCK);
    let served = serve(&place, Settings::default());
    served.archive.create_volume("disk", 100 * BLOCK as u64, 1).unwrap();
    served.exports.open("disk").unwrap().write(0, &content).unwrap();
    served.volumes.close().unwrap();
    collect(&served.archive);
    drop(served);

    // Reads of segments, each with its first byte and its end.
    type Reads = Arc<Mutex<Vec<(String, u64, u64)>>>;
    let reads = Reads::default();
    let watch: Watch = {
        let reads = reads.clone();
        Arc::new(move |name, call, does| {
            if let Call::Read(at, bytes) = call
                && name.starts_with("segment-")
            {
                reads.lock().unwrap().push((name.to_owned(), *at, at + bytes));
            }
            does()
        })
    };
    let files = Arc::new(Directory::open(&place, true).unwrap());
    let watched = Arc::new(Watched { files, watch });
    let archive = Arc::new(Archive::open(watched, true, Settings::default()).unwrap());
    let volumes = Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100);
    reads.lock().unwrap().clear();
    for n in 0..10 {
        volumes.clone_volume("disk", &format!("clone{n}"), n % 2 == 0).unwrap();
    }
    assert_eq!(*reads.lock().unwrap(), []);
    volumes.close().unwrap();
    drop(volumes);

    // Its mappings are counted once more: recipes are read, and no content.
    collect(&archive);
    let tables = archive.tables();
    let stored = tables.containers.iter().map(|one| one.unwrap().stored);
    let data: Vec<(String, u64, u64)> = stored
        .filter(|one| one.kind == ContainerKind::Data)
        .map(|one| {
            let groups = one.place.at + u64::from(one.place.meta_bytes);
            let end = one.place.at + u64::from(one.place.bytes);
            (format!("segment-{:08}", one.place.segment), groups, end)
        })
        .collect();
    let of_data = |reads: &Reads| {
        let reads = reads.lock().unwrap();
        let is_data = |(name, at, end): &&(String, u64, u64)| {
            data.iter().any(|(of, from, to)| of == name && at < to && from < end)
        };
        (reads.len(), reads.iter().filter(is_data).count())
    };
    let (all, content_reads) = of_data(&reads);
    assert!(all > 0 && content_reads == 0, "{content_reads} of {all} reads");
    // Reading a clone reads data, and the watch sees it.
    let exports = ArchiveExports(Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100));
    let clone = exports.open("clone1").unwrap();
    assert_eq!(read(&*clone, 0, content.len()).unwrap(), content);
    assert!(of_data(&reads).1 > 0);
}

#[test]
fn clones_share_the_pages_of_their_maps_on_the_disk() {
    let dir = with_clones();
    let place = dir.path().join("a");
    // Each change is followed by a snapshot of the tables.
    let settings = || Settings { log_bytes: 1, ..Settings::default() };
    let served = serve(&place, settings());
    served.archive.create_volume("disk", 4096 * BLOCK as u64, 1).unwrap();
    let disk = served.exports.open("disk").unwrap();
    for leaf in 0..8 {
        disk.write(leaf * 512 * BLOCK as u64, &noise(leaf, 4096)).unwrap();
    }
    served.volumes.close().unwrap();
    drop((disk, served));
    let pages = || std::fs::metadata(place.join("maps")).unwrap().len();
    let archive = open(&place, settings());
    archive.create_volume("a", BLOCK as u64, 1).unwrap();
    archive.create_volume("b", BLOCK as u64, 1).unwrap();
    let before = pages();
    for n in 0..20 {
        archive.clone_volume("disk", &format!("clone{n}"), false, 2).unwrap();
    }
    archive.create_volume("c", BLOCK as u64, 1).unwrap();
    assert_eq!(pages(), before);
    drop(archive);
    // Opened anew, a page is in memory once.
    let served = serve(&place, settings());
    for n in 0..20 {
        let clone = served.exports.open(&format!("clone{n}")).unwrap();
        assert_eq!(read(&*clone, 3 * 512 * BLOCK, 4096).unwrap(), noise(3, 4096));
    }
    served.volumes.close().unwrap();
}

#[test]
fn an_archive_of_before_clones_refuses_them_and_says_why() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    create(&dir.path().join("a"), Chunking::Static(4096));
    let archive = open(&dir.path().join("a"), Settings::default());
    archive.create_volume("disk", BLOCK as u64, 1).unwrap();
    let refused = archive.clone_volume("disk", "clone", false, 1).unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    assert!(refused.to_string().contains("onefold upgrade"), "{refused}");
}
