//! Files over a connection keep the contract of files, and neither side believes the other one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use onefold_backend::Directory;
use onefold_core::{Error, Files, Hold, Kind, Lock, Result};
use onefold_remote::{
    Act, Greeting, Offer, Pulse, RemoteFiles, Right, Stay, answer, connect, connect_for,
};

/// These files, of which none may be called "nodes".
fn offer(files: Arc<dyn Files>) -> Offer {
    let reader_lock = |name: &str| match name {
        "lock" => Some(Stay::Long),
        "brief" => Some(Stay::Brief),
        _ => None,
    };
    Offer {
        files,
        is_own: |name| name != "nodes",
        reader_lock,
        brief: Duration::from_millis(300),
        turn: Box::new(|| Ok(Box::new(NoTurn))),
        free_bytes: Box::new(|| Ok(77)),
        heard: Box::new(|_| ()),
    }
}

struct NoTurn;

impl Lock for NoTurn {}

type Far = JoinHandle<Result<()>>;

/// A connection to the files, and the far side's thread.
fn joined(files: Arc<dyn Files>, right: Right) -> (RemoteFiles, Far) {
    let (near, far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let output = Box::new(far.try_clone().unwrap());
        let end = answer(offer(files), &Greeting::of(right), &far, output, &Pulse::default());
        far.shutdown(std::net::Shutdown::Both).unwrap();
        end
    });
    let output = Box::new(Closing(near.try_clone().unwrap()));
    let (files, greeting) = connect(Box::new(near), output, "far", |_| true).unwrap();
    assert_eq!(greeting.right, right);
    (files, thread)
}

/// A half of a socket that ends it, as a pipe that is closed does.
struct Closing(UnixStream);

impl Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }
}

fn directory() -> (tempfile::TempDir, Arc<Directory>) {
    let dir = tempfile::tempdir().unwrap();
    let files = Directory::create(&dir.path().join("a")).unwrap();
    (dir, Arc::new(files))
}

fn kind<T>(result: Result<T>) -> Option<Kind> {
    result.err().map(|error: Error| error.kind())
}

#[test]
fn files_over_a_connection_keep_the_contract() {
    let (_dir, files) = directory();
    let (remote, far) = joined(files, Right::Manage);
    onefold_testbed::contract::files::hold(&remote);
    drop(remote);
    far.join().unwrap().unwrap();
}

#[test]
fn large_reads_and_writes_go_in_pieces() {
    let (_dir, files) = directory();
    let (remote, far) = joined(files.clone(), Right::Manage);
    let data: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    let file = remote.create("big").unwrap();
    let parts: Vec<&[u8]> =
        vec![&[], &data[..100], &data[100..17_000_000], &[], &data[17_000_000..]];
    file.write_parts(5, &parts).unwrap();
    let mut found = vec![0; data.len() + 10];
    assert_eq!(file.read_at(5, &mut found).unwrap(), data.len());
    assert_eq!(found[..data.len()], data);
    assert!(file.keeps(5, &data).unwrap());
    assert!(!file.keeps(6, &data[..9_000_000]).unwrap());
    let pending = file.clone().begin_sync();
    pending.wait().unwrap();
    let near = files.open("big").unwrap();
    assert_eq!(near.bytes().unwrap(), data.len() as u64 + 5);
    drop((file, remote));
    far.join().unwrap().unwrap();
}

#[test]
fn rule_46_locks_end_with_the_connection_and_calls_fail_after_it() {
    let (_dir, files) = directory();
    files.create("lock").unwrap();
    let (remote, far) = joined(files.clone(), Right::Manage);
    let lock = remote.lock("lock", Hold::Alone, false).unwrap();
    assert_eq!(kind(files.lock("lock", Hold::Alone, false)), Some(Kind::Busy));
    let (other, other_far) = joined(files.clone(), Right::Manage);
    assert_eq!(kind(other.lock("lock", Hold::Shared, false)), Some(Kind::Busy));
    // Who waits keeps no other call of the connection waiting.
    let waiting = other.clone();
    let waiter = std::thread::spawn(move || waiting.lock("lock", Hold::Shared, true).map(drop));
    assert_eq!(other.names().unwrap(), ["lock"]);
    drop(lock);
    waiter.join().unwrap().unwrap();
    let held = remote.lock("lock", Hold::Alone, true).unwrap();
    let file = other.open("lock").unwrap();
    drop(other);
    // A file keeps the connection.
    assert_eq!(file.bytes().unwrap(), 0);
    drop(file);
    other_far.join().unwrap().unwrap();
    // The far side ends, with its locks, although this side still has the lock in its hands.
    std::mem::forget(held);
    drop(remote);
    let lock = files.lock("lock", Hold::Alone, false);
    assert_eq!(kind(lock), Some(Kind::Busy), "the connection is still there");
    drop(far);
}

#[test]
fn rule_46_who_may_read_changes_nothing() {
    let (_dir, files) = directory();
    files.create("a").unwrap().write_at(0, b"data").unwrap();
    let (remote, far) = joined(files, Right::Read);
    let file = remote.open("a").unwrap();
    let mut found = [0; 4];
    assert_eq!((file.read_at(0, &mut found).unwrap(), &found), (4, b"data"));
    for refused in [
        file.write_at(0, b"else"),
        file.set_bytes(0),
        file.punch(0, 4),
        file.reserve(0, 4096),
        remote.remove("a"),
        remote.create("b").map(drop),
        remote.lock("a", Hold::Alone, false).map(drop),
        remote.lock("a", Hold::Shared, false).map(drop),
        remote.lock("lock", Hold::Alone, false).map(drop),
    ] {
        assert_eq!(kind(refused), Some(Kind::Denied));
    }
    assert_eq!(file.bytes().unwrap(), 4);
    assert_eq!(remote.names().unwrap(), ["a"]);
    drop((file, remote));
    far.join().unwrap().unwrap();
}

#[test]
fn rule_46_who_may_add_removes_nothing_and_loses_a_lock_for_which_writers_wait() {
    let (_dir, files) = directory();
    for name in ["a", "brief"] {
        files.create(name).unwrap();
    }
    let (remote, far) = joined(files.clone(), Right::Put);
    remote.create("b").unwrap().write_at(0, b"data").unwrap();
    assert_eq!(kind(remote.remove("a")), Some(Kind::Denied));
    assert_eq!(remote.names().unwrap(), ["a", "b", "brief"]);
    let held = remote.lock("brief", Hold::Alone, false).unwrap();
    drop(files.lock("brief", Hold::Alone, true).unwrap());
    drop((held, remote));
    let _ = far.join().unwrap();
}

/// Who waits for a lock that somebody keeps comes again in a later turn: a turn in which many wait, one after
/// the other, would have no end for those in the next one.
#[test]
fn rule_46_nobody_waits_for_long_within_a_turn() {
    static TURNS: AtomicUsize = AtomicUsize::new(0);
    let (_dir, files) = directory();
    files.create("brief").unwrap();
    let offer = Offer {
        turn: Box::new(|| {
            TURNS.fetch_add(1, Relaxed);
            Ok(Box::new(NoTurn))
        }),
        ..offer(files.clone())
    };
    let (near, far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let output = Box::new(far.try_clone().unwrap());
        answer(offer, &Greeting::of(Right::Put), &far, output, &Pulse::default())
    });
    let output = Box::new(Closing(near.try_clone().unwrap()));
    let (remote, _) = connect(Box::new(near), output, "far", |_| true).unwrap();
    let kept = files.lock("brief", Hold::Alone, true).unwrap();
    let waiting = remote.clone();
    let waiter = std::thread::spawn(move || waiting.lock("brief", Hold::Alone, true).map(drop));
    while TURNS.load(Relaxed) < 3 {
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(kept);
    waiter.join().unwrap().unwrap();
    drop(remote);
    thread.join().unwrap().unwrap();
}

/// The far side of a connection of whose near side the test says each byte.
fn attacked(sent: &[u8]) -> (Result<()>, Vec<u8>) {
    let (_dir, files) = directory();
    let (near, far) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let output = Box::new(far.try_clone().unwrap());
        answer(offer(files), &Greeting::of(Right::Manage), &far, output, &Pulse::default())
    });
    (&near).write_all(sent).unwrap();
    near.shutdown(std::net::Shutdown::Write).unwrap();
    let mut said = Vec::new();
    // A reset, when it left something unread.
    let _ = (&near).read_to_end(&mut said);
    (thread.join().unwrap(), said)
}

#[test]
fn a_near_side_that_sends_anything_ends_its_connection_alone() {
    for sent in [
        &[0xff; 100][..],
        &[1, 0, 0, 0, 7],
        // A file that was never opened.
        &[13, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 13, 9, 0, 0, 0],
        // The frame ends too soon.
        &[40, 0, 0, 0, 1, 0],
    ] {
        let (end, _) = attacked(sent);
        assert!(end.is_err(), "{sent:?}");
    }
    assert!(attacked(&[]).0.is_ok());
}

#[test]
fn a_far_side_that_answers_anything_gives_errors() {
    let good = [&b"onefold files 1\n"[..], &5_u32.to_le_bytes(), &[2, 0, 0, 0, 0]].concat();
    for said in [
        &[][..],
        // An answer to nothing that was asked.
        &[9, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0],
        // Names that are paths.
        &[15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, b'.', b'.', b'/', b'x', 0, 0],
        &[0xff; 64],
        // No kind of an error.
        &[10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 99],
    ] {
        let (near, far) = UnixStream::pair().unwrap();
        (&far).write_all(&[&good, said].concat()).unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        let (files, _) =
            connect(Box::new(near.try_clone().unwrap()), Box::new(near), "far", |_| true).unwrap();
        let error = files.names().unwrap_err();
        assert_eq!(error.kind(), Kind::Io, "{error}");
        assert!(files.open("label").is_err());
    }
}

#[test]
fn silence_is_told() {
    let (_dir, files) = directory();
    let (near, far) = UnixStream::pair().unwrap();
    let pulse = Pulse::default();
    let of_far = pulse.clone();
    let thread = std::thread::spawn(move || {
        let output = Box::new(far.try_clone().unwrap());
        answer(offer(files), &Greeting::of(Right::Read), &far, output, &of_far)
    });
    std::thread::sleep(Duration::from_millis(60));
    assert!(pulse.silence() >= Duration::from_millis(50));
    let output = Box::new(Closing(near.try_clone().unwrap()));
    let (files, _) = connect(Box::new(near), output, "far", |_| true).unwrap();
    let before = pulse.silence();
    files.names().unwrap();
    assert!(pulse.silence() < before);
    drop(files);
    thread.join().unwrap().unwrap();
}

#[test]
fn rule_46_other_files_of_the_directory_are_not_there() {
    let (_dir, files) = directory();
    files.create("nodes").unwrap().write_at(0, b"/etc").unwrap();
    let (remote, far) = joined(files.clone(), Right::Manage);
    assert_eq!(remote.names().unwrap(), Vec::<String>::new());
    for refused in [
        remote.create("nodes").map(drop),
        remote.open("nodes").map(drop),
        remote.open_large("nodes").map(drop),
        remote.remove("nodes"),
        remote.lock("nodes", Hold::Alone, false).map(drop),
    ] {
        assert_eq!(kind(refused), Some(Kind::Denied));
    }
    assert_eq!(files.names().unwrap(), ["nodes"]);
    assert_eq!(remote.free_bytes().unwrap(), 77);
    drop(remote);
    far.join().unwrap().unwrap();
}

#[test]
fn rule_46_a_lock_is_held_by_who_asks_for_something() {
    let (_dir, files) = directory();
    files.create("lock").unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let pulse = Pulse::default();
    let of_far = pulse.clone();
    let thread = std::thread::spawn(move || {
        let output = Box::new(far.try_clone().unwrap());
        answer(offer(files), &Greeting::of(Right::Read), &far, output, &of_far)
    });
    let alive = [&9_u32.to_le_bytes()[..], &[0; 8], &[17]].concat();
    std::thread::sleep(Duration::from_millis(60));
    (&near).write_all(&alive).unwrap();
    while pulse.silence() >= Duration::from_millis(50) {
        std::thread::yield_now();
    }
    let shared =
        [&18_u32.to_le_bytes()[..], &[1, 0, 0, 0, 0, 0, 0, 0], &[6, 5, 0, 0, 0, 0], b"lock"];
    (&near).write_all(&shared.concat()).unwrap();
    while pulse.longest_lock() == Duration::ZERO {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(60));
    for _ in 0..3 {
        (&near).write_all(&alive).unwrap();
    }
    near.shutdown(std::net::Shutdown::Write).unwrap();
    thread.join().unwrap().unwrap();
    assert!(pulse.silence() >= Duration::from_millis(60));
    assert!(pulse.longest_lock() >= Duration::from_millis(60));
}

/// The far side of a connection for reading, its pulse, and this side.
fn watched(files: Arc<dyn Files>, right: Right) -> (RemoteFiles, Pulse) {
    let (near, far) = UnixStream::pair().unwrap();
    let pulse = Pulse::default();
    let of_far = pulse.clone();
    std::thread::spawn(move || {
        let output = Box::new(far.try_clone().unwrap());
        answer(offer(files), &Greeting::of(right), &far, output, &of_far)
    });
    let output = Box::new(Closing(near.try_clone().unwrap()));
    (connect(Box::new(near), output, "far", |_| true).unwrap().0, pulse)
}

#[test]
fn rule_46_who_may_read_loses_a_lock_for_which_writers_wait() {
    let (_dir, files) = directory();
    for name in ["lock", "brief"] {
        files.create(name).unwrap();
    }
    let (reader, of_reader) = watched(files.clone(), Right::Read);
    let (manager, of_manager) = watched(files.clone(), Right::Manage);
    // Who gives it back in time goes on, however often.
    let long = reader.lock("lock", Hold::Shared, false).unwrap();
    for _ in 0..100 {
        drop(reader.lock("brief", Hold::Shared, true).unwrap());
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        drop(reader.lock("brief", Hold::Shared, true).unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    let held = manager.lock("lock", Hold::Shared, true).unwrap();
    let kept = reader.lock("brief", Hold::Shared, true).unwrap();
    let taken = Instant::now();
    drop(files.lock("brief", Hold::Alone, true).unwrap());
    let waited = taken.elapsed();
    assert!(waited < Duration::from_secs(20) && !of_manager.is_over(), "{waited:?}");
    while !of_reader.is_over() {
        std::thread::yield_now();
    }
    drop((kept, long, held));
}

#[test]
fn rule_46_a_lock_that_is_taken_again_counts_from_the_first_time() {
    let (_dir, files) = directory();
    files.create("lock").unwrap();
    let (reader, pulse) = watched(files, Right::Read);
    let mut held = reader.lock("lock", Hold::Shared, false).unwrap();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(20));
        held = reader.lock("lock", Hold::Shared, false).unwrap();
        reader.names().unwrap();
    }
    assert!(pulse.longest_lock() >= Duration::from_millis(100));
    drop(held);
    reader.names().unwrap();
    assert_eq!(pulse.longest_lock(), Duration::ZERO);
}

#[test]
fn who_hangs_up_ends_the_connection_for_all() {
    let (_dir, files) = directory();
    files.create("lock").unwrap();
    let (remote, far) = joined(files.clone(), Right::Manage);
    let lock = remote.lock("lock", Hold::Alone, false).unwrap();
    let file = remote.open("lock").unwrap();
    assert_eq!(remote.requests(), 2);
    remote.hang_up();
    far.join().unwrap().unwrap();
    assert!(files.lock("lock", Hold::Alone, false).is_ok());
    assert_eq!(kind(file.bytes()), Some(Kind::Io));
    drop(lock);
    while !remote.has_ended() {
        std::thread::yield_now();
    }
}

#[test]
fn rule_48_what_the_other_side_did_and_was_refused_is_heard() {
    let heard = |right: Right, act: fn(&RemoteFiles)| -> Vec<String> {
        let (near, far) = UnixStream::pair().unwrap();
        let all = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let of_thread = all.clone();
        let thread = std::thread::spawn(move || {
            let hear = move |act: Act<'_>| of_thread.lock().push(format!("{act:?}"));
            let dir = tempfile::tempdir().unwrap();
            let files: Arc<dyn Files> = Arc::new(Directory::open(dir.path(), true).unwrap());
            let offer = Offer { heard: Box::new(hear), ..offer(files) };
            let output = Box::new(far.try_clone().unwrap());
            let end = answer(offer, &Greeting::of(right), &far, output, &Pulse::default());
            far.shutdown(std::net::Shutdown::Both).unwrap();
            end
        });
        let output = Box::new(Closing(near.try_clone().unwrap()));
        let (files, _) = connect(Box::new(near), output, "far", |_| true).unwrap();
        act(&files);
        files.hang_up();
        drop(files);
        thread.join().unwrap().unwrap();
        all.lock().clone()
    };
    let did = heard(Right::Manage, |files| {
        let file = files.create("log-1").unwrap();
        file.write_at(0, b"12345").unwrap();
        file.set_bytes(3).unwrap();
        files.remove("log-1").unwrap();
        assert!(files.create("nodes").is_err());
    });
    let refused = "Refused(\"name\", Some(\"nodes\"))";
    assert_eq!(did, ["Created(\"log-1\")", "Wrote(5)", "Resized", "Removed(\"log-1\")", refused]);
    let did = heard(Right::Read, |files| assert!(files.remove("log-1").is_err()));
    assert_eq!(did, ["Refused(\"remove\", Some(\"log-1\"))"]);
}

#[test]
fn a_far_side_that_never_answers_and_takes_nothing_is_left() {
    let (near, far) = UnixStream::pair().unwrap();
    // It greets, and that is all.
    let (_dir, offered) = directory();
    let (output, greeting) = (Box::new(far.try_clone().unwrap()), Greeting::of(Right::Manage));
    answer(offer(offered), &greeting, &[][..], output, &Pulse::default()).unwrap();
    let ends = near.try_clone().unwrap();
    let give_up = Box::new(move || ends.shutdown(std::net::Shutdown::Both).unwrap());
    let (input, output) = (Box::new(near.try_clone().unwrap()), Box::new(near));
    let give_up = give_up as Box<dyn Fn() + Send>;
    let patience = (Duration::from_millis(100), give_up, (|_| true) as fn(&str) -> bool);
    let (files, _) = connect_for(input, output, "far", |_| true, patience).unwrap();
    let calls: Vec<JoinHandle<Result<Vec<String>>>> = (0..4)
        .map(|n| {
            let files = files.clone();
            // Some names are longer than what the stream holds.
            let name = "x".repeat(if n < 2 { 1 } else { 1000 });
            std::thread::spawn(move || {
                (0..1000).try_for_each(|_| files.remove(&name))?;
                files.names()
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.join().unwrap().unwrap_err().kind(), Kind::Io);
    }
    let error = files.names().unwrap_err();
    assert!(error.to_string().contains("far has not answered"), "{error}");
    assert!(files.has_ended());
    drop(far);
}

#[test]
fn a_wait_for_a_lock_may_take_any_time_unless_nobody_keeps_that_one_for_long() {
    let (_dir, files) = directory();
    files.create("lock").unwrap();
    files.create("brief").unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let offered: Arc<dyn Files> = files.clone();
    let far = std::thread::spawn(move || {
        let output = Box::new(far.try_clone().unwrap());
        answer(offer(offered), &Greeting::of(Right::Manage), &far, output, &Pulse::default())
    });
    let output = Box::new(Closing(near.try_clone().unwrap()));
    let give_up = Box::new(|| ()) as Box<dyn Fn() + Send>;
    let patience =
        (Duration::from_millis(20), give_up, (|name| name != "brief") as fn(&str) -> bool);
    let (remote, _) = connect_for(Box::new(near), output, "far", |_| true, patience).unwrap();
    let held = files.lock("lock", Hold::Alone, false).unwrap();
    let of_thread = remote.clone();
    let wait = std::thread::spawn(move || of_thread.lock("lock", Hold::Alone, true).map(drop));
    std::thread::sleep(Duration::from_millis(200));
    drop(held);
    wait.join().unwrap().unwrap();
    assert!(!remote.has_ended());
    let held = files.lock("brief", Hold::Alone, false).unwrap();
    let error = remote.lock("brief", Hold::Alone, true).map(drop).unwrap_err();
    assert!(error.to_string().contains("has not answered"), "{error}");
    assert!(remote.has_ended());
    drop((held, remote));
    far.join().unwrap().unwrap();
}
