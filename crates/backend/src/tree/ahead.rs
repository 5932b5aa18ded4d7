//! Small files and directories that are read soon: other threads bring them into the system's cache.
//!
//! A walk opens and reads one after the other, so a disk that could answer many questions at once
//! is asked one. Here a few threads open the files that follow, and ask the system for their bytes, and
//! read the directories that follow, and look at what is in them. The walk uses nothing that they find:
//! it looks at each entry and opens it as without them, so their number changes nothing in what it
//! tells. What changes, vanishes or can't be opened meanwhile is none of their business.

use std::{
    ffi::{OsStr, OsString},
    num::NonZeroU64,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
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

use super::{
    mounts::{open_within, proc_path},
    unnoticed::unnoticed,
};

/// Names of a directory that are looked at before the walk comes to them.
pub(super) const NAMES: usize = 32;

/// Questions that the disk has at once, unless somebody says how many.
pub(super) const READERS: usize = 4;

/// Names of a directory that are looked at before the walk comes to it.
const ENTRIES: usize = 4096;

/// Of longer files the system reads ahead itself.
const BYTES_MAX: u64 = 1 << 20;

/// The threads. They end when this is dropped and they have done what they were given; a file system
/// that does not answer holds up nobody else.
pub(super) struct Ahead(SyncSender<(Arc<OwnedFd>, OsString)>);

impl Ahead {
    /// Starts so many; without any, files and directories are read as they come.
    pub(super) fn begin(readers: usize) -> Ahead {
        let (send, receive) = sync_channel::<(Arc<OwnedFd>, OsString)>(2 * NAMES);
        let receive = Arc::new(Mutex::new(receive));
        for _ in 0..readers {
            let receive = receive.clone();
            let fetching = move || {
                loop {
                    let next = receive.lock().recv();
                    let Ok((directory, name)) = next else { return };
                    // The walk tells of what can't be had.
                    let _ = fetch(&directory, &name);
                }
            };
            let _ = std::thread::Builder::new().name("read ahead".to_owned()).spawn(fetching);
        }
        Ahead(send)
    }

    /// Has a file or directory of a directory fetched; leaves it when there is much to fetch already.
    pub(super) fn fetch(&self, directory: &Arc<OwnedFd>, name: OsString) {
        let _ = self.0.try_send((directory.clone(), name));
    }
}

/// Asks the system for the bytes of a small regular file, or for what is in a directory. Nothing else is
/// opened: opening a device may do something, and a file system that somebody mounted there may never
/// answer.
fn fetch(directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let place = open_within(directory, name).ok_or(Errno::XDEV)??;
    let stat = rustix::fs::fstat(&place)?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => return look_inside(&place, stat.st_uid),
        FileType::RegularFile if bytes <= BYTES_MAX => {}
        _ => return Ok(()),
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |more| rustix::fs::open(proc_path(&place), flags | more, Mode::empty());
    let file = unnoticed(stat.st_uid, open)?;
    fadvise(&file, 0, NonZeroU64::new(bytes), Advice::WillNeed)
}

/// Reads the names in a directory, and looks at what lies on its mount.
fn look_inside(place: &OwnedFd, owner: u32) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |more| rustix::fs::openat(place, ".", flags | more, Mode::empty());
    let directory = unnoticed(owner, open)?;
    for entry in rustix::fs::Dir::read_from(&directory)?.take(ENTRIES) {
        let _ = open_within(&directory, OsStr::from_bytes(entry?.file_name().to_bytes()));
    }
    Ok(())
}
