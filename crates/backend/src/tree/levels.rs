//! The directories from a root down to the one at hand.
//!
//! The directories near the root and those near the end stay open. A directory between them is
//! closed, and opened again as the parent of the one below it, if it is still the same directory.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::Identity;

/// Directories near the root that stay open. A user who moves deep directories can't affect those
/// above their own.
const HEAD: usize = 120;

/// Directories near the current one that stay open. With [`HEAD`], and the other open directories,
/// there are fewer than 256.
const TAIL: usize = 120;

struct Level<T> {
    directory: Option<OwnedFd>,
    identity: Identity,
    with: T,
}

/// A stack of open directories, each with something that belongs to it.
pub(super) struct Levels<T>(Vec<Level<T>>);

impl<T> Levels<T> {
    pub(super) fn new() -> Levels<T> {
        Levels(Vec::new())
    }

    /// The number of directories: the depth of the entries in the last one.
    pub(super) fn depth(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, directory: OwnedFd, identity: Identity, with: T) {
        self.0.push(Level { directory: Some(directory), identity, with });
        if self.0.len() > HEAD + TAIL {
            let between = self.0.len() - 1 - TAIL;
            self.0[between].directory = None;
        }
    }

    /// Removes the last directory; returns it with its value. The directory above is opened again
    /// if it was closed and is still the same one.
    pub(super) fn pop(&mut self) -> Option<(Option<OwnedFd>, T)> {
        let left = self.0.pop()?;
        if let Some(above) = self.0.last_mut().filter(|above| above.directory.is_none()) {
            above.directory =
                left.directory.as_ref().and_then(|below| parent(below, above.identity).ok());
        }
        Some((left.directory, left.with))
    }

    /// The last directory and its value; `None` for the directory when it was closed and another
    /// one is at its place now.
    pub(super) fn last(&mut self) -> Option<(Option<&OwnedFd>, &mut T)> {
        self.0.last_mut().map(|level| (level.directory.as_ref(), &mut level.with))
    }

    /// The values from the root on.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|level| &mut level.with)
    }

    /// The root.
    pub(super) fn first(&self) -> Option<&OwnedFd> {
        self.0.first()?.directory.as_ref()
    }
}

/// The directory above `below`, when it is the one that is expected.
fn parent(below: &OwnedFd, expected: Identity) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let above = rustix::fs::openat(below, "..", flags, Mode::empty())?;
    if Identity::of(&rustix::fs::fstat(&above)?) == expected {
        Ok(above)
    } else {
        Err(Errno::STALE)
    }
}
