//! Removes what directories have beyond what is wanted in them. Stays on the mount of the root, and
//! follows no link.
//!
//! Users choose how many names their directories have, how deep they lie, and what they mount or
//! exchange meanwhile: memory is bounded, and what can't be removed costs that entry alone.

use std::{
    collections::HashSet,
    ffi::OsStr,
    ops::AddAssign,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{AtFlags, FileType, Stat, StatxFlags},
    io::Errno,
};

use super::{
    Identity,
    levels::Levels,
    mounts,
    names::{Names, NamesMemory, Space},
    place::Place,
    shared::{last_part, open_directory, open_path},
    shown,
};

/// Directories below one that is removed, one in the other; deeper ones stay.
const LEVELS_MAX: usize = 200;

/// Counts of what was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Everything that was looked at.
    pub there: u64,
    /// Of these, what is not wanted.
    pub surplus: u64,
    /// Of these, what stays since it is another mount or is to be spared, or holds such a thing.
    pub spared: u64,
}

impl AddAssign for Swept {
    fn add_assign(&mut self, other: Swept) {
        self.there += other.there;
        self.surplus += other.surplus;
        self.spared += other.spared;
    }
}

/// The names that a directory is to have, in order.
pub trait Keeps {
    /// Begins with the first one, also again.
    fn begin(&mut self);

    /// The next one.
    ///
    /// # Errors
    /// They end the sweep of this directory.
    fn next(&mut self) -> Result<Option<Vec<u8>>>;
}

/// What happens to an entry that is not wanted.
pub enum Removal {
    /// It is removed, or would be.
    Gone,
    /// It can't be removed, or not looked at; it stays.
    Stays(Error),
}

/// Takes the paths of what is not wanted, with what happens to each.
pub type Tell<'a> = dyn FnMut(&[u8], Removal) + 'a;

/// Looks at directories below a root.
pub struct Sweep {
    shown: PathBuf,
    root: OwnedFd,
    mount: (u64, u64),
    /// Directories that stay with all that is in them.
    stay: HashSet<Identity>,
    /// For the names of the directories that it is in.
    space: Space,
    /// The directories that lead to the one that was opened last, but for the root, with the lengths
    /// of their paths.
    levels: Levels<usize>,
    /// The path of the last one.
    at: Vec<u8>,
}

/// How many levels deeper it may go, and what stays under any name.
type Limits<'a> = (usize, &'a HashSet<Identity>);

/// One sweep of one directory.
struct Sweeping<'a, 't> {
    sweep: &'a mut Sweep,
    /// What is looked at.
    path: Vec<u8>,
    removes: bool,
    tell: &'a mut Tell<'t>,
}

impl Sweep {
    /// Below `root`; `None` when that is not there. The directories `spared`, by device and inode, stay.
    ///
    /// # Errors
    /// Those of the system; `Denied` when another user stands in the way there.
    pub fn new(root: &Path, spared: &[(u64, u64)]) -> Result<Option<Sweep>> {
        match Place::of(root, true).and_then(|followed| followed) {
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            place => Sweep::below(place?.open(root)?, root, spared).map(Some),
        }
    }

    /// Below a directory that is open, which is called `root` in errors.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn below(opened: OwnedFd, root: &Path, spared: &[(u64, u64)]) -> Result<Sweep> {
        let mount = mount(&opened).map_err(|errno| Error::from_io(root.display(), errno.into()))?;
        let space = Space::new(NamesMemory::default());
        let (shown, levels, at) = (root.to_owned(), Levels::new(), Vec::new());
        let stay = spared.iter().map(|&(device, inode)| Identity(device, inode)).collect();
        Ok(Sweep { shown, root: opened, mount, stay, space, levels, at })
    }

    fn wrong(&self, path: &[u8], errno: Errno) -> Error {
        Error::from_io(shown(&self.shown, path), errno.into())
    }

    /// The directory at a path below the root; `None` when there is none, or on another mount. Quick
    /// when it lies in the one that was opened last, or beside it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(&mut self, path: &[u8]) -> Result<Option<OwnedFd>> {
        self.enter(path, &mounts::is_mount)
    }

    /// What is at a path, without following a link; `None` when there is nothing, when it can't be
    /// looked at, and where another user mounted a file system of his own.
    pub fn look(&mut self, path: &[u8]) -> Option<Stat> {
        let name = last_part(path);
        let above = path.get(..path.len() - name.len())?.strip_suffix(b"/").unwrap_or_default();
        let is_users = |above: &OwnedFd, name: &OsStr| mounts::closed(above, name, false).is_some();
        let directory = self.enter(above, &is_users).ok()??;
        if is_users(&directory, OsStr::from_bytes(name)) {
            return None;
        }
        open_path(&directory, name).ok().map(|(_, stat)| stat)
    }

    fn enter(
        &mut self,
        path: &[u8],
        is_closed: &dyn Fn(&OwnedFd, &OsStr) -> bool,
    ) -> Result<Option<OwnedFd>> {
        let leads = |above: &[u8]| {
            path.strip_prefix(above)
                .is_some_and(|rest| rest.first().is_none_or(|&byte| byte == b'/'))
        };
        while self.levels.depth() > 0 && !leads(&self.at) {
            self.levels.pop();
            let length = self.levels.last().map_or(0, |(_, length)| *length);
            self.at.truncate(length);
        }
        if self.levels.last().is_some_and(|(directory, _)| directory.is_none()) {
            // Another one is in the place of a directory that was closed meanwhile.
            (self.levels, self.at) = (Levels::new(), Vec::new());
        }
        let from = self.at.len();
        for part in path[from..].split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            let wrong = |errno: Errno| Error::from_io(shown(&self.shown, path), errno.into());
            let above = self.levels.last().and_then(|(directory, _)| directory);
            let above = above.unwrap_or(&self.root);
            if is_closed(above, OsStr::from_bytes(part)) {
                return Ok(None);
            }
            let (directory, stat) = match open_directory(above, part) {
                // Another user may have mounted something there a moment ago.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(None),
                opened => opened.map_err(wrong)?,
            };
            if !self.at.is_empty() {
                self.at.push(b'/');
            }
            self.at.extend_from_slice(part);
            self.levels.push(directory, Identity::of(&stat), self.at.len());
        }
        let directory = self.levels.last().and_then(|(directory, _)| directory);
        let again = rustix::io::fcntl_dupfd_cloexec(directory.unwrap_or(&self.root), 0);
        again.map(Some).map_err(|errno| self.wrong(path, errno))
    }

    /// Looks at what is in a directory, and removes what is not wanted if `removes` says so; tells of
    /// each. What is on another mount than the root, and what holds such a thing, stays.
    ///
    /// # Errors
    /// Those of `keeps`, and of the system for the directory itself.
    pub fn directory(
        &mut self,
        directory: &OwnedFd,
        path: &[u8],
        keeps: &mut dyn Keeps,
        removes: bool,
        tell: &mut Tell<'_>,
    ) -> Result<Swept> {
        if mount(directory).map_err(|errno| self.wrong(path, errno))? != self.mount {
            return Ok(Swept::default());
        }
        let (there, surplus, other_spellings) = self.compare(directory, path, keeps)?;
        let mut swept = Swept { there, ..Swept::default() };
        if surplus == 0 {
            return Ok(swept);
        }
        let mut sweeping = Sweeping { sweep: self, path: path.to_vec(), removes, tell };
        keeps.begin();
        let mut wanted = keeps.next()?;
        sweeping.each(directory, &mut |sweeping, name| {
            while wanted.as_ref().is_some_and(|wanted| &wanted[..] < name) {
                wanted = keeps.next()?;
            }
            if wanted.as_deref() == Some(name) {
                return Ok(());
            }
            let one = sweeping.remove(directory, name, (LEVELS_MAX, &other_spellings));
            swept += Swept { there: one.there.saturating_sub(1), ..one };
            if one.surplus > 0 {
                (sweeping.tell)(&sweeping.path, Removal::Gone);
            }
            Ok(())
        })?;
        Ok(swept)
    }

    /// Counts what is in a directory, and what of it is not wanted. A file system that folds names
    /// shows another spelling of what is wanted: gives what such names lead to.
    fn compare(
        &mut self,
        directory: &OwnedFd,
        path: &[u8],
        keeps: &mut dyn Keeps,
    ) -> Result<(u64, u64, HashSet<Identity>)> {
        let (mut there, mut surplus, mut other_spellings) = (0, 0, HashSet::new());
        let mut unlisted = |name: &[u8]| {
            if let Ok(identity) = mounts::identity(directory, OsStr::from_bytes(name)) {
                other_spellings.insert(identity);
            }
        };
        keeps.begin();
        let mut wanted = keeps.next()?;
        let mut nothing = |_: &[u8], _| {};
        let path = path.to_vec();
        let mut sweeping = Sweeping { sweep: self, path, removes: false, tell: &mut nothing };
        sweeping.each(directory, &mut |_, name| {
            there += 1;
            while let Some(before) = wanted.as_ref().filter(|wanted| &wanted[..] < name) {
                unlisted(before);
                wanted = keeps.next()?;
            }
            if wanted.as_deref() == Some(name) {
                wanted = keeps.next()?;
            } else {
                surplus += 1;
            }
            Ok(())
        })?;
        while surplus > 0
            && let Some(name) = &wanted
        {
            unlisted(name);
            wanted = keeps.next()?;
        }
        Ok((there, surplus, other_spellings))
    }
}

impl Sweeping<'_, '_> {
    /// Does something for each name of a directory, in order; the path is that of the name meanwhile.
    fn each(
        &mut self,
        directory: &OwnedFd,
        work: &mut dyn FnMut(&mut Self, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Sweep { shown: root, space, .. } = &mut *self.sweep;
        let wrong = |errno: Errno| Error::from_io(shown(root, &self.path), errno.into());
        let mut children = rustix::fs::Dir::read_from(directory).map_err(wrong)?;
        let each = || {
            loop {
                match children.next()? {
                    Ok(child) if [&b"."[..], b".."].contains(&child.file_name().to_bytes()) => {}
                    Ok(child) => return Some(Ok((child.file_name().to_bytes().to_vec(), false))),
                    Err(errno) => return Some(Err(wrong(errno))),
                }
            }
        };
        let mut names = space.collect(each)?;
        let done = self.each_of(&mut names, work);
        self.sweep.space.leave(&names);
        done
    }

    fn each_of(
        &mut self,
        names: &mut Names,
        work: &mut dyn FnMut(&mut Self, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let length = self.path.len();
        while let Some(name) = self.sweep.space.next(names)? {
            self.path.truncate(length);
            self.path.push(b'/');
            self.path.extend_from_slice(name.name.as_bytes());
            work(self, name.name.as_bytes())?;
        }
        self.path.truncate(length);
        Ok(())
    }

    /// Removes something with all that is in it; counts it. What can't be removed is told of, and
    /// counts as spared.
    fn remove(&mut self, directory: &OwnedFd, name: &[u8], limits: Limits<'_>) -> Swept {
        match self.try_remove(directory, name, limits) {
            Ok(swept) => swept,
            Err(error) => {
                (self.tell)(&self.path, Removal::Stays(error));
                Swept { there: 1, surplus: 0, spared: 1 }
            }
        }
    }

    fn try_remove(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        (levels, wanted): Limits<'_>,
    ) -> Result<Swept> {
        let gone = Swept { there: 1, ..Swept::default() };
        let spared = Swept { spared: 1, ..gone };
        // Nobody else is asked anything, as the program of a user who mounted something there.
        if mounts::is_mount(directory, OsStr::from_bytes(name)) {
            return Ok(spared);
        }
        let wrong = |errno| self.sweep.wrong(&self.path, errno);
        let stat = match open_path(directory, name) {
            Err(Errno::NOENT) => return Ok(gone),
            Err(Errno::XDEV) => return Ok(spared),
            opened => opened.map_err(wrong)?.1,
        };
        if wanted.contains(&Identity::of(&stat)) {
            return Ok(gone);
        }
        if self.sweep.stay.contains(&Identity::of(&stat)) {
            return Ok(spared);
        }
        let mut swept = Swept { there: 1, surplus: 1, spared: 0 };
        let mut flags = AtFlags::empty();
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            flags = AtFlags::REMOVEDIR;
            let (opened, _) = match open_directory(directory, name) {
                Err(Errno::NOENT) => return Ok(gone),
                Err(Errno::XDEV) => return Ok(spared),
                opened => opened.map_err(wrong)?,
            };
            let is_here = mount(&opened).map_err(wrong)? == self.sweep.mount;
            if !is_here || levels == 0 {
                return Ok(spared);
            }
            self.each(&opened, &mut |sweeping, name| {
                swept += sweeping.remove(&opened, name, (levels - 1, wanted));
                Ok(())
            })?;
        }
        if swept.spared > 0 {
            swept.surplus -= 1;
        } else if self.removes {
            match rustix::fs::unlinkat(directory, name, flags) {
                Ok(()) | Err(Errno::NOENT) => {}
                // A file may be a mount of its own, and somebody may have put something there since.
                Err(Errno::BUSY | Errno::NOTEMPTY) => return Ok(spared),
                Err(errno) => return Err(self.sweep.wrong(&self.path, errno)),
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
