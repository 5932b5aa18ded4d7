//! The files and devices behind the paths that were given.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

use onefold_backend::{
    device_bytes,
    tree::{self, Options},
};
use onefold_core::{Error, Kind, Result, tree::What};

/// Most files with several names that are remembered; of more, each name counts as a file.
const LINKED_MAX: usize = 1 << 20;

/// A file or device.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Open already, when it was found in a directory and is to be read.
    pub(super) file: Option<File>,
}

/// Walks through paths: files, devices, and directories with all that is in them. Symbolic links
/// are followed only when they were given; a file with several names comes once; what is neither
/// file nor device is passed over.
pub(super) struct Walk {
    given: std::vec::IntoIter<PathBuf>,
    only_sizes: bool,
    /// The directory that was given last.
    inside: Option<(PathBuf, tree::Walk)>,
    linked: HashSet<(u64, u64)>,
}

impl Walk {
    /// A walk that opens files, or one that looks at their sizes only.
    pub(super) fn new(paths: &[PathBuf], only_sizes: bool) -> Walk {
        let given: Vec<PathBuf> = paths.to_vec();
        Walk { given: given.into_iter(), only_sizes, inside: None, linked: HashSet::new() }
    }

    /// True for another name of a file that came before.
    fn again(&mut self, linked: Option<(u64, u64)>) -> bool {
        linked.is_some_and(|linked| self.linked.len() < LINKED_MAX && !self.linked.insert(linked))
    }

    /// Looks at a path that was given: a directory to walk into, something to read, or nothing of
    /// interest.
    fn visit(&mut self, path: PathBuf) -> Result<Option<Found>> {
        let metadata = fs::metadata(&path).map_err(|e| unreadable(&path, e))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            let options = Options {
                follows_root: true,
                only_sizes: self.only_sizes,
                linked_max: 0,
                ..Options::default()
            };
            self.inside = Some((path.clone(), tree::Walk::new(&path, options)?));
            return Ok(None);
        }
        if kind.is_block_device() {
            return device_bytes(&path).map(|bytes| Some(Found { path, bytes, file: None }));
        }
        let again = self.again((metadata.nlink() > 1).then_some((metadata.dev(), metadata.ino())));
        Ok((kind.is_file() && !again).then(|| Found { path, bytes: metadata.len(), file: None }))
    }

    /// The next file of the directory; devices inside one are not its content.
    fn next_inside(&mut self) -> Option<Result<Option<Found>>> {
        let (root, walk) = self.inside.as_mut()?;
        let found = match walk.next()? {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        let What::File { bytes, .. } = found.entry.what else { return Some(Ok(None)) };
        let path = root.join(OsStr::from_bytes(&found.entry.path));
        let again = self.again(found.linked);
        Some(Ok((!again).then_some(Found { path, bytes, file: found.file })))
    }
}

impl Iterator for Walk {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Result<Found>> {
        loop {
            let step = match self.next_inside() {
                Some(step) => step,
                None => {
                    self.inside = None;
                    let path = self.given.next()?;
                    self.visit(path)
                }
            };
            if let Some(found) = step.transpose() {
                return Some(found);
            }
        }
    }
}

/// One sentence for what can't be read.
pub(super) fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let shown = path.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(Kind::NotFound, format!("there is no file, directory or device {shown}"))
        }
        std::io::ErrorKind::PermissionDenied => {
            Error::new(Kind::Denied, format!("no permission to read {shown}"))
        }
        _ => Error::from_io(format!("{shown} can't be read"), error),
    }
}
