//! The leaves and zones that moving still has to look at, and how far it has come.

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{Lba, Pba, VolumeId, ZoneId};

use crate::{
    format::page::{Page, Table},
    moving::{Found, HandedLeaf, Hindered, Leaves, Why},
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
    /// How far it has come with what is under older data keys.
    pub(crate) resealing: Resealing,
    /// The leaves that packing still has to look at, once it has begun.
    pub(crate) packing: Option<Leaves>,
    /// As [`goes_on`](Self::goes_on), of packing.
    pub(crate) packing_goes_on: Option<(VolumeId, Lba)>,
    /// How far a walk has come that learns which fragments packs have.
    pub(crate) learning: Learning,
    /// Nothing is moved but what is under the older data key of this domain, and nobody waits meanwhile.
    pub(crate) reseals_alone: Option<u32>,
    /// Clients are at work.
    pub(crate) beside_requests: bool,
    /// The leaf that the last step looked at in part, and where the next one goes on.
    pub(crate) goes_on: Option<(VolumeId, Lba)>,
    /// The leaf, with what a reader found of it, that is looked at next, or whose blocks are moved.
    pub(crate) handed: Option<HandedLeaf>,
}

/// A walk through all maps after opening, that learns which fragments packs have.
#[derive(Default)]
pub(crate) struct Learning {
    /// Where it goes on.
    pub(crate) at: (VolumeId, u64),
    /// Pages of leaves that it has seen, as far as they are remembered.
    pub(crate) seen: BTreeSet<Pba>,
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
    /// The leaf, when it is looked through for what is under an older data key.
    pub(crate) leaf: u64,
    /// Its page, as long as all that was looked at of it has its place under the newest key.
    pub(crate) mark: Option<Pba>,
}

/// The walk through leaves that may name something which is under an older data key.
#[derive(Default)]
pub(crate) struct Resealing {
    /// Where it goes on.
    pub(crate) at: (VolumeId, u64),
    /// The first block for whose copy there was no room yet. Its leaf is looked through from there on, and from its
    /// beginning afterwards: else each checkpoint of a full store would have the blocks before it read again.
    pub(crate) lacks_room: Option<(VolumeId, Lba)>,
    /// It found something to do.
    pub(crate) worked: bool,
    /// It passed a leaf that does not say yet that nothing of it is under an older key, or a map that it may not
    /// look at.
    pub(crate) passed_older: bool,
    /// What kept leaves as they are.
    pub(crate) hindered: Hindered,
    /// The same of the walk before.
    pub(crate) hindered_before: Hindered,
    /// The pages of leaves that it has seen, by the tables of this checkpoint.
    pub(crate) seen: (u64, BTreeSet<Pba>),
    /// It goes on with the tables of this checkpoint, or later ones.
    pub(crate) after: u64,
    /// It goes on when clients have written so many blocks since the store was opened.
    pub(crate) rests_until: u64,
    /// A walk found that nothing is under an older key. Nothing comes under one any more.
    pub(crate) is_done: bool,
}

/// Pages that a walk remembers to have seen: of 72 GiB of data. It looks at others once for each map.
pub(crate) const SEEN_MAX: usize = 1 << 16;

impl Resealing {
    /// True when a page was seen already, by the tables of this checkpoint.
    pub(crate) fn has_seen(&self, sequence: u64, page: Pba) -> bool {
        self.seen.0 == sequence && self.seen.1.contains(&page)
    }

    /// A page was seen, by the tables of this checkpoint.
    pub(crate) fn saw(&mut self, sequence: u64, page: Pba) {
        if self.seen.0 != sequence {
            self.seen = (sequence, BTreeSet::new());
        }
        if self.seen.1.len() < SEEN_MAX {
            self.seen.1.insert(page);
        }
    }
}

/// The pages that the maps of a family need when blocks of a leaf move.
#[derive(Clone)]
pub(crate) struct SharedPlan {
    pub(crate) family: u32,
    /// The places from the leaf up, as level and number, and how many pages the family has there.
    pub(crate) places: Vec<((u8, u64), u64)>,
    /// The pages at the place of the leaf.
    pub(crate) leaves: Vec<Arc<Page>>,
}
