//! What tells a file or directory that a restore made, or met, from a later one that has its
//! number.
//!
//! A file system gives the number of what was removed to what is made next. A user who may remove
//! what root just made in his directory could so put something of his own in its place, and have it
//! filled. But nobody makes what belongs to another user: what was made belongs to its maker until
//! it is finished. A file system that tells times of birth tells more.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Stat, StatxFlags};

use super::Identity;

/// The rights of group and others.
const OTHERS: u32 = 0o077;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) identity: Identity,
    /// The time of birth of what was made, in nanoseconds; 0 where the file system does not tell it, and of
    /// what was met: overlayfs shows another one once it copied a directory up.
    born: u64,
    pub(super) owner: u32,
    /// The rights that group and others may have.
    others: u32,
}

impl Stamp {
    /// Of what was just made: until it is finished, nobody gets more rights to it.
    pub(super) fn of_new(fd: &impl AsFd, stat: &Stat) -> Stamp {
        Stamp { born: born(fd), others: stat.st_mode & OTHERS, ..Stamp::of_old(stat) }
    }

    /// Of what was there before, or is finished.
    pub(super) fn of_old(stat: &Stat) -> Stamp {
        Stamp { identity: Identity::of(stat), born: 0, owner: stat.st_uid, others: OTHERS }
    }

    /// True for what was made or met, and not finished since.
    pub(super) fn fits(&self, fd: &impl AsFd, stat: &Stat) -> bool {
        self.may_be(fd, stat)
            && stat.st_uid == self.owner
            && stat.st_mode & OTHERS & !self.others == 0
    }

    /// True for what was made or met, whoever it belongs to by now, as far as the file system
    /// tells.
    pub(super) fn may_be(&self, fd: &impl AsFd, stat: &Stat) -> bool {
        self.identity == Identity::of(stat) && (self.born == 0 || self.born == born(fd))
    }
}

fn born(fd: &impl AsFd) -> u64 {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let told = rustix::fs::statx(fd, "", flags, StatxFlags::BTIME).ok();
    let told = told.filter(|told| told.stx_mask & StatxFlags::BTIME.bits() != 0);
    told.map_or(0, |told| {
        let seconds = told.stx_btime.tv_sec as u64;
        seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(told.stx_btime.tv_nsec))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use rustix::fs::{Gid, Mode, Uid};

    use super::*;

    /// As on a file system without times of birth.
    #[test]
    fn rule_05_what_has_the_number_of_what_was_made_belongs_to_its_maker_too() {
        let file = tempfile::tempfile().unwrap();
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).unwrap();
        let stat = || rustix::fs::fstat(&file).unwrap();
        let made = Stamp::of_new(&file, &stat());
        let met = Stamp::of_old(&stat());
        assert!(made.fits(&file, &stat()) && met.fits(&file, &stat()));
        assert!(!Stamp { born: 1, ..made }.may_be(&file, &stat()));
        assert_eq!(met.born, 0);
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR | Mode::ROTH).unwrap();
        assert!(!made.fits(&file, &stat()) && met.fits(&file, &stat()));
        rustix::fs::fchmod(&file, Mode::RUSR).unwrap();
        let owned = rustix::fs::fchown(&file, Some(Uid::from_raw(61234)), None::<Gid>);
        if owned.is_err() {
            println!("NOT TESTED: only root gives files to others");
            return;
        }
        assert!(!made.fits(&file, &stat()) && !met.fits(&file, &stat()));
        assert!(made.may_be(&file, &stat()));
    }
}
