//! Traces: what is written is read, what is cut off is read up to the cut, what is wrong is named.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use onefold_block::Persistence;
use onefold_core::{Kind, Lba};
use onefold_lab::{
    Content,
    device::DeviceKind,
    replay::{Plan, replay},
    request::{Request, What},
    subject::{Choice, Scheme},
    trace::{self, Assumed, Op, Reader, Record, Writer},
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

fn write(microseconds: u64, lba: u64, first: bool) -> Record {
    let op = Op::Write {
        lba: Lba(lba),
        hash: [lba as u8; 16],
        lz4: 100 + lba as u16,
        fua: lba == 7,
        first,
        unaligned: lba == 3,
    };
    Record { microseconds, op }
}

/// One of each kind.
fn records() -> Vec<Record> {
    let at = |microseconds, op| Record { microseconds, op };
    vec![
        at(0, Op::Phase("begin".into())),
        write(1, 2, true),
        write(2, 3, false),
        write(3, 4, false),
        at(4, Op::Flush),
        write(4, 7, true),
        at(9, Op::Trim { first: Lba(0), blocks: 5 }),
        at(10, Op::Zeroes { first: Lba(999), blocks: 1, fua: true }),
        at(u64::MAX, Op::Flush),
    ]
}

fn made(path: &Path, records: &[Record]) {
    let mut writer = Writer::create(path, 1000).unwrap();
    records.iter().for_each(|record| writer.push(record).unwrap());
    writer.finish().unwrap();
}

/// The records of a trace, and the sentence about what is wrong.
fn read(path: &Path) -> (Vec<Record>, Option<String>, bool) {
    let mut reader = Reader::open(path).unwrap();
    let mut records = Vec::new();
    loop {
        match reader.next() {
            Some(Ok(record)) => records.push(record),
            Some(Err(error)) => {
                assert_eq!(error.kind(), Kind::Corrupt);
                assert!(reader.next().is_none());
                return (records, Some(error.to_string()), reader.was_cut());
            }
            None => return (records, None, reader.was_cut()),
        }
    }
}

#[test]
fn what_was_written_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.dtrace.zst");
    made(&path, &records());
    assert_eq!(read(&path), (records(), None, false));
    let reader = Reader::open(&path).unwrap();
    assert_eq!((reader.device_blocks(), reader.records()), (1000, Some(9)));
    // Nothing is overwritten.
    assert_eq!(Writer::create(&path, 1000).err().map(|error| error.kind()), Some(Kind::Exists));
    let requests: Vec<Request> = trace::open(&path, Assumed::default())
        .unwrap()
        .requests
        .map(|item| item.unwrap().1)
        .collect();
    assert_eq!(requests.len(), 7);
    let What::Write { first, blocks, fua } = &requests[1].what else { panic!("{requests:?}") };
    assert_eq!(
        (*first, blocks.len(), blocks[1], *fua),
        (Lba(2), 3, Content { hash: [3; 16], lz4: 103 }, false)
    );
    assert!(
        matches!(requests[3].what, What::Write { fua: true, .. })
            && requests[5].at == Duration::from_micros(10)
    );
}

#[test]
fn a_trace_that_was_not_finished_is_read_up_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.dtrace.zst");
    let mut writer = Writer::create(&path, 1000).unwrap();
    writer.push(&write(1, 1, true)).unwrap();
    writer.write_out().unwrap();
    writer.push(&write(2, 2, true)).unwrap();
    drop(writer);
    assert_eq!(read(&path), (vec![write(1, 1, true)], None, true));
    assert_eq!(Reader::open(&path).unwrap().records(), None);
    let plan = Plan::new(Choice::new(Scheme::Thin, Persistence::Weak), DeviceKind::SsdP);
    let outcome =
        replay(trace::open(&path, Assumed::default()).unwrap(), &plan, &mut |_| {}).unwrap();
    assert_eq!((outcome.cut_off, outcome.client_blocks), (true, 1));
}

#[test]
fn a_trace_that_was_cut_off_is_read_up_to_the_cut() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.dtrace.zst");
    let all: Vec<Record> = (0..200).map(|n| write(n, n, true)).collect();
    let mut writer = Writer::create(&path, 1000).unwrap();
    for record in &all {
        writer.push(record).unwrap();
        writer.write_out().unwrap();
    }
    writer.finish().unwrap();
    let whole = fs::read(&path).unwrap();
    let mut most = 0;
    for cut in (41..whole.len()).step_by(7) {
        fs::write(&path, &whole[..cut]).unwrap();
        let (records, wrong, was_cut) = read(&path);
        assert_eq!(
            (wrong, was_cut, &records[..]),
            (None, true, &all[..records.len()]),
            "cut at {cut}"
        );
        assert!(records.len() >= most);
        most = records.len();
    }
    assert!(most > 190);
    // Also one in a single frame, like those of other tools.
    fs::remove_file(&path).unwrap();
    let all: Vec<Record> = (0..20_000).map(|n| write(n, n % 1000, true)).collect();
    made(&path, &all);
    let stream = zstd::stream::decode_all(&fs::read(&path).unwrap()[..]).unwrap();
    let frame = zstd::stream::encode_all(&stream[..], 1).unwrap();
    fs::write(&path, &frame).unwrap();
    assert_eq!(read(&path), (all.clone(), None, false));
    fs::write(&path, &frame[..frame.len() - 1]).unwrap();
    let (records, wrong, was_cut) = read(&path);
    assert_eq!((wrong, was_cut, &records[..]), (None, true, &all[..records.len()]));
    assert!(records.len() > 10_000);
}

#[test]
fn hostile_traces_are_refused_with_a_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.dtrace.zst");
    made(&path, &records());
    let good = zstd::stream::decode_all(&fs::read(&path).unwrap()[..]).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        bad
    };
    let packed =
        |bytes: &[u8]| fs::write(&path, zstd::stream::encode_all(bytes, 1).unwrap()).unwrap();
    for (bad, says) in [
        (with(0, b"X"), "does not begin as a trace"),
        (with(8, &[0, 2, 0, 0]), "512 bytes"),
        (with(16, &[0; 8]), "device of 0 blocks"),
        (with(16, &[255; 8]), "device of 18446744073709551615"),
        (with(24, &[1]), "header is damaged"),
        (good[..20].to_vec(), "can't be expanded"),
        (Vec::new(), "can't be expanded"),
    ] {
        packed(&bad);
        let error = Reader::open(&path).err().unwrap();
        assert!(
            error.kind() == Kind::Corrupt && error.to_string().contains(says),
            "{says}: {error}"
        );
    }
    let record = |n: usize, at: usize| 32 + n * 32 + at;
    for (bad, says) in [
        (
            with(record(1, 8), &1000u32.to_le_bytes()),
            "record 1: a write of block 1000 on a device of 1000",
        ),
        (with(record(1, 12), &[5]), "record 1: kind 5"),
        (with(record(4, 13), &[8]), "record 4: flags 0x8"),
        (with(record(2, 14), &[0, 0]), "record 2: an LZ4 size of 0"),
        (with(record(2, 14), &4097u16.to_le_bytes()), "record 2: an LZ4 size of 4097"),
        (with(record(3, 0), &[1]), "record 3: its time is before"),
        (with(record(6, 16), &[0]), "record 6: a range of 0 blocks"),
        (with(record(6, 16), &u32::MAX.to_le_bytes()), "record 6: a range of 4294967295 blocks"),
        (with(record(6, 30), &[1]), "record 6: a range"),
        (with(record(7, 16), &[2]), "record 7: a range of 2 blocks at 999"),
        (with(12, &[8]), "record 8: there are more records"),
    ] {
        packed(&bad);
        let (_, wrong, _) = read(&path);
        assert!(wrong.as_ref().is_some_and(|wrong| wrong.contains(says)), "{says}: {wrong:?}");
        // The same through the requests, which is how a replay meets it.
        let failed =
            trace::open(&path, Assumed::default()).unwrap().requests.any(|item| item.is_err());
        assert!(failed, "{says}");
    }
    // A frame that is damaged, and one that wants more memory than a trace may.
    fs::remove_file(&path).unwrap();
    made(&path, &records());
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() - 10;
    bytes[at] ^= 0xff;
    fs::write(&path, &bytes).unwrap();
    let (records, wrong, cut) = read(&path);
    assert!(wrong.is_some() || cut || records != self::records());
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(27).unwrap();
    encoder.write_all(&good).unwrap();
    encoder.write_all(&vec![0; 200 << 20]).unwrap();
    fs::write(&path, encoder.finish().unwrap()).unwrap();
    assert!(Reader::open(&path).err().unwrap().to_string().contains("can't be expanded"));
}

#[test]
fn the_committed_traces_are_whole() {
    for (name, records, blocks) in
        [("apt", 413_590, 393_630), ("pgbench", 262_700, 225_125), ("srcver", 158_711, 158_574)]
    {
        let source = trace::open(&data(&format!("{name}.dtrace.zst")), Assumed::default()).unwrap();
        assert_eq!(source.steps, records, "{name}");
        let (mut written, mut last) = (0, 0);
        for item in source.requests {
            let (steps, request) = item.unwrap();
            written += request.what.written_blocks();
            last = steps;
        }
        assert_eq!((written, last), (blocks, records), "{name}");
    }
}

const PAGE: &str = "88b93b628d84082186026d9da044f173";
const SECTOR: &str = "bf619eac0cdf3f68d496ea9344137e8b";

fn text(lines: &str) -> Result<Vec<Request>, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.blkparse");
    fs::write(&path, lines).unwrap();
    let plain = trace::open(&path, Assumed::default()).map_err(|error| error.to_string())?;
    let plain: Vec<Request> = plain.requests.map(|item| item.unwrap().1).collect();
    fs::write(&path, zstd::stream::encode_all(lines.as_bytes(), 1).unwrap()).unwrap();
    let packed = trace::open(&path, Assumed::default()).unwrap();
    assert_eq!(packed.requests.map(|item| item.unwrap().1).collect::<Vec<_>>(), plain);
    Ok(plain)
}

#[test]
fn text_of_blkparse_is_read_with_a_hash_of_each_page_or_sector() {
    let other = SECTOR.replace('b', "c");
    let lines = format!(
        "5000 1 nfsd 800 8 W 6 0 {PAGE}\n6000 1 nfsd 800 8 R 6 0 {PAGE}\n7000 1 nfsd 16 16 W 6 0 \
         {PAGE}{}\n8000 1 x 0 8 W 6 0 {}\n9000 1 x 8 8 W 6 0 {other}{}\n8999 1 x 8 8 W 6 0 \
         620F0B67A91F7F74151BC5BE745B7110\n",
        PAGE.replace('8', "9"),
        SECTOR.repeat(8),
        SECTOR.repeat(7),
    );
    let requests = text(&lines).unwrap();
    let blocks: Vec<(u64, Vec<Content>)> = requests
        .iter()
        .map(|request| match &request.what {
            What::Write { first, blocks, fua: false } => (first.0, blocks.clone()),
            what => panic!("{what:?}"),
        })
        .collect();
    assert_eq!(
        requests.iter().map(|request| request.at.as_micros()).collect::<Vec<_>>(),
        [0, 2, 3, 4, 4]
    );
    assert_eq!(
        blocks.iter().map(|(first, blocks)| (*first, blocks.len())).collect::<Vec<_>>(),
        [(100, 1), (2, 2), (0, 1), (1, 1), (1, 1)]
    );
    assert_eq!(blocks[0].1[0].hash[..3], [0x88, 0xb9, 0x3b]);
    assert_eq!(blocks[1].1[0], blocks[0].1[0]);
    assert_eq!([blocks[2].1[0], blocks[4].1[0]], [Content::ZERO; 2]);
    assert_ne!(blocks[3].1[0], Content::ZERO);
}

#[test]
fn text_that_is_no_trace_is_refused_with_a_sentence() {
    for (lines, says) in [
        ("", "no write in it"),
        ("1 1 x 0 8 R 6 0 -\n", "no write in it"),
        ("hello\n", "line 1: nine words"),
        (&format!("x 1 x 0 8 W 6 0 {PAGE}\n"), "'x' is no time"),
        (&format!("1 1 x -8 8 W 6 0 {PAGE}\n"), "'-8' is no sector"),
        (&format!("1 1 x 4 8 W 6 0 {PAGE}\n"), "not whole blocks"),
        (&format!("1 1 x 8 0 W 6 0 {PAGE}\n"), "not whole blocks"),
        (&format!("1 1 x 18446744073709551608 8 W 6 0 {PAGE}\n"), "not whole blocks"),
        (&format!("1 1 x 8 8 D 6 0 {PAGE}\n"), "neither R nor W"),
        (&format!("1 1 x 8 16 W 6 0 {PAGE}\n"), "do not fit 2 blocks"),
        ("1 1 x 8 8 W 6 0 zz\n", "do not fit 1 blocks"),
        (&format!("1 1 x 8 8 W 6 0 {}\n", PAGE.replace('b', "g")), "do not fit"),
        (&"y".repeat(3 << 20), "too long"),
    ] {
        let wrong = text(lines).unwrap_err();
        assert!(wrong.contains(says), "{says}: {wrong}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    fs::write(&path, b"\xff\xfe\n").unwrap();
    assert!(trace::open(&path, Assumed::default()).err().unwrap().to_string().contains("no text"));
    assert_eq!(
        trace::open(Path::new("/nowhere/a"), Assumed::default()).err().unwrap().kind(),
        Kind::NotFound
    );
}
