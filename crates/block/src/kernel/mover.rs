//! What moving has to look at, and where it is.

use std::{collections::BTreeMap, time::Duration};

use onefold_core::VolumeId;

use crate::moving::{Found, Why};

/// Leaves that are remembered, because checkpoints changed them. If there are more, all maps are
/// looked through.
const LEAVES_MAX: usize = 1 << 16;

/// What moving has to look at, and where it is.
pub(crate) struct Mover {
    /// Leaves that checkpoints changed, and when the last one did.
    pub(crate) changed: BTreeMap<(VolumeId, u64), Duration>,
    /// Where the walk through all maps goes on, while there is one.
    pub(crate) walk: Option<(VolumeId, u64)>,
    /// Blocks that are about to be moved.
    pub(crate) plan: Plan,
}

/// Blocks of a map that are about to be moved.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) volume: VolumeId,
    /// The checkpoint by whose tables they were chosen.
    pub(crate) sequence: u64,
    pub(crate) why: Why,
    /// In descending order of addresses.
    pub(crate) blocks: Found,
}

impl Default for Mover {
    /// Of a store that was opened just now: nobody has looked at its maps.
    fn default() -> Mover {
        Mover { changed: BTreeMap::new(), walk: Some((VolumeId(0), 0)), plan: Plan::default() }
    }
}

impl Mover {
    /// A checkpoint changed these leaves of maps.
    pub(crate) fn note(&mut self, leaves: &[(VolumeId, u64)], now: Duration) {
        if self.changed.len() + leaves.len() > LEAVES_MAX {
            self.changed.clear();
            self.walk = Some((VolumeId(0), 0));
        } else {
            self.changed.extend(leaves.iter().map(|&leaf| (leaf, now)));
        }
    }
}
