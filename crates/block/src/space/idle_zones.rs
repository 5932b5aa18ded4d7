//! Zones from which no blocks are handed out: how many of their blocks are free, which of them has
//! the longest free run, and which are to be emptied.
//!
//! A zone is known by its bitmap in the zone table, or was never used. It leaves this account when
//! it is taken to be opened, and comes back when it is closed.
//!
//! *Invariant:* a zone that is open is not given to anybody else, and is in none of the sets here.
//! The free blocks here are those of zones that are not open, but for the blocks that are held.

#[cfg(feature = "planted-bugs")]
mod broken;

use std::{cmp::Reverse, collections::BTreeSet};

use onefold_core::{Error, Kind, Pba, Result, ZoneId};

use super::{longest::Longest, releasing::Releasing};
use crate::format::{geometry::Geometry, superblock, zone_bitmap::ZoneBitmap};

/// Where the allocator learns what it does not keep in memory, and asks the host for space.
pub(crate) trait ZoneSource {
    /// The bitmaps of `zones` consecutive zones from `first` on, as of the last released
    /// checkpoint.
    fn bitmaps(&self, first: ZoneId, zones: u64) -> Result<Vec<ZoneBitmap>>;
    /// Takes space for a zone that was never used.
    fn grow(&self, zone: ZoneId) -> Result<()>;
}

/// Zones whose bitmaps are read at once.
const LOAD_ZONES: u64 = 31 * 8;

/// Idle zones with free blocks that are known at once, 2 TiB of them: the others are looked at when
/// these are used up. A superblock says how many there are, and may be a stranger's.
const IDLE_MAX: usize = 1 << 19;

/// With a growing store, a used zone with a free run this long is preferred to taking more space
/// from the host.
const GROW_RATHER_THAN_RUN: u16 = 64;

/// The zones that are not open.
pub(crate) struct IdleZones {
    geometry: Geometry,
    /// Zones below were used at some time.
    high_water: u64,
    /// Zones below have space on the host.
    granted: u64,
    /// Zones below that were never used may be taken without asking the host.
    grows: bool,
    /// Their free blocks, those that were never used among them. It begins with what the superblock
    /// says, which a damaged table may contradict.
    free: u64,
    /// Longest free run of each zone below `high_water`, by zone.
    longest: Longest,
    /// Zones with free blocks, by longest run.
    by_run: BTreeSet<(u16, Reverse<u64>)>,
    /// Zones below are known,
    loaded: u64,
    /// except these, in which blocks became free that were held.
    changed: BTreeSet<u64>,
    /// Zones that were taken, and did not come back.
    open: BTreeSet<ZoneId>,
    /// Zones that are being emptied: they take nothing as long as there are others.
    emptied: BTreeSet<ZoneId>,
    /// Free in the tables, but named by a record that is newer than them.
    held: BTreeSet<Pba>,
    /// Free in the tables, and about to be released.
    pub(super) releasing: Releasing,
}

impl IdleZones {
    /// The zones of a store whose tables are in `state`, when none is open.
    pub(super) fn new(geometry: Geometry, state: &superblock::State, grows: bool) -> IdleZones {
        let superblock::State { high_water, used_blocks, .. } = *state;
        let first = geometry.first_zone().0;
        let high_water = high_water.max(first);
        let granted = if grows { high_water } else { geometry.zones };
        let capacity = geometry.usable_within(first, granted);
        IdleZones {
            geometry,
            high_water,
            granted,
            grows,
            free: capacity.saturating_sub(used_blocks),
            longest: Longest::default(),
            by_run: BTreeSet::new(),
            loaded: first,
            changed: BTreeSet::new(),
            open: BTreeSet::new(),
            emptied: BTreeSet::new(),
            held: BTreeSet::new(),
            releasing: Releasing::default(),
        }
    }

    /// Their free blocks.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Blocks that the host may still give.
    pub(crate) fn growable(&self) -> u64 {
        if self.grows { self.geometry.usable_within(self.granted, self.geometry.zones) } else { 0 }
    }

    /// Zones below this one were used at some time.
    pub(crate) fn high_water(&self) -> u64 {
        self.high_water
    }

    /// The store has these sizes from now on: the new zones are free, and those of a zone list that
    /// moved on.
    pub(super) fn grow(&mut self, geometry: Geometry) {
        let before = std::mem::replace(&mut self.geometry, geometry);
        if !self.grows {
            self.granted = geometry.zones;
            self.free += geometry.usable_within(before.zones, geometry.zones);
        }
        for zone in before.list_zones().filter(|&zone| geometry.has_zone(ZoneId(zone))) {
            if zone < self.granted {
                self.free += geometry.zone_blocks;
            }
            if zone < self.high_water {
                self.learn(ZoneId(zone), &ZoneBitmap::default());
            }
        }
    }

    /// Asks the host for space until `blocks` are free; does nothing for a store that took its
    /// space when it was made. True when the host gave some.
    pub(super) fn grow_to(&mut self, blocks: u64, source: &dyn ZoneSource) -> bool {
        let before = self.granted;
        while self.grows
            && self.free < blocks
            && self.granted < self.geometry.zones
            && (!self.geometry.has_zone(ZoneId(self.granted))
                || source.grow(ZoneId(self.granted)).is_ok())
        {
            self.free += self.geometry.usable_within(self.granted, self.granted + 1);
            self.granted += 1;
        }
        self.granted > before
    }

    /// Learns the free space of a few more zones; false when all are known, or enough for now.
    pub(crate) fn load_some(&mut self, source: &dyn ZoneSource) -> Result<bool> {
        let enough = self.loaded >= self.high_water || self.by_run.len() >= IDLE_MAX;
        if enough && self.changed.is_empty() {
            return Ok(false);
        }
        for zone in std::mem::take(&mut self.changed) {
            if !self.open.contains(&ZoneId(zone)) {
                let mut bitmap = source.bitmaps(ZoneId(zone), 1)?.pop().unwrap_or_default();
                self.mask(ZoneId(zone), &mut bitmap);
                self.learn(ZoneId(zone), &bitmap);
            }
        }
        if enough {
            return Ok(true);
        }
        let count = LOAD_ZONES.min(self.high_water - self.loaded);
        let bitmaps = source.bitmaps(ZoneId(self.loaded), count)?;
        for (zone, mut bitmap) in (self.loaded..).zip(bitmaps) {
            self.mask(ZoneId(zone), &mut bitmap);
            if self.longest.get(zone).is_none() && !self.open.contains(&ZoneId(zone)) {
                self.learn(ZoneId(zone), &bitmap);
            }
        }
        self.loaded += count;
        Ok(true)
    }

    fn learn(&mut self, zone: ZoneId, used: &ZoneBitmap) {
        self.forget(zone);
        if !self.geometry.has_zone(zone) {
            return;
        }
        let longest = used.longest_clear(self.geometry.zone_blocks as usize) as u16;
        self.longest.set(zone.0, Some(longest));
        if longest > 0 {
            self.by_run.insert((longest, Reverse(zone.0)));
        }
    }

    fn forget(&mut self, zone: ZoneId) {
        if let Some(longest) = self.longest.set(zone.0, None) {
            self.by_run.remove(&(longest, Reverse(zone.0)));
        }
    }

    fn clear(&self, used: &ZoneBitmap) -> u64 {
        // A hostile bitmap may have bits behind the end of a small zone.
        used.clear_from(0, self.geometry.zone_blocks as usize) as u64
    }

    /// Takes the zone with the longest free run, with its blocks that may not be handed out; the
    /// caller opens it.
    pub(super) fn take_best(
        &mut self,
        source: &dyn ZoneSource,
    ) -> Result<Option<(ZoneId, ZoneBitmap)>> {
        loop {
            let whole = self.geometry.zone_blocks as u16;
            let reuse =
                |longest: u16| longest == whole || self.grows && longest >= GROW_RATHER_THAN_RUN;
            if let Some((longest, zone)) = self.best()
                && (reuse(longest) || self.high_water >= self.granted)
            {
                match self.take(zone, source)? {
                    Some(used) if used.count() == self.geometry.zone_blocks => continue,
                    Some(used) => return Ok(Some((zone, used))),
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
                self.free = self.free.saturating_sub(self.geometry.zone_blocks);
                self.open.insert(zone);
                return Ok(Some((zone, ZoneBitmap::default())));
            }
            if !self.load_some(source)? {
                return Ok(None);
            }
        }
    }

    /// Takes a zone, with its blocks that may not be handed out; the caller opens it, unless these
    /// are all.
    fn take(&mut self, zone: ZoneId, source: &dyn ZoneSource) -> Result<Option<ZoneBitmap>> {
        let Some(mut used) = source.bitmaps(zone, 1)?.pop() else { return Ok(None) };
        self.forget(zone);
        self.emptied.remove(&zone);
        self.mask(zone, &mut used);
        if used.count() < self.geometry.zone_blocks {
            self.free = self.free.saturating_sub(self.clear(&used));
            self.open.insert(zone);
        }
        Ok(Some(used))
    }

    /// Marks the blocks of a zone that are free in the tables, and may not be handed out.
    fn mask(&self, zone: ZoneId, used: &mut ZoneBitmap) {
        let start = self.geometry.start_of(zone);
        let end = start.plus(self.geometry.zone_blocks);
        for &pba in self.held.range(start..end).chain(self.releasing.within(start, end)) {
            used.set(self.geometry.offset_of(pba));
        }
    }

    /// Takes the zone with the shortest free run: none that is being emptied, and none that is free
    /// as a whole.
    pub(super) fn take_hole(
        &mut self,
        source: &dyn ZoneSource,
    ) -> Result<Option<(ZoneId, ZoneBitmap)>> {
        loop {
            let Some(zone) = self.next_hole() else { return Ok(None) };
            let Some(used) = self.take(zone, source)? else { return Ok(None) };
            if used.count() < self.geometry.zone_blocks {
                return Ok(Some((zone, used)));
            }
        }
    }

    /// The zone that [`take_hole`](Self::take_hole) looks at first.
    pub(super) fn next_hole(&self) -> Option<ZoneId> {
        let whole = self.geometry.zone_blocks as u16;
        let mut by_run =
            self.by_run.iter().map(|&(longest, Reverse(zone))| (longest, ZoneId(zone)));
        let shortest = by_run.find(|(_, zone)| !self.emptied.contains(zone));
        shortest.filter(|&(longest, _)| longest < whole).map(|(_, zone)| zone)
    }

    /// The zone with the longest free run: one that is being emptied only when there is no other.
    fn best(&self) -> Option<(u16, ZoneId)> {
        let stays = |&&(_, Reverse(zone)): &&(u16, Reverse<u64>)| {
            self.emptied.is_empty() || !self.emptied.contains(&ZoneId(zone))
        };
        let best = self.by_run.iter().rev().find(stays).or(self.by_run.last());
        best.map(|&(longest, Reverse(zone))| (longest, ZoneId(zone)))
    }

    /// True when a zone has a run of so many blocks, as far as they are known.
    pub(super) fn has_run(&self, least: u64) -> bool {
        let longest = self.best().map_or(0, |(longest, _)| u64::from(longest));
        longest >= least || self.high_water < self.granted
    }

    /// True when a zone is left that is half free in one run.
    pub(crate) fn long_runs(&self) -> bool {
        self.high_water < self.granted
            || self
                .by_run
                .last()
                .is_some_and(|&(longest, _)| u64::from(longest) * 2 >= self.geometry.zone_blocks)
    }

    /// Zones that are free as a whole, so many at most.
    pub(crate) fn whole_zones(&self, most: u64) -> u64 {
        let whole = self.geometry.zone_blocks as u16;
        let idle = self.by_run.range((whole, Reverse(u64::MAX))..).take(most as usize).count();
        (idle as u64 + self.granted.saturating_sub(self.high_water)).min(most)
    }

    /// True for a zone that takes no blocks now, and is neither free as a whole nor full.
    pub(crate) fn may_be_emptied(&self, zone: ZoneId) -> bool {
        let longest = self.longest.get(zone.0).unwrap_or_default();
        self.geometry.has_zone(zone)
            && !self.open.contains(&zone)
            && (1..self.geometry.zone_blocks as u16).contains(&longest)
    }

    /// These zones, and no others, are being emptied.
    pub(crate) fn empty(&mut self, zones: BTreeSet<ZoneId>) {
        self.emptied = zones;
    }

    /// True when a block of a zone that is not open is not free.
    pub(super) fn is_used(&self, pba: Pba, source: &dyn ZoneSource) -> Result<bool> {
        let zone = self.geometry.zone_of(pba);
        if zone.0 >= self.high_water {
            return Ok(false);
        }
        let in_tables = |used: ZoneBitmap| used.get(self.geometry.offset_of(pba));
        let is_kept = self.held.contains(&pba) || self.releasing.has(pba);
        Ok(is_kept || source.bitmaps(zone, 1)?.pop().is_some_and(in_tables))
    }

    /// Marks a block of a zone that is not open as in use; true when it was free.
    ///
    /// # Errors
    /// `Corrupt` for a zone that was never opened.
    pub(super) fn recover_used(&mut self, pba: Pba, source: &dyn ZoneSource) -> Result<bool> {
        let zone = self.geometry.zone_of(pba);
        if zone.0 >= self.high_water {
            return Err(Error::new(
                Kind::Corrupt,
                format!("a record names block {pba} in a zone that was never opened"),
            ));
        }
        let committed = source.bitmaps(zone, 1)?.pop().unwrap_or_default();
        let was_free = !committed.get(self.geometry.offset_of(pba)) && self.held.insert(pba);
        self.free = self.free.saturating_sub(u64::from(was_free));
        Ok(was_free)
    }

    /// Takes a zone that recovery found to be open, with its blocks that may not be handed out.
    pub(super) fn recover_open(
        &mut self,
        zone: ZoneId,
        source: &dyn ZoneSource,
    ) -> Result<ZoneBitmap> {
        let used = if zone.0 < self.high_water {
            let used = source.bitmaps(zone, 1)?.pop().unwrap_or_default();
            self.forget(zone);
            used
        } else {
            self.high_water = zone.0 + 1;
            let granted = self.granted.max(self.high_water);
            self.free += self.geometry.usable_within(self.granted, granted);
            self.granted = granted;
            ZoneBitmap::default()
        };
        self.free = self.free.saturating_sub(self.clear(&used));
        self.open.insert(zone);
        Ok(used)
    }

    /// A block of a zone that is not open is free: how it lies there is learned later.
    pub(super) fn release(&mut self, pba: Pba) {
        self.free += 1;
        self.changed.insert(self.geometry.zone_of(pba).0);
    }

    /// The bitmap with which a zone was taken is as of now: what became free in it is known.
    pub(super) fn is_current(&mut self, zone: ZoneId) {
        self.changed.remove(&zone.0);
    }

    /// A checkpoint was released: `zones` are the bitmaps that it changed.
    pub(super) fn checkpointed(&mut self, zones: &[(ZoneId, ZoneBitmap)]) {
        for (zone, bitmap) in zones {
            self.changed.remove(&zone.0);
            if !self.open.contains(zone) {
                self.learn(*zone, bitmap);
            }
        }
    }

    /// The tables of a checkpoint are those that the source reads from now on. These blocks, in ascending
    /// order, are free in it, and are about to be released.
    pub(super) fn begin_release(&mut self, freed: Vec<Pba>) {
        self.held.clear();
        self.releasing.are(freed);
    }

    /// These blocks are free in the tables, but newer records name them.
    pub(super) fn hold(&mut self, held: &[Pba]) {
        self.held.extend(held);
    }

    /// A zone was closed, and these blocks of it may not be handed out.
    pub(super) fn close(&mut self, zone: ZoneId, used: &ZoneBitmap) {
        self.open.remove(&zone);
        self.free += self.clear(used);
        self.learn(zone, used);
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> u64 {
        self.longest.memory()
            + self.by_run.len() as u64 * 32
            + (self.changed.len() + self.emptied.len() + self.held.len()) as u64 * 16
            + self.releasing.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::choices::Leftover;

    /// A source where nothing is in use.
    struct Unused;

    impl ZoneSource for Unused {
        fn bitmaps(&self, _: ZoneId, zones: u64) -> Result<Vec<ZoneBitmap>> {
            Ok(vec![ZoneBitmap::default(); zones as usize])
        }

        fn grow(&self, _: ZoneId) -> Result<()> {
            Ok(())
        }
    }

    /// All zones of a small store, none of them used so far.
    fn idle() -> IdleZones {
        let geometry = Geometry::new(16 * 32, 16, Leftover::Log).unwrap();
        IdleZones::new(geometry, &superblock::State::default(), false)
    }

    fn take_all(idle: &mut IdleZones) -> Vec<ZoneId> {
        std::iter::from_fn(|| idle.take_best(&Unused).unwrap().map(|(zone, _)| zone)).collect()
    }

    #[test]
    fn a_zone_is_given_once_until_it_is_closed() {
        let mut idle = idle();
        let all = take_all(&mut idle);
        let different: BTreeSet<ZoneId> = all.iter().copied().collect();
        assert_eq!((different.len(), idle.free()), (all.len(), 0));
        // A checkpoint tells of open zones, too.
        idle.checkpointed(&[(all[3], ZoneBitmap::default())]);
        assert!(take_all(&mut idle).is_empty() && !idle.long_runs());
        let mut used = ZoneBitmap::default();
        used.set(5);
        idle.close(all[3], &used);
        assert_eq!((idle.free(), idle.may_be_emptied(all[3])), (15, true));
        assert_eq!(take_all(&mut idle), [all[3]]);
    }

    #[test]
    fn a_block_that_is_held_is_not_free_in_the_zone_that_is_taken() {
        let mut idle = idle();
        let all = take_all(&mut idle);
        idle.close(all[0], &ZoneBitmap::default());
        let held = idle.geometry.start_of(all[0]).plus(7);
        idle.hold(&[held]);
        assert!(idle.is_used(held, &Unused).unwrap());
        let (zone, used) = idle.take_best(&Unused).unwrap().unwrap();
        assert_eq!((zone, used.iter().collect::<Vec<_>>()), (all[0], vec![7]));
    }

    #[test]
    fn holes_leave_whole_zones_and_those_that_are_emptied_alone() {
        let mut idle = idle();
        let all = take_all(&mut idle);
        let mut used = ZoneBitmap::default();
        used.set(1);
        idle.close(all[0], &ZoneBitmap::default());
        assert!(idle.take_hole(&Unused).unwrap().is_none());
        idle.close(all[1], &used);
        idle.empty([all[1]].into());
        assert!(idle.take_hole(&Unused).unwrap().is_none());
        idle.empty(BTreeSet::new());
        assert_eq!(idle.take_hole(&Unused).unwrap().unwrap().0, all[1]);
    }

    #[test]
    fn a_block_that_is_about_to_be_released_is_not_handed_out() {
        let mut idle = idle();
        let all = take_all(&mut idle);
        let at = |zone: usize, n| idle.geometry.start_of(all[zone]).plus(n);
        let freed = vec![at(0, 2), at(0, 9), at(1, 4)];
        let (first, next) = (at(0, 2), at(1, 0));
        idle.begin_release(freed);
        idle.close(all[0], &ZoneBitmap::default());
        assert!(idle.is_used(first, &Unused).unwrap() && idle.releasing.has(first));
        let (_, used) = idle.take_best(&Unused).unwrap().unwrap();
        assert_eq!(used.iter().collect::<Vec<_>>(), [2, 9]);
        assert_eq!(
            (idle.releasing.next(next, 5).len(), idle.releasing.is_over_from(next)),
            (1, true)
        );
        assert_eq!(
            (idle.releasing.next(Pba(0), 1).len(), idle.releasing.is_over_from(first)),
            (1, false)
        );
        assert_eq!(idle.releasing.next(Pba(0), 9), [first]);
        assert!(!idle.is_used(first, &Unused).unwrap() && idle.releasing.is_over_from(Pba(0)));
    }
}
