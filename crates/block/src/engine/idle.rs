//! Work for idle time: completing the index, learning where free space is, writing
//! down what is durable.

use std::sync::atomic::Ordering::Relaxed;

use onefold_core::{Pba, Result};

use crate::{
    engine::{
        checkpoint::{checkpoint_running, checkpoint_to_end, spill::spill},
        compact::compact_step,
        moving::move_step,
    },
    format::page::{self, Pointer, ReferenceEntry, Table},
    idleness::Idleness,
    index::{hash_of, paged},
    kernel::{Kernel, Reason},
    scheme::verbs::Scheme,
    settings::Tidying,
};

/// Nothing is moved while requests flow when less than this share of the store is free.
const CROWDED_SHARE: u64 = 10;

/// Leaves, of fingerprints or of the index on disk, that one step looks through.
const INDEX_LEAVES: usize = 64;

/// Does a little idle work. Returns whether there may be more.
pub(crate) fn idle_step(kernel: &Kernel, scheme: &dyn Scheme, idleness: Idleness) -> Result<bool> {
    if index_step(kernel, scheme)?
        || load_free_space(kernel)?
        || scheme.idle(kernel, Idleness::None)?.advanced()
        || tidy(kernel, scheme, idleness)?
    {
        return Ok(true);
    }
    Ok(idleness >= Idleness::Short && scheme.idle(kernel, idleness)?.advanced())
}

/// True when blocks may be moved while requests flow: checkpoints move them, and no more than nine tenths of
/// the store are in use.
pub(crate) fn may_move_beside_requests(kernel: &Kernel, scheme: &dyn Scheme) -> bool {
    let moves = kernel.settings.tidying == Tidying::Moves && scheme.begin_moment().is_ok();
    moves
        && kernel.state.lock().allocator.free() * CROWDED_SHARE >= kernel.geometry().usable_blocks()
}

/// Moves a few scattered blocks together, as the settings say. Returns whether there may be more.
fn tidy(kernel: &Kernel, scheme: &dyn Scheme, idleness: Idleness) -> Result<bool> {
    match kernel.settings.tidying {
        Tidying::Off => Ok(false),
        Tidying::Moves if scheme.begin_moment().is_ok() => {
            Ok(idleness >= Idleness::Share && move_step(kernel, scheme, idleness)?)
        }
        Tidying::Moves | Tidying::Records => {
            Ok(idleness == Idleness::Long && compact_step(kernel, scheme)?)
        }
    }
}

/// Adds a little to what the index knows, which after opening is nothing. Returns whether there may be
/// more.
pub(crate) fn index_step(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let _alone = kernel.completing.lock();
    Ok(complete_filter(kernel) || complete_index(kernel, scheme)?)
}

/// Adds entries of the index on disk to the filter in front of it: after opening it knows none.
fn complete_filter(kernel: &Kernel) -> bool {
    if kernel.index.lock().filter_complete {
        return false;
    }
    let cursor = kernel.filter_cursor.load(Relaxed);
    let tables = kernel.tables();
    let end = 1u64 << tables.state.index_bits;
    // A superblock may name more leaves than there are: holes are passed over.
    let cursor = match kernel.pages.next_leaf(Table::Index, 0, &tables.state.index, cursor) {
        Ok(Some(leaf)) => leaf.min(end),
        Ok(None) => end,
        Err(_) => cursor,
    };
    let numbers: Vec<u64> = (cursor..end.min(cursor + INDEX_LEAVES as u64)).collect();
    let pages = kernel
        .pages
        .leaves(Table::Index, 0, &tables.state.index, &numbers, false)
        .unwrap_or_default();
    let mut index = kernel.index.lock();
    for (_, page) in pages.iter().flatten() {
        index.note_on_disk(paged::entries(page).map(|entry| entry.hash));
    }
    let next = cursor + numbers.len() as u64;
    index.filter_complete |= next >= end;
    kernel.filter_cursor.store(next, Relaxed);
    true
}

/// Adds blocks that the index may not know: after opening it knows none. A page that can't be
/// read is passed over: the index is a hint.
fn complete_index(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let cursor = kernel.index_cursor.load(Relaxed);
    if cursor == u64::MAX {
        return Ok(false);
    }
    if kernel.index.lock().wants_spill() {
        // Memory is full: the entries found so far go to disk first. Without space for them the
        // index stays as it is.
        let room = spill(kernel, scheme, &kernel.state.lock()).is_some();
        if room {
            let running = checkpoint_running(kernel);
            let ended = checkpoint_to_end(kernel, scheme, Reason::Forced)?;
            if running || !ended || !kernel.index.lock().wants_spill() {
                return Ok(ended);
            }
            // Its own pages took the space.
        }
        kernel.index_cursor.store(u64::MAX, Relaxed);
        return Ok(true);
    }
    let tables = kernel.tables();
    let root = tables.state.fingerprints;
    let mut leaves = Vec::with_capacity(INDEX_LEAVES);
    let mut next = cursor;
    while leaves.len() < INDEX_LEAVES {
        match kernel.pages.next_leaf(Table::Fingerprints, 0, &root, next) {
            Ok(Some(leaf)) => {
                leaves.push(leaf);
                next = leaf + 1;
            }
            Ok(None) | Err(_) => {
                next = u64::MAX;
                break;
            }
        }
    }
    let per_leaf = Table::Fingerprints.per_leaf();
    // Pages that did not change since the index was written to disk are in it.
    let pointers =
        kernel.pages.leaf_pointers(Table::Fingerprints, 0, &root, &leaves).unwrap_or_default();
    let younger = |pointer: &Option<Pointer>| {
        pointer.is_some_and(|pointer| pointer.in_place || pointer.birth > tables.state.index_birth)
    };
    let mut pointers = pointers.iter().map(younger).chain(std::iter::repeat(true));
    leaves.retain(|_| pointers.next() == Some(true));
    let pages =
        kernel.pages.leaves(Table::Fingerprints, 0, &root, &leaves, false).unwrap_or_default();
    // One of references covers four of fingerprints.
    let blocks = leaves.iter().map(|leaf| leaf * per_leaf);
    let references =
        kernel.pages.holding_if_whole(Table::References, 0, &tables.state.references, blocks);
    for (leaf, page) in leaves.iter().zip(pages) {
        let Some((_, page)) = page else { continue };
        let mut index = kernel.index.lock();
        if index.wants_spill() {
            next = *leaf;
            break;
        }
        for slot in 0..per_leaf {
            let pba = Pba(leaf * per_leaf + slot);
            let fingerprint = page::fingerprint(&page, slot);
            let known = scheme.counts().is_known(&fingerprint);
            if known
                && references
                    .get(pba.0)
                    .is_some_and(|((_, page), slot)| ReferenceEntry::get(page, slot).references > 0)
            {
                index.insert(hash_of(fingerprint.prefix()), pba);
            }
        }
    }
    kernel.index_cursor.store(next, Relaxed);
    Ok(true)
}

/// Learns where free space is, in zones that were not looked at since opening.
fn load_free_space(kernel: &Kernel) -> Result<bool> {
    let mut state = kernel.state.lock();
    let zones = kernel.zones(state.releases.zone_table());
    state.allocator.idle.load_some(&zones)
}
