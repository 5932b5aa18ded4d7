//! Space and limits: a change is admitted only when everything that follows from it has room.
//!
//! An admitted block needs a physical block, a share of a carrier, and the table pages that the next checkpoint writes because of it. A
//! fixed reserve is left untouched by writes, so that trims, duplicates, checkpoints and recovery always have room.

use onefold_core::{Error, Kind, Result};

use super::{Engine, State};
use crate::{format::page::Table, overlay::Overlay, scheme::thin};

/// Share of the store that is reserved, and its bounds in blocks.
const RESERVE_SHARE: u64 = 32;
const RESERVE_MIN: u64 = 48;
const RESERVE_MAX: u64 = 16_384;

/// Most windows that are closed and not yet published: more would only wait.
const FLIGHTS_MAX: usize = 256;

/// What a change is admitted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New blocks.
    Data,
    /// Trims, duplicates and catalogue changes: may use the reserve.
    Relief,
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
        (self.fixed.geometry.usable_blocks() / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX)
    }

    /// Pages that a checkpoint of `overlay` may have to write at most.
    fn pages_of(&self, overlay: &Overlay, more_records: u64, state: &State) -> u64 {
        let records = overlay.records + more_records;
        if records == 0 {
            return 0;
        }
        let geometry = &self.fixed.geometry;
        let used_blocks = state.allocator.high_water() * geometry.zone_blocks;
        // Each record may raise one count and lower another; tables have about one inner page for 168 leaves, and a path of them.
        let physical = (2 * records).min(used_blocks / Table::Physical.per_leaf() + 1);
        let zones = (2 * records).min(state.allocator.high_water() / Table::Zones.per_leaf() + 1);
        let inner = (physical + zones) / 100 + 12;
        overlay.dirty.len() + physical + zones + inner
    }

    /// Pages that the checkpoints to come may have to write at most.
    fn pages_ahead(&self, state: &State) -> u64 {
        let flying: usize = state.flights.iter().map(|flight| flight.window.records()).sum();
        let gathered = (flying + state.open.records()) as u64;
        let frozen = state.frozen.as_ref().map_or(0, |frozen| self.pages_of(frozen, 0, state));
        self.pages_of(&state.active, gathered, state) + frozen + state.spilling_pages + 8
    }

    /// True when `pages` more than everything that is promised can be taken.
    pub(crate) fn has_spare(&self, state: &State, pages: u64) -> bool {
        state.allocator.free() >= self.unplaced(state) + self.pages_ahead(state) + 2 * self.reserve() + pages
    }

    /// Blocks that windows need which are gathered but not placed.
    fn unplaced(&self, state: &State) -> u64 {
        let windows = state.flights.len() as u64 + 2;
        state.unplaced + state.unplaced / thin::RECORDS_ALONE as u64 + 2 * windows
    }

    /// Decides whether a change of `blocks` new blocks may be gathered. `Wait` also asks for what makes the wait end.
    pub(crate) fn admit(&self, state: &mut State, blocks: u64, purpose: Purpose) -> Result<Admission> {
        state.check_running()?;
        let gathered: usize = state.flights.iter().map(|flight| flight.window.slots()).sum::<usize>() + state.open.slots();
        if gathered as u64 + blocks > self.settings.unflushed_blocks as u64 && gathered > 0 || state.flights.len() >= FLIGHTS_MAX {
            return Ok(Admission::Wait);
        }
        if state.uncommitted_records() + blocks > self.settings.records_max && (!state.active.is_empty() || state.frozen.is_some()) {
            state.checkpoint_wanted = true;
            return Ok(Admission::Wait);
        }
        let mut needed = self.unplaced(state) + self.pages_ahead(state) + blocks + blocks / 16 + 8;
        if purpose == Purpose::Data {
            needed += self.reserve();
        }
        if state.allocator.free() < needed {
            let zones = self.zones(state.zone_table);
            state.allocator.grow_to(needed, &zones);
        }
        // Blocks must also be within reach of the zone list: on an aged store a zone may offer only a few.
        let to_place = self.unplaced(state) + blocks + blocks / 16 + 8;
        if state.allocator.free() >= needed && state.allocator.ready_blocks() < to_place {
            let zones = self.zones(state.zone_table);
            state.allocator.open_ahead(to_place, &zones)?;
        }
        if state.allocator.free() >= needed && state.allocator.ready_blocks() >= to_place {
            return Ok(Admission::Granted);
        }
        Ok(if self.can_reclaim(state) {
            state.checkpoint_wanted = true;
            Admission::Wait
        } else {
            Admission::Full
        })
    }

    /// True when a checkpoint could make blocks free.
    fn can_reclaim(&self, state: &State) -> bool {
        !state.active.is_empty()
            || state.frozen.is_some()
            || !state.flights.is_empty()
            || !state.open.is_empty()
            || !state.snapshot.discards.is_empty()
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
