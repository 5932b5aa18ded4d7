//! How many pages the next checkpoints write at most.

use crate::{
    format::page::Table,
    kernel::{Kernel, State},
    overlay::Overlay,
    scheme::{room::tree_pages, verbs::Ahead},
};

/// Map pages that one change may touch besides those that are counted already: two leaves and the
/// paths to them.
const CHANGE_PAGES: u64 = 12;

/// Counts of blocks, and accounts of pages, that change by one leaf of a deleted map or by one page
/// that is handed over.
pub(crate) const LEFTOVER_COUNTS: u64 = 2 * 288;
const LEFTOVER_ACCOUNTS: u64 = 2 * 170;

/// Pages of maps, catalogue and discards that a checkpoint of `overlay`, and of `more` records that
/// are not published yet, writes at most.
pub(crate) fn pages_of_changes(state: &State, overlay: &Overlay, more: u64) -> u64 {
    let tables = state.overlays.tables();
    let height = |volume| tables.volumes.get(&volume).map_or(0, |volume| volume.map.height);
    let map = overlay.map_pages(height) + overlay.shared_pages();
    let volumes =
        tables.volumes.len().max(state.volumes.count()) as u64 + overlay.catalogue().len() as u64;
    let all = |entries: u64, table: Table| tree_pages(u64::MAX, entries.div_ceil(table.per_leaf()));
    let ranges = (tables.discards.len() + overlay.ranges().len()) as u64 + more;
    let catalogue = if state.shares_pages() { Table::Maps } else { Table::Catalogue };
    // Each act makes an entry, and writes over another one.
    let volumes = volumes + 2 * state.acts_ahead().count() as u64;
    map + all(volumes, catalogue) + all(ranges, Table::Discards) + CHANGE_PAGES
}

/// Blocks whose counts `records` records may change. Each may raise one and lower another, and its
/// own block may turn out to be needless; so may all in one leaf of the map.
pub(crate) fn leaf_of_map() -> u64 {
    1 + Table::Map.per_leaf()
}

/// Pages that a checkpoint of `overlay`, and of `more` records that are not published yet, writes
/// at most.
pub(crate) fn pages_of(kernel: &Kernel, state: &State, overlay: &Overlay, more: u64) -> u64 {
    let geometry = &kernel.geometry();
    let mut leaf = leaf_of_map();
    let mut shares = 0;
    if state.shares_pages() {
        // A page of a map that is rewritten changes its own account, that of the page before and
        // that of a lender. Besides, one leaf of a deleted map, or one page that is handed over,
        // always has room.
        leaf += LEFTOVER_COUNTS;
        let maps = pages_of_changes(state, overlay, more);
        let accounts = geometry.blocks().div_ceil(Table::Shares.per_leaf());
        shares = tree_pages(3 * maps + LEFTOVER_ACCOUNTS, accounts) + CHANGE_PAGES;
    }
    let records = overlay.records() + more;
    let references =
        tree_pages(3 * records + leaf, geometry.blocks().div_ceil(Table::References.per_leaf()));
    // It stores one block, or brings one back.
    let fingerprints =
        tree_pages(records, geometry.blocks().div_ceil(Table::Fingerprints.per_leaf()));
    let pages = pages_of_changes(state, overlay, more) + references + fingerprints + shares;
    // The zone table also holds the changes that its own pages make.
    pages
        + tree_pages(
            2 * records + leaf + 2 * pages,
            geometry.zones.div_ceil(Table::Zones.per_leaf()),
        )
}

/// The most entries that the table of discards gets from all that was gathered so far.
pub(crate) fn discards_ahead(state: &State) -> u64 {
    let gathered: usize = state.windows.all().map(|window| window.ranges.len()).sum();
    let published = state.overlays.range_records();
    let copied: u64 = state.moments_ahead().map(|moment| moment.ranges).sum();
    state.overlays.tables().discards.len() as u64 + 2 * (published + gathered as u64) + copied
}

/// The entries that the tables of bounded size get.
pub(crate) fn count_ahead(state: &State) -> Ahead {
    Ahead { ranges: Some(discards_ahead(state)), volumes: state.volumes_ahead() }
}
