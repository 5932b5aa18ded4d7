//! Removes what directories have beyond what is wanted in them. Stays on the mount of the root, and
//! follows no link.

use std::{
    collections::HashSet,
    ops::AddAssign,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use onefold_core::{Error, Result};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, StatxFlags},
    io::Errno,
};

use super::{Identity, shared::open_directory, shown};

/// Directories below one that is removed, one in the other; deeper ones stay.
const LEVELS_MAX: usize = 200;

/// Counts of what was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Everything that was looked at.
    pub there: u64,
    /// Of these, what is not wanted.
    pub surplus: u64,
    /// Of these, what stays since it is another mount, or holds one.
    pub spared: u64,
}

impl AddAssign for Swept {
    fn add_assign(&mut self, other: Swept) {
        self.there += other.there;
        self.surplus += other.surplus;
        self.spared += other.spared;
    }
}

/// Names in order: says whether one is wanted.
pub type Keeps<'a> = dyn FnMut(&[u8]) -> Result<bool> + 'a;

/// Looks at directories below a root.
pub struct Sweep {
    shown: PathBuf,
    root: OwnedFd,
    mount: (u64, u64),
}

impl Sweep {
    /// Below `root`; `None` when that is not there.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(root: &Path) -> Result<Option<Sweep>> {
        let wrong = |errno: Errno| Error::from_io(root.display(), errno.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(root, flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            opened => {
                let opened = opened.map_err(wrong)?;
                let mount = mount(&opened).map_err(wrong)?;
                Ok(Some(Sweep { shown: root.to_owned(), root: opened, mount }))
            }
        }
    }

    fn wrong(&self, path: &[u8], errno: Errno) -> Error {
        Error::from_io(shown(&self.shown, path), errno.into())
    }

    /// The directory at a path below the root; `None` when there is none.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(&self, path: &[u8]) -> Result<Option<OwnedFd>> {
        let mut at = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)
            .map_err(|errno| self.wrong(path, errno))?;
        for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            at = match open_directory(&at, part) {
                Ok((next, _)) => next,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
                Err(errno) => return Err(self.wrong(path, errno)),
            };
        }
        Ok(Some(at))
    }

    /// Looks at what is in a directory, and removes what is not wanted if `removes` says so; gives the
    /// paths of what is not wanted, too. What is on another mount than the root, and what holds such a
    /// thing, stays.
    ///
    /// # Errors
    /// Those of `keeps` and of the system.
    pub fn directory(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        keeps: &mut Keeps<'_>,
        removes: bool,
    ) -> Result<(Swept, Vec<Vec<u8>>)> {
        let mut swept = Swept::default();
        let wrong = |errno| self.wrong(path, errno);
        if mount(directory).map_err(wrong)? != self.mount {
            return Ok((swept, Vec::new()));
        }
        let (mut surplus, mut kept) = (Vec::new(), Vec::new());
        for name in names(directory).map_err(wrong)? {
            swept.there += 1;
            if keeps(&name)? { &mut kept } else { &mut surplus }.push(name);
        }
        if surplus.is_empty() {
            return Ok((swept, Vec::new()));
        }
        // A file system that folds names shows another spelling of what is wanted.
        let identity = |name: &Vec<u8>| {
            let stat = rustix::fs::statat(directory, &name[..], AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((Identity::of(&stat), stat))
        };
        let wanted: HashSet<Identity> =
            kept.iter().filter_map(identity).map(|(identity, _)| identity).collect();
        let mut paths = Vec::new();
        for name in surplus {
            let Some((found, stat)) = identity(&name) else { continue };
            let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if wanted.contains(&found) && (is_directory || stat.st_nlink == 1) {
                continue;
            }
            let below = [path, b"/", &name].concat();
            let one = self.remove(directory, &name, &below, (removes, LEVELS_MAX))?;
            swept.there += one.there - 1;
            swept.surplus += one.surplus;
            swept.spared += one.spared;
            paths.push(below);
        }
        Ok((swept, paths))
    }

    /// Removes something with all that is in it; counts it.
    fn remove(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        path: &[u8],
        (removes, levels): (bool, usize),
    ) -> Result<Swept> {
        let mut swept = Swept { there: 1, surplus: 1, spared: 0 };
        let gone = Swept { there: 1, ..Swept::default() };
        let stat = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(gone),
            stat => stat.map_err(|errno| self.wrong(path, errno))?,
        };
        let mut flags = AtFlags::empty();
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            flags = AtFlags::REMOVEDIR;
            let opened = open_directory(directory, name);
            let (opened, _) = opened.map_err(|errno| self.wrong(path, errno))?;
            let is_here = mount(&opened).map_err(|errno| self.wrong(path, errno))? == self.mount;
            if !is_here || levels == 0 {
                return Ok(Swept { spared: 1, ..gone });
            }
            for name in names(&opened).map_err(|errno| self.wrong(path, errno))? {
                let below = [path, b"/", &name].concat();
                swept += self.remove(&opened, &name, &below, (removes, levels - 1))?;
            }
        }
        if swept.spared > 0 {
            swept.surplus -= 1;
        } else if removes {
            match rustix::fs::unlinkat(directory, name, flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                // A file may be a mount of its own.
                Err(Errno::BUSY | Errno::NOTEMPTY) => return Ok(Swept { spared: 1, ..gone }),
                Err(errno) => return Err(self.wrong(path, errno)),
            }
        }
        Ok(swept)
    }
}

/// What tells a mount from others, bind mounts of one file system too.
fn mount(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    let device = rustix::fs::fstat(fd)?.st_dev;
    match rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) {
        Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 => {
            Ok((device, found.stx_mnt_id))
        }
        // Before Linux 5.8.
        _ => Ok((device, 0)),
    }
}

/// The names in a directory, in order.
fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
