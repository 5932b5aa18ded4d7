//! Small files that are read soon: other threads bring them into the system's cache.
//!
//! A walk opens and reads one file after the other, so a disk that could answer many questions at once
//! is asked one. Here a few threads open the files that follow, and ask the system for their bytes.
//! The walk uses nothing that they find: it looks at each file and opens it as without them. A file
//! that changes, vanishes or can't be opened meanwhile is none of their business.

use std::{
    ffi::{OsStr, OsString},
    num::NonZeroU64,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
};

use parking_lot::Mutex;
use rustix::{
    fs::{Advice, FileType, Mode, OFlags, fadvise},
    io::Errno,
};

use super::mounts::{open_within, proc_path};

/// Names of a directory that are looked at before the walk comes to them.
pub(super) const NAMES: usize = 32;

/// Questions that the disk has at once.
const THREADS: usize = 4;

/// Of longer files the system reads ahead itself.
const BYTES_MAX: u64 = 1 << 20;

/// The threads. They end when this is dropped and they have done what they were given; a file system
/// that does not answer holds up nobody else.
pub(super) struct Ahead(SyncSender<(Arc<OwnedFd>, OsString)>);

impl Ahead {
    /// Starts them; without any, files are read as they come.
    pub(super) fn begin() -> Ahead {
        let (send, receive) = sync_channel::<(Arc<OwnedFd>, OsString)>(2 * NAMES);
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..THREADS {
            let receive = receive.clone();
            let fetching = move || {
                loop {
                    let next = receive.lock().recv();
                    let Ok((directory, name)) = next else { return };
                    // The walk tells of a file that can't be had.
                    let _ = fetch(&directory, &name);
                }
            };
            let _ = std::thread::Builder::new().name("read ahead".to_owned()).spawn(fetching);
        }
        Ahead(send)
    }

    /// Has a file of a directory fetched; leaves it when there is much to fetch already.
    pub(super) fn fetch(&self, directory: &Arc<OwnedFd>, name: OsString) {
        let _ = self.0.try_send((directory.clone(), name));
    }
}

/// Asks the system for the bytes of a small regular file. Nothing else is opened: opening a device may
/// do something, and a file system that somebody mounted there may never answer.
fn fetch(directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let place = open_within(directory, name).ok_or(Errno::XDEV)??;
    let stat = rustix::fs::fstat(&place)?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || bytes > BYTES_MAX {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(proc_path(&place), flags, Mode::empty())?;
    fadvise(&file, 0, NonZeroU64::new(bytes), Advice::WillNeed)
}
