//! Copies of volumes: exports and imports, snapshots that are sent and received, and streams of strangers.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod support;

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use onefold_cluster::{
    ClusterExports, Copies, Cut, Format, Mode, Scrub, Session, Settings, Snapshots, Volume,
    Watermarks, What, Worker, create,
};
use onefold_core::{
    Block, Error, Exports, Kind, Result,
    object::{Change, ObjectName, ObjectStore, Pool, PoolKind, Read, ReadPart, Refusal, Write},
};
use onefold_stream::{Begin, Content, Next, SendWhat, StreamReader, StreamWriter, Token};
use onefold_testbed::MemoryObjects;
use support::{Fault, Faulty};

const OBJECT: u64 = 64 << 10;
const BYTES: u64 = 8 * OBJECT;
const BLOCK: u64 = 4096;

fn new_store(id: u8) -> MemoryObjects {
    cut_store(id, Cut::Static)
}

fn cut_store(id: u8, volume_cut: Cut) -> MemoryObjects {
    let store = MemoryObjects::new(PoolKind::Replicated);
    let format = Format::new([id; 16], [2; 32], PoolKind::Replicated);
    let format = match volume_cut {
        Cut::Static => {
            Format { chunk_bytes: 16 << 10, object_bytes: OBJECT as u32, volume_cut, ..format }
        }
        Cut::Content => Format { object_bytes: OBJECT as u32, volume_cut, ..format },
    };
    create(&store, &format).unwrap();
    store
}

fn open(store: &MemoryObjects, name: &str) -> Arc<Session> {
    let settings = Settings { cold: Duration::ZERO, cursor_blocks: 4, ..Settings::default() };
    Arc::new(Session::open(Arc::new(store.session(name)), settings).unwrap())
}

fn write(session: &Arc<Session>, name: &str, at: u64, blocks: u64, byte: u8) {
    let volume = Volume::attach(session, name, Mode::Own).unwrap();
    for n in 0..blocks {
        let mut block = vec![byte; BLOCK as usize];
        block[..8].copy_from_slice(&(at / BLOCK + n).to_le_bytes());
        volume.write_at(at + n * BLOCK, &block).unwrap();
    }
    volume.detach().unwrap();
}

fn trim(session: &Arc<Session>, name: &str, at: u64, bytes: u64) {
    let volume = Volume::attach(session, name, Mode::Own).unwrap();
    volume.discard(at, bytes).unwrap();
    while volume.discard_step().unwrap() {}
    volume.detach().unwrap();
}

fn content(session: &Arc<Session>, name: &str) -> Vec<u8> {
    let volume = match name.contains('@') {
        true => Snapshots::of(session).attach(name).unwrap(),
        false => Volume::attach(session, name, Mode::Read).unwrap(),
    };
    let mut bytes = vec![0xaa; volume.bytes() as usize];
    volume.read_at(0, &mut bytes).unwrap();
    bytes
}

fn deduplicate(session: &Arc<Session>) {
    let mut worker = Worker::new(session.clone(), Watermarks::NONE);
    while session.backlog().unwrap() > 0 {
        worker.step().unwrap();
    }
}

fn delete_all(session: &Session) {
    while session.delete_step().unwrap() {}
}

fn what(snapshot: &str, from: Option<&str>, resume: Option<Token>) -> SendWhat {
    SendWhat {
        snapshot: snapshot.to_owned(),
        from: from.map(str::to_owned),
        resume,
        ..SendWhat::default()
    }
}

fn sent(session: &Arc<Session>, snapshot: &str, from: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    Copies::of(session).send(&what(snapshot, from, None), &mut stream).unwrap();
    stream
}

fn receive(session: &Arc<Session>, into: &str, stream: &[u8]) -> Result<String> {
    let received = Copies::of(session).receive(Some(into), false, stream, &mut |_| Ok(()))?;
    delete_all(session);
    Ok(received.name)
}

/// The places of all frames of a stream.
fn places(stream: &[u8]) -> Vec<(u64, u64, &'static str)> {
    let mut reader = StreamReader::begin(stream).unwrap();
    let mut all = Vec::new();
    loop {
        match reader.next_frame().unwrap() {
            Next::Frame(frame) => all.push((
                frame.first,
                frame.blocks,
                match frame.content {
                    Content::Hole => "hole",
                    Content::Zeroes => "zeroes",
                    Content::Data(_) => "data",
                    Content::Repeat(_) => "repeat",
                    Content::Held(_) => "held",
                    Content::Lost => "lost",
                },
            )),
            Next::Offer(_) => unreachable!(),
            Next::End(_) => return all,
        }
    }
}

/// Objects of volumes, their headers, and chunks.
fn left(store: &MemoryObjects) -> Vec<String> {
    let of_pool = |pool| store.list(pool, None, 10_000).unwrap().names;
    let all = of_pool(Pool::Metadata).into_iter().chain(of_pool(Pool::Chunks));
    all.filter(|name| ["o.", "v.", "c."].iter().any(|kind| name.starts_with(kind))).collect()
}

/// A scrub finds nothing.
fn is_clean(session: &Arc<Session>) {
    deduplicate(session);
    let mut scrub = Scrub::new(session.clone(), true).unwrap();
    while scrub.step().unwrap() {}
    assert!(scrub.report().damage.is_empty(), "{:?}", scrub.report());
    assert_eq!((scrub.report().added, scrub.report().restored), (0, 0), "{:?}", scrub.report());
}

#[test]
fn a_volume_is_exported_and_imported() {
    for cut in [Cut::Static, Cut::Content] {
        let (store, other) = (cut_store(1, cut), cut_store(9, cut));
        let (one, two) = (open(&store, "one"), open(&other, "two"));
        one.create_volume("v", BYTES).unwrap();
        write(&one, "v", OBJECT, 20, 1);
        write(&one, "v", 5 * OBJECT, 3, 1);
        deduplicate(&one);
        write(&one, "v", OBJECT + 4 * BLOCK, 2, 2);
        trim(&one, "v", OBJECT, 2 * BLOCK);
        let copies = Copies::of(&one);
        let exporting = copies.exporting("v").unwrap();
        let mut stream = Vec::new();
        let writer = exporting.send_to(exporting.writer(&mut stream).unwrap()).unwrap();
        let totals = writer.end(exporting.begin().blocks).unwrap();
        assert!(totals.data >= 21 && totals.data + totals.zeroes <= 32, "{totals:?}");
        assert_eq!(totals.repeats, 0);
        let heard = Cell::new(0);
        let imported = Copies::of(&two).import("w", &stream[..], &mut |bytes| {
            // Nobody sees it before it is whole.
            assert_eq!(two.names().unwrap(), []);
            heard.set(bytes);
            Ok(())
        });
        assert_eq!(imported.unwrap(), BYTES);
        assert!(heard.get() > 5 * OBJECT);
        assert_eq!(content(&two, "w"), content(&one, "v"));
        is_clean(&two);
        // It is a volume as any other.
        write(&two, "w", 0, 1, 5);
        let again = Copies::of(&two).import("w", &stream[..], &mut |_| Ok(()));
        assert_eq!(again.unwrap_err().kind(), Kind::Exists);
    }
}

#[test]
fn an_import_that_ends_early_leaves_nothing() {
    let store = new_store(1);
    let one = open(&store, "one");
    one.create_volume("v", BYTES).unwrap();
    write(&one, "v", 0, 40, 1);
    let copies = Copies::of(&one);
    let exporting = copies.exporting("v").unwrap();
    let mut stream = Vec::new();
    exporting.send_to(exporting.writer(&mut stream).unwrap()).unwrap().end(BYTES / BLOCK).unwrap();
    for cut in [0, 20, 100, stream.len() / 2, stream.len() - 1] {
        assert!(copies.import("w", &stream[..cut], &mut |_| Ok(())).is_err(), "{cut}");
    }
    let mut damaged = stream.clone();
    let at = damaged.len() / 2;
    damaged[at] ^= 1;
    assert_eq!(
        copies.import("w", &damaged[..], &mut |_| Ok(())).unwrap_err().kind(),
        Kind::Corrupt
    );
    let given_up = Error::new(Kind::Io, "nobody waits");
    assert!(copies.import("w", &stream[..], &mut |_| Err(given_up.clone())).is_err());
    // A session that was killed is shut out by whoever deletes what it left.
    let killed = open(&store, "killed");
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = Copies::of(&killed).import("w", &stream[..], &mut |_| panic!("killed"));
    }));
    assert!(died.is_err());
    store.set_time(store.time() + Duration::from_secs(120));
    delete_all(&one);
    assert_eq!(one.names().unwrap().len(), 1);
    is_clean(&one);
    one.delete("v", What::Volume).unwrap();
    delete_all(&one);
    assert_eq!(left(&store), Vec::<String>::new());
}

/// A stream that is silent in its middle for longer than all leases last, while another session looks for what it
/// may take over.
struct Silent<'s> {
    stream: &'s [u8],
    before: usize,
    store: &'s MemoryObjects,
    meanwhile: Option<&'s dyn Fn()>,
}

impl std::io::Read for Silent<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.before == 0
            && let Some(meanwhile) = self.meanwhile.take()
        {
            for _ in 0..12 {
                self.store.set_time(self.store.time() + LEASE / 8);
                // The thread that keeps the locks goes by the clock of the system, four times a lease.
                std::thread::sleep(LEASE / 4);
            }
            meanwhile();
        }
        let most = if self.before == 0 { into.len() } else { into.len().min(self.before) };
        let n = self.stream.read(&mut into[..most])?;
        self.before = self.before.saturating_sub(n);
        Ok(n)
    }
}

const LEASE: Duration = Duration::from_millis(300);

#[test]
fn rule_12_who_is_silent_in_the_middle_of_a_stream_has_no_server_shut_out() {
    let (one, _) = two_snapshots(Cut::Static);
    let stream = sent(&one, "v@a", None);
    let exporting = Copies::of(&one).exporting("v").unwrap();
    let mut image = Vec::new();
    exporting.send_to(exporting.writer(&mut image).unwrap()).unwrap().end(BYTES / BLOCK).unwrap();
    let store = new_store(7);
    let leased = |name: &str| {
        let settings = Settings { lease: LEASE, volume_lease: LEASE, ..Settings::default() };
        Arc::new(Session::open(Arc::new(store.session(name)), settings).unwrap())
    };
    let (server, other) = (leased("server"), leased("other"));
    let looks = || delete_all(&other);
    let takes = || {
        delete_all(&other);
        assert!(Copies::of(&other).abort_receive("w").is_err());
        assert!(
            Copies::of(&other).receive(Some("w"), false, &stream[..], &mut |_| Ok(())).is_err()
        );
        delete_all(&other);
    };
    let silent = |stream, meanwhile| Silent {
        stream,
        before: 3000,
        store: &store,
        meanwhile: Some(meanwhile),
    };
    let received =
        Copies::of(&server).receive(Some("w"), false, silent(&stream[..], &takes), &mut |_| Ok(()));
    assert_eq!(received.unwrap().name, "w@a");
    Copies::of(&server).import("x", silent(&image[..], &looks), &mut |_| Ok(())).unwrap();
    assert_eq!(content(&server, "w@a"), content(&one, "v@a"));
    assert_eq!(content(&server, "x"), content(&one, "v"));
}

/// Two stores, of which the first has a volume with two snapshots, some of it deduplicated.
fn two_snapshots(cut: Cut) -> (Arc<Session>, Arc<Session>) {
    let (one, two) = (open(&cut_store(1, cut), "one"), open(&cut_store(9, cut), "two"));
    one.create_volume("v", BYTES).unwrap();
    write(&one, "v", 0, 40, 1);
    write(&one, "v", 5 * OBJECT, 16, 1);
    deduplicate(&one);
    write(&one, "v", 3 * BLOCK, 1, 2);
    Snapshots::of(&one).take("v@a").unwrap();
    write(&one, "v", 5 * OBJECT + BLOCK, 2, 3);
    write(&one, "v", 7 * OBJECT, 1, 3);
    trim(&one, "v", 4 * BLOCK, 4 * BLOCK);
    Snapshots::of(&one).take("v@b").unwrap();
    write(&one, "v", 0, 1, 9);
    (one, two)
}

#[test]
fn a_snapshot_is_sent_and_received_whole_and_by_its_changes() {
    for cut in [Cut::Static, Cut::Content] {
        let (one, two) = two_snapshots(cut);
        let name = receive(&two, "w", &sent(&one, "v@a", None)).unwrap();
        assert_eq!(name, "w@a");
        assert_eq!(content(&two, "w@a"), content(&one, "v@a"));
        assert_eq!(content(&two, "w"), content(&one, "v@a"));
        let (own, theirs) = (Copies::of(&one).guid("v@a"), Copies::of(&two).guid("w@a"));
        assert_eq!(own.unwrap(), theirs.unwrap());
        let changes = sent(&one, "v@b", Some("v@a"));
        // Only objects that were changed are looked at, and of these what differs.
        let of_object = OBJECT / BLOCK;
        let all = places(&changes);
        let touched = |object: u64| {
            all.iter().any(|(first, blocks, _)| {
                *first < (object + 1) * of_object && first + blocks > object * of_object
            })
        };
        assert_eq!((0..8).filter(|object| touched(*object)).collect::<Vec<_>>(), [0, 5, 7]);
        assert!(all.iter().any(|(_, _, kind)| *kind == "hole"), "{all:?}");
        assert_eq!(receive(&two, "w", &changes).unwrap(), "w@b");
        assert_eq!(content(&two, "w@b"), content(&one, "v@b"));
        assert_eq!(content(&two, "w"), content(&one, "v@b"));
        assert_eq!(content(&two, "w@a"), content(&one, "v@a"));
        assert!(Copies::of(&two).receives().unwrap().is_empty());
        is_clean(&two);
        // It goes on from there to a third store, and the numbers are those of the first one.
        let three = open(&new_store(7), "three");
        receive(&three, "x", &sent(&two, "w@a", None)).unwrap();
        receive(&three, "x", &sent(&one, "v@b", Some("v@a"))).unwrap();
        assert_eq!(content(&three, "x"), content(&one, "v@b"));
        // All of it can be deleted.
        for name in ["w@a", "w@b"] {
            Snapshots::of(&two).delete(name).unwrap();
            delete_all(&two);
        }
        assert_eq!(content(&two, "w"), content(&one, "v@b"));
        two.delete("w", What::Volume).unwrap();
        delete_all(&two);
        is_clean(&two);
    }
}

#[test]
fn equal_objects_are_not_read() {
    let store = new_store(1);
    let one = open(&store, "one");
    one.create_volume("v", BYTES).unwrap();
    write(&one, "v", 0, (BYTES / BLOCK) - 1, 1);
    deduplicate(&one);
    Snapshots::of(&one).take("v@a").unwrap();
    write(&one, "v", 2 * OBJECT, 1, 2);
    Snapshots::of(&one).take("v@b").unwrap();
    let all = places(&sent(&one, "v@b", Some("v@a")));
    assert_eq!(all, [(2 * OBJECT / BLOCK, 1, "data")]);
    // Nor when the changed object is deduplicated in one of them.
    deduplicate(&one);
    let all = places(&sent(&one, "v@b", Some("v@a")));
    assert_eq!(all.iter().map(|(_, blocks, _)| blocks).sum::<u64>(), 4, "{all:?}");
    assert!(places(&sent(&one, "v@a", Some("v@a"))).is_empty());
}

#[test]
fn a_receive_that_was_cut_off_goes_on() {
    let (one, two) = two_snapshots(Cut::Static);
    let stream = sent(&one, "v@a", None);
    let copies = Copies::of(&two);
    assert!(receive(&two, "w", &stream[..stream.len() - 60]).is_err());
    assert!(two.find("w").unwrap().is_none() && Snapshots::of(&two).all().unwrap().is_empty());
    let state = copies.receives().unwrap().remove(0);
    assert_eq!((state.name.as_str(), state.bytes, state.at_work), ("w@a", BYTES, false));
    assert!(state.received_bytes > 4 * OBJECT);
    // Another session goes on; the one before is not shut out.
    let store = open(&new_store(8), "unused");
    drop(store);
    let mut rest = Vec::new();
    Copies::of(&one).send(&what("v@a", None, Some(state.token)), &mut rest).unwrap();
    assert!(places(&rest).len() < places(&stream).len());
    let wrong = what("v@b", None, Some(state.token));
    assert_eq!(
        Copies::of(&one).send(&wrong, &mut Vec::new()).unwrap_err().kind(),
        Kind::InvalidInput
    );
    assert_eq!(receive(&two, "w", &rest).unwrap(), "w@a");
    assert_eq!(content(&two, "w"), content(&one, "v@a"));
    // The rest alone is nothing.
    assert_eq!(receive(&two, "x", &rest).unwrap_err().kind(), Kind::InvalidInput);
    // What was cut off is given up for another snapshot, and when somebody says so.
    let changes = sent(&one, "v@b", Some("v@a"));
    assert!(receive(&two, "w", &changes[..changes.len() - 60]).is_err());
    assert_eq!(copies.receives().unwrap().len(), 1);
    let promoted = copies.promote("w").unwrap_err();
    assert_eq!(promoted.kind(), Kind::InvalidInput);
    assert_eq!(receive(&two, "w", &changes).unwrap(), "w@b");
    assert!(receive(&two, "y", &stream[..stream.len() / 2]).is_err());
    assert!(copies.expire_receives(1).unwrap().is_empty());
    copies.abort_receive("y").unwrap();
    assert_eq!(copies.abort_receive("y").unwrap_err().kind(), Kind::NotFound);
    assert!(receive(&two, "y", &stream[..stream.len() / 2]).is_err());
    assert_eq!(copies.expire_receives(0).unwrap(), ["y@a"]);
    delete_all(&two);
    is_clean(&two);
}

#[test]
fn a_killed_receive_goes_on_by_another_session() {
    let (one, _) = two_snapshots(Cut::Static);
    let store = new_store(9);
    let two = open(&store, "two");
    let stream = sent(&one, "v@a", None);
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let killed = open(&store, "killed");
        let look = &mut |bytes| if bytes > 4 * OBJECT { panic!("killed") } else { Ok(()) };
        let _ = Copies::of(&killed).receive(Some("w"), false, &stream[..], look);
    }));
    assert!(died.is_err());
    let state = Copies::of(&two).receives().unwrap().remove(0);
    assert!(state.at_work && state.received_bytes > 0);
    assert_eq!(receive(&two, "w", &stream).unwrap_err().kind(), Kind::Busy);
    assert_eq!(Copies::of(&two).abort_receive("w").unwrap_err().kind(), Kind::Busy);
    // No worker takes it for abandoned.
    store.set_time(store.time() + Duration::from_secs(120));
    delete_all(&two);
    let mut rest = Vec::new();
    Copies::of(&one).send(&what("v@a", None, Some(state.token)), &mut rest).unwrap();
    assert_eq!(receive(&two, "w", &rest).unwrap(), "w@a");
    assert_eq!(content(&two, "w"), content(&one, "v@a"));
    is_clean(&two);
}

#[test]
fn a_replica_is_only_read_until_it_is_promoted() {
    let (one, two) = two_snapshots(Cut::Static);
    receive(&two, "w", &sent(&one, "v@a", None)).unwrap();
    for mode in [Mode::Own, Mode::TakeOver] {
        assert_eq!(Volume::attach(&two, "w", mode).err().unwrap().kind(), Kind::Denied);
    }
    assert_eq!(two.resize_volume("w", 2 * BYTES).unwrap_err().kind(), Kind::Denied);
    assert_eq!(Snapshots::of(&two).take("w@own").unwrap_err().kind(), Kind::Denied);
    // Clients read it, and what it held when they asked for it.
    let exports = ClusterExports::new(two.clone(), Mode::Own);
    let seen = exports.open("w").unwrap();
    assert!(seen.is_read_only());
    let changes = sent(&one, "v@b", Some("v@a"));
    let copies = Copies::of(&two);
    let ending =
        &mut |name: &str, step: &mut dyn FnMut() -> Result<()>| exports.while_exchanged(name, step);
    copies.receive_with((Some("w"), false), &changes[..], &mut |_| Ok(()), ending).unwrap();
    let newer = exports.open("w").unwrap();
    let mut block = Block::zeroed_vec(1);
    let mut reads = [onefold_core::BlockRead {
        first: onefold_core::Lba(7 * OBJECT / BLOCK),
        into: &mut block,
        result: Ok(()),
    }];
    newer.read(&mut reads);
    assert!(reads[0].result.is_ok());
    assert_eq!(block[0].0[100], 3);
    drop((seen, newer));
    exports.close().unwrap();
    copies.promote("w").unwrap();
    assert_eq!(copies.promote("w").unwrap_err().kind(), Kind::InvalidInput);
    write(&two, "w", 0, 1, 7);
    // It was changed: the next one needs a rollback.
    Snapshots::of(&one).take("v@c").unwrap();
    let changes = sent(&one, "v@c", Some("v@b"));
    let refused = receive(&two, "w", &changes).unwrap_err();
    assert!(refused.kind() == Kind::InvalidInput && refused.to_string().contains("--rollback"));
    copies.receive(Some("w"), true, &changes[..], &mut |_| Ok(())).unwrap();
    assert_eq!(content(&two, "w"), content(&one, "v@c"));
    delete_all(&two);
    is_clean(&two);
}

#[test]
fn a_snapshot_of_another_size_is_received() {
    let (one, two) = two_snapshots(Cut::Static);
    receive(&two, "w", &sent(&one, "v@b", None)).unwrap();
    one.resize_volume("v", 5 * OBJECT + 2 * BLOCK).unwrap();
    delete_all(&one);
    Snapshots::of(&one).take("v@small").unwrap();
    receive(&two, "w", &sent(&one, "v@small", Some("v@b"))).unwrap();
    assert_eq!(content(&two, "w"), content(&one, "v@small"));
    one.resize_volume("v", 9 * OBJECT).unwrap();
    write(&one, "v", 8 * OBJECT, 1, 4);
    Snapshots::of(&one).take("v@large").unwrap();
    receive(&two, "w", &sent(&one, "v@large", Some("v@small"))).unwrap();
    assert_eq!(content(&two, "w"), content(&one, "v@large"));
    assert_eq!(content(&two, "w@b"), content(&one, "v@b"));
    is_clean(&two);
}

#[test]
fn a_stream_is_applied_to_its_base_alone() {
    let (one, two) = two_snapshots(Cut::Static);
    let changes = sent(&one, "v@b", Some("v@a"));
    assert_eq!(receive(&two, "w", &changes).unwrap_err().kind(), Kind::NotFound);
    receive(&two, "w", &sent(&one, "v@b", None)).unwrap();
    assert_eq!(receive(&two, "w", &changes).unwrap_err().kind(), Kind::Exists);
    write(&one, "v", 0, 1, 8);
    Snapshots::of(&one).take("v@c").unwrap();
    assert_eq!(
        receive(&two, "w", &sent(&one, "v@c", Some("v@a"))).unwrap_err().kind(),
        Kind::NotFound
    );
    assert_eq!(receive(&two, "w", &sent(&one, "v@c", None)).unwrap_err().kind(), Kind::Exists);
    two.create_volume("other", BYTES).unwrap();
    assert_eq!(receive(&two, "other", &sent(&one, "v@c", None)).unwrap_err().kind(), Kind::Exists);
    receive(&two, "w", &sent(&one, "v@c", Some("v@b"))).unwrap();
    assert_eq!(content(&two, "w"), content(&one, "v@c"));
}

/// A stream as a stranger makes it.
fn strange(begin: &Begin, frames: impl FnOnce(&mut StreamWriter<&mut Vec<u8>>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::begin(&mut bytes, begin, true).unwrap();
    frames(&mut writer);
    writer.end(begin.blocks).unwrap();
    bytes
}

#[test]
fn rule_30_streams_of_strangers_are_refused_and_leave_nothing() {
    let store = new_store(1);
    let one = open(&store, "one");
    let copies = Copies::of(&one);
    let begin = Begin {
        guid: [5; 16],
        volume: "v".into(),
        snapshot: "s".into(),
        blocks: 64,
        ..Begin::default()
    };
    let mut block = Block::zeroed_vec(1);
    block[0].0.fill(1);
    let good = strange(&begin, |writer| writer.data(3, &block).unwrap());
    let refused = |stream: &[u8], kinds: &[Kind]| {
        let error = copies.receive(None, true, stream, &mut |_| Ok(())).unwrap_err();
        assert!(kinds.contains(&error.kind()), "{error:?}");
    };
    // Sizes that no volume of this engine has, names that are none, and a volume's raw data.
    let bad = [Kind::InvalidInput, Kind::Corrupt];
    for blocks in [(128 << 40) / BLOCK + 1, onefold_stream::VOLUME_BLOCKS_MAX] {
        refused(&strange(&Begin { blocks, ..begin.clone() }, |_| {}), &bad);
        let raw = Begin { blocks, ..Begin::default() };
        assert!(copies.import("v", &strange(&raw, |_| {})[..], &mut |_| Ok(())).is_err());
    }
    let long = "n".repeat(255);
    for (volume, snapshot) in [("", "s"), ("v", ""), ("v", "s@t"), ("v\n", "s"), ("v", "s\x1b[2J")]
    {
        let named = Begin { volume: volume.into(), snapshot: snapshot.into(), ..begin.clone() };
        refused(&strange(&named, |_| {}), &bad);
    }
    refused(&strange(&Begin { guid: [0; 16], ..begin.clone() }, |_| {}), &bad);
    refused(&strange(&Begin { blocks: 0, ..begin.clone() }, |_| {}), &bad);
    // The rest of a stream of which nothing came, and changes of what is not there.
    refused(&strange(&Begin { start: 5, ..begin.clone() }, |_| {}), &bad);
    refused(&strange(&Begin { base: [6; 16], ..begin.clone() }, |_| {}), &[Kind::NotFound]);
    // A sender that skips damage.
    let mut lost = Vec::new();
    let mut writer = StreamWriter::begin_as(&mut lost, true, &begin, true).unwrap();
    writer.lost(1, 2).unwrap();
    writer.end(64).unwrap();
    refused(&lost, &[Kind::Unsupported]);
    // A snapshot is no raw data, and raw data that repeat something are none.
    assert!(copies.import("v", &lost[..], &mut |_| Ok(())).is_err());
    let raw = Begin { blocks: 64, ..Begin::default() };
    let repeats = strange(&raw, |writer| {
        writer.data(3, &block).unwrap();
        writer.repeat(5, 1, 3).unwrap();
    });
    assert!(copies.import("v", &repeats[..], &mut |_| Ok(())).is_err());
    delete_all(&one);
    assert_eq!(left(&store), Vec::<String>::new());
    // Each byte counts.
    for at in (0..good.len()).step_by(7) {
        let mut damaged = good.clone();
        damaged[at] ^= 1;
        assert!(copies.receive(None, false, &damaged[..], &mut |_| Ok(())).is_err(), "{at}");
        assert!(one.find("v").unwrap().is_none());
        let _ = copies.abort_receive("v");
    }
    delete_all(&one);
    assert_eq!(left(&store), Vec::<String>::new());
    let named = Begin { volume: long.clone(), snapshot: long, ..begin };
    let named = strange(&named, |writer| writer.data(3, &block).unwrap());
    copies.receive(None, false, &named[..], &mut |_| Ok(())).unwrap();
    assert_eq!(Snapshots::of(&one).all().unwrap().len(), 1);
}

#[test]
fn older_programs_refuse_a_store_that_received_something() {
    let (one, store) = (two_snapshots(Cut::Static).0, new_store(9));
    let stream = sent(&one, "v@a", None);
    let features = |store: &MemoryObjects| {
        let format = open(store, "look").format().clone();
        u64::from_le_bytes(format.encode()[10..18].try_into().unwrap())
    };
    open(&store, "two").create_volume("v", BYTES).unwrap();
    assert_eq!(features(&store) & 32, 0);
    assert!(receive(&open(&store, "three"), "w", &stream[..stream.len() / 2]).is_err());
    assert_eq!(features(&store) & 32, 32);
}

/// A session whose writes fail as `fault` says.
fn faulty(
    store: &MemoryObjects,
    name: &str,
    fault: impl Fn(&Write) -> Option<Fault> + Send + Sync + 'static,
) -> Arc<Session> {
    let settings = Settings { cursor_blocks: 4, ..Settings::default() };
    let store = Faulty { store: store.session(name), fault };
    Arc::new(Session::open(Arc::new(store), settings).unwrap())
}

#[test]
fn a_receive_goes_on_when_a_full_store_has_room_again() {
    let (one, _) = two_snapshots(Cut::Static);
    let store = new_store(9);
    let left = Arc::new(AtomicI64::new(2));
    let room = left.clone();
    let two = faulty(&store, "two", move |op| {
        let full = op.object.name.starts_with("o.") && room.fetch_sub(1, Relaxed) <= 0;
        full.then_some(Fault { refusal: Refusal::Full, applied: false })
    });
    let error = receive(&two, "w", &sent(&one, "v@a", None)).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(two.find("w").unwrap().is_none());
    let state = Copies::of(&two).receives().unwrap().remove(0);
    left.store(i64::MAX, Relaxed);
    let mut rest = Vec::new();
    Copies::of(&one).send(&what("v@a", None, Some(state.token)), &mut rest).unwrap();
    // The same session may, and so may any other.
    let three = open(&store, "three");
    assert_eq!(receive(&three, "w", &rest).unwrap(), "w@a");
    assert_eq!(content(&three, "w"), content(&one, "v@a"));
    is_clean(&three);
}

/// True for the operation that makes what was received a snapshot.
fn ends(op: &Write) -> bool {
    let sets = |change: &Change| match change {
        Change::SetOmap(pairs) => pairs.iter().any(|(_, value)| value.ends_with(b"@")),
        _ => false,
    };
    op.object.name.starts_with("n.") && op.changes.iter().any(sets)
}

#[test]
fn a_receive_whose_last_answer_is_lost_is_there_or_goes_on() {
    let (one, _) = two_snapshots(Cut::Static);
    let stream = sent(&one, "v@a", None);
    for applied in [true, false] {
        let store = new_store(9);
        let two = faulty(&store, "two", move |op| {
            ends(op).then_some(Fault { refusal: Refusal::Unknown, applied })
        });
        let received = receive(&two, "w", &stream);
        let three = open(&store, "three");
        if applied {
            // It was looked up.
            assert_eq!(received.unwrap(), "w@a");
        } else {
            assert!(received.is_err() && three.find("w").unwrap().is_none());
            let state = Copies::of(&three).receives().unwrap().remove(0);
            store.set_time(store.time() + Duration::from_secs(120));
            let mut rest = Vec::new();
            Copies::of(&one).send(&what("v@a", None, Some(state.token)), &mut rest).unwrap();
            assert_eq!(receive(&three, "w", &rest).unwrap(), "w@a");
        }
        assert_eq!(content(&three, "w"), content(&one, "v@a"));
        store.set_time(store.time() + Duration::from_secs(120));
        delete_all(&three);
        is_clean(&three);
    }
}

/// What a session does while another one is about to change something.
type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A session that lets another one act before it changes a record in the catalogue, once, when it is armed.
fn overtaken(store: &MemoryObjects, name: &str) -> (Arc<Session>, Meanwhile) {
    let meanwhile = Meanwhile::default();
    let acts = meanwhile.clone();
    let session = faulty(store, name, move |op| {
        let act = op.object.name.starts_with("n.").then(|| acts.lock().unwrap().take()).flatten();
        if let Some(act) = act {
            act();
        }
        None
    });
    (session, meanwhile)
}

#[test]
fn rule_12_who_gives_a_receive_up_has_nobody_shut_out_who_takes_it_at_that_moment() {
    let (one, _) = two_snapshots(Cut::Static);
    let store = new_store(9);
    let (other, meanwhile) = overtaken(&store, "other");
    let server = open(&store, "server");
    let stream = sent(&one, "v@a", None);
    assert!(receive(&server, "w", &stream[..stream.len() / 2]).is_err());
    let (takes, whole) = (server.clone(), stream.clone());
    let act = move || {
        // If it gets it, it has it from then on.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let look = &mut |_| panic!("it goes on");
            let taken = Copies::of(&takes).receive(Some("w"), false, &whole[..], look);
            assert_eq!(taken.unwrap_err().kind(), Kind::Busy);
        }));
        // Whoever deletes things waits, too.
        delete_all(&takes);
    };
    *meanwhile.lock().unwrap() = Some(Box::new(act));
    Copies::of(&other).abort_receive("w").unwrap();
    assert!(meanwhile.lock().unwrap().is_none());
    delete_all(&other);
    // None of them is shut out, and the next one finds nothing.
    server.create_volume("x", BYTES).unwrap();
    other.create_volume("y", BYTES).unwrap();
    assert_eq!(Copies::of(&server).receives().unwrap(), []);
    assert_eq!(receive(&server, "w", &stream).unwrap(), "w@a");
    is_clean(&server);
}

/// The headers of volumes that have a key.
fn headers_with(store: &MemoryObjects, key: &[u8]) -> Vec<ObjectName> {
    let all = store.list(Pool::Metadata, None, 10_000).unwrap().names;
    let headers = all.into_iter().filter(|name| name.starts_with("v."));
    let has = |object: &ObjectName| {
        let parts = vec![ReadPart::Keys(vec![key.to_vec()])];
        let read = store.read(&[Read { object: object.clone(), parts }]).remove(0).unwrap();
        !read.pairs(0).0.is_empty()
    };
    headers.map(ObjectName::metadata).filter(has).collect()
}

#[test]
fn rule_09_a_damaged_receive_keeps_no_other_one_from_anything_and_is_given_up() {
    let (one, _) = two_snapshots(Cut::Static);
    let stream = sent(&one, "v@a", None);
    for key in [b"g", b"t"] {
        let store = new_store(9);
        let two = open(&store, "two");
        assert!(receive(&two, "w", &stream[..stream.len() / 2]).is_err());
        let set = Change::SetOmap(vec![(key.to_vec(), b"damaged".to_vec())]);
        let object = headers_with(&store, key).remove(0);
        let op = Write { object, guards: Vec::new(), changes: vec![set] };
        store.session("disk").write(&[op]).remove(0).unwrap();
        let copies = Copies::of(&two);
        let state = copies.receives().unwrap().remove(0);
        assert!(state.damage.is_some() && state.bytes == BYTES && !state.at_work, "{state:?}");
        // Where the header still says for whom it was.
        assert_eq!(state.name == "w@a", key == b"t", "{state:?}");
        assert!(state.name.starts_with(['w', '@']));
        // Another one is cut off, listed, and goes on.
        assert!(receive(&two, "x", &stream[..stream.len() - 60]).is_err());
        let states = copies.receives().unwrap();
        assert_eq!((states.len(), states[0].name.as_str()), (2, "x@a"));
        let mut rest = Vec::new();
        Copies::of(&one).send(&what("v@a", None, Some(states[0].token)), &mut rest).unwrap();
        assert_eq!(receive(&two, "x", &rest).unwrap(), "x@a");
        match key {
            b"t" => copies.abort_receive("w").unwrap(),
            _ => assert_eq!(copies.abort_receive("w").unwrap_err().kind(), Kind::NotFound),
        }
        let gone = copies.expire_receives(1000).unwrap();
        assert_eq!(gone.len(), usize::from(key == b"g"), "{gone:?}");
        assert_eq!(copies.receives().unwrap(), []);
        delete_all(&two);
        assert_eq!(receive(&two, "w", &stream).unwrap(), "w@a");
        is_clean(&two);
    }
}

#[test]
fn what_may_become_a_snapshot_by_an_operation_without_an_answer_is_taken_from_its_session_first() {
    let (one, _) = two_snapshots(Cut::Static);
    let stream = sent(&one, "v@a", None);
    let store = new_store(9);
    let (late, silent) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
    let (keeps, is_silent) = (late.clone(), silent.clone());
    let two = faulty(&store, "two", move |op| {
        if ends(op) {
            *keeps.lock().unwrap() = Some(op.clone());
            is_silent.store(true, Relaxed);
        }
        // Nor can it be given up then.
        let unknown = is_silent.load(Relaxed) && op.object.name.starts_with("n.");
        unknown.then_some(Fault { refusal: Refusal::Unknown, applied: false })
    });
    assert!(receive(&two, "w", &stream).is_err());
    let op = late.lock().unwrap().take().unwrap();
    silent.store(false, Relaxed);
    // The same session neither goes on nor gives it up: nobody shuts it out for that.
    assert_eq!(Copies::of(&two).abort_receive("w").unwrap_err().kind(), Kind::Busy);
    assert_eq!(receive(&two, "w", &stream).unwrap_err().kind(), Kind::Busy);
    store.set_time(store.time() + Duration::from_secs(120));
    let three = open(&store, "three");
    assert!(!Copies::of(&three).receives().unwrap().remove(0).at_work);
    let arrives = Cell::new(Some(op));
    let look = &mut |_| {
        if let Some(op) = arrives.take() {
            let late = store.session("two").write(&[op]).remove(0);
            assert!(matches!(late, Err(Refusal::Fenced)), "{late:?}");
        }
        Ok(())
    };
    Copies::of(&three).receive(Some("w"), false, &stream[..], look).unwrap();
    assert!(arrives.take().is_none());
    assert_eq!(content(&three, "w"), content(&one, "v@a"));
}

#[test]
fn rule_12_the_volume_that_gets_a_snapshot_is_kept_through_the_last_step() {
    let (one, _) = two_snapshots(Cut::Static);
    let store = new_store(9);
    let settings = Settings { lease: LEASE, volume_lease: LEASE, ..Settings::default() };
    let leased = |store: Arc<dyn ObjectStore>| Session::open(store, settings.clone()).map(Arc::new);
    let other = leased(Arc::new(store.session("other"))).unwrap();
    receive(&other, "w", &sent(&one, "v@a", None)).unwrap();
    Copies::of(&other).promote("w").unwrap();
    let third = leased(Arc::new(store.session("third"))).unwrap();
    let clock = store.session("clock");
    let fault = move |op: &Write| {
        if ends(op) {
            for _ in 0..12 {
                clock.set_time(clock.time() + LEASE / 8);
                std::thread::sleep(LEASE / 4);
            }
            let taken = Volume::attach(&third, "w", Mode::Own);
            assert_eq!(taken.err().map(|error| error.kind()), Some(Kind::Busy));
        }
        None
    };
    let server = Faulty { store: store.session("server"), fault };
    let server = leased(Arc::new(server)).unwrap();
    let changes = sent(&one, "v@b", Some("v@a"));
    Copies::of(&server).receive(Some("w"), true, &changes[..], &mut |_| Ok(())).unwrap();
    assert_eq!(content(&server, "w"), content(&one, "v@b"));
}

#[test]
fn what_is_freed_before_an_answer_takes_a_bounded_time() {
    let store = new_store(9);
    let clock = store.session("clock");
    clock.set_monotonic(Duration::ZERO);
    let slow = faulty(&store, "slow", move |op| {
        if op.object.name.starts_with("o.") {
            clock.set_monotonic(clock.monotonic() + Duration::from_millis(300));
        }
        None
    });
    let other = open(&store, "other");
    for name in ["a", "b"] {
        other.create_volume(name, BYTES).unwrap();
        write(&other, name, 0, 40, 1);
        other.delete(name, What::Volume).unwrap();
    }
    let begun = store.monotonic();
    onefold_cluster::delete_for(&slow, Duration::from_secs(1));
    let took = store.monotonic() - begun;
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_ne!(left(&store), Vec::<String>::new());
    // Another one goes on at once.
    delete_all(&open(&store, "worker"));
    assert_eq!(left(&store), Vec::<String>::new());
}

#[test]
fn a_scrub_looks_for_lost_objects_of_a_receive_under_way() {
    let (one, _) = two_snapshots(Cut::Static);
    let store = new_store(9);
    let two = open(&store, "two");
    let stream = sent(&one, "v@a", None);
    assert!(receive(&two, "w", &stream[..stream.len() - 60]).is_err());
    is_clean(&two);
    let names = left(&store).into_iter().filter(|name| name.starts_with("o."));
    let object = ObjectName::metadata(names.min().unwrap());
    let op = Write { object: object.clone(), guards: Vec::new(), changes: vec![Change::Remove] };
    store.session("disk").write(&[op]).remove(0).unwrap();
    let mut scrub = Scrub::new(two.clone(), false).unwrap();
    while scrub.step().unwrap() {}
    let damage = &scrub.report().damage;
    assert_eq!(damage.len(), 1, "{damage:?}");
    assert!(damage[0].contains("being received"), "{damage:?}");
    // Who gives it up and sends it again has all.
    Copies::of(&two).abort_receive("w").unwrap();
    delete_all(&two);
    assert_eq!(receive(&two, "w", &stream).unwrap(), "w@a");
    is_clean(&two);
}

#[test]
fn zeroes_between_data_do_not_make_each_write_wait() {
    let store = new_store(9);
    let (writes, counts) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, is_counted) = (writes.clone(), counts.clone());
    let settings = Settings { cursor_blocks: 1 << 20, ..Settings::default() };
    let fault = move |op: &Write| {
        let data = op.changes.iter().any(|change| matches!(change, Change::Write(..)));
        counted.fetch_add(u64::from(data && is_counted.load(Relaxed)), Relaxed);
        None
    };
    let faulty = Faulty { store: store.session("two"), fault };
    let two = Arc::new(Session::open(Arc::new(faulty), settings).unwrap());
    let blocks = BYTES / BLOCK;
    let begin = Begin {
        guid: [5; 16],
        volume: "v".into(),
        snapshot: "s".into(),
        blocks,
        ..Begin::default()
    };
    let mut block = Block::zeroed_vec(1);
    block[0].0.fill(1);
    let stream = strange(&begin, |writer| {
        for at in (0..blocks - 2).step_by(2) {
            writer.data(at, &block).unwrap();
            writer.empty(at + 1, 1, true).unwrap();
        }
        // What is zeroes by now, and was nothing before.
        writer.repeat(blocks - 2, 1, 1).unwrap();
    });
    counts.store(true, Relaxed);
    assert_eq!(receive(&two, "v", &stream).unwrap(), "v@s");
    // One for each object, and the repeat.
    let writes = writes.load(Relaxed);
    assert!((8..=10).contains(&writes), "{writes}");
    let content = content(&two, "v");
    for (at, block) in content.chunks(BLOCK as usize).enumerate() {
        let data = at % 2 == 0 && at + 2 < blocks as usize;
        assert!(block.iter().all(|byte| *byte == u8::from(data)), "{at}");
    }
}
