//! Room: the blocks that are promised to windows and checkpoints, and those that are promised to
//! nobody.

use crate::{
    format::{
        geometry::Geometry,
        page::{FANOUT, Table},
    },
    kernel::{Kernel, State},
    overlay::Overlay,
    scheme::verbs::{RECORDS_ALONE, Scheme},
};

/// Share of the store that is reserved, and its bounds in blocks. The least is what a trim of one
/// range needs in the smallest store, twice.
const RESERVE_SHARE: u64 = 32;
const RESERVE_MIN: u64 = 64;
const RESERVE_MAX: u64 = 16_384;

/// How far a checkpoint may go in working through discards, by the leaves of the map and the
/// addresses that they cover in them.
pub(crate) struct DiscardRoom {
    spare: u64,
    /// Leaves of the table of references.
    references: u64,
    leaves: u64,
    blocks: u64,
    blocks_max: u64,
}

impl DiscardRoom {
    /// Takes one more leaf, in which `blocks` addresses are covered, when there is room for the
    /// pages that change because of it, and memory for the changes of references. One leaf
    /// always has room.
    pub(crate) fn take(&mut self, blocks: u64) -> bool {
        let (leaves, blocks) = (self.leaves + 1, self.blocks + blocks);
        let pages = 2 * leaves + blocks.min(self.references);
        if leaves > 1 && (pages > self.spare || blocks > self.blocks_max) {
            return false;
        }
        (self.leaves, self.blocks) = (leaves, blocks);
        true
    }
}

/// Blocks that only trims, duplicates, checkpoints and recovery may use.
pub(crate) fn reserve(geometry: &Geometry) -> u64 {
    (geometry.usable_blocks() / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX)
}

/// Pages that the checkpoints to come write at most, when `more` records join.
pub(crate) fn pages_ahead(kernel: &Kernel, scheme: &dyn Scheme, state: &State, more: u64) -> u64 {
    let gathered = state.windows.records() as u64 + more;
    let frozen =
        state.overlays.unbuilt().map_or(0, |frozen| scheme.reserve(kernel, state, frozen, 0));
    let sealed: u64 =
        state.overlays.sealed().map(|overlay| scheme.reserve(kernel, state, overlay, 0)).sum();
    // A moment that is not sealed yet makes one checkpoint more.
    let moment = state.moment.as_ref().map_or(0, |moment| {
        moment.pages.max(scheme.reserve(kernel, state, &Overlay::default(), 0))
    });
    let moving = match state.moving.records() {
        0 => 0,
        _ => scheme.reserve(kernel, state, &state.moving, 0),
    };
    scheme.reserve(kernel, state, state.overlays.active(), gathered)
        + frozen
        + moving
        + sealed
        + moment
        + state.spilling_pages
}

/// True when `pages` more than everything that is promised can be taken.
pub(crate) fn has_spare(kernel: &Kernel, scheme: &dyn Scheme, state: &State, pages: u64) -> bool {
    state.allocator.free()
        >= to_place(kernel, state, 0)
            + pages_ahead(kernel, scheme, state, 0)
            + 2 * reserve(&kernel.geometry())
            + pages
}

/// Blocks that windows need which are not placed, when `blocks` more join.
pub(crate) fn to_place(kernel: &Kernel, state: &State, blocks: u64) -> u64 {
    let (windows, records) = state.windows.unprepared();
    // A window may need one more carrier for its last records, and these blocks may fill the open
    // window and begin others.
    let opened =
        (state.windows.open().slots() as u64 + blocks) / kernel.settings.window_blocks as u64;
    let carriers = (records as u64 + blocks) / RECORDS_ALONE as u64 + windows as u64 + opened;
    state.windows.unplaced() + blocks + carriers
}

/// Blocks that nothing is promised to.
pub(crate) fn spare(kernel: &Kernel, scheme: &dyn Scheme, state: &State) -> u64 {
    state
        .allocator
        .free()
        .saturating_sub(to_place(kernel, state, 0) + pages_ahead(kernel, scheme, state, 0))
}

/// The work that a checkpoint may do for pending discards when they are many.
pub(crate) fn discard_room(kernel: &Kernel, scheme: &dyn Scheme) -> DiscardRoom {
    let references = kernel.geometry().blocks().div_ceil(Table::References.per_leaf());
    let blocks_max = kernel.settings.limits.discard_leaves * Table::Map.per_leaf();
    DiscardRoom {
        spare: spare(kernel, scheme, &kernel.state.lock()),
        references,
        leaves: 0,
        blocks: 0,
        blocks_max,
    }
}

/// How many leaves of the map a checkpoint may work through for pending discards: one always
/// has room.
pub(crate) fn discard_leaves(kernel: &Kernel, scheme: &dyn Scheme) -> usize {
    let spare = spare(kernel, scheme, &kernel.state.lock());
    let references = kernel.geometry().blocks().div_ceil(Table::References.per_leaf());
    let each = 2 + references.min(Table::Map.per_leaf());
    1 + (spare / each).min(kernel.settings.limits.discard_leaves) as usize
}

/// Pages of a tree of `leaves` leaves that are written at most when `touched` of them change.
pub(crate) fn tree_pages(touched: u64, leaves: u64) -> u64 {
    let (mut level, mut pages) = (leaves.max(1), 0);
    loop {
        pages += touched.min(level);
        if level == 1 {
            return pages;
        }
        level = level.div_ceil(FANOUT);
    }
}
