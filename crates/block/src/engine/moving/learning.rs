//! After opening: which fragments packs have, learned from the maps that name them.
//!
//! The table of fingerprints has the checksums of packs, and reading all packs for what they hold would read most of
//! a store. A mapping has enough of the fingerprint for the index, and a leaf has 288 of them. What is not learned
//! is packed once more; nothing else depends on it.

use std::sync::atomic::Ordering::Relaxed;

use onefold_core::{Result, VolumeId};

use super::looking::next_movable;
use crate::{
    coverage::Mark,
    format::page::{Form, MapEntry, Table},
    index::hash_of,
    kernel::{Kernel, Learning, Mover, SEEN_MAX},
    overlay::Tables,
};

/// Leaves that one step looks at.
const LEAVES_A_STEP: usize = 16;

/// Looks at a few leaves. Returns true while there is more to learn.
pub(super) fn step(kernel: &Kernel, tables: &Tables, mover: &mut Mover) -> bool {
    if kernel.fragments_known.load(Relaxed) {
        return false;
    }
    for _ in 0..LEAVES_A_STEP {
        let (from, leaf) = mover.learning.at;
        let Some((&id, _)) = tables.volumes.range(from..).next() else {
            mover.learning = Learning::default();
            kernel.fragments_known.store(true, Relaxed);
            return false;
        };
        let leaf = if id == from { leaf } else { 0 };
        // A page that can't be read is left to `check`, with all that comes behind it in its map.
        mover.learning.at = match learn(kernel, tables, &mut mover.learning, (id, leaf)) {
            Ok(Some(next)) => (id, next),
            Ok(None) | Err(_) => (VolumeId(id.0.saturating_add(1)), 0),
        };
    }
    true
}

/// Learns from the next leaf of a map from this one on; gives the one behind it, if there was one.
fn learn(
    kernel: &Kernel,
    tables: &Tables,
    learning: &mut Learning,
    (id, from): (VolumeId, u64),
) -> Result<Option<u64>> {
    let Some(volume) = tables.volumes.get(&id) else { return Ok(None) };
    let Some(leaf) = next_movable(kernel, volume, from)? else { return Ok(None) };
    let next = Ok(Some(leaf + 1));
    let pointers = kernel.pages.leaf_pointers(Table::Map, volume.family(), &volume.map, &[leaf])?;
    let Some(pointer) = pointers.into_iter().flatten().next() else { return next };
    if learning.seen.contains(&pointer.address) {
        return next;
    }
    if learning.seen.len() < SEEN_MAX {
        learning.seen.insert(pointer.address);
    }
    let found = kernel.pages.leaf(Table::Map, volume.family(), &volume.map, leaf)?;
    let Some((_, page)) = found else { return next };
    let mut index = kernel.index.lock();
    for slot in 0..Table::Map.per_leaf() {
        if let Some(MapEntry::Block { pba, form: Form::Packed(_), prefix }) =
            MapEntry::get(&page, slot)
        {
            kernel.coverage.hit(Mark::FragmentsLearned);
            index.learn(hash_of(prefix), pba);
        }
    }
    next
}
