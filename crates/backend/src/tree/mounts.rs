//! What is mounted where a walk comes by.
//!
//! A server that is gone, or a program of a user who mounted a file system of his own (FUSE), may
//! keep who asks it anything waiting for ever. So a mount point is recognised before anything is asked
//! that the system has to fetch.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Stat, Statx, StatxAttributes, StatxFlags};

/// The beginnings of the types of file systems that others than the kernel answer for.
const REMOTE: [&str; 7] = ["fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs"];

/// Where a directory is mounted: the number of the mount where the system tells it, which another
/// mount of the same file system does not share; else the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mount(u64);

impl Mount {
    pub(super) fn of(at: &OwnedFd, stat: &Stat) -> Mount {
        let told = rustix::fs::statx(at, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        let told = told.ok().filter(|told| told.stx_mask & StatxFlags::MNT_ID.bits() != 0);
        Mount(told.map_or(stat.st_dev, |told| told.stx_mnt_id))
    }
}

/// A directory on which something is mounted that is not entered.
pub(super) struct Closed {
    /// What the system knows of it without asking anybody.
    pub(super) stat: Stat,
    /// Nobody but the kernel has to answer for its attributes.
    pub(super) is_local: bool,
    /// The user who mounted it, when that is why.
    pub(super) of_user: Option<u32>,
}

/// A name of a directory on which something is mounted that is not entered: anything at all with
/// `one_file_system`, else what another user mounted. Asks no file system.
pub(super) fn closed(
    directory: &OwnedFd,
    name: &std::ffi::OsStr,
    one_file_system: bool,
) -> Option<Closed> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let told = rustix::fs::statx(directory, name, flags, wanted).ok()?;
    if !told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return None;
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let (kind, user) = of_mount(&table, told.stx_mnt_id).unwrap_or_default();
    let us = rustix::process::geteuid().as_raw();
    let of_user = user.filter(|&user| user != 0 && user != us);
    if !one_file_system && of_user.is_none() {
        return None;
    }
    let is_local = !REMOTE.iter().any(|remote| kind.starts_with(remote));
    Some(Closed { stat: stat(directory, &told, is_local)?, is_local, of_user })
}

/// True when anything is mounted on a name of a directory. Asks no file system for anything, so that
/// one which lets nobody else in, or never answers, does not matter.
pub(super) fn is_mount(directory: &OwnedFd, name: &std::ffi::OsStr) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(directory, name, flags, StatxFlags::empty())
        .is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The type of a file system that is mounted, and the user who mounted it, where that is told.
fn of_mount(table: &str, number: u64) -> Option<(&str, Option<u32>)> {
    let line = table
        .lines()
        .find(|line| line.split(' ').next().and_then(|first| first.parse().ok()) == Some(number))?;
    let mut parts = line.split_once(" - ")?.1.split(' ');
    let (kind, options) = (parts.next()?, parts.nth(1).unwrap_or_default());
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id="));
    Some((kind, user.and_then(|user| user.parse().ok()).filter(|_| kind.starts_with("fuse"))))
}

/// As the other calls tell it. A list of rights that is not read might give a group less than the
/// mode shows, so the group gets no more than all others.
fn stat(directory: &OwnedFd, told: &Statx, is_local: bool) -> Option<Stat> {
    let mut stat = rustix::fs::fstat(directory).ok()?;
    let mode = u32::from(told.stx_mode);
    let without_list = mode & !0o070 | mode & 0o070 & (mode & 0o007) << 3;
    stat.st_mode = if is_local { mode } else { without_list };
    stat.st_dev = rustix::fs::makedev(told.stx_dev_major, told.stx_dev_minor);
    stat.st_ino = told.stx_ino;
    (stat.st_uid, stat.st_gid) = (told.stx_uid, told.stx_gid);
    (stat.st_mtime, stat.st_mtime_nsec) = (told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec as _);
    (stat.st_ctime, stat.st_ctime_nsec) = (told.stx_ctime.tv_sec, told.stx_ctime.tv_nsec as _);
    Some(stat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_tells_who_mounted_what() {
        let table = "36 35 98:0 /a /m rw,noatime master:1 - ext4 /dev/root rw,errors=continue\n\
                     41 35 0:50 / /home/u/x rw,nosuid - fuse.sshfs h: rw,user_id=1000,group_id=5\n\
                     42 35 0:51 / /strange rw - ext4 /dev/x rw,user_id=7\n\
                     43 35\n";
        assert_eq!(of_mount(table, 36), Some(("ext4", None)));
        assert_eq!(of_mount(table, 41), Some(("fuse.sshfs", Some(1000))));
        assert_eq!(of_mount(table, 42), Some(("ext4", None)));
        assert_eq!((of_mount(table, 43), of_mount(table, 4)), (None, None));
    }
}
