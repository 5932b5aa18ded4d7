//! Identities of the medium, the boot and the machine.

use std::fs;

use super::disk::FileDisk;
use crate::locality::Locality;

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
    /// True when reads come from the medium, whatever other machines do: it is local, or reads
    /// bypass the page cache.
    pub sees_others: bool,
}

/// Sixteen bytes in hexadecimal digits, with or without dashes.
fn id(path: &str) -> [u8; 16] {
    let digits: String =
        fs::read_to_string(path).unwrap_or_default().trim().chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16)
        .ok()
        .filter(|_| digits.len() == 32)
        .map_or([0; 16], u128::to_be_bytes)
}

impl FileDisk {
    /// Where this disk is.
    #[must_use]
    pub fn medium(&self) -> Medium {
        let stat = rustix::fs::fstat(self.fd());
        let (device, inode) = stat.map_or((0, 0), |stat| {
            (if self.device { stat.st_rdev } else { stat.st_dev }, stat.st_ino)
        });
        let local_file = !self.device && Locality::of(self.fd()) == Ok(Locality::Local);
        Medium {
            host: fs::read_to_string("/proc/sys/kernel/hostname")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            machine: id("/etc/machine-id"),
            boot: id("/proc/sys/kernel/random/boot_id"),
            device,
            inode,
            local_file,
            sees_others: local_file || self.direct,
        }
    }
}
