//! Compaction when idle: blocks that are neighbours in a volume become neighbours on the disk
//! again.
//!
//! The map is walked in the order of logical addresses. Where the blocks of a leaf lie scattered,
//! those that nothing else names are read and written again by ordinary records, next to each
//! other; their old places become free with the next checkpoint. No reverse map is needed,
//! and a crash finds either mapping. (ThinDedup II-B leaves this to the future.)
//!
//! *Invariant:* a block is moved only if its mapping has not changed since it was read.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use onefold_core::{Block, BlockRead, Lba, Pba, Result, VolumeId};

use crate::{
    counters::add,
    engine::{
        admission::{Admission, Purpose, admit},
        domain_limits,
        domain_room::kept,
        gather::make_room,
        moving::is_alone,
        read::read,
    },
    format::{
        catalogue::{MapKind, Volume},
        page::{MapEntry, ReferenceEntry, Table},
    },
    kernel::{Compactor, Kernel, Where},
    moving::scattered,
    overlay::Tables,
    scheme::{room::has_spare, verbs::Scheme},
};

/// A leaf is compacted when its blocks lie in more runs than one for each this many blocks.
const BLOCKS_A_RUN: usize = 16;

/// Leaves that one step looks at.
const LEAVES_A_STEP: usize = 16;

/// Compaction leaves this share of the record limit to clients.
const RECORDS_SHARE: u64 = 4;

/// Looks at a few leaves of the maps and moves scattered blocks together. Returns whether there
/// may be more to do now.
pub(crate) fn compact_step(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let mut compactor = kernel.compacting.lock();
    let changes = kernel.counters.client_changes.load(Relaxed);
    if compactor.done_at == Some(changes) || !may_compact(kernel, scheme) {
        return Ok(false);
    }
    let tables = kernel.tables();
    for _ in 0..LEAVES_A_STEP {
        let Some((&id, volume)) = tables.volumes.range(compactor.volume..).next() else {
            *compactor = Compactor { done_at: Some(changes), ..Compactor::default() };
            return Ok(false);
        };
        if id != compactor.volume {
            (compactor.volume, compactor.leaf) = (id, 0);
        }
        // A page that can't be read is left to `check`.
        let next = kernel.pages.next_leaf(Table::Map, volume.family(), &volume.map, compactor.leaf);
        // Blocks that nobody can read stay where they are.
        let is_volume =
            volume.sharing.kind == MapKind::Volume && kernel.identity.has_domain(volume.domain);
        // A stranger's map may have leaves far beyond the end of its volume.
        let leaves = volume.blocks.div_ceil(Table::Map.per_leaf());
        let next = next.ok().flatten().filter(|&leaf| is_volume && leaf < leaves);
        let Some(leaf) = next else {
            // The last number is no volume of ours, and may be a stranger's.
            let Some(next) = id.0.checked_add(1) else {
                *compactor = Compactor { done_at: Some(changes), ..Compactor::default() };
                return Ok(false);
            };
            (compactor.volume, compactor.leaf) = (VolumeId(next), 0);
            continue;
        };
        compactor.leaf = leaf + 1;
        let movable = movable(kernel, scheme, &tables, volume, leaf).unwrap_or_default();
        if !movable.is_empty() {
            return move_together(kernel, scheme, &tables, id, &movable);
        }
    }
    Ok(true)
}

/// True when there is room for moving blocks: space to spare, long free runs, and few records
/// that wait.
fn may_compact(kernel: &Kernel, scheme: &dyn Scheme) -> bool {
    let state = kernel.state.lock();
    state.fail_stop.reason().is_none()
        && !state.overlays.is_frozen()
        && state.overlays.tables().discards.is_empty()
        && state.uncommitted_records() * RECORDS_SHARE < kernel.settings.records_max
        && state.allocator.idle.long_runs()
        && has_spare(kernel, scheme, &state, 2 * Table::Map.per_leaf() + kept(kernel, &state, None))
}

/// The addresses of a leaf that should be written again: none unless its blocks lie in many
/// runs.
fn movable(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    tables: &Tables,
    volume: &Volume,
    leaf: u64,
) -> Result<Vec<Lba>> {
    if !is_alone(kernel, tables, volume, leaf)? {
        return Ok(Vec::new());
    }
    let Some((_, page)) = kernel.pages.leaf(Table::Map, volume.family(), &volume.map, leaf)? else {
        return Ok(Vec::new());
    };
    let blocks: Vec<(Lba, Pba)> = scattered(leaf, &page, BLOCKS_A_RUN)
        .into_iter()
        .filter_map(|(lba, entry)| match entry {
            MapEntry::Block { pba, .. } => Some((lba, pba)),
            _ => None,
        })
        .collect();
    // Shared blocks stay where they are: others want them there.
    let pbas = blocks.iter().map(|(_, pba)| pba.0);
    let references = kernel.pages.holding(Table::References, 0, &tables.state.references, pbas)?;
    let rule = scheme.counts();
    let alone = |pba: Pba| {
        references.get(pba.0).is_some_and(|((_, page), slot)| {
            rule.links(ReferenceEntry::get(page, slot).references) == 1
        })
    };
    let movable: Vec<Lba> =
        blocks.iter().filter(|&&(_, pba)| alone(pba)).map(|&(lba, _)| lba).collect();
    // Not worth it when most of the runs stay.
    Ok(if movable.len() * 2 > blocks.len() { movable } else { Vec::new() })
}

/// Reads blocks and gathers them again, those whose mapping is still as in the tables. False when
/// windows have to be written out before more is moved; what is left of these blocks waits
/// for the next pass.
fn move_together(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    tables: &Arc<Tables>,
    volume: VolumeId,
    lbas: &[Lba],
) -> Result<bool> {
    let mut content = Block::zeroed_vec(lbas.len());
    let mut reads: Vec<BlockRead<'_>> = lbas
        .iter()
        .zip(content.chunks_mut(1))
        .map(|(&first, into)| BlockRead { first, into, result: Ok(()) })
        .collect();
    read(kernel, volume, &mut reads);
    let good: Vec<bool> = reads.into_iter().map(|read| read.result.is_ok()).collect();
    let mut state = kernel.state.lock();
    if !Arc::ptr_eq(state.overlays.tables(), tables)
        || state.volumes.check_writable(volume).is_err()
    {
        return Ok(true);
    }
    // A window of its own, so that the blocks get one run.
    state.windows.close();
    for ((&lba, block), _) in lbas.iter().zip(&content).zip(good).filter(|(_, good)| *good) {
        let unchanged = !state.windows.open().holds(volume, lba)
            && matches!(state.locate(volume, lba), Where::Tables);
        if !unchanged || block.is_zero() {
            continue;
        }
        let left = domain_limits::left(kernel, &mut state, volume)?;
        let has_room = left.is_none_or(|left| left.blocks > 0)
            && matches!(admit(kernel, scheme, &mut state, 1, Purpose::Data)?, Admission::Granted);
        if !has_room {
            state.windows.close();
            return Ok(false);
        }
        make_room(kernel, &mut state);
        domain_limits::charge(kernel, &mut state, volume, lba);
        state.put(volume, lba, true).0 = block.0;
        add(&kernel.counters.moved_blocks, 1);
    }
    state.windows.close();
    Ok(true)
}
