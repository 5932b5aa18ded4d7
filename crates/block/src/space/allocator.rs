//! Which physical blocks are free, and which come next.
//!
//! A zone is *idle* ([`IdleZones`]), or *active*: opened for data ([`DataZones`]) and listed in the
//! zone list ([`ZoneList`]), or for table pages (`PageZones`). Each of these has its own state; the
//! allocator has the steps that concern more than one of them. Blocks are handed out only from
//! active zones. A block becomes free again in one place only, [`Allocator::release_some`], after the
//! superblock that no longer needs it is durable and nobody reads the version before it.
//!
//! *Invariant:* a block is handed out at most once between two releases of it; whatever
//! [`Allocator::free`] counts can be handed out for table pages now, and for data when the zone
//! list has room for its zone.

#[cfg(feature = "planted-bugs")]
mod broken;
mod moving;

use onefold_core::{Error, Fingerprint, Kind, Pba, Result, ZoneId};

use super::{
    active_zone::Extent,
    data_zones::{DataZones, Lane},
    idle_zones::{IdleZones, ZoneSource},
    page_zones::PageZones,
    zone_list::{DuePage, ZoneList},
};
use crate::format::{
    Identity, geometry::Geometry, record::WindowNumber, superblock, zone_bitmap::ZoneBitmap,
};

pub(crate) struct Allocator {
    /// Blocks of a zone.
    zone_blocks: u64,
    /// Zones that are not open.
    pub(crate) idle: IdleZones,
    /// Zones that are open for clients' blocks and carriers.
    pub(crate) data: DataZones,
    /// Zones that are open for table pages and for blocks that are moved.
    pages: PageZones,
    /// The zones that are open for data, on the disk.
    pub(crate) list: ZoneList,
    /// The tables hold the windows up to this one.
    committed: WindowNumber,
}

impl Allocator {
    /// The allocator of a store whose tables are in `state`.
    pub(crate) fn new(
        geometry: Geometry,
        state: &superblock::State,
        grows: bool,
        list: ZoneList,
    ) -> Allocator {
        Allocator {
            zone_blocks: geometry.zone_blocks,
            idle: IdleZones::new(geometry, state, grows),
            data: DataZones::new(geometry),
            pages: PageZones::new(geometry),
            list,
            committed: state.committed,
        }
    }

    /// Blocks that could be handed out. Blocks that became free in a zone that takes no more data
    /// count when the zone is idle again.
    pub(crate) fn free(&self) -> u64 {
        self.idle.free() + self.active_free()
    }

    fn active_free(&self) -> u64 {
        self.data.ready_blocks() + self.pages.free()
    }

    /// The store has these sizes from now on, in both superblocks: the new zones are free, and those
    /// of a zone list that moved on. The list is at its new place.
    pub(crate) fn grow(&mut self, geometry: Geometry) {
        self.list.moved(geometry);
        self.idle.grow(geometry);
    }

    /// The tables of the last released checkpoint hold the windows up to this one.
    pub(crate) fn committed(&self) -> WindowNumber {
        self.committed
    }

    /// The lowest generation of the data zones that a checkpoint up to `committed` does not hold
    /// completely.
    pub(crate) fn oldest_generation(&self, committed: WindowNumber) -> u64 {
        let oldest = self.data.oldest_generation(committed);
        oldest.unwrap_or_else(|| self.list.next_generation())
    }

    /// Asks the host for space until `blocks` are free; does nothing for a store that took its
    /// space when it was made. True when the host gave some.
    pub(crate) fn grow_to(&mut self, blocks: u64, source: &dyn ZoneSource) -> bool {
        self.idle.grow_to(blocks.saturating_sub(self.active_free()), source)
    }

    /// Lets the zones that are being filled offer the blocks that became free behind their cursors;
    /// zones that offer nothing, because tables took it, make room in the list.
    pub(crate) fn rewind(&mut self) {
        self.pages.rewind();
        self.data.rewind();
        self.retire();
    }

    /// True when [`place`](Self::place) can hand out `blocks` blocks now.
    pub(crate) fn can_place(&self, blocks: u64) -> bool {
        self.data.can_place(blocks, &self.list)
    }

    /// Takes up to `blocks` blocks from zones whose listing is durable, next to each other as far
    /// as possible.
    pub(crate) fn place(&mut self, blocks: u64, lane: Lane) -> Vec<Extent> {
        self.data.place(blocks, lane, &self.list)
    }

    /// Opens data zones until `blocks` can be placed, as far as there is space and room in the
    /// list.
    pub(crate) fn open_ahead(&mut self, blocks: u64, source: &dyn ZoneSource) -> Result<()> {
        while self.data.ready_blocks() < blocks && self.list.has_room() {
            // When no idle zone is left, one that the tables do not use yet will do.
            let taken = self.idle.take_best(source)?.or_else(|| self.pages.give_up());
            let Some((zone, used)) = taken else { break };
            self.data.open(zone, self.list.add(zone), used);
        }
        Ok(())
    }

    /// Takes a block for a table page; from data zones when nothing else is left.
    pub(crate) fn place_page(&mut self, source: &dyn ZoneSource) -> Result<Pba> {
        let mut rewound = false;
        loop {
            self.spare_copies(source)?;
            if self.pages.may_offer() {
                match self.pages.take() {
                    Some(pba) => return Ok(pba),
                    None => continue,
                }
            }
            if let Some((zone, used)) = self.idle.take_best(source)? {
                self.pages.open(zone, used);
                continue;
            }
            if !rewound {
                rewound = true;
                self.rewind();
                continue;
            }
            // A recovery has taken no space from the host yet: its records' space is taken now.
            if self.grow_to(self.free() + 1, source) {
                continue;
            }
            return self.data.take_for_page().ok_or_else(|| {
                Error::new(Kind::NoSpace, "no block is left for the tables of a checkpoint")
            });
        }
    }

    /// True when a block is not free.
    pub(crate) fn is_used(&self, pba: Pba, source: &dyn ZoneSource) -> Result<bool> {
        match self.data.is_used(pba).or_else(|| self.pages.is_used(pba)) {
            Some(is_used) => Ok(is_used),
            None => self.idle.is_used(pba, source),
        }
    }

    /// Marks a block as in use that recovery found to be; true when it was free.
    ///
    /// # Errors
    /// `Corrupt` for a block of a zone that was never opened.
    pub(crate) fn recover_used(&mut self, pba: Pba, source: &dyn ZoneSource) -> Result<bool> {
        match self.data.recover_used(pba).or_else(|| self.pages.recover_used(pba)) {
            Some(was_free) => Ok(was_free),
            None => self.idle.recover_used(pba, source),
        }
    }

    /// Makes a zone active again that recovery found in the list; it takes blocks again unless it
    /// was `full`. [`count_ready`](DataZones::count_ready) comes after the last one.
    pub(crate) fn recover_zone(
        &mut self,
        zone: ZoneId,
        generation: u64,
        full: bool,
        source: &dyn ZoneSource,
    ) -> Result<()> {
        let used = self.idle.recover_open(zone, source)?;
        self.data.recover(zone, generation, full, used);
        Ok(())
    }

    /// A checkpoint is durable, and nobody reads the version before: these blocks, in ascending order, are
    /// about to be released, some at a time, so that nobody waits for long for the allocator. From now on
    /// zones are read from the tables of that checkpoint.
    pub(crate) fn begin_release(&mut self, freed: Vec<Pba>) {
        self.idle.begin_release(freed);
    }

    /// Takes up to `most` of the blocks from `least` on that are about to be released, for
    /// [`release_some`](Self::release_some).
    pub(crate) fn next_released(&mut self, least: Pba, most: usize) -> Vec<Pba> {
        self.idle.releasing.next(least, most)
    }

    /// True when no block from `least` on is about to be released.
    pub(crate) fn is_released_from(&self, least: Pba) -> bool {
        self.idle.releasing.is_over_from(least)
    }

    /// Makes blocks free again. `held` are free in the checkpoint, but newer records name them. `zones` are
    /// the new bitmaps of zones that it changed, and of which no block is about to be released.
    pub(crate) fn release_some(
        &mut self,
        freed: &[Pba],
        held: &[Pba],
        zones: &[(ZoneId, ZoneBitmap)],
    ) {
        self.idle.hold(held);
        for &pba in freed {
            if !self.data.release(pba) && !self.pages.release(pba) {
                self.idle.release(pba);
            }
        }
        self.idle.checkpointed(zones);
        self.data.count_ready();
    }

    /// All blocks of the checkpoint up to `committed` are released. Closed zones that it holds completely
    /// leave the list.
    pub(crate) fn end_release(&mut self, committed: WindowNumber) {
        self.committed = committed;
        self.idle.releasing.are(Vec::new());
        self.retire();
        debug_assert!(self.pages.is_counted());
    }

    /// Fingerprint and kind of a block that was placed since the last checkpoint, unless it is about to be
    /// released.
    pub(crate) fn fresh(&self, pba: Pba) -> Option<(Fingerprint, bool)> {
        self.data.fresh(pba).filter(|_| !self.idle.releasing.has(pba))
    }

    /// Makes zones idle that offer no more blocks, and whose windows a durable checkpoint holds.
    fn retire(&mut self) {
        for (zone, used) in self.data.retire(self.committed) {
            self.list.remove(zone);
            self.idle.close(zone, &used);
        }
        for (zone, used) in self.pages.retire() {
            self.idle.close(zone, &used);
        }
    }

    /// The pages of the zone list that are due, with what is known by now of the zones that are
    /// full.
    pub(crate) fn due_list_pages(
        &mut self,
        identity: &Identity,
        durable: WindowNumber,
    ) -> Result<Vec<DuePage>> {
        for (zone, carriers) in self.data.newly_full() {
            self.list.fill(zone, carriers);
        }
        self.list.take_due(identity, durable)
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let active = (self.data.len() + self.pages.len()) as u64;
        active * (512 + self.zone_blocks * 16) + self.idle.memory()
    }
}
