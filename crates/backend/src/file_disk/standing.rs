//! Whether the file below a disk, or one of a cluster folder, is still all there, under its name
//! (rule 17 of SECURITY.md).
//!
//! A file that somebody cut off, removed or replaced takes writes and flushes without error, and
//! gives nothing back later. So each flush is followed by one `fstat` of the descriptor and one
//! `stat` of the path, about 2 µs beside a flush, outside of all locks.
//!
//! *Not noticed:* a file that was cut off and has grown to its full length again between two looks.
//! The checksums and fingerprints of what is read tell it.
//! A file that was moved while nobody may look at its path: what was written lies in it, wherever it
//! is.

use std::{
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use onefold_core::{Error, Kind, Result};
use rustix::io::Errno;

use super::handle::{explain_errno, size};

/// A file or device as it was when it was opened.
#[derive(Debug)]
pub(crate) struct Standing {
    /// Bytes that it must go on having.
    bytes: AtomicU64,
    kind: Kept,
}

#[derive(Debug)]
enum Kept {
    Device,
    /// With its path, unless another file was there from the beginning.
    File(Option<(PathBuf, Inode)>),
}

/// Device and number of an inode.
type Inode = (u64, u64);

impl Standing {
    pub(crate) fn of(fd: impl AsFd, path: &Path, device: bool, bytes: u64) -> Standing {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let there = rustix::fs::fstat(fd)
            .map(|stat| inode(&stat))
            .ok()
            .filter(|found| rustix::fs::stat(&path).is_ok_and(|stat| inode(&stat) == *found));
        let kind = if device { Kept::Device } else { Kept::File(there.map(|inode| (path, inode))) };
        Standing { bytes: AtomicU64::new(bytes), kind }
    }

    /// True when it is known by its path.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.kind, Kept::Device | Kept::File(Some(_)))
    }

    /// Its owner makes it so long, which may be shorter than it was.
    pub(crate) fn becomes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Release);
    }

    /// From now on it has so many bytes at least.
    pub(crate) fn rise(&self, bytes: u64) {
        self.bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Looks again.
    ///
    /// # Errors
    /// `Io`, with what became of the file.
    pub(crate) fn look(&self, fd: BorrowedFd<'_>, name: &str) -> Result<()> {
        let gone = |what: String| Err(Error::new(Kind::Io, format!("{name} {what}")));
        let had = self.bytes.load(Ordering::Acquire);
        let cut = |bytes: u64| gone(format!("was cut off: it has {bytes} bytes, and had {had}"));
        let Kept::File(kept) = &self.kind else {
            // `stat` shows no size of a device.
            let bytes =
                size(fd).map_err(|e| Error::from_io(format!("{name}: looking at its size"), e))?;
            return if bytes < had { cut(bytes) } else { Ok(()) };
        };
        let stat = rustix::fs::fstat(fd)
            .map_err(|errno| explain_errno(&format!("{name}: looking at its size"), errno))?;
        if (stat.st_size as u64) < had {
            return cut(stat.st_size as u64);
        }
        if stat.st_nlink == 0 {
            return gone("was removed while it was open".to_owned());
        }
        let Some((path, inode)) = kept else { return Ok(()) };
        match rustix::fs::stat(path) {
            Ok(stat) if self::inode(&stat) != *inode => {
                gone("is another file now: it was moved and replaced while it was open".to_owned())
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {
                gone("is not at its path any more: it was moved while it was open".to_owned())
            }
            // A path that cannot be looked at says nothing.
            _ => Ok(()),
        }
    }
}

fn inode(stat: &rustix::fs::Stat) -> Inode {
    (stat.st_dev, stat.st_ino)
}
