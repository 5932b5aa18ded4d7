//! Steps that break a rule; only the simulator runs them.

use onefold_core::Pba;

use super::Allocator;

impl Allocator {
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
