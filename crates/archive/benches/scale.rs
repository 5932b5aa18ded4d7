//! The costs that grow with an archive: time and memory of opening it, of a small put, of a
//! listing, and of a collection that finds nothing to do, with a thousand, a hundred thousand and a
//! million containers, and as many streams. In process. `cargo xtask bench archive-scale` runs it.
//!
//! usage: scale --directory PATH [--quick] [--containers N] [--streams N]
//!
//! An archive's tables are made by records as puts would have written them, and its first snapshot
//! and usage counts hold them; the containers themselves are not there, and nothing reads them. The
//! chunk index is empty. Each verb is a process of its own, so that its memory is its own.
//!
//! The rows of bytes are by the system's figures: what opening reads, and what a checkpoint writes that
//! follows one change. The rows below are of archives with leaves of tables: all read by opening, and
//! those of containers read on demand; the latter also with few streams, as the catalogue is always
//! read. The last rows are of usage counts as one list, and in pages: what a portion of counting
//! writes.

#![allow(clippy::unwrap_used, reason = "a bench panics where it fails")]

use std::{
    fs,
    io::{BufWriter, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_archive::{
    Archive, Class, Collection, CollectionOptions, ContainerId, ContainerKind, Feeder, Format,
    Gauge, Identity, Ingest, Kinds, Owner, Pieces, Place, PutRequest, READER_BYTES, Record,
    Settings, Shape, Stored, Stream, Tables, encode_frame, find_label, put, put_on,
};
use onefold_backend::{
    Directory,
    process::{cpu_time, memory},
};

/// Containers, and streams.
const SIZES: [u64; 3] = [1_000, 100_000, 1_000_000];

/// The verbs that are measured, as this program names them to itself.
const VERBS: [&str; 6] = ["open", "bytes", "put", "large", "ls", "gc"];

/// The tables of an archive with leaves.
const LEAF_VERBS: [&str; 4] = ["open", "bytes", "put", "gc"];

/// Streams where they are few.
const FEW_STREAMS: u64 = 1_000;

/// Containers whose records a frame has.
const IN_FRAME: usize = 20_000;

/// Chunks of 8 KiB in a container.
const CHUNKS: u32 = 512;

/// Bytes of a container, compressed.
const CONTAINER_BYTES: u32 = 3 << 20;

const SEGMENT_BYTES: u64 = 1 << 30;

/// Containers of a segment.
const IN_SEGMENT: u64 = SEGMENT_BYTES / CONTAINER_BYTES as u64;

/// Puts of which the median is told; some before them are not looked at.
const PUTS: usize = 200;
const PUTS_BEFORE: usize = 10;

const PUT_BYTES: usize = 2048;

/// How collections are done.
const COLLECTION: CollectionOptions = CollectionOptions {
    now: 2_000_000_000,
    keep_partial: 0,
    trash: 0,
    wait: true,
    reserve_bytes: 1 << 20,
    encode_all: false,
    doubts_clock: false,
};

const LARGE_BYTES: usize = 256 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let Some(directory) = value("--directory").map(PathBuf::from) else {
        println!("usage: scale --directory PATH [--quick] [--containers N] [--streams N]");
        return;
    };
    if let Some(verb) = value("--verb") {
        return measure(&verb, &directory);
    }
    let sizes = match value("--containers") {
        Some(containers) => vec![containers.parse().unwrap()],
        None if arguments.iter().any(|argument| argument == "--quick") => SIZES[..2].to_vec(),
        None => SIZES.to_vec(),
    };
    let streams: Option<u64> = value("--streams").map(|streams| streams.parse().unwrap());
    println!("| containers and streams | verb | ms | processor, ms | peak memory, MiB |");
    println!("|---|---|---|---|---|");
    for containers in sizes {
        let archive = directory.join(format!("{containers}.archive"));
        let tell = |verbs: &[&str], of: &str| {
            for verb in verbs {
                let output = Command::new(std::env::current_exe().unwrap())
                    .args(["--verb", verb, "--directory", archive.to_str().unwrap()])
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                said.lines().for_each(|line| println!("| {containers} | {of}{line} |"));
            }
            fs::remove_dir_all(&archive).unwrap();
        };
        if streams.is_none() {
            make(&archive, containers);
            tell(&VERBS, "");
        }
        let few = streams.unwrap_or(FEW_STREAMS).min(containers);
        for (streams, on_demand, of) in [
            (containers, false, "all leaves: "),
            (containers, true, "on demand: "),
            (few, false, "all leaves, few streams: "),
            (few, true, "on demand, few streams: "),
        ] {
            make_with_leaves(&archive, (containers, streams), (on_demand, false));
            tell(&LEAF_VERBS, of);
        }
        for (in_pages, of) in [(false, "counts as a list: "), (true, "counts in pages: ")] {
            make_with_leaves(
                &archive,
                (containers, streams.unwrap_or(containers)),
                (true, in_pages),
            );
            tell(&["counting"], of);
        }
    }
}

/// The same archive with its tables in leaves: its log has all records, and one checkpoint was
/// taken.
fn make_with_leaves(
    path: &Path,
    (containers, streams): (u64, u64),
    (on_demand, counts_in_pages): (bool, bool),
) {
    let files = Directory::create(path).unwrap();
    let format = Format {
        reserve_bytes: 1 << 20,
        leaves: true,
        on_demand,
        counts_in_pages,
        ..Format::new([1; 16], [2; 32], [3; 16])
    };
    Archive::create(&files, &format).unwrap();
    let label = find_label(&files).unwrap();
    let identity = Identity::new(label.id, &label.secret);
    write_counts(path, &identity, containers);
    let (mut log, mut chain, mut sequence) = (Vec::new(), 0, 0);
    let mut append = |records: &[Record]| {
        sequence += 1;
        let (bytes, checksum) =
            encode_frame(&identity, sequence, 1, chain, &Record::encode_all(records)).unwrap();
        log.extend(bytes);
        chain = checksum;
    };
    let all: Vec<u64> = (0..containers).collect();
    all.chunks(IN_FRAME).for_each(|some| {
        append(&some.iter().flat_map(|&n| records(n, streams)).collect::<Vec<_>>());
    });
    append(&ended(containers, streams));
    fs::write(path.join("log-0000000001"), log).unwrap();
    checkpoint(&open(path, true));
}

/// Bytes that portions of counting write: the first one in this form, one that follows a put of 2 KiB,
/// and one that follows the removal of a hundred streams from all over the archive.
fn count_portions(path: &Path) {
    let archive = open(path, true);
    let containers = archive.refresh().unwrap().containers.len() as u64;
    // When a stream goes whose recipe can't be read, its chunks keep their counts; the recipe's pieces do not.
    for segment in 1..=(containers / IN_SEGMENT) as u32 + 1 {
        let file = fs::File::create(path.join(format!("segment-{segment:08}"))).unwrap();
        file.set_len(SEGMENT_BYTES).unwrap();
    }
    let put_one = |name: &str| {
        let (name, shape) = (name.to_owned(), Shape::Bytes);
        let request = PutRequest { domain: None, name, shape, now: 1_800_000_000, wait: true };
        let bytes = request.name.clone().into_bytes().repeat(100);
        let one = |feeder: &mut Feeder<'_>| feeder.bytes(&bytes);
        drop(put(&archive, request, &Gauge::default(), one).unwrap());
    };
    let count = |what: &str| {
        let mut collection = Collection::begin(&archive, COLLECTION).unwrap();
        while collection.doing() != "counting references" {
            collection.step().unwrap();
        }
        let (before, taken) = (transferred(), timed(|| collection.step().unwrap()).1);
        let [read, written] = transferred();
        let kb = |bytes: u64| bytes / 1000;
        let (read, written) = (kb(read - before[0]), kb(written - before[1]));
        say(&format!("a portion after {what}: {written} kB written, {read} kB read"), &taken);
    };
    put_one("first");
    count("a put of 2 KiB, the first in this form");
    put_one("second");
    count("another");
    let all: Vec<String> = archive.refresh().unwrap().streams.keys().cloned().collect();
    let some = all.iter().step_by((all.len() / 100).max(1));
    some.for_each(|name| archive.remove(name).unwrap());
    count("the removal of a hundred streams");
}

/// Bytes that this process has read and written by calls of the system.
fn transferred() -> [u64; 2] {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    ["rchar: ", "wchar: "]
        .map(|name| io.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap())
}

/// One change, and a checkpoint behind it.
fn checkpoint(archive: &Archive) {
    let (from, to) = (name(7), format!("{}-renamed", name(7)));
    if archive.rename(&from, &to).is_err() {
        archive.rename(&to, &from).unwrap();
    }
}

fn count_bytes(path: &Path) {
    let before = transferred();
    let archive = open(path, true);
    let opened = transferred();
    println!("bytes read by opening | {} | |", opened[0] - before[0]);
    drop(archive);
    let settings = Settings { log_bytes: 1, ..Settings::default() };
    let files = Arc::new(Directory::open(path, true).unwrap());
    let archive = Archive::open(files, true, settings).unwrap();
    // The first one also has what the log had.
    checkpoint(&archive);
    let before = transferred();
    checkpoint(&archive);
    println!("bytes written by a checkpoint | {} | |", transferred()[1] - before[1]);
}

/// Makes an archive with so many containers, of which each came with a stream.
fn make(path: &Path, containers: u64) {
    let files = Directory::create(path).unwrap();
    let format = Format { reserve_bytes: 1 << 20, ..Format::new([1; 16], [2; 32], [3; 16]) };
    Archive::create(&files, &format).unwrap();
    let label = find_label(&files).unwrap();
    let identity = Identity::new(label.id, &label.secret);
    let tables = filled(containers);
    write_counts(path, &identity, containers);
    let body = tables.encode();
    let mut header = b"ONEFSNAP".to_vec();
    header.extend(1u64.to_le_bytes());
    header.extend((body.len() as u64).to_le_bytes());
    header.extend(identity.checksum(&body).to_le_bytes());
    header.extend(identity.checksum(&header).to_le_bytes());
    let snapshot = fs::OpenOptions::new().write(true).open(path.join("snapshot-0000000001"));
    let snapshot = snapshot.unwrap();
    snapshot.write_all_at(&header, 0).unwrap();
    snapshot.write_all_at(&body, header.len() as u64).unwrap();
    snapshot.sync_all().unwrap();
}

/// The tables of such an archive.
fn filled(containers: u64) -> Tables {
    let mut tables = Tables {
        next_id: 1,
        next_segment: 1,
        epoch: 1,
        ..Tables::new([1, 1, 0], Kinds::default())
    };
    for n in 0..containers {
        tables.apply(n + 1, records(n, containers)).unwrap();
    }
    tables.apply(containers + 1, ended(containers, containers)).unwrap();
    tables
}

/// The records of a put of a container, one of so many streams.
fn records(n: u64, streams: u64) -> Vec<Record> {
    let id = ContainerId(n + 1);
    let (segment, at) = ((n / IN_SEGMENT) as u32 + 1, n % IN_SEGMENT);
    let place = Place {
        segment,
        at: at * u64::from(CONTAINER_BYTES),
        bytes: CONTAINER_BYTES,
        meta_bytes: 120 + CHUNKS * 32,
    };
    let stored = Stored {
        id,
        kind: ContainerKind::Data,
        domain: 0,
        chunks: CHUNKS,
        raw_bytes: CHUNKS * 8192,
        place,
    };
    let reserved = (at == 0).then_some(Record::Reserved {
        owner: Owner::Ingest,
        first: id,
        count: IN_SEGMENT,
        segment: Some(segment),
        class: (Class::Plain, 0),
    });
    let recipe = vec![Pieces { container: id, first: 0, count: 1 }];
    let stream = Stream {
        shape: Shape::Bytes,
        domain: 0,
        created: 1_700_000_000 + n,
        bytes: u64::from(CHUNKS) * 8192,
        added: u64::from(CONTAINER_BYTES),
        chunks: u64::from(CHUNKS),
        recipe,
        listing: Vec::new(),
    };
    let put = Record::Put {
        name: name(n % streams),
        stream,
        containers: vec![stored],
        finished: Vec::new(),
    };
    reserved.into_iter().chain([put]).collect()
}

/// All is counted and imported.
fn ended(containers: u64, streams: u64) -> Vec<Record> {
    // Each put came, and what it replaced went.
    let differences = 2 * containers - streams;
    vec![
        Record::Counted { file: 1, differences, upto: containers + 1, proof: 0 },
        Record::Imported { files: Vec::new(), upto: containers + 1 },
    ]
}

/// Names as backups of fifty machines have them.
fn name(n: u64) -> String {
    format!("machine-{:02}/backup-{:08}", n % 50, n / 50)
}

/// Usage counts in runs of about forty chunks, each named by up to 64 others: no chunk is dead.
fn write_counts(path: &Path, identity: &Identity, containers: u64) {
    let mut out = BufWriter::new(fs::File::create(path.join("counts-0000000001")).unwrap());
    out.write_all(b"ONEFCNTS").unwrap();
    out.write_all(&1u64.to_le_bytes()).unwrap();
    let mut write = |block: &[u8]| {
        out.write_all(&(block.len() as u32).to_le_bytes()).unwrap();
        out.write_all(&identity.checksum(block).to_le_bytes()).unwrap();
        out.write_all(block).unwrap();
    };
    let mut block = Vec::new();
    for n in 0..containers {
        block.extend((n + 1).to_le_bytes());
        block.extend(CHUNKS.to_le_bytes());
        let run = |slot: u32| (n * u64::from(CHUNKS) + u64::from(slot)) / 40;
        let count = |slot| 1 + (run(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as u16;
        (0..CHUNKS).for_each(|slot| block.extend(count(slot).to_le_bytes()));
        if block.len() >= 64 << 10 {
            write(&block);
            block.clear();
        }
    }
    if !block.is_empty() {
        write(&block);
    }
    write(&[]);
    out.flush().unwrap();
}

/// Time by the clock and of the processor.
struct Taken {
    clock: Duration,
    processor: Duration,
}

fn timed<T>(does: impl FnOnce() -> T) -> (T, Taken) {
    let (clock, processor) = (Instant::now(), cpu_time());
    let done = does();
    (done, Taken { clock: clock.elapsed(), processor: cpu_time() - processor })
}

fn say(what: &str, taken: &Taken) {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let peak = memory().unwrap().peak_bytes >> 20;
    println!("{what} | {:.2} | {:.2} | {peak}", ms(taken.clock), ms(taken.processor));
}

fn open(path: &Path, writes: bool) -> Arc<Archive> {
    let settings =
        Settings { memory: if writes { u64::MAX } else { READER_BYTES }, ..Settings::default() };
    let files = Arc::new(Directory::open(path, writes).unwrap());
    Arc::new(Archive::open(files, writes, settings).unwrap())
}

fn measure(verb: &str, path: &Path) {
    match verb {
        "open" => {
            let (archive, taken) = timed(|| open(path, true));
            say("open", &taken);
            drop(archive);
        }
        "bytes" => count_bytes(path),
        "put" => put_small(path),
        "large" => put_large(path),
        "ls" => {
            let archive = open(path, false);
            let (bytes, taken) = timed(|| {
                let tables = archive.refresh().unwrap();
                let lines = tables
                    .streams
                    .iter()
                    .map(|(name, stream)| format!("{name} {} {}\n", stream.bytes, stream.created));
                lines.map(|line| line.len()).sum::<usize>()
            });
            assert!(bytes > 0);
            say("ls, when it is open", &taken);
        }
        "counting" => count_portions(path),
        "gc" => {
            let archive = open(path, true);
            let (done, taken) = timed(|| {
                Collection::begin(&archive, COLLECTION).unwrap().run(&mut |_| {}).unwrap()
            });
            assert_eq!(done.dropped + done.merged, 0);
            say("gc of nothing, when it is open", &taken);
        }
        other => panic!("there is no verb '{other}'"),
    }
}

/// Puts of 2 KiB: by one process after the other, and all by one.
fn put_small(path: &Path) {
    let archive = open(path, true);
    let small = |what: &str, n: usize| {
        let name = format!("machine-{:02}/{what}-{n:08}", n % 50);
        let request =
            PutRequest { domain: None, name, shape: Shape::Bytes, now: 1_800_000_000, wait: true };
        (request, format!("{what} {n:08} ").into_bytes().repeat(PUT_BYTES / 16))
    };
    let first = |n: usize| {
        let (request, bytes) = small("first", n);
        let one = |feeder: &mut Feeder<'_>| feeder.bytes(&bytes);
        timed(|| drop(put(&archive, request, &Gauge::default(), one).unwrap())).1
    };
    say("put of 2 KiB, when it is open", &median_of(first));
    let ingest = Ingest::begin(&archive, true, true).unwrap();
    let one_of_many = |n: usize| {
        let (request, bytes) = small("small", n);
        let one = |feeder: &mut Feeder<'_>| feeder.bytes(&bytes);
        timed(|| drop(put_on(&ingest, request, &Gauge::default(), one).unwrap())).1
    };
    say("put of 2 KiB, one of many", &median_of(one_of_many));
    // A commit and nothing else: an entry of the catalogue gets another name.
    let rename = |n: usize| {
        let (from, to) = (format!("machine-{:02}/small-{n:08}", n % 50), format!("renamed-{n}"));
        timed(|| archive.rename(&from, &to).unwrap()).1
    };
    say("rename, one of many", &median_of(rename));
}

/// A put of what nothing makes smaller.
fn put_large(path: &Path) {
    let archive = open(path, true);
    let mut state = 1u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let noise: Vec<u8> =
        std::iter::repeat_with(next).take(LARGE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    let request = PutRequest {
        domain: None,
        name: "large".into(),
        shape: Shape::Bytes,
        now: 1_800_000_000,
        wait: true,
    };
    let large = |feeder: &mut Feeder<'_>| feeder.bytes(&noise);
    let (_, taken) = timed(|| put(&archive, request, &Gauge::default(), large).unwrap());
    say("put of 256 MiB, when it is open", &taken);
}

/// The medians of what is done many times.
fn median_of(does: impl FnMut(usize) -> Taken) -> Taken {
    let all: Vec<Taken> = (0..PUTS_BEFORE + PUTS).map(does).skip(PUTS_BEFORE).collect();
    let of = |time: fn(&Taken) -> Duration| {
        let mut times: Vec<Duration> = all.iter().map(time).collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    Taken { clock: of(|one| one.clock), processor: of(|one| one.processor) }
}
