//! Opens files by one name below an open directory, and refuses anything else under that name.
//!
//! A user who can write into a directory can replace a file by a link, a pipe or a device. So the
//! code looks at a name before opening it. A descriptor that only names the file (`O_PATH`, no link
//! followed) must show a regular file, and is then opened through `/proc/self/fd`. Where `/proc` is
//! not mounted, the name is opened, and must be the same inode.
//!
//! A file that is to be written must have no other name, and belong, like its directory, to the
//! user for whom we write.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::locality;

/// Modes of new files and directories: only the owner has any right on them.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const DIRECTORY_MODE: Mode = Mode::RWXU;

/// An opened file must not make us wait, become a controlling terminal, or be inherited.
const CALM: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Facts that only the operator can know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// Files are written for this user and not for the effective one, as where a server on the
    /// network shows the superuser as another user.
    pub owner: Option<u32>,
    /// No process on another host has the file open, although the file system is shared.
    pub one_host: bool,
}

impl Word {
    /// The user who owns the files that we write.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw())
    }
}

/// Errors once its owner may write no more, as when another machine has taken over. Called before
/// each write, and after data were made durable.
pub type Stands = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// An open directory, below which files are opened.
pub(crate) struct Beneath {
    own: OwnedFd,
    /// The name of the directory in errors.
    path: std::path::PathBuf,
    word: Word,
}

impl Beneath {
    /// Opens the directory at a path that the user gave; its links are the user's own.
    ///
    /// # Errors
    /// `NotFound`, `InvalidInput` when it is no directory, and those of the system.
    pub(crate) fn open(path: &Path, word: Word) -> Result<Beneath> {
        Beneath::open_with(path, word, OFlags::empty())
    }

    /// Opens the directory at a path that a file says: no link in its place.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `Denied` for a link.
    pub(crate) fn open_itself(path: &Path, word: Word) -> Result<Beneath> {
        match Beneath::open_with(path, word, OFlags::NOFOLLOW) {
            Err(_) if path.is_symlink() => {
                let why = format!("{} is a link, and is not followed", path.display());
                Err(Error::new(Kind::Denied, why))
            }
            opened => opened,
        }
    }

    fn open_with(path: &Path, word: Word, more: OFlags) -> Result<Beneath> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | more;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(own) => Ok(Beneath { own, path: path.to_owned(), word }),
            Err(Errno::NOTDIR) if path.exists() => {
                Err(Error::new(Kind::InvalidInput, format!("{} is no directory", path.display())))
            }
            Err(errno) => Err(Error::from_io(path.display(), errno.into())),
        }
    }

    /// Makes a directory of mode 0700, or takes the one that is there as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn make(path: &Path, word: Word) -> Result<Beneath> {
        let made = match rustix::fs::mkdir(path, DIRECTORY_MODE) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(Error::from_io(path.display(), errno.into())),
        };
        let directory = Beneath::open(path, word)?;
        if made {
            directory.may_write()?;
            // A default list of access rights adds to what was asked for.
            settle_mode(directory.own.as_fd(), DIRECTORY_MODE)
                .map_err(|errno| directory.wrong("", errno))?;
        }
        Ok(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn word(&self) -> Word {
        self.word
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// The user to whom the directory belongs.
    ///
    /// # Errors
    /// The errors of the system.
    pub(crate) fn owner(&self) -> Result<u32> {
        Ok(self.stat()?.st_uid)
    }

    pub(crate) fn stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.own).map_err(|errno| self.wrong("", errno))
    }

    /// Errors unless files below may be written: the directory belongs to the user for whom we
    /// write.
    ///
    /// # Errors
    /// `Denied`, and those of the system.
    pub(crate) fn may_write(&self) -> Result<()> {
        self.belongs_to_us(&self.path.display().to_string(), &self.stat()?)
    }

    fn belongs_to_us(&self, shown: &str, stat: &Stat) -> Result<()> {
        let (owner, us) = (stat.st_uid, self.word.user());
        if owner == us {
            return Ok(());
        }
        let why = format!(
            "{shown} belongs to user {owner}, and only that user changes it; --owner {owner} says \
             that it is to be changed all the same"
        );
        Err(Error::new(Kind::Denied, why))
    }

    /// A sentence with what to do when users other than the owner can enter.
    pub(crate) fn exposed(&self) -> Option<String> {
        if self.stat().ok()?.st_mode & 0o011 == 0 {
            return None;
        }
        let shown = self.path.display();
        let advice = match locality::keeps_modes(self.own.as_fd()) {
            true => format!("`chmod -R go= {shown}` keeps them out"),
            false => {
                "its file system keeps no modes, and only options of its mount keep them out".into()
            }
        };
        Some(format!("other users can enter {shown}; {advice}"))
    }

    /// Opens a regular file for reading, or for writing too.
    ///
    /// # Errors
    /// `NotFound`; `Denied` for what is no regular file, or may not be written; those of the
    /// system.
    pub(crate) fn file(&self, name: &str, writes: bool) -> Result<File> {
        one_name(name)?;
        let seen = rustix::fs::openat(
            &self.own,
            name,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let seen = seen.map_err(|errno| self.wrong(name, errno))?;
        let stat = rustix::fs::fstat(&seen).map_err(|errno| self.wrong(name, errno))?;
        self.is_ours(name, &stat, writes)?;
        let access = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        let again =
            |flags| rustix::fs::openat(&self.own, name, flags | OFlags::NOFOLLOW, Mode::empty());
        let opened =
            open_seen(&seen, &stat, access, again).map_err(|errno| self.wrong(name, errno))?;
        Ok(File::from(opened))
    }

    /// Errors unless this may be opened.
    fn is_ours(&self, name: &str, stat: &Stat, writes: bool) -> Result<()> {
        let shown = self.at(name);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::new(
                Kind::Denied,
                format!("{shown} is no regular file, and is not opened"),
            ));
        }
        if !writes {
            return Ok(());
        }
        if stat.st_nlink != 1 {
            let why = format!(
                "{shown} has {} names, and is not written: the file would change under the others \
                 too",
                stat.st_nlink
            );
            return Err(Error::new(Kind::Denied, why));
        }
        self.may_write()?;
        self.belongs_to_us(&shown, stat)
    }

    /// Makes an empty file of mode 0600 under a name that is free.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, and those of the system.
    pub(crate) fn create(&self, name: &str) -> Result<File> {
        one_name(name)?;
        self.may_write()?;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.own, name, flags, FILE_MODE)
            .map_err(|errno| self.wrong(name, errno))?;
        settle_mode(file.as_fd(), FILE_MODE).map_err(|errno| self.wrong(name, errno))?;
        Ok(File::from(file))
    }

    /// Removes a name that is no directory.
    ///
    /// # Errors
    /// `NotFound`, and those of the system.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        one_name(name)?;
        self.may_write()?;
        rustix::fs::unlinkat(&self.own, name, AtFlags::empty())
            .map_err(|errno| self.wrong(name, errno))
    }

    /// Gives a file another name; what had that name is gone.
    ///
    /// # Errors
    /// `NotFound`, and those of the system.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        one_name(from).and_then(|()| one_name(to))?;
        self.may_write()?;
        rustix::fs::renameat(&self.own, from, &self.own, to).map_err(|errno| self.wrong(to, errno))
    }

    /// All names that are text, sorted.
    ///
    /// # Errors
    /// The errors of the system.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.own).map_err(|errno| self.wrong("", errno))? {
            let entry = entry.map_err(|errno| self.wrong("", errno))?;
            match entry.file_name().to_str() {
                Ok("." | "..") | Err(_) => {}
                Ok(name) => names.push(name.to_owned()),
            }
        }
        names.sort();
        Ok(names)
    }

    /// Makes created and removed names durable.
    ///
    /// # Errors
    /// The errors of the system.
    pub(crate) fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.own).map_err(|errno| self.wrong("", errno))
    }

    /// A name as errors show it.
    pub(crate) fn at(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn wrong(&self, name: &str, errno: Errno) -> Error {
        let shown = if name.is_empty() { self.path.display().to_string() } else { self.at(name) };
        match errno {
            // A lease that another process holds would have to be waited for.
            Errno::AGAIN => {
                Error::new(Kind::Busy, format!("{shown} is held by a lease of another process"))
            }
            errno => Error::from_io(shown, errno.into()),
        }
    }
}

/// Opens the regular file or block device at a path that the user gave, following links. Pipes and
/// other devices are not opened at all.
///
/// # Errors
/// The error of the system; `Errno::INVAL` when the path is neither.
pub(crate) fn file_or_block_device(
    path: &Path,
    flags: OFlags,
) -> rustix::io::Result<(File, FileType)> {
    let seen = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = rustix::fs::fstat(&seen)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::BlockDevice) {
        return Err(Errno::INVAL);
    }
    let again = |flags| rustix::fs::openat(CWD, path, flags, Mode::empty());
    Ok((File::from(open_seen(&seen, &stat, flags, again)?), kind))
}

/// Opens what a descriptor names; `again` opens it by its name.
fn open_seen(
    seen: &OwnedFd,
    stat: &Stat,
    flags: OFlags,
    again: impl Fn(OFlags) -> rustix::io::Result<OwnedFd>,
) -> rustix::io::Result<OwnedFd> {
    let way = format!("/proc/self/fd/{}", seen.as_raw_fd());
    let opened = match rustix::fs::openat(CWD, way, flags | CALM, Mode::empty()) {
        // Without /proc.
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let opened = again(flags | CALM)?;
            let found = rustix::fs::fstat(&opened)?;
            if (found.st_dev, found.st_ino) != (stat.st_dev, stat.st_ino) {
                return Err(Errno::STALE);
            }
            opened
        }
        opened => opened?,
    };
    // Reads and writes of a file wait as they always do.
    let flags = rustix::fs::fcntl_getfl(&opened)?;
    rustix::fs::fcntl_setfl(&opened, flags - OFlags::NONBLOCK)?;
    Ok(opened)
}

/// Gives what was just made its mode, whatever the mask of the process and a default list of access
/// rights made of it. Where a file system keeps no modes, nothing changes.
pub(crate) fn settle_mode(file: BorrowedFd<'_>, mode: Mode) -> rustix::io::Result<()> {
    match rustix::fs::fchmod(file, mode) {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        done => done,
    }
}

fn one_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("'{}' is no name of a file", name.escape_debug()),
        ));
    }
    Ok(())
}
