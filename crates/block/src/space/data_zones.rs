//! Zones that are open for clients' blocks and carriers, from which windows get their places.
//!
//! A zone is opened when it is listed, and hands out blocks when its listing is durable. It is
//! *ready* while it has blocks to offer, then *full*, and it is closed when a durable checkpoint
//! holds all windows that placed a block in it.
//!
//! *Invariant:* the ready zones come in the order in which they were opened, in which their listing
//! becomes durable. `ready_blocks` is what they offer.

#[cfg(feature = "planted-bugs")]
mod broken;

use std::collections::{BTreeMap, VecDeque};

use onefold_core::{Fingerprint, Pba, ZoneId};

use super::{
    account::Account,
    active_zone::{ActiveZone, Extent},
    zone_list::ZoneList,
};
use crate::format::{geometry::Geometry, record::WindowNumber, zone_bitmap::ZoneBitmap};

/// Blocks that are placed together with `layout = split`: ThinDedup's C-zones and U-zones. A
/// preference: when space is short, any zone will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Any,
    Carriers,
    Raw,
}

struct DataZone {
    generation: u64,
    /// The blocks that it takes.
    lane: Lane,
    blocks: ActiveZone,
    account: Account,
}

/// The zones that are open for data.
pub(crate) struct DataZones {
    /// For the size of zones, which never changes.
    geometry: Geometry,
    zones: BTreeMap<ZoneId, DataZone>,
    /// Those that still offer blocks; the first is being filled.
    ready: VecDeque<ZoneId>,
    /// Blocks that they offer.
    ready_blocks: u64,
    /// Zones that take no more blocks, whose carriers the list does not know yet.
    full: Vec<ZoneId>,
}

impl DataZones {
    pub(super) fn new(geometry: Geometry) -> DataZones {
        DataZones {
            geometry,
            zones: BTreeMap::new(),
            ready: VecDeque::new(),
            ready_blocks: 0,
            full: Vec::new(),
        }
    }

    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.zones.len()
    }

    /// Blocks that [`place`](Self::place) can hand out once the listing of their zones is durable.
    pub(crate) fn ready_blocks(&self) -> u64 {
        self.ready_blocks
    }

    /// Opens a zone, of which these blocks may not be handed out.
    pub(super) fn open(&mut self, zone: ZoneId, generation: u64, used: ZoneBitmap) {
        self.ready_blocks += self.insert(zone, generation, used);
        self.ready.push_back(zone);
    }

    /// Opens a zone that recovery found in the list; it takes blocks again unless it was `full`.
    /// [`count_ready`](Self::count_ready) comes after the last one.
    pub(super) fn recover(&mut self, zone: ZoneId, generation: u64, full: bool, used: ZoneBitmap) {
        self.insert(zone, generation, used);
        if !full {
            self.ready.push_back(zone);
        }
    }

    /// Gives the blocks that it offers.
    fn insert(&mut self, zone: ZoneId, generation: u64, used: ZoneBitmap) -> u64 {
        let start = self.geometry.start_of(zone);
        let blocks = ActiveZone::new(start, self.geometry.zone_blocks, used);
        let left = blocks.left();
        let account = Account::default();
        self.zones.insert(zone, DataZone { generation, lane: Lane::Any, blocks, account });
        left
    }

    /// Counts [`ready_blocks`](Self::ready_blocks) anew, after blocks of ready zones were marked
    /// otherwise than by placing.
    pub(crate) fn count_ready(&mut self) {
        let ready = self.ready.iter().filter_map(|zone| self.zones.get(zone));
        self.ready_blocks = ready.map(|zone| zone.blocks.left()).sum();
    }

    /// True when [`place`](Self::place) can hand out `blocks` blocks now.
    pub(super) fn can_place(&self, blocks: u64, list: &ZoneList) -> bool {
        let mut found = 0;
        let mut zones = self.ready.iter().take_while(|zone| list.is_durable(**zone));
        while found < blocks {
            let Some(zone) = zones.next() else { return false };
            found += self.zones.get(zone).map_or(0, |zone| zone.blocks.left());
        }
        true
    }

    /// The zone from which blocks of a lane come next.
    fn zone_for(&mut self, lane: Lane, list: &ZoneList) -> Option<usize> {
        if lane == Lane::Any {
            return self.ready.front().is_some_and(|&zone| list.is_durable(zone)).then_some(0);
        }
        let durable = self.ready.iter().take_while(|zone| list.is_durable(**zone)).count();
        let lane_of = |n: usize| self.zones.get(&self.ready[n]).map(|zone| zone.lane);
        let own = (0..durable).find(|&n| lane_of(n) == Some(lane));
        let chosen = own
            .or_else(|| (0..durable).find(|&n| lane_of(n) == Some(Lane::Any)))
            .or((durable > 0).then_some(0))?;
        let zone = self.zones.get_mut(&self.ready[chosen])?;
        if zone.lane == Lane::Any {
            zone.lane = lane;
        }
        Some(chosen)
    }

    /// Takes up to `blocks` blocks from zones whose listing is durable, next to each other as far
    /// as possible.
    pub(super) fn place(&mut self, blocks: u64, lane: Lane, list: &ZoneList) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut wanted = blocks;
        while wanted > 0 {
            let Some(position) = self.zone_for(lane, list) else { break };
            let zone = self.ready[position];
            let Some(open) = self.zones.get_mut(&zone) else { break };
            let Some(run) = open.blocks.take(wanted) else {
                self.ready.remove(position);
                self.full.push(zone);
                continue;
            };
            match extents.last_mut() {
                Some(last) if last.at.plus(last.blocks) == run.at => last.blocks += run.blocks,
                _ => extents.push(run),
            }
            wanted -= run.blocks;
            self.ready_blocks -= run.blocks;
        }
        extents
    }

    /// Takes a block of the zone that was opened last, for a table page.
    pub(super) fn take_for_page(&mut self) -> Option<Pba> {
        let zones = &mut self.zones;
        let mut last_first = self.ready.iter().rev();
        let taken = last_first.find_map(|zone| zones.get_mut(zone)?.blocks.take(1));
        self.count_ready();
        taken.map(|run| run.at)
    }

    /// Lets the zones that are being filled offer the blocks that became free behind their cursors.
    /// Zones that offer nothing, because tables took it, are full.
    pub(super) fn rewind(&mut self) {
        for zone in &self.ready {
            if let Some(zone) = self.zones.get_mut(zone) {
                zone.blocks.rewind();
            }
        }
        let offers = |zone: &&ZoneId| self.zones.get(zone).is_some_and(|it| it.blocks.left() > 0);
        let (ready, full): (VecDeque<ZoneId>, VecDeque<ZoneId>) =
            self.ready.iter().partition(offers);
        self.ready = ready;
        self.full.extend(full);
        self.count_ready();
    }

    /// Closes the zones that offer no more blocks, and whose windows a durable checkpoint holds up
    /// to `committed`. Gives them with their blocks in use.
    pub(super) fn retire(&mut self, committed: WindowNumber) -> Vec<(ZoneId, ZoneBitmap)> {
        let is_done = |zone: &ZoneId, open: &DataZone| {
            !self.ready.contains(zone) && open.account.last_window() <= committed
        };
        let done = self.zones.iter().filter(|(zone, open)| is_done(zone, open));
        let done: Vec<_> = done.map(|(&zone, open)| (zone, *open.blocks.used())).collect();
        for (zone, _) in &done {
            self.zones.remove(zone);
            // It may be opened anew before the list is written: then it is not full.
            self.full.retain(|full| full != zone);
        }
        done
    }

    /// The zones that became full since it was asked, with their carriers.
    pub(super) fn newly_full(&mut self) -> Vec<(ZoneId, ZoneBitmap)> {
        let full = std::mem::take(&mut self.full).into_iter();
        full.filter_map(|zone| Some((zone, self.zones.get(&zone)?.account.carriers()))).collect()
    }

    /// The lowest generation of the zones that a checkpoint up to `committed` does not hold
    /// completely.
    pub(super) fn oldest_generation(&self, committed: WindowNumber) -> Option<u64> {
        let needed = self.zones.iter().filter(|(zone, open)| {
            open.account.last_window() > committed || self.ready.contains(zone)
        });
        needed.map(|(_, open)| open.generation).min()
    }

    fn zone(&self, pba: Pba) -> Option<&DataZone> {
        self.zones.get(&self.geometry.zone_of(pba))
    }

    fn zone_mut(&mut self, pba: Pba) -> Option<&mut DataZone> {
        self.zones.get_mut(&self.geometry.zone_of(pba))
    }

    /// Generation of the zone of a block just placed.
    pub(crate) fn generation(&self, pba: Pba) -> u64 {
        self.zone(pba).map_or(0, |zone| zone.generation)
    }

    /// Remembers the content placed in a block: a client's block with its fingerprint, in a carrier
    /// or not, or a carrier alone.
    pub(crate) fn note(
        &mut self,
        pba: Pba,
        window: WindowNumber,
        carrier: bool,
        fingerprint: Option<Fingerprint>,
    ) {
        let (offset, blocks) = (self.geometry.offset_of(pba), self.geometry.zone_blocks);
        if let Some(zone) = self.zone_mut(pba) {
            zone.account.placed(offset, window, carrier, fingerprint, blocks);
        }
    }

    /// Remembers the fingerprint of a block that recovery found to be new.
    pub(crate) fn note_recovered(
        &mut self,
        pba: Pba,
        window: WindowNumber,
        carried: bool,
        fingerprint: Fingerprint,
    ) {
        let (offset, blocks) = (self.geometry.offset_of(pba), self.geometry.zone_blocks);
        if let Some(zone) = self.zone_mut(pba) {
            zone.account.recovered(offset, window, carried, fingerprint, blocks);
        }
    }

    /// Fingerprint and kind of a block that was placed since the last checkpoint.
    pub(crate) fn fresh(&self, pba: Pba) -> Option<(Fingerprint, bool)> {
        self.zone(pba)?.account.fresh(self.geometry.offset_of(pba))
    }

    /// Forgets the content of a block that is about to be free.
    pub(crate) fn forget(&mut self, pba: Pba) {
        let offset = self.geometry.offset_of(pba);
        if let Some(zone) = self.zone_mut(pba) {
            zone.account.forget(offset);
        }
    }

    /// Whether a block of one of these zones is not free; `None` for other zones.
    pub(super) fn is_used(&self, pba: Pba) -> Option<bool> {
        Some(self.zone(pba)?.blocks.used().get(self.geometry.offset_of(pba)))
    }

    /// Marks a block of one of these zones as in use, and gives whether it was free; `None` for
    /// other zones.
    pub(super) fn recover_used(&mut self, pba: Pba) -> Option<bool> {
        let offset = self.geometry.offset_of(pba);
        Some(self.zone_mut(pba)?.blocks.mark(offset))
    }

    /// Makes a block free, if its zone is one of these. [`count_ready`](Self::count_ready) comes
    /// after the last one.
    pub(super) fn release(&mut self, pba: Pba) -> bool {
        let offset = self.geometry.offset_of(pba);
        let Some(zone) = self.zone_mut(pba) else { return false };
        assert!(zone.blocks.release(offset), "block {pba} is released once");
        zone.account.forget(offset);
        true
    }
}
