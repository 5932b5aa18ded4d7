//! Zones that are open for table pages, and for blocks that are moved.
//!
//! A copy of a block that is moved has the life of a table page: no record names it, so its zone is
//! not listed, and it is in use on the disk from the superblock on that names it. So copies go into
//! zones that were opened for pages. One such zone is kept for copies, so that pages do not cut
//! their runs.
//!
//! *Invariant:* `free` counts the free blocks of all of these zones, those before their cursors
//! among them: [`rewind`](PageZones::rewind) reaches these.

use std::collections::{BTreeMap, VecDeque};

use onefold_core::{Pba, ZoneId};

use super::active_zone::{ActiveZone, Extent};
use crate::format::{geometry::Geometry, zone_bitmap::ZoneBitmap};

/// The zones that are open for pages and copies.
pub(super) struct PageZones {
    /// For the size of zones, which never changes.
    geometry: Geometry,
    zones: BTreeMap<ZoneId, ActiveZone>,
    /// Those that still offer blocks.
    offering: VecDeque<ZoneId>,
    free: u64,
    /// The zone among them that is kept for blocks that are moved.
    copies: Option<ZoneId>,
    /// The zone among them whose holes take blocks that are moved.
    holes: Option<ZoneId>,
}

impl PageZones {
    pub(super) fn new(geometry: Geometry) -> PageZones {
        PageZones {
            geometry,
            zones: BTreeMap::new(),
            offering: VecDeque::new(),
            free: 0,
            copies: None,
            holes: None,
        }
    }

    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.zones.len()
    }

    /// Their free blocks.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Opens a zone, of which these blocks may not be handed out.
    pub(super) fn open(&mut self, zone: ZoneId, used: ZoneBitmap) {
        let start = self.geometry.start_of(zone);
        let blocks = ActiveZone::new(start, self.geometry.zone_blocks, used);
        self.free += blocks.clear();
        self.zones.insert(zone, blocks);
        self.offering.push_back(zone);
    }

    /// True when a zone is left that may offer a block.
    pub(super) fn may_offer(&self) -> bool {
        !self.offering.is_empty()
    }

    /// Takes a block of the zone that offers first; a zone that has none stops offering.
    pub(super) fn take(&mut self) -> Option<Pba> {
        let taken = self.zones.get_mut(self.offering.front()?).and_then(|zone| zone.take(1));
        match taken {
            Some(_) => self.free -= 1,
            None => drop(self.offering.pop_front()),
        }
        taken.map(|run| run.at)
    }

    /// Gives up the zone that was opened last, with its blocks in use: the tables do not use it yet.
    pub(super) fn give_up(&mut self) -> Option<(ZoneId, ZoneBitmap)> {
        let zone = self.offering.pop_back()?;
        let blocks = self.zones.remove(&zone)?;
        self.free -= blocks.clear();
        Some((zone, *blocks.used()))
    }

    /// Lets all zones offer the blocks that became free behind their cursors.
    pub(super) fn rewind(&mut self) {
        for (zone, blocks) in &mut self.zones {
            blocks.rewind();
            if !self.offering.contains(zone) && !blocks.is_full() {
                self.offering.push_back(*zone);
            }
        }
    }

    /// Closes the zones that offer no more blocks. Gives them with their blocks in use.
    pub(super) fn retire(&mut self) -> Vec<(ZoneId, ZoneBitmap)> {
        let done: Vec<ZoneId> =
            self.zones.keys().filter(|zone| !self.offering.contains(zone)).copied().collect();
        let closed = done.into_iter().filter_map(|zone| {
            let blocks = self.zones.remove(&zone)?;
            self.free -= blocks.clear();
            Some((zone, *blocks.used()))
        });
        closed.collect()
    }

    /// Whether a block of one of these zones is not free; `None` for other zones.
    pub(super) fn is_used(&self, pba: Pba) -> Option<bool> {
        let zone = self.zones.get(&self.geometry.zone_of(pba))?;
        Some(zone.used().get(self.geometry.offset_of(pba)))
    }

    /// Marks a block of one of these zones as in use, and gives whether it was free; `None` for
    /// other zones.
    pub(super) fn recover_used(&mut self, pba: Pba) -> Option<bool> {
        let zone = self.zones.get_mut(&self.geometry.zone_of(pba))?;
        Some(zone.mark(self.geometry.offset_of(pba)))
    }

    /// Makes a block free, if its zone is one of these.
    pub(super) fn release(&mut self, pba: Pba) -> bool {
        let Some(zone) = self.zones.get_mut(&self.geometry.zone_of(pba)) else { return false };
        assert!(zone.release(self.geometry.offset_of(pba)), "block {pba} is released once");
        self.free += 1;
        true
    }

    /// True while the free blocks are as many as are counted.
    pub(super) fn is_counted(&self) -> bool {
        self.free == self.zones.values().map(ActiveZone::clear).sum::<u64>()
    }

    /// The zone that is kept for copies, while it offers blocks.
    fn copies(&self) -> Option<ZoneId> {
        self.copies.filter(|zone| self.offering.contains(zone))
    }

    /// Opens a zone that is kept for copies.
    pub(super) fn open_for_copies(&mut self, zone: ZoneId, used: ZoneBitmap) {
        self.open(zone, used);
        self.copies = Some(zone);
    }

    /// Takes up to `most` blocks of a run that has `least`, in the zone that is kept for copies. It
    /// is kept no longer when it has no such run: pages may fill what is left.
    pub(super) fn take_copies(&mut self, most: u64, least: u64) -> Option<Extent> {
        if let Some(zone) = self.copies() {
            let taken = self.take_run(zone, most, least);
            if taken.is_some() {
                return taken;
            }
            if let Some(zone) = self.zones.get_mut(&zone) {
                zone.rewind();
            }
        }
        self.copies = None;
        None
    }

    /// True when the zone that is kept for copies has a run of `least` blocks.
    pub(super) fn has_run(&self, least: u64) -> bool {
        let zone = self.copies().and_then(|zone| self.zones.get(&zone));
        zone.is_some_and(|zone| zone.has_run(least))
    }

    /// True when the next page would go into the zone that is kept for copies.
    pub(super) fn would_cut_copies(&self) -> bool {
        self.copies.is_some() && self.offering.front().copied() == self.copies
    }

    /// Lets the zone that offers first offer last; false when there is no other.
    pub(super) fn rotate(&mut self) -> bool {
        let has_other = self.offering.len() > 1;
        if has_other {
            self.offering.rotate_left(1);
        }
        has_other
    }

    /// Opens a zone whose holes take copies.
    pub(super) fn open_for_holes(&mut self, zone: ZoneId, used: ZoneBitmap) {
        self.open(zone, used);
        self.holes = Some(zone);
    }

    /// True when the zone whose holes take copies offers more.
    pub(super) fn has_hole(&self) -> bool {
        let zone = self.holes.filter(|zone| self.offering.contains(zone));
        zone.and_then(|zone| self.zones.get(&zone)).is_some_and(|zone| zone.has_run(1))
    }

    /// Takes up to `most` blocks in the zone whose holes take copies. It stops offering blocks when
    /// it has none.
    pub(super) fn take_hole(&mut self, most: u64) -> Option<Extent> {
        if let Some(zone) = self.holes.filter(|zone| self.offering.contains(zone)) {
            let taken = self.take_run(zone, most, 1);
            if taken.is_some() {
                return taken;
            }
            self.offering.retain(|&other| other != zone);
        }
        self.holes = None;
        None
    }

    fn take_run(&mut self, zone: ZoneId, most: u64, least: u64) -> Option<Extent> {
        let taken = self.zones.get_mut(&zone)?.take_run(most, least)?;
        self.free -= taken.blocks;
        Some(taken)
    }

    /// Breaks `ReuseAfterRelease`: hands a block out again although it may be needed.
    #[cfg(feature = "planted-bugs")]
    pub(super) fn reuse_early(&mut self, pba: Pba) {
        if let Some(zone) = self.zones.get_mut(&self.geometry.zone_of(pba)) {
            zone.reuse_early(self.geometry.offset_of(pba));
        }
    }
}
