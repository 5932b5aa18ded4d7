//! OrderMergeDedup: soft updates on leaves that are written in place, ordered, merged, and delayed
//! where nobody waits.
//!
//! The leaves of maps, references and fingerprints change in place between checkpoints; what lies
//! above them, zones, catalogue, index and superblock are shadow-paged as ever, and checkpoints are
//! rare. There are no records on the disk and nothing to replay: after a crash the tables are the
//! truth, except that counts may be too high and fingerprints may be missing.
//!
//! A count holds one reference more than there are links: the fingerprint's own. A block in use
//! counts `links + 1` from its allocation on; at 1 it has no link, can still be found as a
//! duplicate, and waits to be reclaimed.
//!
//! | step | what is written | why then |
//! |---|---|---|
//! | level 0 (`increments.rs`) | data; counts, merged over the windows that wait for a flush: one more for each new link, and for a new block its own | before anything names them |
//! | flush | | |
//! | level 1 (`link.rs`) | map leaves: the links of all windows that wait, merged leaf by leaf; ranges in the order of windows | |
//! | flush | | the windows are durable |
//! | later (`non_critical.rs`) | counts of blocks that lost a link, one less; fingerprints of new blocks | nobody waits for them: they go along when their leaf is written anyway, or alone after the delay |
//!
//! A count falls only when the unlinking is durable, and is held back until then: so a leaf that
//! holds the counts of both an old and a new block is never written in a circle. A window is sound
//! when a flush came after its level 0; the flush of one group's level 1 is also that of the next
//! group's level 0.
//!
//! Checkpoints (`checkpoint.rs`) make and drop leaves, carry out changes of the catalogue, and
//! reclaim blocks without links: their fingerprints go first, their space is free once the
//! superblock is true. A window whose map leaves do not exist waits for a checkpoint that makes
//! them. After a crash (`recovery.rs`) the counts of the zones that were listed tell which blocks
//! are in use; a recount in the background (`recount.rs`) finds counts that are too high.
//!
//! A torn leaf is some entries as they were and some as they shall be, which the order of entries
//! allows as well as it allows that the write is lost.
//!
//! *Invariant:* a count is never lower than the links on the disk, in whatever state a crash leaves
//! it, plus one.
//!
//! Threads: who changes leaves holds `soft_updates`, also during a flush, so that no leaf is
//! written while one is under way.

pub(crate) mod checkpoint;
pub(crate) mod increments;
pub(crate) mod link;
pub(crate) mod non_critical;
pub(crate) mod recount;
pub(crate) mod recovery;

use std::sync::Arc;

use onefold_core::{Fingerprint, Pba, Result, VolumeId};

use self::recount::Recount;
use super::{Records, Scheme};
use crate::{
    format::page::{PageId, Pointer, Table},
    hash::MixMap,
    kernel::{Kernel, Snapshot},
    window::Plan,
};

/// Soft updates.
pub(crate) struct OrderMerge;

impl Scheme for OrderMerge {
    fn records(&self) -> Records {
        Records::InPlace
    }
}

/// What waits between the steps.
#[derive(Default)]
pub(crate) struct SoftUpdates {
    /// Leaves that count the links of windows whose data was written, and that the next flush
    /// takes along.
    counted: Vec<Pointer>,
    /// Blocks that lost a link which is not durable yet, as often as they did.
    unlinked: Vec<Pba>,
    /// New blocks whose links are not durable yet.
    stored: Vec<(Pba, Fingerprint)>,
    /// Links that were made, less those that were removed.
    mapped: i64,
    /// New leaves are made this many at a time, by table and volume.
    growth: MixMap<(u8, VolumeId), u64>,
    recount: Option<Recount>,
    /// Windows whose links a planted bug counts only when they are durable.
    uncounted: Vec<(Arc<Plan>, Vec<(PageId, Pointer)>)>,
}

/// True when leaves are written in place.
pub(crate) fn in_place(kernel: &Kernel) -> bool {
    kernel.scheme.records() == Records::InPlace
}

/// References that a block in use has besides those of links.
pub(crate) fn own_references(kernel: &Kernel) -> u32 {
    u32::from(in_place(kernel))
}

/// Pointers to the leaves of references, or of fingerprints, that hold `blocks`, by number;
/// `None` when one does not exist.
pub(crate) fn block_leaves(
    kernel: &Kernel,
    snapshot: &Snapshot,
    table: Table,
    blocks: impl Iterator<Item = Pba>,
) -> Result<Option<Vec<(PageId, Pointer)>>> {
    let root = if table == Table::References {
        snapshot.state.references
    } else {
        snapshot.state.fingerprints
    };
    let mut numbers: Vec<u64> = blocks.map(|pba| pba.0 / table.per_leaf()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let pointers = kernel.pages.leaf_pointers(table, 0, &root, &numbers)?;
    Ok(numbers
        .into_iter()
        .zip(pointers)
        .map(|(index, pointer)| Some((PageId { table, volume: 0, level: 0, index }, pointer?)))
        .collect())
}

/// The leaf among `leaves`, which rise, that holds an entry, and its place there.
fn place_in(leaves: &[(PageId, Pointer)], entry: u64) -> Option<(&Pointer, u64)> {
    let per_leaf = leaves.first()?.0.table.per_leaf();
    let at = leaves.binary_search_by_key(&(entry / per_leaf), |(id, _)| id.index).ok()?;
    Some((&leaves[at].1, entry % per_leaf))
}
