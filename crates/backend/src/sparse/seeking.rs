//! Looking for holes by calls that may never come back.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::{fs::SeekFrom, io::Errno};

/// A stretch of data: its first byte, and the one after its last.
pub(super) type Stretch = Option<(u64, u64)>;

/// A question about a file: where is the first stretch of data from a byte on that begins before an end, or,
/// with no end, the first byte of data?
#[derive(Clone, Copy)]
pub(super) struct Question {
    pub(super) from: u64,
    pub(super) end: Option<u64>,
}

impl Question {
    pub(super) fn answer(self, file: impl AsFd) -> Result<Stretch, Errno> {
        match self.end {
            Some(end) => next_here(file.as_fd(), self.from, end),
            None => first_here(file.as_fd(), self.from),
        }
    }
}

/// The first stretch of data at or after a byte that begins before `end`, cut there.
fn next_here(file: BorrowedFd<'_>, from: u64, end: u64) -> Result<Stretch, Errno> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // File systems that do not know.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((from, end))),
        Err(errno) => return Err(errno),
    };
    // A file system that says what can't be, like a user's own, would lead round in circles.
    if start < from {
        return Ok(Some((from, end)));
    }
    if start >= end {
        return Ok(None);
    }
    // This walks all pieces of the stretch, and no further; the next question goes on behind it. The file
    // may have been cut off in between: then the reader finds out (`still_has`).
    let stop = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(end);
    Ok(Some((start, if stop <= start { end } else { stop.min(end) })))
}

/// The first byte of data; the end of its stretch says nothing.
fn first_here(file: BorrowedFd<'_>, from: u64) -> Result<Stretch, Errno> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        // A file system could say what can't be.
        Ok(start) => Ok(Some((start.max(from), u64::MAX))),
        Err(Errno::NXIO) => Ok(None),
        // File systems that do not know.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some((from, u64::MAX))),
        Err(errno) => Err(errno),
    }
}
