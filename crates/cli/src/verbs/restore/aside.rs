//! A restore aside: the directory has its name once all of it is there and durable.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use onefold_backend::random::random_bytes;
use onefold_console::failure::Failure;
use onefold_core::{Error, Kind, Result};
use rustix::{
    fs::{CWD, Mode, OFlags, RenameFlags},
    io::Errno,
};

/// A directory beside the one that is restored, on the same file system.
pub(super) struct Aside {
    at: PathBuf,
    above: PathBuf,
    /// The name that it gets.
    last: PathBuf,
}

impl Aside {
    /// Makes it, for its user alone.
    ///
    /// # Errors
    /// `Exists` when something has the name already, and those of the system.
    pub(super) fn new(directory: &Path) -> Result<Aside, Failure> {
        let Some(name) = directory.file_name() else {
            return Err(Failure::usage("--atomic makes a directory: -C DIR has a name at its end"));
        };
        let above = match directory.parent() {
            Some(above) if !above.as_os_str().is_empty() => above.to_owned(),
            _ => PathBuf::from("."),
        };
        let last = above.join(name);
        if fs::symlink_metadata(&last).is_ok() {
            let what = format!("{} is there already, and --atomic makes it", last.display());
            return Err(Error::new(Kind::Exists, what).into());
        }
        let wrong = |at: &Path, e| Error::from_io(at.display(), e);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&above)
            .map_err(|e| wrong(&above, e))?;
        let number = u64::from_le_bytes(random_bytes()?);
        let mut beside = name.to_owned();
        beside.push(format!(".restoring-{number:016x}"));
        let at = above.join(beside);
        DirBuilder::new().mode(0o700).create(&at).map_err(|e| wrong(&at, e))?;
        Ok(Aside { at, above, last })
    }

    /// Where it is until it is finished.
    pub(super) fn at(&self) -> &Path {
        &self.at
    }

    /// Gives it its name, durably. All in it is durable.
    ///
    /// # Errors
    /// `Exists` when something got the name meanwhile, and those of the system.
    pub(super) fn finish(self) -> Result<()> {
        let wrong = |errno: Errno| {
            let last = self.last.display();
            Error::from_io(
                format_args!("{last} can't be made of {}", self.at.display()),
                errno.into(),
            )
        };
        match rustix::fs::renameat_with(CWD, &self.at, CWD, &self.last, RenameFlags::NOREPLACE) {
            // A file system without that way. A directory takes the place of nothing but an empty one.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::rename(&self.at, &self.last).map_err(wrong)?;
            }
            renamed => renamed.map_err(wrong)?,
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&self.above, flags, Mode::empty()).and_then(rustix::fs::fsync) {
            // We may not read the directory above, or it can't be synced alone.
            Ok(()) => Ok(()),
            Err(Errno::ACCESS | Errno::INVAL) => {
                let here = rustix::fs::open(&self.last, flags, Mode::empty()).map_err(wrong)?;
                rustix::fs::syncfs(here).map_err(wrong)
            }
            Err(errno) => Err(wrong(errno)),
        }
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
