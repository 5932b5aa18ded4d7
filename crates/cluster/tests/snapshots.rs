//! Snapshots, clones and rollbacks: what each holds, what is stored for them, and what goes with them.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::sync::Arc;

use onefold_cluster::{
    Cut, Dedup, Format, Mode, Scrub, Session, Settings, Snapshots, Volume, Watermarks, What,
    Worker, create,
};
use onefold_core::{
    Exports, Kind,
    object::{ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart},
};
use onefold_testbed::MemoryObjects;

const OBJECT: u64 = 64 << 10;
const CHUNK: usize = 16 << 10;
const BYTES: u64 = 8 * OBJECT;

fn new_store(chunks: PoolKind, cut: Cut) -> MemoryObjects {
    let store = MemoryObjects::new(chunks);
    let (object_bytes, chunk_bytes) = match cut {
        Cut::Static => (OBJECT as u32, CHUNK as u32),
        Cut::Content => (256 << 10, 32 << 10),
    };
    let format = Format {
        object_bytes,
        chunk_bytes,
        volume_cut: cut,
        ..Format::new([1; 16], [2; 32], chunks)
    };
    create(&store, &format).unwrap();
    store
}

fn open(store: &MemoryObjects, name: &str, dedup: Dedup) -> Arc<Session> {
    let settings = Settings { dedup, cold: std::time::Duration::ZERO, ..Settings::default() };
    Arc::new(Session::open(Arc::new(store.session(name)), settings).unwrap())
}

/// Writes the same byte over a range.
fn write(session: &Arc<Session>, name: &str, at: u64, byte: u8, bytes: usize) {
    let volume = Volume::attach(session, name, Mode::Own).unwrap();
    volume.write_at(at, &vec![byte; bytes]).unwrap();
    volume.detach().unwrap();
}

fn read(volume: &Volume) -> Vec<u8> {
    let mut bytes = vec![0xaa; volume.bytes() as usize];
    volume.read_at(0, &mut bytes).unwrap();
    bytes
}

fn content(session: &Arc<Session>, name: &str) -> Vec<u8> {
    read(&Volume::attach(session, name, Mode::Read).unwrap())
}

fn snapshot(session: &Arc<Session>, name: &str) -> Vec<u8> {
    read(&Snapshots::of(session).attach(name).unwrap())
}

/// Deduplicates and deletes all there is; then a scrub finds nothing.
fn clean(session: &Arc<Session>) {
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    for _ in 0..1000 {
        let deleted = session.delete_step().unwrap();
        worker.step().unwrap();
        if !deleted && session.backlog().unwrap() == 0 {
            break;
        }
    }
    worker.release();
    let mut scrub = Scrub::new(session.clone(), true).unwrap();
    while scrub.step().unwrap() {}
    assert!(scrub.report().is_quiet(), "{:?}", scrub.report());
}

fn names(store: &MemoryObjects, pool: Pool, first: &str) -> Vec<String> {
    let all = store.list(pool, None, 100_000).unwrap().names;
    all.into_iter().filter(|name| name.starts_with(first)).collect()
}

/// In every form of store and at every time of deduplication.
fn everywhere(test: fn(&MemoryObjects, &Arc<Session>)) {
    for chunks in [PoolKind::Replicated, PoolKind::Erasure] {
        for dedup in [Dedup::PostProcessing, Dedup::Inline, Dedup::FlushThrough] {
            let store = new_store(chunks, Cut::Static);
            test(&store, &open(&store, "one", dedup));
        }
        let store = new_store(chunks, Cut::Content);
        test(&store, &open(&store, "one", Dedup::PostProcessing));
    }
}

#[test]
fn a_snapshot_holds_what_its_volume_held_and_goes_with_its_own_references() {
    everywhere(|store, session| {
        session.create_volume("v", BYTES).unwrap();
        write(session, "v", 0, 1, 3 * OBJECT as usize);
        let first = content(session, "v");
        Snapshots::of(session).take("v@a").unwrap();
        assert_eq!(Snapshots::of(session).take("v@a").unwrap_err().kind(), Kind::Exists);
        assert_eq!(content(session, "v"), first);
        // A part of a block, a whole object, and a place where nothing was.
        write(session, "v", 100, 2, 50);
        write(session, "v", OBJECT, 3, OBJECT as usize);
        write(session, "v", 6 * OBJECT, 4, 4096);
        let second = content(session, "v");
        Snapshots::of(session).take("v@b").unwrap();
        write(session, "v", 5000, 5, 9000);
        let third = content(session, "v");
        let all = |session: &Arc<Session>| {
            assert_eq!(snapshot(session, "v@a"), first);
            assert_eq!(snapshot(session, "v@b"), second);
            assert_eq!(content(session, "v"), third);
        };
        all(session);
        clean(session);
        all(session);
        let names_of = |session: &Arc<Session>| {
            let all = Snapshots::of(session).all().unwrap();
            all.iter().map(|snapshot| snapshot.full_name()).collect::<Vec<_>>()
        };
        assert_eq!(names_of(session), ["v@a", "v@b"]);
        assert_eq!(session.delete("v", What::Volume).unwrap_err().kind(), Kind::Busy);
        Snapshots::of(session).delete("v@b").unwrap();
        clean(session);
        assert_eq!(
            (snapshot(session, "v@a"), content(session, "v")),
            (first.clone(), third.clone())
        );
        Snapshots::of(session).delete("v@a").unwrap();
        assert_eq!(Snapshots::of(session).delete("v@a").unwrap_err().kind(), Kind::NotFound);
        clean(session);
        assert_eq!(content(session, "v"), third);
        session.delete("v", What::Volume).unwrap();
        clean(session);
        assert!(names(store, Pool::Metadata, "o.").is_empty());
        assert!(names(store, Pool::Metadata, "v.").is_empty());
        assert!(names(store, Pool::Chunks, "c.").is_empty());
    });
}

#[test]
fn a_clone_and_a_volume_that_was_rolled_back_go_on_from_the_snapshot() {
    everywhere(|store, session| {
        session.create_volume("v", BYTES).unwrap();
        write(session, "v", 0, 1, 2 * OBJECT as usize);
        let first = content(session, "v");
        Snapshots::of(session).take("v@a").unwrap();
        write(session, "v", 0, 2, 4096);
        Snapshots::of(session).clone_volume("v@a", "c").unwrap();
        Snapshots::of(session).clone_volume("v", "d").unwrap();
        assert_eq!(
            Snapshots::of(session).clone_volume("v@a", "d").unwrap_err().kind(),
            Kind::Exists
        );
        assert_eq!(
            Snapshots::of(session).clone_volume("v@z", "e").unwrap_err().kind(),
            Kind::NotFound
        );
        let second = content(session, "v");
        assert_eq!((content(session, "c"), content(session, "d")), (first.clone(), second.clone()));
        write(session, "c", 4096, 3, 4096);
        write(session, "v", 8192, 4, 4096);
        assert_eq!(
            (snapshot(session, "v@a"), content(session, "d")),
            (first.clone(), second.clone())
        );
        clean(session);
        assert_eq!((snapshot(session, "v@a"), content(session, "d")), (first.clone(), second));
        Snapshots::of(session).roll_back("v@a").unwrap();
        assert_eq!(Snapshots::of(session).roll_back("v@z").unwrap_err().kind(), Kind::NotFound);
        clean(session);
        assert_eq!(
            (snapshot(session, "v@a"), content(session, "v")),
            (first.clone(), first.clone())
        );
        Snapshots::of(session).delete("v@a").unwrap();
        for name in ["v", "d"] {
            session.delete(name, What::Volume).unwrap();
        }
        clean(session);
        let mut cloned = first;
        cloned[4096..8192].fill(3);
        assert_eq!(content(session, "c"), cloned);
        session.delete("c", What::Volume).unwrap();
        clean(session);
        assert!(names(store, Pool::Metadata, "o.").is_empty());
        assert!(names(store, Pool::Chunks, "c.").is_empty());
    });
}

#[test]
fn a_snapshot_copies_no_map_and_a_write_afterwards_one() {
    let store = new_store(PoolKind::Replicated, Cut::Static);
    let session = open(&store, "one", Dedup::PostProcessing);
    session.create_volume("v", BYTES).unwrap();
    for object in 0..8 {
        write(&session, "v", object * OBJECT, object as u8 + 1, OBJECT as usize);
    }
    clean(&session);
    let (objects, chunks) =
        (names(&store, Pool::Metadata, "o.").len(), names(&store, Pool::Chunks, "c.").len());
    Snapshots::of(&session).take("v@a").unwrap();
    assert_eq!(names(&store, Pool::Metadata, "o.").len(), objects);
    write(&session, "v", 0, 9, 4096);
    clean(&session);
    assert_eq!(names(&store, Pool::Metadata, "o.").len(), objects + 1);
    assert_eq!(names(&store, Pool::Chunks, "c.").len(), chunks + 1);
}

#[test]
fn trims_and_sizes_leave_a_snapshot_as_it_is() {
    everywhere(|_, session| {
        session.create_volume("v", BYTES).unwrap();
        write(session, "v", 0, 1, BYTES as usize);
        Snapshots::of(session).take("v@a").unwrap();
        let volume = Volume::attach(session, "v", Mode::Own).unwrap();
        volume.discard(4096, BYTES - 8192).unwrap();
        let trimmed = read(&volume);
        assert!(trimmed[4096..BYTES as usize - 4096].iter().all(|byte| *byte == 0));
        assert!(trimmed[..4096].iter().chain(&trimmed[BYTES as usize - 4096..]).all(|b| *b == 1));
        while volume.discard_step().unwrap() {}
        assert_eq!(read(&volume), trimmed);
        volume.detach().unwrap();
        session.resize_volume("v", OBJECT).unwrap();
        session.resize_volume("v", BYTES).unwrap();
        let after = content(session, "v");
        assert!(after[..4096].iter().all(|byte| *byte == 1));
        assert!(after[4096..].iter().all(|byte| *byte == 0));
        clean(session);
        assert_eq!(content(session, "v"), after);
        assert!(snapshot(session, "v@a").iter().all(|byte| *byte == 1));
        Snapshots::of(session).roll_back("v@a").unwrap();
        session.resize_volume("v", OBJECT).unwrap();
        session.resize_volume("v", BYTES).unwrap();
        let grown = content(session, "v");
        assert!(grown[..OBJECT as usize].iter().all(|byte| *byte == 1));
        assert!(grown[OBJECT as usize..].iter().all(|byte| *byte == 0));
        clean(session);
        assert!(snapshot(session, "v@a").iter().all(|byte| *byte == 1));
    });
}

#[test]
fn a_volume_that_another_server_writes_gets_no_snapshot_and_snapshots_are_served_for_reading() {
    let store = new_store(PoolKind::Replicated, Cut::Static);
    let (session, other) =
        (open(&store, "one", Dedup::PostProcessing), open(&store, "two", Dedup::PostProcessing));
    session.create_volume("v", BYTES).unwrap();
    write(&session, "v", 0, 1, 4096);
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    for refused in [
        Snapshots::of(&other).take("v@a"),
        Snapshots::of(&other).roll_back("v@a"),
        Snapshots::of(&other).clone_volume("v", "c"),
    ] {
        assert_eq!(refused.unwrap_err().kind(), Kind::Busy);
    }
    volume.detach().unwrap();
    Snapshots::of(&session).take("v@a").unwrap();
    let exports = onefold_cluster::ClusterExports::new(session.clone(), Mode::Own);
    let listed: Vec<String> = exports.list().into_iter().map(|volume| volume.name).collect();
    assert_eq!(listed, ["v", "v@a"]);
    let served = exports.open("v@a").unwrap();
    assert!(served.is_read_only() && served.size() == BYTES);
    assert!(exports.open("v@b").is_err() && exports.open("@").is_err());
    assert_eq!(exports.while_detached("v@a", |_| Ok(())).unwrap_err().kind(), Kind::Busy);
    drop(served);
    exports.while_detached("v@a", |session| Snapshots::of(session).delete("v@a")).unwrap();
    exports.close().unwrap();
}

#[test]
fn an_older_program_refuses_a_store_with_snapshots() {
    let store = new_store(PoolKind::Replicated, Cut::Static);
    let session = open(&store, "one", Dedup::PostProcessing);
    session.create_volume("v", BYTES).unwrap();
    let format = || {
        let read = Read {
            object: ObjectName::metadata("catalogue"),
            parts: vec![ReadPart::Keys(vec![b"format".to_vec()])],
        };
        let answer = store.read(&[read]).remove(0).unwrap();
        Format::decode(&answer.pairs(0).0[0].1).unwrap()
    };
    assert!(!format().layers);
    Snapshots::of(&session).take("v@a").unwrap();
    assert!(format().layers);
}

#[test]
fn an_object_of_a_snapshot_that_is_lost_is_damage_and_never_zeroes() {
    let store = new_store(PoolKind::Replicated, Cut::Static);
    let session = open(&store, "one", Dedup::PostProcessing);
    session.create_volume("v", BYTES).unwrap();
    write(&session, "v", 0, 1, 4096);
    Snapshots::of(&session).take("v@a").unwrap();
    let lost = names(&store, Pool::Metadata, "o.").remove(0);
    let remove = onefold_core::object::Write {
        object: ObjectName::metadata(lost),
        guards: Vec::new(),
        changes: vec![onefold_core::object::Change::Remove],
    };
    store.write(&[remove]).remove(0).unwrap();
    let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
    let mut bytes = vec![0; 4096];
    assert_eq!(volume.read_at(0, &mut bytes).unwrap_err().kind(), Kind::Corrupt);
    let snapshot = Snapshots::of(&session).attach("v@a").unwrap();
    assert_eq!(snapshot.read_at(0, &mut bytes).unwrap_err().kind(), Kind::Corrupt);
    assert!(volume.write_at(0, &bytes[..512]).is_err());
}

#[test]
fn a_chunk_of_a_snapshot_that_is_lost_damages_what_names_it_and_nothing_else() {
    for chunks in [PoolKind::Replicated, PoolKind::Erasure] {
        let store = new_store(chunks, Cut::Static);
        let session = open(&store, "one", Dedup::PostProcessing);
        for name in ["v", "w"] {
            session.create_volume(name, BYTES).unwrap();
        }
        write(&session, "v", 0, 1, CHUNK);
        clean(&session);
        let lost = names(&store, Pool::Chunks, "c.").remove(0);
        write(&session, "v", CHUNK as u64, 2, CHUNK);
        clean(&session);
        Snapshots::of(&session).take("v@a").unwrap();
        Snapshots::of(&session).clone_volume("v@a", "c").unwrap();
        let remove = onefold_core::object::Write {
            object: ObjectName::chunk(lost),
            guards: Vec::new(),
            changes: vec![onefold_core::object::Change::Remove],
        };
        store.write(&[remove]).remove(0).unwrap();
        // Beside the lost chunk, and in place of it.
        write(&session, "v", 2 * CHUNK as u64, 3, CHUNK);
        write(&session, "c", 0, 4, CHUNK);
        assert_eq!(content(&session, "c")[..2 * CHUNK], [[4; CHUNK], [2; CHUNK]].concat());
        Snapshots::of(&session).delete("v@a").unwrap();
        session.delete("w", What::Volume).unwrap();
        while session.delete_step().unwrap() {}
        assert!(Snapshots::of(&session).all().unwrap().is_empty());
        let volume = Volume::attach(&session, "v", Mode::Own).unwrap();
        let mut bytes = vec![0; CHUNK];
        for (at, expected) in [(0, None), (1, Some(2)), (2, Some(3)), (3, Some(0))] {
            match (volume.read_at(at * CHUNK as u64, &mut bytes), expected) {
                (Ok(()), Some(byte)) => assert!(bytes.iter().all(|found| *found == byte)),
                (Err(error), None) => assert_eq!(error.kind(), Kind::Corrupt),
                other => panic!("{other:?}"),
            }
        }
        volume.write_at(0, &vec![5; CHUNK]).unwrap();
        volume.detach().unwrap();
        clean(&session);
        for name in ["v", "c"] {
            session.delete(name, What::Volume).unwrap();
        }
        clean(&session);
        assert!(names(&store, Pool::Chunks, "c.").is_empty());
    }
}

/// True when the header of a volume records chunks that are kept in its objects.
fn keeps_chunks(store: &MemoryObjects, id: u64) -> bool {
    let read = Read {
        object: ObjectName::metadata(format!("v.{id:010x}")),
        parts: vec![ReadPart::Page(vec![b'C'], 1)],
    };
    let answer = store.read(&[read]).remove(0).unwrap();
    answer.pairs(0).0.iter().any(|(key, _)| key[0] == b'C')
}

/// The blocks that stand in the objects of a volume.
fn blocks(store: &MemoryObjects, id: u64) -> Vec<u8> {
    let read = |name: String| Read {
        object: ObjectName::metadata(name),
        parts: vec![ReadPart::Data(0, OBJECT)],
    };
    let objects = names(store, Pool::Metadata, &format!("o.{id:010x}."));
    let answers = store.read(&objects.into_iter().map(read).collect::<Vec<_>>());
    answers.into_iter().flat_map(|answer| answer.unwrap().data(0).to_vec()).collect()
}

#[test]
fn what_was_kept_in_objects_because_it_was_read_often_does_not_stay_in_a_snapshot() {
    let store = new_store(PoolKind::Replicated, Cut::Static);
    let session = open(&store, "one", Dedup::PostProcessing);
    session.create_volume("v", BYTES).unwrap();
    write(&session, "v", 0, 1, BYTES as usize);
    clean(&session);
    let settings = Settings { hit_count: 1, ..Settings::default() };
    let server = Arc::new(Session::open(Arc::new(store.session("two")), settings).unwrap());
    let volume = Volume::attach(&server, "v", Mode::Own).unwrap();
    let first = read(&volume);
    let id = volume.id();
    assert!(volume.cached_bytes() > 0);
    volume.detach().unwrap();
    assert!(keeps_chunks(&store, id) && blocks(&store, id).contains(&1));
    Snapshots::of(&server).take("v@a").unwrap();
    while server.delete_step().unwrap() {}
    assert!(!keeps_chunks(&store, id));
    assert!(blocks(&store, id).iter().all(|byte| *byte == 0));
    assert_eq!(snapshot(&server, "v@a"), first);
    assert_eq!(content(&server, "v"), first);
}
