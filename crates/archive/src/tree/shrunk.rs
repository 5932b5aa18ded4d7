//! Whether a set lost data, or holes alone.
//!
//! A snapshot says how many bytes its files have, and holes count there. Anybody who has a directory in
//! the set makes a file of holes of any length for nothing, and removes it the next day. So before a
//! snapshot is called shrunk for its bytes, the last one is looked at for data.

use super::reader::{Entries, TreeReader};
use crate::format::{
    backup::Snapshot,
    bytes::corrupt,
    tree_node::{Top, TreeWhat},
};
use onefold_core::Result;

/// True when `now` is less than half of some bytes.
pub(super) fn is_halved(now: u64, before: u64) -> bool {
    now < before.div_ceil(2)
}

/// True when `now` bytes are less than half of the data that a snapshot has. Ends as soon as that is
/// known; at most each entry and each page of a file's map is read.
///
/// # Errors
/// `Corrupt`, and errors of the system.
pub(super) fn is_half_lost(reader: &mut TreeReader, last: &Snapshot, now: u64) -> Result<bool> {
    let top = |what: &TreeWhat| match what {
        TreeWhat::Directory(top) => *top,
        _ => None,
    };
    let mut directories: Vec<Top> = top(&reader.root(last)?.directory.what).into_iter().collect();
    // All that was not looked at yet may be data, or holes.
    let (mut most, mut least, mut left) = (last.bytes, 0u64, last.entries);
    while let Some(directory) = directories.pop() {
        let mut entries = Entries::new(Some(directory), None);
        while let Some((entry, _)) = entries.next(reader)? {
            left = left
                .checked_sub(1)
                .ok_or_else(|| corrupt("a snapshot has more entries than it says"))?;
            directories.extend(top(&entry.what));
            let TreeWhat::File(bytes, map) = &entry.what else { continue };
            let data = reader.data_bytes(map)?.min(*bytes);
            least = least.saturating_add(data);
            most = most.saturating_sub(bytes - data);
            if is_halved(now, least) {
                return Ok(true);
            }
            if !is_halved(now, most) {
                return Ok(false);
            }
        }
    }
    Ok(is_halved(now, least))
}
