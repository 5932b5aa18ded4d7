//! Archives of all forms that `create` ever made: how one is filled, packed, and compared.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses its own part, and panics where it fails"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use onefold_archive::{
    Archive, ArchiveExports, BackupRequest, Collection, CollectionOptions, Content, Event, FileMap,
    Format, Gauge, Ingest, KeySource, Kinds, Known, Nodes, PutRequest, Rad, Settings, Shape,
    SnapshotId, Spread, Stat, TreeReader, TreeWhat, Verify, Volumes, allow_data_keys,
    allow_domains, backup, check, create_domain, create_sealed, create_volume_in, data_keys,
    domains, erase_domain, rotate_data_key,
};
use onefold_backend::Directory;
use onefold_core::{
    Algorithm, BLOCK_BYTES, Block, BlockRead, Exports, Files, Kind, Lba, Result, Volume,
    block::bytes_mut,
};

use onefold_seal::{Argon, Keys, SlotKind};

use crate::support::{By, Counter, entry, get, options, put, secret};

/// Bytes of the volumes.
const VOLUME_BYTES: usize = 512 << 10;

/// Nodes of an archive on several.
pub(crate) const NODES: usize = 3;

/// Streams, of which some came and went.
const STREAMS: std::ops::Range<usize> = 0..24;

/// Domains of an archive that has others than the first one.
const DOMAINS: std::ops::RangeInclusive<u32> = 1..=3;

/// The one that was erased before a collection, and the one that was erased after all of them.
const COLLECTED: u32 = 2;
const ERASED: u32 = 3;

/// A form of archives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) kinds: Kinds,
    pub(crate) sha256: bool,
    /// Chunks are encoded at once, where the archive encodes by reference counts.
    pub(crate) gathers: bool,
    pub(crate) nodes: bool,
    /// Its key is 32 times the byte 1.
    pub(crate) sealed: bool,
    /// Its containers are padded, and some so long that it matters.
    pub(crate) pads: bool,
}

/// All forms of which `create` ever made archives.
pub(crate) fn forms() -> Vec<Form> {
    let first = Kinds::default();
    let trees = Kinds { trees: true, ..first };
    let clones = Kinds { clones: true, ..trees };
    let leaves = Kinds { leaves: true, ..clones };
    let on_demand = Kinds { on_demand: true, ..leaves };
    let counts = Kinds { counts_in_pages: true, ..on_demand };
    let plain = |kinds| Form {
        kinds,
        sha256: false,
        gathers: false,
        nodes: false,
        sealed: false,
        pads: false,
    };
    let mut all = Vec::new();
    for kinds in [first, trees, clones, leaves, on_demand, counts] {
        let late = Form { nodes: true, ..plain(Kinds { late: true, ..kinds }) };
        all.extend([plain(kinds), late]);
        if kinds.leaves {
            let gathered = Form { gathers: true, ..late };
            all.extend([gathered, Form { sha256: true, ..gathered }]);
        }
        if kinds.trees {
            all.extend([Form { sha256: true, ..plain(kinds) }, Form { sha256: true, ..late }]);
        }
    }
    all.push(Form { nodes: true, ..plain(first) });
    all.push(Form { sealed: true, ..plain(counts) });
    all.push(Form { sealed: true, ..plain(Kinds { domains: true, ..counts }) });
    all.push(Form { sealed: true, ..plain(Kinds { heads: true, ..counts }) });
    let newest = Kinds { domains: true, heads: true, data_keys: true, ..counts };
    all.push(Form { sealed: true, pads: true, ..plain(Kinds { heads: true, ..counts }) });
    all.push(Form { sealed: true, ..plain(newest) });
    all.push(Form { sealed: true, ..plain(Kinds { volume_domains: true, ..newest }) });
    all
}

impl Form {
    /// The name of its golden archive.
    pub(crate) fn name(self) -> String {
        let Kinds {
            late,
            trees,
            leaves,
            on_demand,
            clones,
            counts_in_pages,
            domains,
            heads,
            roles: _,
            data_keys,
            volume_domains,
        } = self.kinds;
        let words = [
            (trees, "trees"),
            (clones, "clones"),
            (leaves, "leaves"),
            (on_demand, "demand"),
            (counts_in_pages, "counts"),
            (late && !self.gathers, "late"),
            (self.gathers, "gathered"),
            (self.sha256, "sha256"),
            (self.nodes && !late, "nodes"),
            (self.sealed, "sealed"),
            (domains, "domains"),
            (heads, "heads"),
            (data_keys, "keys"),
            (volume_domains, "volumes"),
            (self.pads, "padded"),
        ];
        let words: Vec<&str> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
        format!("form-{}", if words.is_empty() { "first".into() } else { words.join("-") })
    }

    /// The version of its label, and the features that are needed to read and to write.
    pub(crate) fn label(self) -> (u8, u64, u64) {
        let Kinds {
            late,
            trees,
            leaves,
            on_demand,
            clones,
            counts_in_pages,
            domains,
            heads,
            roles: _,
            data_keys,
            volume_domains,
        } = self.kinds;
        // Bit 7 is roles, and bit 8 a form that was given up.
        let bits = [
            late,
            trees,
            leaves,
            self.sha256,
            clones,
            on_demand,
            domains,
            false,
            false,
            data_keys,
            volume_domains,
            self.pads,
        ];
        let read = bits.iter().rev().fold(0, |all, bit| all << 1 | u64::from(*bit));
        let write =
            u64::from(self.gathers) | u64::from(counts_in_pages) << 1 | u64::from(heads) << 2;
        match read {
            _ if self.sealed => (4, read, write),
            0 => (1, 0, 0),
            1 if write == 0 => (2, 0, 0),
            _ => (3, read, write),
        }
    }

    pub(crate) fn create(self, at: &Path) {
        self.create_by(at, 5);
    }

    /// The same; a sealed one's keys come from this chance.
    pub(crate) fn create_by(self, at: &Path, chance: u64) {
        let rad = Rad { delay: 1, batch: 1, classes: [2, 2, 2], gathers: 0 };
        let gathered = Rad { delay: 0, gathers: 16, ..rad };
        let Kinds {
            late,
            trees,
            leaves,
            on_demand,
            clones,
            counts_in_pages,
            domains,
            heads,
            roles: _,
            data_keys,
            // An archive that gets domains gets them for its volumes, too.
            volume_domains: _,
        } = self.kinds;
        let format = Format {
            reserve_bytes: 4096,
            segment_bytes: 256 << 10,
            trees,
            leaves,
            on_demand,
            clones,
            counts_in_pages,
            heads,
            pads: self.pads,
            late: late.then_some(if self.gathers { gathered } else { rad }),
            fingerprint: if self.sha256 { Algorithm::HmacSha256 } else { Algorithm::Blake3 },
            ..Format::new([7; 16], [8; 32], [9; 16])
        };
        if self.sealed {
            let random = Arc::new(Counter(AtomicU64::new(chance)));
            let mut keys = Keys::create(format.id, &*random).unwrap();
            let file = (SlotKind::File, "published");
            keys.add_slot(file, &secret(1), Argon::LEAST, (0, 0), &*random).unwrap();
            let files = Directory::create(at).unwrap();
            create_sealed(&files, &format, &mut keys, random).unwrap();
            drop(files);
            if domains {
                assert!(allow_domains(&self.open(at, 2000)).unwrap());
            }
            if data_keys {
                assert!(allow_data_keys(&self.open(at, 2000)).unwrap());
            }
            return;
        }
        if !self.nodes {
            return Archive::create(&Directory::create(at).unwrap(), &format).unwrap();
        }
        fs::create_dir(at).unwrap();
        let directory =
            |node: String| Arc::new(Directory::create(&at.join(node)).unwrap()) as Arc<dyn Files>;
        let directories = self.directories().into_iter().map(directory).collect();
        let ids = (0..NODES as u8).map(|node| [node + 1; 16]).collect();
        let spread = Spread { n: 3, k: 2, ids, listed: false };
        let nodes = Nodes::create(directories, &spread, format.id, format.secret).unwrap();
        Archive::create_on_nodes(&nodes, &format).unwrap();
    }

    /// The names of its directories.
    fn directories(self) -> Vec<String> {
        match self.nodes {
            true => (0..NODES).map(|node| format!("n{node}")).collect(),
            false => vec![String::new()],
        }
    }

    /// Opens it with limits so small that much happens.
    pub(crate) fn open(self, at: &Path, log_bytes: u64) -> Arc<Archive> {
        let settings = Settings {
            log_bytes,
            log_ahead_bytes: 4096,
            ahead_bytes: 0,
            leaf_entries: 4,
            container_bytes: if self.pads { 64 << 10 } else { 16 << 10 },
            auxiliary_entries: 64,
            opener: match self.sealed {
                true => KeySource::new(Arc::new(By(1, false))),
                false => KeySource::default(),
            },
            ..Settings::default()
        };
        if !self.nodes {
            let files = Arc::new(Directory::open(at, true).unwrap());
            return Arc::new(Archive::open(files, true, settings).unwrap());
        }
        let directory = |node: String| {
            Some(Arc::new(Directory::open(&at.join(node), true).unwrap()) as Arc<dyn Files>)
        };
        let directories = self.directories().into_iter().map(directory).collect();
        let nodes = Arc::new(Nodes::open(directories, false).unwrap());
        Arc::new(Archive::open_on_nodes(nodes, true, settings).unwrap())
    }

    /// Fills a new archive: streams that came and went, a volume and its clone, snapshots of a directory,
    /// collections, and changes behind the last checkpoint.
    pub(crate) fn fill(self, at: &Path) {
        self.create(at);
        self.fill_created(at);
    }

    /// The same of one that was created.
    pub(crate) fn fill_created(self, at: &Path) {
        let archive = self.open(at, 2000);
        STREAMS.for_each(|n| drop(put(&archive, &stream(n), &text(n)).unwrap()));
        (0..24).step_by(4).for_each(|n| archive.remove(&stream(n)).unwrap());
        archive.create_volume("v", VOLUME_BYTES as u64, 1).unwrap();
        write_volume(&archive, "v", 0);
        if self.kinds.clones {
            archive.clone_volume("v", "clone", false, 2).unwrap();
            write_volume(&archive, "v", 1);
        }
        if self.kinds.trees {
            back_up(&archive, 1);
            back_up(&archive, 2);
        }
        if self.kinds.domains {
            DOMAINS.for_each(|number| fill_domain(&archive, number));
            erase_domain(&archive, COLLECTED).unwrap();
        }
        for _ in 0..3 {
            collect(&archive);
        }
        if self.kinds.data_keys {
            // The first domain has its third key and the second one, of which something is left.
            rotate_data_key(&archive, 0).unwrap();
            put(&archive, "between", &text(1)).unwrap();
            let mut collection = Collection::begin(&archive, options(2_000_000)).unwrap();
            collection.reseal(None);
            assert_eq!(collection.run(&mut |_| {}).unwrap().keys_erased, 1);
            for (domain, generation) in [(0, 2), (1, 1)] {
                assert_eq!(rotate_data_key(&archive, domain).unwrap(), generation);
            }
        }
        drop(archive);
        let archive = self.open(at, u64::MAX);
        archive.rename(&stream(1), "renamed").unwrap();
        put(&archive, "last", &text(100)).unwrap();
        if self.kinds.domains {
            erase_domain(&archive, ERASED).unwrap();
        }
    }

    /// All that [`fill`](Self::fill) stored is there, and whole.
    pub(crate) fn is_whole(self, archive: &Arc<Archive>) {
        let name = self.name();
        let tables = archive.refresh().unwrap();
        for n in STREAMS.filter(|n| n % 4 > 0) {
            let stored = if n == 1 { "renamed".into() } else { stream(n) };
            assert!(get(archive, &stored).unwrap() == text(n), "{name}: {stored}");
        }
        assert!(get(archive, "last").unwrap() == text(100), "{name}");
        assert!(!tables.streams.contains_key(&stream(4)), "{name}");
        let is_cloned = self.kinds.clones;
        assert!(read_volume(archive, "v") == volume(u8::from(is_cloned)), "{name}");
        if is_cloned {
            assert!(read_volume(archive, "clone") == volume(0), "{name}");
        }
        if self.kinds.trees {
            assert!(read_file(archive, 1) == text(1), "{name}");
            assert!(read_file(archive, 2) == text(2), "{name}");
        }
        if self.kinds.domains {
            DOMAINS.for_each(|number| domain_is_whole(archive, number));
        }
        if self.kinds.volume_domains {
            DOMAINS.for_each(|number| volumes_are_whole(archive, number));
        }
        if self.kinds.data_keys {
            assert!(get(archive, "between").unwrap() == text(1), "{name}");
            let of = |domain, generation| (domain, generation, true);
            let found: Vec<_> = data_keys(&tables).unwrap();
            let found: Vec<_> =
                found.iter().map(|one| (one.domain, one.generation, one.has_older)).collect();
            assert_eq!(found, [of(0, 2), of(1, 1)], "{name}");
        }
        let report = check(archive, true, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well(), "{name}: {:?}", report.problems);
    }
}

/// The volumes of [`fill_domain`] are there, or the domain was erased.
fn volumes_are_whole(archive: &Arc<Archive>, number: u32) {
    let tables = archive.tables();
    for (name, version) in [(format!("v{number}"), 1), (format!("v{number}@clone"), 0)] {
        assert_eq!(tables.volumes.named(&name).unwrap().1.domain, number);
        match [COLLECTED, ERASED].contains(&number) {
            true => assert_eq!(open_volume(archive, &name).err().unwrap().kind(), Kind::Denied),
            false => assert!(read_volume(archive, &name) == volume(version), "{name}"),
        }
    }
}

/// Stores what domain 0 has too, once more, in a new domain.
fn fill_domain(archive: &Arc<Archive>, number: u32) {
    assert_eq!(create_domain(archive, &format!("domain-{number}")).unwrap(), number);
    for n in [1, 2] {
        let request = PutRequest {
            name: format!("stream-{n}-of-{number}"),
            shape: Shape::Bytes,
            domain: Some(number),
            now: 1_000,
            wait: false,
        };
        let fed =
            onefold_archive::put(archive, request, &Gauge::default(), |to| to.bytes(&text(n)));
        assert_eq!(fed.unwrap().new_bytes, text(n).len() as u64, "something is shared");
    }
    back_up_in(archive, number as u8 * 16, &format!("s{number}"), Some(number));
    let (volume, clone) = (format!("v{number}"), format!("v{number}@clone"));
    create_volume_in(archive, number, &volume, VOLUME_BYTES as u64, 1).unwrap();
    write_volume(archive, &volume, 0);
    archive.clone_volume(&volume, &clone, false, 2).unwrap();
    write_volume(archive, &volume, 1);
}

/// What [`fill_domain`] stored is there, or the domain was erased.
fn domain_is_whole(archive: &Arc<Archive>, number: u32) {
    let tables = archive.tables();
    let id = SnapshotId([number as u8 * 16; 16]);
    assert_eq!(tables.snapshots.get(id).unwrap().domain, number);
    let is_erased = [COLLECTED, ERASED].contains(&number);
    assert_eq!(tables.domains.erased.contains_key(&number), is_erased);
    for n in [1, 2] {
        let name = format!("stream-{n}-of-{number}");
        assert_eq!(tables.streams.get(&name).unwrap().domain, number);
        match is_erased {
            true => assert_eq!(get(archive, &name).unwrap_err().kind(), Kind::Denied),
            false => assert!(get(archive, &name).unwrap() == text(n)),
        }
    }
    if !is_erased {
        assert!(read_file(archive, number as u8 * 16) == text(number as usize * 16));
    }
    let all = domains(archive).unwrap();
    let name = all.iter().find(|one| one.number == number).unwrap().name.clone();
    assert_eq!(name, (!is_erased).then(|| format!("domain-{number}")));
}

fn stream(n: usize) -> String {
    format!("stream-{n:02}")
}

/// Text that compresses, and of which two streams have nothing in common.
pub(crate) fn text(n: usize) -> Vec<u8> {
    (0..250 + 40 * (n % 7)).map(|k| format!("{n} {}\n", k * (n + 3))).collect::<String>().into()
}

/// What a volume holds, as it was written at first or later.
fn volume(version: u8) -> Vec<u8> {
    let mut bytes = vec![0; VOLUME_BYTES];
    let all: Vec<u8> = (0..20).flat_map(text).collect();
    bytes[64 << 10..][..40 << 10].copy_from_slice(&all[..40 << 10]);
    if version > 0 {
        bytes[300 << 10..][..8 << 10].copy_from_slice(&all[1000..][..8 << 10]);
    }
    bytes
}

fn write_volume(archive: &Arc<Archive>, name: &str, version: u8) {
    let volumes = Volumes::new(&Ingest::begin(archive, false, true).unwrap(), 100);
    let written = ArchiveExports(volumes).open(name).unwrap();
    let bytes = volume(version);
    let mut parts = vec![(64 << 10, 40 << 10)];
    parts.extend((version > 0).then_some((300 << 10, 8 << 10)));
    for (at, length) in parts {
        written.write(at as u64, &bytes[at..at + length]).unwrap();
    }
    written.flush().unwrap();
}

fn open_volume(archive: &Arc<Archive>, name: &str) -> Result<Arc<dyn Volume>> {
    ArchiveExports(Volumes::new(&Ingest::begin(archive, false, true)?, 100)).open(name)
}

fn read_volume(archive: &Arc<Archive>, name: &str) -> Vec<u8> {
    let volume = open_volume(archive, name).unwrap();
    let mut blocks = Block::zeroed_vec(VOLUME_BYTES / BLOCK_BYTES);
    let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result.unwrap();
    bytes_mut(&mut blocks).to_vec()
}

/// A snapshot of a directory with one file.
pub(crate) fn back_up(archive: &Arc<Archive>, id: u8) {
    back_up_in(archive, id, "s", None);
}

/// The same in a domain.
fn back_up_in(archive: &Arc<Archive>, id: u8, set: &str, domain: Option<u32>) {
    let request = BackupRequest {
        id: SnapshotId([id; 16]),
        set: set.into(),
        domain,
        now: 1_000,
        ..BackupRequest::default()
    };
    backup(archive, &request, false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        feeder.bytes(&text(id.into()))?;
        let file = entry("file", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, Stat::default(), None))?;
        feeder.event(Event::End(0))
    })
    .unwrap();
}

pub(crate) fn read_file(archive: &Arc<Archive>, id: u8) -> Vec<u8> {
    let mut reader = TreeReader::new(archive).unwrap();
    let tables = reader.tables().clone();
    let snapshot = tables.snapshots.get(SnapshotId([id; 16])).unwrap();
    let TreeWhat::File(bytes, map) = reader.find(snapshot, b"file").unwrap().what else {
        panic!("it is no file")
    };
    let mut content = Vec::new();
    let mut take = |part: Content<'_>| {
        match part {
            Content::Bytes(part) => content.extend_from_slice(part),
            Content::Zeroes(n) | Content::Hole(n) => content.resize(content.len() + n as usize, 0),
        }
        Ok(())
    };
    reader.read(bytes, &map, Verify::Chunks, &mut take).unwrap();
    content
}

pub(crate) fn collect(archive: &Arc<Archive>) {
    let options = CollectionOptions {
        reserve_bytes: 4096,
        encode_all: archive.label().late.is_some(),
        ..options(1_000_000)
    };
    Collection::begin(archive, options).unwrap().run(&mut |_| {}).unwrap();
}

/// For each file a line with its path, one with its length, and its bytes; compressed.
pub(crate) fn packed(from: &Path) -> Vec<u8> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut directories = vec![from.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let (name, bytes) = (path.strip_prefix(from).unwrap(), fs::read(&path).unwrap());
        all.extend_from_slice(format!("{}\n{}\n", name.display(), bytes.len()).as_bytes());
        all.extend(bytes);
    }
    zstd::encode_all(&all[..], 19).unwrap()
}

/// Makes the directories and files again.
pub(crate) fn unpack(packed: &[u8], to: &Path) {
    let all = zstd::decode_all(packed).unwrap();
    let mut rest = &all[..];
    let line = |rest: &mut &[u8]| {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let line = String::from_utf8(rest[..end].to_vec()).unwrap();
        *rest = &rest[end + 1..];
        line
    };
    if all.starts_with(b"n0/") {
        fs::create_dir(to).unwrap();
    }
    while !rest.is_empty() {
        let (path, bytes) = (to.join(line(&mut rest)), line(&mut rest).parse::<usize>().unwrap());
        let (directory, name) = (path.parent().unwrap(), path.file_name().unwrap());
        if !directory.exists() {
            drop(Directory::create(directory).unwrap());
        }
        drop(Directory::open(directory, true).unwrap().create(name.to_str().unwrap()).unwrap());
        fs::write(&path, &rest[..bytes]).unwrap();
        rest = &rest[bytes..];
    }
}
