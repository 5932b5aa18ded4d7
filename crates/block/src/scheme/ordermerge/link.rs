//! Level 1: links. The windows whose data and counts are durable are linked together, leaf by leaf.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use onefold_core::{Error, Fingerprint, Kind, Lba, Pba, Result, VolumeId};

use super::{
    increments::{write_counts, write_leaves},
    non_critical::{lower, write_later},
    soft_updates::{OrderMerge, SoftUpdates},
};
use crate::{
    counters::add,
    format::{
        page::{Form, MapEntry, PageId, Pointer, Table},
        record::{Change, WindowNumber},
    },
    kernel::Kernel,
    overlay::{Tables, zeroes},
    rules::Rule,
    scheme::windows::publish,
    window::Plan,
};

/// Leaves that a range changes between two flushes: their blocks' counts fall in between, so that
/// memory does not grow with the range.
const RANGE_LEAVES: usize = 1024;

/// The result of a step of linking.
#[derive(Default)]
struct Linked {
    /// Leaves that changed.
    leaves: Vec<Pointer>,
}

/// One flush; windows that were linked before it are durable, and those that it made sound are
/// linked. Returns whether anything waited.
///
/// # Errors
/// A failed write or flush stops all writes.
pub(crate) fn flush_and_link(own: &OrderMerge, kernel: &Kernel) -> Result<bool> {
    let _making_durable = kernel.making_durable.lock();
    let mut updates = own.updates.lock();
    link_sound(own, kernel, &mut updates).map_err(|e| kernel.stop(&e))?;
    let waits = {
        let state = kernel.state.lock();
        state.check_running()?;
        state.flushes.is_wanted() || state.windows.written().next().is_some()
    };
    if !waits {
        return Ok(false);
    }
    write_counts(kernel, &mut updates).map_err(|e| kernel.stop(&e))?;
    flush_leaves(kernel)?;
    publish_linked(own, kernel, &mut updates).map_err(|e| kernel.stop(&e))?;
    link_sound(own, kernel, &mut updates).map_err(|e| kernel.stop(&e))?;
    write_later(kernel, false).map_err(|e| kernel.stop(&e))?;
    Ok(true)
}

/// A flush, while nobody writes leaves.
fn flush_leaves(kernel: &Kernel) -> Result<()> {
    let begun = {
        let mut state = kernel.state.lock();
        state.allocator.list.flushing();
        state.flushes.begin()
    };
    if kernel.keeps(Rule::FlushBeforePublish) {
        kernel.disk.flush().map_err(|e| kernel.stop(&e))?;
    }
    add(&kernel.counters.flushes, 1);
    let mut state = kernel.state.lock();
    state.flushes.succeeded(begun);
    state.allocator.list.flushed();
    drop(state);
    kernel.pages.flushed(begun);
    Ok(())
}

/// Links the windows whose data and counts are durable.
fn link_sound(own: &OrderMerge, kernel: &Kernel, updates: &mut SoftUpdates) -> Result<()> {
    let early = !kernel.keeps(Rule::DataBeforeLink);
    let (sound, tables) = {
        let state = kernel.state.lock();
        state.check_running()?;
        let done = state.flushes.last_done();
        let sound: Vec<(WindowNumber, Arc<Plan>)> = updates
            .unlinked_windows(&state.windows)
            .take_while(|&(window, _)| early || updates.is_sound(window, done))
            .map(|(window, plan)| (window, plan.clone()))
            .collect();
        (sound, state.overlays.tables().clone())
    };
    let mut linked = Linked::default();
    for (window, plan) in &sound {
        link_window(own, kernel, updates, &tables, plan, &mut linked)?;
        let new: BTreeSet<Pba> = plan.addresses().collect();
        let mut stored: BTreeMap<Pba, Fingerprint> = BTreeMap::new();
        stored.extend(plan.links().filter(|(pba, _)| new.contains(pba)));
        updates.stored.extend(stored);
        updates.linked_through(*window);
    }
    write_linked(kernel, &mut linked)?;
    if !kernel.keeps(Rule::UnlinkBeforeDecrement) {
        lower(kernel, updates)?;
    }
    Ok(())
}

fn write_linked(kernel: &Kernel, linked: &mut Linked) -> Result<()> {
    let (_, written) = write_leaves(kernel, &std::mem::take(&mut linked.leaves))?;
    add(&kernel.counters.in_place_blocks, written);
    Ok(())
}

/// Links one window: its ranges, then its blocks.
fn link_window(
    own: &OrderMerge,
    kernel: &Kernel,
    updates: &mut SoftUpdates,
    tables: &Tables,
    plan: &Plan,
    linked: &mut Linked,
) -> Result<()> {
    let mut blocks: BTreeMap<(VolumeId, u64), Vec<(Lba, MapEntry)>> = BTreeMap::new();
    for record in &plan.records {
        match record.change {
            Change::Range { blocks, keep } => {
                let (start, end) = (record.lba.0, record.lba.0 + blocks);
                link_range(
                    own,
                    kernel,
                    updates,
                    tables,
                    (record.volume, start..end),
                    zeroes(keep),
                    linked,
                )?;
            }
            Change::Block { pba, carried, fingerprint } => {
                let form = Form::of(carried);
                let entry = MapEntry::Block { pba, form, prefix: fingerprint.prefix() };
                blocks
                    .entry((record.volume, record.lba.0 / Table::Map.per_leaf()))
                    .or_default()
                    .push((record.lba, entry));
            }
            Change::Catalogue { .. } => {}
        }
    }
    let mut leaves: Vec<(PageId, Pointer)> = Vec::with_capacity(blocks.len());
    let keys: Vec<(VolumeId, u64)> = blocks.keys().copied().collect();
    for of_volume in keys.chunk_by(|one, other| one.0 == other.0) {
        let numbers: Vec<u64> = of_volume.iter().map(|(_, leaf)| *leaf).collect();
        leaves.extend(map_leaves(kernel, tables, of_volume[0].0, &numbers)?);
    }
    kernel.pages.hold(&leaves)?;
    for ((id, pointer), entries) in leaves.iter().zip(blocks.values()) {
        change_leaf(kernel, updates, id, pointer, entries.iter().copied())?;
        linked.leaves.push(*pointer);
    }
    Ok(())
}

/// Leaves of a map that exist: level 0 saw to it.
fn map_leaves(
    kernel: &Kernel,
    tables: &Tables,
    volume: VolumeId,
    numbers: &[u64],
) -> Result<Vec<(PageId, Pointer)>> {
    let root = tables.volumes.get(&volume).map(|volume| volume.map).unwrap_or_default();
    let pointers = kernel.pages.leaf_pointers(Table::Map, volume.0, &root, numbers)?;
    let leaf = |(&index, pointer): (&u64, Option<Pointer>)| {
        let missing = || {
            Error::new(
                Kind::Corrupt,
                format!("leaf {index} of the map of volume {volume} is missing"),
            )
        };
        Ok((
            PageId { table: Table::Map, volume: volume.0, level: 0, index },
            pointer.ok_or_else(missing)?,
        ))
    };
    numbers.iter().zip(pointers).map(leaf).collect()
}

/// Applies a range to the leaves that exist.
fn link_range(
    own: &OrderMerge,
    kernel: &Kernel,
    updates: &mut SoftUpdates,
    tables: &Tables,
    (volume, range): (VolumeId, Range<u64>),
    entry: MapEntry,
    linked: &mut Linked,
) -> Result<()> {
    let Some(root) = tables.volumes.get(&volume).map(|volume| volume.map) else {
        return Ok(());
    };
    let per_leaf = Table::Map.per_leaf();
    let mut at = range.start / per_leaf;
    while let Some(index) = kernel
        .pages
        .next_leaf(Table::Map, volume.0, &root, at)?
        .filter(|leaf| leaf * per_leaf < range.end)
    {
        at = index + 1;
        let leaves = map_leaves(kernel, tables, volume, &[index])?;
        kernel.pages.hold(&leaves)?;
        let (first, end) = ((index * per_leaf).max(range.start), (at * per_leaf).min(range.end));
        for (id, pointer) in &leaves {
            change_leaf(kernel, updates, id, pointer, (first..end).map(|lba| (Lba(lba), entry)))?;
            linked.leaves.push(*pointer);
        }
        if linked.leaves.len() >= RANGE_LEAVES {
            write_linked(kernel, linked)?;
            flush_leaves(kernel)?;
            publish_linked(own, kernel, updates)?;
            lower(kernel, updates)?;
            write_later(kernel, false)?;
        }
    }
    Ok(())
}

/// Changes entries of a leaf that is held; notes the blocks that lose links.
fn change_leaf(
    kernel: &Kernel,
    updates: &mut SoftUpdates,
    id: &PageId,
    pointer: &Pointer,
    entries: impl Iterator<Item = (Lba, MapEntry)>,
) -> Result<()> {
    let per_leaf = Table::Map.per_leaf();
    let (mut damaged, mut changed) = (false, 0);
    let now = kernel.clock.now();
    kernel.pages.held().change(pointer, now, |page| {
        for (lba, new) in entries {
            let slot = lba.0 % per_leaf;
            let Some(old) = MapEntry::get(page, slot) else {
                damaged = true;
                continue;
            };
            updates.relinked(id, old, new);
            if old != new {
                new.set(page, slot);
                changed += 1;
            }
        }
        changed > 0
    });
    add(&kernel.counters.in_place_changes, changed);
    if damaged { Err(Error::new(Kind::Corrupt, "a map entry is damaged")) } else { Ok(()) }
}

/// The windows that were linked before the last flush are durable: they are published, and the
/// counts of the blocks that they unlinked may fall.
fn publish_linked(own: &OrderMerge, kernel: &Kernel, updates: &mut SoftUpdates) -> Result<()> {
    #[cfg(feature = "planted-bugs")]
    super::broken::count_late(kernel, updates)?;
    {
        let mut state = kernel.state.lock();
        let target = updates.linked;
        if target <= state.windows.durable() {
            return Ok(());
        }
        let (mapped, live) = (std::mem::take(&mut updates.mapped), updates.stored.len() as i64);
        state.overlays.active_mut().count_links(mapped, live);
        publish(kernel, own, &mut state, target);
    }
    lower(kernel, updates)
}

impl SoftUpdates {
    /// An entry of a map changes.
    fn relinked(&mut self, id: &PageId, old: MapEntry, new: MapEntry) {
        for (entry, change) in [(old, -1), (new, 1)] {
            if let MapEntry::Block { pba, .. } = entry {
                self.mapped += change;
                if change < 0 {
                    self.unlinked.push(pba);
                }
                if let Some(recount) = &mut self.recount {
                    recount.relinked(id, pba, change);
                }
            }
        }
    }
}
