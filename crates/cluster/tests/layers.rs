//! Layers that go while others work: what one session does between two operations of another one.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_cluster::{
    ClusterExports, Format, Found, Mode, Scrub, Session, Settings, Snapshots, Standby, Volume,
    What, create, format::ObjectId,
};
use onefold_core::{
    Block, BlockRead, Error, Exports, Kind, Lba,
    object::{
        Change, Guard, Holder, ObjectName, ObjectStore, Page, Pool, PoolKind, Read, ReadResult,
        Refusal, Space, Version, Write,
    },
};
use onefold_testbed::MemoryObjects;

const OBJECT: u64 = 64 << 10;
const BYTES: u64 = 4 * OBJECT;

/// An operation that a session is about to send.
enum Sent<'a> {
    Write(&'a Write),
    Read(&'a Read),
    Lock(&'a ObjectName, &'static str),
}

/// A session's store: before each operation `before` is told of it. A write or read is lost where it gives a
/// refusal.
struct Watched {
    store: MemoryObjects,
    before: Box<dyn Fn(Sent<'_>) -> Option<Refusal> + Send + Sync>,
}

impl ObjectStore for Watched {
    fn kind(&self, pool: Pool) -> PoolKind {
        self.store.kind(pool)
    }

    fn write(&self, batch: &[Write]) -> Vec<Result<Version, Refusal>> {
        let one = |op: &Write| match (self.before)(Sent::Write(op)) {
            Some(refusal) => Err(refusal),
            None => self.store.write(std::slice::from_ref(op)).remove(0),
        };
        batch.iter().map(one).collect()
    }

    fn read(&self, batch: &[Read]) -> Vec<Result<ReadResult, Refusal>> {
        let one = |op: &Read| match (self.before)(Sent::Read(op)) {
            Some(refusal) => Err(refusal),
            None => self.store.read(std::slice::from_ref(op)).remove(0),
        };
        batch.iter().map(one).collect()
    }

    fn list(&self, pool: Pool, from: Option<&str>, most: usize) -> Result<Page, Refusal> {
        self.store.list(pool, from, most)
    }

    fn lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        cookie: &str,
        lease: Option<Duration>,
    ) -> Result<(), Refusal> {
        (self.before)(Sent::Lock(object, lock));
        self.store.lock(object, lock, cookie, lease)
    }

    fn unlock(&self, object: &ObjectName, lock: &'static str, cookie: &str) -> Result<(), Refusal> {
        self.store.unlock(object, lock, cookie)
    }

    fn holder(&self, object: &ObjectName, lock: &'static str) -> Result<Option<Holder>, Refusal> {
        self.store.holder(object, lock)
    }

    fn break_lock(
        &self,
        object: &ObjectName,
        lock: &'static str,
        holder: &Holder,
    ) -> Result<(), Refusal> {
        self.store.break_lock(object, lock, holder)
    }

    fn identity(&self) -> String {
        self.store.identity()
    }

    fn is_identity(&self, identity: &str) -> bool {
        self.store.is_identity(identity)
    }

    fn fence(&self, identity: &str) -> Result<(), Refusal> {
        self.store.fence(identity)
    }

    fn time(&self) -> Duration {
        self.store.time()
    }

    fn monotonic(&self) -> Duration {
        self.store.monotonic()
    }

    fn space(&self) -> Result<Space, Refusal> {
        self.store.space()
    }
}

fn new_store() -> MemoryObjects {
    let store = MemoryObjects::new(PoolKind::Replicated);
    let format = Format {
        object_bytes: OBJECT as u32,
        chunk_bytes: 16 << 10,
        ..Format::new([1; 16], [2; 32], PoolKind::Replicated)
    };
    create(&store, &format).unwrap();
    store
}

fn session_over(store: Arc<dyn ObjectStore>) -> Arc<Session> {
    let settings = Settings { cold: Duration::ZERO, ..Settings::default() };
    Arc::new(Session::open(store, settings).unwrap())
}

fn open(store: &MemoryObjects, name: &str) -> Arc<Session> {
    session_over(Arc::new(store.session(name)))
}

/// A session of which each operation is told before it is sent.
fn watched(
    store: &MemoryObjects,
    name: &str,
    before: impl Fn(Sent<'_>) -> Option<Refusal> + Send + Sync + 'static,
) -> Arc<Session> {
    session_over(Arc::new(Watched { store: store.session(name), before: Box::new(before) }))
}

/// A session that does something once, before the first operation that `when` is true for.
fn interrupted(
    store: &MemoryObjects,
    name: &str,
    when: impl Fn(&Sent<'_>) -> bool + Send + Sync + 'static,
    does: impl Fn() + Send + Sync + 'static,
) -> Arc<Session> {
    let done = AtomicBool::new(false);
    watched(store, name, move |sent| {
        if when(&sent) && !done.swap(true, Relaxed) {
            does();
        }
        None
    })
}

fn write(session: &Arc<Session>, name: &str, object: u64, byte: u8) {
    let volume = Volume::attach(session, name, Mode::Own).unwrap();
    volume.write_at(object * OBJECT, &[byte; 4096]).unwrap();
    volume.detach().unwrap();
}

/// The first byte of each object.
fn bytes_of(volume: &Volume) -> onefold_core::Result<Vec<u8>> {
    let first = |object| {
        let mut bytes = vec![0xaa; 4096];
        volume.read_at(object * OBJECT, &mut bytes)?;
        Ok(bytes[0])
    };
    (0..BYTES / OBJECT).map(first).collect()
}

fn content(session: &Arc<Session>, name: &str) -> Vec<u8> {
    bytes_of(&Volume::attach(session, name, Mode::Read).unwrap()).unwrap()
}

fn header(session: &Session, name: &str) -> ObjectName {
    header_of(session.find(name).unwrap().unwrap().id)
}

fn header_of(id: u64) -> ObjectName {
    ObjectName::metadata(format!("v.{id:010x}"))
}

fn sets(op: &Write, key: &[u8]) -> bool {
    let sets = |change: &Change| matches!(change, Change::SetOmap(pairs) if pairs.iter().any(|(found, _)| found == key));
    op.changes.iter().any(sets)
}

fn delete_all(session: &Session) {
    while session.delete_step().unwrap() {}
}

/// A volume over two snapshots, each with an object of its own.
fn stacked(store: &MemoryObjects) -> Arc<Session> {
    let one = open(store, "one");
    one.create_volume("v", BYTES).unwrap();
    write(&one, "v", 0, 1);
    Snapshots::of(&one).take("v@a").unwrap();
    write(&one, "v", 1, 2);
    Snapshots::of(&one).take("v@b").unwrap();
    write(&one, "v", 2, 3);
    one
}

#[test]
fn a_volume_keeps_what_both_of_two_stacked_snapshots_held_that_go_at_one_time() {
    let store = new_store();
    let one = stacked(&store);
    let volume = header(&one, "v");
    Snapshots::of(&one).delete("v@b").unwrap();
    let (other, two) = (one.clone(), open(&store, "two"));
    // The lower snapshot goes while the operation is on its way that makes the volume read it.
    let slow = interrupted(
        &store,
        "slow",
        move |sent| matches!(sent, Sent::Write(op) if op.object == volume && sets(op, b"p")),
        move || {
            Snapshots::of(&other).delete("v@a").unwrap();
            delete_all(&two);
        },
    );
    delete_all(&slow);
    delete_all(&one);
    assert_eq!(content(&one, "v"), [1, 2, 3, 0]);
    write(&one, "v", 0, 4);
    assert_eq!(content(&one, "v"), [4, 2, 3, 0]);
}

#[test]
fn a_header_that_a_lock_made_anew_is_no_layer_to_hand_a_volume_to() {
    let store = new_store();
    let one = stacked(&store);
    let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
    Snapshots::of(&one).delete("v@b").unwrap();
    let (other, two, locks) = (one.clone(), open(&store, "two"), store.session("locks"));
    let key = [b"k".to_vec(), sevens(one.find("v").unwrap().unwrap().id)].concat();
    let slow = interrupted(
        &store,
        "slow",
        move |sent| matches!(sent, Sent::Write(op) if op.object == header_of(lower) && sets(op, &key)),
        move || {
            Snapshots::of(&other).delete("v@a").unwrap();
            delete_all(&two);
            locks.lock(&header_of(lower), "fill", "late", None).unwrap();
        },
    );
    delete_all(&slow);
    delete_all(&one);
    assert_eq!(content(&one, "v"), [1, 2, 3, 0]);
}

/// Changes the store behind the engine's back.
fn change(store: &MemoryObjects, object: ObjectName, changes: Vec<Change>) {
    store.write(&[Write { object, guards: Vec::new(), changes }]).remove(0).unwrap();
}

fn objects(store: &MemoryObjects) -> Vec<ObjectId> {
    let names = store.list(Pool::Metadata, None, 100_000).unwrap().names;
    names.iter().filter_map(|name| ObjectId::parse(name)).collect()
}

/// All deletions, until each that is left fails; the last error.
fn delete_what_goes(session: &Session) -> Option<Kind> {
    loop {
        match session.delete_step() {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(error.kind()),
        }
    }
}

#[test]
fn a_snapshot_below_which_as_many_volumes_share_one_as_may_is_deleted() {
    let store = new_store();
    let one = stacked(&store);
    let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
    let others = (1 << 20..).take(1024).map(|id: u64| {
        (onefold_cluster::format::key::numbered(b'k', id), id.to_le_bytes().to_vec())
    });
    change(&store, header_of(lower), vec![Change::SetOmap(others.collect())]);
    let refused = Snapshots::of(&one).clone_volume("v@a", "c").unwrap_err();
    assert_eq!(refused.kind(), Kind::Unsupported);
    Snapshots::of(&one).delete("v@b").unwrap();
    delete_all(&one);
    assert_eq!(content(&one, "v"), [1, 2, 3, 0]);
}

#[test]
fn a_deletion_that_fails_keeps_no_other_one_from_going() {
    for refusal in [Refusal::Busy, Refusal::Unsupported, Refusal::Unknown, Refusal::Missing] {
        let store = new_store();
        let (one, writer) = (open(&store, "one"), open(&store, "writer"));
        let names = ["a", "b", "c", "d"];
        for name in names {
            one.create_volume(name, BYTES).unwrap();
            write(&writer, name, 0, 1);
        }
        let stuck = ObjectId { volume: one.find("a").unwrap().unwrap().id, index: 0 };
        names.iter().for_each(|name| one.delete(name, What::Volume).unwrap());
        let failing = watched(&store, "failing", move |sent| match sent {
            Sent::Write(op) if op.object == stuck.name() => Some(refusal.clone()),
            _ => None,
        });
        assert!(delete_what_goes(&failing).is_some());
        assert_eq!(objects(&store), [stuck]);
        delete_all(&one);
        // The lock of the one that failed ends with its lease.
        store.set_time(store.time() + Duration::from_secs(3600));
        delete_all(&one);
        assert_eq!(objects(&store), []);
    }
}

/// Deletes a snapshot that a reader has, and gives what the reader gets of its first object.
fn read_of_a_deleted_one(
    reads_before: bool,
    then: impl Fn(&MemoryObjects, ObjectName),
) -> onefold_core::Result<Vec<u8>> {
    let store = new_store();
    let one = stacked(&store);
    write(&one, "v", 0, 4);
    Snapshots::of(&one).take("v@c").unwrap();
    let reader = Snapshots::of(&open(&store, "reader")).attach("v@c").unwrap();
    if reads_before {
        assert_eq!(bytes_of(&reader).unwrap(), [4, 2, 3, 0]);
    }
    Snapshots::of(&one).delete("v@c").unwrap();
    delete_all(&one);
    then(&store, header_of(reader.id()));
    let extents = onefold_core::Volume::extents(&reader, 0, OBJECT, 10);
    assert!(extents.is_err(), "{extents:?}");
    bytes_of(&reader)
}

#[test]
fn who_reads_a_snapshot_that_is_gone_gets_no_older_bytes() {
    for reads_before in [true, false] {
        let read = read_of_a_deleted_one(reads_before, |_, _| {});
        assert_eq!(read.unwrap_err().kind(), Kind::NotFound);
        let read = read_of_a_deleted_one(reads_before, |store, header| {
            store.session("late").lock(&header, "fill", "late", None).unwrap();
        });
        assert_eq!(read.unwrap_err().kind(), Kind::NotFound);
    }
}

#[test]
fn who_reads_a_snapshot_that_goes_and_that_nobody_inherits_from_gets_no_zeroes() {
    let store = new_store();
    let one = stacked(&store);
    write(&one, "v", 0, 4);
    Snapshots::of(&one).take("v@c").unwrap();
    let reader = Snapshots::of(&open(&store, "reader")).attach("v@c").unwrap();
    Snapshots::of(&one).roll_back("v@a").unwrap();
    delete_all(&one);
    Snapshots::of(&one).delete("v@c").unwrap();
    let (id, read) = (reader.id(), Arc::new(Mutex::new(None)));
    let seen = read.clone();
    let slow = interrupted(
        &store,
        "slow",
        move |sent| {
            matches!(sent, Sent::Write(op) if op.changes == [Change::Remove]
                && op.object == ObjectId { volume: id, index: 0 }.name())
        },
        move || *seen.lock().unwrap() = Some(bytes_of(&reader).map_err(|error| error.kind())),
    );
    delete_all(&slow);
    assert_eq!(read.lock().unwrap().take().unwrap(), Err(Kind::NotFound));
}

#[test]
fn a_snapshot_that_goes_after_the_one_below_is_no_damage() {
    let store = new_store();
    let one = stacked(&store);
    Snapshots::of(&one).take("v@c").unwrap();
    let id = Snapshots::of(&one).attach("v@c").unwrap().id();
    Snapshots::of(&one).roll_back("v@a").unwrap();
    delete_all(&one);
    // The snapshot says that it goes, and names the one below still.
    let stuck = watched(&store, "stuck", move |sent| match sent {
        Sent::Write(op)
            if op.object == header_of(id)
                && op.changes == [Change::DropOmap(vec![b"p".to_vec()])] =>
        {
            Some(Refusal::Full)
        }
        _ => None,
    });
    let reader = interrupted(
        &store,
        "reader",
        move |sent| matches!(sent, Sent::Read(read) if read.object == header_of(id)),
        move || {
            Snapshots::of(&one).delete("v@c").unwrap();
            assert_eq!(delete_what_goes(&stuck), Some(Kind::NoSpace));
            Snapshots::of(&one).delete("v@b").unwrap();
            delete_all(&one);
        },
    );
    let refused = Snapshots::of(&reader).attach("v@c").err().unwrap();
    assert_eq!(refused.kind(), Kind::Busy, "{refused}");
}

#[test]
fn what_a_layer_hands_down_while_a_volume_is_attached_is_read() {
    for mode in [Mode::Own, Mode::Read] {
        for n in 0..10 {
            let store = new_store();
            let one = stacked(&store);
            let volume = header(&one, "v");
            let count = AtomicU64::new(0);
            let other = open(&store, "three");
            let two = interrupted(
                &store,
                "two",
                move |sent| {
                    matches!(sent, Sent::Read(read) if read.object == volume)
                        && count.fetch_add(1, Relaxed) == n
                },
                move || {
                    Snapshots::of(&other).delete("v@b").unwrap();
                    Snapshots::of(&other).delete("v@a").unwrap();
                    delete_all(&other);
                },
            );
            let volume = Volume::attach(&two, "v", mode).unwrap();
            assert_eq!(bytes_of(&volume).unwrap(), [1, 2, 3, 0], "{mode:?}, read {n}");
        }
    }
}

#[test]
fn who_attaches_a_volume_that_gets_a_snapshot_leaves_nothing_and_is_not_shut_out_for_it() {
    let store = new_store();
    let one = stacked(&store);
    let (volume, other) = (header(&one, "v"), one.clone());
    let layer = volume.clone();
    let late = interrupted(
        &store,
        "late",
        move |sent| matches!(sent, Sent::Lock(object, "owner") if **object == volume),
        move || Snapshots::of(&other).take("v@c").unwrap(),
    );
    assert_eq!(Volume::attach(&late, "v", Mode::Own).err().unwrap().kind(), Kind::NotFound);
    assert_eq!(store.holder(&layer, "owner").unwrap(), None);
    Snapshots::of(&one).delete("v@c").unwrap();
    delete_all(&one);
    // It lives.
    late.create_volume("w", BYTES).unwrap();
    write(&late, "v", 0, 4);
    assert_eq!(content(&late, "v"), [4, 2, 3, 0]);
}

#[test]
fn a_server_that_opens_a_volume_that_gets_a_snapshot_gets_what_the_name_stands_for_then() {
    let store = new_store();
    let one = stacked(&store);
    let (volume, other) = (header(&one, "v"), one.clone());
    let late = interrupted(
        &store,
        "late",
        move |sent| matches!(sent, Sent::Lock(object, "owner") if **object == volume),
        move || Snapshots::of(&other).take("v@c").unwrap(),
    );
    let exports = ClusterExports::new(late.clone(), Mode::Own);
    let served = exports.open("v").unwrap();
    served.trim(0, OBJECT).unwrap();
    drop(served);
    exports.close().unwrap();
    assert_eq!(content(&one, "v"), [0, 2, 3, 0]);
    let snapshot = Snapshots::of(&one).attach("v@c").unwrap();
    assert_eq!(bytes_of(&snapshot).unwrap(), [1, 2, 3, 0]);
}

#[test]
fn a_volume_that_nobody_inherits_from_goes_although_its_layer_finds_no_room() {
    let store = new_store();
    let one = stacked(&store);
    Snapshots::of(&one).clone_volume("v@a", "c").unwrap();
    write(&one, "c", 1, 7);
    let (clone, volume) = (one.find("c").unwrap().unwrap().id, one.find("v").unwrap().unwrap().id);
    Snapshots::of(&one).delete("v@b").unwrap();
    Snapshots::of(&one).delete("v@a").unwrap();
    let full = watched(&store, "full", move |sent| match sent {
        Sent::Write(op)
            if op.guards.contains(&Guard::Absent) && op.object.name.starts_with("o.") =>
        {
            Some(Refusal::Full)
        }
        _ => None,
    });
    assert_eq!(delete_what_goes(&full), Some(Kind::NoSpace));
    one.delete("c", What::Volume).unwrap();
    let one = open(&store, "three");
    assert_eq!(delete_what_goes(&full), Some(Kind::NoSpace));
    assert!(objects(&store).iter().all(|object| object.volume != clone));
    store.set_time(store.time() + Duration::from_secs(3600));
    delete_all(&one);
    assert_eq!(content(&one, "v"), [1, 2, 3, 0]);
    assert!(objects(&store).iter().all(|object| object.volume == volume));
}

#[test]
fn a_volume_may_go_while_its_layer_hands_it_an_object() {
    for n in 0..12 {
        let store = new_store();
        let one = stacked(&store);
        Snapshots::of(&one).clone_volume("v@a", "c").unwrap();
        let clone = one.find("c").unwrap().unwrap().id;
        Snapshots::of(&one).delete("v@a").unwrap();
        let (other, count) = (open(&store, "three"), AtomicU64::new(0));
        let two = open(&store, "two");
        let object = ObjectId { volume: clone, index: 0 }.name();
        let slow = interrupted(
            &store,
            "slow",
            move |sent| {
                let concerned = match sent {
                    Sent::Write(op) => op.object == object || op.object == header_of(clone),
                    Sent::Read(op) => op.object == object || op.object == header_of(clone),
                    Sent::Lock(..) => false,
                };
                concerned && count.fetch_add(1, Relaxed) == n
            },
            move || {
                other.delete("c", What::Volume).unwrap();
                delete_all(&two);
            },
        );
        delete_all(&slow);
        delete_all(&one);
        assert_eq!(content(&one, "v"), [1, 2, 3, 0]);
        assert!(objects(&store).iter().all(|object| object.volume != clone), "operation {n}");
    }
}

#[test]
fn an_object_of_a_layer_that_a_late_copy_makes_again_is_looked_for_where_it_went() {
    let store = new_store();
    let one = stacked(&store);
    let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
    let object = ObjectId { volume: lower, index: 0 };
    let (other, raw) = (open(&store, "three"), store.session("raw"));
    let two = interrupted(
        &store,
        "two",
        move |sent| matches!(sent, Sent::Read(read) if read.object == object.name()),
        move || {
            Snapshots::of(&other).delete("v@a").unwrap();
            delete_all(&other);
            change(&raw, object.name(), vec![Change::SetOmap(vec![(b"U".to_vec(), vec![1; 8])])]);
        },
    );
    let volume = Volume::attach(&two, "v", Mode::Own).unwrap();
    assert_eq!(bytes_of(&volume).unwrap(), [1, 2, 3, 0]);
}

#[test]
fn a_lost_object_of_a_snapshot_is_told_as_damage_by_writes_deletions_and_scrubs() {
    let store = new_store();
    let one = stacked(&store);
    let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
    change(&store, ObjectId { volume: lower, index: 0 }.name(), vec![Change::Remove]);
    let volume = Volume::attach(&one, "v", Mode::Own).unwrap();
    let written = volume.write_at(0, &[5; 512]).unwrap_err();
    assert_eq!(written.kind(), Kind::Corrupt, "{written}");
    volume.detach().unwrap();
    let mut scrub = Scrub::new(one.clone(), false).unwrap();
    while scrub.step().unwrap() {}
    let damage = &scrub.report().damage;
    assert!(matches!(&damage[..], [told] if told.contains("missing")), "{damage:?}");
    Snapshots::of(&one).delete("v@a").unwrap();
    assert_eq!(delete_what_goes(&one), Some(Kind::Corrupt));
}

#[test]
fn a_volume_whose_snapshot_may_still_come_is_not_written_by_its_session() {
    let store = new_store();
    stacked(&store);
    let lost = AtomicBool::new(false);
    // From the operation on that gives the name to another number, the names do not answer.
    let one = watched(&store, "two", move |sent| match sent {
        Sent::Write(op) if op.object.name.starts_with("n.") => {
            let all = sets(op, b"nv") || lost.load(Relaxed);
            lost.store(all, Relaxed);
            all.then_some(Refusal::Unknown)
        }
        _ => None,
    });
    assert_eq!(Snapshots::of(&one).take("v@c").unwrap_err().kind(), Kind::Io);
    assert_eq!(Volume::attach(&one, "v", Mode::Own).err().unwrap().kind(), Kind::Busy);
    // Another one shuts it out first.
    write(&open(&store, "three"), "v", 0, 4);
}

#[test]
fn a_server_lives_on_when_a_client_reads_a_snapshot_that_was_deleted() {
    let store = new_store();
    stacked(&store);
    let server = open(&store, "server");
    let Found::Mine(gateway) = Standby::new(server.clone()).look().unwrap() else {
        panic!("it does not serve");
    };
    gateway.settle();
    let exports = ClusterExports::new(server, Mode::Own);
    let (volume, snapshot) = (exports.open("v").unwrap(), exports.open("v@b").unwrap());
    // The server shut the session out that wrote before.
    let other = open(&store, "other");
    Snapshots::of(&other).delete("v@b").unwrap();
    delete_all(&other);
    let mut blocks = Block::zeroed_vec(1);
    let mut read = [BlockRead { first: Lba(OBJECT / 4096), into: &mut blocks, result: Ok(()) }];
    snapshot.read(&mut read);
    let [BlockRead { result, .. }] = read;
    assert_eq!(result.unwrap_err().kind(), Kind::NotFound);
    gateway.beat().unwrap();
    let ticket = volume.write(0, &[5; 4096]).unwrap();
    volume.wait(ticket).unwrap();
}

#[test]
fn a_clone_records_that_parents_have_stamps() {
    let store = new_store();
    stacked(&store);
    // As a version left it whose parents had none.
    let catalogue = ObjectName::metadata("catalogue");
    let format = Format::decode(&value_of(&store, &catalogue, b"format").unwrap()).unwrap();
    assert!(format.layers && format.stamped_parents);
    let older = Format { stamped_parents: false, ..format }.encode();
    change(&store, catalogue, vec![Change::SetOmap(vec![(b"format".to_vec(), older)])]);
    Snapshots::of(&open(&store, "two")).clone_volume("v@a", "c").unwrap();
    assert!(open(&store, "three").format().stamped_parents);
}

#[test]
fn an_object_that_a_volume_lost_is_not_replaced_by_that_of_a_snapshot_that_goes() {
    let store = new_store();
    let one = stacked(&store);
    write(&one, "v", 0, 5);
    let lost = ObjectId { volume: one.find("v").unwrap().unwrap().id, index: 0 };
    change(&store, lost.name(), vec![Change::Remove]);
    Snapshots::of(&one).delete("v@b").unwrap();
    Snapshots::of(&one).delete("v@a").unwrap();
    delete_all(&one);
    let volume = Volume::attach(&one, "v", Mode::Read).unwrap();
    assert_eq!(bytes_of(&volume).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_volume_shrinks_while_a_snapshot_waits_for_the_one_below() {
    let store = new_store();
    let one = stacked(&store);
    let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
    // The lower one can't go.
    change(&store, ObjectId { volume: lower, index: 0 }.name(), vec![Change::Remove]);
    Snapshots::of(&one).delete("v@a").unwrap();
    assert_eq!(delete_what_goes(&one), Some(Kind::Corrupt));
    Snapshots::of(&one).delete("v@b").unwrap();
    assert_eq!(delete_what_goes(&one), Some(Kind::Corrupt));
    one.resize_volume("v", 3 * OBJECT).unwrap();
}

#[test]
fn chunks_of_snapshots_that_can_not_be_given_back_are_told_once() {
    let store = new_store();
    let one = stacked(&store);
    let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
    let key = onefold_cluster::format::key::numbered(b'C', 0);
    change(&store, header_of(lower), vec![Change::SetOmap(vec![(key, vec![1; 8])])]);
    let object = ObjectId { volume: lower, index: 0 }.name();
    change(&store, object, vec![Change::SetOmap(vec![(b"U".to_vec(), vec![1])])]);
    assert_eq!(delete_what_goes(&one), Some(Kind::Corrupt));
    assert_eq!(delete_what_goes(&one), None);
    // Other deletions go on.
    let two = open(&store, "two");
    two.create_volume("w", BYTES).unwrap();
    write(&two, "w", 0, 1);
    let gone = two.find("w").unwrap().unwrap().id;
    two.delete("w", What::Volume).unwrap();
    assert_eq!(delete_what_goes(&two), Some(Kind::Corrupt));
    assert!(objects(&store).iter().all(|object| object.volume != gone));
    assert_eq!(delete_what_goes(&two), None);
}

#[test]
fn what_was_cut_off_stays_off_when_two_sessions_delete_one_snapshot() {
    let store = new_store();
    let one = open(&store, "one");
    one.create_volume("v", BYTES).unwrap();
    write(&one, "v", 0, 1);
    write(&one, "v", 1, 2);
    Snapshots::of(&one).take("v@a").unwrap();
    let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
    let (id, header) = (one.find("v").unwrap().unwrap().id, header(&one, "v"));
    Snapshots::of(&one).delete("v@a").unwrap();
    let cut = ObjectId { volume: id, index: 1 };
    // It hands all down, and can't go on then.
    let other = watched(&store, "other", move |sent| match sent {
        Sent::Write(op) if op.object == ObjectId { volume: lower, index: 0 }.name() => {
            Some(Refusal::Full)
        }
        _ => None,
    });
    let (raw, owner, turn) = (store.session("raw"), one.clone(), AtomicU64::new(0));
    let slow = watched(&store, "slow", move |sent| {
        let Sent::Write(op) = sent else { return None };
        let begins = op.object == cut.name() && sets(op, b"U");
        let group = onefold_cluster::format::key::numbered(b'B', 0);
        let ends = op.object == header && sets(op, &group) && turn.load(Relaxed) == 1;
        if begins && turn.fetch_max(1, Relaxed) == 0 {
            raw.set_time(raw.time() + Duration::from_secs(3600));
            assert_eq!(delete_what_goes(&other), Some(Kind::NoSpace));
            owner.resize_volume("v", OBJECT).unwrap();
        } else if ends {
            turn.store(2, Relaxed);
            owner.resize_volume("v", BYTES).unwrap();
        }
        None
    });
    let _ = delete_what_goes(&slow);
    assert!(!objects(&store).contains(&cut));
    one.resize_volume("v", BYTES).unwrap();
    assert_eq!(content(&one, "v"), [1, 0, 0, 0]);
}

#[test]
fn a_scrub_that_fails_in_the_snapshots_looks_at_them_again() {
    for n in 0.. {
        let store = new_store();
        let one = stacked(&store);
        let lower = Snapshots::of(&one).attach("v@a").unwrap().id();
        change(&store, ObjectId { volume: lower, index: 0 }.name(), vec![Change::Remove]);
        let count = AtomicU64::new(0);
        let failing = watched(&store, "failing", move |sent| match sent {
            Sent::Read(read)
                if read.object == header_of(lower) && count.fetch_add(1, Relaxed) == n =>
            {
                Some(Refusal::Failed(Error::new(Kind::Io, "a read failed")))
            }
            _ => None,
        });
        let (mut scrub, mut failed) = (Scrub::new(failing, false).unwrap(), false);
        loop {
            match scrub.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => failed = true,
            }
        }
        let damage = &scrub.report().damage;
        assert!(matches!(&damage[..], [told] if told.contains("missing")), "{n}: {damage:?}");
        if !failed {
            assert!(n > 0);
            break;
        }
    }
}

#[test]
fn a_lost_header_of_a_snapshot_is_damage() {
    let store = new_store();
    let one = stacked(&store);
    for name in ["v@b", "v@a"] {
        let lower = Snapshots::of(&one).attach(name).unwrap().id();
        change(&store, header_of(lower), vec![Change::Remove]);
        for mode in [Mode::Read, Mode::Own] {
            let refused = Volume::attach(&one, "v", mode).err().unwrap();
            assert_eq!(refused.kind(), Kind::Corrupt, "{refused}");
        }
    }
}

/// A header that no server opens, and one that each opens.
fn damage(store: &MemoryObjects, header: &ObjectName, there: bool) {
    let key = onefold_cluster::format::key::numbered(b'B', 9);
    let pairs = Change::SetOmap(vec![(key.clone(), vec![1])]);
    let changes = if there { pairs } else { Change::DropOmap(vec![key]) };
    change(store, header.clone(), vec![changes]);
}

/// A value of the header.
fn value_of(store: &MemoryObjects, header: &ObjectName, key: &[u8]) -> Option<Vec<u8>> {
    let part = onefold_core::object::ReadPart::Keys(vec![key.to_vec()]);
    let answer = store.read(&[Read { object: header.clone(), parts: vec![part] }]).remove(0);
    answer.unwrap().pairs(0).0.first().map(|(_, value)| value.clone())
}

/// A session which finds the header of a volume damaged when it attaches that volume. The first copy that it sends of an
/// operation which `when` is true for is late.
fn late_when_attached(
    store: &MemoryObjects,
    when: impl Fn(&Write) -> bool + Send + Sync + 'static,
) -> (Arc<Session>, ObjectName, Write) {
    let one = open(store, "one");
    one.create_volume("v", BYTES).unwrap();
    write(&one, "v", 0, 1);
    let volume = header(&one, "v");
    let late = Arc::new(Mutex::new(None));
    let (seen, concerned) = (late.clone(), volume.clone());
    let two = watched(store, "two", move |sent| match sent {
        Sent::Write(op) if op.object == concerned && when(op) => {
            let mut seen = seen.lock().unwrap();
            let first = seen.is_none();
            seen.get_or_insert_with(|| op.clone());
            first.then_some(Refusal::Unknown)
        }
        _ => None,
    });
    damage(store, &volume, true);
    assert_eq!(Volume::attach(&two, "v", Mode::Own).err().unwrap().kind(), Kind::Corrupt);
    damage(store, &volume, false);
    assert_eq!(value_of(store, &volume, b"o"), Some(b"=one".to_vec()));
    let late = late.lock().unwrap().take().unwrap();
    (two, volume, late)
}

fn sets_owner(op: &Write, owner: &[u8]) -> bool {
    let pair = (b"o".to_vec(), owner.to_vec());
    op.changes
        .iter()
        .any(|change| matches!(change, Change::SetOmap(pairs) if pairs.contains(&pair)))
}

#[test]
fn a_late_copy_of_what_gave_a_volume_back_leaves_its_owner_the_owner() {
    let store = new_store();
    let (two, header, late) = late_when_attached(&store, |op| sets_owner(op, b"=one"));
    let volume = Volume::attach(&two, "v", Mode::Own).unwrap();
    drop(store.write(&[late]));
    assert_eq!(value_of(&store, &header, b"o"), Some(b"!two".to_vec()));
    volume.detach().unwrap();
    assert_eq!(value_of(&store, &header, b"o"), Some(b"=two".to_vec()));
}

#[test]
fn a_late_copy_of_an_attachment_that_was_given_back_makes_nobody_the_owner() {
    let store = new_store();
    let (_, header, late) = late_when_attached(&store, |op| sets_owner(op, b"!two"));
    drop(store.write(&[late]));
    assert_eq!(value_of(&store, &header, b"o"), Some(b"=one".to_vec()));
}

#[test]
fn who_gives_a_volume_back_names_the_owner_that_came_between() {
    let store = new_store();
    let one = open(&store, "one");
    one.create_volume("v", BYTES).unwrap();
    write(&one, "v", 0, 1);
    let (volume, other, raw) = (header(&one, "v"), open(&store, "three"), store.session("raw"));
    let concerned = volume.clone();
    let two = interrupted(
        &store,
        "two",
        move |sent| matches!(sent, Sent::Write(op) if sets_owner(op, b"!two")),
        move || {
            raw.set_time(raw.time() + Duration::from_secs(3600));
            write(&other, "v", 0, 2);
            damage(&raw, &concerned, true);
        },
    );
    assert_eq!(Volume::attach(&two, "v", Mode::Own).err().unwrap().kind(), Kind::Corrupt);
    assert_eq!(value_of(&store, &volume, b"o"), Some(b"=three".to_vec()));
}

/// A number as keys have it.
fn sevens(number: u64) -> Vec<u8> {
    onefold_cluster::format::key::numbered(b'k', number).split_off(1)
}
