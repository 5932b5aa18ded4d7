//! Good archives, with something of everything: streams of each compression, a tree, a volume, what
//! was removed, collected and merged, an index and counts.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use onefold_archive::{
    Archive, ArchiveExports, Chunking, Collection, CollectionOptions as Options, Compression,
    Format, Gauge, Identity, Ingest, Nodes, PutRequest as Request, Settings, Shape, Spread,
    Volumes, encode_entry,
};
use onefold_core::{
    Exports, Files, Result,
    tree::{Entry, What},
};

use super::{Place, files::MemoryFiles};
use crate::mutator::Random;

const ID: [u8; 16] = [1; 16];
const SECRET: [u8; 32] = [2; 32];

/// The id and secret that the checksums of these archives are made with.
pub(super) fn identity() -> Identity {
    Identity::new(ID, &SECRET)
}

/// The archives, file by file: with a log that was begun anew often, with one that was not, and with
/// tables in leaves.
pub(super) fn archives() -> &'static [BTreeMap<String, Vec<u8>>; 3] {
    static ARCHIVES: OnceLock<[BTreeMap<String, Vec<u8>>; 3]> = OnceLock::new();
    ARCHIVES.get_or_init(|| {
        [
            build(Compression::Zstd, 600, false),
            build(Compression::Lz4, 1 << 20, false),
            build(Compression::Zstd, 600, true),
        ]
    })
}

/// An input that begins from the archive with leaves, whatever it was made from.
pub(super) fn with_leaves(data: &[u8]) -> Vec<u8> {
    let (first, steps) = data.split_first().unwrap_or((&0, &[]));
    // Both numbers leave 2 when they are divided by 3.
    [&[if first & 0x80 == 0 { 2 } else { 0x80 }], steps].concat()
}

fn build(compression: Compression, log_bytes: u64, leaves: bool) -> BTreeMap<String, Vec<u8>> {
    match try_build(compression, log_bytes, leaves) {
        Ok(files) => files,
        Err(error) => panic!("the example archive can't be made: {error}"),
    }
}

/// Some of it compresses, some does not.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..bytes)
        .map(|n| if n / 3000 % 2 == 0 { random.next() as u8 } else { (n / 700) as u8 })
        .collect()
}

fn try_build(
    compression: Compression,
    log_bytes: u64,
    leaves: bool,
) -> Result<BTreeMap<String, Vec<u8>>> {
    let files = Arc::new(MemoryFiles::default());
    // Leaves of containers are read on demand here, and all by opening on the nodes.
    fill(&files, compression, log_bytes, (leaves, leaves))?;
    Ok(files.all())
}

/// Nodes of the archive that has several, as directories of files.
pub(super) fn nodes() -> &'static Vec<BTreeMap<String, Vec<u8>>> {
    static NODES: OnceLock<Vec<BTreeMap<String, Vec<u8>>>> = OnceLock::new();
    NODES.get_or_init(|| match try_nodes() {
        Ok(nodes) => nodes,
        Err(error) => panic!("the example archive on nodes can't be made: {error}"),
    })
}

fn try_nodes() -> Result<Vec<BTreeMap<String, Vec<u8>>>> {
    let directories: Vec<Arc<MemoryFiles>> = (0..3).map(|_| Arc::default()).collect();
    let spread = Spread { n: 3, k: 2, ids: (0..3).map(|node| [node; 16]).collect(), listed: false };
    let files = directories.iter().map(|files| files.clone() as Arc<dyn Files>).collect();
    fill(
        &Arc::new(Nodes::create(files, &spread, ID, SECRET)?),
        Compression::Lz4,
        6000,
        (true, false),
    )?;
    Ok(directories.iter().map(|files| files.all()).collect())
}

/// Makes an archive, with everything in it.
fn fill(
    place: &impl Place,
    compression: Compression,
    log_bytes: u64,
    (leaves, on_demand): (bool, bool),
) -> Result<()> {
    let format = Format {
        chunking: Chunking::FastCdc(1024),
        compression,
        segment_bytes: 96 << 10,
        reserve_bytes: 4096,
        leaves,
        on_demand,
        counts_in_pages: on_demand,
        ..Format::new(ID, SECRET, [3; 16])
    };
    place.make(&format)?;
    let settings = Settings {
        container_bytes: 12 << 10,
        log_bytes,
        log_ahead_bytes: 0,
        ahead_bytes: 0,
        sync_bytes: 32 << 10,
        auxiliary_entries: 16,
        dirty_bytes: 512 << 10,
        leaf_entries: 4,
        ..Settings::default()
    };
    let archive = Arc::new(place.open(true, settings)?);
    for (n, name) in ["one", "two", "gone", "three"].into_iter().enumerate() {
        put_bytes(&archive, name, &content(n as u64 % 3, 20_000 + 3000 * n))?;
    }
    put_tree(&archive, "tree")?;
    archive.create_volume("disk", 4 << 20, 100)?;
    {
        let volumes = Volumes::new(&Ingest::begin(&archive, false, true)?, 100);
        let disk = ArchiveExports(volumes.clone()).open("disk")?;
        for block in [0u64, 1, 7, 30] {
            disk.write(block * (128 << 10) + 512, &content(block, 20_000))?;
            disk.flush()?;
        }
        volumes.close()?;
    }
    archive.remove("gone")?;
    let options = Options {
        now: 5_000,
        keep_partial: 0,
        trash: 0,
        wait: false,
        reserve_bytes: 4096,
        encode_all: false,
        doubts_clock: false,
    };
    Collection::begin(&archive, options)?.run(&mut |_| {})?;
    put_bytes(&archive, "last", &content(9, 9_000))?;
    archive.remove("three")
}

fn put_bytes(archive: &Arc<Archive>, name: &str, bytes: &[u8]) -> Result<()> {
    let request =
        Request { domain: None, name: name.into(), shape: Shape::Bytes, now: 1_000, wait: false };
    onefold_archive::put(archive, request, &Gauge::default(), |feeder| {
        feeder.bytes(bytes)?;
        feeder.zeroes(8192)?;
        feeder.bytes(&bytes[..bytes.len() / 2])
    })
    .map(|_| ())
}

fn put_tree(archive: &Arc<Archive>, name: &str) -> Result<()> {
    let request =
        Request { domain: None, name: name.into(), shape: Shape::Tree, now: 1_000, wait: false };
    let (data, mut entries) = (content(5, 6_000), Vec::new());
    tree().iter().for_each(|entry| encode_entry(entry, &mut entries));
    onefold_archive::put(archive, request, &Gauge::default(), |feeder| {
        feeder.bytes(&data)?;
        feeder.end_recipe()?;
        feeder.bytes(&entries)
    })
    .map(|_| ())
}

/// Something of each kind.
pub(super) fn tree() -> Vec<Entry> {
    let entry = |path: &str, what| Entry {
        path: path.into(),
        what,
        mode: 0o644,
        uid: 1,
        gid: 2,
        seconds: 1_000,
        nanoseconds: 7,
        attributes: vec![(b"user.a".to_vec(), vec![1, 2, 3])],
    };
    vec![
        entry("", What::Directory),
        entry("a", What::File { bytes: 10_000, data: vec![(0, 2_000), (5_000, 4_000)] }),
        entry("b", What::Directory),
        entry("b/c", What::Symlink { target: b"../a".to_vec() }),
        entry("b/d", What::HardLink { target: b"a".to_vec() }),
        entry("e", What::Fifo),
        entry("f", What::Socket),
        entry("g", What::CharacterDevice(259)),
        entry("h", What::BlockDevice(7)),
    ]
}
