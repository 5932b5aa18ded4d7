//! The recount: after a crash counts may be too high, of any block. In the background all maps are
//! walked, and the links to a stretch of blocks counted; then the counts of the stretch are
//! compared, and what is too high falls. Clients go on meanwhile: a link that changes where the
//! walk has been already changes the tally.

use onefold_core::{Pba, Result, VolumeId};

use super::{
    soft_updates::{OrderMerge, SoftUpdates, block_leaves},
    tally::{Recount, STRETCH_LEAVES},
};
use crate::{
    coverage::Mark,
    format::page::{MapEntry, ReferenceEntry, Table},
    kernel::Kernel,
    overlay::Tables,
    rules::Rule,
    space::ZoneSource,
};

/// Leaves of maps that one step counts.
const STEP_LEAVES: usize = 64;

/// Counts may be too high: begins to look for them.
pub(crate) fn begin_recount(own: &OrderMerge) {
    let leaves = own.ledger.lock().block_leaves[0];
    own.updates.lock().recount = Some(Recount::new(0, leaves));
}

/// One step of a recount. Returns whether there may be more to do.
///
/// # Errors
/// A damaged page stops all writes, as it does when a window needs it.
pub(crate) fn recount_step(own: &OrderMerge, kernel: &Kernel) -> Result<bool> {
    let mut updates = own.updates.lock();
    let Some(mut recount) = updates.recount.take() else { return Ok(false) };
    let tables = kernel.tables();
    let done = count_some(kernel, &tables, &mut recount).map_err(|e| kernel.stop(&e))?;
    if !done {
        updates.recount = Some(recount);
        return Ok(true);
    }
    compare_counts(kernel, &tables, &updates, &mut recount).map_err(|e| kernel.stop(&e))?;
    let (next, leaves) = (recount.first + STRETCH_LEAVES, own.ledger.lock().block_leaves[0]);
    if next < leaves {
        updates.recount = Some(Recount::new(next, leaves));
    } else {
        kernel.coverage.hit(Mark::Recounted);
        own.ledger.lock().exact = true;
    }
    Ok(true)
}

/// Counts the links of a few leaves. True when there are no more.
fn count_some(kernel: &Kernel, tables: &Tables, recount: &mut Recount) -> Result<bool> {
    for _ in 0..STEP_LEAVES {
        let (from, leaf) = recount.next;
        let Some((&volume, map)) =
            tables.volumes.range(from..).next().map(|(id, volume)| (id, volume.map))
        else {
            return Ok(true);
        };
        let leaf = if volume == from { leaf } else { 0 };
        let Some(leaf) = kernel.pages.next_leaf(Table::Map, volume.0, &map, leaf)? else {
            recount.next = (VolumeId(volume.0 + 1), 0);
            continue;
        };
        recount.next = (volume, leaf + 1);
        let Some((_, page)) = kernel.pages.leaf(Table::Map, volume.0, &map, leaf)? else {
            continue;
        };
        for slot in 0..Table::Map.per_leaf() {
            if let Some(MapEntry::Block { pba, .. }) = MapEntry::get(&page, slot)
                && let Some(links) = recount.tally(pba)
            {
                *links += 1;
            }
        }
    }
    Ok(false)
}

/// Lowers the counts that are too high. Links on their way, and those that are gone but may not
/// be for good, count as links.
fn compare_counts(
    kernel: &Kernel,
    tables: &Tables,
    updates: &SoftUpdates,
    recount: &mut Recount,
) -> Result<()> {
    if kernel.keeps(Rule::RecountSeesPendingLinks) {
        for &pba in &updates.unlinked {
            recount.tally(pba).into_iter().for_each(|links| *links += 1);
        }
        let state = kernel.state.lock();
        for (_, plan) in updates.unlinked_windows(&state.windows) {
            plan.links()
                .for_each(|(pba, _)| recount.tally(pba).into_iter().for_each(|links| *links += 1));
        }
    }
    let (per_leaf, geometry) = (Table::References.per_leaf(), kernel.geometry());
    let zones = kernel.zones(kernel.state.lock().releases.zone_table());
    let now = kernel.clock.now();
    for (leaf, links) in (recount.first..).zip(recount.tally.chunks(per_leaf as usize)) {
        let Some(leaves) =
            block_leaves(kernel, tables, Table::References, std::iter::once(Pba(leaf * per_leaf)))?
        else {
            break;
        };
        kernel.pages.hold(&leaves)?;
        let pointer = leaves[0].1;
        let Some(page) = kernel.pages.held().get(&pointer) else { break };
        let (mut lowered, mut unlinked) = (Vec::new(), Vec::new());
        for (slot, &links) in (0..per_leaf).zip(links) {
            let (pba, count) =
                (Pba(leaf * per_leaf + slot), ReferenceEntry::get(&page, slot).references);
            // A block that nothing uses counts 0, and the count of a free block means nothing.
            if count == 0
                || !geometry.holds(pba)
                || count <= links + 1 && links > 0
                || !is_in_use(kernel, &zones, pba)?
            {
                continue;
            }
            if count > links + 1 {
                lowered.push((slot, links + 1));
            }
            if links == 0 {
                unlinked.push(pba);
            }
        }
        kernel.coverage.add(Mark::CountLowered, lowered.len());
        let mut state = kernel.state.lock();
        state.overlays.active_mut().unlink(unlinked);
        kernel.pages.held().change(&pointer, now, |page| {
            lowered.iter().for_each(|&(slot, references)| {
                ReferenceEntry { references, carried: false }.set(page, slot)
            });
            !lowered.is_empty()
        });
    }
    Ok(())
}

/// True when a block is not free.
fn is_in_use(kernel: &Kernel, zones: &dyn ZoneSource, pba: Pba) -> Result<bool> {
    kernel.state.lock().allocator.is_used(pba, zones)
}
