//! Extended attributes of what is open.

use std::{fs::File, os::fd::OwnedFd};

use rustix::io::Errno;

use super::mounts::proc_path;

/// Something whose attributes are read.
pub(super) enum Holder<'a> {
    Open(&'a File),
    /// Open as a place only: its attributes are read through `/proc`.
    Path(&'a OwnedFd),
}

impl Holder<'_> {
    pub(super) fn names(&self, room: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Holder::Open(file) => rustix::fs::flistxattr(file, room),
            Holder::Path(at) => rustix::fs::listxattr(proc_path(at), room),
        }
    }

    pub(super) fn value(&self, name: &[u8], room: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Holder::Open(file) => rustix::fs::fgetxattr(file, name, room),
            Holder::Path(at) => rustix::fs::getxattr(proc_path(at), name, room),
        }
    }
}

/// Reads into room that grows to the 64 KiB that Linux allows.
pub(super) fn read_growing(
    first: usize,
    read: &mut dyn FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<u8>, Errno> {
    const MOST: usize = 64 << 10;
    let mut room = vec![0; first];
    loop {
        match read(&mut room) {
            Err(Errno::RANGE) if room.len() < MOST => room.resize(MOST, 0),
            read => {
                room.truncate(read?);
                return Ok(room);
            }
        }
    }
}
