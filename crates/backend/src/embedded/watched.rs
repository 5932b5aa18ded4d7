//! The files of the folder, which must stand while its owner works (rule 17 of SECURITY.md).
//!
//! A folder that was removed, moved or replaced takes writes and commits without error, by the
//! descriptors that are open, and nobody finds them again. So each commit is followed by a look at
//! each file: it has its name, is the file that was opened, and was not cut off.

use std::{fs::File, os::fd::AsFd, sync::Arc};

use onefold_core::{Error, Kind, Result};

use crate::{beneath::Beneath, file_disk::standing::Standing};

/// A file of the folder, by a descriptor of its own.
#[derive(Debug)]
pub(super) struct Watched {
    file: File,
    shown: String,
    pub(super) standing: Arc<Standing>,
}

impl Watched {
    /// A file of the folder that was opened by its name.
    ///
    /// # Errors
    /// `NotFound` when another file has the name now, and those of the system.
    pub(super) fn of(own: &Beneath, name: &str, file: &File) -> Result<Watched> {
        let shown = own.at(name);
        let wrong = |error| Error::from_io(&shown, error);
        let file = file.try_clone().map_err(wrong)?;
        let bytes = file.metadata().map_err(wrong)?.len();
        let standing = Standing::of(&file, &own.path().join(name), false, bytes);
        if !standing.is_known() {
            let why = format!("{shown} was replaced while it was being opened");
            return Err(Error::new(Kind::NotFound, why));
        }
        Ok(Watched { file, shown, standing: Arc::new(standing) })
    }

    /// Looks again.
    ///
    /// # Errors
    /// `Io`, with what became of the file.
    pub(super) fn look(&self) -> Result<()> {
        self.standing.look(self.file.as_fd(), &self.shown)
    }
}
