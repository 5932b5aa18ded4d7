//! Domains of a sealed archive: nothing is shared between two of them, each stays what it is for ever, and
//! one that is erased is gone while all others go on.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, ArchiveExports, BackupRequest, Class, Collected, Collection, Compression, ContainerId,
    ContainerKind, Content, Event, FileMap, Format, Gauge, Ingest, KeySource, Kinds, Known, Owner,
    Pieces, Place, PutReport, PutRequest, Reader, Record, Session, Settings, Shape, SnapshotId,
    Stat, Stored, Stream, Tables, TreeReader, TreeWhat, Verify, Volumes, allow_domains, backup,
    check, create_domain, create_sealed, create_volume_in, diff, domains, erase_domain, forget,
    put as put_stream, rebuild_chunk_index,
};
use onefold_backend::Directory;
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Error, Exports, Files, Kind, Lba, Result, Volume,
    block::bytes_mut,
};
use onefold_seal::{AREA_BYTES, Argon, Keys, SlotKind};
use support::{By, Call, Counter, Watch, Watched, entry, get, noise, options, put, secret};

struct Desk(tempfile::TempDir);

impl Desk {
    /// A sealed archive that has one domain.
    fn plain() -> Desk {
        let desk = Desk(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
        let format = Format {
            reserve_bytes: 4096,
            segment_bytes: 16 << 20,
            compression: Compression::None,
            ..Format::new([7; 16], [8; 32], [9; 16]).with_features()
        };
        let random = Arc::new(Counter(AtomicU64::new(1 << 32)));
        let mut keys = Keys::create(format.id, &*random).unwrap();
        keys.add_slot((SlotKind::File, ""), &secret(1), Argon::LEAST, (0, 0), &*random).unwrap();
        let files = Directory::create(&desk.at()).unwrap();
        create_sealed(&files, &format, &mut keys, random).unwrap();
        desk
    }

    /// The same with domains 1 and 2 beside.
    fn new() -> Desk {
        let desk = Desk::plain();
        assert!(allow_domains(&desk.open()).unwrap());
        let archive = desk.open();
        assert_eq!(create_domain(&archive, "one").unwrap(), 1);
        assert_eq!(create_domain(&archive, "other").unwrap(), 2);
        desk
    }

    fn at(&self) -> PathBuf {
        self.0.path().join("a")
    }

    fn settings(by: By) -> Settings {
        Settings {
            log_ahead_bytes: 4096,
            ahead_bytes: 1 << 20,
            container_bytes: 256 << 10,
            opener: KeySource::new(Arc::new(by)),
            ..Settings::default()
        }
    }

    fn open_over(&self, files: Arc<dyn Files>, by: By, writes: bool) -> Result<Arc<Archive>> {
        Archive::open(files, writes, Desk::settings(by)).map(Arc::new)
    }

    fn open_by(&self, by: By, writes: bool) -> Result<Arc<Archive>> {
        self.open_over(Arc::new(Directory::open(&self.at(), writes).unwrap()), by, writes)
    }

    fn open(&self) -> Arc<Archive> {
        self.open_by(By(1, false), true).unwrap()
    }

    /// The bytes of a file.
    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.at().join(name)).unwrap()
    }

    fn write(&self, name: &str, at: u64, bytes: &[u8]) {
        let file = fs::File::options().write(true).open(self.at().join(name)).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }

    fn gc(&self) -> Collected {
        let mut all = Collected::default();
        for now in [1_000_000, 2_000_000] {
            let collection = Collection::begin(&self.open(), options(now)).unwrap();
            let done = collection.run(&mut |_| {}).unwrap();
            all.erased += done.erased;
            all.merged += done.merged;
            all.absent += done.absent;
            all.damaged += done.damaged;
        }
        all
    }
}

fn put_in(archive: &Arc<Archive>, domain: u32, name: &str, bytes: &[u8]) -> Result<PutReport> {
    let (name, domain) = (name.into(), Some(domain));
    let request = PutRequest { name, shape: Shape::Bytes, domain, now: 1_000, wait: false };
    put_stream(archive, request, &Gauge::default(), |feeder| feeder.bytes(bytes))
}

fn backup_in(
    archive: &Arc<Archive>,
    (id, set): (u8, &str),
    domain: Option<u32>,
    all: &[(&str, &[u8])],
) -> Result<u64> {
    let request = BackupRequest {
        id: SnapshotId([id; 16]),
        set: set.into(),
        domain,
        now: 1_000,
        ..BackupRequest::default()
    };
    let told = backup(archive, &request, false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        for (name, content) in all {
            feeder.bytes(content)?;
            let file = entry(name, TreeWhat::File(0, FileMap::default()));
            feeder.event(Event::File(file, Stat::default(), None))?;
        }
        feeder.event(Event::End(0))
    });
    told.map(|made| made.new_bytes)
}

fn read(archive: &Arc<Archive>, id: u8, name: &str) -> Result<Vec<u8>> {
    let mut reader = TreeReader::new(archive)?;
    let tables = reader.tables().clone();
    let snapshot = tables.snapshots.get(SnapshotId([id; 16]))?;
    let TreeWhat::File(bytes, map) = reader.find(snapshot, name.as_bytes())?.what else {
        panic!("{name} is no file");
    };
    let mut content = Vec::new();
    reader.read(bytes, &map, Verify::Chunks, &mut |part| {
        if let Content::Bytes(part) = part {
            content.extend_from_slice(part);
        }
        Ok(())
    })?;
    Ok(content)
}

/// Containers of a domain.
fn containers(archive: &Archive, domain: u32) -> usize {
    let tables = archive.refresh().unwrap();
    tables.containers.iter().filter(|one| one.as_ref().unwrap().stored.domain == domain).count()
}

/// Bytes of each chunk of a stream.
fn cuts(archive: &Arc<Archive>, name: &str) -> Vec<usize> {
    let mut reader = Reader::new(archive).unwrap();
    let stream = reader.stream(name).unwrap();
    let mut cuts = Vec::new();
    let mut take = |part: Content<'_>| {
        if let Content::Bytes(part) = part {
            cuts.push(part.len());
        }
        Ok(())
    };
    reader.read(&stream.recipe, Verify::Chunks, &mut take).unwrap();
    cuts
}

fn is_well(archive: &Arc<Archive>) {
    let report = check(archive, true, &mut |_, _, _| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    if let Some(counts) = report.counts {
        assert_eq!((counts.too_low.chunks, counts.too_high.chunks), (0, 0));
    }
}

#[test]
fn rule_25_nothing_is_shared_between_domains_and_all_within_one() {
    let desk = Desk::new();
    let archive = desk.open();
    let content = noise(5, 1_500_000);
    for (domain, name) in [(0, "a"), (1, "b"), (2, "c")] {
        let report = put_in(&archive, domain, name, &content).unwrap();
        assert_eq!(report.new_bytes, 1_500_000, "domain {domain}");
        let again = put_in(&archive, domain, &format!("{name}-again"), &content).unwrap();
        assert_eq!(again.new_bytes, 0, "domain {domain}");
        assert_eq!(get(&archive, name).unwrap(), content);
        let set = format!("set-{domain}");
        let of_tree =
            backup_in(&archive, (10 + domain as u8, &set), Some(domain), &[("f", &content)]);
        assert_eq!(of_tree.unwrap(), 0, "domain {domain}");
        assert_eq!(read(&archive, 10 + domain as u8, "f").unwrap(), content);
        assert!(containers(&archive, domain) > 2);
    }
    // Also what is one chunk wherever it is cut.
    for (domain, name) in [(0, "little-a"), (1, "little-b"), (2, "little-c")] {
        let report = put_in(&archive, domain, name, &content[..1000]).unwrap();
        assert_eq!(report.new_bytes, 1000, "domain {domain}");
        let again = put_in(&archive, domain, &format!("{name}-again"), &content[..1000]).unwrap();
        assert_eq!(again.new_bytes, 0, "domain {domain}");
        assert_eq!(get(&archive, name).unwrap(), content[..1000]);
    }
    // Where streams are cut is another place in each domain.
    let tables = archive.refresh().unwrap();
    let cuts: BTreeSet<Vec<usize>> = ["a", "b", "c"].map(|name| cuts(&archive, name)).into();
    assert!(cuts.len() == 3 && cuts.iter().all(|cuts| cuts.len() > 10), "{cuts:?}");
    // A collection, a rebuilt index, and another process change nothing of it.
    drop(archive);
    let archive = desk.open();
    rebuild_chunk_index(&archive, &mut |_, _| {}).unwrap();
    assert_eq!(put_in(&archive, 2, "more", &content).unwrap().new_bytes, 0);
    is_well(&archive);
    // Snapshots of two domains are not compared: what they have in common can't be told.
    let mut reader = TreeReader::new(&archive).unwrap();
    let [one, other] = [10, 11].map(|id| tables.snapshots.get(SnapshotId([id; 16])).unwrap());
    let error = diff(&mut reader, one, other, &mut |_, _| (), &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
}

#[test]
fn rule_25_a_set_and_a_stream_stay_in_their_domain() {
    let desk = Desk::new();
    let archive = desk.open();
    let content = noise(5, 100_000);
    backup_in(&archive, (1, "home"), Some(1), &[("f", &content)]).unwrap();
    for other in [0, 2] {
        let error = backup_in(&archive, (2, "home"), Some(other), &[("f", &content)]).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(error.to_string().contains("belongs to domain 1"), "{error}");
    }
    // Without a word it goes on where it was, and shares what is there.
    assert_eq!(backup_in(&archive, (2, "home"), None, &[("f", &content)]).unwrap(), 0);
    assert_eq!(archive.tables().snapshots.get(SnapshotId([2; 16])).unwrap().domain, 1);
    // A forgotten snapshot still says where the set belongs.
    forget(&archive, &[SnapshotId([1; 16]), SnapshotId([2; 16])], 1_000).unwrap();
    assert!(backup_in(&archive, (3, "home"), Some(2), &[("f", &content)]).is_err());
    put_in(&archive, 2, "s", &content).unwrap();
    let error = put_in(&archive, 1, "s", &content).unwrap_err();
    assert!(error.to_string().contains("belongs to domain 2"), "{error}");
    assert_eq!(put(&archive, "s", &content).unwrap().stream.domain, 2);
    assert_eq!(put(&archive, "new", &content).unwrap().stream.domain, 0);
    // A domain that never was.
    assert_eq!(put_in(&archive, 9, "x", &content).unwrap_err().kind(), Kind::Denied);
}

#[test]
fn rule_25_a_collection_joins_no_containers_of_two_domains() {
    let desk = Desk::new();
    let archive = desk.open();
    let part = |n: u64| noise(n, 20_000);
    // Streams of two domains that leave little of each container.
    for domain in [1, 2] {
        for n in 0..12 {
            let all: Vec<u8> =
                (0..10).flat_map(|m| part(1000 * u64::from(domain) + 10 * n + m)).collect();
            put_in(&archive, domain, &format!("gone-{domain}-{n}"), &all).unwrap();
            let kept = part(1000 * u64::from(domain) + 10 * n);
            put_in(&archive, domain, &format!("kept-{domain}-{n}"), &kept).unwrap();
        }
        for n in 0..12 {
            archive.remove(&format!("gone-{domain}-{n}")).unwrap();
        }
    }
    drop(archive);
    assert!(desk.gc().merged > 4);
    let archive = desk.open();
    for domain in [1u32, 2] {
        for n in 0..12 {
            let kept = get(&archive, &format!("kept-{domain}-{n}")).unwrap();
            assert_eq!(kept, part(1000 * u64::from(domain) + 10 * n));
        }
    }
    is_well(&archive);
}

/// An archive with content in three domains, of which domain 1 is still there.
fn filled() -> (Desk, Vec<u8>) {
    let desk = Desk::new();
    let archive = desk.open();
    let content = noise(5, 600_000);
    for domain in [0, 1, 2] {
        put_in(&archive, domain, &format!("s{domain}"), &content).unwrap();
        let (id, set) = (domain as u8 + 1, format!("set-{domain}"));
        backup_in(&archive, (id, &set), Some(domain), &[("f", &content), ("g", b"little")])
            .unwrap();
    }
    drop(archive);
    (desk, content)
}

/// Domain 1 is erased: all else is as it was.
fn looks_erased(desk: &Desk, content: &[u8], freed: bool) {
    let archive = desk.open_by(By(1, false), false).unwrap();
    for domain in [0, 2] {
        assert_eq!(get(&archive, &format!("s{domain}")).unwrap(), content);
        assert_eq!(read(&archive, domain as u8 + 1, "f").unwrap(), content);
    }
    for error in [get(&archive, "s1").unwrap_err(), read(&archive, 2, "f").unwrap_err()] {
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains("domain 1 was erased"), "{error}");
    }
    let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well(), "{:?}", report.problems);
    assert_eq!((report.erased.streams, report.erased.snapshots), (1, 1));
    assert_eq!((report.erased.containers == 0, report.erased.bytes == 0), (freed, freed));
    assert_eq!(report.erased.domains, BTreeSet::from([1]));
    let listed = domains(&archive).unwrap();
    let names: Vec<_> = listed.iter().map(|one| (one.number, one.name.as_deref())).collect();
    assert_eq!(names, [(0, Some("")), (1, None), (2, Some("other"))]);
}

#[test]
fn rule_26_an_erased_domain_is_gone_and_all_others_go_on() {
    let (desk, content) = filled();
    let old = desk.bytes("keys");
    erase_domain(&desk.open(), 1).unwrap();
    looks_erased(&desk, &content, false);
    // Its key is in neither copy, and both are the same.
    let keys = desk.bytes("keys");
    assert_eq!(keys[..AREA_BYTES], keys[AREA_BYTES..]);
    let wrapped = &old[2752 + 148..][20..148];
    assert!(!keys.windows(wrapped.len()).any(|part| part == wrapped));
    // The space is given back, though nothing of it can be read: not one byte of its containers.
    let tables = desk.open().tables();
    for container in &tables.containers {
        let stored = container.unwrap().stored;
        if stored.domain == 1 {
            let name = format!("segment-{:08}", stored.place.segment);
            desk.write(&name, stored.place.at, &noise(1, stored.place.bytes as usize));
        }
    }
    assert!(containers(&desk.open(), 1) > 2);
    let done = desk.gc();
    assert!(done.erased > 2 && done.absent == 0 && done.damaged == 0, "{done:?}");
    let archive = desk.open();
    assert_eq!(containers(&archive, 1), 0);
    drop(archive);
    looks_erased(&desk, &content, true);
    // Nothing new goes into it, and its names become free when they are forgotten.
    let archive = desk.open();
    assert_eq!(put_in(&archive, 1, "x", b"x").unwrap_err().kind(), Kind::Denied);
    assert_eq!(
        backup_in(&archive, (9, "set-1"), None, &[("f", b"x")]).unwrap_err().kind(),
        Kind::Denied
    );
    archive.remove("s1").unwrap();
    forget(&archive, &[SnapshotId([2; 16])], 1_000).unwrap();
    drop(archive);
    assert_eq!(desk.gc().absent, 0);
    let archive = desk.open();
    assert!(archive.tables().snapshots.get(SnapshotId([2; 16])).is_err());
    backup_in(&archive, (9, "set-1"), Some(2), &[("f", &content)]).unwrap();
    is_well(&archive);
}

#[test]
fn rule_26_erased_before_anything_of_it_was_counted() {
    let desk = Desk::new();
    let archive = desk.open();
    let content = noise(5, 600_000);
    put_in(&archive, 1, "s", &content).unwrap();
    backup_in(&archive, (1, "set"), Some(1), &[("f", &content)]).unwrap();
    put_in(&archive, 1, "gone", &noise(6, 300_000)).unwrap();
    put_in(&archive, 0, "kept", &content).unwrap();
    archive.remove("gone").unwrap();
    erase_domain(&archive, 1).unwrap();
    drop(archive);
    let done = desk.gc();
    assert!(done.erased > 0 && done.absent == 0, "{done:?}");
    let archive = desk.open();
    assert_eq!(get(&archive, "kept").unwrap(), content);
    is_well(&archive);
    assert!(archive.tables().differences.is_empty());
}

#[test]
fn rule_25_the_number_of_an_erased_domain_never_returns() {
    let (desk, _) = filled();
    let archive = desk.open();
    let old = desk.bytes("keys");
    assert_eq!(create_domain(&archive, "third").unwrap(), 3);
    put_in(&archive, 3, "t", b"in the third").unwrap();
    erase_domain(&archive, 3).unwrap();
    assert_eq!(create_domain(&archive, "third").unwrap(), 4);
    assert!(erase_domain(&archive, 3).is_err());
    assert_eq!(erase_domain(&archive, 0).unwrap_err().kind(), Kind::InvalidInput);
    erase_domain(&archive, 1).unwrap();
    drop(archive);
    // Somebody puts the key area back that has neither, and the operator accepts it.
    desk.write("keys", 0, &old);
    assert_eq!(desk.open_by(By(1, false), true).err().unwrap().kind(), Kind::Denied);
    let archive = desk.open_by(By(1, true), true).unwrap();
    assert_eq!(get(&archive, "s1").unwrap_err().kind(), Kind::Denied);
    assert_eq!(get(&archive, "t").unwrap_err().kind(), Kind::Denied);
    assert!(create_domain(&archive, "fourth").unwrap() > 3);
}

/// Files of which each change fails once so many were made: the process was killed.
fn dies_after(desk: &Desk, changes: u64) -> (Arc<dyn Files>, Arc<AtomicU64>) {
    let made = Arc::new(AtomicU64::new(u64::MAX));
    let counted = made.clone();
    let watch: Watch =
        Arc::new(move |_: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            if matches!(call, Call::Change) && counted.load(Relaxed) != u64::MAX {
                if counted.load(Relaxed) >= changes {
                    return Err(Error::new(Kind::Stopped, "the process was killed"));
                }
                counted.fetch_add(1, Relaxed);
            }
            does()
        });
    let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
    (Arc::new(Watched { files, watch }), made)
}

#[test]
fn rule_26_an_erasure_that_was_cut_off_is_ended_by_whoever_opens_it_to_write() {
    let (mut erased, mut there) = (0, 0);
    for changes in 0.. {
        let (desk, content) = filled();
        let (files, made) = dies_after(&desk, changes);
        let archive = desk.open_over(files, By(1, false), true).unwrap();
        made.store(0, Relaxed);
        let done = erase_domain(&archive, 1);
        drop(archive);
        let first = &desk.bytes("keys")[..AREA_BYTES].to_vec();
        // Whoever reads only sees it erased once the first copy is there, and writes nothing.
        let reader = desk.open_by(By(1, false), false).unwrap();
        let seen = get(&reader, "s1");
        drop(reader);
        assert_eq!(&desk.bytes("keys")[..AREA_BYTES], first);
        let archive = desk.open();
        let is_there = get(&archive, "s1");
        assert_eq!(seen.is_ok(), is_there.is_ok());
        let keys = desk.bytes("keys");
        assert!(keys[..AREA_BYTES] == keys[AREA_BYTES..], "{changes}");
        let said = archive.tables().domains.erased.contains_key(&1);
        assert_eq!(said, is_there.is_err());
        drop(archive);
        match is_there {
            Ok(found) => {
                assert!(done.is_err() && found == content);
                there += 1;
            }
            Err(_) => {
                looks_erased(&desk, &content, false);
                assert!(desk.gc().erased > 0);
                erased += 1;
            }
        }
        if done.is_ok() {
            break;
        }
    }
    assert!(there > 0 && erased > 3, "{there} {erased}");
}

#[test]
fn rule_26_other_processes_hear_of_domains_that_come_and_go() {
    let desk = Desk::new();
    let (early, late) = (desk.open(), desk.open());
    let number = create_domain(&late, "new").unwrap();
    let content = noise(7, 300_000);
    put_in(&late, number, "s", &content).unwrap();
    early.refresh().unwrap();
    assert_eq!(get(&early, "s").unwrap(), content);
    // A put that is under way does not end in a domain that was erased.
    let ingest = Ingest::begin(&early, false, false).unwrap();
    let request = PutRequest {
        name: "t".into(),
        shape: Shape::Bytes,
        domain: Some(number),
        now: 1_000,
        wait: false,
    };
    let put = onefold_archive::put_on(&ingest, request, &Gauge::default(), |feeder| {
        feeder.bytes(&content[..200_000])?;
        erase_domain(&late, number)?;
        feeder.bytes(&content[200_000..])
    });
    let error = put.unwrap_err();
    assert!(error.to_string().contains("was erased"), "{error}");
    assert_eq!(get(&early, "s").unwrap_err().kind(), Kind::Denied);
    assert!(Session::in_domain(&ingest, number).is_err());
    drop((ingest, early, late));
    desk.gc();
    let archive = desk.open();
    assert_eq!(containers(&archive, number), 0);
    is_well(&archive);
}

#[test]
fn rule_25_a_container_is_read_in_its_own_domain_only() {
    let (desk, _) = filled();
    let archive = desk.open();
    let tables = archive.tables();
    let of = |domain: u32| {
        let mut all = tables.containers.iter().map(|one| one.unwrap().stored);
        all.find(|stored| stored.domain == domain).unwrap()
    };
    let stored = of(1);
    let segment = format!("segment-{:08}", stored.place.segment);
    let number_at = stored.place.at + 104;
    assert_eq!(&desk.bytes(&segment)[number_at as usize..][..4], &1u32.to_le_bytes());
    drop(archive);
    for other in [0u32, 2, 7, 70_000] {
        desk.write(&segment, number_at, &other.to_le_bytes());
        let report = check(&desk.open(), true, &mut |_, _, _| {});
        // One that nobody has the key of is refused, and others are damage.
        if let Ok(report) = report {
            assert!(!report.is_well(), "number {other}");
        }
    }
    desk.write(&segment, number_at, &1u32.to_le_bytes());
    is_well(&desk.open());
}

#[test]
fn rule_25_an_archive_of_one_domain_says_nothing_of_domains() {
    let desk = Desk::plain();
    let archive = desk.open();
    assert!(!archive.label().domains);
    put(&archive, "s", &noise(3, 300_000)).unwrap();
    assert_eq!(create_domain(&archive, "one").unwrap_err().kind(), Kind::InvalidInput);
    drop(archive);
    // Names that do not fit, and too many domains.
    assert!(allow_domains(&desk.open()).unwrap());
    assert!(!allow_domains(&desk.open()).unwrap());
    let archive = desk.open();
    assert!(archive.label().domains && get(&archive, "s").is_ok());
    for bad in ["", "a\nb", "a name that is longer than thirty"] {
        assert_eq!(create_domain(&archive, bad).unwrap_err().kind(), Kind::InvalidInput);
    }
    for n in 1..64 {
        assert_eq!(create_domain(&archive, &format!("d{n}")).unwrap(), n);
    }
    assert_eq!(create_domain(&archive, "one more").unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(create_domain(&archive, "d5").unwrap_err().kind(), Kind::Exists);
    erase_domain(&archive, 7).unwrap();
    assert_eq!(create_domain(&archive, "one more").unwrap(), 64);
}

#[test]
fn rule_26_what_waits_to_be_counted_goes_with_its_domain_also_when_a_merge_moved_it() {
    let kinds = Kinds { domains: true, ..Kinds::default().upgraded(true) };
    let mut tables =
        Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], kinds) };
    let stored = |id: u64, domain: u32| Stored {
        id: ContainerId(id),
        kind: ContainerKind::Recipes,
        domain,
        chunks: 2,
        raw_bytes: 6_000,
        place: Place { segment: 1, at: id * 65_536, bytes: 5_000, meta_bytes: 200 },
    };
    let put = |id: u64, domain: u32| Record::Put {
        name: format!("s{id}"),
        stream: Stream {
            shape: Shape::Bytes,
            domain,
            created: 1,
            bytes: 6_000,
            added: 6_000,
            chunks: 2,
            recipe: vec![Pieces { container: ContainerId(id), first: 0, count: 2 }],
            listing: Vec::new(),
        },
        containers: vec![stored(id, domain)],
        finished: Vec::new(),
    };
    let reserved = Record::Reserved {
        owner: Owner::Ingest,
        first: ContainerId(1),
        count: 100,
        segment: Some(1),
        class: (Class::Plain, 1),
    };
    let ids = |all: &[u64]| all.iter().map(|&id| ContainerId(id)).collect::<Vec<_>>();
    let freed = |number, containers| Record::DomainFreed { number, containers, all: true };
    let mut apply = |records: Vec<Record>| {
        let records = Record::decode_all(&Record::encode_all(&records)).unwrap();
        let sequence = tables.sequence + 1;
        tables.apply(sequence, records).map(|()| tables.differences.len())
    };
    assert_eq!(apply(vec![reserved, put(1, 7), put(2, 7), put(3, 8)]).unwrap(), 3);
    apply(vec![Record::Merged { from: ids(&[1, 2]), to: stored(4, 7) }]).unwrap();
    // Neither one that is there, nor containers of another one.
    assert!(apply(vec![freed(7, ids(&[4]))]).is_err());
    apply(vec![Record::DomainErased { number: 7 }]).unwrap();
    assert!(apply(vec![freed(7, ids(&[3]))]).is_err());
    assert_eq!(apply(vec![freed(7, ids(&[4]))]).unwrap(), 1);
    assert_eq!(tables.differences.iter().next().unwrap().recipe[0].container, ContainerId(3));
    assert_eq!(tables.domains.erased.get(&7), Some(&true));
    assert!(!tables.domains.erased.contains_key(&8));
}

/// The volumes of an archive in the hands of a server, and one of them.
fn served(
    archive: &Arc<Archive>,
) -> (Arc<Volumes>, impl Fn(&str) -> Result<Arc<dyn Volume>> + use<>) {
    let volumes = Volumes::new(&Ingest::begin(archive, false, true).unwrap(), 100);
    let exports = ArchiveExports(volumes.clone());
    (volumes, move |name: &str| exports.open(name))
}

fn read_volume(volume: &dyn Volume, bytes: usize) -> Result<Vec<u8>> {
    let mut blocks = Block::zeroed_vec(bytes / BLOCK_BYTES);
    let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result?;
    Ok(bytes_mut(&mut blocks).to_vec())
}

const VOLUME: usize = 6 << 20;

#[test]
fn rule_25_volumes_of_two_domains_share_nothing_and_those_of_one_do() {
    let desk = Desk::new();
    let archive = desk.open();
    let content = noise(5, VOLUME);
    for (domain, name) in [(0, "a0"), (1, "a1"), (2, "a2"), (1, "b1")] {
        create_volume_in(&archive, domain, name, VOLUME as u64, 1).unwrap();
    }
    assert_eq!(create_volume_in(&archive, 9, "x", 4096, 1).unwrap_err().kind(), Kind::Denied);
    let (volumes, open) = served(&archive);
    // Of several domains in one write-back, on threads and without.
    for part in [content.len(), 128 << 10] {
        for name in ["a0", "a1", "a2"] {
            let bytes = if part == VOLUME { content.clone() } else { noise(6, part) };
            open(name).unwrap().write(0, &bytes).unwrap();
        }
        let before = volumes.counts();
        open("a2").unwrap().flush().unwrap();
        let after = volumes.counts();
        assert_eq!(after.write_backs - before.write_backs, 1);
        assert_eq!(after.new_bytes - before.new_bytes, 3 * part as u64);
    }
    let whole = [&noise(6, 128 << 10), &content[128 << 10..]].concat();
    let before = volumes.counts().new_bytes;
    open("b1").unwrap().write(0, &content).unwrap();
    open("b1").unwrap().flush().unwrap();
    assert_eq!(volumes.counts().new_bytes, before, "its domain has all of it");
    volumes.clone_volume("a1", "c1", false).unwrap();
    assert_eq!(archive.refresh().unwrap().volumes.named("c1").unwrap().1.domain, 1);
    open("c1").unwrap().write(0, &noise(7, 512)).unwrap();
    volumes.close().unwrap();
    drop((volumes, open, archive));
    let archive = desk.open();
    assert!((0..3).all(|domain| containers(&archive, domain) > 20));
    // Streams of the domain share with its volumes, and no others.
    let shared = |domain, name| put_in(&archive, domain, name, &content).unwrap().new_bytes;
    assert!(shared(1, "s1") < 300_000 && shared(2, "s2") < 300_000);
    assert_eq!(create_domain(&archive, "third").unwrap(), 3);
    assert_eq!(shared(3, "s3"), VOLUME as u64);
    is_well(&archive);
    drop(archive);
    desk.gc();
    let archive = desk.open();
    is_well(&archive);
    let (_volumes, open) = served(&archive);
    for name in ["a0", "a1", "a2"] {
        assert!(read_volume(&*open(name).unwrap(), VOLUME).unwrap() == whole, "{name}");
    }
    let written = [&noise(7, 512), &whole[512..]].concat();
    assert!(read_volume(&*open("c1").unwrap(), VOLUME).unwrap() == written);
    assert!(read_volume(&*open("b1").unwrap(), VOLUME).unwrap() == content);
}

#[test]
fn rule_26_volumes_of_an_erased_domain_are_gone_and_all_others_go_on() {
    let desk = Desk::new();
    let archive = desk.open();
    let all = [(0, "v0"), (1, "v1"), (2, "v2")];
    for (domain, name) in all {
        create_volume_in(&archive, domain, name, VOLUME as u64, 1).unwrap();
    }
    let (volumes, open) = served(&archive);
    let held = open("v1").unwrap();
    let content = noise(5, VOLUME);
    for (_, name) in all {
        open(name).unwrap().write(0, &content).unwrap();
    }
    volumes.clone_volume("v1", "c1", true).unwrap();
    // Something of each waits.
    for (_, name) in all {
        open(name).unwrap().write(4096, &noise(6, 4096)).unwrap();
    }
    erase_domain(&desk.open(), 1).unwrap();
    // Whoever comes is refused at once, and whoever was there from when the server knows of it.
    for name in ["v1", "c1"] {
        assert_eq!(open(name).err().unwrap().kind(), Kind::Denied);
    }
    let ticket = open("v0").unwrap().write(0, &noise(7, 512)).unwrap();
    open("v0").unwrap().wait(ticket).unwrap();
    open("v2").unwrap().flush().unwrap();
    for refused in [
        read_volume(&*held, VOLUME).map(drop),
        held.write(0, &[1; 512]).map(drop),
        held.trim(0, 1 << 20).map(drop),
        held.write_zeroes(0, 1 << 20, false).map(drop),
        held.extents(0, 4096, 1).map(drop),
        held.flush(),
        volumes.clone_volume("v1", "x", false),
        archive.clone_volume("c1", "x", false, 1),
        archive.resize_volume("v1", 4096),
        create_volume_in(&archive, 1, "x", 4096, 1),
    ] {
        let refused = refused.unwrap_err();
        let said = refused.to_string();
        assert!(refused.kind() == Kind::Denied && said.contains("domain 1 was erased"), "{said}");
    }
    volumes.close().unwrap();
    drop((volumes, open, held, archive));
    let others = |archive: &Arc<Archive>| {
        let (_volumes, open) = served(archive);
        for (domain, name) in all.into_iter().filter(|(domain, _)| *domain != 1) {
            let begin = if domain == 0 { noise(7, 512) } else { content[..512].to_vec() };
            let is = read_volume(&*open(name).unwrap(), VOLUME).unwrap();
            assert!(
                is == [&begin, &content[512..4096], &noise(6, 4096), &content[8192..]].concat()
            );
        }
        assert_eq!(open("v1").err().unwrap().kind(), Kind::Denied);
    };
    let archive = desk.open();
    others(&archive);
    let report = check(&archive, true, &mut |_, _, _| {}).unwrap();
    assert!(report.is_well(), "{:?}", report.problems);
    assert_eq!((report.volumes, report.erased.volumes), (2, 2));
    assert!(containers(&archive, 1) > 20);
    drop(archive);
    let done = desk.gc();
    assert!(done.erased > 20 && done.absent == 0 && done.damaged == 0, "{done:?}");
    let archive = desk.open();
    assert_eq!(containers(&archive, 1), 0);
    others(&archive);
    // Their names are left.
    archive.rename_volume("v1", "was").unwrap();
    for name in ["was", "c1"] {
        archive.delete_volume(name).unwrap();
    }
    assert!(archive.tables().differences.iter().all(|one| one.added), "nothing is counted");
    create_volume_in(&archive, 2, "v1", VOLUME as u64, 1).unwrap();
    drop(archive);
    assert_eq!(desk.gc().absent, 0);
    is_well(&desk.open());
}

#[test]
fn rule_26_a_write_back_goes_on_without_the_volumes_of_a_domain_that_is_erased_meanwhile() {
    let desk = Desk::new();
    let archive = desk.open();
    let all = [(0, "v0"), (1, "v1"), (2, "v2")];
    for (domain, name) in all {
        create_volume_in(&archive, domain, name, VOLUME as u64, 1).unwrap();
    }
    drop(archive);
    // The process knows of the erasure while its first container is written.
    let known: Arc<Mutex<Option<Arc<Archive>>>> = Arc::default();
    let (own, other, step) = (known.clone(), desk.open(), Arc::new(AtomicU64::new(0)));
    let at = step.clone();
    let watch: Watch =
        Arc::new(move |name: &str, call: &Call, does: &mut dyn FnMut() -> Result<()>| {
            let is_first = matches!(call, Call::Change) && name.starts_with("segment-");
            if is_first && at.compare_exchange(1, 2, Relaxed, Relaxed).is_ok() {
                erase_domain(&other, 1)?;
                let own = own.lock().unwrap().clone();
                own.unwrap().refresh()?;
            }
            does()
        });
    let files = Arc::new(Directory::open(&desk.at(), true).unwrap());
    let archive = desk.open_over(Arc::new(Watched { files, watch }), By(1, false), true).unwrap();
    *known.lock().unwrap() = Some(archive.clone());
    let (volumes, open) = served(&archive);
    let held = open("v1").unwrap();
    let content = noise(5, VOLUME);
    for (_, name) in all {
        open(name).unwrap().write(0, &content).unwrap();
    }
    step.store(1, Relaxed);
    open("v0").unwrap().flush().unwrap();
    assert_eq!(step.load(Relaxed), 2);
    assert_eq!(held.flush().unwrap_err().kind(), Kind::Denied);
    assert!(volumes.stopped().is_none());
    for name in ["v0", "v2"] {
        assert!(read_volume(&*open(name).unwrap(), VOLUME).unwrap() == content);
    }
    volumes.close().unwrap();
    *known.lock().unwrap() = None;
    drop((volumes, open, held, archive));
    assert_eq!(desk.gc().absent, 0);
    let archive = desk.open();
    assert_eq!(containers(&archive, 1), 0);
    is_well(&archive);
    let (_volumes, open) = served(&archive);
    for name in ["v0", "v2"] {
        assert!(read_volume(&*open(name).unwrap(), VOLUME).unwrap() == content);
    }
}

#[test]
fn rule_26_a_server_ends_an_erasure_of_which_the_key_area_alone_knows() {
    let desk = Desk::new();
    let archive = desk.open();
    for (domain, name) in [(0, "v0"), (1, "v1")] {
        create_volume_in(&archive, domain, name, VOLUME as u64, 1).unwrap();
    }
    let (volumes, open) = served(&archive);
    let held = open("v1").unwrap();
    // The server learns by another domain what the key area has.
    let late = create_domain(&desk.open(), "late").unwrap();
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(desk.at()).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    let files = Arc::new(Directory::open(copy.path(), true).unwrap());
    erase_domain(&desk.open_over(files, By(1, false), true).unwrap(), 1).unwrap();
    // Whoever erased it was killed before its frame.
    std::fs::copy(copy.path().join("keys"), desk.at().join("keys")).unwrap();
    create_volume_in(&archive, late, "vl", VOLUME as u64, 1).unwrap();
    let content = noise(5, VOLUME);
    open("v0").unwrap().write(0, &content).unwrap();
    // It may be refused by now.
    let _ = held.write(0, &content);
    open("v0").unwrap().flush().unwrap();
    assert_eq!(held.flush().unwrap_err().kind(), Kind::Denied);
    assert!(volumes.stopped().is_none() && archive.tables().domains.erased.contains_key(&1));
    assert!(read_volume(&*open("v0").unwrap(), VOLUME).unwrap() == content);
    volumes.close().unwrap();
}
