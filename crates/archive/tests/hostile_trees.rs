//! Trees of snapshots that no honest program writes, and walks that no honest program sends.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::sync::Arc;

use onefold_archive::{
    Address, Archive, Attributes, BackupReport, BackupRequest, Collection, Completeness,
    Compression, ContainerId, Content, DirectoryPages, Entries, Event, FileMap, Format,
    FoundInParent, Gauge, IndexEntry, Key, Known, Parents, Part, PutRequest, Settings, Shape,
    SnapshotId, Stat, Top, TreeEntry, TreeFeeder, TreeNode, TreeNodeRef, TreeReader, TreeWhat,
    Verify, backup, check, diff, forget, put,
};
use onefold_backend::Directory;
use onefold_core::{Error, Fingerprint, Kind, Result};
use support::{entry, options};

struct Desk {
    archive: Arc<Archive>,
    _dir: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let dir = tempfile::Builder::new()
            .prefix("hostile")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        (format.reserve_bytes, format.compression, format.trees) =
            (1 << 20, Compression::None, true);
        Archive::create(&Directory::create(&dir.path().join("a")).unwrap(), &format).unwrap();
        let files = Directory::open(&dir.path().join("a"), true).unwrap();
        let archive = Archive::open(Arc::new(files), true, Settings::default()).unwrap();
        Desk { archive: Arc::new(archive), _dir: dir }
    }

    fn backup(
        &self,
        id: u8,
        tell: impl FnOnce(&mut TreeFeeder<'_>) -> Result<()> + Send,
    ) -> Result<BackupReport> {
        let request = BackupRequest {
            id: SnapshotId([id; 16]),
            set: format!("set {id}"),
            now: 1_000,
            ..BackupRequest::default()
        };
        backup(&self.archive, &request, false, &Gauge::default(), |feeder| {
            let root = entry("", TreeWhat::Directory(None));
            feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
            tell(feeder)?;
            feeder.event(Event::End(0))
        })
    }

    /// A snapshot of one file.
    fn of_file(&self, id: u8, bytes: u64, map: FileMap) {
        let file = entry("f", TreeWhat::File(0, FileMap::default()));
        let told = Event::File(file, Stat::default(), Some((bytes, map)));
        self.backup(id, |feeder| feeder.event(told)).unwrap();
    }

    fn reader(&self) -> TreeReader {
        TreeReader::new(&self.archive).unwrap()
    }

    fn find(&self, id: u8, name: &str) -> Result<TreeEntry> {
        let mut reader = self.reader();
        let tables = reader.tables().clone();
        reader.find(tables.snapshots.get(SnapshotId([id; 16]))?, name.as_bytes())
    }

    /// Stores a node as the content of a file: where it lies makes no difference to readers.
    fn store(&self, id: u8, node: &TreeNode) -> TreeNodeRef {
        self.backup(id, |feeder| {
            feeder.bytes(&node.encode())?;
            let file = entry("node", TreeWhat::File(0, FileMap::default()));
            feeder.event(Event::File(file, Stat::default(), None))
        })
        .unwrap();
        match self.find(id, "node").unwrap().what {
            TreeWhat::File(_, FileMap::Inline(parts)) => match &parts[..] {
                [Part::Run { first, fingerprints, .. }] if fingerprints.len() == 1 => {
                    TreeNodeRef { address: *first, fingerprint: fingerprints[0] }
                }
                _ => panic!("the node is several chunks"),
            },
            _ => panic!("the node is no file"),
        }
    }

    /// Six levels of index pages, each with 100 entries, all of which lead to one page.
    fn again_and_again(&self, first_id: u8, page: &TreeNode) -> Top {
        let mut node = self.store(first_id, page);
        let has_names = matches!(page, TreeNode::Directory(_));
        for level in 1..=6 {
            let key = |n: u32| match has_names {
                true => Key::Name(format!("{n:03}").into_bytes()),
                false => Key::Sum(1),
            };
            let entries = (0..100).map(|n| IndexEntry { node, key: key(n) }).collect();
            node = self.store(first_id + level, &TreeNode::Index(level, entries));
        }
        Top { levels: 6, node }
    }
}

fn is_corrupt<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == Kind::Corrupt)
}

#[test]
fn rule_09_index_pages_that_lead_to_one_directory_page_end_a_listing() {
    let desk = Desk::new();
    let page = TreeNode::Directory(vec![entry("000", TreeWhat::Fifo)]);
    let top = desk.again_and_again(1, &page);
    let mut reader = desk.reader();
    let mut entries = Entries::new(Some(top), None);
    assert!(entries.next(&mut reader).unwrap().is_some());
    assert!(is_corrupt(entries.next(&mut reader)));
    let mut pages = DirectoryPages::new(Some(top));
    assert!(pages.next(&mut reader, &mut |_| true).unwrap().is_some());
    assert!(is_corrupt(pages.next(&mut reader, &mut |_| true)));
}

#[test]
fn rule_09_a_parent_whose_index_pages_lead_to_one_page_is_looked_at_once() {
    let desk = Desk::new();
    let stats = desk.again_and_again(1, &TreeNode::Stats(vec![Stat::default()]));
    let content = desk.again_and_again(10, &TreeNode::FileMap(vec![Part::Hole(1)]));
    desk.of_file(20, 1, FileMap::Pages(content));
    let mut reader = desk.reader();
    assert_eq!(reader.data_bytes(&FileMap::Pages(content)).unwrap(), 0);
    let tables = desk.archive.tables();
    let snapshot = tables.snapshots.get(SnapshotId([20; 16])).unwrap();
    let mut parents = Parents::new(&desk.archive, &[snapshot]).unwrap();
    let with = Stat { pages: Some(stats), ..Stat::default() };
    let found = [FoundInParent { entry: None, stat: Some(with) }];
    assert_eq!(parents.enter(&found).unwrap().len(), 7);
    let file = entry("f", TreeWhat::File(1, FileMap::Pages(content)));
    let found = [FoundInParent { entry: Some(file), stat: Some(Stat::default()) }];
    assert_eq!(parents.pages_of(&found).unwrap().len(), 7);
    assert!(parents.first_sound(&found, |_, _| true).unwrap().is_some());
}

#[test]
fn rule_09_a_file_with_more_pages_than_bytes_ends_a_comparison() {
    let desk = Desk::new();
    for id in [1, 2] {
        let page = TreeNode::FileMap(vec![Part::Hole(id)]);
        let top = desk.again_and_again(10 * id as u8, &page);
        desk.of_file(id as u8, 5, FileMap::Pages(top));
    }
    // Stretches of zeroes that no number holds.
    for (id, last) in [(3, 5), (4, 6)] {
        let parts = vec![Part::Zeroes(u64::MAX), Part::Zeroes(last)];
        desk.of_file(id, u64::MAX, FileMap::Inline(parts));
    }
    let mut reader = desk.reader();
    let tables = desk.archive.tables();
    let snapshot = |id| tables.snapshots.get(SnapshotId([id; 16])).unwrap();
    let differ = diff(&mut reader, snapshot(1), snapshot(2), &mut |_, _| (), &mut |_, _| Ok(()));
    assert!(is_corrupt(differ));
    diff(&mut reader, snapshot(3), snapshot(4), &mut |_, _| (), &mut |_, _| Ok(())).unwrap();
    assert!(!check(&desk.archive, true, &mut |_, _, _| {}).unwrap().is_well());
}

/// A million million pages, each of which is the same one: a hole costs its author nothing.
#[test]
fn rule_09_pages_without_data_are_passed_in_few_steps() {
    let desk = Desk::new();
    let pages = 100u64.pow(6);
    let of_holes = desk.again_and_again(1, &TreeNode::FileMap(vec![Part::Hole(1); 1000]));
    let both = || [Part::Hole(1), Part::Zeroes(2)];
    let mixed = (0..500).flat_map(|_| both()).collect();
    let of_both = desk.again_and_again(10, &TreeNode::FileMap(mixed));
    // Behind pages with data as well.
    let some = TreeNode::FileMap(vec![Part::Zeroes(5)]);
    let (bytes, at) = (some.encode().len() as u32, desk.store(20, &some));
    let chunk = Part::Run { first: at.address, bytes, fingerprints: vec![at.fingerprint] };
    let data = deep(&desk, 21, &TreeNode::FileMap(vec![chunk]));
    let all = [data, of_holes.node, data].map(|node| IndexEntry { node, key: Key::Sum(1) });
    let node = desk.store(30, &TreeNode::Index(7, all.into()));
    let behind = Top { levels: 7, node };
    for (top, bytes, steps) in [
        (of_holes, pages * 1000, 1),
        (of_both, pages * 1500, 1),
        (behind, pages * 1000 + 2 * u64::from(bytes), 3),
    ] {
        let map = FileMap::Pages(top);
        let (mut reader, mut count, mut sum) = (desk.reader(), 0, 0);
        reader
            .map_pages(bytes, &map, &mut |_, parts| {
                count += parts.len();
                sum += parts.iter().map(|(_, part)| part_bytes(part)).sum::<u64>();
                if count > 100 { Err(Error::new(Kind::Stopped, "too many parts")) } else { Ok(()) }
            })
            .unwrap();
        assert_eq!((count, sum), (steps, bytes));
        let (mut count, mut sum) = (0, 0);
        reader
            .read(bytes, &map, Verify::Chunks, &mut |content| {
                count += 1;
                sum += match content {
                    Content::Bytes(bytes) => bytes.len() as u64,
                    Content::Zeroes(n) | Content::Hole(n) => n,
                };
                if count > 100 { Err(Error::new(Kind::Stopped, "too many parts")) } else { Ok(()) }
            })
            .unwrap();
        assert_eq!((count, sum), (steps, bytes));
    }
    let found = std::cell::RefCell::new(Vec::new());
    let mut reader = desk.reader();
    for top in [of_holes, of_both] {
        let bytes = pages * if top == of_holes { 1000 } else { 1500 };
        let map = FileMap::Pages(top);
        reader
            .map_pages(bytes, &map, &mut |_, parts| {
                found.borrow_mut().extend(parts.into_iter().map(|(_, part)| part));
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(*found.borrow(), [Part::Hole(pages * 1000), Part::Zeroes(pages * 1500)]);
}

fn part_bytes(part: &Part) -> u64 {
    match part {
        Part::Run { bytes, .. } => u64::from(*bytes),
        Part::Zeroes(bytes) | Part::Hole(bytes) => *bytes,
        _ => 0,
    }
}

/// A page below six levels of index pages, each with one entry.
fn deep(desk: &Desk, first_id: u8, page: &TreeNode) -> TreeNodeRef {
    (1..=6).fold(desk.store(first_id, page), |node, level| {
        let entry = IndexEntry { node, key: Key::Sum(1) };
        desk.store(first_id + level, &TreeNode::Index(level, vec![entry]))
    })
}

#[test]
fn rule_07_an_entry_that_would_not_be_read_again_makes_no_snapshot() {
    let desk = Desk::new();
    let good = entry("name", TreeWhat::Symlink(b"x".to_vec()));
    let bad = [
        TreeEntry { nanoseconds: 1_073_741_823, ..good.clone() },
        TreeEntry { what: TreeWhat::Symlink(Vec::new()), ..good.clone() },
        TreeEntry { mode: 0o10_000, ..good.clone() },
    ];
    let refused = |error: Error| {
        assert_eq!(error.kind(), Kind::InvalidInput);
        assert!(error.to_string().contains("'name' can't be stored"), "{error}");
    };
    for bad in bad {
        let directory =
            TreeEntry { what: TreeWhat::Directory(None), mode: bad.mode, ..bad.clone() };
        let is_link = bad.nanoseconds == 4 && bad.mode == 0o600;
        let told = desk.backup(1, |feeder| feeder.event(Event::Other(bad, Stat::default())));
        refused(told.unwrap_err());
        let told = desk.backup(1, |feeder| {
            feeder.event(Event::Enter(directory, Stat::default(), Known::new()))?;
            feeder.event(Event::Leave(false))
        });
        match is_link {
            true => assert_eq!(told.unwrap_err().kind(), Kind::Exists),
            false => refused(told.unwrap_err()),
        }
        if desk.archive.tables().snapshots.is_empty() {
            desk.backup(1, |feeder| feeder.event(Event::Other(good.clone(), Stat::default())))
                .unwrap();
        }
    }
    let deep = desk.backup(2, |feeder| {
        for _ in 0..5000 {
            let inner = entry("d", TreeWhat::Directory(None));
            feeder.event(Event::Enter(inner, Stat::default(), Known::new()))?;
        }
        (0..5000).try_for_each(|_| feeder.event(Event::Leave(false)))
    });
    assert_eq!(deep.unwrap_err().kind(), Kind::InvalidInput);
}

#[test]
fn rule_07_first_names_beyond_their_memory_are_files_of_their_own() {
    let desk = Desk::new();
    let name = |n: usize| format!("{n:05}");
    let map = FileMap::Inline(vec![Part::Hole(1); 7000]);
    let file = |n: usize| {
        let what = TreeWhat::File(0, FileMap::default());
        TreeEntry { link: n as u64 + 1, ..entry(&name(n), what) }
    };
    // 2,130 of them fill 128 MiB.
    let last = 2200;
    let made = desk.backup(1, |feeder| {
        for n in 0..=last {
            feeder.event(Event::File(file(n), Stat::default(), Some((7000, map.clone()))))?;
        }
        for (n, first) in [(last + 1, 0), (last + 2, last)] {
            let further = TreeEntry { link: first as u64 + 1, ..file(n) };
            feeder.event(Event::Link(further, Stat::default()))?;
        }
        Ok(())
    });
    let made = made.unwrap().snapshot;
    assert_eq!((made.entries, made.left_out), (last as u64 + 3, 1));
    let link = |n: usize| desk.find(1, &name(n)).map(|entry| entry.link);
    assert_eq!((link(0).unwrap(), link(last).unwrap(), link(last + 1).unwrap()), (1, 0, 1));
    assert_eq!(link(last + 2).unwrap_err().kind(), Kind::NotFound);
    assert!(desk.find(1, "").unwrap().is_in_part);
}

#[test]
fn rule_34_a_client_names_only_what_the_archive_has() {
    let desk = Desk::new();
    let content = vec![7; 3000];
    desk.backup(1, |feeder| {
        feeder.bytes(&content)?;
        let file = entry("f", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, Stat::default(), None))
    })
    .unwrap();
    let TreeWhat::File(bytes, map) = desk.find(1, "f").unwrap().what else { panic!("a file") };
    let FileMap::Inline(parts) = &map else { panic!("it is short") };
    let [Part::Run { first, fingerprints, .. }] = &parts[..] else { panic!("it is one chunk") };
    let run = |container: u64, slot: u16, fingerprints: Vec<Fingerprint>, bytes: u32| {
        let first = Address { container: ContainerId(container), slot };
        FileMap::Inline(vec![Part::Run { first, bytes, fingerprints }])
    };
    let (id, length) = (first.container.0, bytes as u32);
    let page = desk.store(2, &TreeNode::FileMap(parts.clone()));
    // A file with pages of its own.
    let large: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    desk.backup(4, |feeder| {
        feeder.bytes(&large)?;
        let file = entry("f", TreeWhat::File(0, FileMap::default()));
        feeder.event(Event::File(file, Stat::default(), None))
    })
    .unwrap();
    let TreeWhat::File(large, FileMap::Pages(top)) = desk.find(4, "f").unwrap().what else {
        panic!("it is long")
    };
    let pages = |node: TreeNodeRef| FileMap::Pages(Top { levels: 0, node });
    let root = desk.archive.tables().snapshots.get(SnapshotId([1; 16])).unwrap().root;
    let of_file = |map: FileMap, bytes: u64| {
        let file = entry("f", TreeWhat::File(0, FileMap::default()));
        Event::File(file, Stat::default(), Some((bytes, map)))
    };
    let known = |node: TreeNodeRef| Event::Known(Known::from([(node.fingerprint, node.address)]));
    let bad = [
        // Later containers, other slots, other content, other lengths.
        of_file(run(id + 1000, 0, vec![Fingerprint([1; 16])], 700), 700),
        of_file(run(id, first.slot + 1, fingerprints.clone(), length), bytes),
        of_file(run(id, u16::MAX, [&fingerprints[..], fingerprints].concat(), length), bytes),
        of_file(run(id, first.slot, vec![Fingerprint([1; 16])], length), bytes),
        of_file(run(id, first.slot, fingerprints.clone(), length + 1), bytes + 1),
        of_file(map.clone(), bytes + 1),
        of_file(FileMap::Inline(vec![Part::Hole(1 << 40)]), 1 << 41),
        // Content that looks like a page, and a page that is not there.
        of_file(pages(page), bytes),
        // Pages of another length, of other levels, and of something else.
        of_file(FileMap::Pages(top), large + 1),
        of_file(FileMap::Pages(top), 1 << 60),
        of_file(FileMap::Pages(Top { levels: top.levels + 1, ..top }), large),
        of_file(pages(root), 0),
        known(page),
        known(TreeNodeRef { fingerprint: Fingerprint([1; 16]), ..root }),
        // Stat pages, which come when a directory is left.
        Event::Other(
            entry("f", TreeWhat::Fifo),
            Stat { pages: Some(Top { levels: 0, node: root }), ..Stat::default() },
        ),
        Event::Enter(
            entry("f", TreeWhat::Directory(None)),
            Stat { pages: Some(Top { levels: 0, node: root }), ..Stat::default() },
            Known::new(),
        ),
        // Entries with content that no event gave.
        Event::Other(
            entry("f", TreeWhat::Directory(Some(Top { levels: 0, node: root }))),
            Stat::default(),
        ),
        Event::Other(entry("f", TreeWhat::File(bytes, map.clone())), Stat::default()),
        Event::Link(entry("f", TreeWhat::File(bytes, map.clone())), Stat::default()),
        Event::Enter(
            entry("f", TreeWhat::Directory(Some(Top { levels: 0, node: root }))),
            Stat::default(),
            Known::new(),
        ),
        Event::Other(
            TreeEntry {
                attributes: Attributes::Stored(
                    700,
                    run(id + 1000, 0, vec![Fingerprint([1; 16])], 700),
                ),
                ..entry("f", TreeWhat::Fifo)
            },
            Stat::default(),
        ),
    ];
    for bad in bad {
        let shown = format!("{bad:?}");
        let told = desk.backup(3, |feeder| feeder.event_of_another(bad));
        let error = told.expect_err(&shown);
        assert_eq!(error.kind(), Kind::InvalidInput, "{shown}: {error}");
        assert!(error.to_string().contains("of a client is refused"), "{shown}: {error}");
    }
    let good = [known(root), of_file(map, bytes)];
    desk.backup(3, |feeder| good.into_iter().try_for_each(|good| feeder.event_of_another(good)))
        .unwrap();
    let good = of_file(FileMap::Pages(top), large);
    desk.backup(5, |feeder| feeder.event_of_another(good)).unwrap();
    assert!(check(&desk.archive, true, &mut |_, _, _| {}).unwrap().is_well());
}

#[test]
fn rule_09_long_tags_have_a_limit_in_all_and_keep_no_short_ones_out() {
    let desk = Desk::new();
    let with = |id: u8, tags: Vec<String>| {
        let request = BackupRequest {
            id: SnapshotId([id; 16]),
            set: "s".into(),
            now: 1_000,
            tags,
            ..BackupRequest::default()
        };
        backup(&desk.archive, &request, false, &Gauge::default(), |feeder| {
            let root = entry("", TreeWhat::Directory(None));
            feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
            feeder.event(Event::End(0))
        })
    };
    // 4 MB each.
    let long = || vec!["t".repeat(4000); 1000];
    let made = (1..=20).take_while(|id| with(*id, long()).is_ok()).count();
    assert!((6..10).contains(&made), "{made}");
    let error = with(30, long()).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidInput);
    assert!(error.to_string().contains("tags"), "{error}");
    with(31, vec!["short".into(); 50]).unwrap();
    // What goes makes room.
    forget(&desk.archive, &[SnapshotId([1; 16])], 2_000).unwrap();
    let options = options(3_000);
    Collection::begin(&desk.archive, options).unwrap().run(&mut |_| {}).unwrap();
    with(32, long()).unwrap();
    assert!(check(&desk.archive, true, &mut |_, _, _| {}).unwrap().is_well());
}

#[test]
fn rule_09_a_directory_that_rests_goes_on_where_it_was() {
    let desk = Desk::new();
    let name = |n: u32| format!("{n:0>100}");
    desk.backup(1, |feeder| {
        (0..3000).try_for_each(|n| {
            feeder.event(Event::Other(entry(&name(n), TreeWhat::Fifo), Stat::default()))
        })
    })
    .unwrap();
    let mut reader = desk.reader();
    let root = desk.find(1, "").unwrap();
    let TreeWhat::Directory(Some(top)) = root.what else { panic!("it is a directory") };
    assert!(top.levels > 0, "it has index pages");
    let tables = desk.archive.tables();
    let stats = tables.snapshots.get(SnapshotId([1; 16])).unwrap().stats;
    let mut entries = Entries::new(Some(top), stats);
    for n in 0..3000 {
        let (found, stat) = entries.next(&mut reader).unwrap().unwrap();
        assert_eq!((found.name, stat.is_some()), (name(n).into_bytes(), true));
        if n % 7 == 0 {
            entries.rest();
        }
    }
    assert!(entries.next(&mut reader).unwrap().is_none());
    let (mut pages, mut found) = (DirectoryPages::new(Some(top)), 0);
    while let Some(page) = pages.next(&mut reader, &mut |_| true).unwrap() {
        found += page.len();
        pages.rest();
    }
    assert_eq!(found, 3000);
}

#[test]
fn rule_07_a_snapshot_has_one_root_without_a_name_and_nothing_behind_its_end() {
    let desk = Desk::new();
    let enter = |name: &str| {
        Event::Enter(entry(name, TreeWhat::Directory(None)), Stat::default(), Known::new())
    };
    let two_ends = desk.backup(1, |feeder| {
        feeder.event_of_another(Event::End(0))?;
        feeder.event_of_another(enter("x"))
    });
    let named = backup(
        &desk.archive,
        &BackupRequest { id: SnapshotId([2; 16]), set: "s".into(), ..BackupRequest::default() },
        false,
        &Gauge::default(),
        |feeder| {
            feeder.event_of_another(enter("x"))?;
            feeder.event_of_another(Event::End(0))
        },
    );
    for refused in [two_ends, named] {
        assert_eq!(refused.unwrap_err().kind(), Kind::InvalidInput);
    }
    assert!(desk.archive.refresh().unwrap().snapshots.is_empty());
}

#[test]
fn rule_09_no_stream_and_no_file_is_longer_than_files_can_be() {
    let desk = Desk::new();
    let most = i64::MAX as u64;
    let request = |name: &str| PutRequest {
        name: name.into(),
        shape: Shape::Bytes,
        now: 1_000,
        wait: false,
        domain: None,
    };
    let gauge = Gauge::default();
    let put = |name: &str, zeroes: [u64; 2]| {
        put(&desk.archive, request(name), &gauge, |feeder| {
            zeroes.into_iter().try_for_each(|bytes| feeder.zeroes(bytes))
        })
    };
    assert_eq!(put("a", [u64::MAX, 1]).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(put("a", [most, 1]).unwrap_err().kind(), Kind::InvalidInput);
    assert_eq!(put("a", [most - 1, 1]).unwrap().stream.bytes, most);
    // A recipe that nothing names would be stored.
    let twice = onefold_archive::put(&desk.archive, request("b"), &gauge, |feeder| {
        feeder.bytes(b"x")?;
        feeder.end_recipe()
    });
    assert_eq!(twice.unwrap_err().kind(), Kind::InvalidInput);
    // A client that says nothing but ends of recipes is stopped at the first that is too many.
    let mut said = 0;
    let ends = onefold_archive::put(&desk.archive, request("b"), &gauge, |feeder| {
        loop {
            feeder.end_recipe()?;
            said += 1;
        }
    });
    assert_eq!((ends.unwrap_err().kind(), said), (Kind::InvalidInput, 1));
    let file = || {
        let file = entry("f", TreeWhat::File(0, FileMap::default()));
        Event::File(file, Stat::default(), None)
    };
    let long = desk.backup(3, |feeder| {
        feeder.hole(most)?;
        feeder.hole(1)?;
        feeder.event(file())
    });
    assert_eq!(long.unwrap_err().kind(), Kind::InvalidInput);
    assert!(check(&desk.archive, true, &mut |_, _, _| {}).unwrap().is_well());
}

#[test]
fn rule_09_directories_in_each_other_hold_little_and_are_whole() {
    const DEPTH: usize = 3000;
    let desk = Desk::new();
    let file = |n: usize| entry(&format!("{n:0>250}"), TreeWhat::Fifo);
    let attributes: Vec<_> = (0..60).map(|n| (format!("user.{n}").into_bytes(), vec![])).collect();
    let mut inner = entry("z", TreeWhat::Directory(None));
    inner.attributes = Attributes::Inline(attributes.clone());
    let report = desk.backup(1, |feeder| {
        for _ in 0..DEPTH {
            for n in 0..25 {
                feeder.event(Event::Other(file(n), Stat::default()))?;
            }
            feeder.event(Event::Enter(inner.clone(), Stat::default(), Known::new()))?;
        }
        // Each would write the pages of all directories that are open.
        for n in 0..10 {
            feeder.checkpoint(SnapshotId([100 + n; 16]))?;
        }
        (0..DEPTH).try_for_each(|_| feeder.event(Event::Leave(false)))
    });
    let report = report.unwrap();
    // Where they held too much, one is there in part, without what is in it.
    let depth = report.snapshot.entries as usize / 26;
    assert!(DEPTH / 2 < depth && depth < DEPTH, "{:?}", report.snapshot);
    assert_eq!(report.snapshot.entries, 1 + 26 * depth as u64);
    assert_eq!(report.snapshot.completeness, Completeness::Partial);
    let pages = 2 * depth as u64;
    assert!((2 * pages..3 * pages).contains(&report.pages.0), "{:?}", report.pages);
    // Where attributes were too many, the directory says so: besides the one without what is in it.
    assert!((2..depth as u64).contains(&report.snapshot.left_out), "{:?}", report.snapshot);
    for at in [1, 2, depth / 2, depth] {
        let path = "z/".repeat(at);
        let found = desk.find(1, path.trim_end_matches('/')).unwrap();
        let stored = Attributes::Inline(attributes.clone());
        match found.is_in_part {
            true => assert_eq!(found.attributes, Attributes::default(), "{at}"),
            false => assert_eq!(found.attributes, stored, "{at}"),
        }
        assert!(at == depth / 2 || found.is_in_part == (at == depth), "{at}");
        assert_eq!(desk.find(1, &format!("{path}{:0>250}", 24)).is_ok(), at < depth);
    }
    let checked = check(&desk.archive, true, &mut |_, _, _| {}).unwrap();
    assert!(checked.is_well(), "{checked:?}");
}
