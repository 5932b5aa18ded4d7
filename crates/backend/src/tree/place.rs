//! The place that a path leads to, without asking what another user mounted on the way, and without
//! being led elsewhere by another user's link.
//!
//! The system follows a path through every file system on the way, and a program of a user who mounted
//! one of his own (FUSE) may never answer. So a path is followed part by part, each part is opened as a
//! place, which asks nobody, and the place is looked at before anything below it is. Links of root and
//! of the own user are followed; one of another user could lead root to any place, in which it would
//! read or write. Who may rename in a directory can put a link there that somebody else made, so links
//! in a directory of another user, or to which others may write, are not followed either. In one with
//! the sticky bit nobody but its owner renames what belongs to another user; there a link counts that has
//! one name.

use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path, PathBuf},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, Stat, StatVfs},
    io::Errno,
};

use super::{
    attributes::{STICKY, drop_lists, place_has_list},
    mounts,
};

/// Most links on the way, as in Linux.
const LINKS_MAX: usize = 40;

/// What a path leads to, whatever the path leads to by now.
pub struct Place {
    pub(super) at: OwnedFd,
    pub(super) stat: Stat,
}

/// A place, or why a path is not followed to it: another user mounted a file system of his own on the
/// way, or made a link there, or could have removed what is missing.
pub type Followed = Result<Place, Error>;

impl Place {
    /// Follows a path; a link at its end only with `follows`. Nothing is opened for reading. The error
    /// inside says that another user stands in the way.
    ///
    /// # Errors
    /// Those of the system, with the path.
    pub fn of(path: &Path, follows: bool) -> Result<Followed> {
        told(path, follow(path, follows, false))
    }

    /// Follows a path to a directory, and makes those on the way that are not there, for this user
    /// alone.
    ///
    /// # Errors
    /// Those of the system, with the path; `Denied` when another user stands in the way.
    pub fn make(path: &Path) -> Result<Place> {
        told(path, follow(path, true, true))?
    }

    /// Opens a directory for reading.
    ///
    /// # Errors
    /// Those of the system, with the path; `path` is how the place is called in it.
    pub fn open(&self, path: &Path) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.at, ".", flags, Mode::empty())
            .map_err(|errno| Error::from_io(path.display(), errno.into()))
    }

    /// How full the file system is that it lies on.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn room(&self) -> Result<StatVfs, Errno> {
        rustix::fs::fstatvfs(&self.at)
    }

    /// True for a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }

    /// Its device and inode.
    #[must_use]
    pub fn identity(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    /// What the system told of it.
    #[must_use]
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Where it is found again as long as this is held: a path to read attributes by, or to mount on.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        mounts::proc_path(&self.at).into()
    }
}

impl From<Place> for OwnedFd {
    fn from(place: Place) -> OwnedFd {
        place.at
    }
}

/// Why a path leads nowhere.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    System(Errno),
    /// Another user mounted a file system of his own.
    Mount,
    /// A link of this user.
    Link(u32),
    /// A link in a directory of this user, or, of root or the own user, to which others may write.
    LinkIn(u32),
    /// An error of the system in a directory that another user may change.
    Other(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        if errno == Errno::XDEV { Stop::Mount } else { Stop::System(errno) }
    }
}

fn told(path: &Path, followed: Result<OwnedFd, Stop>) -> Result<Followed> {
    let shown = path.display();
    let failed = |errno: Errno| {
        let error = Error::from_io(format_args!("{shown} can't be looked at"), errno.into());
        if errno != Errno::NOTCONN {
            return error;
        }
        let why = "the program that served a mount there has ended, and the mount is left";
        let way = format!("`umount {shown}`, or `fusermount3 -u {shown}`, takes it away");
        Error::new(error.kind(), format!("{error}: {why}; {way}"))
    };
    let denied = |why: String| Error::new(Kind::Denied, format!("{shown}: {why}"));
    let stop = match followed {
        Ok(at) => match rustix::fs::fstat(&at) {
            Ok(stat) => return Ok(Ok(Place { at, stat })),
            Err(errno) => Stop::System(errno),
        },
        Err(stop) => stop,
    };
    match stop {
        Stop::System(errno) => Err(failed(errno)),
        Stop::Other(errno) => Ok(Err(failed(errno))),
        Stop::Mount => Ok(Err(denied(
            "another user mounted a file system of his own there or on the way, which is not entered"
                .to_owned(),
        ))),
        Stop::Link(user) => Ok(Err(denied(format!(
            "a link of user {user} is there or on the way, which could lead anywhere and is not \
             followed; give the path that it leads to"
        )))),
        Stop::LinkIn(user) if is_other(user) => Ok(Err(denied(format!(
            "a link is there or on the way in a directory of user {user}, who could have put it there, and \
             is not followed; give the path that it leads to"
        )))),
        Stop::LinkIn(_) => Ok(Err(denied(
            "a link is there or on the way in a directory to which others may write, who could have put it \
             there, and is not followed; give the path that it leads to"
                .to_owned(),
        ))),
    }
}

/// True for a user who is neither root nor this one.
fn is_other(user: u32) -> bool {
    user != 0 && user != rustix::process::geteuid().as_raw()
}

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;

/// True when another user may exchange what root or this user has in a directory. The group of root, and
/// one that has the number of this user, as each user's own group has on most systems, are nobody else. A
/// list of rights may name anybody: then the bits of the group are the most that it gives.
fn lets_others_rename(at: &OwnedFd, directory: &Stat) -> bool {
    let mode = directory.st_mode;
    let group = directory.st_gid;
    let is_own_group = group == 0 || group == rustix::process::geteuid().as_raw();
    let others = mode & OTHERS_WRITE != 0
        || mode & GROUP_WRITES != 0 && (!is_own_group || place_has_list(at));
    is_other(directory.st_uid) || others && mode & STICKY == 0
}

/// True when another user may give something a second name in a directory. Where the system lets users do that with what is not theirs
/// (`protected_hardlinks` is off), a link of root's from elsewhere can get there.
fn lets_others_link(at: &OwnedFd, directory: &Stat) -> bool {
    let mut plain = *directory;
    plain.st_mode &= !STICKY;
    lets_others_rename(at, &plain)
}

/// An error in a directory: another user may be to blame who owns it, or whom its mode lets in.
fn stopped(directory: &OwnedFd, errno: Errno) -> Stop {
    let is_of_others = |stat: Stat| is_other(stat.st_uid) || stat.st_mode & 0o002 != 0;
    match Stop::from(errno) {
        Stop::System(errno) if rustix::fs::fstat(directory).is_ok_and(is_of_others) => {
            Stop::Other(errno)
        }
        stop => stop,
    }
}

fn follow(path: &Path, follows: bool, makes: bool) -> Result<OwnedFd, Stop> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let start = |at: &str| rustix::fs::openat(CWD, at, directory, Mode::empty());
    let mut at = start(".")?;
    // The part that comes next lies at the end.
    let mut parts: Vec<OsString> = Vec::new();
    let push = |parts: &mut Vec<OsString>, path: &Path| {
        let each = path.components().rev().map(|part| part.as_os_str().to_owned());
        parts.extend(each);
    };
    if path.as_os_str().is_empty() {
        return Err(Stop::System(Errno::NOENT));
    }
    push(&mut parts, path);
    let mut links = 0;
    while let Some(part) = parts.pop() {
        match Path::new(&part).components().next() {
            Some(Component::RootDir) => at = start("/")?,
            Some(Component::ParentDir) => {
                at = rustix::fs::openat(&at, "..", directory, Mode::empty())?;
            }
            Some(Component::Normal(name)) => {
                let wrong = |errno| stopped(&at, errno);
                let next = match mounts::open_place(&at, name) {
                    Err(Errno::NOENT) if makes => made(&at, name),
                    opened => opened,
                };
                let next = next.map_err(wrong)?;
                let is_last = parts.is_empty();
                let stat = rustix::fs::fstat(&next)?;
                at = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Symlink if !is_last || follows => {
                        if is_other(stat.st_uid) {
                            return Err(Stop::Link(stat.st_uid));
                        }
                        let directory = rustix::fs::fstat(&at)?;
                        if lets_others_rename(&at, &directory)
                            || stat.st_nlink > 1 && lets_others_link(&at, &directory)
                        {
                            return Err(Stop::LinkIn(directory.st_uid));
                        }
                        links += 1;
                        if links > LINKS_MAX {
                            return Err(Stop::System(Errno::LOOP));
                        }
                        let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
                        push(&mut parts, Path::new(OsStr::from_bytes(target.as_bytes())));
                        continue;
                    }
                    FileType::Directory if !is_last => enter(&at, name).map_err(wrong)?,
                    FileType::Directory => next,
                    _ if !is_last || makes => return Err(wrong(Errno::NOTDIR)),
                    _ => next,
                };
            }
            _ => {}
        }
    }
    Ok(at)
}

/// Makes a directory that was not there a moment ago, without the rights that the one above hands
/// down, and opens it as a place.
fn made(above: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(above, name, Mode::RWXU) {
        Ok(()) => {
            let opened = mounts::open_directory(above, name)?;
            // Somebody may have put a directory of his own there: that one keeps its lists.
            if rustix::fs::fstat(&opened)?.st_uid == rustix::process::geteuid().as_raw() {
                drop_lists(&opened)?;
            }
        }
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    mounts::open_place(above, name)
}

/// A directory on the way, as a place: what is mounted when somebody goes through is mounted now.
fn enter(above: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(above, name, flags, Mode::empty())?;
    if mounts::is_of_other(&place) { Err(Errno::XDEV) } else { Ok(place) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_path_is_followed_as_the_system_does() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/file"), "x").unwrap();
        for (target, name) in [("b", "a/link"), ("../../a", "a/b/up"), ("round", "round")] {
            std::os::unix::fs::symlink(target, at(name)).unwrap();
        }
        std::os::unix::fs::symlink(at("a/b"), at("whole")).unwrap();
        for name in [
            "a",
            "a/",
            "a/./b",
            "a/link",
            "a/link/up",
            "a/link/up/link/../file",
            "whole/..",
            "whole",
            "round",
            "round/x",
            "a/file/x",
            "none",
            "a/none/x",
        ] {
            let path = at(name);
            for follows in [false, true] {
                let told = match follows {
                    true => std::fs::metadata(&path),
                    false => std::fs::symlink_metadata(&path),
                };
                let told = told.map(|told| (told.dev(), told.ino())).map_err(|e| e.raw_os_error());
                let found = follow(&path, follows, false).map(|at| rustix::fs::fstat(&at).unwrap());
                let found = found.map(|stat| (stat.st_dev, stat.st_ino));
                let errno = |stop| match stop {
                    Stop::System(errno) => Some(errno.raw_os_error()),
                    _ => None,
                };
                assert_eq!(found.map_err(errno), told, "{name} {follows}");
            }
        }
        let here = Place::of(Path::new("."), false).unwrap().unwrap();
        let root = Place::of(Path::new("/"), false).unwrap().unwrap();
        assert!(here.is_directory() && root.is_directory());
        assert!(here.path().is_dir() && here.identity() != root.identity());
        assert_eq!(follow(Path::new(""), true, false).err(), Some(Stop::System(Errno::NOENT)));
        let made = Place::make(&at("a/link/../new/deep")).unwrap();
        assert!(made.is_directory() && made.stat().st_mode & 0o7777 == 0o700);
        assert!(at("a/new/deep").is_dir() && Place::make(&at("a/file")).is_err());
        assert!(Place::make(&at("a/new/deep")).unwrap().identity() == made.identity());
    }
}
