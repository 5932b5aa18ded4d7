//! The free space of a file system.

use std::path::Path;

use onefold_core::{Error, Result};
use rustix::process::geteuid;

use crate::tree::Place;

/// The space that can still be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories; `None` where the file system does not count them.
    pub files: Option<u64>,
}

/// The free space of the file system on which `path` is, or will be.
///
/// # Errors
/// The error of the system.
pub fn room(path: &Path) -> Result<Room> {
    let whole = std::path::absolute(path).map_err(|e| Error::from_io(path.display(), e))?;
    // Whether something can be made below what is in the way is the matter of who makes it.
    let nearest = whole.ancestors().find_map(|ancestor| Place::of(ancestor, true).ok()?.ok());
    let place = nearest.map_or_else(|| Place::of(Path::new("/"), true)?, Ok)?;
    let found = place.room().map_err(|errno| Error::from_io(path.display(), errno.into()))?;
    // Some blocks are kept for the superuser.
    let (blocks, files) = if geteuid().is_root() {
        (found.f_bfree, found.f_ffree)
    } else {
        (found.f_bavail, found.f_favail)
    };
    Ok(Room {
        bytes: blocks.saturating_mul(found.f_frsize),
        files: (found.f_files > 0).then_some(files),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_that_of_the_nearest_directory_that_is_there() {
        let here = room(Path::new(".")).unwrap();
        assert!(here.bytes > 0);
        assert!(room(Path::new("not/there/yet")).unwrap().bytes > 0);
    }
}
