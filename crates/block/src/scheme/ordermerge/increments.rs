//! Level 0: the data of a window, and the counts of all blocks that its links will name. Data is
//! written at once, counts with the next flush, when all windows that wait for it have changed
//! their leaves.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{BlockRef, Class, Pba, Result, Run};

use super::soft_updates::{OrderMerge, SoftUpdates, block_leaves, place_in};
use crate::{
    counters::add,
    format::page::{PageId, Pointer, ReferenceEntry, Table},
    kernel::Kernel,
    overlay::Tables,
    rules::Rule,
    scheme::windows::{list_refs, list_runs, raw_blocks},
    window::{Plan, Window},
};

/// Writes the data of the oldest prepared window, and counts its links. False when there is
/// none, or when it needs leaves, or the new size of a volume, that only a checkpoint
/// makes: it is asked for then.
///
/// # Errors
/// The first failed write stops all writes.
pub(crate) fn write_counted(own: &OrderMerge, kernel: &Kernel) -> Result<bool> {
    let mut updates = own.updates.lock();
    let Some((window, plan, tables)) = next_prepared(kernel) else { return Ok(false) };
    let ready = !kernel.state.lock().resize_waits(&window);
    let leaves = if ready {
        leaves_of(kernel, &tables, &window, &plan).map_err(|e| kernel.stop(&e))?
    } else {
        None
    };
    let Some(leaves) = leaves else {
        let mut state = kernel.state.lock();
        state.checkpoint_awaited = true;
        state.checkpoint_wanted = true;
        return Ok(false);
    };
    let due = {
        let mut state = kernel.state.lock();
        state.windows.begin_writing(window.number);
        let durable = state.windows.durable();
        state.allocator.due_list_pages(&kernel.identity, durable)
    }
    .map_err(|e| kernel.stop(&e))?;
    kernel.pages.hold(&leaves).map_err(|e| kernel.stop(&e))?;
    if kernel.keeps(Rule::CountBeforeLink) {
        count_links(kernel, &plan, &leaves);
    }
    updates.counted.extend(leaves.iter().map(|(_, pointer)| *pointer));
    let raw = raw_blocks(kernel, &window, &plan).map_err(|e| kernel.stop(&e))?;
    let blocks = plan.blocks(&window, &raw).map_err(|e| kernel.stop(&e))?;
    let mut runs = plan.runs(&blocks);
    let due_refs = list_refs(&due);
    runs.extend(list_runs(&due, &due_refs));
    if !runs.is_empty() {
        kernel.disk.write(&runs).map_err(|e| kernel.stop(&e))?;
    }
    add(&kernel.counters.data_blocks, blocks.len() as u64);
    add(&kernel.counters.list_blocks, due.len() as u64);
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(Rule::CountBeforeLink) {
        updates.uncounted.push((plan.clone(), leaves));
    }
    let mut state = kernel.state.lock();
    state.allocator.list.written(&due);
    state.windows.mark_written(window.number);
    Ok(true)
}

/// Writes the counts of all windows whose data was written, each leaf once. The flush that
/// comes next makes them sound.
pub(crate) fn write_counts(kernel: &Kernel, updates: &mut SoftUpdates) -> Result<()> {
    let mut leaves = std::mem::take(&mut updates.counted);
    leaves.sort_unstable_by_key(|pointer| pointer.address);
    leaves.dedup_by_key(|pointer| pointer.address);
    let (note, written) = write_leaves(kernel, &leaves)?;
    add(&kernel.counters.in_place_blocks, written);
    updates.counts_written(&kernel.state.lock().windows, note);
    Ok(())
}

fn next_prepared(kernel: &Kernel) -> Option<(Arc<Window>, Arc<Plan>, Arc<Tables>)> {
    let state = kernel.state.lock();
    if state.fail_stop.reason().is_some() {
        return None;
    }
    let (window, plan) = state.windows.next_to_write()?;
    Some((window, plan, state.overlays.tables().clone()))
}

/// The leaves that count the window's links. `None` when one of them, or of those that its
/// later steps change, does not exist.
fn leaves_of(
    kernel: &Kernel,
    tables: &Tables,
    window: &Window,
    plan: &Plan,
) -> Result<Option<Vec<(PageId, Pointer)>>> {
    for (volume, leaves) in window.map_leaves() {
        let Some(volume_now) = tables.volumes.get(&volume) else { return Ok(None) };
        let pointers =
            kernel.pages.leaf_pointers(Table::Map, volume.0, &volume_now.map, &leaves)?;
        if pointers.contains(&None) {
            return Ok(None);
        }
    }
    if block_leaves(kernel, tables, Table::Fingerprints, plan.addresses())?.is_none() {
        return Ok(None);
    }
    block_leaves(kernel, tables, Table::References, plan.links().map(|(pba, _)| pba))
}

/// Counts the links of a window: a new block begins with its own reference.
pub(crate) fn count_links(kernel: &Kernel, plan: &Plan, leaves: &[(PageId, Pointer)]) {
    let mut links: BTreeMap<Pba, u32> = BTreeMap::new();
    plan.links().for_each(|(pba, _)| *links.entry(pba).or_default() += 1);
    let new: BTreeSet<Pba> = plan.addresses().collect();
    add(&kernel.counters.in_place_changes, links.len() as u64);
    let now = kernel.clock.now();
    let mut held = kernel.pages.held();
    for (pba, links) in links {
        let Some((pointer, slot)) = place_in(leaves, pba.0) else { continue };
        held.change(pointer, now, |page| {
            let before =
                if new.contains(&pba) { 1 } else { ReferenceEntry::get(page, slot).references };
            let references = i64::from(before) + i64::from(links);
            let references = kernel.settings.limits.count_of(references);
            ReferenceEntry { references, carried: false }.set(page, slot);
            true
        });
    }
}

/// Writes the next versions of leaves that changed; they are durable with the next flush. Gives
/// the number of the last one that began before, and how many leaves were written.
pub(crate) fn write_leaves(kernel: &Kernel, leaves: &[Pointer]) -> Result<(u64, u64)> {
    let note = kernel.state.lock().flushes.last_begun();
    let pages = kernel.pages.held().write(&kernel.identity, leaves, note);
    let refs: Vec<BlockRef<'_>> =
        pages.iter().map(|page| BlockRef { block: &page.block, class: Class::Table }).collect();
    let runs: Vec<Run<'_>> = pages
        .iter()
        .zip(refs.chunks(1))
        .map(|(page, blocks)| Run { at: page.at, blocks })
        .collect();
    if !runs.is_empty() {
        kernel.disk.write(&runs)?;
    }
    Ok((note, pages.len() as u64))
}
