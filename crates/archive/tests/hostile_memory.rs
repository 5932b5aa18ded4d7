//! What hostile trees, and hostile walks, make an archive's process hold in memory. The tests measure the
//! whole process, so they come one after the other, and no others are in this file.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard},
};

use onefold_archive::{
    Address, Archive, BackupReport, BackupRequest, Chunking, Collected, Collection, Compression,
    ContainerId, Entries, Event, FileMap, Format, FoundInParent, Gauge, IndexEntry, Key, Known,
    PAGES_HELD, Parents, Part, Settings, SnapshotId, Stat, Top, TreeFeeder, TreeNode, TreeNodeRef,
    TreeReader, TreeWhat, backup, check, forget,
};
use onefold_backend::Directory;
use onefold_core::{Fingerprint, Result};
use support::{entry, options};

const NOW: u64 = 1_000_000;

/// One test at a time.
static TURN: Mutex<()> = Mutex::new(());

struct Desk {
    archive: Arc<Archive>,
    _dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Desk {
    fn new() -> Desk {
        let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dir = tempfile::Builder::new()
            .prefix("memory")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        (format.reserve_bytes, format.compression, format.trees) =
            (1 << 20, Compression::Lz4, true);
        // A node that is stored as content is one chunk.
        format.chunking = Chunking::Static(64 << 10);
        Archive::create(&Directory::create(&dir.path().join("a")).unwrap(), &format).unwrap();
        let files = Directory::open(&dir.path().join("a"), true).unwrap();
        let archive = Archive::open(Arc::new(files), true, Settings::default()).unwrap();
        Desk { archive: Arc::new(archive), _dir: dir, _turn: turn }
    }

    fn backup(
        &self,
        id: u8,
        known: Known,
        tell: impl FnOnce(&mut TreeFeeder<'_>) -> Result<()> + Send,
    ) -> BackupReport {
        let request = BackupRequest {
            id: SnapshotId([id; 16]),
            set: "s".into(),
            now: NOW,
            ..BackupRequest::default()
        };
        let made = backup(&self.archive, &request, false, &Gauge::default(), |feeder| {
            let root = entry("", TreeWhat::Directory(None));
            feeder.event(Event::Enter(root, Stat::default(), known))?;
            tell(feeder)?;
            feeder.event(Event::End(0))
        });
        made.unwrap()
    }

    fn gc(&self) -> Collected {
        Collection::begin(&self.archive, options(NOW)).unwrap().run(&mut |_| {}).unwrap()
    }
}

/// MiB of memory that the process had at its peak more than before; its result.
fn peak<T>(does: impl FnOnce() -> T) -> (u64, T) {
    let kib = |key: &str| -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    // The peak begins anew.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = kib("VmRSS:");
    let done = does();
    ((kib("VmHWM:").saturating_sub(before)) >> 10, done)
}

/// A snapshot whose directory names pages in so many containers that are not there.
fn names_nothing(desk: &Desk, id: u8, containers: u64) {
    desk.backup(id, Known::new(), |feeder| {
        (0..containers).try_for_each(|n| {
            let container = ContainerId(1_000_000 + n);
            let address = Address { container, slot: u16::MAX - 1 };
            let node = TreeNodeRef { address, fingerprint: Fingerprint([1; 16]) };
            let what = TreeWhat::Directory(Some(Top { levels: 0, node }));
            feeder.event(Event::Other(entry(&format!("{n:06}"), what), Stat::default()))
        })
    });
}

#[test]
fn rule_09_references_to_containers_that_are_not_there_cost_a_collection_nothing() {
    const CONTAINERS: u64 = 4000;
    let desk = Desk::new();
    names_nothing(&desk, 1, CONTAINERS);
    // Later ones are counted beside the counts that there are.
    for id in [1, 2] {
        let (mib, done) = peak(|| desk.gc());
        assert!(mib < 100, "gc {id} took {mib} MiB");
        assert_eq!(done.absent, CONTAINERS, "gc {id}");
        if id == 1 {
            names_nothing(&desk, 2, CONTAINERS);
        }
    }
    assert!(!check(&desk.archive, false, &mut |_, _, _| {}).unwrap().is_well());
    forget(&desk.archive, &[SnapshotId([1; 16]), SnapshotId([2; 16])], NOW).unwrap();
    for _ in 0..2 {
        let (mib, done) = peak(|| desk.gc());
        assert!(mib < 100, "a gc of what was forgotten took {mib} MiB");
        assert_eq!(done.absent, 0);
    }
    assert_eq!(desk.archive.tables().snapshots.len(), 0);
}

/// Directories one in another, and what the parent has of each, with so many pages that nobody has. The
/// pages of the parent that were taken over, and the MiB that it took.
fn nested(desk: &Desk, id: u8, parent: Option<u8>, levels: usize, more: u64) -> (u64, u64) {
    let tables = desk.archive.tables();
    let parents: Vec<_> =
        parent.iter().map(|id| tables.snapshots.get(SnapshotId([*id; 16])).unwrap()).collect();
    let mut parents = Parents::new(&desk.archive, &parents).unwrap();
    let strange = |level: usize| {
        (0..more).map(move |n| {
            let number = ((u128::from(n) << 64) | (level as u128 + 1)).to_le_bytes();
            (Fingerprint(number), Address { container: ContainerId(1), slot: 0 })
        })
    };
    let (found, mut known) = parents.take_root();
    known.extend(parents.enter(&found).unwrap());
    known.extend(strange(0));
    let (mib, made) = peak(|| {
        desk.backup(id, known, |feeder| {
            for level in 1..=levels {
                let found: Vec<FoundInParent> = parents.find(b"d").unwrap();
                let mut known = parents.enter(&found).unwrap();
                known.extend(strange(level));
                let inner = entry("d", TreeWhat::Directory(None));
                feeder.event(Event::Enter(inner, Stat::default(), known))?;
            }
            feeder.event(Event::Other(entry("f", TreeWhat::Fifo), Stat::default()))?;
            (0..levels).try_for_each(|_| feeder.event(Event::Leave(false)))
        })
    });
    (mib, made.pages.1)
}

#[test]
fn rule_09_pages_that_a_walk_knows_at_each_level_are_not_all_held() {
    let desk = Desk::new();
    nested(&desk, 1, None, 20, 0);
    // With few of them all pages of the parent are found, also the deepest ones.
    let (_, all) = nested(&desk, 2, Some(1), 20, 100);
    assert!(all > 40, "{all}");
    // Many make the deeper ones new. They change all above.
    let (_, taken) = nested(&desk, 3, Some(2), 20, 60_000);
    assert!(taken < all, "{taken}");
    let (mib, _) = nested(&desk, 4, None, 200, 60_000);
    assert!(mib < 250, "a walk took {mib} MiB");
}

/// Stores a node as the content of a file: where it lies makes no difference to readers.
fn store(desk: &Desk, number: u16, node: &TreeNode) -> TreeNodeRef {
    let mut id = [9; 16];
    id[..2].copy_from_slice(&number.to_le_bytes());
    let request =
        BackupRequest { id: SnapshotId(id), set: "n".into(), now: NOW, ..BackupRequest::default() };
    backup(&desk.archive, &request, false, &Gauge::default(), |feeder| {
        let root = entry("", TreeWhat::Directory(None));
        feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
        feeder.bytes(&node.encode())?;
        let file = entry("node", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, Stat::default(), None))?;
        feeder.event(Event::End(0))
    })
    .unwrap();
    let mut reader = TreeReader::new(&desk.archive).unwrap();
    let tables = reader.tables().clone();
    let snapshot = tables.snapshots.get(SnapshotId(id)).unwrap();
    match reader.find(snapshot, b"node").unwrap().what {
        TreeWhat::File(_, FileMap::Inline(parts)) => match &parts[..] {
            [Part::Run { first, fingerprints, .. }] if fingerprints.len() == 1 => {
                TreeNodeRef { address: *first, fingerprint: fingerprints[0] }
            }
            _ => panic!("the node is several chunks"),
        },
        _ => panic!("the node is no file"),
    }
}

/// Directories one in another, each below an index page that names 1,900 pages more.
#[test]
fn rule_09_index_pages_of_a_deep_tree_are_not_all_held() {
    const LEVELS: u16 = 250;
    let desk = Desk::new();
    let nothing = TreeNodeRef {
        address: Address { container: ContainerId(1 << 30), slot: 0 },
        fingerprint: Fingerprint([1; 16]),
    };
    let mut top = None;
    for level in 0..LEVELS {
        let directory = TreeNode::Directory(vec![entry("0", TreeWhat::Directory(top))]);
        let directory = store(&desk, 2 * level, &directory);
        let more = (1..1900)
            .map(|n| IndexEntry { node: nothing, key: Key::Name(format!("{n:05}").into_bytes()) });
        let first = IndexEntry { node: directory, key: Key::Name(b"0".to_vec()) };
        let index = TreeNode::Index(1, [first].into_iter().chain(more).collect());
        top = Some(Top { levels: 1, node: store(&desk, 2 * level + 1, &index) });
    }
    let mut reader = TreeReader::new(&desk.archive).unwrap();
    let mut walk = |holds: bool| {
        let (mut open, mut at): (Vec<Entries>, _) = (Vec::new(), top);
        while at.is_some() {
            let mut entries = Entries::new(at, None);
            let (found, _) = entries.next(&mut reader).unwrap().unwrap();
            let TreeWhat::Directory(below) = found.what else { panic!("it is a directory") };
            if holds {
                open.push(entries);
            }
            if let Some(n) = open.len().checked_sub(PAGES_HELD + 1) {
                open[n].rest();
            }
            at = below;
        }
        open
    };
    // What is kept of containers is there before.
    walk(false);
    let (mib, open) = peak(|| walk(true));
    assert_eq!(open.len(), usize::from(LEVELS));
    // All of them have 19 MB.
    assert!(mib < 10, "they take {mib} MiB");
}
