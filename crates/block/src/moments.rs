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
//!
//! A snapshot that is received from another store is three kinds of acts: it begins, as an entry
//! that no client sees; its cursor rises; it ends. Its data comes by ordinary writes between them.
//! A cursor is an act so that its checkpoint carries the windows of all blocks before it, and a
//! crash leaves no cursor ahead of its data. Blocks that the sender could not read are lost by an act
//! beside the cursor that passes them, or the end: the same checkpoint has both.

use std::ops::Range;

use onefold_core::VolumeId;

use crate::format::{catalogue::NoDedup, record::WindowNumber};

/// A change of whole maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A snapshot of a volume.
    Snapshot { id: VolumeId, of: VolumeId, name: String, made_ms: u64 },
    /// A new volume with what a volume or a snapshot holds.
    Clone { id: VolumeId, of: VolumeId, name: String, made_ms: u64, replica: bool },
    /// A volume holds from now on what a snapshot holds; `id` is that of its old map, which leaves.
    Rollback { id: VolumeId, volume: VolumeId, to: VolumeId, replica: bool },
    /// A snapshot begins to be received, which no client sees: empty, or with what its base holds.
    Receive { id: VolumeId, what: Receive },
    /// All blocks before `cursor` of what is being received are in the windows of the moment.
    Cursor { id: VolumeId, cursor: u64, now_ms: u64 },
    /// These blocks of what is being received are lost, whatever the windows of the moment have there.
    Lose { id: VolumeId, ranges: Vec<Range<u64>> },
    /// What was received becomes a snapshot, called `name`, of a volume. The act that follows gives
    /// the volume what the snapshot holds.
    Received { id: VolumeId, volume: VolumeId, name: String, blocks: u64, made_ms: u64 },
    /// A replica becomes a volume that clients may change.
    Promote { id: VolumeId },
}

/// The snapshot that is to be received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The name of the volume that gets it.
    pub volume: String,
    /// The name of the snapshot, without its volume's.
    pub snapshot: String,
    /// The sender's number for it, which tells it from any other.
    pub guid: [u8; 16],
    /// The snapshot here that the stream is to be applied to.
    pub base: Option<VolumeId>,
    /// The sender's number for the snapshot from which the stream was made.
    pub base_guid: [u8; 16],
    /// Its size in blocks.
    pub blocks: u64,
    /// Its blocks that are not deduplicated.
    pub no_dedup: NoDedup,
    /// The domain that its data belongs to. With a base it is the base's.
    pub domain: u32,
    /// The time here, in milliseconds since 1970.
    pub now_ms: u64,
    /// The volume may be one that was changed since the base, or is no replica: what it holds is
    /// lost.
    pub rollback: bool,
}

impl Receive {
    /// The name of its entry.
    pub(crate) fn name(&self) -> String {
        format!("{}@{}", self.volume, self.snapshot)
    }
}

impl Act {
    /// The entry of the catalogue that it makes or changes.
    pub(crate) fn id(&self) -> VolumeId {
        match self {
            Act::Snapshot { id, .. }
            | Act::Clone { id, .. }
            | Act::Rollback { id, .. }
            | Act::Receive { id, .. }
            | Act::Cursor { id, .. }
            | Act::Lose { id, .. }
            | Act::Received { id, .. }
            | Act::Promote { id } => *id,
        }
    }

    /// True when it needs a map to be there, and as it was, until it is performed.
    pub(crate) fn concerns(&self, map: VolumeId) -> bool {
        let changed = match self {
            Act::Rollback { volume, .. } => *volume == map,
            Act::Cursor { id, .. } | Act::Lose { id, .. } | Act::Promote { id } => *id == map,
            Act::Received { id, volume, .. } => *id == map || *volume == map,
            Act::Snapshot { .. } | Act::Clone { .. } | Act::Receive { .. } => false,
        };
        changed || self.origin() == Some(map)
    }

    /// The map whose pages it shares.
    pub(crate) fn origin(&self) -> Option<VolumeId> {
        match self {
            Act::Snapshot { of, .. } | Act::Clone { of, .. } => Some(*of),
            Act::Rollback { to, .. } => Some(*to),
            Act::Receive { what, .. } => what.base,
            Act::Cursor { .. } | Act::Lose { .. } | Act::Received { .. } | Act::Promote { .. } => {
                None
            }
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
    /// The pages that its own checkpoint writes at most because of them.
    pub(crate) pages: u64,
}
