//! Steps that break a rule; only the simulator runs them.

use onefold_core::ZoneId;

use super::IdleZones;

impl IdleZones {
    /// Breaks `ListZonesKept`: the zones of a zone list that moved, as if they were none.
    pub(crate) fn list_zones(&mut self) -> impl Iterator<Item = ZoneId> + use<> {
        let zones = self.geometry.list_zones();
        self.geometry.moved_list = 0;
        zones.map(ZoneId)
    }

    /// Breaks `ListZonesKept`: this zone is open.
    pub(crate) fn lend(&mut self, zone: ZoneId) {
        self.open.insert(zone);
    }

    /// Breaks `ReleasingKept`: blocks that are about to be released count as free.
    pub(crate) fn overlook_releasing(&mut self) {
        self.releasing.blind = true;
    }
}
