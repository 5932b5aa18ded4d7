//! Sealed archives: all that an archive does works, and whoever has its directory reads nothing of it and
//! changes nothing unnoticed.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod golden;
mod support;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, Collection, Compression, EpochGuard, Format, FoundLabel, Ingest, KeySource, Label,
    Settings, change_keys, check, create_sealed, erase_keys, key_area, rebuild_chunk_index,
};
use onefold_backend::Directory;
use onefold_core::{Kind, Result};
use onefold_seal::{AREA_BYTES, Argon, Keys, SlotKind};
use support::{By, Call, Counter, Watch, Watched, get, noise, options, put, secret};

struct Desk(tempfile::TempDir);

impl Desk {
    /// An archive whose one slot opens by 32 times 1.
    fn new(compression: Compression) -> Desk {
        Desk::with(compression, 1)
    }

    /// The same with other chance.
    fn with(compression: Compression, chance: u64) -> Desk {
        Desk::of(compression, chance, false)
    }

    /// The same with padded containers, or not.
    fn of(compression: Compression, chance: u64, pads: bool) -> Desk {
        let desk = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let format = Format {
            reserve_bytes: 4096,
            segment_bytes: 16 << 20,
            compression,
            pads,
            ..Format::new([7; 16], [8; 32], [9; 16]).with_features()
        };
        let random = Arc::new(Counter(AtomicU64::new(chance << 32)));
        let mut keys = Keys::create(format.id, &*random).unwrap();
        keys.add_slot((SlotKind::File, ""), &secret(1), Argon::LEAST, (0, 0), &*random).unwrap();
        let files = Directory::create(&desk.at()).unwrap();
        create_sealed(&files, &format, &mut keys, random).unwrap();
        desk
    }

    fn at(&self) -> PathBuf {
        self.0.path().join("a")
    }

    fn open_by(&self, opener: By, writes: bool) -> Result<Arc<Archive>> {
        let settings = Settings {
            log_ahead_bytes: 4096,
            ahead_bytes: 1 << 20,
            opener: KeySource::new(Arc::new(opener)),
            ..Settings::default()
        };
        let files = Arc::new(Directory::open(&self.at(), writes).unwrap());
        Archive::open(files, writes, settings).map(Arc::new)
    }

    fn open(&self) -> Arc<Archive> {
        self.open_by(By(1, false), true).unwrap()
    }

    /// The bytes of all files.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let names = fs::read_dir(self.at()).unwrap();
        let read = names.map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        });
        read.collect()
    }

    fn write(&self, name: &str, at: u64, bytes: &[u8]) {
        let file = fs::File::options().write(true).open(self.at().join(name)).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }
}

fn finds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|part| part == wanted)
}

#[test]
fn rule_32_all_that_an_archive_does_works_and_no_file_shows_what_is_in_it() {
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let desk = Desk::new(compression);
        let canary = b"a canary sings in the mine, and nobody may hear it".repeat(20_000);
        let random = noise(3, 3_000_000);
        let both = [&canary[..], &random, &canary].concat();
        let archive = desk.open();
        put(&archive, "stream-of-the-canary", &both).unwrap();
        put(&archive, "noise-of-it", &random).unwrap();
        put(&archive, "gone-by-then", &noise(4, 2_000_000)).unwrap();
        assert_eq!(get(&archive, "stream-of-the-canary").unwrap(), both);
        drop(archive);
        let archive = desk.open();
        rebuild_chunk_index(&archive, &mut |_, _| {}).unwrap();
        let again = put(&archive, "once-again", &both).unwrap();
        assert!(again.new_bytes < 100_000, "{} bytes were new", again.new_bytes);
        archive.remove("gone-by-then").unwrap();
        for now in [1_000_000, 2_000_000, 3_000_000] {
            let collection = Collection::begin(&archive, options(now)).unwrap();
            collection.run(&mut |_| {}).unwrap();
        }
        assert_eq!(get(&archive, "stream-of-the-canary").unwrap(), both);
        assert_eq!(get(&archive, "noise-of-it").unwrap(), random);
        let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        drop(archive);
        let reader = desk.open_by(By(1, false), false).unwrap();
        assert_eq!(get(&reader, "once-again").unwrap(), both);
        for (name, bytes) in desk.files() {
            assert!(!finds(&bytes, b"canary"), "{name} has the canary");
            assert!(!finds(&bytes, &random[1_000_000..1_000_016]), "{name} has the noise");
            assert!(!finds(&bytes, b"noise-of-it") && !finds(&bytes, b"once-again"), "{name}");
        }
    }
}

#[test]
fn rule_51_two_archives_of_one_content_have_nothing_in_common() {
    let blocks = |desk: &Desk| {
        let mut all = std::collections::HashSet::new();
        for (name, bytes) in desk.files() {
            // The reserve is noise that is the same everywhere, and holds nothing.
            for block in bytes.chunks_exact(16).filter(|_| name != "reserve") {
                if block.iter().filter(|&&byte| byte == 0).count() < 4 {
                    all.insert(block.to_vec());
                }
            }
        }
        all
    };
    let desks: Vec<Desk> = (0..2)
        .map(|n| {
            let desk = Desk::with(Compression::None, 100 + n);
            let archive = desk.open();
            put(&archive, "stream", &noise(3, 1_000_000)).unwrap();
            desk
        })
        .collect();
    let (one, other) = (blocks(&desks[0]), blocks(&desks[1]));
    assert!(one.len() > 60_000, "{}", one.len());
    // What is not sealed: magic, the archive's id and lengths, of labels and containers.
    let common = one.intersection(&other).count();
    assert!(common < 16, "{common} blocks of 16 bytes are the same");
}

/// The bytes of a file that stay readable in a sealed archive, by `docs/archive-format.md`.
fn may_be_read(name: &str, bytes: &[u8], at: usize) -> bool {
    let begins = |with: &[u8], step: usize, header: usize| {
        let start = at / step * step;
        bytes[start..].starts_with(with) && at < start + header
    };
    match name.split(['-', '.']).next().unwrap() {
        "label" | "keys" | "vouched" | "claim" | "reserve" | "fast" => true,
        "segment" => begins(b"ONEFCONT", 4096, 128),
        "log" => begins(b"ONFL", 64, 40),
        "snapshot" => at < 40,
        "counts" => at < 16,
        _ => false,
    }
}

#[test]
fn rule_32_what_the_documents_do_not_list_as_readable_is_sealed() {
    for form in golden::forms().into_iter().filter(|form| form.sealed) {
        let desk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = desk.path().join("a");
        form.create(&at);
        form.fill_created(&at);
        form.is_whole(&form.open(&at, u64::MAX));
        only_what_may_be_read_is(&at);
    }
}

fn only_what_may_be_read_is(at: &Path) {
    let mut kinds = std::collections::BTreeSet::new();
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        if !bytes.is_empty() {
            kinds.insert(name.split('-').next().unwrap().to_owned());
        }
        for (n, part) in bytes.chunks_exact(16).enumerate() {
            // Numbers have zeroes, and words have letters; sealed bytes have five zeroes among 16 once in
            // 200 million. What nobody wrote is zero.
            let zeroes = part.iter().filter(|byte| **byte == 0).count();
            let is_text = part.iter().all(|byte| (b' '..=b'~').contains(byte));
            let is_plain =
                ((5..16).contains(&zeroes) || is_text) && !may_be_read(&name, &bytes, n * 16);
            assert!(!is_plain, "{name} at {}: {part:02x?}", n * 16);
        }
    }
    for kind in ["label", "log", "snapshot", "tables", "maps", "segment", "index", "counts"] {
        assert!(kinds.contains(kind), "{kind} is not among {kinds:?}");
    }
}

#[test]
fn rule_29_counts_that_somebody_changed_free_nothing() {
    let desk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let form = golden::forms().into_iter().find(|form| form.sealed).unwrap();
    let at = desk.path().join("a");
    form.create(&at);
    form.fill_created(&at);
    let counts = || -> Vec<PathBuf> {
        let names = fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<PathBuf> = names
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("counts-"))
            .collect();
        all.sort();
        all
    };
    for step in 0..12u8 {
        let newest = counts().pop().unwrap();
        let mut bytes = fs::read(&newest).unwrap();
        assert_eq!(bytes.len() % 4096, 0, "the length of {} tells something", newest.display());
        // The header, a page, the directory, and the whole of it as an older program's.
        let place = match step % 4 {
            0 => 20,
            1 => 60 + usize::from(step),
            2 => bytes.len() - 100,
            _ => 7,
        };
        bytes[place] ^= 1 << (step % 8);
        fs::write(&newest, &bytes).unwrap();
        let archive = form.open(&at, u64::MAX);
        put(&archive, &format!("more-{step}"), &golden::text(300 + usize::from(step))).unwrap();
        golden::collect(&archive);
        golden::collect(&archive);
        form.is_whole(&archive);
    }
}

#[test]
fn rule_29_whoever_changes_a_byte_is_noticed() {
    let desk = Desk::new(Compression::Zstd);
    let text: Vec<u8> = (0..40_000u32).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    let archive = desk.open();
    put(&archive, "stream", &text).unwrap();
    put(&archive, "noise", &noise(5, 300_000)).unwrap();
    drop(archive);
    let files = desk.files();
    let mut noticed = 0;
    for (name, bytes) in &files {
        if name == "reserve" || name == "claim" || bytes.is_empty() {
            continue;
        }
        let end = bytes.len().min(512 << 10);
        for at in (0..end).step_by((end / 60).max(1)) {
            desk.write(name, at as u64, &[bytes[at] ^ 1]);
            match desk.open_by(By(1, false), false) {
                Err(_) => noticed += 1,
                Ok(archive) => {
                    for (stream, content) in [("stream", &text), ("noise", &noise(5, 300_000))] {
                        match get(&archive, stream) {
                            Ok(found) => assert!(found == *content, "{name} at {at}"),
                            Err(_) => noticed += 1,
                        }
                    }
                }
            }
            desk.write(name, at as u64, &[bytes[at]]);
        }
    }
    assert!(noticed > 60, "{noticed}");
    assert_eq!(get(&desk.open(), "stream").unwrap(), text);
}

#[test]
fn rule_29_parts_of_an_archive_can_not_be_exchanged() {
    let desk = Desk::new(Compression::None);
    let archive = desk.open();
    let (one, other) = (noise(6, 128 << 10), noise(7, 128 << 10));
    put(&archive, "one", &one).unwrap();
    put(&archive, "other", &other).unwrap();
    let places: Vec<(u64, u32)> = archive
        .tables()
        .containers
        .iter()
        .map(|container| container.unwrap().stored.place)
        .map(|place| (place.at, place.bytes))
        .collect();
    drop(archive);
    let segment = fs::read(desk.at().join("segment-00000001"))
        .or_else(|_| fs::read(desk.at().join("segment-00000000")));
    let segment = segment.unwrap();
    let name = if desk.at().join("segment-00000001").exists() {
        "segment-00000001"
    } else {
        "segment-00000000"
    };
    let part = |n: usize| segment[places[n].0 as usize..][..places[n].1 as usize].to_vec();
    let same: Vec<usize> = (1..places.len()).filter(|&n| places[n].1 == places[0].1).collect();
    assert!(!same.is_empty(), "{places:?}");
    // The whole container of the other one, with its number put right.
    let mut moved = part(same[0]);
    moved[24..32].copy_from_slice(&part(0)[24..32]);
    desk.write(name, places[0].0, &moved);
    let archive = desk.open_by(By(1, false), false).unwrap();
    assert!(get(&archive, "one").is_err());
    drop(archive);
    // The groups alone, below the right header.
    let mut mixed = part(0);
    let meta = u32::from_le_bytes(mixed[48..52].try_into().unwrap()) as usize;
    let from = part(same[0]);
    mixed[meta..].copy_from_slice(&from[meta..]);
    desk.write(name, places[0].0, &mixed);
    let archive = desk.open_by(By(1, false), false).unwrap();
    assert!(get(&archive, "one").is_err());
    drop(archive);
    desk.write(name, places[0].0, &part(0));
    assert_eq!(get(&desk.open(), "one").unwrap(), one);
}

#[test]
fn rule_22_slots_come_and_go_and_a_removed_one_stays_away() {
    let desk = Desk::new(Compression::None);
    let archive = desk.open();
    put(&archive, "stream", b"content").unwrap();
    let add = |byte: u8| {
        change_keys(&archive, |keys, random| {
            keys.add_slot((SlotKind::File, "more"), &secret(byte), Argon::LEAST, (0, 0), random)
                .map(drop)
        })
        .unwrap();
    };
    add(2);
    let before = fs::read(desk.at().join("keys")).unwrap();
    assert_eq!(get(&desk.open_by(By(2, false), true).unwrap(), "stream").unwrap(), b"content");
    change_keys(&archive, |keys, _| keys.remove_slot(1)).unwrap();
    put(&archive, "later", b"more").unwrap();
    let refused = |opener: By, writes| desk.open_by(opener, writes).err().map(|error| error.kind());
    assert_eq!(refused(By(2, false), true), Some(Kind::Denied));
    // The old key area is put back, in one place or in both.
    let now = fs::read(desk.at().join("keys")).unwrap();
    for at in [0, AREA_BYTES] {
        desk.write("keys", at as u64, &before[at..at + AREA_BYTES]);
        assert_eq!(refused(By(2, false), false), Some(Kind::Denied), "copy at {at}");
        assert_eq!(refused(By(1, false), false), None);
        desk.write("keys", 0, &now);
    }
    desk.write("keys", 0, &before);
    assert_eq!(refused(By(2, false), false), Some(Kind::Denied));
    assert_eq!(refused(By(1, false), true), Some(Kind::Denied));
    assert_eq!(refused(By(2, true), false), None, "the operator said so");
    desk.write("keys", 0, &now);
    assert_eq!(get(&desk.open(), "later").unwrap(), b"more");
}

#[test]
fn rule_22_a_crash_between_the_copies_leaves_keys_that_open() {
    let desk = Desk::new(Compression::None);
    put(&desk.open(), "stream", b"content").unwrap();
    let whole = fs::read(desk.at().join("keys")).unwrap();
    for at in [0, AREA_BYTES] {
        desk.write("keys", at as u64, &noise(9, AREA_BYTES)[..AREA_BYTES]);
        let torn = fs::read(desk.at().join("keys")).unwrap();
        assert_eq!(get(&desk.open_by(By(1, false), false).unwrap(), "stream").unwrap(), b"content");
        assert!(fs::read(desk.at().join("keys")).unwrap() == torn, "a reader writes nothing");
        drop(desk.open());
        assert!(fs::read(desk.at().join("keys")).unwrap() == whole, "a writer makes it whole");
    }
}

#[test]
fn rule_22_a_forged_key_area_is_refused_and_copied_nowhere() {
    let desk = Desk::new(Compression::None);
    let archive = desk.open();
    put(&archive, "stream", b"content").unwrap();
    drop(archive);
    let whole = fs::read(desk.at().join("keys")).unwrap();
    let mut forged = whole[..AREA_BYTES].to_vec();
    forged[32] = 200;
    let seed = u64::from_le_bytes([7; 8]);
    let sum = onefold_core::checksum::fast(seed, &forged[..AREA_BYTES - 8]);
    forged[AREA_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
    for at in [0, AREA_BYTES] {
        desk.write("keys", at as u64, &forged);
        let error = desk.open_by(By(1, false), true).err().unwrap();
        assert!(error.to_string().contains("--accept-older"), "{error}");
        let other = AREA_BYTES - at;
        let now = fs::read(desk.at().join("keys")).unwrap();
        assert!(now[other..][..AREA_BYTES] == whole[other..][..AREA_BYTES]);
        drop(desk.open_by(By(1, true), true).unwrap());
        assert!(fs::read(desk.at().join("keys")).unwrap() == whole, "the forged copy is gone");
    }
}

#[test]
fn rule_26_who_erased_the_keys_reads_nothing_any_more() {
    let desk = Desk::new(Compression::None);
    let archive = desk.open();
    put(&archive, "stream", b"content").unwrap();
    erase_keys(&archive, &Counter(AtomicU64::new(77))).unwrap();
    drop(archive);
    let error = desk.open_by(By(1, true), true).err().unwrap();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(key_area(&Directory::open(&desk.at(), false).unwrap()).is_err());
}

/// A put went on with the keys that it had in memory, and said that its stream was stored.
#[test]
fn rule_26_keys_are_not_erased_while_somebody_stores_and_nobody_stores_afterwards() {
    let desk = Desk::new(Compression::None);
    let (archive, other) = (desk.open(), desk.open());
    let storing = Ingest::begin(&other, false, true).unwrap();
    let whole = desk.files();
    let error = erase_keys(&archive, &Counter(AtomicU64::new(77))).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("a server") && desk.files() == whole, "{error}");
    drop(storing);
    put(&archive, "stream", b"content").unwrap();
    let reading = EpochGuard::enter(&archive).unwrap();
    erase_keys(&archive, &Counter(AtomicU64::new(77))).unwrap();
    drop(reading);
    for late in [archive, other] {
        let error = Ingest::begin(&late, false, true).err().unwrap();
        assert_eq!(error.kind(), Kind::Stopped);
        assert!(error.to_string().contains("were destroyed"), "{error}");
    }
}

#[test]
fn rule_26_an_erasure_that_was_cut_off_is_ended_by_the_next_who_writes() {
    let desk = Desk::new(Compression::None);
    let archive = desk.open();
    put(&archive, "stream", b"content").unwrap();
    let before = fs::read(desk.at().join("keys")).unwrap();
    drop(archive);
    // What a crash leaves: the first copy says so, and the second one has its keys.
    let area = onefold_seal::KeyArea::decode(&before[..AREA_BYTES]).unwrap();
    let (_, root) = area.root(&secret(1), 0).unwrap().unwrap();
    let copies = [&before[..AREA_BYTES], &before[AREA_BYTES..]];
    let mut opened = onefold_seal::judge(
        copies,
        area.id(),
        (0, false),
        &mut |_| Ok(onefold_seal::Secret::take(&mut { *root.expose() })),
        onefold_seal::Care::default(),
    )
    .unwrap();
    let erased = opened.keys.erased_area(&Counter(AtomicU64::new(78))).unwrap();
    desk.write("keys", 0, erased.bytes());
    // Whoever reads is refused, also by the operator's word, and changes nothing.
    for accepts in [false, true] {
        let error = desk.open_by(By(1, accepts), false).err().unwrap();
        assert!(error.to_string().contains("destroyed"), "{error}");
    }
    assert_eq!(fs::read(desk.at().join("keys")).unwrap()[AREA_BYTES..], before[AREA_BYTES..]);
    assert!(desk.open_by(By(1, false), true).is_err());
    let after = fs::read(desk.at().join("keys")).unwrap();
    assert!(after.chunks(AREA_BYTES).all(|copy| onefold_seal::KeyArea::decode(copy).is_err()));
}

#[test]
fn rule_22_keys_that_are_changed_after_an_older_area_was_accepted_have_a_number_of_their_own() {
    let desk = Desk::new(Compression::None);
    let older = fs::read(desk.at().join("keys")).unwrap();
    let name = |archive: &Archive, name: &str| {
        change_keys(archive, |keys, random| {
            let argon = Argon::LEAST;
            keys.add_slot((SlotKind::File, name), &secret(5), argon, (0, 0), random).map(|_| ())
        })
        .unwrap();
    };
    name(&desk.open(), "first");
    let removed = fs::read(desk.at().join("keys")).unwrap();
    desk.write("keys", 0, &older);
    name(&desk.open_by(By(1, true), true).unwrap(), "other");
    let number =
        |bytes: &[u8]| onefold_seal::KeyArea::decode(&bytes[..AREA_BYTES]).unwrap().sequence();
    let now = fs::read(desk.at().join("keys")).unwrap();
    assert!(number(&now) > number(&removed));
    // The area that nobody wants any more does not open without a word.
    desk.write("keys", 0, &removed);
    assert_eq!(desk.open_by(By(1, false), true).err().unwrap().kind(), Kind::Denied);
}

#[test]
fn rule_22_an_older_copy_does_not_replace_a_damaged_newer_one() {
    let desk = Desk::new(Compression::None);
    let older = fs::read(desk.at().join("keys")).unwrap();
    change_keys(&desk.open(), |_, _| Ok(())).unwrap();
    let mut mixed = fs::read(desk.at().join("keys")).unwrap();
    mixed[..AREA_BYTES].copy_from_slice(&older[..AREA_BYTES]);
    mixed[AREA_BYTES + 3000] ^= 1;
    desk.write("keys", 0, &mixed);
    assert_eq!(desk.open_by(By(1, false), true).err().unwrap().kind(), Kind::Denied);
    assert!(fs::read(desk.at().join("keys")).unwrap() == mixed);
}

#[test]
fn rule_22_who_names_a_key_is_given_no_plain_archive_and_who_has_none_no_sealed_one() {
    let desk = Desk::new(Compression::None);
    let files = || Arc::new(Directory::open(&desk.at(), false).unwrap());
    let none = Archive::open(files(), false, Settings::default()).err().unwrap();
    assert_eq!(none.kind(), Kind::Denied);
    assert_eq!(desk.open_by(By(9, false), true).err().unwrap().kind(), Kind::Denied);
    let area = key_area(&*files()).unwrap();
    assert_eq!(area.slots().count(), 1);
    let plain = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let format = Format { reserve_bytes: 4096, ..Format::new([7; 16], [8; 32], [9; 16]) };
    Archive::create(&Directory::create(&plain.at()).unwrap(), &format).unwrap();
    assert_eq!(plain.open_by(By(1, false), true).err().unwrap().kind(), Kind::Denied);
    // A label without the seal, in place of the sealed one.
    let label = fs::read(plain.at().join("label")).unwrap();
    desk.write("label", 0, &label);
    assert_eq!(desk.open_by(By(1, false), true).err().unwrap().kind(), Kind::Denied);
}

/// Whoever holds the files puts something else in the place of the log, and takes away what says how far it
/// went. What a crash leaves of the first frame is none of it.
#[test]
fn rule_29_rubbish_in_the_place_of_the_log_is_no_empty_archive() {
    let desk = Desk::new(Compression::None);
    const LOG: &str = "log-0000000001";
    put(&desk.open(), "one", &noise(1, 100_000)).unwrap();
    put(&desk.open(), "two", &noise(2, 100_000)).unwrap();
    let good = fs::read(desk.at().join(LOG)).unwrap();
    let vouched = fs::read(desk.at().join("vouched")).unwrap();
    let frame = |at: usize| {
        let length = u32::from_le_bytes(good[at + 4..at + 8].try_into().unwrap()) as usize;
        at + (40 + length).next_multiple_of(64)
    };
    let begins = |at: usize| good.get(at..at + 4) == Some(&good[..4]);
    let first = frame(0);
    assert!(begins(first) && begins(frame(first)), "there are three frames");
    let with = |log: &[u8], vouched: &[u8]| {
        fs::write(desk.at().join(LOG), log).unwrap();
        fs::write(desk.at().join("vouched"), vouched).unwrap();
        [false, true].map(|writes| desk.open_by(By(1, false), writes).map(|a| a.tables().sequence))
    };
    let changed = |at: &[usize]| {
        let mut log = good.clone();
        at.iter().for_each(|at| log[*at] ^= 1);
        log
    };
    let mut bodies = Vec::new();
    let mut at = 0;
    while begins(at) {
        bodies.push(at + 50);
        at = frame(at);
    }
    for (what, log) in [
        ("noise", noise(3, good.len())),
        ("short noise", noise(3, 10)),
        ("its first frame in another place", [&noise(4, 64)[..], &good].concat()),
        ("no frame that opens", changed(&bodies)),
        ("a first frame that does not open", changed(&bodies[..1])),
    ] {
        for opened in with(&log, &[]) {
            let error = opened.err().unwrap_or_else(|| panic!("{what} was opened"));
            let told = error.to_string();
            assert!(error.kind() == Kind::Corrupt && told.contains("the operations log"), "{told}");
        }
    }
    for vouched in [&vouched[..], &[]] {
        let all = with(&good, vouched);
        assert!(all.iter().all(|sequence| sequence.as_ref().is_ok_and(|n| *n > 2)), "{all:?}");
    }
    // A crash in the first frame: each of its sectors is there or not.
    let torn = |sectors: u64| -> Vec<u8> {
        let mut log = vec![0; good.len()];
        log[..first].copy_from_slice(&good[..first]);
        for (n, sector) in log.chunks_mut(512).enumerate() {
            if sectors >> n & 1 == 0 {
                sector.fill(0);
            }
        }
        log
    };
    let sectors = first.div_ceil(512) as u32;
    for there in 0..(1 << sectors) - 1 {
        for opened in with(&torn(there), &[]) {
            assert_eq!(opened.unwrap(), 0, "{there:b} of {sectors} sectors");
        }
    }
    // Of a longer one the second sector, and not the first.
    for opened in with(&[&[0; 512][..], &noise(5, 512)].concat(), &[]) {
        assert_eq!(opened.unwrap(), 0, "a second sector");
    }
    for length in [0, 30, first / 2, first - 1] {
        for opened in with(&good[..length], &[]) {
            assert_eq!(opened.unwrap(), 0, "{length} bytes");
        }
    }
}

#[test]
fn rule_22_a_label_that_changes_between_two_looks_is_not_taken() {
    let desk = Desk::new(Compression::None);
    put(&desk.open(), "stream", b"content").unwrap();
    let good = fs::read(desk.at().join("label")).unwrap();
    let mut forged = Vec::new();
    for place in good.chunks(4096) {
        let FoundLabel::Good(label) = Label::decode(place) else { panic!("no label") };
        let label = Label { segment_bytes: 1 << 30, ..label };
        forged.extend(label.encode(&label.identity()).unwrap());
    }
    let mut opened = 0;
    // Which of the reads of the label show the forged one.
    for shows in 0..1u32 << 9 {
        let reads = AtomicU64::new(0);
        let (path, both) = (desk.at().join("label"), [good.clone(), forged.clone()]);
        let watch: Watch = Arc::new(move |name, call, does| {
            if name == "label" && matches!(call, Call::Read(..)) {
                let n = reads.fetch_add(1, Relaxed).min(31);
                fs::write(&path, &both[(shows >> n & 1) as usize]).unwrap();
            }
            does()
        });
        let files = Arc::new(Directory::open(&desk.at(), false).unwrap());
        let settings =
            Settings { opener: KeySource::new(Arc::new(By(1, false))), ..Settings::default() };
        if let Ok(archive) = Archive::open(Arc::new(Watched { files, watch }), false, settings) {
            opened += 1;
            assert_eq!(
                archive.label().segment_bytes,
                16 << 20,
                "reads {shows:b} show the forged one"
            );
        }
        fs::write(desk.at().join("label"), &good).unwrap();
    }
    assert!(opened > 0);
}

/// The numbers of 4 KiB steps that the containers of an archive take, as the headers on the disk say it.
fn steps(archive: &Archive, desk: &Desk) -> Vec<u32> {
    let tables = archive.refresh().unwrap();
    let containers = tables.containers.iter().map(Result::unwrap);
    containers
        .map(|container| {
            let place = container.stored.place;
            let name = format!("segment-{:08}", place.segment);
            let file = fs::File::open(desk.at().join(name)).unwrap();
            let mut said = [0; 4];
            file.read_exact_at(&mut said, place.at + 52).unwrap();
            assert_eq!(u32::from_le_bytes(said), place.bytes);
            assert_eq!(place.bytes % 4096, 0);
            place.bytes / 4096
        })
        .collect()
}

/// Padmé, with the unit of a step: the binary digits behind the first few are zero.
fn is_padded(steps: u32) -> bool {
    let digits = steps.ilog2();
    let counting = digits.checked_ilog2().map_or(0, |log| log + 1);
    steps.is_multiple_of(1 << digits.saturating_sub(counting))
}

#[test]
fn rule_34_containers_of_an_archive_that_pads_take_few_lengths_through_all_that_it_does() {
    for compression in [Compression::None, Compression::Zstd] {
        let desk = Desk::of(compression, 1, true);
        let archive = desk.open();
        let texts: Vec<Vec<u8>> = (0..6)
            .map(|n| {
                let (noise, text) = (noise(n + 1, 900_000), b"a text ".repeat(50_000));
                [&noise[..], &text, &noise[..9000 * n as usize]].concat()
            })
            .collect();
        for (n, text) in texts.iter().enumerate() {
            put(&archive, &format!("stream-{n}"), text).unwrap();
        }
        let before = steps(&archive, &desk);
        assert!(before.iter().any(|steps| *steps > 100), "{before:?}");
        assert!(before.iter().all(|steps| is_padded(*steps)), "{before:?}");
        // Collection merges what is left of containers that lost most of their chunks.
        let parts = [0, 1, 3].map(|n: usize| &texts[n][..90_000]).concat();
        put(&archive, "parts", &parts).unwrap();
        for gone in [0, 1, 3, 4] {
            archive.remove(&format!("stream-{gone}")).unwrap();
        }
        drop(archive);
        let archive = desk.open();
        for now in [1_000_000, 2_000_000, 3_000_000] {
            let collection = Collection::begin(&archive, options(now)).unwrap();
            collection.run(&mut |_| {}).unwrap();
        }
        let after = steps(&archive, &desk);
        assert_ne!(after, before);
        assert!(after.iter().all(|steps| is_padded(*steps)), "{after:?}");
        for kept in [2, 5] {
            assert!(get(&archive, &format!("stream-{kept}")).unwrap() == texts[kept]);
        }
        assert!(get(&archive, "parts").unwrap() == parts);
        assert!(
            archive.refresh().unwrap().containers.iter().any(|one| !one.unwrap().merged.is_empty())
        );
        rebuild_chunk_index(&archive, &mut |_, _| {}).unwrap();
        let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
        let again = put(&archive, "again", &texts[2]).unwrap();
        assert!(again.new_bytes < 100_000, "{} bytes were new", again.new_bytes);
    }
}

/// Without `--pad` a container takes the steps that it needs, and no others.
#[test]
fn rule_34_other_archives_have_the_lengths_that_they_had() {
    let desk = Desk::new(Compression::None);
    let archive = desk.open();
    for n in 0..6 {
        put(&archive, &format!("stream-{n}"), &noise(n + 1, 900_000 + 7000 * n as usize)).unwrap();
    }
    let all = steps(&archive, &desk);
    assert!(all.iter().any(|steps| !is_padded(*steps)), "{all:?}");
}
