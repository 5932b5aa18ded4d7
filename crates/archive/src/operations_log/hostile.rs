//! The program of somebody who took a key over; only simulations run it.

use std::sync::Arc;

use onefold_core::Result;

use super::{archive::Archive, snapshot::write_snapshot};
use crate::{format::record::Record, tables::Tables};

/// Appends records as they are, as the program of somebody who took a key over does; that archive breaks
/// `PutJudgesItself`.
///
/// # Errors
/// As for a change.
pub fn append_records(
    archive: &Archive,
    records: impl FnOnce(&Tables) -> Vec<Record>,
) -> Result<Arc<Tables>> {
    archive.commit(false, |tables| Ok(records(tables)))
}

/// Writes the snapshot that counts anew, with other tables, as such a program does.
///
/// # Errors
/// As for a change.
pub fn write_other_tables(archive: &Archive, change: impl FnOnce(&mut Tables)) -> Result<()> {
    let now = archive.refresh()?;
    let mut tables = Tables::clone(&now);
    change(&mut tables);
    write_snapshot(&*archive.files, &archive.identity, archive.position_of_snapshot(), &tables)
}
