//! Steps that break a rule; only the simulator runs them.

use onefold_core::{File, Result};
use onefold_seal::{AREA_BYTES, KeyArea};

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
