//! Steps that break a rule; only the simulator runs them.

use onefold_core::Pba;

use super::Allocator;

impl Allocator {
    /// Breaks `ListZonesKept`: hands out the zones of a zone list that moved.
    pub(crate) fn hand_out_list(&mut self) {
        let zones = self.geometry.list_zones();
        self.geometry.moved_list = 0;
        if !self.grows {
            self.idle_free += (zones.end - zones.start) * self.geometry.zone_blocks;
        }
    }

    /// Breaks `ReuseAfterRelease`: hands a block out again although it may be needed.
    pub(crate) fn reuse_early(&mut self, pba: Pba) {
        let offset = self.geometry.offset_of(pba);
        if let Some(active) = self.active.get_mut(&self.geometry.zone_of(pba))
            && active.used.clear(offset)
        {
            active.cursor = active.cursor.min(offset);
            self.count_ready();
        }
    }
}
