//! Directories for what a user's commands remember outside of stores.

use std::path::{Path, PathBuf};

use onefold_backend::{peer::own_uid, tree::Place};
use onefold_core::Kind;

/// The first of these directories that is this user's: each is a variable of the environment, and what
/// stands below it. Root, where the environment is still that of another user, or names a directory in
/// which all users write, makes none in what they could replace by a link.
#[must_use]
pub fn user_directory(places: &[(&str, &str)]) -> Option<PathBuf> {
    let own = |&(name, below): &(&str, &str)| {
        let at = PathBuf::from(std::env::var_os(name)?).join(below);
        (at.is_absolute() && is_own(&at)).then_some(at)
    };
    places.iter().find_map(own)
}

/// True for a directory of this user, or one that would be made in such a one. No link of another user
/// leads there, and not everybody writes to it.
#[must_use]
pub fn is_own(directory: &Path) -> bool {
    for at in directory.ancestors() {
        let found = match Place::of(at, true).and_then(|followed| followed) {
            Err(error) if error.kind() == Kind::NotFound => continue,
            Err(_) => return false,
            Ok(place) => *place.stat(),
        };
        return found.st_uid == own_uid() && found.st_mode & 0o002 == 0;
    }
    false
}
