//! Ranges of blocks against the end of a disk: one check and one sentence for every disk.

use onefold_core::{BLOCK_BYTES, Error, Kind, Pba, Result};

/// The byte offset of `at`, when all of `blocks` blocks from there lie on a disk of `capacity`
/// blocks.
pub(crate) fn offset(name: &str, capacity: u64, at: Pba, blocks: u64) -> Result<u64> {
    match at.0.checked_add(blocks) {
        Some(end) if end <= capacity => Ok(at.0 * BLOCK_BYTES as u64),
        _ => Err(smaller(name, capacity, at, blocks)),
    }
}

/// The error for a range that does not lie on the disk.
pub(crate) fn smaller(name: &str, capacity: u64, at: Pba, blocks: u64) -> Error {
    let message = format!(
        "{name} is smaller than asked for: it has {capacity} blocks, and {blocks} from block {at} \
         on were wanted"
    );
    Error::new(Kind::Io, message)
}
