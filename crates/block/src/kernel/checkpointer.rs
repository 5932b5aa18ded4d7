//! The checkpoint that is under way, and what it leaves.

use std::sync::Arc;

use onefold_core::{Pba, ZoneId};

use super::Mover;
use crate::{
    format::zone_bitmap::ZoneBitmap, index::Filter, moments::Moment, moving::Moves,
    overlay::Tables, sharing::Orphan,
};

/// How far a checkpoint has come.
#[derive(Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    /// Pages written; a flush that begins after number `.1` makes them durable.
    Built(Box<NextCheckpoint>, u64),
    /// Superblock written; a flush that begins after number `.1` makes it durable.
    Named(Box<NextCheckpoint>, u64),
    /// True, and its twin written; a flush that begins after number `.2` makes that durable. With
    /// leaves in place it counts as true only then: what is written to leaves that only one
    /// superblock names could be lost with that one. `.1` is the version before, if it is.
    Twinned(Box<NextCheckpoint>, Option<Arc<Tables>>, u64),
    /// Durable twice; readers of the old version are waited for.
    Releasing(Box<NextCheckpoint>, Arc<Tables>),
    /// Nobody reads the version before: the blocks that it alone needs become free, some in each step.
    Freeing(Box<NextCheckpoint>),
}

/// The result of a checkpoint.
pub(crate) struct NextCheckpoint {
    pub(crate) tables: Arc<Tables>,
    /// Blocks that are free in it and were not before, pages among them.
    pub(crate) freed: Vec<Pba>,
    pub(crate) zones: Vec<(ZoneId, ZoneBitmap)>,
    /// Of the index on disk, when it was written anew.
    pub(crate) filter: Option<Filter>,
    /// With leaves in place: blocks whose last link went.
    pub(crate) reclaimed: Reclaimed,
    /// Windows waited for it.
    pub(crate) checkpoint_awaited: bool,
    /// Superblocks that must name it durably before readers may use it.
    pub(crate) superblocks: u8,
    /// The acts that it performed.
    pub(crate) moment: Option<Moment>,
    /// The last change of the limits of domains that it has.
    pub(crate) limits: u64,
    /// The copies that it put.
    #[cfg(feature = "planted-bugs")]
    pub(crate) moves: Moves,
}

/// The state of checkpoints.
#[derive(Default)]
pub(crate) struct Checkpointer {
    pub(crate) phase: Phase,
    /// Blocks that the last checkpoint found free, but newer records name.
    pub(crate) deferred: Vec<Pba>,
    /// Pages of maps that nothing counts for, once they are known.
    pub(crate) orphans: Option<Vec<Orphan>>,
    /// Copies of blocks that the next checkpoint puts into the maps. They are made only while no
    /// checkpoint is under way.
    pub(crate) moves: Moves,
    /// The leaves and zones at which moving has to look.
    pub(crate) mover: Mover,
}

/// Blocks that a checkpoint reclaims.
#[derive(Default)]
pub(crate) struct Reclaimed {
    pub(crate) blocks: Vec<Pba>,
    /// Blocks without links that the next one must look at.
    pub(crate) put_off: Vec<Pba>,
}

impl Checkpointer {
    /// With blocks that recovery found in use: the next checkpoint decides on them.
    pub(crate) fn new(deferred: Vec<Pba>) -> Checkpointer {
        Checkpointer { deferred, ..Checkpointer::default() }
    }
}

/// Why a checkpoint is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Something was published.
    Changes,
    /// A superblock is due although nothing was.
    Forced,
    /// The store is closed cleanly.
    Clean,
}
