//! The state of soft updates between the steps.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Fingerprint, Pba, Result, VolumeId};
use parking_lot::Mutex;

use super::tally::Recount;
use crate::{
    format::{
        page::{PageId, Pointer, Table},
        record::WindowNumber,
    },
    hash::MixMap,
    kernel::Kernel,
    overlay::Tables,
    window::{Plan, Windows},
};

/// Soft updates.
#[derive(Default)]
pub(crate) struct OrderMerge {
    /// A step that changes leaves holds it, also during a flush. Taken before `state`.
    pub(super) updates: Mutex<SoftUpdates>,
    /// A leaf lock, taken after `state` and never held over I/O.
    pub(super) ledger: Mutex<Ledger>,
}

/// The facts that admission must know.
#[derive(Default)]
pub(super) struct Ledger {
    /// Leaves of references and of fingerprints that exist, the first ones.
    pub(super) block_leaves: [u64; 2],
    /// The same when the checkpoint is built that is under way.
    pub(super) built_leaves: [u64; 2],
    /// A recount has found all counts that were too high after a crash.
    pub(super) exact: bool,
}

/// The updates that wait between the steps.
#[derive(Default)]
pub(super) struct SoftUpdates {
    /// The links of all windows up to this one are written.
    pub(super) linked: WindowNumber,
    /// Written windows that are not linked: the last flush that began before their data and their
    /// counts were written.
    written_before: BTreeMap<WindowNumber, u64>,
    /// Leaves that count the links of windows whose data was written, and that the next flush
    /// takes along.
    pub(super) counted: Vec<Pointer>,
    /// Blocks that lost a link which is not durable yet, as often as they did.
    pub(super) unlinked: Vec<Pba>,
    /// New blocks whose links are not durable yet.
    pub(super) stored: Vec<(Pba, Fingerprint)>,
    /// Links that were made, less those that were removed.
    pub(super) mapped: i64,
    /// New leaves are made this many at a time, by table and volume.
    pub(super) growth: MixMap<(u8, VolumeId), u64>,
    pub(super) recount: Option<Recount>,
    /// Windows whose links are counted when they are durable, against `Rule::CountBeforeLink`.
    #[cfg(feature = "planted-bugs")]
    pub(super) uncounted: Vec<(std::sync::Arc<crate::window::Plan>, Vec<(PageId, Pointer)>)>,
}

impl SoftUpdates {
    /// The windows that were written and are not linked, oldest first.
    pub(super) fn unlinked_windows<'a>(
        &'a self,
        windows: &'a Windows,
    ) -> impl Iterator<Item = (WindowNumber, &'a Arc<Plan>)> {
        let written = windows.written().map(|(window, plan)| (window.number, plan));
        written.skip_while(|(window, _)| *window <= self.linked)
    }

    /// The counts of all windows that were written are written, too; the last flush that began
    /// before has this number.
    pub(super) fn counts_written(&mut self, windows: &Windows, flush: u64) {
        let counted: Vec<WindowNumber> =
            self.unlinked_windows(windows).map(|(window, _)| window).collect();
        for window in counted {
            self.written_before.entry(window).or_insert(flush);
        }
    }

    /// True when flush number `done`, or one before it, made the data and the counts of a window
    /// durable.
    pub(super) fn is_sound(&self, window: WindowNumber, done: u64) -> bool {
        self.written_before.get(&window).is_some_and(|&before| before < done)
    }

    /// The links of a window are written.
    pub(super) fn linked_through(&mut self, window: WindowNumber) {
        self.linked = window;
        self.written_before.remove(&window);
    }
}

/// Pointers to the leaves of references, or of fingerprints, that hold `blocks`, by number;
/// `None` when one does not exist.
pub(super) fn block_leaves(
    kernel: &Kernel,
    tables: &Tables,
    table: Table,
    blocks: impl Iterator<Item = Pba>,
) -> Result<Option<Vec<(PageId, Pointer)>>> {
    let root = if table == Table::References {
        tables.state.references
    } else {
        tables.state.fingerprints
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
pub(super) fn place_in(leaves: &[(PageId, Pointer)], entry: u64) -> Option<(&Pointer, u64)> {
    let per_leaf = leaves.first()?.0.table.per_leaf();
    let at = leaves.binary_search_by_key(&(entry / per_leaf), |(id, _)| id.index).ok()?;
    Some((&leaves[at].1, entry % per_leaf))
}
