//! Whether a file system is this machine's own: elsewhere another host may have the same files
//! open, and its locks may not meet ours.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

/// Magic numbers of file systems whose files nobody reaches but through this kernel (`statfs`). A
/// file system that is not in this list may be shared.
const LOCAL: [u64; 29] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlay
    0x6175_6673, // aufs
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // F2FS
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x3434,      // NILFS
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
    0x5346_544e, // NTFS
    0x7366_746e, // NTFS, the newer driver
    0xf15f,      // eCryptfs
    0x482b,      // HFS+
    0x4244,      // HFS
    0xf995_e849, // HPFS
    0x1501_3346, // UDF
    0x9660,      // ISO 9660
    0x2405_1905, // UBIFS
    0x72b6,      // JFFS2
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
    0x0001_1954, // UFS
    0x137f,      // Minix
];

const NFS: u64 = 0x6969;

/// File systems that keep no modes, or keep them for show: FAT, exFAT, HFS, SMB in three versions.
const MODELESS: [u64; 6] = [0x4d44, 0x2011_bab0, 0x4244, 0x517b, 0xff53_4d42, 0xfe53_4d42];

/// Where the files of a file system are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// On this machine.
    Local,
    /// On a server that keeps the locks of all its clients: NFS of version 4 without `local_lock`.
    Nfs4,
    /// Perhaps other machines' too.
    Shared,
}

impl Locality {
    /// The locality of an open file or directory.
    ///
    /// # Errors
    /// The errors of `fstatfs`.
    pub fn of(file: BorrowedFd<'_>) -> rustix::io::Result<Locality> {
        Ok(Locality::from_magic(magic(file)?, || mount_of(file)))
    }

    /// `mount` gives the line of the mount in `/proc/self/mountinfo`.
    fn from_magic(magic: u64, mount: impl FnOnce() -> Option<String>) -> Locality {
        if LOCAL.contains(&magic) {
            Locality::Local
        } else if magic == NFS && mount().is_some_and(|line| locks_at_its_server(&line)) {
            Locality::Nfs4
        } else {
            Locality::Shared
        }
    }
}

fn magic(file: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    Ok(rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff)
}

/// False where a mode that was asked for does not hold.
pub(crate) fn keeps_modes(file: BorrowedFd<'_>) -> bool {
    !magic(file).is_ok_and(|magic| MODELESS.contains(&magic))
}

/// The line of `/proc/self/mountinfo` for the mount that an open file is on.
fn mount_of(file: BorrowedFd<'_>) -> Option<String> {
    let said =
        fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd())).ok()?;
    let number = said.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    // Paths need not be text.
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let is_of_number = |line: &&[u8]| line.split(|&b| b == b' ').next() == Some(number.as_bytes());
    let line = mounts.split(|&byte| byte == b'\n').find(is_of_number)?;
    Some(String::from_utf8_lossy(line).into_owned())
}

/// True for a mount of NFS version 4 whose locks are kept by the server.
fn locks_at_its_server(mount: &str) -> bool {
    let Some((_, kind)) = mount.split_once(" - ") else { return false };
    let mut words = kind.split(' ');
    let (kind, options) = (words.next(), words.nth(1).unwrap_or_default());
    let local = options
        .split(',')
        .any(|option| option.starts_with("local_lock=") && option != "local_lock=none");
    kind == Some("nfs4") && !local
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nfs(kind: &str, options: &str) -> Locality {
        let line = format!(
            "40 20 0:35 / /mnt rw,relatime shared:1 - {kind} server:/export \
             rw,vers=4.2,{options},addr=10.0.0.1"
        );
        Locality::from_magic(NFS, || Some(line))
    }

    #[test]
    fn rule_16_file_systems_that_others_may_have_mounted_are_told_from_our_own() {
        for local in [0xef53, 0x5846_5342, 0x0102_1994] {
            assert_eq!(Locality::from_magic(local, || None), Locality::Local);
        }
        assert_eq!(nfs("nfs4", "local_lock=none"), Locality::Nfs4);
        assert_eq!(nfs("nfs4", "local_lock=all"), Locality::Shared);
        assert_eq!(nfs("nfs4", "local_lock=flock"), Locality::Shared);
        assert_eq!(nfs("nfs", "local_lock=none"), Locality::Shared);
        assert_eq!(Locality::from_magic(NFS, || None), Locality::Shared);
        // CIFS, SMB 2, 9p, FUSE, Ceph, and what nobody knows.
        for shared in [0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x6573_5546, 0x00c3_6400, 0x1234_5678]
        {
            assert_eq!(Locality::from_magic(shared, || None), Locality::Shared);
        }
    }

    #[test]
    fn the_mount_of_a_file_is_found() {
        let file = fs::File::open("/proc/self/status").unwrap();
        assert!(mount_of(file.as_fd()).unwrap().contains(" - proc "));
        assert_eq!(Locality::of(file.as_fd()), Ok(Locality::Shared));
    }
}
