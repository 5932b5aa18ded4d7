//! The embedded object store: the contract, and what is there after it was closed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use onefold_backend::EmbeddedStore;
use onefold_core::{
    Kind,
    object::{
        Change, Guard, ObjectName, ObjectStore, PoolKind, Read, ReadPart, Refusal, Write, contract,
    },
};

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
        assert_eq!(contract::hold(&store.session(), "t."), Ok(()));
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
    assert!(
        matches!(store.session().read(&[read]).remove(0), Err(Refusal::Failed(error)) if error.kind() == Kind::Corrupt)
    );
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
