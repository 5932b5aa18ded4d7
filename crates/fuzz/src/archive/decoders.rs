//! Each decoder of the archive engine: bytes as they come, and with their checksums mended. A
//! decoder may accept only what the engine would write.

use std::collections::BTreeMap;

use onefold_archive::{
    Address, Attributes, Class, Completeness, ContainerId, ContainerKind, Event, FileMap,
    FoundLabel as Found, IndexEntry, Key, Kinds, Known, Label, Links, Metadata, NodeLabel, Order,
    Origin, Owner, Packer, Part, Pieces, Place, Record, Root, Rotation, Shape, Snapshot,
    SnapshotId, Stat, Stored, Stream, Summary, Tables, Top, TreeEntry, TreeNode, TreeNodeRef,
    TreeWhat, decode_frame, decode_leaf, decode_listing, encode_entry, recipe_parts,
};
use onefold_core::Fingerprint;

use super::{
    good::{archives, identity, tree},
    mend,
};
use crate::reach;

/// Most bytes that an example of a part of a file has.
const PART_BYTES: usize = 32 << 10;

/// Bytes of a leaf before its entries.
const LEAF_HEADER_BYTES: usize = 32;

/// Archives with late encoding, and with snapshots of directories.
const LATE: Kinds = Kinds {
    late: true,
    trees: false,
    leaves: false,
    on_demand: false,
    clones: false,
    counts_in_pages: false,
    domains: false,
    heads: false,
    roles: false,
    data_keys: false,
    volume_domains: false,
};
const TREES: Kinds = Kinds {
    late: false,
    trees: true,
    leaves: false,
    on_demand: false,
    clones: false,
    counts_in_pages: false,
    domains: false,
    heads: false,
    roles: false,
    data_keys: false,
    volume_domains: false,
};
const CLONES: Kinds = Kinds {
    late: false,
    trees: true,
    leaves: false,
    on_demand: false,
    clones: true,
    counts_in_pages: false,
    domains: false,
    heads: false,
    roles: false,
    data_keys: false,
    volume_domains: false,
};

/// Tables whose snapshots name leaves.
const LEAVES: Kinds = Kinds {
    late: false,
    trees: true,
    leaves: true,
    on_demand: false,
    clones: true,
    counts_in_pages: false,
    domains: false,
    heads: false,
    roles: false,
    data_keys: false,
    volume_domains: false,
};

/// Tables of an archive that has domains.
const DOMAINS: Kinds = Kinds {
    late: false,
    trees: true,
    leaves: false,
    on_demand: false,
    clones: true,
    counts_in_pages: false,
    domains: true,
    heads: false,
    roles: false,
    data_keys: false,
    volume_domains: false,
};

/// Tables of an archive whose volumes may be of domains.
const VOLUME_DOMAINS: Kinds = Kinds { volume_domains: true, ..DOMAINS };

/// Tables of an archive whose keys have roles.
const ROLES: Kinds = Kinds { domains: false, heads: true, roles: true, ..DOMAINS };

/// Tables of an archive whose data keys change.
const DATA_KEYS: Kinds = Kinds { data_keys: true, ..DOMAINS };

fn node_ref(n: u8) -> TreeNodeRef {
    let address = Address { container: ContainerId(u64::from(n)), slot: u16::from(n) };
    TreeNodeRef { address, fingerprint: Fingerprint([n; 16]) }
}

/// Records about snapshots of directories.
fn of_snapshots() -> Vec<Record> {
    let id = SnapshotId([5; 16]);
    let snapshot = Snapshot {
        id,
        set: "web1".into(),
        domain: 7,
        host: "web1".into(),
        machine: [6; 16],
        paths: vec![b"/etc".to_vec(), b"/home".to_vec()],
        tags: vec!["nightly".into()],
        began: 7,
        ended: 8,
        origin: Origin::Read(Some(SnapshotId([4; 16]))),
        root: node_ref(1),
        stats: Some(Top { levels: 1, node: node_ref(2) }),
        entries: 9,
        bytes: 10,
        added: 11,
        left_out: 1,
        completeness: Completeness::Partial,
        forgotten: None,
    };
    let made = Record::SnapshotMade {
        snapshot: Box::new(snapshot),
        containers: Vec::new(),
        finished: Vec::new(),
    };
    vec![
        made,
        Record::Forgotten { ids: vec![id], at: 12 },
        Record::ForgottenSeen { ids: vec![id], at: 13 },
        Record::CountsDue { nodes: vec![node_ref(3).address] },
    ]
}

/// Records about a domain: what is stored in it, that it was erased, and that its containers are gone.
fn of_domains(is_freed: bool) -> Vec<Record> {
    let place = Place { segment: 1, at: 0, bytes: 5_000, meta_bytes: 200 };
    let id = ContainerId(1);
    let stored =
        Stored { id, kind: ContainerKind::Recipes, domain: 7, chunks: 2, raw_bytes: 6_000, place };
    let stream = Stream {
        shape: Shape::Bytes,
        domain: 7,
        created: 1,
        bytes: 6_000,
        added: 6_000,
        chunks: 2,
        recipe: vec![Pieces { container: id, first: 0, count: 2 }],
        listing: Vec::new(),
    };
    let mut records = vec![
        Record::Reserved {
            owner: Owner::Ingest,
            first: id,
            count: 100,
            segment: Some(1),
            class: (Class::Plain, 1),
        },
        Record::Put { name: "s".into(), stream, containers: vec![stored], finished: Vec::new() },
        Record::DomainErased { number: 7 },
    ];
    let freed = Record::DomainFreed { number: 7, containers: vec![id], all: true };
    records.extend(is_freed.then_some(freed));
    records
}

/// Records about put keys.
fn of_roles() -> Vec<Record> {
    let (name, sets) = ("web1".to_owned(), vec!["web1".to_owned(), "db".to_owned()]);
    let untrue = vec![ContainerId(1)];
    vec![
        Record::PutKeyAdded { number: 1, public: [7; 32], name, sets },
        Record::Proven { upto: 9, untrue, snapshots: vec![SnapshotId([5; 16])] },
        Record::PutKeyRemoved { number: 1 },
    ]
}

/// Records about data keys: each change but the last one came to its end.
fn of_data_keys() -> Vec<Record> {
    let rotated = |domain, generation| {
        let from = ContainerId(1);
        Record::DataKeyRotated(Rotation { domain, generation, from, index: 4 })
    };
    let kept = |domain, generation| {
        let kept = Box::new([domain as u8 + 3; 88]);
        Record::DataKeyKept { domain, generation, kept }
    };
    vec![
        rotated(7, 1),
        kept(7, 1),
        Record::DataKeyErased { domain: 7, generation: 1 },
        rotated(0, 1),
        kept(0, 1),
        rotated(7, 2),
    ]
}

/// Tables of an archive whose data keys changed.
fn with_data_keys() -> Tables {
    let mut tables =
        Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], DATA_KEYS) };
    assert!(tables.apply(1, of_data_keys()).is_ok(), "good records are refused");
    tables
}

/// Tables of which a volume and its clone are of a domain.
fn with_volumes_of_domains() -> Tables {
    let mut tables =
        Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], VOLUME_DOMAINS) };
    assert!(tables.apply(1, of_volumes_of_domains()).is_ok(), "good records are refused");
    tables
}

/// Records about a volume of a domain.
fn of_volumes_of_domains() -> Vec<Record> {
    let (name, clone) = ("v".to_owned(), "v@clone".to_owned());
    vec![
        Record::VolumeCreated { id: 1, name, bytes: 1 << 20, created: 5, domain: 7 },
        Record::VolumeCloned { id: 2, of: 1, name: clone, created: 6, read_only: true },
        Record::DomainErased { number: 7 },
        Record::VolumeDeleted { id: 1 },
    ]
}

/// Tables that have a put key.
fn with_roles() -> Tables {
    let mut tables =
        Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], ROLES) };
    assert!(tables.apply(1, of_roles()).is_ok(), "good records are refused");
    tables
}

/// Tables that have a domain; one of which nothing is left, or not.
fn with_domains(is_freed: bool) -> Tables {
    let mut tables =
        Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], DOMAINS) };
    assert!(tables.apply(1, of_domains(is_freed)).is_ok(), "good records are refused");
    tables
}

fn with_snapshots() -> Tables {
    let mut tables =
        Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], TREES) };
    // Good records change good tables.
    let _ = tables.apply(1, of_snapshots());
    tables
}

/// A node of a snapshot's tree.
pub fn tree_node(data: &[u8]) {
    if let Some(node) = reach::noted(TreeNode::decode(data)) {
        let again = TreeNode::decode(&node.encode());
        assert!(again.is_ok_and(|again| again == node), "a node changes by being written");
        node.named(&mut |_| {});
    }
}

/// An event of a walk, from another process.
pub fn event(data: &[u8]) {
    if let Some(event) = reach::noted(Event::decode(data)) {
        let again = Event::decode(&event.encode());
        let same = again.is_ok_and(|again| told(&again) == told(&event));
        assert!(same, "an event changes by being written");
    }
}

/// An event as text; the order of the pages that it knows is nothing of it.
fn told(event: &Event) -> String {
    let sorted = |known: &Known| format!("{:?}", known.iter().collect::<BTreeMap<_, _>>());
    match event {
        Event::Enter(entry, stat, known) => format!("{entry:?} {stat:?} {}", sorted(known)),
        Event::Known(known) => sorted(known),
        event => format!("{event:?}"),
    }
}

pub(crate) fn event_examples() -> Vec<Vec<u8>> {
    let entry = |what| TreeEntry {
        name: b"a".to_vec(),
        what,
        mode: 0o644,
        uid: 1,
        gid: 2,
        seconds: 3,
        nanoseconds: 4,
        link: 5,
        is_in_part: false,
        attributes: Attributes::default(),
    };
    let known = || Known::from([1, 2].map(|n| (Fingerprint([n; 16]), node_ref(n).address)));
    let file = || entry(TreeWhat::File(0, FileMap::default()));
    let events = [
        Event::Enter(entry(TreeWhat::Directory(None)), Stat::default(), known()),
        Event::Leave(true),
        Event::Known(known()),
        Event::Discard,
        Event::Attributes,
        Event::File(file(), Stat::default(), None),
        Event::File(file(), Stat::default(), Some((7, FileMap::Inline(vec![Part::Hole(7)])))),
        Event::Other(entry(TreeWhat::Fifo), Stat::default()),
        Event::Link(file(), Stat::default()),
        Event::Checkpoint(SnapshotId([5; 16])),
        Event::End(3),
    ];
    events.iter().map(Event::encode).collect()
}

pub(crate) fn tree_node_examples() -> Vec<Vec<u8>> {
    let parts = vec![
        Part::Run {
            first: node_ref(1).address,
            bytes: 700,
            fingerprints: vec![Fingerprint([4; 16]), Fingerprint([5; 16])],
        },
        Part::Hole(9),
        Part::Zeroes(1 << 40),
    ];
    let top = Top { levels: 2, node: node_ref(3) };
    let entry = |name: &str, what: TreeWhat| TreeEntry {
        name: name.into(),
        what,
        mode: 0o644,
        uid: 1,
        gid: 2,
        seconds: 3,
        nanoseconds: 4,
        link: 5,
        is_in_part: false,
        attributes: Attributes::Inline(vec![(b"user.a".to_vec(), vec![1])]),
    };
    let root = Root {
        directory: entry("", TreeWhat::Directory(Some(top))),
        entries: 3,
        bytes: 4,
        left_out: 5,
        list: (6, FileMap::Inline(parts.clone())),
    };
    let key = |key| IndexEntry { node: node_ref(6), key };
    let nodes = [
        TreeNode::Directory(vec![
            entry("a", TreeWhat::Directory(Some(top))),
            entry("b", TreeWhat::File(5, FileMap::Inline(parts.clone()))),
            entry("c", TreeWhat::File(5, FileMap::Pages(top))),
            entry("d", TreeWhat::Symlink(b"x".to_vec())),
            entry("e", TreeWhat::BlockDevice(7)),
        ]),
        TreeNode::FileMap(parts),
        TreeNode::Stats(vec![Stat { pages: Some(top), ..Stat::default() }]),
        TreeNode::Index(1, vec![key(Key::Name(b"a".to_vec())), key(Key::Name(b"b".to_vec()))]),
        TreeNode::Index(2, vec![key(Key::Sum(7)), key(Key::Sum(1))]),
        TreeNode::Root(Box::new(root)),
    ];
    nodes.iter().map(TreeNode::encode).collect()
}

fn files(prefix: &'static str) -> impl Iterator<Item = &'static Vec<u8>> {
    archives()
        .iter()
        .flatten()
        .filter(move |(name, _)| name.starts_with(prefix))
        .map(|(_, bytes)| bytes)
}

/// With the checksum in the last eight bytes of the first 4,096, whose seed is the id and the
/// secret in them.
fn sealed(data: &[u8], id: usize) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(4096, 0);
    let (archive, secret) =
        (std::array::from_fn(|n| bytes[id + n]), std::array::from_fn(|n| bytes[id + 16 + n]));
    let checksum = onefold_archive::Identity::new(archive, &secret).checksum(&bytes[..4088]);
    bytes[4088..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// A place of an archive's label.
pub fn label(data: &[u8]) {
    for bytes in [data.to_vec(), sealed(data, 16)] {
        match Label::decode(&bytes) {
            Found::Good(label) => {
                reach::good();
                assert!(
                    matches!(Label::decode(&label.encode(&label.identity()).unwrap_or_default()), Found::Good(again) if again == label),
                    "a label changes by being written"
                );
            }
            Found::Bad(error) => reach::refused(&error),
            Found::Foreign => {}
        }
    }
}

pub(crate) fn label_examples() -> Vec<Vec<u8>> {
    files("label")
        .flat_map(|bytes| bytes.chunks(4096))
        .filter(|place| place.starts_with(b"ONEF"))
        .map(<[u8]>::to_vec)
        .collect()
}

/// A place of a node's label.
pub fn node_label(data: &[u8]) {
    for bytes in [data.to_vec(), sealed(data, 12)] {
        if let Some(Some(label)) = reach::noted(NodeLabel::decode(&bytes)) {
            assert!(
                NodeLabel::decode(&label.encode()).is_ok_and(|again| again == Some(label)),
                "a node's label changes by being written"
            );
        }
    }
}

pub(crate) fn node_label_examples() -> Vec<Vec<u8>> {
    let view = onefold_archive::NodesView {
        epoch: 5,
        members: 0b1011,
        ids: (0..5).map(|n| [n; 16]).collect(),
        listed: true,
    };
    vec![
        NodeLabel { archive: [1; 16], secret: [2; 32], number: 3, n: 3, k: 2, view, settled: true }
            .encode(),
    ]
}

/// The frames of a log: each whole one has records, which are written as they were read.
pub fn log(data: &[u8]) {
    let mut at = 0;
    while let Some((frame, _)) =
        data.get(at..).and_then(|bytes| decode_frame(&identity(), bytes, false))
    {
        reach::good();
        assert!(frame.bytes > 0);
        records_of(&frame.payload);
        at += frame.bytes as usize;
    }
}

pub(crate) fn log_examples() -> Vec<Vec<u8>> {
    files("log-").map(|bytes| bytes[..bytes.len().min(PART_BYTES)].to_vec()).collect()
}

fn records_of(payload: &[u8]) {
    if let Some(records) = reach::noted(Record::decode_all(payload)) {
        let again = Record::decode_all(&Record::encode_all(&records));
        assert!(again.is_ok_and(|again| again == records), "records change by being written");
        // Applying any records gives tables, which can be written and read, or an error.
        for kinds in [TREES, DOMAINS, DATA_KEYS, VOLUME_DOMAINS, ROLES] {
            let mut tables =
                Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], kinds) };
            if reach::noted(tables.apply(1, records.clone())).is_some() && kinds.domains {
                let again = Tables::decode(&tables.encode(), [1, 1, 0], kinds);
                let same = again.is_ok_and(|again| {
                    again.domains == tables.domains && again.data_keys == tables.data_keys
                });
                assert!(same, "tables that records made lose their domains");
            }
        }
    }
}

/// The records of a frame.
pub fn record(data: &[u8]) {
    records_of(data);
}

pub(crate) fn record_examples() -> Vec<Vec<u8>> {
    let mut examples = Vec::new();
    for log in files("log-") {
        let mut at = 0;
        while let Some((frame, _)) =
            log.get(at..).and_then(|bytes| decode_frame(&identity(), bytes, false))
        {
            examples.push(frame.payload.to_vec());
            at += frame.bytes as usize;
        }
    }
    // Frames that late encoding has.
    examples.push(
        [&[21, 1][..], &[1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 4]]
            .concat(),
    );
    examples.push([&[23, 1, 0, 0, 0][..], &5u64.to_le_bytes(), &7u64.to_le_bytes()].concat());
    examples.push(Record::encode_all(&of_snapshots()));
    examples.extend([false, true].map(|is_freed| Record::encode_all(&of_domains(is_freed))));
    examples.push(Record::encode_all(&of_data_keys()));
    examples.push(Record::encode_all(&of_roles()));
    examples.push(Record::encode_all(&of_volumes_of_domains()));
    examples
}

/// The tables of a snapshot: plain ones, with late encoding, with snapshots of directories, and with
/// a directory of leaves.
pub fn snapshot(data: &[u8]) {
    let one = [1, 1, 0];
    for (spread, kinds) in [
        (one, Kinds::default()),
        ([6, 4, 2], LATE),
        (one, TREES),
        (one, CLONES),
        (one, LEAVES),
        (one, Kinds { on_demand: true, ..LEAVES }),
        (one, DOMAINS),
        (one, DATA_KEYS),
        (one, VOLUME_DOMAINS),
        (one, ROLES),
    ] {
        if let Some(tables) = reach::noted(Tables::decode(data, spread, kinds)) {
            let again = Tables::decode(&tables.encode(), spread, kinds);
            assert!(
                again.is_ok_and(|again| {
                    again.domains == tables.domains
                        && again.data_keys == tables.data_keys
                        && again.roles == tables.roles
                }),
                "tables that were read can't be written"
            );
        }
    }
}

pub(crate) fn snapshot_examples() -> Vec<Vec<u8>> {
    let bodies = files("snapshot-")
        .filter_map(|bytes| bytes.get(40..bytes.len().checked_sub(72)?))
        .map(<[u8]>::to_vec);
    bodies
        .chain([Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([6, 4, 2], LATE) }
            .encode()])
        .chain([with_snapshots().encode()])
        .chain([false, true].map(|is_freed| with_domains(is_freed).encode()))
        .chain([with_data_keys().encode(), with_roles().encode()])
        .chain([with_volumes_of_domains().encode()])
        .chain([LEAVES, Kinds { on_demand: true, ..LEAVES }].map(|kinds| {
            Tables { next_id: 1, next_segment: 1, epoch: 1, ..Tables::new([1, 1, 0], kinds) }
                .encode()
        }))
        .collect()
}

/// A leaf of a table: its entries are written as they were read.
pub fn leaf(data: &[u8]) {
    for kinds in [Kinds::default(), LATE, DOMAINS] {
        let Some(entries) = reach::noted(decode_leaf(data, kinds)) else { continue };
        let again = decode_leaf(&[&data[..LEAF_HEADER_BYTES], &entries].concat(), kinds);
        assert!(again.is_ok_and(|again| again == entries), "a leaf changes by being written");
    }
}

pub(crate) fn leaf_examples() -> Vec<Vec<u8>> {
    let pages =
        files("tables").flat_map(|bytes| (0..bytes.len()).step_by(4096).map(|at| &bytes[at..]));
    let leaves = pages.filter(|bytes| bytes.starts_with(b"ONEFROWS"));
    leaves.map(|bytes| bytes[..bytes.len().min(4096)].to_vec()).take(24).collect()
}

/// A container: its metadata, and each of its groups expanded.
pub fn container(data: &[u8]) {
    let mut mended = data.to_vec();
    mend::container(&mut mended);
    let number = |at: usize| {
        data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    let (id, length) = (ContainerId(number(24)), number(48) as u32 as usize);
    for bytes in [data, &mended] {
        let Some(metadata) = bytes
            .get(..length)
            .and_then(|bytes| reach::noted(Metadata::decode(&identity(), id, bytes)))
        else {
            continue;
        };
        let bytes = metadata.encode(&identity()).unwrap_or_default();
        let again = Metadata::decode(&identity(), id, &bytes);
        assert!(again.is_ok_and(|again| again == metadata), "metadata changes by being written");
        let (mut packer, mut raw) = (Packer::default(), Vec::new());
        for (number, group) in metadata.groups.iter().enumerate() {
            let stored = bytes.get(group.at as usize..group.at as usize + group.stored as usize);
            if stored
                .and_then(|stored| {
                    let (seal, mut stored) = (metadata.group_seal(number), stored.to_vec());
                    reach::noted(packer.expand(&identity(), seal, group, &mut stored, &mut raw))
                })
                .is_some()
            {
                let inside = |chunk: &&onefold_archive::Chunk| {
                    (chunk.at + chunk.bytes) as usize <= raw.len()
                };
                let n = metadata.groups.iter().position(|other| other == group).unwrap_or(0);
                assert!(
                    metadata
                        .chunks
                        .iter()
                        .filter(|chunk| usize::from(chunk.group) == n)
                        .all(|chunk| inside(&chunk))
                );
            }
        }
    }
}

pub(crate) fn container_examples() -> Vec<Vec<u8>> {
    let all = files("segment-")
        .flat_map(|bytes| (0..bytes.len()).step_by(4096).map(move |at| &bytes[at..]));
    let found = all
        .filter(|bytes| bytes.starts_with(b"ONEFCONT"))
        .map(|bytes| bytes[..bytes.len().min(PART_BYTES)].to_vec());
    found.step_by(3).take(24).collect()
}

/// A piece of a recipe.
pub fn recipe(data: &[u8]) {
    if let Some(parts) = reach::noted(recipe_parts(data)) {
        let mut summary = Summary::default();
        parts.iter().for_each(|part| summary.add(part));
        let _ = summary.end();
    }
}

pub(crate) fn recipe_examples() -> Vec<Vec<u8>> {
    use onefold_archive::{Address, RecipeWriter};
    let (mut writer, mut pieces) = (RecipeWriter::default(), Vec::new());
    let mut full = |piece| {
        pieces.push(piece);
        Ok(())
    };
    for n in 0..200u64 {
        let address = Address { container: ContainerId(n / 50), slot: (n % 50) as u16 };
        let added =
            writer.chunk(address, onefold_core::Fingerprint([n as u8; 16]), 1000, &mut full);
        let zeroes = if n % 70 == 0 { writer.zeroes(n, &mut full) } else { Ok(()) };
        assert!(added.is_ok() && zeroes.is_ok());
    }
    assert!(writer.end(&mut full).is_ok());
    let slice =
        [&[4u8][..], &[9, 0, 0, 0, 0, 1, 0], &[5, 0, 0, 0], &[7, 0, 0, 0], &[3; 16]].concat();
    pieces.push(slice);
    pieces
}

/// The entries of a listing.
pub fn listing(data: &[u8]) {
    let (mut held, mut again) = (data.to_vec(), Vec::new());
    let (mut order, mut links) = (Order::default(), Links::default());
    reach::noted(decode_listing(&mut held, &mut |entry| {
        encode_entry(&entry, &mut again);
        let _ = order.next(&entry).and_then(|()| links.next(&entry));
        Ok(())
    }));
    let _ = links.end_pass();
    assert!(data.starts_with(&again), "an entry changes by being written");
}

pub(crate) fn listing_examples() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    tree().iter().for_each(|entry| encode_entry(entry, &mut all));
    vec![all]
}
