//! Steps that break a rule; only the simulator runs them.

use onefold_core::Pba;

use super::Allocator;
use crate::format::zone_bitmap::ZoneBitmap;

impl Allocator {
    /// Breaks `ListZonesKept`: windows go into the zones of a zone list that moved.
    pub(crate) fn hand_out_list(&mut self) {
        for zone in self.idle.list_zones() {
            if !self.list.has_room() {
                break;
            }
            self.idle.lend(zone);
            self.data.open(zone, self.list.add(zone), ZoneBitmap::default());
        }
        self.data.count_ready();
    }

    /// Breaks `MovedBlocksKept`: hands a block out again, if its zone offers blocks. Returns whether it is
    /// free now.
    pub(crate) fn release_now(&mut self, pba: Pba) -> bool {
        let is_ready = self.data.is_ready(pba);
        if is_ready {
            self.data.forget(pba);
            self.data.reuse_early(pba);
        }
        is_ready
    }

    /// Breaks `ReleasingKept`: blocks that are about to be released are handed out.
    pub(crate) fn overlook_releasing(&mut self) {
        self.idle.overlook_releasing();
    }

    /// Breaks `ReuseAfterRelease`: hands a block out again although it may be needed.
    pub(crate) fn reuse_early(&mut self, pba: Pba) {
        self.data.reuse_early(pba);
        self.pages.reuse_early(pba);
    }
}
