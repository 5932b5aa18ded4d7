//! Owner, attributes, mode and times of restored files, and the lists of access rights that they may
//! have.

use std::os::fd::{AsFd, OwnedFd};

use onefold_core::tree::{ACCESS_LIST as ACCESS, Entry, mode_without_list};
use rustix::{
    fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags},
    io::Errno,
};

use super::mounts::proc_path;

/// Permission bits that anybody may have restored.
pub(super) const PLAIN_BITS: u32 = 0o777;

/// In a directory with this bit, users remove only what is their own.
pub(super) const STICKY: u32 = 0o1000;

/// The list of who may use a file, beyond its mode.
pub(super) const ACCESS_LIST: &str = "system.posix_acl_access";

/// The list that a directory hands down to what is made in it.
pub(super) const DEFAULT_LIST: &str = "system.posix_acl_default";

/// Attributes that the system gives to each new file by itself.
const LABELS: [&[u8]; 3] = [b"security.selinux", b"security.SMACK64", b"security.apparmor"];

/// The mode of an entry that lacks its list of access rights.
pub(super) fn without_list(entry: &Entry, mode: Mode) -> Mode {
    let list = entry.attributes.iter().find(|(name, _)| name == ACCESS);
    list.map_or(mode, |(_, list)| Mode::from_raw_mode(mode_without_list(mode.as_raw_mode(), list)))
}

/// True for attributes that give no user a privilege: those of users, and POSIX ACLs.
pub(super) fn is_plain(name: &[u8]) -> bool {
    name.starts_with(b"user.") || is_list(name)
}

/// True for POSIX ACLs.
pub(super) fn is_list(name: &[u8]) -> bool {
    name == ACCESS_LIST.as_bytes() || name == DEFAULT_LIST.as_bytes()
}

/// True when something has a list of access rights.
pub(super) fn has_list(fd: &impl AsFd, list: &str) -> bool {
    rustix::fs::fgetxattr(fd, list, &mut [0; 0]).is_ok()
}

/// True when a place has a list of access rights, or nobody can tell, as without `/proc`: the place itself
/// can't be asked.
#[allow(clippy::disallowed_methods, reason = "the path is the descriptor's own")]
pub(super) fn place_has_list(place: &OwnedFd) -> bool {
    let read = rustix::fs::getxattr(proc_path(place), ACCESS_LIST, &mut [0; 0]);
    !matches!(read, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// Removes a list of access rights, if there is one.
pub(super) fn drop_list(fd: &impl AsFd, list: &str) -> Result<(), Errno> {
    no_list(rustix::fs::fremovexattr(fd, list))
}

/// Removes the lists of access rights that a directory got from that above it as it was made.
///
/// # Errors
/// Those of the system.
pub fn drop_lists(directory: &OwnedFd) -> Result<(), Errno> {
    drop_list(directory, ACCESS_LIST).and_then(|()| drop_list(directory, DEFAULT_LIST))
}

/// There may be no list, or none on the file system.
fn no_list(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        removed => removed,
    }
}

/// Removes the list of access rights of a pipe or a device. A place names it, and can't be used for
/// that itself: `/proc` leads from the place to what it names.
#[allow(clippy::disallowed_methods, reason = "the path is the descriptor's own")]
pub(super) fn drop_list_of_place(place: &OwnedFd) -> Result<(), Errno> {
    no_list(rustix::fs::removexattr(proc_path(place), ACCESS_LIST))
}

/// Sets the mode of a pipe or a device, by the same way.
#[allow(clippy::disallowed_methods, reason = "the path is the descriptor's own")]
pub(super) fn open_place(place: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::chmod(proc_path(place), mode)
}

/// Sets an attribute of a link, pipe, socket or device, by the same way: it ends at a link, and does
/// not follow it. `OPNOTSUPP` without `/proc`.
#[allow(clippy::disallowed_methods, reason = "the path is the descriptor's own")]
pub(super) fn set_on_place(place: &OwnedFd, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    match rustix::fs::setxattr(proc_path(place), name, value, XattrFlags::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => Err(Errno::OPNOTSUPP),
        set => set,
    }
}

/// Names and values of the attributes of a file, without those that the system gives by itself.
pub(super) fn attributes(fd: &impl AsFd) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
    const MOST: usize = 64 << 10;
    let mut names = vec![0; MOST];
    let bytes = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        read => read?,
    };
    let mut all = Vec::new();
    for name in names[..bytes].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if LABELS.contains(&name) {
            continue;
        }
        let mut value = vec![0; MOST];
        let bytes = rustix::fs::fgetxattr(fd, name, &mut value[..])?;
        value.truncate(bytes);
        all.push((name.to_vec(), value));
    }
    Ok(all)
}

pub(super) fn times(entry: &Entry) -> Timestamps {
    let time = Timespec { tv_sec: entry.seconds, tv_nsec: i64::from(entry.nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}

/// Owner of a link, pipe or device, through its descriptor.
#[allow(clippy::disallowed_methods, reason = "the path is empty: it is the descriptor's own")]
pub(super) fn chown_place(place: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
    rustix::fs::chownat(
        place,
        "",
        Some(Uid::from_raw(entry.uid)),
        Some(Gid::from_raw(entry.gid)),
        AtFlags::EMPTY_PATH,
    )
}

/// Sets the time of a place. Before Linux 5.8 this is not possible, and the time stays the current
/// one.
#[allow(clippy::disallowed_methods, reason = "the path is empty: it is the descriptor's own")]
pub(super) fn touch_place(place: &OwnedFd, entry: &Entry) -> Result<(), Errno> {
    match rustix::fs::utimensat(place, "", &times(entry), AtFlags::EMPTY_PATH) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOENT) => Ok(()),
        touched => touched,
    }
}
