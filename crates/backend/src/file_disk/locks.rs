//! Keeping other processes of this machine away from a store: the locks on its file, and on the
//! file below its loop device (rule 16 of SECURITY.md).
//!
//! | what | kept out |
//! |---|---|
//! | `flock` on the file or device | every process that opens it as a store |
//! | a lock on the whole range of a file, owned by the descriptor | clients of an NFS server on this machine, whose `flock` becomes such a range |
//! | `flock` on the files below loop devices | processes that open the same file by its own name, or by another loop device |
//!
//! The range is locked on local file systems only: on NFS both locks would be ranges at the server,
//! and the second one would be refused.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use onefold_core::{Error, Hold, Kind, Result};
use rustix::{fs::OFlags, io::Errno};

use super::{handle::Access, standing::Standing};
use crate::{locality::Locality, lock};

/// Loop devices on files on loop devices, followed so deep.
const DEPTH: u32 = 8;

/// A file below a loop device, locked.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) file: File,
    pub(super) name: String,
    pub(super) standing: Standing,
}

/// Locks the file or device of a store.
///
/// # Errors
/// `Busy` when somebody else has it open, `Unsupported` where locks are not offered.
pub(super) fn lock(file: &File, path: &Path, access: Access) -> Result<()> {
    let by_range = file.metadata().is_ok_and(|found| found.is_file())
        && Locality::of(file.as_fd()) == Ok(Locality::Local);
    take(file, path, access, by_range)
}

/// Takes the lock that an access needs, by `flock` and where asked for by range too.
fn take(file: &File, path: &Path, access: Access, by_range: bool) -> Result<()> {
    let hold = if access == Access::ReadWrite { Hold::Alone } else { Hold::Shared };
    lock::once(file, hold, by_range)
        .map_err(|errno| if errno == Errno::WOULDBLOCK { busy(path) } else { refused(path, errno) })
}

fn busy(path: &Path) -> Error {
    Error::new(Kind::Busy, format!("store {} is in use by another process", path.display()))
}

fn refused(path: &Path, errno: Errno) -> Error {
    let message =
        format!("store {} cannot be locked against other processes ({errno})", path.display());
    Error::new(Kind::Unsupported, message).caused_by(io::Error::from(errno))
}

/// Locks the files below a device. One that is not reached by the name that the kernel knows (it
/// was removed, or is in another mount namespace, or not ours to open) is left to the claim.
///
/// # Errors
/// `Busy` when one of them is a store that somebody has open.
pub(super) fn lock_backing(device: u64, path: &Path, access: Access) -> Result<Vec<Backing>> {
    let mut files = Vec::new();
    collect(&sysfs(device), DEPTH, &mut files);
    let mut locked: Vec<Backing> = Vec::new();
    for name in files {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let Ok(file) = File::options().read(true).custom_flags(flags.bits() as i32).open(&name)
        else {
            continue;
        };
        let Some(found) = file.metadata().ok().filter(fs::Metadata::is_file) else { continue };
        take(&file, path, access, false).map_err(|e| {
            e.context(format!("{}, the file below {}", name.display(), path.display()))
        })?;
        let standing = Standing::of(&file, &name, false, found.len());
        locked.push(Backing {
            standing,
            name: format!("{}, the file below store {}", name.display(), path.display()),
            file,
        });
    }
    Ok(locked)
}

/// Where the kernel describes a device.
fn sysfs(device: u64) -> PathBuf {
    let link =
        format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    fs::canonicalize(&link).unwrap_or_else(|_| link.into())
}

/// The files of the loop devices that a device is, is a part of, or is made of.
fn collect(at: &Path, depth: u32, files: &mut Vec<PathBuf>) {
    if depth == 0 {
        return;
    }
    let whole = if at.join("partition").exists() { at.parent().unwrap_or(at) } else { at };
    if let Ok(name) = fs::read(whole.join("loop/backing_file")) {
        let name = name.strip_suffix(b"\n").unwrap_or(&name);
        let name =
            PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name));
        if !files.contains(&name) {
            files.push(name);
        }
    }
    for slave in fs::read_dir(whole.join("slaves")).into_iter().flatten().flatten() {
        if let Ok(slave) = fs::canonicalize(slave.path()) {
            collect(&slave, depth - 1, files);
        }
    }
}
