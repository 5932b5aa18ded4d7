//! RAD's Algorithm 1: new chunks are gathered, sorted by their counts, and encoded at once; what
//! names them waits for their places.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{
        Arc, Barrier,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use onefold_archive::{
    Archive, ArchiveExports, BackupRequest, Chunking, Class, Collection, CollectionOptions,
    Compression, ContainerKind, Event, FileMap, FilterName, Format, Gauge, Ingest, Known, Nodes,
    PutRequest, Rad, Settings, Shape, SnapshotId, Spread, Stat, TreeEntry, TreeWhat, Volumes,
    backup, check, put_on,
};
use onefold_backend::Directory;
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Error, Exports, Files, Kind, Lba, Result, block::bytes_mut,
};
use support::{Call, Watch, Watched, get, noise};

const CHUNK: usize = 4096;

/// How many writes and syncs are left before the process is as good as dead.
type Left = Arc<AtomicI64>;

struct Desk {
    dir: tempfile::TempDir,
    settings: Settings,
}

impl Desk {
    /// Six nodes, the code (6, 4), and 5,3 and 4,2 for what is shared. Processes gather so many KiB.
    fn new(gathers: u32) -> Desk {
        let dir =
            tempfile::Builder::new().prefix("rad").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let settings = Settings { container_bytes: 64 << 10, ..Settings::default() };
        let desk = Desk { dir, settings };
        let directories = (0..6)
            .map(|node| Arc::new(Directory::create(&desk.path(node)).unwrap()) as Arc<dyn Files>)
            .collect();
        let format = Format {
            chunking: Chunking::Static(CHUNK as u32),
            compression: Compression::None,
            reserve_bytes: 1 << 20,
            trees: true,
            late: Some(Rad { delay: 0, batch: 1, classes: [4, 3, 2], gathers }),
            ..Format::new([1; 16], [2; 32], [3; 16])
        };
        let spread =
            Spread { n: 6, k: 4, ids: (0..6).map(|node| [node; 16]).collect(), listed: false };
        let nodes = Nodes::create(directories, &spread, format.id, format.secret).unwrap();
        Archive::create_on_nodes(&nodes, &format).unwrap();
        desk
    }

    fn path(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("n{node}"))
    }

    fn open_with(&self, wrap: &dyn Fn(Directory) -> Arc<dyn Files>) -> Result<Arc<Archive>> {
        let directory = |node| Some(wrap(Directory::open(&self.path(node), true).ok()?));
        let nodes = Arc::new(Nodes::open((0..6).map(directory).collect(), false)?);
        Ok(Arc::new(Archive::open_on_nodes(nodes, true, self.settings.clone())?))
    }

    fn open(&self) -> Arc<Archive> {
        self.open_with(&|directory| Arc::new(directory)).unwrap()
    }

    fn is_well(&self) {
        let report = check(&self.open(), true, &mut |_, _, _| {}).unwrap();
        assert!(report.is_well(), "{:?}", report.problems);
    }

    /// Chunks of each class.
    fn chunks(&self) -> BTreeMap<Class, u64> {
        let tables = self.open().tables();
        let mut all = BTreeMap::new();
        for container in &tables.containers {
            let container = container.unwrap();
            if container.stored.kind == ContainerKind::Data {
                *all.entry(tables.class(&container.stored.place).0).or_default() +=
                    u64::from(container.stored.chunks);
            }
        }
        all
    }

    fn collect(&self, encode_all: bool) -> onefold_archive::Collected {
        let options = CollectionOptions { encode_all, ..support::options(5_000) };
        Collection::begin(&self.open(), options).unwrap().run(&mut |_| {}).unwrap()
    }
}

/// Chunks by number, one after the other.
fn chunks(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(|n| noise(n + 1, CHUNK)).collect()
}

/// Two chunks five times each, ten twice, and sixty once, mixed.
fn mixed() -> Vec<u8> {
    let once = (100..160).collect::<Vec<u64>>();
    let part = |n: usize| once[12 * n..12 * (n + 1)].iter().copied();
    let twice = |n: usize| (10..20).filter(move |_| n % 2 == 1 && n < 4);
    chunks((0..5).flat_map(|n| [1, 2].into_iter().chain(part(n)).chain(twice(n))))
}

#[test]
fn rule_65_chunks_of_a_put_lie_in_the_classes_of_their_counts_at_once() {
    let desk = Desk::new(1 << 20);
    let bytes = mixed();
    let report = support::put(&desk.open(), "mixed", &bytes).unwrap();
    assert_eq!((report.new_bytes, report.counts.chunks), (72 * CHUNK as u64, 90));
    let expected = [(Class::Cold, 60), (Class::Baseline, 10), (Class::Hot, 2)];
    assert_eq!(desk.chunks(), BTreeMap::from(expected));
    let cost = desk.open().tables().write_cost;
    assert!(cost.upload_bytes < 3 * bytes.len() as u64, "no copies: {cost:?}");
    assert_eq!(desk.collect(true).encoded, 0);
    assert_eq!(support::put(&desk.open(), "again", &bytes).unwrap().new_bytes, 0);
    for lost in (0u32..1 << 6).filter(|bits| bits.count_ones() == 2) {
        let lost: Vec<usize> = (0..6).filter(|node| lost >> node & 1 == 1).collect();
        let away = |node: usize| desk.dir.path().join(format!("lost{node}"));
        lost.iter().for_each(|&node| fs::rename(desk.path(node), away(node)).unwrap());
        assert!(get(&desk.open(), "mixed").unwrap() == bytes, "without {lost:?}");
        lost.iter().for_each(|&node| fs::rename(away(node), desk.path(node)).unwrap());
    }
    desk.is_well();
    desk.open().remove("mixed").unwrap();
    desk.open().remove("again").unwrap();
    desk.collect(false);
    assert_eq!(desk.open().tables().sums().all().bytes, 0);
}

#[test]
fn rule_65_a_batch_is_bounded_and_later_ones_find_its_chunks() {
    let desk = Desk::new(256);
    // Between two of a chunk comes more than a batch, and more than one step of the put. The step with
    // the last new ones, 512 chunks long, has enough of them to be placed.
    let bytes = chunks((0..1280).chain(0..1280).chain([5000, 5000]));
    let report = support::put(&desk.open(), "long", &bytes).unwrap();
    assert_eq!(report.new_bytes, 1281 * CHUNK as u64);
    let found = desk.chunks();
    assert_eq!(found, BTreeMap::from([(Class::Cold, 1280), (Class::Baseline, 1)]));
    assert!(get(&desk.open(), "long").unwrap() == bytes);
    desk.is_well();
}

#[test]
fn rule_65_bytes_are_compared_with_those_that_wait() {
    let mut desk = Desk::new(1 << 20);
    desk.settings.filters = vec![FilterName::ChunkIndex, FilterName::ByteCompare];
    let bytes = mixed();
    assert_eq!(support::put(&desk.open(), "a", &bytes).unwrap().new_bytes, 72 * CHUNK as u64);
    assert_eq!(support::put(&desk.open(), "b", &bytes).unwrap().new_bytes, 0);
    assert!(get(&desk.open(), "a").unwrap() == bytes && get(&desk.open(), "b").unwrap() == bytes);
}

#[test]
fn rule_65_streams_at_once_share_the_memory() {
    let desk = Desk::new(400);
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let both = Barrier::new(2);
    std::thread::scope(|scope| {
        for n in 0..2u64 {
            let (ingest, both) = (&ingest, &both);
            scope.spawn(move || {
                let name = format!("s{n}");
                let request =
                    PutRequest { domain: None, name, shape: Shape::Bytes, now: 1_000, wait: false };
                let put = put_on(ingest, request, &Gauge::default(), |feeder| {
                    both.wait();
                    feeder.bytes(&chunks(1000 * n..1000 * n + 800))
                });
                assert_eq!(put.unwrap().new_bytes, 800 * CHUNK as u64);
            });
        }
    });
    drop((ingest, archive));
    for n in 0..2u64 {
        assert!(
            get(&desk.open(), &format!("s{n}")).unwrap() == chunks(1000 * n..1000 * n + 800),
            "{n}"
        );
    }
    desk.is_well();
}

#[test]
fn rule_65_a_put_that_dies_at_any_write_loses_nothing() {
    let desk = Desk::new(256);
    let (first, second) = (mixed(), chunks((50..130).chain(1..30)));
    support::put(&desk.open(), "first", &first).unwrap();
    let mut died = 0;
    // A prime, so that shards, their syncs, and the log are hit by turns.
    for writes in (0..).step_by(13) {
        let left: Left = Arc::new(AtomicI64::new(writes));
        let dying = |directory| {
            Arc::new(Watched { files: Arc::new(directory), watch: dying(&left) }) as Arc<dyn Files>
        };
        let put =
            desk.open_with(&dying).and_then(|archive| support::put(&archive, "second", &second));
        if put.is_ok() && left.load(Relaxed) > 0 {
            break;
        }
        died += 1;
        assert!(get(&desk.open(), "first").unwrap() == first, "after {writes} writes");
        match get(&desk.open(), "second") {
            Ok(found) => assert!(found == second, "after {writes} writes"),
            Err(error) => assert!(error.kind() == Kind::NotFound && put.is_err(), "{error}"),
        }
        desk.is_well();
    }
    assert!(died > 3, "{died}");
    assert!(get(&desk.open(), "second").unwrap() == second);
    desk.collect(false);
    desk.is_well();
}

#[test]
fn rule_65_a_volume_does_not_wait_for_a_batch() {
    let desk = Desk::new(1 << 20);
    let archive = desk.open();
    let ingest = Ingest::begin(&archive, false, true).unwrap();
    let volumes = Volumes::new(&ingest, 100);
    archive.create_volume("v", 1 << 20, 1).unwrap();
    let volume = ArchiveExports(volumes.clone()).open("v").unwrap();
    let bytes = chunks(0..64);
    volume.write(0, &bytes).unwrap();
    volume.flush().unwrap();
    // As copies, until a collection encodes them by their counts.
    assert_eq!(desk.chunks(), BTreeMap::from([(Class::Replicated, 64)]));
    let request =
        PutRequest { domain: None, name: "s".into(), shape: Shape::Bytes, now: 1_000, wait: false };
    let put = put_on(&ingest, request, &Gauge::default(), |feeder| {
        feeder.bytes(&chunks((0..8).chain([70, 71, 72])))
    });
    // Beside it a put finds what the volume has, and encodes the rest at once.
    assert_eq!(put.unwrap().new_bytes, 3 * CHUNK as u64);
    drop((volume, volumes, ingest, archive));
    assert_eq!(desk.chunks(), BTreeMap::from([(Class::Replicated, 64), (Class::Cold, 3)]));
    assert!(desk.collect(false).encoded > 0);
    let found = desk.chunks();
    assert!(!found.contains_key(&Class::Replicated), "{found:?}");
    let archive = desk.open();
    let volumes = Volumes::new(&Ingest::begin(&archive, false, true).unwrap(), 100);
    let volume = ArchiveExports(volumes).open("v").unwrap();
    let mut blocks = Block::zeroed_vec(bytes.len() / BLOCK_BYTES);
    let mut reads = [BlockRead { first: Lba(0), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut reads);
    let [read] = reads;
    read.result.unwrap();
    assert!(bytes_mut(&mut blocks)[..] == bytes[..]);
    drop((volume, archive));
    desk.is_well();
}

fn entry(name: &str, what: TreeWhat) -> TreeEntry {
    TreeEntry {
        name: name.into(),
        what,
        mode: 0o755,
        uid: 0,
        gid: 0,
        seconds: 1,
        nanoseconds: 0,
        link: 0,
        is_in_part: false,
        attributes: onefold_archive::Attributes::default(),
    }
}

#[test]
fn rule_65_tree_nodes_wait_and_a_checkpoint_does_not() {
    let desk = Desk::new(1 << 20);
    let request = BackupRequest {
        id: SnapshotId([1; 16]),
        set: "s".into(),
        now: 1_000,
        ..BackupRequest::default()
    };
    let file = |name| {
        let file = entry(name, TreeWhat::File(0, FileMap::default()));
        Event::File(file, Stat::default(), None)
    };
    let made = backup(&desk.open(), &request, false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        feeder.bytes(&chunks((0..100).chain([7; 10])))?;
        feeder.event(file("one"))?;
        feeder.checkpoint(SnapshotId([9; 16]))?;
        // Another process sees it, although the batch was not full.
        while desk.open().tables().snapshots.checkpoints().next().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        feeder.bytes(&chunks((0..100).chain(200..300).chain(200..210)))?;
        feeder.event(file("two"))?;
        feeder.hole(1 << 20)?;
        feeder.event(file("zeroes"))?;
        feeder.event(Event::End(0))
    });
    assert_eq!(made.unwrap().new_bytes, 200 * CHUNK as u64);
    let found = desk.chunks();
    assert_eq!(
        found,
        BTreeMap::from([(Class::Cold, 99 + 90), (Class::Baseline, 10), (Class::Hot, 1)])
    );
    desk.is_well();
    desk.collect(false);
    desk.is_well();
}

/// A process that dies in the middle.
fn dying(left: &Left) -> Watch {
    let left = left.clone();
    Arc::new(move |_, call, does| {
        if matches!(call, Call::Change) && left.fetch_sub(1, Relaxed) <= 0 {
            return Err(Error::new(Kind::Io, "the process is dead"));
        }
        does()
    })
}
