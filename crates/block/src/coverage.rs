//! Rare branches, counted, so that a simulation can prove that it has been everywhere.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! branches {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// A branch that only some crash, some damage or some order of things leads to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mark { $(#[doc = $text] $name),* }

        impl Mark {
            /// All of them.
            pub const ALL: &[Mark] = &[$(Mark::$name),*];

            /// The branch, as reports name it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Mark::$name => $text),* }
            }
        }
    };
}

branches! {
    CountStays = "checkpoint: a count that stands for many stays",
    SuperblockDamaged = "recovery: one of two superblocks is damaged",
    GrownInOneSuperblock = "recovery: the store grew in one of two superblocks",
    ListCopyDamaged = "recovery: one copy of a list page is damaged",
    ListCopyBehind = "recovery: one copy of a list page lacks a zone",
    ZoneScanned = "recovery: zone scanned",
    VoidCarrier = "recovery: void carrier",
    LeftoverRecord = "recovery: record of the leftover table",
    NewerBelieved = "recovery: newer record believed",
    NewerFallsBack = "recovery: newer record not believed, the mapping before it stands",
    RangeBelieved = "recovery: newer range believed with its carrier",
    RangeClipped = "recovery: newer range clipped to its volume",
    RecordWithoutVolume = "recovery: newer record of a volume or an address that was never made",
    CatalogueAgain = "recovery: newer change of the catalogue applied again",
    TailDropped = "recovery: what lies beyond a volume that shrank or went is dropped",
    Superseded = "recovery: newer record that a later one supersedes",
    HeldBlock = "recovery: block in use that the tables have as free",
    AppendedAgain = "recovery: records appended again",
    NoRoomToAppend = "recovery: no room to append, a checkpoint takes the records",
    PlacedInUse = "recovery in place: block in use that the zone table has as free",
    UnlinkedFound = "recovery in place: block without links",
    Recounted = "recount: all counts are exact again",
    CountLowered = "recount: count that was too high",
    LeavesMade = "checkpoint: leaves made for windows that wait",
    BlocksReclaimed = "checkpoint: blocks without links reclaimed",
    DiscardsLeft = "checkpoint: discards left for the next one",
    DiscardsMany = "checkpoint: many discards, the shortest ones first",
    BlocksKept = "checkpoint: freed blocks kept for newer records",
    IndexSpilled = "checkpoint: index merged into the one on disk",
    ListFlushed = "zones ran out before a window could carry the list",
    RangesWait = "limit: a range waits for room in the table of discards",
    WaitsForAct = "limit: a change leaves the room that an act waits for",
    ActInVain = "limit: an act is told that the store is full, since its turn was in vain",
    CatalogueFull = "limit: a new volume waits for room in the catalogue",
    CarriersFull = "limit: a change waits, since as many carriers wait for a checkpoint as may",
    ClosedWindowsFull = "limit: a change waits, since as many windows are on their way as may",
    StoreGrew = "growth: the store is larger",
    ListMoved = "growth: the zone list moved",
    ListMovedAgain = "growth: a zone list that had moved moved again",
    MomentAsked = "moment: asked for",
    MomentWaits = "limit: a moment waits for others, or for room",
    ActsPerformed = "checkpoint: acts performed",
    PageShared = "checkpoint: a page that others need lends to its copy",
    MapTakenApart = "checkpoint: a part of a deleted map is taken apart",
    SharedPageUnread = "checkpoint: a shared page can't be read, and counts become too high",
    OrphanHandedOver = "checkpoint: a page that nothing counts for is handed over",
    QuotaReached = "limit: a volume has reached its quota",
    QuotaWaits = "limit: a write near a quota waits until a checkpoint has counted",
    DomainQuotaReached = "limit: a domain has reached its quota",
    DomainQuotaWaits = "limit: a write near a domain's quota waits until a checkpoint has counted",
    DomainLimitsSet = "domain: it has other limits",
    DomainCounted = "checkpoint: the blocks of a domain are counted for its limits",
    MapCounted = "checkpoint: the blocks of a map are counted for a quota",
    MapPagesCounted = "checkpoint: the pages of a map are counted for a quota",
    QuotaOfPages = "limit: a quota is reached by pages of the map",
    BlocksLost = "moment: blocks that a sender could not read are lost",
    RangesCopied = "checkpoint: ranges that wait are copied for a snapshot",
    BlocksMoved = "moving: blocks copied to new places",
    ZonesEmptied = "moving: zones are named that are to be free as a whole",
    ZonesWhole = "moving: zones that became free as a whole",
    PagesMoved = "moving: pages of tables that a checkpoint writes at new places",
    BlocksPacked = "packing: blocks that became fragments of a pack",
    PacksMade = "packing: packs that were written",
    LeafDoesNotShrink = "packing: a leaf stays since nothing that was tried of it shrinks",
    FragmentsKnown = "packing: blocks that came to a fragment which was there",
    FragmentsLearned = "packing: fragments that were learned from maps after opening",
    FragmentsForgotten = "packing: packs whose fragments left the index",
    PackedAgain = "packing: the last fragment of a pack is packed again",
    MovesFull = "moving: no room for more copies before a checkpoint",
    ReleasedInPart = "checkpoint: some of the blocks that become free are released, and others later",
    MovesPut = "checkpoint: copies of blocks come into the maps",
    MovePut = "checkpoint: an entry gets the copy of its block",
    MoveOvertaken = "checkpoint: an entry changed after its block was copied, and stays",
    BlocksHanded = "moving: blocks that a reader had found are moved without another read",
    SharedMoved = "checkpoint: an entry of maps that share pages gets the copy of its block",
    LenderMoved = "checkpoint: a page that stays borrows from one that moved",
    LeavingMoved = "checkpoint: pages of a map that is leaving move",
    MovedBesideRange = "checkpoint: a leaf moves while a range waits for one of its maps",
    OrphanInFamily = "moving: the leaves of a family stay, since it has a page that nothing counts for",
    ResealedKnown = "moving: what is under an older data key is stored under the newest one already",
    LeafResealed = "moving: nothing that a leaf names is under an older data key any more",
    CutsFull = "limit: a recovery ends with a checkpoint, since the superblock remembers no more of them",
}

/// How often each branch was reached since the store was opened.
pub(crate) struct Coverage([AtomicU64; Mark::ALL.len()]);

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Coverage {
    pub(crate) fn hit(&self, branch: Mark) {
        self.add(branch, 1);
    }

    pub(crate) fn add(&self, branch: Mark, n: usize) {
        self.0[branch as usize].fetch_add(n as u64, Relaxed);
    }

    pub(crate) fn counts(&self) -> Vec<(Mark, u64)> {
        Mark::ALL
            .iter()
            .zip(&self.0)
            .map(|(&branch, count)| (branch, count.load(Relaxed)))
            .filter(|&(_, n)| n > 0)
            .collect()
    }
}
