//! The content of a snapshot, as `ls` shows it.

use std::sync::Arc;

use onefold_archive::{Archive, Entries, TreeEntry, TreeReader, TreeWhat};
use onefold_console::failure::Failure;
use onefold_core::Result;

use super::{
    walk::{Visitor, plain, walk},
    wanted::Wanted,
};
use crate::verbs::{get::listing, snapshots};

/// Lists what is in a directory of a snapshot, or all of the snapshot.
pub(in crate::verbs) fn list(
    archive: &Arc<Archive>,
    text: &str,
    path: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let mut reader = TreeReader::new(archive)?;
    let tables = reader.tables().clone();
    let snapshot = snapshots::named(&tables, text)?;
    let Some(path) = path else {
        return Ok(walk(&mut reader, snapshot, &Wanted::new(&[])?, &mut Listing { json })?);
    };
    let entry = reader.find(snapshot, path.as_bytes())?;
    let TreeWhat::Directory(top) = entry.what else {
        listing::show(&plain(&mut reader, &entry.name, &entry)?, json);
        return Ok(());
    };
    let mut entries = Entries::new(top, None);
    while let Some((entry, _)) = entries.next(&mut reader)? {
        listing::show(&plain(&mut reader, &entry.name, &entry)?, json);
    }
    Ok(())
}

/// Shows all entries.
struct Listing {
    json: bool,
}

impl Visitor for Listing {
    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) -> Result<()> {
        listing::show(&plain(reader, path, entry)?, self.json);
        Ok(())
    }
}
