//! The files and devices behind the paths that were given.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs::File,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use onefold_backend::{
    device_bytes,
    tree::{self, Options, Place},
};
use onefold_core::{Error, Kind, Result, tree::What};
use rustix::fs::FileType;

/// Most files with several names that are remembered; of more, each name counts as a file.
const LINKED_MAX: usize = 1 << 20;

/// `O_NONBLOCK`: opening what became a pipe meanwhile must not wait.
pub(super) const NONBLOCK: i32 = 0o4000;

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
        let place = look(&path)?;
        let stat = *place.stat();
        // By its path it is opened again when that fails, which says why.
        let file = || {
            let mut options = File::options();
            options.read(true).custom_flags(NONBLOCK);
            if self.only_sizes { None } else { options.open(place.path()).ok() }
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let options =
                    Options { only_sizes: self.only_sizes, linked_max: 0, ..Options::default() };
                self.inside = Some((path.clone(), tree::Walk::at(place, &path, options)?));
                Ok(None)
            }
            FileType::BlockDevice => {
                let (bytes, file) = (device_bytes(&path)?, file());
                Ok(Some(Found { path, bytes, file }))
            }
            FileType::RegularFile => {
                let (bytes, file) = (stat.st_size as u64, file());
                let again = self.again((stat.st_nlink > 1).then_some(place.identity()));
                Ok((!again).then_some(Found { path, bytes, file }))
            }
            _ => Ok(None),
        }
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

/// The place that a path leads to; asks nothing that another user mounted on the way, and follows no link
/// of his.
pub(super) fn look(path: &Path) -> Result<Place> {
    match Place::of(path, true).and_then(|followed| followed) {
        Err(error) if error.kind() == Kind::NotFound => Err(Error::new(
            Kind::NotFound,
            format!("there is no file, directory or device {}", path.display()),
        )),
        looked => looked,
    }
}

/// One sentence for what can't be read.
pub(super) fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let shown = path.display();
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Error::new(Kind::Denied, format!("no permission to read {shown}"))
        }
        _ => Error::from_io(format!("{shown} can't be read"), error),
    }
}
