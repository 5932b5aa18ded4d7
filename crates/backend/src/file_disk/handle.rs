//! An open file or device: what it was opened for, its size, and the sentence for what fails.

use std::{io, os::fd::BorrowedFd};

use onefold_core::{Error, Kind};
use rustix::{fs::SeekFrom, io::Errno};

/// The access with which a disk is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading and writing; nobody else may have it open.
    ReadWrite,
    /// Reading; other readers may have it open, a writer may not.
    ReadOnly,
}

/// Size in bytes of an open file or block device. The end of a device is where `BLKGETSIZE64` says;
/// `stat` shows zero there.
pub(super) fn size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::seek(fd, SeekFrom::End(0))?)
}

/// The error for a system call on an open disk: out of space, or failed.
pub(crate) fn explain_errno(context: &str, errno: Errno) -> Error {
    let kind = match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Kind::NoSpace,
        _ => Kind::Io,
    };
    let cause = std::io::Error::from(errno);
    Error::new(kind, format!("{context}: {cause}")).caused_by(cause)
}
