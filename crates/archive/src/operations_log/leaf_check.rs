//! The copies of the tables' leaves looked at, and written again where one is damaged.

use onefold_core::Result;

use super::archive::Archive;
use crate::{
    leaf_file::{LeafReader, rewrite_copy},
    memory::Drawn,
};

/// Leaves that are looked at while the commit lock is held.
const PORTION: usize = 64;

/// The leaves of the tables and their copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeavesFound {
    /// Leaves that were looked at.
    pub(crate) leaves: u64,
    /// First pages of leaves with one whole copy left.
    pub(crate) with_one_copy: Vec<u32>,
    /// First pages of leaves with none.
    pub(crate) lost: Vec<u32>,
    /// Copies that were written again.
    pub(crate) mended: u64,
}

/// Reads both copies of all leaves that the last snapshot of the tables names; with `mends`
/// writes damaged ones again, durably on return.
///
/// # Errors
/// As [`open`](Archive::open); damage is in what it gives.
pub(crate) fn look_at_leaves(archive: &Archive, mends: bool) -> Result<LeavesFound> {
    let mut found = LeavesFound::default();
    let all = archive.refresh()?.leaf_file.named().iter().copied().collect::<Vec<_>>();
    for places in all.chunks(PORTION) {
        let (mut position, _lock) = archive.locked()?;
        archive.replay_new_frames(&mut position)?;
        let mut reader = LeafReader::new(&*archive.files, &archive.identity, &archive.settings);
        let named = position.tables.leaf_file.named();
        // A snapshot that came meanwhile may have given other content to what it does not name.
        for &place in places.iter().filter(|place| named.contains(place)) {
            found.leaves += 1;
            let copies =
                [reader.copy(place, 0, Drawn::free())?, reader.copy(place, 1, Drawn::free())?];
            let (copy, bytes) = match copies {
                [Some(_), Some(_)] => continue,
                [None, Some(bytes)] => (0, bytes),
                [Some(bytes), None] => (1, bytes),
                [None, None] => {
                    found.lost.push(place.page);
                    continue;
                }
            };
            if mends && archive.writes {
                rewrite_copy(&*archive.files, place, copy, &bytes)?;
                archive.files.confirm()?;
                found.mended += 1;
            } else {
                found.with_one_copy.push(place.page);
            }
        }
    }
    Ok(found)
}

/// Writes damaged copies of the tables' leaves again where the other one is whole; gives how many.
/// Durable on return.
///
/// # Errors
/// As [`open`](Archive::open).
pub fn mend_leaves(archive: &Archive) -> Result<u64> {
    Ok(look_at_leaves(archive, true)?.mended)
}
