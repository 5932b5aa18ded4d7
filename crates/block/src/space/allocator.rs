//! Which physical blocks are free, and which come next.
//!
//! A zone is *idle* (known by its bitmap in the zone table, or never used), or *active*: opened for
//! data and listed in the zone list, or for table pages. Blocks are handed out only from active
//! zones. A block becomes free again in one place only, [`Allocator::release`],
//! after the superblock that no longer needs it is durable and nobody reads the version before it.
//!
//! *Invariant:* a block is handed out at most once between two releases of it; whatever
//! [`Allocator::free`] counts can be handed out for table pages now, and for data when the zone
//! list has room for its zone.

#[cfg(feature = "planted-bugs")]
mod broken;
mod moving;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use onefold_core::{Error, Fingerprint, Kind, Pba, Result, ZoneId};

use super::{
    longest::Longest,
    zone_list::{DuePage, ZoneList},
};
use crate::format::{
    Identity, geometry::Geometry, record::WindowNumber, superblock, zone_bitmap::ZoneBitmap,
};

/// Where the allocator learns what it does not keep in memory, and asks the host for space.
pub(crate) trait ZoneSource {
    /// The bitmaps of `zones` consecutive zones from `first` on, as of the last released
    /// checkpoint.
    fn bitmaps(&self, first: ZoneId, zones: u64) -> Result<Vec<ZoneBitmap>>;
    /// Takes space for a zone that was never used.
    fn grow(&self, zone: ZoneId) -> Result<()>;
}

/// A zone from which blocks are handed out, or were since the last checkpoint.
pub(crate) struct ActiveZone {
    /// Blocks that may not be handed out.
    used: ZoneBitmap,
    /// Blocks below were offered already.
    cursor: usize,
    /// The use for which it was opened.
    purpose: Purpose,
}

impl ActiveZone {
    /// Blocks that can still be handed out.
    fn left(&self, geometry: &Geometry) -> u64 {
        self.used.clear_from(self.cursor, geometry.zone_blocks as usize) as u64
    }
}

/// Blocks that are placed together with `layout = split`: ThinDedup's C-zones and U-zones. A
/// preference: when space is short, any zone will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Any,
    Carriers,
    Raw,
}

enum Purpose {
    Data(Box<DataZone>),
    Table,
}

/// The account of the new blocks of a data zone until a checkpoint holds it.
pub(crate) struct DataZone {
    pub(crate) generation: u64,
    /// The blocks that it takes.
    lane: Lane,
    /// Where carriers of this generation are.
    pub(crate) carriers: ZoneBitmap,
    /// The last window that placed a block here.
    last_window: WindowNumber,
    /// Blocks placed since the zone was opened, whose fingerprint is known here.
    fresh: ZoneBitmap,
    carried: ZoneBitmap,
    fingerprints: Vec<Fingerprint>,
}

/// Zones whose bitmaps are read at once.
const LOAD_ZONES: u64 = 31 * 8;

/// Idle zones with free blocks that are known at once, 2 TiB of them: the others are looked at when
/// these are used up. A superblock says how many there are, and may be a stranger's.
const IDLE_MAX: usize = 1 << 19;

/// With a growing store, a used zone with a free run this long is preferred to taking more space
/// from the host.
const GROW_RATHER_THAN_RUN: u16 = 64;

pub(crate) struct Allocator {
    geometry: Geometry,
    /// Zones below were used at some time.
    high_water: u64,
    /// Zones below have space on the host.
    granted: u64,
    /// Zones below that were never used may be taken without asking the host.
    grows: bool,
    /// Free blocks of zones that are not active, those that were never used among them. It begins
    /// with what the superblock says, which a damaged table may contradict.
    idle_free: u64,
    /// Longest free run of each idle zone below `high_water`, by zone.
    longest: Longest,
    /// Idle zones with free blocks, by longest run.
    idle: BTreeSet<(u16, Reverse<u64>)>,
    /// Zones below are known,
    loaded: u64,
    /// except these, in which blocks became free that were held.
    changed: BTreeSet<u64>,
    active: BTreeMap<ZoneId, ActiveZone>,
    /// Data zones that still offer blocks; the first is being filled.
    ready: VecDeque<ZoneId>,
    /// Blocks that they offer.
    ready_left: u64,
    /// The table zones that still offer blocks.
    tables: VecDeque<ZoneId>,
    /// Free blocks of all table zones, those before their cursors among them:
    /// [`rewind`](Self::rewind) reaches these.
    tables_left: u64,
    /// The zone among them that is kept for blocks that are moved.
    copies: Option<ZoneId>,
    /// The zone among them whose holes take blocks that are moved.
    holes: Option<ZoneId>,
    /// Idle zones that are being emptied: they take nothing as long as there are others.
    emptied: BTreeSet<ZoneId>,
    /// Zones that take no more blocks, whose carriers the list does not know yet.
    full: Vec<ZoneId>,
    /// The tables hold the windows up to this one.
    committed: WindowNumber,
    /// Free in the tables, but named by a record that is newer than them.
    held: BTreeSet<Pba>,
    pub(crate) list: ZoneList,
}

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) at: Pba,
    pub(crate) blocks: u64,
}

impl Allocator {
    /// The allocator of a store whose tables are in `state`.
    pub(crate) fn new(
        geometry: Geometry,
        state: &superblock::State,
        grows: bool,
        list: ZoneList,
    ) -> Allocator {
        let superblock::State { high_water, used_blocks, committed, .. } = *state;
        let first = geometry.first_zone().0;
        let high_water = high_water.max(first);
        let granted = if grows { high_water } else { geometry.zones };
        let capacity = geometry.usable_within(first, granted);
        Allocator {
            geometry,
            high_water,
            granted,
            grows,
            idle_free: capacity.saturating_sub(used_blocks),
            longest: Longest::default(),
            idle: BTreeSet::new(),
            loaded: first,
            changed: BTreeSet::new(),
            active: BTreeMap::new(),
            ready: VecDeque::new(),
            ready_left: 0,
            tables: VecDeque::new(),
            tables_left: 0,
            copies: None,
            holes: None,
            emptied: BTreeSet::new(),
            full: Vec::new(),
            committed,
            held: BTreeSet::new(),
            list,
        }
    }

    /// Blocks that could be handed out. Blocks that became free in a zone that takes no more data
    /// count when the zone is idle again.
    pub(crate) fn free(&self) -> u64 {
        self.idle_free + self.ready_left + self.tables_left
    }

    /// Blocks that the host may still give.
    pub(crate) fn growable(&self) -> u64 {
        if self.grows { self.geometry.usable_within(self.granted, self.geometry.zones) } else { 0 }
    }

    /// The store has these sizes from now on, in both superblocks: the new zones are free, and those
    /// of a zone list that moved on. The list is at its new place.
    pub(crate) fn grow(&mut self, geometry: Geometry) {
        let before = std::mem::replace(&mut self.geometry, geometry);
        self.list.moved(geometry);
        if !self.grows {
            self.granted = geometry.zones;
            self.idle_free += geometry.usable_within(before.zones, geometry.zones);
        }
        for zone in before.list_zones().filter(|&zone| geometry.has_zone(ZoneId(zone))) {
            if zone < self.granted {
                self.idle_free += geometry.zone_blocks;
            }
            if zone < self.high_water {
                self.set_idle(ZoneId(zone), &ZoneBitmap::default());
            }
        }
    }

    /// Zones below this one were used at some time.
    pub(crate) fn high_water(&self) -> u64 {
        self.high_water
    }

    /// The tables of the last released checkpoint hold the windows up to this one.
    pub(crate) fn committed(&self) -> WindowNumber {
        self.committed
    }

    /// Data zones that wait for a checkpoint.
    pub(crate) fn uncommitted_zones(&self) -> usize {
        self.list.listed()
    }

    /// The lowest generation of the data zones that a checkpoint up to `committed` does not hold
    /// completely.
    pub(crate) fn oldest_generation(&self, committed: WindowNumber) -> u64 {
        let needed = self.active.iter().filter_map(|(zone, active)| match &active.purpose {
            Purpose::Data(data) if data.last_window > committed || self.ready.contains(zone) => {
                Some(data.generation)
            }
            _ => None,
        });
        needed.min().unwrap_or_else(|| self.list.next_generation())
    }

    /// Learns the free space of a few more zones; false when all are known, or enough for now.
    pub(crate) fn load_some(&mut self, source: &dyn ZoneSource) -> Result<bool> {
        let enough = self.loaded >= self.high_water || self.idle.len() >= IDLE_MAX;
        if enough && self.changed.is_empty() {
            return Ok(false);
        }
        for zone in std::mem::take(&mut self.changed) {
            if !self.active.contains_key(&ZoneId(zone)) {
                let bitmap = source.bitmaps(ZoneId(zone), 1)?.pop().unwrap_or_default();
                self.set_idle(ZoneId(zone), &bitmap);
            }
        }
        if enough {
            return Ok(true);
        }
        let count = LOAD_ZONES.min(self.high_water - self.loaded);
        let bitmaps = source.bitmaps(ZoneId(self.loaded), count)?;
        for (zone, bitmap) in (self.loaded..).zip(bitmaps) {
            if self.longest.get(zone).is_none() && !self.active.contains_key(&ZoneId(zone)) {
                self.set_idle(ZoneId(zone), &bitmap);
            }
        }
        self.loaded += count;
        Ok(true)
    }

    fn set_idle(&mut self, zone: ZoneId, used: &ZoneBitmap) {
        self.forget_idle(zone);
        if !self.geometry.has_zone(zone) {
            return;
        }
        let longest = used.longest_clear(self.geometry.zone_blocks as usize) as u16;
        self.longest.set(zone.0, Some(longest));
        if longest > 0 {
            self.idle.insert((longest, Reverse(zone.0)));
        }
    }

    fn forget_idle(&mut self, zone: ZoneId) {
        if let Some(longest) = self.longest.set(zone.0, None) {
            self.idle.remove(&(longest, Reverse(zone.0)));
        }
    }

    /// Asks the host for space until `blocks` are free; does nothing for a store that took its
    /// space when it was made.
    pub(crate) fn grow_to(&mut self, blocks: u64, source: &dyn ZoneSource) {
        while self.grows
            && self.free() < blocks
            && self.granted < self.geometry.zones
            && (!self.geometry.has_zone(ZoneId(self.granted))
                || source.grow(ZoneId(self.granted)).is_ok())
        {
            self.idle_free += self.geometry.usable_within(self.granted, self.granted + 1);
            self.granted += 1;
        }
    }

    /// Lets the zones that are being filled offer the blocks that became free behind their cursors;
    /// zones that offer nothing, because tables took it, make room in the list.
    pub(crate) fn rewind(&mut self) {
        for (&zone, active) in &mut self.active {
            match active.purpose {
                Purpose::Data(_) if self.ready.contains(&zone) => active.cursor = 0,
                Purpose::Data(_) => {}
                Purpose::Table => {
                    active.cursor = 0;
                    if !self.tables.contains(&zone)
                        && active.used.count() < self.geometry.zone_blocks
                    {
                        self.tables.push_back(zone);
                    }
                }
            }
        }
        let (ready, full): (VecDeque<ZoneId>, VecDeque<ZoneId>) =
            self.ready.iter().partition(|zone| {
                self.active.get(zone).is_some_and(|active| active.left(&self.geometry) > 0)
            });
        self.ready = ready;
        self.full.extend(full);
        self.count_ready();
        self.retire();
    }

    /// Makes the idle zone with the longest free run active; the caller decides its purpose.
    fn take_zone(&mut self, source: &dyn ZoneSource) -> Result<Option<(ZoneId, ZoneBitmap)>> {
        loop {
            let best = self.best_idle();
            let whole = self.geometry.zone_blocks as u16;
            let reuse =
                |longest: u16| longest == whole || self.grows && longest >= GROW_RATHER_THAN_RUN;
            if let Some((longest, Reverse(zone))) = best
                && (reuse(longest) || self.high_water >= self.granted)
            {
                match self.take_idle(ZoneId(zone), source)? {
                    Some(used) if used.count() == self.geometry.zone_blocks => continue,
                    Some(used) => return Ok(Some((ZoneId(zone), used))),
                    None => return Ok(None),
                }
            }
            if self.high_water < self.granted {
                let zone = ZoneId(self.high_water);
                self.high_water += 1;
                if self.loaded == zone.0 {
                    self.loaded += 1;
                }
                if !self.geometry.has_zone(zone) {
                    continue;
                }
                self.idle_free = self.idle_free.saturating_sub(self.geometry.zone_blocks);
                return Ok(Some((zone, ZoneBitmap::default())));
            }
            if !self.load_some(source)? {
                return Ok(None);
            }
        }
    }

    /// Takes an idle zone out of those that are. Gives its blocks that may not be handed out.
    fn take_idle(&mut self, zone: ZoneId, source: &dyn ZoneSource) -> Result<Option<ZoneBitmap>> {
        let Some(mut used) = source.bitmaps(zone, 1)?.pop() else { return Ok(None) };
        self.forget_idle(zone);
        self.emptied.remove(&zone);
        let start = self.geometry.start_of(zone);
        for &pba in self.held.range(start..start.plus(self.geometry.zone_blocks)) {
            used.set(self.geometry.offset_of(pba));
        }
        if used.count() < self.geometry.zone_blocks {
            self.idle_free = self.idle_free.saturating_sub(self.clear(&used));
        }
        Ok(Some(used))
    }

    /// Blocks that [`place`](Self::place) can hand out once the listing of their zones is durable.
    pub(crate) fn ready_blocks(&self) -> u64 {
        self.ready_left
    }

    /// True when [`place`](Self::place) can hand out `blocks` blocks now.
    pub(crate) fn can_place(&self, blocks: u64) -> bool {
        let mut found = 0;
        let mut zones = self.ready.iter().take_while(|zone| self.list.is_durable(**zone));
        while found < blocks {
            let Some(zone) = zones.next() else { return false };
            found += self.active.get(zone).map_or(0, |zone| zone.left(&self.geometry));
        }
        true
    }

    /// Counts [`ready_blocks`](Self::ready_blocks) anew, after blocks of ready zones were marked
    /// otherwise than by placing.
    pub(crate) fn count_ready(&mut self) {
        self.ready_left = self
            .ready
            .iter()
            .filter_map(|zone| self.active.get(zone))
            .map(|zone| zone.left(&self.geometry))
            .sum();
    }

    fn clear(&self, used: &ZoneBitmap) -> u64 {
        // A hostile bitmap may have bits behind the end of a small zone.
        used.clear_from(0, self.geometry.zone_blocks as usize) as u64
    }

    /// Opens data zones until `blocks` can be placed, as far as there is space and room in the
    /// list.
    pub(crate) fn open_ahead(&mut self, blocks: u64, source: &dyn ZoneSource) -> Result<()> {
        while self.ready_left < blocks && self.list.has_room() {
            let (zone, used) = match self.take_zone(source)? {
                Some(taken) => taken,
                // No idle zone is left: one that the tables do not use yet will do.
                None => match self
                    .tables
                    .pop_back()
                    .and_then(|zone| Some((zone, self.active.remove(&zone)?)))
                {
                    Some((zone, active)) => {
                        self.tables_left -= self.clear(&active.used);
                        (zone, active.used)
                    }
                    None => break,
                },
            };
            let generation = self.list.add(zone);
            let active = ActiveZone {
                used,
                cursor: 0,
                purpose: Purpose::Data(Box::new(DataZone::new(generation))),
            };
            self.ready_left += active.left(&self.geometry);
            self.active.insert(zone, active);
            self.ready.push_back(zone);
        }
        Ok(())
    }

    /// The zone from which blocks of a lane come next.
    fn zone_for(&mut self, lane: Lane) -> Option<usize> {
        if lane == Lane::Any {
            return self.ready.front().is_some_and(|&zone| self.list.is_durable(zone)).then_some(0);
        }
        let durable = self.ready.iter().take_while(|zone| self.list.is_durable(**zone)).count();
        let lane_of = |n: usize| match &self.active.get(&self.ready[n])?.purpose {
            Purpose::Data(data) => Some(data.lane),
            Purpose::Table => None,
        };
        let own = (0..durable).find(|&n| lane_of(n) == Some(lane));
        let chosen = own
            .or_else(|| (0..durable).find(|&n| lane_of(n) == Some(Lane::Any)))
            .or((durable > 0).then_some(0))?;
        if let Purpose::Data(data) = &mut self.active.get_mut(&self.ready[chosen])?.purpose
            && data.lane == Lane::Any
        {
            data.lane = lane;
        }
        Some(chosen)
    }

    /// Takes up to `blocks` blocks from zones whose listing is durable, next to each other as far
    /// as possible.
    pub(crate) fn place(&mut self, blocks: u64, lane: Lane) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut wanted = blocks;
        while wanted > 0 {
            let Some(position) = self.zone_for(lane) else { break };
            let zone = self.ready[position];
            let Some(active) = self.active.get_mut(&zone) else { break };
            let Some((start, length)) = active.used.clear_run(
                active.cursor,
                self.geometry.zone_blocks as usize,
                wanted as usize,
            ) else {
                self.ready.remove(position);
                self.full.push(zone);
                continue;
            };
            for n in start..start + length {
                active.used.set(n);
            }
            active.cursor = start + length;
            let at = self.geometry.start_of(zone).plus(start as u64);
            match extents.last_mut() {
                Some(last) if last.at.plus(last.blocks) == at => last.blocks += length as u64,
                _ => extents.push(Extent { at, blocks: length as u64 }),
            }
            wanted -= length as u64;
            self.ready_left -= length as u64;
        }
        extents
    }

    /// Generation of the zone of a block just placed.
    pub(crate) fn generation(&self, pba: Pba) -> u64 {
        self.data_zone(pba).map_or(0, |data| data.generation)
    }

    fn data_zone(&self, pba: Pba) -> Option<&DataZone> {
        match &self.active.get(&self.geometry.zone_of(pba))?.purpose {
            Purpose::Data(data) => Some(data),
            Purpose::Table => None,
        }
    }

    fn data_zone_mut(&mut self, pba: Pba) -> Option<&mut DataZone> {
        match &mut self.active.get_mut(&self.geometry.zone_of(pba))?.purpose {
            Purpose::Data(data) => Some(data),
            Purpose::Table => None,
        }
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
        let (offset, zone_blocks) =
            (self.geometry.offset_of(pba), self.geometry.zone_blocks as usize);
        let Some(data) = self.data_zone_mut(pba) else { return };
        data.last_window = data.last_window.max(window);
        if carrier {
            data.carriers.set(offset);
        } else {
            data.carriers.clear(offset);
        }
        if let Some(fingerprint) = fingerprint {
            if data.fingerprints.is_empty() {
                data.fingerprints = vec![Fingerprint::default(); zone_blocks];
            }
            data.fingerprints[offset] = fingerprint;
            data.fresh.set(offset);
            if carrier {
                data.carried.set(offset);
            } else {
                data.carried.clear(offset);
            }
        } else {
            data.fresh.clear(offset);
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
        let (offset, zone_blocks) =
            (self.geometry.offset_of(pba), self.geometry.zone_blocks as usize);
        let Some(data) = self.data_zone_mut(pba) else { return };
        data.last_window = data.last_window.max(window);
        if data.fingerprints.is_empty() {
            data.fingerprints = vec![Fingerprint::default(); zone_blocks];
        }
        data.fingerprints[offset] = fingerprint;
        data.fresh.set(offset);
        if carried {
            data.carried.set(offset);
        }
    }

    /// Fingerprint and kind of a block that was placed since the last checkpoint.
    pub(crate) fn fresh(&self, pba: Pba) -> Option<(Fingerprint, bool)> {
        let data = self.data_zone(pba)?;
        let offset = self.geometry.offset_of(pba);
        data.fresh.get(offset).then(|| (data.fingerprints[offset], data.carried.get(offset)))
    }

    /// Forgets the content of a block that is about to be free.
    pub(crate) fn forget(&mut self, pba: Pba) {
        let offset = self.geometry.offset_of(pba);
        if let Some(data) = self.data_zone_mut(pba) {
            data.fresh.clear(offset);
        }
    }

    /// True when a block is not free.
    pub(crate) fn is_used(&self, pba: Pba, source: &dyn ZoneSource) -> Result<bool> {
        let (zone, offset) = (self.geometry.zone_of(pba), self.geometry.offset_of(pba));
        Ok(match self.active.get(&zone) {
            Some(active) => active.used.get(offset),
            None if zone.0 >= self.high_water => false,
            None => {
                self.held.contains(&pba)
                    || source.bitmaps(zone, 1)?.pop().is_some_and(|used| used.get(offset))
            }
        })
    }

    /// Takes a block for a table page; from data zones when nothing else is left.
    pub(crate) fn place_page(&mut self, source: &dyn ZoneSource) -> Result<Pba> {
        let mut rewound = false;
        loop {
            self.spare_copies(source)?;
            if let Some(&zone) = self.tables.front() {
                match self.take_from(zone) {
                    Some(pba) => {
                        self.tables_left -= 1;
                        return Ok(pba);
                    }
                    None => {
                        self.tables.pop_front();
                        continue;
                    }
                }
            }
            if let Some((zone, used)) = self.take_zone(source)? {
                self.tables_left += self.clear(&used);
                self.active.insert(zone, ActiveZone { used, cursor: 0, purpose: Purpose::Table });
                self.tables.push_back(zone);
                continue;
            }
            if !rewound {
                rewound = true;
                self.rewind();
                continue;
            }
            // A recovery has taken no space from the host yet: its records' space is taken now.
            let before = self.granted;
            self.grow_to(self.free() + 1, source);
            if self.granted > before {
                continue;
            }
            let ready: Vec<ZoneId> = self.ready.iter().rev().copied().collect();
            let stolen = ready.into_iter().find_map(|zone| self.take_from(zone));
            self.count_ready();
            return stolen.ok_or_else(|| {
                Error::new(Kind::NoSpace, "no block is left for the tables of a checkpoint")
            });
        }
    }

    fn take_from(&mut self, zone: ZoneId) -> Option<Pba> {
        let active = self.active.get_mut(&zone)?;
        let (start, _) =
            active.used.clear_run(active.cursor, self.geometry.zone_blocks as usize, 1)?;
        active.used.set(start);
        active.cursor = start + 1;
        Some(self.geometry.start_of(zone).plus(start as u64))
    }

    /// Marks blocks as in use that recovery found to be.
    pub(crate) fn recover_used(&mut self, pba: Pba, source: &dyn ZoneSource) -> Result<bool> {
        let zone = self.geometry.zone_of(pba);
        let offset = self.geometry.offset_of(pba);
        if let Some(active) = self.active.get_mut(&zone) {
            return Ok(active.used.set(offset));
        }
        if zone.0 >= self.high_water {
            return Err(Error::new(
                Kind::Corrupt,
                format!("a record names block {pba} in a zone that was never opened"),
            ));
        }
        let committed = source.bitmaps(zone, 1)?.pop().unwrap_or_default();
        let was_free = !committed.get(offset) && self.held.insert(pba);
        self.idle_free = self.idle_free.saturating_sub(u64::from(was_free));
        Ok(was_free)
    }

    /// Makes a zone active again that recovery found in the list; it takes blocks again unless it
    /// was `full`. [`count_ready`](Self::count_ready) comes after the last one.
    pub(crate) fn recover_zone(
        &mut self,
        zone: ZoneId,
        generation: u64,
        full: bool,
        source: &dyn ZoneSource,
    ) -> Result<()> {
        let used = if zone.0 < self.high_water {
            let used = source.bitmaps(zone, 1)?.pop().unwrap_or_default();
            self.forget_idle(zone);
            used
        } else {
            self.high_water = zone.0 + 1;
            let granted = self.granted.max(self.high_water);
            self.idle_free += self.geometry.usable_within(self.granted, granted);
            self.granted = granted;
            ZoneBitmap::default()
        };
        self.idle_free = self.idle_free.saturating_sub(self.clear(&used));
        let purpose = Purpose::Data(Box::new(DataZone::new(generation)));
        self.active.insert(zone, ActiveZone { used, cursor: 0, purpose });
        if !full {
            self.ready.push_back(zone);
        }
        Ok(())
    }

    /// Makes blocks free again, after the checkpoint up to `committed` is durable. `zones` are the
    /// new bitmaps of all zones that it changed; `held` are the blocks that are free in it but
    /// named by newer records. Closed zones that it holds completely leave the list.
    pub(crate) fn release(
        &mut self,
        freed: &[Pba],
        zones: &[(ZoneId, ZoneBitmap)],
        committed: WindowNumber,
        held: BTreeSet<Pba>,
    ) {
        self.held = held;
        for &pba in freed {
            let (offset, zone) = (self.geometry.offset_of(pba), self.geometry.zone_of(pba));
            let Some(active) = self.active.get_mut(&zone) else {
                self.idle_free += 1;
                self.changed.insert(zone.0);
                continue;
            };
            assert!(active.used.clear(offset), "block {pba} is released once");
            match &mut active.purpose {
                Purpose::Data(data) => drop(data.fresh.clear(offset)),
                Purpose::Table => self.tables_left += 1,
            }
        }
        for &(zone, bitmap) in zones {
            self.changed.remove(&zone.0);
            if !self.active.contains_key(&zone) {
                self.set_idle(zone, &bitmap);
            }
        }
        self.count_ready();
        self.committed = committed;
        self.retire();
        let table_zones =
            self.active.values().filter(|active| matches!(active.purpose, Purpose::Table));
        debug_assert_eq!(
            self.tables_left,
            table_zones.map(|active| self.clear(&active.used)).sum::<u64>()
        );
    }

    /// Makes zones idle that offer no more blocks, and whose windows a durable checkpoint holds.
    fn retire(&mut self) {
        let committed = self.committed;
        let done: Vec<ZoneId> = self
            .active
            .iter()
            .filter(|(zone, active)| match &active.purpose {
                Purpose::Data(data) => !self.ready.contains(zone) && data.last_window <= committed,
                Purpose::Table => !self.tables.contains(zone),
            })
            .map(|(&zone, _)| zone)
            .collect();
        for zone in done {
            let Some(active) = self.active.remove(&zone) else { continue };
            // It may be opened anew before the list is written: then it is not full.
            self.full.retain(|&full| full != zone);
            let clear = self.clear(&active.used);
            match active.purpose {
                Purpose::Data(_) => self.list.remove(zone),
                Purpose::Table => self.tables_left -= clear,
            }
            self.idle_free += clear;
            self.set_idle(zone, &active.used);
        }
    }

    /// The pages of the zone list that are due, with what is known by now of the zones that are
    /// full.
    pub(crate) fn due_list_pages(
        &mut self,
        identity: &Identity,
        durable: WindowNumber,
    ) -> Result<Vec<DuePage>> {
        for zone in std::mem::take(&mut self.full) {
            if let Some(ActiveZone { purpose: Purpose::Data(data), .. }) = self.active.get(&zone) {
                self.list.fill(zone, data.carriers);
            }
        }
        self.list.take_due(identity, durable)
    }

    /// True when a zone is left that is half free in one run.
    pub(crate) fn long_runs(&self) -> bool {
        self.high_water < self.granted
            || self
                .idle
                .last()
                .is_some_and(|&(longest, _)| u64::from(longest) * 2 >= self.geometry.zone_blocks)
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.active.len() as u64 * (512 + self.geometry.zone_blocks * 16)
            + self.longest.memory()
            + self.idle.len() as u64 * 32
            + (self.changed.len() + self.emptied.len() + self.held.len()) as u64 * 16
    }
}

impl DataZone {
    fn new(generation: u64) -> DataZone {
        DataZone {
            generation,
            lane: Lane::Any,
            carriers: ZoneBitmap::default(),
            last_window: WindowNumber(0),
            fresh: ZoneBitmap::default(),
            carried: ZoneBitmap::default(),
            fingerprints: Vec::new(),
        }
    }
}
