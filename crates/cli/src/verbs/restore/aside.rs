//! A restore aside: the directory has its name once all of it is there and durable.
//!
//! The directory above may be another user's, who renames in it what he likes meanwhile. So it is opened
//! once, without following links of other users, and what gets the name is the directory that was made.

use std::{
    ffi::OsString,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use onefold_backend::{
    random::random_bytes,
    tree::{Choices, Place, Restorer, drop_lists, is_taken, numbers, open_directory},
};
use onefold_console::failure::Failure;
use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{Dir, Mode, OFlags, RenameFlags, Stat},
    io::Errno,
};

/// A directory beside the one that is restored, on the same file system.
pub(super) struct Aside {
    at: PathBuf,
    /// The path that it gets.
    last: PathBuf,
    /// The directory that both are in.
    above: OwnedFd,
    beside: OsString,
    name: OsString,
    /// The directory that was made.
    opened: OwnedFd,
    stat: Stat,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Aside {
    /// Makes it, for its user alone.
    ///
    /// # Errors
    /// `Exists` when something has the name already; `Denied` when another user's link or mount is on the
    /// way there; those of the system.
    pub(super) fn new(directory: &Path) -> Result<Aside, Failure> {
        let Some(name) = directory.file_name() else {
            return Err(Failure::usage("--atomic makes a directory: -C DIR has a name at its end"));
        };
        let path = match directory.parent() {
            Some(above) if !above.as_os_str().is_empty() => above.to_owned(),
            _ => PathBuf::from("."),
        };
        let last = path.join(name);
        let above = OwnedFd::from(Place::make(&path)?);
        if is_taken(&above, name) {
            let what = format!("{} is there already, and --atomic makes it", last.display());
            return Err(Error::new(Kind::Exists, what).into());
        }
        let number = u64::from_le_bytes(random_bytes()?);
        let mut beside = name.to_owned();
        beside.push(format!(".restoring-{number:016x}"));
        let at = path.join(&beside);
        let wrong = |errno: Errno| Error::from_io(at.display(), errno.into());
        rustix::fs::mkdirat(&above, &beside, Mode::RWXU).map_err(wrong)?;
        let opened = open_directory(&above, &beside).map_err(wrong)?;
        let stat = rustix::fs::fstat(&opened).map_err(wrong)?;
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user || !is_empty(&opened).map_err(wrong)? {
            return Err(replaced(&at).into());
        }
        drop_lists(&opened).map_err(wrong)?;
        let name = name.to_owned();
        Ok(Aside { at, last, above, beside, name, opened, stat })
    }

    /// Restores into it.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn restorer(&self, choices: Choices) -> Result<Restorer> {
        let again = rustix::io::fcntl_dupfd_cloexec(&self.opened, 0);
        let again = again.map_err(|errno| Error::from_io(self.at.display(), errno.into()))?;
        Restorer::within(again, &self.at, choices)
    }

    /// Gives it its name, durably. All in it is durable.
    ///
    /// # Errors
    /// `Exists` when something got the name meanwhile, `Busy` when somebody replaced it, and those of the
    /// system.
    pub(super) fn finish(self) -> Result<()> {
        let wrong = |errno: Errno| {
            let last = self.last.display();
            Error::from_io(
                format_args!("{last} can't be made of {}", self.at.display()),
                errno.into(),
            )
        };
        if !self.is_called(&self.beside) {
            return Err(replaced(&self.at));
        }
        let (above, beside, name) = (&self.above, &self.beside, &self.name);
        match rustix::fs::renameat_with(above, beside, above, name, RenameFlags::NOREPLACE) {
            // A file system without that way. A directory takes the place of nothing but an empty one.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::renameat(above, beside, above, name).map_err(wrong)?;
            }
            renamed => renamed.map_err(wrong)?,
        }
        if !self.is_called(name) {
            return Err(replaced(&self.last));
        }
        match rustix::fs::openat(above, ".", DIRECTORY, Mode::empty()).and_then(rustix::fs::fsync) {
            // We may not read the directory above, or it can't be synced alone.
            Ok(()) => Ok(()),
            Err(Errno::ACCESS | Errno::INVAL) => rustix::fs::syncfs(&self.opened).map_err(wrong),
            Err(errno) => Err(wrong(errno)),
        }
    }

    /// True when what was made has this name.
    fn is_called(&self, name: &OsString) -> bool {
        numbers(&self.above, name) == Ok((self.stat.st_dev, self.stat.st_ino))
    }

    /// Says where that is which could not be restored whole.
    pub(super) fn leave(&self) {
        tracing::warn!(
            "{} was not made, since not all of it is there: what was restored is in {}",
            self.last.display(),
            self.at.display()
        );
    }
}

fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::read_from(directory)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

fn replaced(at: &Path) -> Error {
    let what = format!("{} was replaced while it was restored", at.display());
    Error::new(Kind::Busy, what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#[allow(clippy::disallowed_methods, reason = "a test makes what others would make, by its path")]
mod tests {
    use std::fs;

    use super::*;

    /// Who may rename in the directory above puts another directory in the place of what was made, or
    /// another one in the place of the directory above.
    #[test]
    fn rule_05_what_was_put_in_the_place_of_a_restore_aside_gets_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let aside = |name: &str| Aside::new(&dir.path().join(name).join("out")).unwrap();
        let swapped = aside("one");
        fs::rename(&swapped.at, dir.path().join("gone")).unwrap();
        fs::create_dir(&swapped.at).unwrap();
        let error = swapped.finish().unwrap_err();
        assert!(error.to_string().contains("was replaced"), "{error}");
        assert!(!dir.path().join("one/out").exists());
        let moved = aside("two");
        let at = moved.at.file_name().unwrap().to_owned();
        fs::rename(dir.path().join("two"), dir.path().join("three")).unwrap();
        fs::create_dir_all(dir.path().join("two").join(at)).unwrap();
        moved.finish().unwrap();
        assert!(dir.path().join("three/out").exists() && !dir.path().join("two/out").exists());
    }
}
