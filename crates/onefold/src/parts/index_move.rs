//! The chunk index of an archive moved to another directory, and back.
//!
//! *Crash argument:* a killed move leaves a file `fast` that names the old directory, or the new one; if
//! that is not where the files are that the log names, they count as lost, and who ingests next makes
//! the index anew. Nothing else depends on it.

use std::{path::Path, sync::Arc};

use onefold_archive::{Archive, IndexDirectory, IndexMove, Settings, find_label};
use onefold_backend::Directory;
use onefold_core::{Error, Kind, Result};

use super::{
    archive_dir::{ArchiveDir, name_archive},
    index_place::{self, IndexPlace},
    operator::{warn, word},
};

/// Makes a directory for the index of an archive that is about to be made, or looks whether it is empty.
///
/// # Errors
/// `InvalidInput` when one lies within the other, `Exists` when something is in it, and those of the
/// system.
pub fn prepare(to: &Path, archive: &Path) -> Result<()> {
    index_place::prepare(to, archive)
}

/// Moves the index to a directory that is new or empty, or beside the data when there is none; gives
/// how many entries it has. Puts wait meanwhile. `progress` hears how many containers were looked at,
/// where the old index is lost, and of how many.
///
/// # Errors
/// `Unsupported` for an archive on several nodes or on another host, `Busy` while it is served, those of taking the
/// directory, `NoSpace`, and those of the system. The index stays where it was then.
pub fn move_index(
    directory: &ArchiveDir,
    to: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64> {
    let path = directory.path();
    let shown = path.display();
    directory.refuse_far("`onefold index` moves its chunk index there")?;
    if directory.has_nodes() {
        let why = format!("{shown} has several nodes, and its chunk index stays on them");
        return Err(Error::new(Kind::Unsupported, why));
    }
    if let Some(mut server) = directory.server()? {
        let why = format!("{shown} is served by process {}; stop it first", server.pid()?);
        return Err(Error::new(Kind::Busy, why));
    }
    let own = Directory::open_as(path, true, word())?;
    let id = find_label(&own).map_err(|error| name_archive(path, error))?.id;
    let old = directory.index_place().and_then(|place| {
        // What can't be opened is lost: all is made anew.
        let files = place.open(id, path, true).ok()?;
        Some((place, Arc::new(files)))
    });
    let new = to.map(|to| IndexPlace::attach(to, id, path)).transpose()?;
    // Also where another path leads to the same directory.
    let stays = old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.0.is_same(&new.0));
    let quiet = |files: &Arc<Directory>| IndexDirectory::new(files.clone(), |_: &Error| {});
    let mut directories = Vec::new();
    if let Some((_, files)) = old.as_ref().filter(|_| !stays) {
        directories.push(quiet(files).without_new_files());
    }
    let target = new.as_ref().map(|(_, files)| quiet(files));
    directories.extend(target.clone());
    let settings = Settings { opener: super::keys::of_archive(path), ..Settings::default() };
    let archive = Archive::open_with_index(Arc::new(own), directories, true, settings);
    let archive = Arc::new(archive.map_err(|error| name_archive(path, error))?);
    let moving = IndexMove::begin(&archive)?;
    let entries = match moving.run(target.as_ref(), progress) {
        Ok(entries) => entries,
        Err(error) => {
            if let Some((place, files)) = new.as_ref().filter(|_| !stays)
                && let Err(left) = index_place::clear(files)
            {
                warn(&format!("{} is left half filled: {left}", place.path().display()));
            }
            return Err(name_archive(path, error));
        }
    };
    let own = Directory::open_as(path, true, word())?;
    match &new {
        Some((place, _)) => place.name(&own)?,
        None => IndexPlace::name_none(&own)?,
    }
    if let Some((place, files)) = old.as_ref().filter(|_| !stays)
        && let Err(left) = index_place::clear(files)
    {
        warn(&format!("{} still has files of the index: {left}", place.path().display()));
    }
    Ok(entries)
}
