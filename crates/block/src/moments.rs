//! Moments and acts: what happens to whole maps at one point in the order of all changes.
//!
//! A *moment* is a window number. Windows up to it are published into one overlay, later ones into
//! the next; the checkpoint that carries exactly that overlay performs the moment's *acts* after
//! its changes. So a snapshot holds the windows up to its moment and no more.
//!
//! No record tells of an act. It is true with the superblock of its checkpoint, and its caller is
//! told when both superblocks are durable; a crash before leaves no trace of it.
//!
//! | crash after | what is found |
//! |---|---|
//! | the windows up to the moment are durable; pages of the checkpoint are written | all windows; the old superblock; no act |
//! | the flush, the superblock | either one; with the new one, the act as of exactly its moment |
//! | the flush, the twin, the flush | the act, in both superblocks; only now its caller is told |

use onefold_core::VolumeId;

use crate::format::record::WindowNumber;

/// A change of whole maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A snapshot of a volume.
    Snapshot { id: VolumeId, of: VolumeId, name: String, made_ms: u64 },
    /// A new volume with what a volume or a snapshot holds.
    Clone { id: VolumeId, of: VolumeId, name: String, made_ms: u64 },
    /// A volume holds from now on what a snapshot holds; `id` is that of its old map, which leaves.
    Rollback { id: VolumeId, volume: VolumeId, to: VolumeId },
}

impl Act {
    /// The new entry that it makes in the catalogue.
    pub(crate) fn id(&self) -> VolumeId {
        match self {
            Act::Snapshot { id, .. } | Act::Clone { id, .. } | Act::Rollback { id, .. } => *id,
        }
    }

    /// True when it needs a map to be there, and as it was, until it is performed.
    pub(crate) fn concerns(&self, map: VolumeId) -> bool {
        self.origin() == map || matches!(self, Act::Rollback { volume, .. } if *volume == map)
    }

    /// The map whose pages it shares.
    pub(crate) fn origin(&self) -> VolumeId {
        match self {
            Act::Snapshot { of, .. } | Act::Clone { of, .. } => *of,
            Act::Rollback { to, .. } => *to,
        }
    }
}

/// Acts that were asked for together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The last window that they see.
    pub(crate) window: WindowNumber,
    /// Moments are numbered in their order, from 1 on, since the store was opened.
    pub(crate) number: u64,
    /// What is to be done, in this order.
    pub(crate) acts: Vec<Act>,
    /// The entries that the table of discards gets by them at most.
    pub(crate) ranges: u64,
}
