//! Steps that break a rule; only the simulator runs them.

use onefold_core::Pba;

use super::DataZones;

impl DataZones {
    /// True for a block whose zone offers blocks.
    pub(crate) fn is_ready(&self, pba: Pba) -> bool {
        self.ready.contains(&self.geometry.zone_of(pba))
    }

    /// Breaks `ReuseAfterRelease`: hands a block out again although it may be needed.
    pub(crate) fn reuse_early(&mut self, pba: Pba) {
        let offset = self.geometry.offset_of(pba);
        if let Some(zone) = self.zone_mut(pba)
            && zone.blocks.reuse_early(offset)
        {
            self.count_ready();
        }
    }
}
