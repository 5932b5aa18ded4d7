//! What tells one medium, boot and machine from another.

use std::{fs, os::fd::AsFd};

use super::FileDisk;

/// Where a disk is, and on which machine this process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Medium {
    /// The host's name.
    pub host: String,
    /// `/etc/machine-id`; zero where there is none.
    pub machine: [u8; 16],
    /// The kernel's id of this boot; zero without `/proc`.
    pub boot: [u8; 16],
    /// The device that the file is on; of a block device its own number.
    pub device: u64,
    /// The inode of the file or of the device's name.
    pub inode: u64,
    /// A regular file on a file system that other machines do not reach.
    pub local_file: bool,
    /// What is read comes from the medium, whatever other machines do: it is local, or the page cache is passed by.
    pub sees_others: bool,
}

/// Numbers of file systems that belong to one kernel (`statfs(2)`): ext2 to ext4, XFS, btrfs, tmpfs, ramfs, F2FS, ZFS, bcachefs, overlay, FAT, exFAT,
/// NTFS, JFS, ReiserFS, NILFS2. Whatever is not in the list may be shared.
const LOCAL: [u32; 15] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x794c_7630,
    0x4d44,
    0x2011_bab0,
    0x7366_746e,
    0x3153_464a,
    0x5265_4973,
    0x3434,
];

/// True when a file is on a file system that belongs to this kernel alone.
pub(super) fn is_local(file: impl AsFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| LOCAL.contains(&(found.f_type as u32)))
}

/// Sixteen bytes in hexadecimal digits, with or without dashes.
fn id(path: &str) -> [u8; 16] {
    let digits: String = fs::read_to_string(path).unwrap_or_default().trim().chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).map_or([0; 16], u128::to_be_bytes)
}

impl FileDisk {
    /// Where this disk is.
    #[must_use]
    pub fn medium(&self) -> Medium {
        let stat = rustix::fs::fstat(self.fd());
        let (device, inode) = stat.map_or((0, 0), |stat| (if self.device { stat.st_rdev } else { stat.st_dev }, stat.st_ino));
        let local_file = !self.device && is_local(self.fd());
        Medium {
            host: fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
            machine: id("/etc/machine-id"),
            boot: id("/proc/sys/kernel/random/boot_id"),
            device,
            inode,
            local_file,
            sees_others: local_file || self.direct,
        }
    }
}
