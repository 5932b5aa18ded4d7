//! Space and limits: a change is admitted only when everything that follows from it has room.
//!
//! An admitted block needs a physical block, a share of a carrier, and the table pages that the
//! next checkpoint writes because of it. A fixed reserve is left untouched by writes, so that
//! trims, duplicates, checkpoints and recovery always have room.

use onefold_core::{Error, Kind, Result};

use super::{Engine, Stage, State};
use crate::{
    coverage::Mark,
    format::{
        geometry::Geometry,
        page::{FANOUT, Table},
    },
    overlay::Overlay,
    scheme::{RECORDS_ALONE, Records},
    settings::PlantedBug,
};

/// Share of the store that is reserved, and its bounds in blocks. The least is what a trim of one
/// range needs in the smallest store, twice.
const RESERVE_SHARE: u64 = 32;
const RESERVE_MIN: u64 = 64;
const RESERVE_MAX: u64 = 16_384;

/// Map pages that one change may touch besides those that are counted already: two leaves and the
/// paths to them.
const CHANGE_PAGES: u64 = 12;

/// What a change is admitted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New blocks.
    Data,
    /// Blocks that a tenant of several wrote, new or not: as many as these are left to nobody.
    Shared { withheld: u64 },
    /// Duplicates and new volumes, which may make tables grow: half of the reserve is for them.
    Known,
    /// Trims, and what else makes room: all of the reserve is for them.
    FreesSpace,
}

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

/// How full what has a limit is, between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Published carriers that wait for a checkpoint.
    pub carriers: u64,
    /// Windows that are closed and not yet published.
    pub closed_windows: usize,
    /// Ranges of the open window.
    pub ranges: usize,
}

/// Whether a change may go on.
pub(crate) enum Admission {
    Granted,
    /// Steps must be run first.
    Wait,
    /// Nothing can be reclaimed: the store is full.
    Full,
}

impl Engine {
    /// Blocks that only trims, duplicates, checkpoints and recovery may use.
    pub(crate) fn reserve(&self) -> u64 {
        reserve(&self.fixed.geometry)
    }

    /// Pages that a checkpoint of `overlay`, and of `more` records that are not published yet,
    /// writes at most.
    fn pages_of(&self, state: &State, overlay: &Overlay, more: u64) -> u64 {
        let geometry = &self.fixed.geometry;
        let records = overlay.records + more;
        let map = overlay.dirty.pages(|volume| {
            state.snapshot.volumes.get(&volume).map_or(0, |volume| volume.map.height)
        });
        let volumes = state.snapshot.volumes.len().max(state.volumes.len()) as u64
            + overlay.catalogue.len() as u64;
        let all =
            |entries: u64, table: Table| tree_pages(u64::MAX, entries.div_ceil(table.per_leaf()));
        let ranges = (state.snapshot.discards.len() + overlay.ranges.len()) as u64 + more;
        let small = all(volumes, Table::Catalogue) + all(ranges, Table::Discards);
        // Each record may raise one count and lower another, and its own block may turn out to be
        // needless; so may all in one leaf of the map.
        let leaf = 1 + Table::Map.per_leaf();
        if self.in_place() {
            // Leaves that do not exist are made; those that do are not written.
            let pages = map + small + self.block_pages_ahead(state) + CHANGE_PAGES;
            let blocks = 2 * records
                + leaf
                + 2 * pages
                + overlay.unlinked.len() as u64
                + state.deferred as u64;
            return pages + tree_pages(blocks, geometry.zones.div_ceil(Table::Zones.per_leaf()));
        }
        let references = tree_pages(
            3 * records + leaf,
            geometry.blocks().div_ceil(Table::References.per_leaf()),
        );
        // It stores one block, or brings one back.
        let fingerprints =
            tree_pages(records, geometry.blocks().div_ceil(Table::Fingerprints.per_leaf()));
        let pages = map + small + references + fingerprints + CHANGE_PAGES;
        // What the pages of the zone table change, its pages hold as well.
        pages
            + tree_pages(
                2 * records + leaf + 2 * pages,
                geometry.zones.div_ceil(Table::Zones.per_leaf()),
            )
    }

    /// Leaves of references and fingerprints that are still to be made for zones in use and those
    /// that are opened next, and the pages above.
    fn block_pages_ahead(&self, state: &State) -> u64 {
        let geometry = &self.fixed.geometry;
        let ahead = 3 * geometry.zone_blocks + self.settings.unflushed_blocks as u64;
        let of_table = |(table, have): (Table, u64)| {
            let missing = self.block_leaves_wanted(state, table, ahead).saturating_sub(have);
            tree_pages(missing, geometry.blocks().div_ceil(table.per_leaf()))
        };
        [Table::References, Table::Fingerprints]
            .into_iter()
            .zip(state.block_leaves)
            .map(of_table)
            .sum()
    }

    /// Pages that the checkpoints to come write at most, when `more` records join.
    fn pages_ahead(&self, state: &State, more: u64) -> u64 {
        let flying: usize = state.closed_windows.iter().map(|closed| closed.window.records()).sum();
        let gathered = (flying + state.open.records()) as u64 + more;
        let frozen = state
            .frozen
            .as_ref()
            .filter(|_| !state.built)
            .map_or(0, |frozen| self.pages_of(state, frozen, 0));
        self.pages_of(state, &state.active, gathered) + frozen + state.spilling_pages
    }

    /// How full what has a limit is.
    #[must_use]
    pub fn filled(&self) -> Filled {
        let state = self.state.lock();
        Filled {
            carriers: state.carriers(),
            closed_windows: state.closed_windows.len(),
            ranges: state.open.ranges.len(),
        }
    }

    /// True when `pages` more than everything that is promised can be taken.
    pub(crate) fn has_spare(&self, state: &State, pages: u64) -> bool {
        state.allocator.free()
            >= self.to_place(state, 0) + self.pages_ahead(state, 0) + 2 * self.reserve() + pages
    }

    /// Blocks that windows need which are not placed, when `blocks` more join.
    fn to_place(&self, state: &State, blocks: u64) -> u64 {
        let waiting =
            || state.closed_windows.iter().filter(|closed| closed.stage < Stage::Prepared);
        let records =
            waiting().map(|closed| closed.window.records()).sum::<usize>() + state.open.records();
        // A window may need one more carrier for its last records, and these blocks may fill the
        // open window and begin others.
        let opened = (state.open.slots() as u64 + blocks) / self.settings.window_blocks as u64;
        let windows = waiting().count() as u64 + 1 + opened;
        state.unplaced + blocks + (records as u64 + blocks) / RECORDS_ALONE as u64 + windows
    }

    /// Blocks that nothing is promised to.
    fn spare(&self, state: &State) -> u64 {
        state.allocator.free().saturating_sub(self.to_place(state, 0) + self.pages_ahead(state, 0))
    }

    /// What a checkpoint may do for pending discards when they are many.
    pub(crate) fn discard_room(&self, state: &State) -> DiscardRoom {
        let references = self.fixed.geometry.blocks().div_ceil(Table::References.per_leaf());
        let blocks_max = self.settings.limits.discard_leaves * Table::Map.per_leaf();
        DiscardRoom { spare: self.spare(state), references, leaves: 0, blocks: 0, blocks_max }
    }

    /// How many leaves of the map a checkpoint may work through for pending discards: one always
    /// has room.
    pub(crate) fn discard_leaves(&self, state: &State) -> usize {
        let spare = self.spare(state);
        let references = self.fixed.geometry.blocks().div_ceil(Table::References.per_leaf());
        let each = 2 + references.min(Table::Map.per_leaf());
        1 + (spare / each).min(self.settings.limits.discard_leaves) as usize
    }

    /// How many more ranges may be gathered before a checkpoint: the table of discards has room for
    /// all of them and for what they cut. Each adds itself, and may cut an older one in two.
    pub(crate) fn ranges_left(&self, state: &State) -> u64 {
        if !self.leaves_discards() || self.settings.has(PlantedBug::DiscardsUnlimited) {
            return u64::MAX;
        }
        (self.settings.limits.discards.saturating_sub(discards_ahead(state))) / 2
    }

    /// True when checkpoints leave ranges to be applied later. In place they are applied with their
    /// windows.
    fn leaves_discards(&self) -> bool {
        !self.in_place() && self.scheme.records() != Records::Nowhere
    }

    /// True when the table of discards may soon have no room.
    pub(crate) fn discards_crowded(&self, state: &State) -> bool {
        self.leaves_discards() && discards_ahead(state) > self.settings.limits.discards / 4 * 3
    }

    /// Admits one range.
    pub(crate) fn admit_range(&self, state: &mut State) -> Result<()> {
        if self.ranges_left(state) > 0 { Ok(()) } else { Err(self.wait_for_ranges(state)) }
    }

    /// The table of discards may have no room for a range before the next checkpoint, which works
    /// through some of them.
    pub(crate) fn wait_for_ranges(&self, state: &mut State) -> Error {
        self.coverage.hit(Mark::RangesWait);
        state.checkpoint_wanted = true;
        wait()
    }

    /// Decides whether a change of `blocks` new blocks may be gathered. `Wait` also asks for what
    /// makes the wait end.
    pub(crate) fn admit(
        &self,
        state: &mut State,
        blocks: u64,
        purpose: Purpose,
    ) -> Result<Admission> {
        state.check_running()?;
        let gathered: usize =
            state.closed_windows.iter().map(|closed| closed.window.slots()).sum::<usize>()
                + state.open.slots();
        if gathered as u64 + blocks > self.settings.unflushed_blocks as u64 && gathered > 0 {
            return Ok(Admission::Wait);
        }
        if state.closed_windows.len() >= self.settings.limits.closed_windows
            && !self.settings.has(PlantedBug::FlightsUnlimited)
        {
            self.coverage.hit(Mark::ClosedWindowsFull);
            return Ok(Admission::Wait);
        }
        let carriers_full = state.carriers() >= self.settings.limits.carriers
            && !self.settings.has(PlantedBug::CarriersUnlimited);
        self.coverage.add(Mark::CarriersFull, usize::from(carriers_full));
        if (carriers_full || state.uncommitted_records() + blocks > self.settings.records_max)
            && (!state.active.is_empty() || state.frozen.is_some())
        {
            state.checkpoint_wanted = true;
            return Ok(Admission::Wait);
        }
        let to_place = self.to_place(state, blocks);
        let margin = match purpose {
            Purpose::Data => self.reserve(),
            Purpose::Shared { withheld } => self.reserve() + withheld,
            Purpose::Known => self.reserve() / 2,
            Purpose::FreesSpace => 0,
        };
        let needed = to_place + self.pages_ahead(state, blocks + 1) + margin;
        let zones = self.zones(state.zone_table);
        if state.allocator.free() < needed {
            state.allocator.grow_to(needed, &zones);
        }
        // Blocks must also be within reach of the zone list: on an aged store a zone may offer only
        // a few.
        if state.allocator.free() < needed || state.allocator.ready_blocks() < to_place {
            state.allocator.open_ahead(to_place, &zones)?;
        }
        if state.allocator.free() < needed || state.allocator.ready_blocks() < to_place {
            state.allocator.rewind();
            state.allocator.open_ahead(to_place, &zones)?;
        }
        if state.allocator.free() >= needed && state.allocator.ready_blocks() >= to_place {
            return Ok(Admission::Granted);
        }
        Ok(if state.can_reclaim() {
            state.checkpoint_wanted = true;
            Admission::Wait
        } else {
            Admission::Full
        })
    }
}

impl State {
    /// Published carriers that no checkpoint holds.
    pub(crate) fn carriers(&self) -> u64 {
        self.active.carriers + self.frozen.as_ref().map_or(0, |frozen| frozen.carriers)
    }

    /// True when a checkpoint could make blocks free, or is about to.
    fn can_reclaim(&self) -> bool {
        !self.active.is_empty()
            || self.frozen.is_some()
            || !self.closed_windows.is_empty()
            || !self.open.is_empty()
            || !self.snapshot.discards.is_empty()
            || self.deferred > 0
            || self.releasing
    }
}

/// The most entries that the table of discards gets from all that was gathered so far.
fn discards_ahead(state: &State) -> u64 {
    let published =
        state.active.range_records + state.frozen.as_ref().map_or(0, |frozen| frozen.range_records);
    let windows = state.closed_windows.iter().map(|closed| &*closed.window).chain([&state.open]);
    let gathered: usize = windows.map(|window| window.ranges.len()).sum();
    state.snapshot.discards.len() as u64 + 2 * (published + gathered as u64)
}

/// Blocks of a store that only trims, duplicates, checkpoints and recovery may use.
pub(crate) fn reserve(geometry: &Geometry) -> u64 {
    (geometry.usable_blocks() / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX)
}

/// Pages of a tree of `leaves` leaves that are written at most when `touched` of them change.
fn tree_pages(touched: u64, leaves: u64) -> u64 {
    let (mut level, mut pages) = (leaves.max(1), 0);
    loop {
        pages += touched.min(level);
        if level == 1 {
            return pages;
        }
        level = level.div_ceil(FANOUT);
    }
}

/// The store is full.
pub(crate) fn full() -> Error {
    Error::new(Kind::NoSpace, "the store is full; trim or delete data, or give it more space")
}

/// Steps must be run first.
pub(crate) fn wait() -> Error {
    Error::new(Kind::Busy, "the store waits for its disk")
}
