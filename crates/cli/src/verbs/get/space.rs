//! Whether what is to be restored can fit.

use std::path::Path;

use onefold_backend::room::room;
use onefold_console::size::Size;
use onefold_core::{Error, Kind, Result};

/// Refuses what can't fit where it shall go.
pub(in crate::verbs) fn fits(path: &Path, bytes: u64, files: u64) -> Result<()> {
    let room = room(path)?;
    let full = |what: String| Err(Error::new(Kind::NoSpace, format!("{}: {what}", path.display())));
    if bytes > room.bytes {
        return full(format!(
            "{} are to be restored, and {} are free",
            Size(bytes),
            Size(room.bytes)
        ));
    }
    match room.files {
        Some(free) if files > free => full(format!(
            "more than {free} files are to be restored, and its file system takes no more"
        )),
        _ => Ok(()),
    }
}
