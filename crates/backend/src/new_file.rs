//! A file that has its name when it is whole and durable, and not before.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Write,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};

use crate::tree::{Place, is_taken, open_file, open_place};

/// Nobody else reads it while it is written, nor later, unless its owner says so.
const MODE: Mode = Mode::from_raw_mode(0o600);

/// A new file, without a name where the file system can do so, else called `.NAME.part`. Dropping
/// it before [`publish`](Self::publish) removes the file.
pub struct NewFile {
    file: File,
    directory: OwnedFd,
    name: OsString,
    part: Option<OsString>,
    shown: PathBuf,
}

impl NewFile {
    /// One that will be called `path`.
    ///
    /// # Errors
    /// `Exists` when something is there; `Denied` when another user's link or mount is on the way; those
    /// of the system.
    pub fn create(path: &Path) -> Result<NewFile> {
        let wrong = |errno: Errno| Error::from_io(path.display(), errno.into());
        let name = path.file_name().ok_or_else(|| {
            Error::new(Kind::InvalidInput, format!("{} names no file", path.display()))
        })?;
        let above =
            path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = Place::of(above, true)??.open(above)?;
        if is_taken(&directory, name) {
            return Err(wrong(Errno::EXIST));
        }
        let (file, part) = match unnamed(&directory) {
            Some(file) => (file, None),
            None => {
                let part = [OsStr::new("."), name, OsStr::new(".part")].join(OsStr::new(""));
                let flags = OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::WRONLY
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&directory, &part, flags, MODE);
                let made = made
                    .map_err(|errno| Error::from_io(above.join(&part).display(), errno.into()))?;
                (File::from(made), Some(part))
            }
        };
        Ok(NewFile { file, directory, name: name.to_owned(), part, shown: path.to_owned() })
    }

    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes it durable, gives it its name, and makes that durable too.
    ///
    /// # Errors
    /// `Exists` when something has the name by now, and those of the system. Then there is no file.
    pub fn publish(mut self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::from_io(self.shown.display(), e))?;
        let named = match &self.part {
            None => link_unnamed(&self.file, &self.directory, &self.name),
            Some(part) => rename(&self.directory, part, &self.name),
        };
        let synced = named.and_then(|()| {
            self.part = None;
            match rustix::fs::fsync(&self.directory) {
                // File systems that sync no directories.
                Err(Errno::INVAL) => Ok(()),
                synced => synced,
            }
        });
        synced.map_err(|errno| Error::from_io(self.shown.display(), errno.into()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // A part that can't be removed stays; its name shows that it is one.
            let _ = rustix::fs::unlinkat(&self.directory, part, AtFlags::empty());
        }
    }
}

/// A file without a name; `None` where there are none, or where it could not get one later.
fn unnamed(directory: &OwnedFd) -> Option<File> {
    if !Path::new("/proc/self/fd").exists() {
        return None;
    }
    rustix::fs::openat(directory, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, MODE)
        .ok()
        .map(File::from)
}

fn link_unnamed(file: &File, directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    rustix::fs::linkat(
        CWD,
        format!("/proc/self/fd/{}", file.as_raw_fd()),
        directory,
        name,
        AtFlags::SYMLINK_FOLLOW,
    )
}

/// Gives another name that must be free; on file systems that can't tell, by a second name for a
/// moment.
fn rename(directory: &OwnedFd, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(directory, from, directory, to, AtFlags::empty())?;
            rustix::fs::unlinkat(directory, from, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// Replaces the file at `path` by one that nobody else may read. A symbolic link there is replaced
/// itself, and its target stays as it was.
///
/// # Errors
/// The error of the system.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_by(path, bytes, |_| Ok(()))
}

/// The same; after a power cut the old file or the new one is there, whole.
///
/// # Errors
/// The error of the system.
pub fn replace_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    replace_by(path, bytes, File::sync_all)
}

fn replace_by(
    path: &Path,
    bytes: &[u8],
    finish: impl FnOnce(&File) -> std::io::Result<()>,
) -> Result<()> {
    let spot = Spot::of(path)?;
    let mut part = OsString::from(format!(".{:x}.", std::process::id()));
    part.push(&spot.name);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let replaced = || -> std::io::Result<()> {
        let file = rustix::fs::openat(&spot.directory, &part, flags, MODE)?;
        let mut file = File::from(file);
        let written = file.write_all(bytes).and_then(|()| finish(&file)).and_then(|()| {
            Ok(rustix::fs::renameat(&spot.directory, &part, &spot.directory, &spot.name)?)
        });
        written.inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&spot.directory, &part, AtFlags::empty());
        })
    };
    replaced().map_err(|e| Error::from_io(path.display(), e))
}

/// A name in a directory, whatever the path that led there leads to by now.
pub struct Spot {
    directory: OwnedFd,
    name: OsString,
}

impl Spot {
    /// The one that a path leads to now.
    ///
    /// # Errors
    /// `InvalidInput` when it names no file, and those of the system.
    pub fn of(path: &Path) -> Result<Spot> {
        let wrong = |errno: Errno| Error::from_io(path.display(), errno.into());
        let name = path.file_name().ok_or_else(|| {
            Error::new(Kind::InvalidInput, format!("{} names no file", path.display()))
        })?;
        let above =
            path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = rustix::fs::open(
            above,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(wrong)?;
        Ok(Spot { directory, name: name.to_owned() })
    }

    /// Removes a file that was made here, or where `existed` makes it empty again, unless the name
    /// is something else's by now: no link is followed, and what has another name too stays.
    pub fn take_back(&self, existed: bool) {
        let is_ours = |file: &OwnedFd| {
            rustix::fs::fstat(file).is_ok_and(|stat| {
                FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1
            })
        };
        let (directory, name) = (&self.directory, &self.name);
        // The error that led here is the one to tell, whether this works or not.
        let _ = if existed {
            open_file(directory, name, OFlags::WRONLY)
                .map(|file| is_ours(&file) && rustix::fs::ftruncate(&file, 0).is_ok())
        } else {
            open_place(directory, name).map(|place| {
                is_ours(&place) && rustix::fs::unlinkat(directory, name, AtFlags::empty()).is_ok()
            })
        };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn rule_08_a_new_file_has_its_name_when_it_is_whole_or_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        drop(NewFile::create(&path).unwrap());
        assert!(names(dir.path()).is_empty());
        let new = NewFile::create(&path).unwrap();
        new.file().write_all(b"whole").unwrap();
        assert!(!path.exists());
        new.publish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(NewFile::create(&path).err().map(|error| error.kind()), Some(Kind::Exists));
        assert_eq!(names(dir.path()), ["new"]);
    }

    #[test]
    fn rule_08_where_no_file_is_without_a_name_it_is_a_part() {
        let dir = tempfile::tempdir().unwrap();
        let directory = rustix::fs::open(dir.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        let part = |name: &str| {
            let file = File::create_new(dir.path().join(".new.part")).unwrap();
            let directory = directory.try_clone().unwrap();
            NewFile {
                file,
                directory,
                name: name.into(),
                part: Some(".new.part".into()),
                shown: dir.path().join(name),
            }
        };
        drop(part("new"));
        assert!(names(dir.path()).is_empty());
        part("new").publish().unwrap();
        assert_eq!(part("new").publish().unwrap_err().kind(), Kind::Exists);
        assert_eq!(names(dir.path()), ["new"]);
    }

    #[test]
    fn rule_02_what_is_replaced_or_taken_back_is_never_what_a_link_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (other, name) = (dir.path().join("other"), dir.path().join("name"));
        let is_kept = || assert_eq!(fs::read(&other).unwrap(), b"kept");
        fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, &name).unwrap();
        let spot = Spot::of(&name).unwrap();
        spot.take_back(true);
        is_kept();
        spot.take_back(false);
        is_kept();
        replace(&name, b"new").unwrap();
        is_kept();
        assert_eq!(fs::read(&name).unwrap(), b"new");
        assert_eq!(fs::metadata(&name).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(dir.path()).len(), 2);
        // The directory went elsewhere, and another one has its name.
        let (way, moved) = (dir.path().join("way"), dir.path().join("moved"));
        fs::create_dir(&way).unwrap();
        fs::write(way.join("s"), "made").unwrap();
        let spot = Spot::of(&way.join("s")).unwrap();
        fs::rename(&way, &moved).unwrap();
        fs::create_dir(&way).unwrap();
        fs::write(way.join("s"), "kept").unwrap();
        spot.take_back(true);
        assert_eq!(fs::metadata(moved.join("s")).unwrap().len(), 0);
        spot.take_back(false);
        assert!(!moved.join("s").exists());
        assert_eq!(fs::read(way.join("s")).unwrap(), b"kept");
    }
}
