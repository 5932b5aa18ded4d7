//! The links to a stretch of blocks, as far as a recount has counted them.

use onefold_core::{Pba, VolumeId};

use crate::format::page::{PageId, Table};

/// Blocks whose links are counted in one walk over the maps, whole leaves of references: 16 MiB of
/// tally.
pub(super) const STRETCH_LEAVES: u64 = 4096;

/// How far a recount is.
pub(super) struct Recount {
    /// The first leaf of references of the stretch.
    pub(super) first: u64,
    /// Links to each block of the stretch.
    pub(super) tally: Vec<u32>,
    /// Leaves of maps before this one are counted.
    pub(super) next: (VolumeId, u64),
}

impl Recount {
    pub(super) fn new(first: u64, leaves: u64) -> Recount {
        let leaves = STRETCH_LEAVES.min(leaves.saturating_sub(first));
        Recount {
            first,
            tally: vec![0; (leaves * Table::References.per_leaf()) as usize],
            next: (VolumeId(0), 0),
        }
    }

    pub(super) fn tally(&mut self, pba: Pba) -> Option<&mut u32> {
        let at = pba.0.checked_sub(self.first * Table::References.per_leaf())?;
        self.tally.get_mut(usize::try_from(at).ok()?)
    }

    /// A link changes: it counts where the walk has been.
    pub(super) fn relinked(&mut self, id: &PageId, pba: Pba, change: i64) {
        if (VolumeId(id.volume), id.index) < self.next
            && let Some(links) = self.tally(pba)
        {
            *links = links.saturating_add_signed(change as i32);
        }
    }
}
