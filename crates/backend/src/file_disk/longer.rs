//! A file becomes longer while it is open.
//!
//! *Invariant:* when that fails, the file has the length and the space that it had.

use std::fs::File;

use onefold_core::{Error, Kind, Result};
use rustix::{fs::FallocateFlags, io::Errno};

use super::handle::explain_errno;

/// The part of a file that is wanted, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// Where it begins: nothing behind is in use.
    pub(super) from: u64,
    /// Where it ends.
    pub(super) bytes: u64,
    /// The length of the file.
    pub(super) there: u64,
    /// Whether its space is reserved.
    pub(super) reserve: bool,
}

/// Gives the file, which `name` stands for in messages, this room, durably.
pub(super) fn lengthen(file: &File, name: &str, room: Room) -> Result<()> {
    if room.reserve
        && let Err(error) = reserve(file, name, room)
    {
        // The caller hears of the first failure; this one changes nothing of it.
        let _ = give_back(file, room);
        return Err(error);
    }
    if room.bytes > room.there {
        file.set_len(room.bytes).map_err(|e| {
            Error::from_io(format!("{name}: making it {} bytes long", room.bytes), e)
        })?;
    }
    file.sync_all().map_err(|e| Error::from_io(format!("{name}: making its length durable"), e))
}

fn reserve(file: &File, name: &str, room: Room) -> Result<()> {
    let Some(bytes) = room.bytes.checked_sub(room.from).filter(|&bytes| bytes > 0) else {
        return Ok(());
    };
    // Asked first, because a file system may fill up to the last block before it finds out.
    if let Ok(stat) = rustix::fs::fstatvfs(file)
        && let free = stat.f_bavail.saturating_mul(stat.f_frsize)
        && room.bytes.saturating_sub(room.there) > free
    {
        return Err(Error::new(
            Kind::NoSpace,
            format!(
                "{name} needs {bytes} bytes more, and its file system has {free} free: nothing was changed"
            ),
        ));
    }
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), room.from, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => {
                let doing = format!("{name}: reserving {bytes} bytes behind its end");
                return Err(explain_errno(&doing, errno));
            }
        }
    }
}

/// The file gets its length again, and what was reserved behind `from` goes.
fn give_back(file: &File, room: Room) -> std::io::Result<()> {
    file.set_len(room.there)?;
    if room.from < room.there {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, punch, room.from, room.there - room.from)?;
    }
    Ok(())
}
