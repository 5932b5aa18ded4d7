//! Steps that break a rule; only the simulator runs them.

use onefold_core::{Pba, ZoneId};

use super::{ActiveZone, Allocator, DataZone, Purpose};
use crate::format::zone_bitmap::ZoneBitmap;

impl Allocator {
    /// Breaks `ListZonesKept`: windows go into the zones of a zone list that moved.
    pub(crate) fn hand_out_list(&mut self) {
        let zones = self.geometry.list_zones();
        self.geometry.moved_list = 0;
        for zone in zones.map(ZoneId) {
            if !self.list.has_room() {
                break;
            }
            let data = DataZone::new(self.list.add(zone));
            let purpose = Purpose::Data(Box::new(data));
            let active = ActiveZone { used: ZoneBitmap::default(), cursor: 0, purpose };
            self.active.insert(zone, active);
            self.ready.push_back(zone);
        }
        self.count_ready();
    }

    /// Breaks `MovedBlocksKept`: hands a block out again, if its zone offers blocks. Returns whether it is
    /// free now.
    pub(crate) fn release_now(&mut self, pba: Pba) -> bool {
        let is_ready = self.ready.contains(&self.geometry.zone_of(pba));
        if is_ready {
            self.forget(pba);
            self.reuse_early(pba);
        }
        is_ready
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
