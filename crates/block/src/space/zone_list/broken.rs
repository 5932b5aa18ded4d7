//! Steps that break a rule; only the simulator runs them.

use super::ZoneList;
use crate::format::geometry::Geometry;

impl ZoneList {
    /// Breaks `ListPagesFollowMove`: pages go on to where they were before the list moved.
    pub(crate) fn stay_at(&mut self, before: Geometry) {
        self.geometry.moved_list = before.moved_list;
    }

    /// Breaks `ZoneListedBeforeUse`: treats every entry as durable.
    pub(crate) fn pretend_durable(&mut self) {
        self.slots.values_mut().for_each(|slot| slot.version = 0);
        self.pages
            .iter_mut()
            .for_each(|page| (page.touched, page.wanted) = (false, page.page.sequence));
    }

    /// Breaks `ListedInBothCopies`: lets a zone be used when one place has its entry.
    pub(crate) fn list_once(&mut self) {
        self.places = 1;
    }
}
