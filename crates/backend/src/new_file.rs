//! A file that has its name when it is whole and durable, and not before.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags},
    io::Errno,
};

/// Nobody else reads it while it is written, nor later, unless its owner says so.
const MODE: Mode = Mode::from_raw_mode(0o600);

/// A new file, without a name where the file system can do so, else called `.NAME.part`. It is gone
/// when it is dropped before [`publish`](Self::publish).
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
    /// `Exists` when something is there, and those of the system.
    pub fn create(path: &Path) -> Result<NewFile> {
        let wrong = |errno: Errno| Error::from_io(path.display(), errno.into());
        let name = path.file_name().ok_or_else(|| {
            Error::new(Kind::InvalidInput, format!("{} names no file", path.display()))
        })?;
        let above =
            path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = rustix::fs::open(above, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(wrong)?;
        if rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
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
            // What can't be removed stays, by a name that says what it is.
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

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

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
}
