//! The embedded object store: the contract, and what is there after it was closed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, os::unix::fs::FileExt};

use onefold_backend::EmbeddedStore;
use onefold_core::{
    Kind,
    object::{
        Change, Guard, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, Refusal, Write,
    },
};
use onefold_testbed::contract;

fn put(name: &str, bytes: Vec<u8>) -> Write {
    Write {
        object: ObjectName::metadata(name),
        guards: vec![Guard::Absent],
        changes: vec![Change::Full(bytes)],
    }
}

fn data(store: &impl ObjectStore, name: &str) -> Vec<u8> {
    let read =
        Read { object: ObjectName::metadata(name), parts: vec![ReadPart::Data(0, u64::MAX)] };
    store.read(&[read]).remove(0).unwrap().data(0).to_vec()
}

#[test]
fn the_contract_of_object_stores_holds() {
    for kind in [PoolKind::Replicated, PoolKind::Erasure] {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::create(&folder.path().join("s"), kind).unwrap();
        assert_eq!(contract::objects::hold(&store.session(), "t."), Ok(()));
    }
}

#[test]
fn what_was_acknowledged_is_there_after_opening_again_and_space_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let empty = {
        let store = EmbeddedStore::create(&path, PoolKind::Replicated).unwrap();
        let session = store.session();
        let before = session.space().unwrap().used;
        let large: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
        assert!(
            session
                .write(&[put("a", large.clone()), put("b", vec![7; 5000])])
                .iter()
                .all(Result::is_ok)
        );
        let part = Write {
            object: ObjectName::metadata("a"),
            guards: vec![],
            changes: vec![Change::Write(100_000, vec![1; 10_000]), Change::Zero(200_000, 70_000)],
        };
        session.write(&[part]).remove(0).unwrap();
        before
    };
    let store = EmbeddedStore::open(&path).unwrap();
    let session = store.session();
    let found = data(&session, "a");
    let expected = |n: usize| match n {
        100_000..110_000 => 1,
        200_000..270_000 => 0,
        n => (n as u32 / 7) as u8,
    };
    assert_eq!(found.len(), 3_000_000);
    assert!(found.iter().enumerate().all(|(n, byte)| *byte == expected(n)));
    assert_eq!(data(&session, "b"), [7; 5000]);
    let used = session.space().unwrap().used;
    for name in ["a", "b"] {
        let remove = Write {
            object: ObjectName::metadata(name),
            guards: vec![Guard::Exists],
            changes: vec![Change::Remove],
        };
        session.write(&[remove]).remove(0).unwrap();
    }
    let after = session.space().unwrap().used;
    assert!(used - after > 2_900_000 && after < empty + 2_000_000, "{empty} {used} {after}");
}

#[test]
fn a_second_owner_gets_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let _store = EmbeddedStore::create(&path, PoolKind::Replicated).unwrap();
    let Err(error) = EmbeddedStore::open(&path) else { panic!("opened twice") };
    assert_eq!(error.kind(), Kind::Busy);
    assert!(EmbeddedStore::create(&path, PoolKind::Replicated).is_err());
}

#[test]
fn a_fenced_session_is_shut_out_and_its_data_file_damage_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    {
        let store = EmbeddedStore::create(&path, PoolKind::Replicated).unwrap();
        let (one, two) = (store.session(), store.session());
        one.write(&[put("a", vec![3; 9000])]).remove(0).unwrap();
        two.fence(&one.identity()).unwrap();
        assert!(matches!(one.write(&[put("b", vec![])]).remove(0), Err(Refusal::Fenced)));
        assert!(matches!(one.read(&[]).len(), 0));
        assert_eq!(data(&two, "a"), [3; 9000]);
    }
    let file = path.join("data");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.iter().position(|byte| *byte == 3).unwrap();
    bytes[at] = 4;
    std::fs::write(&file, bytes).unwrap();
    let store = EmbeddedStore::open(&path).unwrap();
    let read = Read { object: ObjectName::metadata("a"), parts: vec![ReadPart::Data(0, 9000)] };
    let answer = store.session().read(&[read]).remove(0);
    assert!(matches!(answer, Err(Refusal::Failed(error)) if error.kind() == Kind::Corrupt));
}

#[test]
fn many_threads_compare_and_set_without_losing_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::create(&folder.path().join("s"), PoolKind::Replicated).unwrap();
    let object = ObjectName::metadata("counter");
    let add = |session: &dyn ObjectStore| {
        loop {
            let read =
                Read { object: object.clone(), parts: vec![ReadPart::Keys(vec![b"n".to_vec()])] };
            let old = session.read(&[read]).remove(0).map_or(vec![], |answer| {
                answer.pairs(0).0.first().map_or(vec![], |pair| pair.1.clone())
            });
            let number = old.first().copied().unwrap_or(0);
            let guards = if old.is_empty() {
                vec![Guard::Absent]
            } else {
                vec![Guard::Omap(b"n".to_vec(), old)]
            };
            let changes = vec![Change::SetOmap(vec![(b"n".to_vec(), vec![number + 1])])];
            if session.write(&[Write { object: object.clone(), guards, changes }]).remove(0).is_ok()
            {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let session = store.session();
                (0..10).for_each(|_| add(&session));
            });
        }
    });
    let read = Read { object: object.clone(), parts: vec![ReadPart::Keys(vec![b"n".to_vec()])] };
    assert_eq!(store.session().read(&[read]).remove(0).unwrap().pairs(0).0[0].1, [40]);
}

/// The tables of a folder, whose bytes a test changes.
struct Forged {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    file: fs::File,
    /// Where the root of all tables is, and its number.
    root: (u64, u64),
}

impl Forged {
    /// A folder with many objects, closed.
    fn new() -> Forged {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let store = EmbeddedStore::create(&path, PoolKind::Replicated).unwrap();
        let many: Vec<Write> = (0..200).map(|n| put(&format!("o{n}"), vec![7; 5000])).collect();
        assert!(store.session().write(&many).iter().all(Result::is_ok));
        drop(store);
        let file =
            fs::File::options().read(true).write(true).open(path.join("objects.redb")).unwrap();
        let mut head = [0; 320];
        file.read_exact_at(&mut head, 0).unwrap();
        let number = |at: usize, n: usize| {
            let mut bytes = [0; 8];
            bytes[..n].copy_from_slice(&head[at..at + n]);
            u64::from_le_bytes(bytes)
        };
        let slot = 64 + 128 * usize::from(head[9] & 1);
        let root = number(slot + 8, 8);
        let at = 4096 * (1 + number(16, 4) + ((root & 0xf_ffff) << (root >> 59)));
        Forged { _folder: folder, path, file, root: (at, root) }
    }

    /// Makes the root a page that names two others.
    fn name(&self, pages: [u64; 2]) {
        let mut page = vec![0; 4096];
        (page[0], page[2]) = (2, 1);
        page[40..48].copy_from_slice(&pages[0].to_le_bytes());
        page[48..56].copy_from_slice(&pages[1].to_le_bytes());
        page[56..60].copy_from_slice(&61u32.to_le_bytes());
        page[60] = b'm';
        self.file.write_all_at(&page, self.root.0).unwrap();
    }

    /// Both who looks and who works are told that it is damaged.
    #[track_caller]
    fn is_damaged(&self) {
        for opened in [EmbeddedStore::look(&self.path), EmbeddedStore::open(&self.path)] {
            assert_eq!(opened.err().map(|error| error.kind()), Some(Kind::Corrupt));
        }
    }
}

#[test]
fn rule_09_a_page_below_itself_is_damage() {
    let forged = Forged::new();
    forged.name([forged.root.1; 2]);
    forged.is_damaged();
}

#[test]
fn rule_09_a_page_below_two_others_is_damage() {
    let forged = Forged::new();
    let mut leaf = vec![0; 4096];
    forged.file.read_exact_at(&mut leaf, forged.root.0).unwrap();
    // The old root, behind the new one.
    let at = forged.root.0 + 4096;
    forged.file.write_all_at(&leaf, at).unwrap();
    forged.name([forged.root.1 + 1; 2]);
    forged.is_damaged();
}

#[test]
fn rule_09_a_file_of_holes_takes_no_memory() {
    let forged = Forged::new();
    // To be repaired, which goes through all regions.
    forged.file.write_all_at(&[2], 9).unwrap();
    forged.file.set_len(1 << 42).unwrap();
    forged.is_damaged();
    // Regions of one page each.
    forged.file.set_len(1 << 35).unwrap();
    forged.file.write_all_at(&[0, 0, 0, 0, 1, 0, 0, 0], 16).unwrap();
    forged.is_damaged();
}

/// Rows of the tables, which the engine's operations do not make.
const KEYS: redb::TableDefinition<'_, (u64, &[u8]), &[u8]> = redb::TableDefinition::new("keys");
const OBJECTS: redb::TableDefinition<'_, (u8, &str), (u64, u64, u64, u64)> =
    redb::TableDefinition::new("objects");
const EXTENTS: redb::TableDefinition<'_, (u64, u32), &[u8]> = redb::TableDefinition::new("extents");

/// A folder with the objects `a` and `b`, of which `forge` changes the tables.
fn forged(forge: impl FnOnce(&redb::WriteTransaction)) -> (tempfile::TempDir, EmbeddedStore) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let store = EmbeddedStore::create(&path, PoolKind::Replicated).unwrap();
    let made = store.session().write(&[put("a", vec![7; 5000]), put("b", vec![8; 5000])]);
    assert!(made.iter().all(Result::is_ok));
    drop(store);
    let tables = redb::Database::open(path.join("objects.redb")).unwrap();
    let transaction = tables.begin_write().unwrap();
    forge(&transaction);
    transaction.commit().unwrap();
    drop(tables);
    let store = EmbeddedStore::look(&path).unwrap();
    (folder, store)
}

fn kind(result: Result<impl Sized, Refusal>) -> Option<Kind> {
    match result {
        Err(Refusal::Failed(error)) => Some(error.kind()),
        _ => None,
    }
}

/// A file of holes can say that it has keys, values and names of any length.
#[test]
fn rule_09_keys_values_and_names_that_the_engine_never_made_are_damage() {
    const LONG: usize = 1 << 20;
    let (_folder, store) = forged(|tables| {
        let mut keys = tables.open_table(KEYS).unwrap();
        keys.insert((1, &b"k"[..]), &vec![0; LONG][..]).unwrap();
        keys.insert((2, &vec![1; LONG][..]), &b""[..]).unwrap();
        let mut objects = tables.open_table(OBJECTS).unwrap();
        objects.insert((0, &*"c".repeat(LONG)), (3, 1, 0, 0)).unwrap();
    });
    let session = store.session();
    let page = || vec![ReadPart::Page(Vec::new(), 10)];
    for (name, parts) in
        [("a", page()), ("b", page()), ("a", vec![ReadPart::Keys(vec![b"k".to_vec()])])]
    {
        let read = Read { object: ObjectName::metadata(name), parts };
        assert_eq!(kind(session.read(&[read]).remove(0)), Some(Kind::Corrupt), "{name}");
    }
    assert_eq!(kind(session.list(Pool::Metadata, None, 10)), Some(Kind::Corrupt));
    // Nor is such a thing made.
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::create(&folder.path().join("s"), PoolKind::Replicated).unwrap();
    let made = |name: &str, change| {
        let op =
            Write { object: ObjectName::metadata(name), guards: vec![], changes: vec![change] };
        store.session().write(&[op]).remove(0)
    };
    assert!(made("a", Change::SetOmap(vec![(vec![1; 1024], vec![0; 1024])])).is_ok());
    assert!(made("a", Change::SetOmap(vec![(vec![1; 1025], vec![])])).is_err());
    assert!(made("a", Change::SetOmap(vec![(vec![1], vec![0; 1025])])).is_err());
    assert!(made("a", Change::SetXattr("h", vec![0; 1025])).is_err());
    assert!(made(&"a".repeat(1025), Change::Full(vec![1])).is_err());
}

/// Blocks of a row of any length would be gone through when the folder is opened.
#[test]
fn rule_09_a_long_row_of_blocks_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(EmbeddedStore::create(&path, PoolKind::Replicated).unwrap());
    let tables = redb::Database::open(path.join("objects.redb")).unwrap();
    let transaction = tables.begin_write().unwrap();
    transaction.open_table(EXTENTS).unwrap().insert((1, 0), &vec![0; 1 << 20][..]).unwrap();
    transaction.commit().unwrap();
    drop(tables);
    for opened in [EmbeddedStore::look(&path), EmbeddedStore::open(&path)] {
        assert_eq!(opened.err().map(|error| error.kind()), Some(Kind::Corrupt));
    }
}

/// The keys of one object would be read again for each object that has its number.
#[test]
fn rule_09_objects_that_share_a_number_are_damage() {
    let (_folder, store) = forged(|tables| {
        let mut objects = tables.open_table(OBJECTS).unwrap();
        objects.insert((0, "b"), (1, 1, 0, 0)).unwrap();
    });
    let session = store.session();
    let read = |name: &str| {
        let read =
            Read { object: ObjectName::metadata(name), parts: vec![ReadPart::Page(vec![], 10)] };
        kind(session.read(&[read]).remove(0))
    };
    assert_eq!((read("a"), read("a"), read("b")), (None, None, Some(Kind::Corrupt)));
}

/// A power failure left the newest commit in part: pages that it names are still those of older
/// trees, which have no place in it. The commit before counts, for who looks and for who works.
#[test]
fn a_commit_that_was_written_in_part_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let (path, crashed) = (folder.path().join("s"), folder.path().join("crashed"));
    let store = EmbeddedStore::create(&path, PoolKind::Replicated).unwrap();
    for n in 0..3 {
        assert!(store.session().write(&[put(&format!("o{n}"), vec![n; 5000])])[0].is_ok());
    }
    fs::create_dir(&crashed).unwrap();
    for name in ["objects.redb", "data"] {
        fs::copy(path.join(name), crashed.join(name)).unwrap();
    }
    drop(store);
    let file =
        fs::File::options().read(true).write(true).open(crashed.join("objects.redb")).unwrap();
    let mut head = [0; 320];
    file.read_exact_at(&mut head, 0).unwrap();
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    let newest = if number(64 + 104) > number(192 + 104) { 64 } else { 192 };
    let root = number(newest + 8);
    let at = 4096 * (1 + u64::from(head[16]) + (u64::from(head[17]) << 8) + root);
    let mut page = vec![0; 4096];
    (page[0], page[2]) = (2, 1);
    page[40..48].copy_from_slice(&root.to_le_bytes());
    page[48..56].copy_from_slice(&root.to_le_bytes());
    page[56..60].copy_from_slice(&61u32.to_le_bytes());
    file.write_all_at(&page, at).unwrap();
    for open in [EmbeddedStore::look, EmbeddedStore::open, EmbeddedStore::look] {
        let store = open(&crashed).unwrap();
        let names = store.session().list(Pool::Metadata, None, 9).unwrap().names;
        assert_eq!(names, ["o0", "o1"]);
    }
}

/// Blocks of the data file that are filled with this byte.
fn filled(path: &std::path::Path, byte: u8) -> Vec<u32> {
    let bytes = fs::read(path.join("data")).unwrap();
    let blocks = (0..).zip(bytes.chunks(4096));
    blocks.filter(|(_, block)| block.iter().all(|b| *b == byte)).map(|(n, _)| n).collect()
}

#[test]
fn what_is_overwritten_is_in_no_file_any_more_also_when_a_crash_came_between() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let overwrite = |store: &EmbeddedStore, fill: u8| {
        let changes = vec![Change::Overwrite(vec![fill; 8192])];
        let op = Write { object: ObjectName::metadata("k"), guards: vec![], changes };
        store.session().write(&[op]).remove(0).unwrap();
    };
    let used = {
        let store = EmbeddedStore::create(&path, PoolKind::Replicated).unwrap();
        overwrite(&store, 0xa5);
        assert_eq!(filled(&path, 0xa5).len(), 2);
        overwrite(&store, 0x5a);
        assert_eq!((filled(&path, 0xa5).len(), filled(&path, 0x5a).len()), (0, 2));
        assert_eq!(data(&store.session(), "k"), [0x5a; 8192]);
        filled(&path, 0x5a)
    };
    // A crash came between the commit and the overwriting; then a program used the folder that knows nothing of this.
    let file = fs::OpenOptions::new().write(true).open(path.join("data")).unwrap();
    file.set_len(64 << 12).unwrap();
    file.write_all_at(&[0xa5; 4096], 60 << 12).unwrap();
    let erasing = redb::TableDefinition::<u32, ()>::new("erasing");
    let database = redb::Database::open(path.join("objects.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    for block in [60, used[0], u32::MAX] {
        transaction.open_table(erasing).unwrap().insert(block, ()).unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    assert_eq!(filled(&path, 0xa5), [60]);
    drop(EmbeddedStore::look(&path).unwrap());
    assert_eq!(filled(&path, 0xa5), [60]);
    let store = EmbeddedStore::open(&path).unwrap();
    assert_eq!((filled(&path, 0xa5), filled(&path, 0x5a)), (vec![], used));
    assert_eq!(data(&store.session(), "k"), [0x5a; 8192]);
    assert!(file.metadata().unwrap().len() <= 64 << 12);
}

#[test]
fn rule_02_a_creation_that_fails_removes_its_own_files_and_nothing_by_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let (other, folder) = (dir.path().join("other"), dir.path().join("new"));
    drop(EmbeddedStore::create(&other, PoolKind::Replicated).unwrap());
    let moved = dir.path().join("moved");
    // Somebody who may rename there puts a link to another store in the place of the folder.
    let mut swaps = |_: &EmbeddedStore| {
        fs::rename(&folder, &moved).unwrap();
        std::os::unix::fs::symlink(&other, &folder).unwrap();
        Err(onefold_core::Error::new(Kind::Io, "no room"))
    };
    let word = onefold_backend::Word::default();
    let failed = EmbeddedStore::create_filled(&folder, PoolKind::Replicated, word, &mut swaps);
    assert_eq!(failed.err().unwrap().to_string(), "no room");
    assert_eq!(fs::read_dir(&moved).unwrap().count(), 0, "its own are gone");
    EmbeddedStore::open(&other).unwrap();
}
