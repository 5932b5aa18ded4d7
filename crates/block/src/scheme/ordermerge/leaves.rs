//! How many leaves the tables of blocks have, and need.

use onefold_core::Result;

use super::soft_updates::OrderMerge;
use crate::{
    format::{page::Table, superblock::Root},
    kernel::{Kernel, State},
    overlay::Overlay,
    scheme::{
        room::tree_pages,
        shadow::{leaf_of_map, pages_of_changes},
    },
};

/// Pages that a checkpoint of `overlay`, and of `more` records that are not published yet, writes
/// at most.
pub(super) fn pages_of(
    own: &OrderMerge,
    kernel: &Kernel,
    state: &State,
    overlay: &Overlay,
    more: u64,
) -> u64 {
    // Leaves that do not exist are made; those that do are not written.
    let pages = pages_of_changes(state, overlay, more) + block_pages_ahead(own, kernel, state);
    let blocks = 2 * (overlay.records() + more)
        + leaf_of_map()
        + 2 * pages
        + overlay.unlinked().len() as u64
        + state.releases.deferred() as u64;
    pages + tree_pages(blocks, kernel.geometry().zones.div_ceil(Table::Zones.per_leaf()))
}

/// Leaves of references and fingerprints that are still to be made for zones in use and those
/// that are opened next, and the pages above.
fn block_pages_ahead(own: &OrderMerge, kernel: &Kernel, state: &State) -> u64 {
    let geometry = &kernel.geometry();
    let ahead = 3 * geometry.zone_blocks + kernel.settings.unflushed_blocks as u64;
    let of_table = |(table, have): (Table, u64)| {
        let missing = block_leaves_wanted(kernel, state, table, ahead).saturating_sub(have);
        tree_pages(missing, geometry.blocks().div_ceil(table.per_leaf()))
    };
    [Table::References, Table::Fingerprints]
        .into_iter()
        .zip(own.ledger.lock().block_leaves)
        .map(of_table)
        .sum()
}

/// Leaves of a table of blocks that all zones in use need, and `ahead` more blocks.
pub(super) fn block_leaves_wanted(kernel: &Kernel, state: &State, table: Table, ahead: u64) -> u64 {
    let geometry = kernel.geometry();
    let blocks =
        (state.allocator.idle.high_water() * geometry.zone_blocks + ahead).min(geometry.blocks());
    blocks.div_ceil(table.per_leaf())
}

/// How many leaves a table of blocks has: they are made from the first on.
pub(super) fn leaves_in(kernel: &Kernel, table: Table, root: &Root) -> Result<u64> {
    let (mut some, mut none) = (0, kernel.geometry().blocks().div_ceil(table.per_leaf()) + 1);
    while none - some > 1 {
        let middle = some + (none - some) / 2;
        let there = kernel.pages.leaf_pointers(table, 0, root, &[middle - 1])?[0].is_some();
        if there { some = middle } else { none = middle }
    }
    Ok(some)
}
