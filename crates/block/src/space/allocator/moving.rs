//! Places for blocks that are moved: idle zones are opened for copies where runs are long, and for
//! the filling of holes where they are short.

use onefold_core::{Result, ZoneId};

use super::{Allocator, Extent, ZoneSource};

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
            let placed = self.pages.take_copies(blocks, least);
            if placed.is_some() {
                return Ok(placed);
            }
            if !self.idle.has_run(least) {
                return Ok(None);
            }
            let Some((zone, used)) = self.idle.take_best(source)? else { return Ok(None) };
            self.idle.is_current(zone);
            self.pages.open_for_copies(zone, used);
        }
        Ok(None)
    }

    /// How long a run is at least, when so many blocks belong together.
    fn run_of(&self, blocks: u64) -> u64 {
        blocks.min(self.zone_blocks / 2).max(1)
    }

    /// True when there is a run for so many blocks, or of half a zone.
    pub(crate) fn has_run(&self, blocks: u64) -> bool {
        let least = self.run_of(blocks);
        self.pages.has_run(least) || self.idle.has_run(least)
    }

    /// The zone whose bitmap [`place_in_holes`](Self::place_in_holes) needs next. It may lie on the disk, which
    /// nobody should wait for who waits for the allocator.
    pub(crate) fn hole_ahead(&self) -> Option<ZoneId> {
        if self.pages.has_hole() { None } else { self.idle.next_hole() }
    }

    /// Takes up to `blocks` blocks where free runs are shortest: nothing where there are only zones that
    /// are being emptied, and whole ones.
    pub(crate) fn place_in_holes(
        &mut self,
        blocks: u64,
        source: &dyn ZoneSource,
    ) -> Result<Option<Extent>> {
        loop {
            let placed = self.pages.take_hole(blocks);
            if placed.is_some() {
                return Ok(placed);
            }
            let Some((zone, used)) = self.idle.take_hole(source)? else { return Ok(None) };
            self.idle.is_current(zone);
            self.pages.open_for_holes(zone, used);
        }
    }

    /// Pages leave the zone of copies alone as long as there is another one.
    pub(super) fn spare_copies(&mut self, source: &dyn ZoneSource) -> Result<()> {
        if !self.pages.would_cut_copies() || self.pages.rotate() {
            return Ok(());
        }
        if let Some((zone, used)) = self.idle.take_best(source)? {
            self.idle.is_current(zone);
            self.pages.open(zone, used);
            self.pages.rotate();
        }
        Ok(())
    }
}
