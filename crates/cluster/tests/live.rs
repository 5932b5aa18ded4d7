//! Snapshots and clones of volumes that clients use meanwhile.
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use onefold_cluster::{
    ClusterExports, Format, Mode, Session, Settings, Snapshots, Watermarks, What, Worker, create,
    resize_volume_while,
};
use onefold_core::{
    Block, BlockRead, Exports, Kind, Lba, Volume,
    object::{Change, ObjectName, ObjectStore, PoolKind, Read, Refusal, Write},
};
use onefold_testbed::MemoryObjects;
use support::{Fault, Faulty};

const OBJECT: u64 = 64 << 10;
const BYTES: u64 = 4 * OBJECT;
const BLOCK: u64 = 4096;

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

/// A server with one volume, `v`.
fn server(session: &Arc<Session>) -> ClusterExports {
    session.create_volume("v", BYTES).unwrap();
    ClusterExports::new(session.clone(), Mode::Own)
}

fn block_of(volume: &dyn Volume, at: u64) -> onefold_core::Result<u32> {
    let mut blocks = Block::zeroed_vec(1);
    let mut read = [BlockRead { first: Lba(at / BLOCK), into: &mut blocks, result: Ok(()) }];
    volume.read(&mut read);
    let [BlockRead { result, into, .. }] = read;
    result.map(|()| u32::from_le_bytes(into[0].0[..4].try_into().unwrap()))
}

fn block(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 4)
}

/// What a writer began last, and what was acknowledged last.
#[derive(Default)]
struct Writer {
    begun: AtomicU32,
    acknowledged: AtomicU32,
}

#[test]
fn each_snapshot_of_a_volume_in_use_holds_what_was_acknowledged_before_it() {
    let store = new_store();
    let session = open(&store, "server");
    let exports = server(&session);
    let volume = exports.open("v").unwrap();
    let writers: Vec<Writer> = (0..6).map(|_| Writer::default()).collect();
    let stops = AtomicBool::new(false);
    thread::scope(|scope| {
        for (n, writer) in writers.iter().enumerate() {
            // Three of them share an object.
            let (volume, at, stops) = (&volume, n as u64 * 7 * BLOCK, &stops);
            scope.spawn(move || {
                for number in 1.. {
                    writer.begun.store(number, SeqCst);
                    let ticket = volume.write(at, &block(number)).unwrap();
                    volume.wait(ticket).unwrap();
                    writer.acknowledged.store(number, SeqCst);
                    assert_eq!(block_of(&**volume, at).unwrap(), number);
                    if number % 16 == 0 {
                        volume.flush().unwrap();
                    }
                    if stops.load(SeqCst) {
                        break;
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut worker = Worker::new(open(&store, "worker"), Watermarks::NONE);
            while !stops.load(SeqCst) {
                worker.step().unwrap();
                exports.tend().unwrap();
                exports.renew().unwrap();
            }
        });
        for n in 0..20 {
            let values = |of: fn(&Writer) -> &AtomicU32| -> Vec<u32> {
                writers.iter().map(|writer| of(writer).load(SeqCst)).collect()
            };
            let before = values(|writer| &writer.acknowledged);
            let name = if n % 5 == 4 { format!("c{n}") } else { format!("v@s{n}") };
            match n % 5 {
                4 => exports.clone_volume("v", &name).unwrap(),
                _ => exports.snapshot(&name).unwrap(),
            }
            let after = values(|writer| &writer.begun);
            let held = exports.open(&name).unwrap();
            for (n, (before, after)) in before.into_iter().zip(after).enumerate() {
                let found = block_of(&*held, n as u64 * 7 * BLOCK).unwrap();
                assert!((before..=after).contains(&found), "{name}: {before} {found} {after}");
            }
        }
        stops.store(true, SeqCst);
    });
    for (n, writer) in writers.iter().enumerate() {
        let found = block_of(&*volume, n as u64 * 7 * BLOCK).unwrap();
        assert_eq!(found, writer.acknowledged.load(SeqCst));
    }
    drop(volume);
    exports.close().unwrap();
    // A client that comes back finds the volume under its name.
    assert!(exports.open("v").unwrap().size() == BYTES);
    assert_eq!(Snapshots::of(&session).all().unwrap().len(), 16);
}

#[test]
fn writes_that_nobody_waited_for_are_in_the_snapshot_and_keep_their_results() {
    let store = new_store();
    let full = Arc::new(Mutex::new(false));
    let says = full.clone();
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            // The store has room again before the snapshot is taken.
            let fails = writes(op) && std::mem::take(&mut *says.lock().unwrap());
            fails.then_some(Fault { refusal: Refusal::Full, applied: false })
        },
    };
    let session = session_over(Arc::new(faulty));
    let exports = server(&session);
    let volume = exports.open("v").unwrap();
    let ticket = volume.write(0, &block(1)).unwrap();
    exports.snapshot("v@a").unwrap();
    volume.wait(ticket).unwrap();
    *full.lock().unwrap() = true;
    let failed = volume.write(0, &block(2)).unwrap();
    exports.snapshot("v@b").unwrap();
    assert!(!*full.lock().unwrap(), "nothing was refused");
    let later = volume.write(BLOCK, &block(3)).unwrap();
    assert_eq!(volume.wait(failed).unwrap_err().kind(), Kind::NoSpace);
    volume.wait(later).unwrap();
    assert!(later > failed && failed > ticket);
    for name in ["v@a", "v@b"] {
        assert_eq!(block_of(&*exports.open(name).unwrap(), 0).unwrap(), 1);
    }
    assert_eq!(block_of(&*volume, BLOCK).unwrap(), 3);
}

#[test]
fn no_snapshot_is_taken_while_a_failed_write_may_still_come() {
    let store = new_store();
    let silent = Arc::new(AtomicBool::new(false));
    let says = silent.clone();
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            let fails = writes(op) && says.load(SeqCst);
            fails.then_some(Fault { refusal: Refusal::Unknown, applied: false })
        },
    };
    let session = session_over(Arc::new(faulty));
    let exports = server(&session);
    let volume = exports.open("v").unwrap();
    silent.store(true, SeqCst);
    let failed = volume.write(0, &block(1)).unwrap();
    let refused = exports.snapshot("v@a").unwrap_err();
    assert!(refused.kind() == Kind::Busy && refused.to_string().contains("restart"), "{refused}");
    assert_eq!(exports.clone_volume("v", "c").unwrap_err().kind(), Kind::Busy);
    silent.store(false, SeqCst);
    volume.wait(failed).unwrap_err();
    // Clients go on.
    let ticket = volume.write(0, &block(2)).unwrap();
    volume.wait(ticket).unwrap();
    assert_eq!(block_of(&*volume, 0).unwrap(), 2);
}

#[test]
fn clients_do_not_go_on_when_another_server_had_the_volume_meanwhile() {
    let store = new_store();
    let other = open(&store, "other");
    let (armed, acts) = (Arc::new(AtomicBool::new(false)), other.clone());
    let is_armed = armed.clone();
    // The volume has its next number when the server leaves the old one.
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            if leaves(op) && is_armed.swap(false, SeqCst) {
                let volume = onefold_cluster::Volume::attach(&acts, "v", Mode::Own).unwrap();
                volume.write_at(0, &block(7)).unwrap();
                volume.detach().unwrap();
            }
            None
        },
    };
    let session = session_over(Arc::new(faulty));
    let exports = server(&session);
    let volume = exports.open("v").unwrap();
    let ticket = volume.write(0, &block(1)).unwrap();
    armed.store(true, SeqCst);
    exports.snapshot("v@a").unwrap();
    // It was written before.
    volume.wait(ticket).unwrap();
    assert_eq!(block_of(&*volume, 0).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(volume.write(0, &block(2)).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(volume.flush().unwrap_err().kind(), Kind::NotFound);
    // A client that connects again finds what the other one wrote.
    assert_eq!(block_of(&*exports.open("v").unwrap(), 0).unwrap(), 7);
    assert_eq!(block_of(&*exports.open("v@a").unwrap(), 0).unwrap(), 1);
}

/// True for an operation that writes data.
fn writes(op: &Write) -> bool {
    op.changes.iter().any(|change| matches!(change, Change::Write(..)))
}

/// True for an operation that sets a key which begins so.
fn sets(op: &Write, begins: &[u8]) -> bool {
    op.changes.iter().any(|change| match change {
        Change::SetOmap(pairs) => pairs.iter().any(|(key, _)| key.starts_with(begins)),
        _ => false,
    })
}

/// True for the operation by which a server leaves a number.
fn leaves(op: &Write) -> bool {
    op.object.name.starts_with("v.")
        && op.changes.iter().any(|change| match change {
            Change::DropOmap(keys) => keys.iter().any(|key| key == b"o"),
            _ => false,
        })
}

#[test]
fn clients_go_on_with_the_next_number_when_the_name_came_to_it_without_an_answer() {
    let store = new_store();
    let raw = store.session("server");
    let given: Mutex<Option<Write>> = Mutex::new(None);
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = is_armed.clone();
    // No try of the operation that gives the name is answered. A copy comes late, before the session gives up.
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            if !armed.load(SeqCst) || !op.object.name.starts_with("n.") {
                return None;
            }
            let mut given = given.lock().unwrap();
            if sets(op, b"nv") {
                *given = Some(op.clone());
                return Some(Fault { refusal: Refusal::Unknown, applied: false });
            }
            if let Some(late) = given.take() {
                raw.write(&[late]).remove(0).unwrap();
            }
            None
        },
    };
    let session = session_over(Arc::new(faulty));
    let exports = server(&session);
    let volume = exports.open("v").unwrap();
    let write = |number| {
        let ticket = volume.write(0, &block(number))?;
        volume.wait(ticket)
    };
    write(1).unwrap();
    is_armed.store(true, SeqCst);
    exports.snapshot("v@a").unwrap();
    is_armed.store(false, SeqCst);
    write(2).unwrap();
    assert_eq!(block_of(&*exports.open("v@a").unwrap(), 0).unwrap(), 1);
    assert_eq!(block_of(&*exports.open("v").unwrap(), 0).unwrap(), 2);
}

#[test]
fn who_opens_a_snapshot_while_it_is_taken_gets_no_volume_to_write_to() {
    let store = new_store();
    let exports: Arc<Mutex<Option<Arc<ClusterExports>>>> = Arc::default();
    let opener = Arc::new(Mutex::new(None));
    let (of, opens) = (exports.clone(), opener.clone());
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            if leaves(op)
                && let Some(exports) = of.lock().unwrap().take()
            {
                let opened = thread::spawn(move || {
                    exports.open("v@a").map(|volume| (volume.is_read_only(), block_of(&*volume, 0)))
                });
                // It had time to get the volume as it is.
                thread::sleep(Duration::from_millis(100));
                *opens.lock().unwrap() = Some(opened);
            }
            None
        },
    };
    let session = session_over(Arc::new(faulty));
    let served = Arc::new(server(&session));
    let volume = served.open("v").unwrap();
    let ticket = volume.write(0, &block(1)).unwrap();
    volume.wait(ticket).unwrap();
    *exports.lock().unwrap() = Some(served.clone());
    served.snapshot("v@a").unwrap();
    let opened = opener.lock().unwrap().take().unwrap().join().unwrap();
    let (is_read_only, read) = opened.unwrap();
    assert!(is_read_only && read.unwrap() == 1);
}

#[test]
fn who_deletes_a_snapshot_later_does_not_shut_out_the_server_that_could_not_leave_it() {
    let store = new_store();
    let refuses = Arc::new(AtomicBool::new(true));
    let says = refuses.clone();
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            let fails = leaves(op) && says.load(SeqCst);
            fails.then_some(Fault { refusal: Refusal::Full, applied: false })
        },
    };
    let session = session_over(Arc::new(faulty));
    let exports = server(&session);
    let volume = exports.open("v").unwrap();
    let ticket = volume.write(0, &block(1)).unwrap();
    volume.wait(ticket).unwrap();
    exports.snapshot("v@a").unwrap();
    refuses.store(false, SeqCst);
    exports.tend().unwrap();
    // Its locks have ended with their leases.
    store.set_time(store.time() + Duration::from_secs(3600));
    let other = open(&store, "other");
    let layer = Snapshots::of(&other).attach("v@a").unwrap().id();
    Snapshots::of(&other).delete("v@a").unwrap();
    while other.delete_step().unwrap() {}
    let header = ObjectName::metadata(format!("v.{layer:010}"));
    let read = Read { object: header, parts: Vec::new() };
    assert!(matches!(store.read(&[read]).remove(0), Err(Refusal::Missing)));
    let ticket = volume.write(0, &block(2)).unwrap();
    volume.wait(ticket).unwrap();
    assert_eq!(block_of(&*volume, 0).unwrap(), 2);
}

#[test]
fn clients_go_on_when_a_snapshot_is_refused_or_the_volume_can_not_be_attached_at_once() {
    let store = new_store();
    let (armed, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let (is_armed, counted) = (armed.clone(), seen.clone());
    // The first operations that make the session the owner of the next number are not done.
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            let owns = op.object.name.starts_with("v.") && sets(op, b"o");
            let fails = is_armed.load(SeqCst) && owns && counted.fetch_add(1, SeqCst) < 100;
            fails.then_some(Fault { refusal: Refusal::Full, applied: false })
        },
    };
    let session = session_over(Arc::new(faulty));
    let exports = server(&session);
    let volume = exports.open("v").unwrap();
    let write = |number| {
        let ticket = volume.write(0, &block(number))?;
        volume.wait(ticket)
    };
    write(1).unwrap();
    exports.snapshot("v@a").unwrap();
    assert_eq!(exports.snapshot("v@a").unwrap_err().kind(), Kind::Exists);
    assert_eq!(exports.snapshot("x@a").unwrap_err().kind(), Kind::NotFound);
    assert_eq!(exports.clone_volume("v", "v").unwrap_err().kind(), Kind::Exists);
    write(2).unwrap();
    armed.store(true, SeqCst);
    exports.snapshot("v@b").unwrap();
    assert!(seen.load(SeqCst) > 0, "nothing failed");
    write(3).unwrap_err();
    assert_eq!((volume.size(), volume.is_read_only()), (BYTES, false));
    armed.store(false, SeqCst);
    write(4).unwrap();
    assert_eq!(block_of(&*exports.open("v").unwrap(), 0).unwrap(), 4);
    for (name, number) in [("v@a", 1), ("v@b", 2)] {
        assert_eq!(block_of(&*exports.open(name).unwrap(), 0).unwrap(), number);
    }
    // The volume of that name is another one by now.
    armed.store(true, SeqCst);
    seen.store(0, SeqCst);
    exports.snapshot("v@c").unwrap();
    armed.store(false, SeqCst);
    session.rename(What::Volume, "v", "w").unwrap();
    session.create_volume("v", BYTES).unwrap();
    assert_eq!(write(5).unwrap_err().kind(), Kind::NotFound);
}

/// Objects of a volume that long trims need many steps for.
const MANY: u64 = 16;

/// Objects that trims punch at once, at most, in [`trimming`].
const DIRECT: u64 = 2;

fn trimming(store: Arc<dyn ObjectStore>) -> Arc<Session> {
    let settings = Settings { cold: Duration::ZERO, direct_objects: DIRECT, ..Settings::default() };
    Arc::new(Session::open(store, settings).unwrap())
}

fn write_all(volume: &dyn Volume) {
    for index in 0..MANY {
        let ticket = volume.write(index * OBJECT, &block(7)).unwrap();
        volume.wait(ticket).unwrap();
    }
}

fn trim_all(volume: &dyn Volume) {
    let ticket = volume.trim(0, MANY * OBJECT).unwrap();
    volume.wait(ticket).unwrap();
}

/// True for an operation that says how far a long trim is.
fn advances(op: &Write) -> bool {
    op.object.name.starts_with("v.")
        && op.changes.iter().any(|change| match change {
            Change::SetOmap(pairs) => pairs.len() == 1 && pairs[0].0.starts_with(b"D"),
            Change::DropOmap(keys) => keys.iter().any(|key| key.starts_with(b"D")),
            _ => false,
        })
}

/// No test waits longer for what would never come.
const NEVER: Duration = Duration::from_secs(60);

/// Holds up the one who comes, once it is armed, until it is released.
#[derive(Default)]
struct Gate {
    armed: AtomicBool,
    reached: AtomicBool,
    released: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        if self.armed.swap(false, SeqCst) {
            self.reached.store(true, SeqCst);
            until(&self.released);
        }
    }
}

/// False when it does not come.
fn until(flag: &AtomicBool) -> bool {
    let begun = std::time::Instant::now();
    while !flag.load(SeqCst) && begun.elapsed() < NEVER {
        thread::sleep(Duration::from_millis(1));
    }
    flag.load(SeqCst)
}

/// A session whose operations of a kind a gate holds up.
fn gated(store: &MemoryObjects, gate: &Arc<Gate>, kind: fn(&Write) -> bool) -> Arc<Session> {
    let gate = gate.clone();
    let fault = move |op: &Write| {
        if kind(op) {
            gate.pass();
        }
        None
    };
    trimming(Arc::new(Faulty { store: store.session("server"), fault }))
}

#[test]
fn rule_12_a_client_that_keeps_trimming_keeps_no_snapshot_at_work() {
    const TOO_MANY: u32 = 4000;
    let store = new_store();
    let snapper: Arc<Mutex<Option<thread::ThreadId>>> = Arc::default();
    let (steps, trims) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (more, asked) = std::sync::mpsc::channel::<()>();
    let (is_snapper, counted, trimmed) = (snapper.clone(), steps.clone(), trims.clone());
    // Before each step that the snapshot waits for the client trims all once more, if it is let.
    let more = Mutex::new(Some(more));
    let fault = move |op: &Write| {
        if !advances(op) || *is_snapper.lock().unwrap() != Some(thread::current().id()) {
            return None;
        }
        let before = trimmed.load(SeqCst);
        let mut more = more.lock().unwrap();
        if counted.fetch_add(1, SeqCst) >= TOO_MANY {
            *more = None;
        }
        if more.as_ref().is_some_and(|more| more.send(()).is_ok()) {
            let begun = std::time::Instant::now();
            while trimmed.load(SeqCst) == before && begun.elapsed() < Duration::from_millis(5) {
                thread::yield_now();
            }
        }
        None
    };
    let session = trimming(Arc::new(Faulty { store: store.session("server"), fault }));
    session.create_volume("v", MANY * OBJECT).unwrap();
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    write_all(&*volume);
    for _ in 0..8 {
        trim_all(&*volume);
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (volume, done, trims) = (&volume, &done, &trims);
        scope.spawn(move || {
            while !done.load(SeqCst) {
                if asked.recv_timeout(Duration::from_millis(10)).is_ok() {
                    trim_all(&**volume);
                    trims.fetch_add(1, SeqCst);
                }
            }
        });
        *snapper.lock().unwrap() = Some(thread::current().id());
        let taken = exports.snapshot("v@a");
        done.store(true, SeqCst);
        taken.unwrap();
    });
    assert!(trims.load(SeqCst) > 0, "the client did nothing");
    assert!(steps.load(SeqCst) < TOO_MANY, "the snapshot waits for trims that come later");
    assert_eq!(block_of(&*exports.open("v@a").unwrap(), 0).unwrap(), 0);
}

#[test]
fn rule_12_who_waits_for_trims_gives_up_and_ends_with_the_one_who_asked() {
    let store = new_store();
    let session = trimming(Arc::new(store.session("server")));
    session.create_volume("v", MANY * OBJECT).unwrap();
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    write_all(&*volume);
    for _ in 0..8 {
        trim_all(&*volume);
    }
    let looks = AtomicU32::new(0);
    let gone = || match looks.fetch_add(1, SeqCst) {
        0..3 => Ok(()),
        _ => Err(onefold_core::Error::new(Kind::Stopped, "the one who asked has gone")),
    };
    assert_eq!(exports.snapshot_while("v@a", &gone).unwrap_err().kind(), Kind::Stopped);
    assert_eq!(looks.load(SeqCst), 4);
    assert_eq!(exports.clone_volume_while("v", "c", &gone).unwrap_err().kind(), Kind::Stopped);
    let slow = || {
        store.set_time(store.time() + Duration::from_secs(1));
        Ok(())
    };
    let refused = exports.snapshot_while("v@a", &slow).unwrap_err();
    assert!(refused.kind() == Kind::Busy && refused.to_string().contains("trims"), "{refused}");
    // The client goes on, and trims are applied.
    let ticket = volume.write(0, &block(1)).unwrap();
    volume.wait(ticket).unwrap();
    while exports.tend().unwrap() {}
    exports.snapshot("v@a").unwrap();
    assert_eq!(block_of(&*exports.open("v@a").unwrap(), 0).unwrap(), 1);
    // The same where nobody has the volume.
    for _ in 0..8 {
        trim_all(&*volume);
    }
    drop(volume);
    exports.while_detached("v", |_| Ok(())).unwrap();
    let refused = exports.snapshot_while("v@b", &slow).unwrap_err();
    assert!(refused.kind() == Kind::Busy && refused.to_string().contains("trims"), "{refused}");
    let resize = |session: &Arc<Session>| resize_volume_while(session, "v", OBJECT, &slow);
    assert_eq!(exports.while_detached("v", resize).unwrap_err().kind(), Kind::Busy);
    let volume = exports.open("v").unwrap();
    assert_eq!((block_of(&*volume, 0).unwrap(), volume.size()), (0, MANY * OBJECT));
}

#[test]
fn rule_12_trims_of_one_volume_keep_no_other_one_from_being_opened() {
    let store = new_store();
    let gate = Arc::new(Gate::default());
    let session = gated(&store, &gate, advances);
    session.create_volume("v", MANY * OBJECT).unwrap();
    session.create_volume("other", BYTES).unwrap();
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    write_all(&*volume);
    trim_all(&*volume);
    drop(volume);
    exports.while_detached("v", |_| Ok(())).unwrap();
    let used = exports.open("other").unwrap();
    gate.armed.store(true, SeqCst);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| exports.snapshot("v@a").unwrap());
        assert!(until(&gate.reached));
        scope.spawn(|| {
            exports.snapshot("other@a").unwrap();
            exports.open("other@a").unwrap();
            exports.open("other").unwrap();
            done.store(true, SeqCst);
        });
        let in_time = until(&done);
        gate.released.store(true, SeqCst);
        assert!(in_time, "another volume waits");
    });
    let ticket = used.write(0, &block(1)).unwrap();
    used.wait(ticket).unwrap();
}

#[test]
fn rule_12_a_snapshot_keeps_no_other_volume_from_being_opened() {
    let store = new_store();
    let gate = Arc::new(Gate::default());
    let session = gated(&store, &gate, leaves);
    session.create_volume("v", BYTES).unwrap();
    session.create_volume("other", BYTES).unwrap();
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    let ticket = volume.write(0, &block(1)).unwrap();
    volume.wait(ticket).unwrap();
    gate.armed.store(true, SeqCst);
    let (done, waits) = (AtomicBool::new(false), AtomicBool::new(true));
    thread::scope(|scope| {
        scope.spawn(|| exports.snapshot("v@a").unwrap());
        assert!(until(&gate.reached));
        // Its name stands for the next number already.
        scope.spawn(|| {
            let again = exports.open("v").unwrap();
            waits.store(false, SeqCst);
            let ticket = again.write(BLOCK, &block(2)).unwrap();
            again.wait(ticket).unwrap();
        });
        scope.spawn(|| {
            exports.open("other").unwrap();
            exports.while_detached("other", |_| Ok(())).unwrap();
            exports.snapshot("other@a").unwrap();
            done.store(true, SeqCst);
        });
        let in_time = until(&done);
        let waited = waits.load(SeqCst);
        gate.released.store(true, SeqCst);
        assert!(in_time, "another volume waits");
        assert!(waited, "the volume was attached twice");
    });
    // Both have the same one.
    assert_eq!(block_of(&*volume, BLOCK).unwrap(), 2);
    let held = exports.open("v@a").unwrap();
    assert_eq!([0, BLOCK].map(|at| block_of(&*held, at).unwrap()), [1, 0]);
    drop((volume, held));
    exports.while_detached("v", |_| Ok(())).unwrap();
    exports.close().unwrap();
}

#[test]
fn a_servers_own_work_on_a_volume_is_no_use_of_a_client() {
    let store = new_store();
    let gate = Arc::new(Gate::default());
    let session = gated(&store, &gate, advances);
    session.create_volume("v", MANY * OBJECT).unwrap();
    let exports = ClusterExports::new(session, Mode::Own);
    let volume = exports.open("v").unwrap();
    write_all(&*volume);
    trim_all(&*volume);
    assert_eq!(exports.while_detached("v", |_| Ok(())).unwrap_err().kind(), Kind::Busy);
    drop(volume);
    gate.armed.store(true, SeqCst);
    thread::scope(|scope| {
        scope.spawn(|| exports.tend().unwrap());
        assert!(until(&gate.reached));
        let deleted = scope
            .spawn(|| exports.while_detached("v", |session| session.delete("v", What::Volume)));
        // It had time to be refused.
        thread::sleep(Duration::from_millis(100));
        gate.released.store(true, SeqCst);
        deleted.join().unwrap().unwrap();
    });
    assert_eq!(exports.open("v").err().unwrap().kind(), Kind::NotFound);
}

#[test]
fn rule_12_a_snapshot_holds_long_trims_back_for_less_than_guests_wait() {
    let store = new_store();
    let (clock, slow) = (store.session("clock"), Arc::new(AtomicBool::new(false)));
    let is_slow = slow.clone();
    let faulty = Faulty {
        store: store.session("server"),
        fault: move |op: &Write| {
            if is_slow.load(SeqCst) && op.object.name.starts_with("o.") {
                clock.set_time(clock.time() + Duration::from_secs(1));
            }
            None
        },
    };
    let session = session_over(Arc::new(faulty));
    session.create_volume("v", 64 * OBJECT).unwrap();
    let exports = ClusterExports::new(session.clone(), Mode::Own);
    let volume = exports.open("v").unwrap();
    for index in 0..60 {
        let ticket = volume.write(index * OBJECT, &block(1)).unwrap();
        volume.wait(ticket).unwrap();
    }
    volume.trim(0, 60 * OBJECT).unwrap();
    slow.store(true, SeqCst);
    let begun = store.time();
    assert_eq!(exports.snapshot("v@a").unwrap_err().kind(), Kind::Busy);
    let took = store.time() - begun;
    assert!(took > Duration::from_secs(5) && took < Duration::from_secs(15), "{took:?}");
}
