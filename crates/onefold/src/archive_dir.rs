//! An archive's directory: found, opened for what a verb wants, and named in errors.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use onefold_archive::{Archive, Settings, archive::find_label};
use onefold_backend::Directory;
use onefold_core::{Error, Kind, Result};

/// The directory of an archive.
pub(crate) struct ArchiveDir {
    path: PathBuf,
}

impl ArchiveDir {
    /// True when `path` is a directory, which no block store is.
    pub(crate) fn is_there(path: &Path) -> bool {
        path.is_dir()
    }

    /// The archive at `path`.
    ///
    /// # Errors
    /// One sentence for what is missing or no archive.
    pub(crate) fn look(path: &Path) -> Result<ArchiveDir> {
        let found = Directory::open(path, false).and_then(|files| find_label(&files));
        match found {
            Ok(_) => Ok(ArchiveDir { path: path.to_owned() }),
            Err(error) => Err(name_archive(path, error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it for changes.
    ///
    /// # Errors
    /// Those of opening.
    pub(crate) fn open(&self, settings: Settings) -> Result<Arc<Archive>> {
        let files = Directory::open(&self.path, true).map_err(|e| name_archive(&self.path, e))?;
        Archive::open(Arc::new(files), true, settings).map(Arc::new).map_err(|e| name_archive(&self.path, e))
    }

    /// Opens it for looking; it may be on a file system that takes no writes.
    ///
    /// # Errors
    /// Those of opening.
    pub(crate) fn open_to_read(&self) -> Result<Arc<Archive>> {
        // Who may write makes durable what a killed process left, before it shows it.
        if let Ok(archive) = self.open(Settings::default()) {
            return Ok(archive);
        }
        let files = Directory::open(&self.path, false).map_err(|e| name_archive(&self.path, e))?;
        Archive::open(Arc::new(files), false, Settings::default()).map(Arc::new).map_err(|e| name_archive(&self.path, e))
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The engine does not know what its directory is called.
pub(crate) fn name_archive(path: &Path, error: Error) -> Error {
    let shown = path.display().to_string();
    match error.kind() {
        Kind::NotFound if error.to_string() == "no archive" => {
            Error::new(Kind::NotFound, format!("{shown} is a directory and no archive; `onefold archive create` makes one"))
        }
        _ if error.to_string().contains(&shown) => error,
        _ => error.context(shown),
    }
}
