//! Reading that leaves no trace: the time of the last access stays as it was.
//!
//! A backup that moves these times writes each inode that it reads, and a program that asks when a file
//! was used last finds the backup. The system leaves the time alone for a file's owner, and for root.

use rustix::{fs::OFlags, io::Errno};

/// Opens with [`OFlags::NOATIME`] what belongs to this user, where the process may do that, and else
/// without.
pub(super) fn unnoticed<T>(
    owner: u32,
    open: impl Fn(OFlags) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let user = rustix::process::geteuid();
    if user.is_root() || user.as_raw() == owner {
        match open(OFlags::NOATIME) {
            // Root of a container is not root of all users.
            Err(Errno::PERM) => {}
            opened => return opened,
        }
    }
    open(OFlags::empty())
}
