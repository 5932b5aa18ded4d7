//! Places for blocks that are moved.
//!
//! A copy has the life of a table page: no record names it, so its zone is not listed, and it is in
//! use on the disk from the superblock on that names it. So copies go into zones that were opened
//! for pages. One such zone is kept for copies, so that pages do not cut their runs.

use std::{cmp::Reverse, collections::BTreeSet};

use onefold_core::{Result, ZoneId};

use super::{ActiveZone, Allocator, Extent, Purpose, ZoneSource};
use crate::format::zone_bitmap::ZoneBitmap;

impl Allocator {
    /// Takes up to `blocks` blocks in one run, where `run` more or less will follow: nothing where
    /// there is no run for them all, or of half a zone.
    pub(crate) fn place_copies(
        &mut self,
        blocks: u64,
        run: u64,
        source: &dyn ZoneSource,
    ) -> Result<Option<Extent>> {
        let least = self.run_of(run.max(blocks));
        for _ in 0..2 {
            if let Some(zone) = self.copies.filter(|zone| self.tables.contains(zone)) {
                let placed = self.take_run(zone, blocks, least);
                if placed.is_some() {
                    return Ok(placed);
                }
                // Pages may fill what is left.
                if let Some(active) = self.active.get_mut(&zone) {
                    active.cursor = 0;
                }
            }
            self.copies = None;
            if !self.has_run(least) {
                return Ok(None);
            }
            let Some((zone, used)) = self.take_zone(source)? else { return Ok(None) };
            self.open_for_copies(zone, used);
            self.copies = Some(zone);
        }
        Ok(None)
    }

    /// How long a run is at least, when so many blocks belong together.
    fn run_of(&self, blocks: u64) -> u64 {
        blocks.min(self.geometry.zone_blocks / 2).max(1)
    }

    /// True when there is a run for so many blocks, or of half a zone.
    pub(crate) fn has_run(&self, blocks: u64) -> bool {
        let (least, end) = (self.run_of(blocks), self.geometry.zone_blocks as usize);
        let here = self.copies.filter(|zone| self.tables.contains(zone));
        let here = here.and_then(|zone| self.active.get(&zone)).is_some_and(|active| {
            let mut at = active.cursor;
            while let Some((start, length)) = active.used.clear_run(at, end, end) {
                if length as u64 >= least {
                    return true;
                }
                at = start + length;
            }
            false
        });
        let longest = self.best_idle().map_or(0, |(longest, _)| u64::from(longest));
        here || longest >= least || self.high_water < self.granted
    }

    /// Takes up to `blocks` blocks where free runs are shortest: nothing where there are only zones that
    /// are being emptied, and whole ones.
    pub(crate) fn place_in_holes(
        &mut self,
        blocks: u64,
        source: &dyn ZoneSource,
    ) -> Result<Option<Extent>> {
        loop {
            if let Some(zone) = self.holes.filter(|zone| self.tables.contains(zone)) {
                let placed = self.take_run(zone, blocks, 1);
                if placed.is_some() {
                    return Ok(placed);
                }
                self.tables.retain(|&other| other != zone);
            }
            let mut idle =
                self.idle.iter().map(|&(longest, Reverse(zone))| (longest, ZoneId(zone)));
            let whole = self.geometry.zone_blocks as u16;
            let shortest = idle
                .find(|(_, zone)| !self.emptied.contains(zone))
                .filter(|&(longest, _)| longest < whole);
            self.holes = shortest.map(|(_, zone)| zone);
            let Some(zone) = self.holes else { return Ok(None) };
            let Some(used) = self.take_idle(zone, source)? else { return Ok(None) };
            if used.count() < self.geometry.zone_blocks {
                self.open_for_copies(zone, used);
            }
        }
    }

    /// The idle zone with the longest free run: one that is being emptied only when there is no other.
    pub(super) fn best_idle(&self) -> Option<(u16, Reverse<u64>)> {
        let stays = |&&(_, Reverse(zone)): &&(u16, Reverse<u64>)| {
            self.emptied.is_empty() || !self.emptied.contains(&ZoneId(zone))
        };
        self.idle.iter().rev().find(stays).or(self.idle.last()).copied()
    }

    /// Zones that are free as a whole, so many at most.
    pub(crate) fn whole_zones(&self, most: u64) -> u64 {
        let whole = self.geometry.zone_blocks as u16;
        let idle = self.idle.range((whole, Reverse(u64::MAX))..).take(most as usize).count();
        (idle as u64 + self.granted.saturating_sub(self.high_water)).min(most)
    }

    /// True for a zone that takes no blocks now, and is neither free as a whole nor full.
    pub(crate) fn may_be_emptied(&self, zone: ZoneId) -> bool {
        let longest = self.longest.get(zone.0).unwrap_or_default();
        self.geometry.has_zone(zone)
            && !self.active.contains_key(&zone)
            && (1..self.geometry.zone_blocks as u16).contains(&longest)
    }

    /// These zones, and no others, are being emptied.
    pub(crate) fn empty(&mut self, zones: BTreeSet<ZoneId>) {
        self.emptied = zones;
    }

    fn open_for_copies(&mut self, zone: ZoneId, used: ZoneBitmap) {
        // Its bitmap is as of now: what became free in it is known.
        self.changed.remove(&zone.0);
        self.tables_left += self.clear(&used);
        self.active.insert(zone, ActiveZone { used, cursor: 0, purpose: Purpose::Table });
        self.tables.push_back(zone);
    }

    /// Takes up to `blocks` blocks of the first run of a zone that has `least`.
    fn take_run(&mut self, zone: ZoneId, blocks: u64, least: u64) -> Option<Extent> {
        let end = self.geometry.zone_blocks as usize;
        let active = self.active.get_mut(&zone)?;
        loop {
            let (start, length) = active.used.clear_run(active.cursor, end, end)?;
            active.cursor = start + length;
            if (length as u64) < least {
                continue;
            }
            let taken = length.min(blocks as usize);
            (start..start + taken).for_each(|n| {
                active.used.set(n);
            });
            active.cursor = start + taken;
            self.tables_left -= taken as u64;
            let at = self.geometry.start_of(zone).plus(start as u64);
            return Some(Extent { at, blocks: taken as u64 });
        }
    }

    /// Pages leave the zone of copies alone as long as there is another one.
    pub(super) fn spare_copies(&mut self, source: &dyn ZoneSource) -> Result<()> {
        if self.copies.is_none() || self.tables.front().copied() != self.copies {
            return Ok(());
        }
        if self.tables.len() > 1 {
            self.tables.rotate_left(1);
        } else if let Some((zone, used)) = self.take_zone(source)? {
            self.open_for_copies(zone, used);
            self.tables.rotate_left(1);
        }
        Ok(())
    }
}
