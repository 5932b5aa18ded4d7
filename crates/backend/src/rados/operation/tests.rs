//! Operations over a library that stands in for librados: its replies come from a thread of its
//! own, to the addresses that it was given.

use std::{sync::atomic::AtomicUsize, sync::atomic::Ordering, thread::JoinHandle};

use onefold_core::object::ObjectName;
use parking_lot::Mutex;

use super::*;

/// The result that the stand-in writes when it replies.
type Reply = Box<dyn FnOnce() + Send>;

/// An operation of the stand-in.
#[derive(Default)]
struct Operation {
    replies: Vec<Reply>,
}

/// A completion of the stand-in: the thread that replies.
struct Completion(Option<JoinHandle<()>>);

/// Pairs that an iterator still has, each name and value ending with a zero byte.
struct Pairs(Vec<(CString, CString)>, usize);

/// An address that a thread takes along, as librados does.
struct Address<T>(*mut T);

// SAFETY: whoever gave it keeps the place until the reply.
unsafe impl<T> Send for Address<T> {}

impl<T> Address<T> {
    /// The whole of it, so that a thread takes it and not its pointer.
    fn at(&self) -> *mut T {
        self.0
    }

    fn write(&self, value: T) {
        // SAFETY: as above.
        unsafe { self.0.write(value) };
    }
}

/// Iterators that were made and not ended, of all tests.
static OPEN: AtomicUsize = AtomicUsize::new(0);

unsafe fn add(operation: Handle, reply: impl FnOnce() + Send + 'static) {
    // SAFETY: the operation is one of ours, and is being built by one thread.
    unsafe { (*operation.cast::<Operation>()).replies.push(Box::new(reply)) };
}

unsafe extern "C" fn create_op() -> Handle {
    Box::into_raw(Box::<Operation>::default()).cast()
}

unsafe extern "C" fn release_op(operation: Handle) {
    // SAFETY: made above, released once.
    drop(unsafe { Box::from_raw(operation.cast::<Operation>()) });
}

unsafe extern "C" fn create_completion(
    _: Handle,
    _: super::super::library::Callback,
    at: *mut Handle,
) -> c_int {
    // SAFETY: a place for the handle.
    unsafe { at.write(Box::into_raw(Box::new(Completion(None))).cast()) };
    0
}

unsafe extern "C" fn release_completion(completion: Handle) {
    // SAFETY: made above, released once.
    drop(unsafe { Box::from_raw(completion.cast::<Completion>()) });
}

unsafe extern "C" fn wait(completion: Handle) -> c_int {
    // SAFETY: one thread waits.
    if let Some(replying) = unsafe { (*completion.cast::<Completion>()).0.take() } {
        replying.join().unwrap();
    }
    0
}

unsafe extern "C" fn operate(
    operation: Handle,
    _: Handle,
    completion: Handle,
    _: Text,
    _: c_int,
) -> c_int {
    // SAFETY: both are ours, and nobody else uses them now.
    let (operation, completion) =
        unsafe { (&mut *operation.cast::<Operation>(), &mut *completion.cast::<Completion>()) };
    let replies = std::mem::take(&mut operation.replies);
    completion.0 = Some(std::thread::spawn(|| replies.into_iter().for_each(|reply| reply())));
    0
}

unsafe extern "C" fn no_network(_: Handle, _: Handle, _: Handle, _: Text, _: c_int) -> c_int {
    -110
}

unsafe extern "C" fn read(
    operation: Handle,
    _: u64,
    room: usize,
    into: *mut c_char,
    got: *mut usize,
    result: *mut c_int,
) {
    let (into, got, result) = (Address(into), Address(got), Address(result));
    let reply = move || {
        let at = into.at();
        for n in 0..room.min(5) {
            // SAFETY: there is room for so many.
            Address(unsafe { at.add(n) }).write(b'a' as c_char);
        }
        got.write(room.min(5));
        result.write(0);
    };
    // SAFETY: see there.
    unsafe { add(operation, reply) };
}

unsafe extern "C" fn stat(
    operation: Handle,
    bytes: *mut u64,
    changed: *mut i64,
    result: *mut c_int,
) {
    let (bytes, changed, result) = (Address(bytes), Address(changed), Address(result));
    let reply = move || {
        bytes.write(77);
        changed.write(88);
        result.write(0);
    };
    // SAFETY: see there.
    unsafe { add(operation, reply) };
}

fn open_pairs(at: &Address<Handle>, pairs: &[(&str, &str)]) {
    OPEN.fetch_add(1, Ordering::SeqCst);
    let text = |text: &str| CString::new(text).unwrap();
    let pairs = pairs.iter().map(|(key, value)| (text(key), text(value))).collect();
    at.write(Box::into_raw(Box::new(Pairs(pairs, 0))).cast());
}

unsafe extern "C" fn page(
    operation: Handle,
    _: Text,
    _: Text,
    _: u64,
    at: *mut Handle,
    more: *mut u8,
    result: *mut c_int,
) {
    let (at, more, result) = (Address(at), Address(more), Address(result));
    let reply = move || {
        open_pairs(&at, &[("k", "v"), ("l", "")]);
        more.write(1);
        result.write(0);
    };
    // SAFETY: see there.
    unsafe { add(operation, reply) };
}

unsafe extern "C" fn by_keys(
    operation: Handle,
    keys: *const Text,
    n: usize,
    at: *mut Handle,
    result: *mut c_int,
) {
    // SAFETY: so many texts.
    let first = unsafe { CStr::from_ptr(*keys) }.to_str().unwrap().to_owned();
    let (at, result) = (Address(at), Address(result));
    let reply = move || {
        open_pairs(&at, &[(&first, &n.to_string())]);
        result.write(0);
    };
    // SAFETY: see there.
    unsafe { add(operation, reply) };
}

unsafe extern "C" fn xattrs(operation: Handle, at: *mut Handle, result: *mut c_int) {
    let (at, result) = (Address(at), Address(result));
    let reply = move || {
        open_pairs(&at, &[("other", "1"), ("wanted", "2")]);
        result.write(0);
    };
    // SAFETY: see there.
    unsafe { add(operation, reply) };
}

/// An iterator is there, and yet its look failed.
unsafe extern "C" fn xattrs_fail(operation: Handle, at: *mut Handle, result: *mut c_int) {
    let (at, result) = (Address(at), Address(result));
    let reply = move || {
        open_pairs(&at, &[]);
        result.write(-5);
    };
    // SAFETY: see there.
    unsafe { add(operation, reply) };
}

unsafe fn next(iterator: Handle) -> Option<(*const c_char, *const c_char, usize)> {
    // SAFETY: one of ours, used by one thread.
    let pairs = unsafe { &mut *iterator.cast::<Pairs>() };
    pairs.1 += 1;
    pairs
        .0
        .get(pairs.1 - 1)
        .map(|(key, value)| (key.as_ptr(), value.as_ptr(), value.as_bytes().len()))
}

unsafe extern "C" fn next_pair(
    iterator: Handle,
    key: *mut *mut c_char,
    value: *mut *mut c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: places of the caller.
    unsafe {
        let (k, v, n) = next(iterator).unwrap_or((ptr::null(), ptr::null(), 0));
        key.write(k.cast_mut());
        value.write(v.cast_mut());
        bytes.write(n);
    }
    0
}

unsafe extern "C" fn next_xattr(
    iterator: Handle,
    name: *mut Text,
    value: *mut Text,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: places of the caller.
    unsafe {
        let (k, v, n) = next(iterator).unwrap_or((ptr::null(), ptr::null(), 0));
        name.write(k);
        value.write(v);
        bytes.write(n);
    }
    0
}

unsafe extern "C" fn end_pairs(iterator: Handle) {
    OPEN.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: made above, ended once.
    drop(unsafe { Box::from_raw(iterator.cast::<Pairs>()) });
}

unsafe extern "C" fn nothing(_: Handle) {}

unsafe extern "C" fn well(_: Handle) -> c_int {
    0
}

unsafe extern "C" fn version(_: Handle) -> u64 {
    9
}

fn stand_in() -> Library {
    Library {
        create_read_op: create_op,
        release_read_op: release_op,
        read_op_assert_exists: nothing,
        read_op_read: read,
        read_op_stat: stat,
        read_op_getxattrs: xattrs,
        read_op_omap_get_vals2: page,
        read_op_omap_get_vals_by_keys: by_keys,
        aio_read_op_operate: operate,
        getxattrs_next: next_xattr,
        getxattrs_end: end_pairs,
        omap_get_next: next_pair,
        omap_get_end: end_pairs,
        aio_create_completion2: create_completion,
        aio_wait_for_complete: wait,
        aio_get_return_value: well,
        aio_get_version: version,
        aio_release: release_completion,
        ioctx_destroy: nothing,
        shutdown: nothing,
        ..Library::missing()
    }
}

/// Libraries live as long as the program. Being named here they are no leaks to Miri, so that all
/// others are.
static LIBRARIES: Mutex<Vec<&'static Library>> = Mutex::new(Vec::new());

fn pool(library: Library) -> Arc<PoolIo> {
    let library = Box::leak(Box::new(library));
    LIBRARIES.lock().push(library);
    PoolIo::over(library)
}

fn read_of(parts: Vec<ReadPart>) -> Read {
    Read { object: ObjectName::metadata("o"), parts }
}

/// One test, since all of them count the open iterators.
#[test]
fn rule_20_replies_reach_places_that_keep_still() {
    let all = read_of(vec![
        ReadPart::Data(0, 100),
        ReadPart::Data(0, 3),
        ReadPart::Data(0, 0),
        ReadPart::Stat,
        ReadPart::Page(b"a".to_vec(), 10),
        ReadPart::Keys(vec![b"x".to_vec(), b"y".to_vec()]),
        ReadPart::Xattr("wanted"),
        ReadPart::Xattr("missing"),
    ]);
    let good = pool(stand_in());
    // The flights move while replies come.
    let flights: Vec<Flight> = (0..3)
        .map(|_| Flight::read(&good, &all).unwrap_or_else(|_| panic!("it is sent")))
        .collect();
    let flights: Vec<Box<Flight>> = flights.into_iter().map(Box::new).collect();
    let bytes = |text: &str| text.as_bytes().to_vec();
    for flight in flights {
        let answer = (*flight).seen().unwrap();
        assert_eq!(answer.version, Version(9));
        let expected = vec![
            Seen::Data(bytes("aaaaa")),
            Seen::Data(bytes("aaa")),
            Seen::Data(Vec::new()),
            Seen::Stat { bytes: 77, changed: Duration::from_secs(88) },
            Seen::Pairs {
                pairs: vec![(bytes("k"), bytes("v")), (bytes("l"), Vec::new())],
                more: true,
            },
            Seen::Pairs { pairs: vec![(bytes("x"), bytes("2"))], more: false },
            Seen::Xattr(Some(bytes("2"))),
            Seen::Xattr(None),
        ];
        assert_eq!(answer.seen, expected);
    }
    // A flight whose result no thread reads.
    drop(Flight::read(&good, &all));
    // A look that fails before others that were answered.
    let failing = pool(Library { read_op_getxattrs: xattrs_fail, ..stand_in() });
    let flight = Flight::read(
        &failing,
        &read_of(vec![ReadPart::Xattr("x"), ReadPart::Page(Vec::new(), 1), ReadPart::Data(0, 10)]),
    );
    assert!(flight.unwrap_or_else(|_| panic!("it is sent")).seen().is_err());
    // One that is never sent, and one that can't be built.
    let offline = pool(Library { aio_read_op_operate: no_network, ..stand_in() });
    assert!(Flight::read(&offline, &all).is_err());
    assert!(
        Flight::read(
            &good,
            &read_of(vec![ReadPart::Data(0, 9), ReadPart::Keys(vec![b"\0".to_vec()])])
        )
        .is_err()
    );
    assert_eq!(OPEN.load(Ordering::SeqCst), 0, "iterators that were never ended");
}
