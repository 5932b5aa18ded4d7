//! The directory on which root mounts, whatever its path leads to by now.
//!
//! Other users may rename a directory on the way there, or put a link in its place, before the mount and
//! after it. So root mounts on a descriptor of the directory, and finds the mount again from there.

use std::{
    ffi::CString,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, StatxFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{getgid, getuid},
};

/// The device by which the kernel asks.
const DEVICE: &str = "/dev/fuse";

/// What was mounted on a directory.
pub(crate) struct Point {
    directory: OwnedFd,
    /// The number of the mount, where the system tells it.
    number: Option<u64>,
}

impl Point {
    /// Mounts on a directory; gives the device by which the kernel asks, too. `None` when the system
    /// lets this user mount nothing.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn mount(
        directory: OwnedFd,
        allow_other: bool,
    ) -> io::Result<Option<(Point, OwnedFd)>> {
        let device = File::options().read(true).write(true).open(DEVICE)?;
        let mut options = format!(
            "fd={},rootmode=40755,user_id={},group_id={}",
            device.as_raw_fd(),
            getuid().as_raw(),
            getgid().as_raw()
        );
        if allow_other {
            options += ",default_permissions,allow_other";
        }
        let options = CString::new(options)?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::RDONLY;
        match mount("onefold", way_to(&directory), "fuse", flags, Some(&*options)) {
            Err(Errno::PERM) => return Ok(None),
            mounted => mounted?,
        }
        let mut point = Point { directory, number: None };
        point.number = point.way().and_then(|way| number(&way));
        Ok(Some((point, device.into())))
    }

    /// Unmounts, unless that happened already. While somebody is in it, it is taken out of the tree of
    /// files only: true then.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn unmount(&self) -> Result<bool, Errno> {
        let Some(way) = self.way().filter(|way| number(way) == self.number) else {
            return Ok(false);
        };
        match unmount(&way, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) => {
                unmount(&way, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH).map(|()| true)
            }
            done => done.map(|()| false),
        }
    }

    /// A path to what is mounted, by the name that the directory has now.
    fn way(&self) -> Option<PathBuf> {
        let inside = way_to(&self.directory);
        let now = rustix::fs::readlink(&inside, Vec::new()).ok()?;
        let name = Path::new(std::ffi::OsStr::from_bytes(now.as_bytes())).file_name()?;
        Some(inside.join("..").join(name))
    }
}

/// Where a directory is found again.
pub(crate) fn way_to(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

/// The number of the mount that a path leads to. Asks no file system.
fn number(at: &Path) -> Option<u64> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let told = rustix::fs::statx(CWD, at, flags, StatxFlags::MNT_ID).ok()?;
    (told.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(told.stx_mnt_id)
}
