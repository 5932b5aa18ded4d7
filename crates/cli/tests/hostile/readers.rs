//! Hostile archives and stores that somebody opens: rule 9.
//!
//! Each is read by the command in a process that may have 512 MiB of memory and 30 seconds.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use onefold_archive::{
    Address, Class, Completeness, ContainerId, ContainerKind, FoundLabel as Found, Identity,
    IndexFile, Label, Origin, Owner, Pieces, Place, RecipeWriter, Record, Shape, Snapshot,
    SnapshotId, Stored, Stream, TreeNodeRef, decode_frame, encode_entry, encode_frame,
};
use onefold_block::{Begin, StreamWriter};
use onefold_core::{
    Fingerprint,
    tree::{Entry, What},
};

use twox_hash::XxHash3_128;

use crate::support::{Desk, Said, noise};

const MEMORY_KIB: u32 = 512 << 10;
const SECONDS: u32 = 30;

/// Runs `onefold` within bounds.
pub(super) fn bounded(desk: &Desk, arguments: &str) -> Command {
    let mut command = Command::new("sh");
    let limits =
        format!("ulimit -v {MEMORY_KIB}; exec timeout -s KILL {SECONDS} \"$0\" {arguments}");
    command.args(["-c", &limits, env!("CARGO_BIN_EXE_onefold")]).current_dir(desk.path("."));
    command
}

/// The command ends by itself, with one sentence at most.
#[track_caller]
fn ends(desk: &Desk, arguments: &str) -> Said {
    let output = bounded(desk, arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = Said {
        status: output.status,
        out: text(&output.stdout[..output.stdout.len().min(4096)]),
        err: text(&output.stderr),
    };
    assert!(
        matches!(said.status.code(), Some(0 | 1)) && said.err.lines().count() <= 1,
        "onefold {arguments}: {said:?}"
    );
    said
}

/// Each verb that reads ends by itself; gives what they said on standard error.
#[track_caller]
fn all_end(desk: &Desk) -> Vec<(&'static str, Said)> {
    let verbs =
        ["ls a", "get a one", "get a one --verify", "check a", "scrub a", "gc a", "status a"];
    verbs.map(|verb| (verb, ends(desk, &format!("{verb} > out")))).into()
}

/// Appends a frame to a log for each of these lists of records.
pub(super) fn append(log: &Path, identity: &Identity, frames: &[&[Record]]) {
    let bytes = fs::read(log).unwrap();
    let (mut at, mut last) = (0, (0, 0, 1));
    while let Some((frame, _)) = decode_frame(identity, &bytes[at..], false) {
        last = (frame.sequence, frame.checksum, frame.epoch);
        at += frame.bytes as usize;
    }
    let mut all = Vec::new();
    for records in frames {
        let payload = Record::encode_all(records);
        let (frame, checksum) =
            encode_frame(identity, last.0 + 1, last.2, last.1, &payload).unwrap();
        last = (last.0 + 1, checksum, last.2);
        all.extend(frame);
    }
    fs::File::options().write(true).open(log).unwrap().write_all_at(&all, at as u64).unwrap();
}

/// What the label of an archive says of it.
pub(super) fn identity(archive: &Path) -> Identity {
    let label = fs::read(archive.join("label")).unwrap();
    let mut found = label.chunks(4096).map(Label::decode);
    let Some(Found::Good(label)) = found.find(|found| matches!(found, Found::Good(_))) else {
        panic!()
    };
    label.identity()
}

/// An archive whose bytes the test writes itself, with checksums that are right.
struct Forged {
    desk: Desk,
    identity: Identity,
}

impl Forged {
    /// An archive with the stream `one`, uncompressed.
    fn new() -> Forged {
        let desk = Desk::new();
        desk.ok("create archive a --compress none");
        fs::write(desk.path("file"), noise(1, 1 << 20)).unwrap();
        desk.ok("put a one file");
        Forged { identity: identity(&desk.path("a")), desk }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.desk.path(&format!("a/{name}"))
    }

    /// Appends a frame to the log.
    fn append(&self, records: &[Record]) {
        append(&self.path("log-0000000001"), &self.identity, &[records]);
    }

    /// Changes the metadata of the first container that holds chunks of streams, and mends its
    /// checksum.
    fn change_container(&self, change: impl Fn(&mut [u8])) {
        let file =
            fs::File::options().read(true).write(true).open(self.path("segment-00000001")).unwrap();
        let mut header = [0; 128];
        file.read_exact_at(&mut header, 0).unwrap();
        assert!(header.starts_with(b"ONEFCONT") && header[36] == 1);
        let mut metadata = vec![0; number(&header, 48) as usize];
        file.read_exact_at(&mut metadata, 0).unwrap();
        change(&mut metadata);
        seal(&self.identity, &mut metadata);
        file.write_all_at(&metadata, 0).unwrap();
    }

    /// Adds a stream whose containers, of chunks and of pieces of recipes, are these.
    fn add(&self, name: &str, stream: Stream, containers: [(u64, ContainerKind, Vec<Group>); 2]) {
        let (mut segment, mut all) = (Vec::new(), Vec::new());
        for (id, kind, groups) in containers {
            let (metadata, bytes) = container(&self.identity, id, kind, &groups);
            let place = Place {
                segment: 50,
                at: segment.len() as u64,
                bytes: bytes.len() as u32,
                meta_bytes: metadata,
            };
            let raw_bytes = groups.iter().map(|group| group.raw).sum();
            let chunks = groups.iter().map(|group| group.chunks.len() as u32).sum();
            all.push(Stored { id: ContainerId(id), kind, domain: 0, chunks, raw_bytes, place });
            segment.extend(bytes);
            segment.resize(segment.len().next_multiple_of(4096), 0);
        }
        fs::write(self.path("segment-00000050"), segment).unwrap();
        let class = (Class::Plain, 0);
        let reserved = Record::Reserved {
            owner: Owner::Ingest,
            first: ContainerId(5000),
            count: 10,
            segment: Some(50),
            class,
        };
        self.append(&[
            reserved,
            Record::Put { name: name.into(), stream, containers: all, finished: Vec::new() },
        ]);
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn seal(identity: &Identity, metadata: &mut [u8]) {
    metadata[120..128].fill(0);
    let checksum = identity.checksum(metadata);
    metadata[120..128].copy_from_slice(&checksum.to_le_bytes());
}

/// A group of chunks as it is stored.
struct Group {
    /// 0 as it is, 1 LZ4.
    compression: u8,
    stored: Vec<u8>,
    raw: u32,
    /// Fingerprint and length of each.
    chunks: Vec<(Fingerprint, u32)>,
}

/// The bytes of a container, and how many of them are metadata.
fn container(
    identity: &Identity,
    id: u64,
    kind: ContainerKind,
    groups: &[Group],
) -> (u32, Vec<u8>) {
    let chunks: usize = groups.iter().map(|group| group.chunks.len()).sum();
    let length = 128 + 24 * groups.len() + 32 * chunks;
    let all = length + groups.iter().map(|group| group.stored.len()).sum::<usize>();
    let mut metadata =
        [b"ONEFCONT", &identity.id[..], &id.to_le_bytes(), &1u32.to_le_bytes()].concat();
    metadata.extend([if kind == ContainerKind::Data { 1 } else { 2 }, 0, 1, 0]);
    for n in [chunks, groups.len(), length, all] {
        metadata.extend((n as u32).to_le_bytes());
    }
    metadata.resize(128, 0);
    let mut at = length;
    for group in groups {
        for n in [at as u32, group.stored.len() as u32, group.raw] {
            metadata.extend(n.to_le_bytes());
        }
        metadata.extend([group.compression, 0, 0, 0]);
        metadata.extend(identity.checksum(&group.stored).to_le_bytes());
        at += group.stored.len();
    }
    let mut slot = 0u16;
    for (n, group) in groups.iter().enumerate() {
        let mut inside = 0u32;
        for (fingerprint, bytes) in &group.chunks {
            metadata.extend(fingerprint.0);
            metadata.extend(&id.to_le_bytes()[..5]);
            metadata.extend(slot.to_le_bytes());
            metadata.push(n as u8);
            metadata.extend(inside.to_le_bytes());
            metadata.extend(bytes.to_le_bytes());
            (slot, inside) = (slot + 1, inside + bytes);
        }
    }
    seal(identity, &mut metadata);
    (
        length as u32,
        [metadata]
            .into_iter()
            .chain(groups.iter().map(|group| group.stored.clone()))
            .flatten()
            .collect(),
    )
}

/// Zeroes, in LZ4.
fn zeroes(bytes: usize) -> Vec<u8> {
    let more = bytes - 1 - 5 - 19;
    let lengths = std::iter::repeat_n(255, more / 255).chain([(more % 255) as u8]);
    [0x1f, 0, 1, 0].into_iter().chain(lengths).chain([0x50, 0, 0, 0, 0, 0]).collect()
}

/// A recipe in pieces, each a chunk of container 5001, from what `fill` says. `filler` pieces hold
/// as much as fits.
fn recipe(fill: impl FnOnce(&mut RecipeWriter, &mut dyn FnMut(Vec<u8>))) -> Vec<Vec<u8>> {
    let (mut writer, mut pieces) = (RecipeWriter::default(), Vec::new());
    fill(&mut writer, &mut |piece| pieces.push(piece));
    writer
        .end(&mut |piece| {
            pieces.push(piece);
            Ok(())
        })
        .unwrap();
    pieces
}

fn pieces_of(slot: u16, count: u16) -> Pieces {
    Pieces { container: ContainerId(5001), first: slot, count }
}

/// Groups of one piece each.
fn groups_of(pieces: &[Vec<u8>]) -> Vec<Group> {
    let group = |piece: &Vec<u8>| Group {
        compression: 0,
        stored: piece.clone(),
        raw: piece.len() as u32,
        chunks: vec![(Fingerprint([9; 16]), piece.len() as u32)],
    };
    pieces.iter().map(group).collect()
}

fn stream(shape: Shape, bytes: u64, chunks: u64) -> Stream {
    Stream {
        shape,
        domain: 0,
        created: 0,
        bytes,
        added: 0,
        chunks,
        recipe: Vec::new(),
        listing: Vec::new(),
    }
}

#[test]
fn rule_09_groups_that_do_not_follow_one_another_are_damage() {
    // The first two groups changed places; they overlap; there is a gap between them.
    let swapped = |metadata: &mut [u8]| {
        let first: Vec<u8> = metadata[128..152].to_vec();
        metadata.copy_within(152..176, 128);
        metadata[152..176].copy_from_slice(&first);
    };
    let overlapping = |metadata: &mut [u8]| metadata.copy_within(128..132, 152);
    let apart = |metadata: &mut [u8]| {
        let at = number(metadata, 152) + 1;
        metadata[152..156].copy_from_slice(&at.to_le_bytes());
    };
    let changes: [&dyn Fn(&mut [u8]); 3] = [&swapped, &overlapping, &apart];
    for change in changes {
        let forged = Forged::new();
        forged.change_container(change);
        for (verb, said) in all_end(&forged.desk) {
            let reads = ["get", "check", "scrub"].iter().any(|of| verb.starts_with(of));
            assert!(
                !reads || said.err.contains("container") || said.err.contains("damaged"),
                "{verb}: {said:?}"
            );
        }
    }
}

#[test]
fn rule_09_chunks_tile_their_group() {
    // The second chunk lies where the first one does.
    let forged = Forged::new();
    forged.change_container(|metadata| {
        let chunks = 128 + 24 * number(metadata, 44) as usize;
        metadata[chunks + 32 + 24..chunks + 32 + 28].fill(0);
    });
    assert!(ends(&forged.desk, "get a one > out").err.contains("container"));
    assert!(ends(&forged.desk, "check a > out").err.contains("damaged"));
}

#[test]
fn rule_09_a_sparse_log_takes_no_memory() {
    let forged = Forged::new();
    fs::File::options()
        .write(true)
        .open(forged.path("log-0000000001"))
        .unwrap()
        .set_len(200 << 30)
        .unwrap();
    for (verb, said) in all_end(&forged.desk) {
        assert!(said.err.contains("operations log"), "{verb}: {said:?}");
    }
}

#[test]
fn rule_09_an_index_of_holes_takes_no_memory() {
    for entries in [1 << 36, u64::MAX / 2, u64::MAX] {
        let forged = Forged::new();
        let (number, pages) = (77, u32::MAX / 2);
        let sparse = fs::File::create(forged.path("index-0000000077")).unwrap();
        sparse.set_len(8 << 40).unwrap();
        let files = vec![IndexFile { number, pages, filter_pages: pages, entries }];
        forged.append(&[Record::Imported { files, upto: 0 }]);
        fs::write(forged.desk.path("other"), noise(2, 1 << 20)).unwrap();
        assert!(ends(&forged.desk, "put a two other > out").status.success());
        assert!(ends(&forged.desk, "get a two --verify > out").status.success());
        all_end(&forged.desk);
    }
}

#[test]
fn rule_09_a_sparse_snapshot_is_over_budget_and_no_damage() {
    let forged = Forged::new();
    let path = forged.path("snapshot-0000000001");
    let mut header = fs::read(&path).unwrap()[..40].to_vec();
    header[16..24].copy_from_slice(&(200u64 << 30).to_le_bytes());
    let checksum = forged.identity.checksum(&header[..32]);
    header[32..40].copy_from_slice(&checksum.to_le_bytes());
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&header, 0).unwrap();
    file.set_len(300 << 30).unwrap();
    for (verb, said) in all_end(&forged.desk) {
        assert!(said.err.contains("--memory") && !said.err.contains("damage"), "{verb}: {said:?}");
    }
}

/// A place in segment 51.
fn place(n: u64) -> Place {
    Place { segment: 51, at: n * 4096, bytes: 200, meta_bytes: 200 }
}

fn segment(n: u32) -> Record {
    let (first, class) = (ContainerId(9000), (Class::Plain, 0));
    Record::Reserved { owner: Owner::Collector, first, count: 1, segment: Some(n), class }
}

/// A snapshot of a log; nobody reads what it names.
fn snapshot(n: u64) -> Snapshot {
    let mut id = [7; 16];
    id[..8].copy_from_slice(&n.to_le_bytes());
    let address = Address { container: ContainerId(1), slot: 0 };
    Snapshot {
        id: SnapshotId(id),
        set: "s".into(),
        domain: 0,
        host: "h".into(),
        machine: [0; 16],
        paths: Vec::new(),
        tags: Vec::new(),
        began: 0,
        ended: 0,
        origin: Origin::Read(None),
        root: TreeNodeRef { address, fingerprint: Fingerprint([0; 16]) },
        stats: None,
        entries: 0,
        bytes: 0,
        added: 0,
        left_out: 0,
        completeness: Completeness::Whole,
        forgotten: None,
    }
}

/// Frames that nobody noted as durable are held until they are, each by its own bytes.
#[test]
fn rule_09_frames_that_nobody_vouched_for_cost_what_they_have() {
    let forged = Forged::new();
    let nothing: &[Record] = &[Record::Freed { places: Vec::new() }];
    append(&forged.path("log-0000000001"), &forged.identity, &vec![nothing; 8000]);
    for (verb, said) in all_end(&forged.desk) {
        assert!(said.status.success(), "{verb}: {said:?}");
    }
}

/// Each record of a log costs what it names, however many others there are. A log of a few
/// megabytes is read at once.
#[test]
fn rule_09_no_record_of_a_log_costs_more_than_it_names() {
    const MANY: u64 = 60_000;
    let listed = || {
        let stored = |n| Stored {
            id: ContainerId(10_000 + n),
            domain: 0,
            kind: ContainerKind::Data,
            chunks: 1,
            raw_bytes: 1,
            place: place(n),
        };
        Record::Unfinished { containers: (0..MANY).map(stored).collect(), at: 0 }
    };
    let freed = |places| Record::Freed { places };
    let segments: Vec<Record> = (52..52 + MANY as u32).map(segment).collect();
    let abandoned =
        Record::Abandoned { containers: (0..MANY).map(|n| ContainerId(10_000 + n)).collect() };
    let older = |upto| Record::Imported { files: Vec::new(), upto };
    let size = |bytes| Record::VolumeResized { id: 7, bytes };
    let volume =
        Record::VolumeCreated { id: 7, name: "v".into(), bytes: 1 << 50, created: 0, domain: 0 };
    let cuts = (1..MANY).flat_map(|n| [size(n << 17), size(1 << 50)]);
    let ids = || (0..MANY).map(|n| snapshot(n).id).collect::<Vec<_>>();
    let made = |n| Record::SnapshotMade {
        snapshot: Box::new(snapshot(n)),
        containers: Vec::new(),
        finished: Vec::new(),
    };
    let clones = (0..2 * MANY).map(|n| Record::VolumeCloned {
        id: 8 + n,
        of: 7,
        name: "c".into(),
        created: 0,
        read_only: true,
    });
    let cuts_before = (1..2 * MANY).flat_map(|n| [size(n << 17), size(1 << 50)]);
    let logs: [(&str, Vec<Record>); 6] = [
        // Places that wait, freed one by one, the last ones first.
        (
            "freed",
            [segment(51), listed(), abandoned]
                .into_iter()
                .chain((0..MANY).rev().map(|n| freed(vec![place(n)])))
                .collect(),
        ),
        // Segments that stay, since something is in them, and records that free nothing.
        (
            "segments",
            segments
                .into_iter()
                .chain([segment(51), listed()])
                .chain((0..MANY).map(|_| freed(Vec::new())))
                .collect(),
        ),
        // An index that gets older and older.
        (
            "imports",
            [segment(51), listed(), older(MANY)]
                .into_iter()
                .chain((0..MANY).rev().map(older))
                .collect(),
        ),
        ("cuts", [volume.clone()].into_iter().chain(cuts).collect()),
        // A volume that was cut often, and is cloned often.
        ("clones", [volume].into_iter().chain(cuts_before).chain(clones).collect()),
        // Snapshots, each with an id of its own, and all of them forgotten and gone.
        (
            "snapshots",
            (0..MANY)
                .map(made)
                .chain([
                    Record::Forgotten { ids: ids(), at: 1 },
                    Record::ForgottenSeen { ids: ids(), at: 2 },
                    Record::Undeleted { ids: ids() },
                    Record::Forgotten { ids: ids(), at: 3 },
                    Record::Expired { ids: ids() },
                ])
                .collect(),
        ),
    ];
    for (name, records) in logs {
        let forged = Forged::new();
        forged.append(&records);
        let said = ends(&forged.desk, "ls a > out");
        assert!(said.status.success(), "{name}: {said:?}");
    }
}

/// A merge moves what all before it brought together, so a log has a limit for them.
#[test]
fn rule_09_merges_of_merges_are_damage_beyond_a_limit() {
    let stored = |n: u64| Stored {
        id: ContainerId(10_000 + n),
        domain: 0,
        kind: ContainerKind::Data,
        chunks: 1,
        raw_bytes: 1,
        place: place(n),
    };
    let listed = |n| Record::Unfinished { containers: vec![stored(n)], at: 0 };
    let merged = |n: u64| Record::Merged {
        from: vec![ContainerId(10_000 + n - 2), ContainerId(10_000 + n - 1)],
        to: stored(n),
    };
    // Each merges the last one with another one.
    let of = |merges| {
        let chain = (1..merges).flat_map(|n| [listed(2 * n - 1), merged(2 * n)]);
        let forged = Forged::new();
        forged.append(&[segment(51), listed(0)].into_iter().chain(chain).collect::<Vec<_>>());
        forged
    };
    // The owner's put believes the log, and takes the snapshot that makes it short.
    let own = of(1_600);
    assert!(ends(&own.desk, "ls a").err.contains("merges more than one log may"));
    own.desk.ok("put a two file");
    own.desk.ok("put a three file");
    own.desk.ok("ls a");
    let forged = of(20_000);
    for (verb, said) in all_end(&forged.desk) {
        assert!(said.err.contains("merges more than one log may"), "{verb}: {said:?}");
    }
}

#[test]
fn rule_09_few_bytes_do_not_expand_to_many() {
    const CHUNK: u32 = 8 << 20;
    let forged = Forged::new();
    let group = || Group {
        compression: 1,
        stored: zeroes(CHUNK as usize),
        raw: CHUNK,
        chunks: vec![(Fingerprint([7; 16]), CHUNK)],
    };
    let at = |slot| Address { container: ContainerId(5000), slot };
    let pieces = recipe(|writer, full| {
        for slot in 0..80 {
            let whole = &mut |piece| {
                full(piece);
                Ok(())
            };
            writer.chunk(at(slot), Fingerprint([7; 16]), CHUNK, whole).unwrap();
        }
    });
    let bomb = Stream {
        recipe: vec![pieces_of(0, pieces.len() as u16)],
        ..stream(Shape::Bytes, 80 * u64::from(CHUNK), 80)
    };
    let containers = [
        (5000, ContainerKind::Data, (0..80).map(|_| group()).collect()),
        (5001, ContainerKind::Recipes, groups_of(&pieces)),
    ];
    forged.add("bomb", bomb, containers);
    let said = ends(&forged.desk, "get a bomb > out");
    assert!(said.err.contains("container"), "{said:?}");
    all_end(&forged.desk);
}

/// An archive with the tree `tree`, of whose listing a thousand million entries are one chunk,
/// named over and over.
fn endless_listing() -> Forged {
    let forged = Forged::new();
    let mut entries = Vec::new();
    while entries.len() < 1_000_000 {
        let what = What::File { bytes: 1 << 30, data: vec![(0, 1 << 30)] };
        let entry = Entry {
            path: b"f".into(),
            what,
            mode: 0o600,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            attributes: Vec::new(),
        };
        encode_entry(&entry, &mut entries);
    }
    let bytes = entries.len() as u32;
    let chunk = Group {
        compression: 0,
        stored: entries,
        raw: bytes,
        chunks: vec![(Fingerprint([7; 16]), bytes)],
    };
    let mut pieces = recipe(|writer, full| {
        for _ in 0..2300 {
            let whole = &mut |piece| {
                full(piece);
                Ok(())
            };
            writer
                .chunk(
                    Address { container: ContainerId(5000), slot: 0 },
                    Fingerprint([7; 16]),
                    bytes,
                    whole,
                )
                .unwrap();
        }
    });
    pieces.extend(recipe(|_, _| {}));
    let end = pieces.len() as u16 - 1;
    let endless = Stream {
        listing: (0..100).map(|_| pieces_of(0, 1)).chain([pieces_of(1, end - 1)]).collect(),
        recipe: vec![pieces_of(end, 1)],
        ..stream(Shape::Tree, 0, 0)
    };
    forged.add(
        "tree",
        endless,
        [
            (5000, ContainerKind::Data, vec![chunk]),
            (5001, ContainerKind::Recipes, groups_of(&pieces)),
        ],
    );
    forged
}

#[test]
fn rule_09_a_listing_is_never_held_whole() {
    let forged = endless_listing();
    let said = ends(&forged.desk, "ls a tree > out");
    assert!(said.err.contains("listing"), "{said:?}");
    ends(&forged.desk, "check a > out");
}

#[test]
fn rule_09_a_tree_that_can_not_fit_is_refused_before_anything_is_made() {
    let forged = endless_listing();
    let said = ends(&forged.desk, "get a tree -C out");
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let made = fs::read_dir(forged.desk.path("out")).map_or(0, |names| names.count());
    assert_eq!(made, 0, "{said:?}");
}

/// The tables of a cluster folder, whose bytes a test changes.
struct Tables {
    desk: Desk,
    bytes: Vec<u8>,
}

impl Tables {
    /// Of the folder `a` with the stream `one` of a block, closed.
    fn new() -> Tables {
        let desk = Desk::new();
        desk.ok("create cluster a");
        fs::write(desk.path("file"), noise(1, 4096)).unwrap();
        desk.ok("put a one file");
        let bytes = fs::read(desk.path("a/objects.redb")).unwrap();
        Tables { desk, bytes }
    }

    fn write(&self) {
        fs::write(self.desk.path("a/objects.redb"), &self.bytes).unwrap();
    }

    /// Where a page of 4 KiB of the first region is.
    fn page(&self, n: u64) -> usize {
        4096 * (1 + number(&self.bytes, 16) as usize + n as usize)
    }

    /// Puts trees into both commits, and says that the file was not closed.
    fn not_closed(&mut self, root: u64, checksum: u128) {
        for commit in [64, 192] {
            self.bytes[commit + 1] = 1;
            self.bytes[commit + 8..commit + 16].copy_from_slice(&root.to_le_bytes());
            self.bytes[commit + 16..commit + 32].copy_from_slice(&checksum.to_le_bytes());
            let own = XxHash3_128::oneshot(&self.bytes[commit..commit + 112]);
            self.bytes[commit + 112..commit + 128].copy_from_slice(&own.to_le_bytes());
        }
        self.bytes[9] = self.bytes[9] & !4 | 2;
    }

    /// All verbs end, and say that it is damaged.
    #[track_caller]
    fn are_damaged(&self) {
        self.write();
        for verb in ["ls a", "status a", "check a", "worker a --once", "put a two file", "repair a"]
        {
            let said = ends(&self.desk, &format!("{verb} > out"));
            assert!(said.err.contains("the tables of the store"), "{verb}: {said:?}");
        }
    }
}

/// `redb` would go through it for ever: each page names the one below it twice.
#[test]
fn rule_09_a_folder_that_was_not_closed_is_looked_at_before_it_is_repaired() {
    let mut tables = Tables::new();
    let commit = 64 + 128 * usize::from(tables.bytes[9] & 1);
    let mut below: [u8; 8] = tables.bytes[commit + 8..commit + 16].try_into().unwrap();
    let mut checksum: [u8; 16] = tables.bytes[commit + 16..commit + 32].try_into().unwrap();
    let last = (tables.bytes.len() / 4096) as u64 - 2 - u64::from(number(&tables.bytes, 16));
    for n in (last - 60)..last {
        let at = tables.page(n);
        let mut page = vec![0; 4096];
        (page[0], page[2]) = (2, 1);
        page[8..40].copy_from_slice(&[checksum; 2].concat());
        page[40..56].copy_from_slice(&[below; 2].concat());
        page[56..60].copy_from_slice(&61u32.to_le_bytes());
        page[60] = b'm';
        checksum = XxHash3_128::oneshot(&page[..61]).to_le_bytes();
        below = n.to_le_bytes();
        tables.bytes[at..at + 4096].copy_from_slice(&page);
    }
    tables.not_closed(u64::from_le_bytes(below), u128::from_le_bytes(checksum));
    tables.are_damaged();
}

/// Memory is taken for the blocks that a folder names, and not for all that lie before them.
#[test]
fn rule_09_a_data_file_of_holes_takes_no_memory() {
    const LAST: u32 = u32::MAX - 2;
    let mut tables = Tables::new();
    let block = fs::read(tables.desk.path("file")).unwrap();
    let sum = (onefold_core::checksum::fast(6, &block) as u32).to_le_bytes();
    let mut named = 0;
    for at in 4..tables.bytes.len() - 4 {
        if tables.bytes[at..at + 4] == sum {
            tables.bytes[at - 4..at].copy_from_slice(&(LAST + 1).to_le_bytes());
            named += 1;
        }
    }
    assert!(named > 0);
    tables.write();
    let data = fs::File::options().write(true).open(tables.desk.path("a/data")).unwrap();
    // The largest file of ext4.
    data.set_len((u64::from(LAST) + 1) * 4096).unwrap();
    data.write_all_at(&block, u64::from(LAST) * 4096).unwrap();
    for verb in ["get a one --output got", "put a two file", "worker a --once --cold 0", "repair a"]
    {
        let said = ends(&tables.desk, &format!("{verb} > out"));
        assert!(said.status.success(), "{verb}: {said:?}");
    }
    assert_eq!(fs::read(tables.desk.path("got")).unwrap(), block);
}

/// A client fills its volume, and the map is as large as the volume.
#[test]
fn rule_09_who_inspects_a_volume_holds_no_map() {
    const EACH: u64 = 288 * 4096;
    const LEAVES: u64 = 25_000;
    let desk = Desk::new();
    let image = fs::File::create(desk.path("image")).unwrap();
    image.set_len(LEAVES * EACH).unwrap();
    let block = noise(9, 4096);
    (0..LEAVES).for_each(|n| image.write_all_at(&block, n * EACH).unwrap());
    desk.ok("create block a --size 1G --preallocate none");
    desk.ok("import a v image");
    let told = |words: &str| {
        let limits = format!("{words}; exec \"$0\" inspect a volume v");
        let mut command = Command::new("sh");
        command.args(["-c", &limits, env!("CARGO_BIN_EXE_onefold")]).current_dir(desk.path("."));
        command.output().unwrap()
    };
    // Less than the pages have.
    let said = told("ulimit -d 60000");
    let out = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{said:?}");
    assert!(out.contains(&format!("{LEAVES} blocks with data")), "{out}");
}

/// The sender of a snapshot says when it was made, and may say anything.
#[test]
fn rule_09_the_time_of_a_strangers_snapshot_stops_no_list() {
    let desk = Desk::new();
    desk.ok("create block a --size 64M --preallocate none");
    for (name, made_ms) in [("late", u64::MAX), ("later", 253_402_300_800_000), ("early", 0)] {
        let begin = Begin {
            guid: [made_ms as u8 | 1; 16],
            made_ms,
            volume: name.to_owned(),
            snapshot: "Mon".to_owned(),
            blocks: 16,
            ..Begin::default()
        };
        let mut receive = desk.command("receive a");
        let mut receive = receive.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let writer = StreamWriter::begin(receive.stdin.take().unwrap(), &begin, false).unwrap();
        writer.end(16).unwrap();
        assert!(receive.wait().unwrap().success());
    }
    for serving in [false, true] {
        let _serving = serving.then(|| desk.serve("a"));
        for verb in ["snapshot list a", "snapshot list a --space"] {
            let list = desk.ok(verb);
            assert!(list.contains("  9999-12-31T23:59:59Z  late@Mon\n"), "{list}");
            assert!(list.contains("  9999-12-31T23:59:59Z  later@Mon\n"), "{list}");
            assert!(list.contains("  1970-01-01T00:00:00Z  early@Mon\n"), "{list}");
        }
        desk.ok("snapshot list a --json");
        desk.ok("status a");
    }
}
