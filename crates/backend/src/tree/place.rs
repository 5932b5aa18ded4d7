//! The place that a path leads to, without asking what another user mounted on the way.
//!
//! The system follows a path through every file system on the way, and a program of a user who mounted
//! one of his own (FUSE) may never answer. So a path is followed part by part, each part is opened as a
//! place, which asks nobody, and the place is looked at before anything below it is.

use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Component, Path, PathBuf},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::mounts;

/// Most links on the way, as in Linux.
const LINKS_MAX: usize = 40;

/// What a path leads to, whatever the path leads to by now.
pub struct Place {
    pub(super) at: OwnedFd,
    pub(super) stat: Stat,
}

impl Place {
    /// Follows a path; a link at its end only with `follows`. `None` when another user mounted a file
    /// system of his own there or on the way. Nothing is opened for reading.
    ///
    /// # Errors
    /// Those of the system, with the path.
    pub fn of(path: &Path, follows: bool) -> Result<Option<Place>> {
        let found = follow(path, follows).and_then(|at| Ok((rustix::fs::fstat(&at)?, at)));
        match found {
            Ok((stat, at)) => Ok(Some(Place { at, stat })),
            Err(Errno::XDEV) => Ok(None),
            Err(errno) => {
                let what = format_args!("{} can't be looked at", path.display());
                Err(Error::from_io(what, errno.into()))
            }
        }
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

    /// Where it is found again as long as this is held: a path to read attributes by.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        mounts::proc_path(&self.at).into()
    }
}

/// The error for a path that leads to what another user mounted.
#[must_use]
pub fn mounted_by_another(path: &Path) -> Error {
    let shown = path.display();
    let sentence = format!(
        "{shown}: another user mounted a file system of his own there or on the way, which is not \
         entered"
    );
    Error::new(Kind::Denied, sentence)
}

fn follow(path: &Path, follows: bool) -> Result<OwnedFd, Errno> {
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
        return Err(Errno::NOENT);
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
                let next = mounts::open_place(&at, name)?;
                let is_last = parts.is_empty();
                let kind = FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode);
                at = match kind {
                    FileType::Symlink if !is_last || follows => {
                        links += 1;
                        if links > LINKS_MAX {
                            return Err(Errno::LOOP);
                        }
                        let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
                        push(&mut parts, Path::new(OsStr::from_bytes(target.as_bytes())));
                        continue;
                    }
                    FileType::Directory if !is_last => enter(&at, name)?,
                    _ if !is_last => return Err(Errno::NOTDIR),
                    _ => next,
                };
            }
            _ => {}
        }
    }
    Ok(at)
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
                let found = follow(&path, follows).map(|at| rustix::fs::fstat(&at).unwrap());
                let found = found.map(|stat| (stat.st_dev, stat.st_ino));
                assert_eq!(found.map_err(|e| Some(e.raw_os_error())), told, "{name} {follows}");
            }
        }
        let here = Place::of(Path::new("."), false).unwrap().unwrap();
        let root = Place::of(Path::new("/"), false).unwrap().unwrap();
        assert!(here.is_directory() && root.is_directory());
        assert!(here.path().is_dir() && here.identity() != root.identity());
        assert_eq!(follow(Path::new(""), true).err(), Some(Errno::NOENT));
    }
}
