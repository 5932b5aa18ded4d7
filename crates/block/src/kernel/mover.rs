//! The leaves and zones that moving still has to look at, and how far it has come.

use std::collections::BTreeSet;

use onefold_core::{Lba, VolumeId, ZoneId};

use crate::{
    format::page::Table,
    moving::{Found, HandedLeaf, Leaves, Why},
    sharing::{Survey, Surveyed},
};

/// The leaves and zones that moving still has to look at, and how far it has come.
#[derive(Default)]
pub(crate) struct Mover {
    pub(crate) leaves: Leaves,
    /// Blocks that are about to be moved.
    pub(crate) plan: Plan,
    /// The zones that are being emptied, if there are any.
    pub(crate) emptying: Option<Emptying>,
    /// No zones are named before clients have written so many blocks since the store was opened.
    pub(crate) rests_until: u64,
    /// Of the last walk: the blocks that had been moved next to their neighbours, which take whole zones.
    pub(crate) neighbours: u64,
    /// The checkpoint by whose tables no free run was long enough for neighbours.
    pub(crate) lacks_run: u64,
    /// The most zones that were free as a whole after a walk since then.
    pub(crate) reached: u64,
    /// The inner pages above the leaf of a family that was looked at last.
    pub(crate) sharers: Option<Sharers>,
    /// Clients are at work.
    pub(crate) beside_requests: bool,
    /// The leaf that the last step looked at in part, and where the next one goes on.
    pub(crate) goes_on: Option<(VolumeId, Lba)>,
    /// The leaf, with what a reader found of it, that is looked at next, or whose blocks are moved.
    pub(crate) handed: Option<HandedLeaf>,
}

/// The inner pages of a family above the leaves of one inner page.
pub(crate) struct Sharers {
    /// The checkpoint by whose tables they were found, the family, and the number of the inner page
    /// right above the leaves.
    pub(crate) of: (u64, u32, u64),
    pub(crate) survey: Survey,
    pub(crate) found: Surveyed,
}

/// Zones that are being emptied.
pub(crate) struct Emptying {
    pub(crate) stage: Stage,
    /// These zones, once they are named.
    pub(crate) zones: BTreeSet<ZoneId>,
    /// Zones that were free as a whole before.
    pub(crate) whole: u64,
}

/// How far emptying has come.
pub(crate) enum Stage {
    /// Zones before `next` were looked at; these have most free blocks.
    Looking { next: u64, best: BTreeSet<(u64, ZoneId)> },
    /// Pages of a table before this leaf were looked at.
    Pages(Table, u64),
    /// Leaves of maps before this one were looked at.
    Maps(VolumeId, u64),
    /// All that lives in them has a copy: the checkpoint after this one releases it.
    Ends { sequence: u64 },
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
    /// When maps share the leaf: what all of them need for it.
    pub(crate) shared: Option<SharedPlan>,
}

/// The pages that the maps of a family need when blocks of a leaf move.
#[derive(Clone)]
pub(crate) struct SharedPlan {
    pub(crate) family: u32,
    /// The places from the leaf up, as level and number, and how many pages the family has there.
    pub(crate) places: Vec<((u8, u64), u64)>,
}
