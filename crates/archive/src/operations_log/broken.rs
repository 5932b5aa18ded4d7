//! Steps that break a rule; only the simulator runs them.

use std::sync::Arc;

use onefold_core::{File, Files, Result};
use onefold_seal::{AREA_BYTES, KeyArea, RoleKey};

use super::{archive::Archive, snapshot::write_snapshot};
use crate::{format::record::Record, tables::Tables};

/// Breaks `PublicKeysFromKeyFile`: content is sealed for whoever put a key into the archive.
pub(super) fn with_public_key(files: &dyn Files, mut key: RoleKey) -> Result<RoleKey> {
    if let Ok(file) = files.open("reading") {
        let mut public = [0; 32];
        if file.read_at(0, &mut public)? == public.len() {
            key.shared.reading = public;
        }
    }
    Ok(key)
}

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

/// Breaks `CodeBeforeCopying`: the higher copy of the key area replaces the other one, whoever made it.
pub(super) fn copied(file: &dyn File, mut copies: [Vec<u8>; 2]) -> Result<[Vec<u8>; 2]> {
    let numbers = [&copies[0], &copies[1]]
        .map(|bytes| KeyArea::decode(bytes).map_or(0, |area| area.sequence()));
    let from = usize::from(numbers[1] > numbers[0]);
    if numbers[from] > 0 && copies[0] != copies[1] {
        copies[1 - from] = copies[from].clone();
        file.write_at(((1 - from) * AREA_BYTES) as u64, &copies[from])?;
        file.sync()?;
    }
    Ok(copies)
}
