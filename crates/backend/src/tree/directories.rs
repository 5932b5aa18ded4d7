//! Directories by their numbers, for threads that make files in any order. Few of them are open at a
//! time; one that is opened again must be the directory that it was.

use std::{collections::VecDeque, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use super::{
    Identity,
    shared::{Filling, open_directory},
    stamp::Stamp,
};

/// Directories that stay open.
const OPEN: usize = 128;

struct Directory {
    above: Option<usize>,
    name: Box<[u8]>,
    stamp: Stamp,
    filling: Arc<Filling>,
    open: Option<Arc<OwnedFd>>,
}

/// The table. Its first directory is the root.
#[derive(Default)]
pub(super) struct Directories {
    all: Vec<Directory>,
    /// Those that are open, the oldest first.
    open: VecDeque<usize>,
}

impl Directories {
    pub(super) fn add(
        &mut self,
        above: Option<usize>,
        name: &[u8],
        stamp: Stamp,
        filling: Arc<Filling>,
    ) -> usize {
        self.all.push(Directory { above, name: name.into(), stamp, filling, open: None });
        self.all.len() - 1
    }

    /// True when this number stands for this directory.
    pub(super) fn has(&self, number: usize, identity: Identity) -> bool {
        self.all.get(number).is_some_and(|directory| directory.stamp.identity == identity)
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Directories::default();
    }

    /// A directory, open; `STALE` when another one is in its place.
    pub(super) fn open(
        &mut self,
        number: usize,
        root: &OwnedFd,
    ) -> Result<(Arc<OwnedFd>, Arc<Filling>), Errno> {
        // The way up to one that is open.
        let (mut way, mut at) = (Vec::new(), Some(number));
        let mut open = None;
        while let Some(n) = at {
            let directory = self.all.get(n).ok_or(Errno::STALE)?;
            if let Some(fd) = &directory.open {
                open = Some(fd.clone());
                break;
            }
            way.push(n);
            at = directory.above;
        }
        while let Some(n) = way.pop() {
            let directory = self.all.get(n).ok_or(Errno::STALE)?;
            let fd = match &open {
                None => rustix::io::fcntl_dupfd_cloexec(root, 0)?,
                Some(above) => {
                    let (fd, stat) = match open_directory(above, &directory.name) {
                        // Somebody mounted something there since.
                        Err(Errno::XDEV) => return Err(Errno::STALE),
                        opened => opened?,
                    };
                    if !directory.stamp.fits(&fd, &stat) {
                        return Err(Errno::STALE);
                    }
                    fd
                }
            };
            open = Some(self.keep(n, fd));
        }
        let filling = self.all.get(number).ok_or(Errno::STALE)?.filling.clone();
        Ok((open.ok_or(Errno::STALE)?, filling))
    }

    fn keep(&mut self, number: usize, fd: OwnedFd) -> Arc<OwnedFd> {
        let fd = Arc::new(fd);
        if let Some(directory) = self.all.get_mut(number) {
            directory.open = Some(fd.clone());
            self.open.push_back(number);
        }
        while self.open.len() > OPEN
            && let Some(old) = self.open.pop_front()
        {
            self.all[old].open = None;
        }
        fd
    }
}
