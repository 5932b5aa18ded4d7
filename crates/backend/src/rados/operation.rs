//! Compound operations in flight: built, sent, waited for.
//!
//! *Invariant:* what an operation reads from or writes to belongs to its [`Flight`], which waits
//! for the reply before it goes. Replies are written to raw allocations ([`Place`]): a `Box` or a
//! `Vec` claims its memory for itself alone whenever it moves, so none holds what librados has the
//! address of. Miri judges that with a library that stands in for librados: `cargo +nightly miri
//! test -p onefold-backend --lib rados::operation`.
#![allow(
    unsafe_code,
    reason = "librados builds operations behind handles, and writes replies into places that a \
              flight owns"
)]

#[cfg(test)]
mod tests;

use std::{
    ffi::{CStr, CString, c_char, c_int},
    ptr::{self, NonNull},
    sync::Arc,
    time::Duration,
};

use onefold_core::object::{
    Change, Guard, Read, ReadPart, ReadResult, Refusal, Seen, Version, Write,
};

use super::{
    connection::{PoolIo, is_over, refusal, text},
    library::{Handle, Library, Text},
};

/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;

/// `LIBRADOS_OPERATION_FULL_TRY`: a full cluster answers, where it would let us wait.
const FULL_TRY: c_int = 64;

/// `LIBRADOS_OPERATION_FULL_FORCE`: taken by a full cluster all the same.
const FULL_FORCE: c_int = 128;

/// Bytes that one part of a read is given at most; objects are smaller.
const LOOK_MAX: u64 = 32 << 20;

/// An operation on its way.
pub(super) struct Flight {
    pool: Arc<PoolIo>,
    completion: Handle,
    operation: Handle,
    reads: bool,
    sent: bool,
    parts: Vec<Eye>,
}

/// Memory that librados may write to until the reply arrives. Only this value owns the memory; the
/// value can move while the memory stays in place.
struct Place<T: ?Sized>(NonNull<T>);

impl<T: ?Sized> Place<T> {
    fn new(value: Box<T>) -> Place<T> {
        // SAFETY: a box is never null.
        Place(unsafe { NonNull::new_unchecked(Box::into_raw(value)) })
    }

    fn at(&self) -> *mut T {
        self.0.as_ptr()
    }

    /// The memory as a box.
    ///
    /// # Safety
    /// Nobody else writes to it any more.
    unsafe fn into_box(self) -> Box<T> {
        let at = std::mem::ManuallyDrop::new(self).at();
        // SAFETY: it was a box, and its only owner ends here.
        unsafe { Box::from_raw(at) }
    }
}

impl<T: ?Sized> Drop for Place<T> {
    fn drop(&mut self) {
        // SAFETY: it was a box; a flight waits for its reply before its places go.
        drop(unsafe { Box::from_raw(self.at()) });
    }
}

/// The reply of librados to one part of a read: a result, and for some parts a value.
struct Answer<T>(Place<(T, c_int)>);

impl<T: Copy> Answer<T> {
    fn new(value: T) -> Answer<T> {
        Answer(Place::new(Box::new((value, 0))))
    }

    /// Where librados writes.
    fn places(&self) -> (*mut T, *mut c_int) {
        let at = self.0.at();
        // SAFETY: the place is there; no reference is made.
        unsafe { (&raw mut (*at).0, &raw mut (*at).1) }
    }

    /// The value, after the reply; or why this part failed.
    fn read(&self) -> Result<T, Refusal> {
        // SAFETY: the place is there, was filled when it was made, and nobody writes to it after
        // the reply.
        let (value, result) = unsafe { *self.0.at() };
        if result < 0 { Err(refusal(result)) } else { Ok(value) }
    }

    /// The value, even if the part or the operation failed.
    fn left(&self) -> T {
        // SAFETY: as in `read`.
        unsafe { (*self.0.at()).0 }
    }
}

/// Where a part of a read is answered.
enum Eye {
    Data { bytes: Option<Place<[u8]>>, got: Answer<usize> },
    Pairs { iterator: Answer<(Handle, u8)> },
    Xattrs { name: &'static str, iterator: Answer<Handle> },
    Stat { at: Answer<(u64, i64)> },
}

impl Flight {
    fn new(pool: &Arc<PoolIo>, reads: bool) -> Result<Flight, Refusal> {
        let mut completion = ptr::null_mut();
        // SAFETY: no callback; the handle is written before it is read.
        let code = unsafe {
            (pool.library.aio_create_completion2)(ptr::null_mut(), None, &raw mut completion)
        };
        if code < 0 {
            return Err(refusal(code));
        }
        // SAFETY: no conditions.
        let operation = unsafe {
            if reads { (pool.library.create_read_op)() } else { (pool.library.create_write_op)() }
        };
        Ok(Flight {
            pool: pool.clone(),
            completion,
            operation,
            reads,
            sent: false,
            parts: Vec::new(),
        })
    }

    fn library(&self) -> &'static Library {
        self.pool.library
    }

    /// Waits for the reply.
    fn wait(&self) -> Result<Version, Refusal> {
        let library = self.library();
        // SAFETY: the completion was given to an operation that was sent.
        let code = unsafe {
            (library.aio_wait_for_complete)(self.completion);
            (library.aio_get_return_value)(self.completion)
        };
        is_over(code);
        if code < 0 {
            return Err(self.refused(code));
        }
        // SAFETY: as above.
        Ok(Version(unsafe { (library.aio_get_version)(self.completion) }))
    }

    /// Takes note that the operation is on its way, so that its reply is waited for.
    fn sent(mut self, code: c_int) -> Result<Flight, Refusal> {
        self.sent = code >= 0;
        if self.sent { Ok(self) } else { Err(self.refused(code)) }
    }

    fn refused(&self, code: c_int) -> Refusal {
        self.pool.refused(code, if self.reads { "r" } else { "rw" })
    }

    /// Sends a write.
    pub(super) fn write(pool: &Arc<PoolIo>, op: &Write) -> Result<Flight, Refusal> {
        let name = text(op.object.name.as_str())?;
        let flight = Flight::new(pool, false)?;
        let (library, operation) = (flight.library(), flight.operation);
        guard(library, operation, op)?;
        for change in &op.changes {
            apply(library, operation, change)?;
        }
        let (io, completion) = (pool.io, flight.completion);
        // SAFETY: the operation has copies of all bytes; the name is copied too.
        let code = unsafe {
            (library.aio_write_op_operate)(
                operation,
                io,
                completion,
                name.as_ptr(),
                ptr::null_mut(),
                when_full(&op.changes),
            )
        };
        flight.sent(code)
    }

    /// The result of a write.
    pub(super) fn written(self) -> Result<Version, Refusal> {
        self.wait()
    }

    /// Sends a read.
    pub(super) fn read(pool: &Arc<PoolIo>, op: &Read) -> Result<Flight, Refusal> {
        let name = text(op.object.name.as_str())?;
        let mut flight = Flight::new(pool, true)?;
        let (library, operation) = (flight.library(), flight.operation);
        // SAFETY: the operation is being built. Without it a read of nothing does not tell that the
        // object is missing.
        unsafe { (library.read_op_assert_exists)(operation) };
        for part in &op.parts {
            let eye = add_part(library, operation, part)?;
            flight.parts.push(eye);
        }
        let (io, completion) = (pool.io, flight.completion);
        // SAFETY: replies go to places on the heap that the flight owns; the name is copied.
        let code =
            unsafe { (library.aio_read_op_operate)(operation, io, completion, name.as_ptr(), 0) };
        flight.sent(code)
    }

    /// The result of a read.
    pub(super) fn seen(mut self) -> Result<ReadResult, Refusal> {
        let version = self.wait()?;
        let library = self.library();
        let seen = self
            .parts
            .iter_mut()
            .map(|eye| see(library, eye))
            .collect::<Result<Vec<Seen>, Refusal>>()?;
        Ok(ReadResult { version, seen })
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let library = self.library();
        // SAFETY: after the reply librados touches none of these any more.
        unsafe {
            if self.sent {
                (library.aio_wait_for_complete)(self.completion);
            }
            (library.aio_release)(self.completion);
            if self.reads {
                (library.release_read_op)(self.operation)
            } else {
                (library.release_write_op)(self.operation)
            }
        }
        self.parts.drain(..).for_each(|eye| end(library, &eye));
    }
}

/// A full cluster accepts removals and operations that free space.
fn when_full(changes: &[Change]) -> c_int {
    let room =
        |change: &Change| matches!(change, Change::Remove | Change::DropOmap(_) | Change::Zero(..));
    let data = |change: &Change| {
        matches!(change, Change::Write(..) | Change::Full(_) | Change::Overwrite(_))
    };
    if changes.iter().any(room) && !changes.iter().any(data) { FULL_FORCE } else { FULL_TRY }
}

/// Adds the conditions of a write. Their order decides which refusal is given: first the condition
/// that the object exists, or does not exist.
fn guard(library: &Library, operation: Handle, op: &Write) -> Result<(), Refusal> {
    let absent = op.guards.contains(&Guard::Absent);
    let removes = op.changes.contains(&Change::Remove);
    // SAFETY: the operation is being built; it copies what it is given.
    unsafe {
        if absent {
            (library.write_op_create)(operation, 1, ptr::null());
        } else if !op.guards.is_empty() {
            (library.write_op_assert_exists)(operation);
        } else if !removes {
            (library.write_op_create)(operation, 0, ptr::null());
        }
    }
    for guard in &op.guards {
        match guard {
            Guard::Absent | Guard::Exists => {}
            // SAFETY: as above.
            Guard::Version(version) => unsafe {
                (library.write_op_assert_version)(operation, version.0)
            },
            Guard::Omap(key, value) => {
                let key = text(key.as_slice())?;
                // SAFETY: as above; nobody looks at the single result.
                unsafe {
                    (library.write_op_omap_cmp)(
                        operation,
                        key.as_ptr(),
                        EQUAL,
                        value.as_ptr().cast(),
                        value.len(),
                        ptr::null_mut(),
                    );
                }
            }
            Guard::Xattr(name, value) => {
                let name = text(*name)?;
                // SAFETY: as above.
                unsafe {
                    (library.write_op_cmpxattr)(
                        operation,
                        name.as_ptr(),
                        EQUAL,
                        value.as_ptr().cast(),
                        value.len(),
                    )
                };
            }
        }
    }
    Ok(())
}

fn apply(library: &Library, operation: Handle, change: &Change) -> Result<(), Refusal> {
    let keys = |keys: &mut dyn Iterator<Item = &Vec<u8>>| {
        keys.map(|key| text(key.as_slice())).collect::<Result<Vec<CString>, Refusal>>()
    };
    let pointers = |keys: &[CString]| keys.iter().map(|key| key.as_ptr()).collect::<Vec<Text>>();
    // SAFETY of all: the operation is being built; it copies what it is given.
    match change {
        // SAFETY: see above.
        Change::Write(offset, bytes) => unsafe {
            (library.write_op_write)(operation, bytes.as_ptr().cast(), bytes.len(), *offset)
        },
        // SAFETY: see above.
        Change::Full(bytes) | Change::Overwrite(bytes) => unsafe {
            (library.write_op_write_full)(operation, bytes.as_ptr().cast(), bytes.len())
        },
        // SAFETY: see above.
        Change::Zero(offset, bytes) => unsafe {
            (library.write_op_zero)(operation, *offset, *bytes)
        },
        Change::SetOmap(pairs) => {
            let names = keys(&mut pairs.iter().map(|(key, _)| key))?;
            let values: Vec<Text> = pairs.iter().map(|(_, value)| value.as_ptr().cast()).collect();
            let lengths: Vec<usize> = pairs.iter().map(|(_, value)| value.len()).collect();
            let names = (pointers(&names), names);
            // SAFETY: see above; three arrays of one length.
            unsafe {
                (library.write_op_omap_set)(
                    operation,
                    names.0.as_ptr(),
                    values.as_ptr(),
                    lengths.as_ptr(),
                    lengths.len(),
                )
            };
        }
        Change::DropOmap(dropped) => {
            let names = keys(&mut dropped.iter())?;
            let names = (pointers(&names), names);
            // SAFETY: see above.
            unsafe { (library.write_op_omap_rm_keys)(operation, names.0.as_ptr(), names.0.len()) };
        }
        Change::SetXattr(name, value) => {
            let name = text(*name)?;
            // SAFETY: see above.
            unsafe {
                (library.write_op_setxattr)(
                    operation,
                    name.as_ptr(),
                    value.as_ptr().cast(),
                    value.len(),
                )
            };
        }
        // SAFETY: see above.
        Change::Remove => unsafe { (library.write_op_remove)(operation) },
    }
    Ok(())
}

/// Adds a part to an operation.
///
/// SAFETY of all: replies go to places that keep still and that the flight keeps until the reply;
/// texts are copied.
fn add_part(library: &Library, operation: Handle, part: &ReadPart) -> Result<Eye, Refusal> {
    Ok(match part {
        ReadPart::Data(offset, bytes) => {
            let length = (*bytes).min(LOOK_MAX) as usize;
            let (bytes, got) = (Place::new(vec![0u8; length].into_boxed_slice()), Answer::new(0));
            let at = got.places();
            // SAFETY: see above.
            unsafe {
                (library.read_op_read)(operation, *offset, length, bytes.at().cast(), at.0, at.1)
            };
            Eye::Data { bytes: Some(bytes), got }
        }
        ReadPart::Keys(keys) => {
            let keys = keys
                .iter()
                .map(|key| text(key.as_slice()))
                .collect::<Result<Vec<CString>, Refusal>>()?;
            let pointers: Vec<Text> = keys.iter().map(|key| key.as_ptr()).collect();
            let (iterator, _, result) = pairs_at();
            // SAFETY: see above.
            unsafe {
                (library.read_op_omap_get_vals_by_keys)(
                    operation,
                    pointers.as_ptr(),
                    pointers.len(),
                    iterator.1,
                    result,
                )
            };
            Eye::Pairs { iterator: iterator.0 }
        }
        ReadPart::Page(after, most) => {
            let after = text(after.as_slice())?;
            let none = c"";
            let (iterator, more, result) = pairs_at();
            // SAFETY: see above.
            unsafe {
                (library.read_op_omap_get_vals2)(
                    operation,
                    after.as_ptr(),
                    none.as_ptr(),
                    *most as u64,
                    iterator.1,
                    more,
                    result,
                )
            };
            Eye::Pairs { iterator: iterator.0 }
        }
        ReadPart::Xattr(name) => {
            let iterator = Answer::new(ptr::null_mut());
            let at = iterator.places();
            // SAFETY: see above.
            unsafe { (library.read_op_getxattrs)(operation, at.0, at.1) };
            Eye::Xattrs { name, iterator }
        }
        ReadPart::Stat => {
            let stat = Answer::new((0, 0));
            let (at, result) = stat.places();
            // SAFETY: see above; the parts of one place.
            unsafe {
                (library.read_op_stat)(operation, &raw mut (*at).0, &raw mut (*at).1, result)
            };
            Eye::Stat { at: stat }
        }
    })
}

/// A place for an iterator over pairs, and where librados writes it, whether there are more, and
/// the result.
fn pairs_at() -> ((Answer<(Handle, u8)>, *mut Handle), *mut u8, *mut c_int) {
    let answer = Answer::new((ptr::null_mut(), 0));
    let (at, result) = answer.places();
    // SAFETY: parts of a place that is there; no reference is made.
    let (iterator, more) = unsafe { (&raw mut (*at).0, &raw mut (*at).1) };
    ((answer, iterator), more, result)
}

/// Ends the iterator that librados made for a part.
fn end(library: &Library, eye: &Eye) {
    match eye {
        Eye::Pairs { iterator } if !iterator.left().0.is_null() => {
            // SAFETY: made by the part, and not used again.
            unsafe { (library.omap_get_end)(iterator.left().0) };
        }
        Eye::Xattrs { iterator, .. } if !iterator.left().is_null() => {
            // SAFETY: as above.
            unsafe { (library.getxattrs_end)(iterator.left()) };
        }
        _ => {}
    }
}

/// The result of one part, after the reply. The flight ends the iterators.
fn see(library: &Library, eye: &mut Eye) -> Result<Seen, Refusal> {
    Ok(match eye {
        Eye::Data { bytes, got } => {
            let got = got.read()?;
            // SAFETY: the reply is there.
            let mut bytes =
                bytes.take().map_or_else(Vec::new, |place| unsafe { place.into_box() }.into_vec());
            bytes.truncate(got);
            Seen::Data(bytes)
        }
        Eye::Pairs { iterator } => {
            let (iterator, more) = iterator.read()?;
            Seen::Pairs { pairs: pairs(library, iterator)?, more: more != 0 }
        }
        Eye::Xattrs { name, iterator } => Seen::Xattr(xattr(library, iterator.read()?, name)?),
        Eye::Stat { at } => {
            let (bytes, changed) = at.read()?;
            Seen::Stat { bytes, changed: Duration::from_secs(changed.max(0) as u64) }
        }
    })
}

/// Bytes that librados owns, copied.
fn copy(at: *const c_char, bytes: usize) -> Vec<u8> {
    if at.is_null() || bytes == 0 {
        return Vec::new();
    }
    // SAFETY: librados gave so many bytes, and keeps them until its iterator ends.
    unsafe { std::slice::from_raw_parts(at.cast::<u8>(), bytes) }.to_vec()
}

fn pairs(library: &Library, iterator: Handle) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Refusal> {
    let mut pairs = Vec::new();
    loop {
        let (mut key, mut value, mut bytes) = (ptr::null_mut(), ptr::null_mut(), 0);
        // SAFETY: the iterator was filled by the reply.
        let code = unsafe {
            (library.omap_get_next)(iterator, &raw mut key, &raw mut value, &raw mut bytes)
        };
        if code < 0 {
            return Err(refusal(code));
        }
        if key.is_null() {
            return Ok(pairs);
        }
        // SAFETY: keys end with a zero byte.
        pairs.push((unsafe { CStr::from_ptr(key) }.to_bytes().to_vec(), copy(value, bytes)));
    }
}

fn xattr(library: &Library, iterator: Handle, wanted: &str) -> Result<Option<Vec<u8>>, Refusal> {
    loop {
        let (mut name, mut value, mut bytes) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the iterator was filled by the reply.
        let code = unsafe {
            (library.getxattrs_next)(iterator, &raw mut name, &raw mut value, &raw mut bytes)
        };
        if code < 0 {
            return Err(refusal(code));
        }
        if name.is_null() {
            return Ok(None);
        }
        // SAFETY: names end with a zero byte.
        if unsafe { CStr::from_ptr(name) }.to_bytes() == wanted.as_bytes() {
            return Ok(Some(copy(value, bytes)));
        }
    }
}
