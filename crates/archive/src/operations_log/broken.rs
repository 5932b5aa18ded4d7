//! Steps that break a rule; only the simulator runs them.

use onefold_core::{File, Files, Result};
use onefold_seal::{AREA_BYTES, KeyArea, RoleKey};

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
