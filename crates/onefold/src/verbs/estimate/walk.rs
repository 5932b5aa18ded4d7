//! The files and devices behind the paths that were given.

use std::{
    collections::HashSet,
    fs::{self, Metadata, ReadDir},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use onefold_backend::device_bytes;
use onefold_core::{Error, Kind, Result};

/// Most files with several names that are remembered; of more, each name counts as a file.
const LINKED_MAX: usize = 1 << 20;

/// A file or device.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Walks through paths: files, devices, and directories with all that is in them. Symbolic links are followed only when they were given;
/// a file with several names comes once; what is neither file nor device is passed over.
pub(super) struct Walk {
    given: std::vec::IntoIter<PathBuf>,
    open: Vec<ReadDir>,
    linked: HashSet<(u64, u64)>,
}

impl Walk {
    pub(super) fn new(paths: &[PathBuf]) -> Walk {
        let given: Vec<PathBuf> = paths.to_vec();
        Walk { given: given.into_iter(), open: Vec::new(), linked: HashSet::new() }
    }

    /// What a path is: a directory to walk into, something to read, or nothing of interest.
    fn visit(&mut self, path: PathBuf, metadata: &Metadata) -> Option<Result<Found>> {
        let kind = metadata.file_type();
        if kind.is_dir() {
            match fs::read_dir(&path) {
                Ok(entries) => self.open.push(entries),
                Err(error) => return Some(Err(unreadable(&path, error))),
            }
            return None;
        }
        if kind.is_block_device() {
            return Some(device_bytes(&path).map(|bytes| Found { path, bytes }));
        }
        let again = metadata.nlink() > 1 && self.linked.len() < LINKED_MAX && !self.linked.insert((metadata.dev(), metadata.ino()));
        (kind.is_file() && !again).then(|| Ok(Found { path, bytes: metadata.len() }))
    }

    fn next_given(&mut self) -> Option<Option<Result<Found>>> {
        let path = self.given.next()?;
        Some(match fs::metadata(&path) {
            Ok(metadata) => self.visit(path, &metadata),
            Err(error) => Some(Err(unreadable(&path, error))),
        })
    }

    fn next_entry(&mut self) -> Option<Option<Result<Found>>> {
        let entry = match self.open.last_mut()?.next() {
            None => {
                self.open.pop();
                return Some(None);
            }
            Some(Err(error)) => return Some(Some(Err(Error::from_io("a directory can't be read", error)))),
            Some(Ok(entry)) => entry,
        };
        let path = entry.path();
        Some(match fs::symlink_metadata(&path) {
            // Devices inside a directory are not its content.
            Ok(metadata) if metadata.file_type().is_block_device() => None,
            Ok(metadata) => self.visit(path, &metadata),
            Err(error) => Some(Err(unreadable(&path, error))),
        })
    }
}

impl Iterator for Walk {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Result<Found>> {
        loop {
            let step = if self.open.is_empty() { self.next_given()? } else { self.next_entry()? };
            if let Some(found) = step {
                return Some(found);
            }
        }
    }
}

/// One sentence for what can't be read.
pub(super) fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let shown = path.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(Kind::NotFound, format!("there is no file, directory or device {shown}")),
        std::io::ErrorKind::PermissionDenied => Error::new(Kind::Denied, format!("no permission to read {shown}")),
        _ => Error::from_io(format!("{shown} can't be read"), error),
    }
}
