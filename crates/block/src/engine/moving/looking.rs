//! The blocks that may be moved, and whether there is room for copies.

use std::collections::BTreeSet;

use onefold_core::{Lba, Pba, Result, VolumeId};

use crate::{
    engine::domain_room::kept,
    format::{
        catalogue::{MapKind, Volume},
        page::{FANOUT, MapEntry, ReferenceEntry, Table},
        share::Share,
    },
    kernel::{Kernel, Plan, State, Where},
    moving::{Found, Moves},
    overlay::Tables,
    scheme::{room::has_spare, shadow::share_of, verbs::Scheme},
};

/// Pages of references that one step reads to learn the counts of blocks.
const COUNTS_A_STEP: usize = 96;

/// A zone has room for so many runs, at least, before a leaf in it counts as scattered.
const RUNS_A_ZONE: u64 = 16;

/// The same in small zones: a run has so many blocks.
const BLOCKS_A_RUN_MIN: usize = 4;

/// The result of a look for blocks to move.
pub(super) enum Look {
    /// These are to be moved.
    Chosen(Plan),
    /// Nothing yet: there is more to look at.
    More,
    /// There is nothing to move.
    Nothing,
}

/// A leaf in more runs than one for each so many blocks is scattered. Copies lie in runs that may be as
/// short as half a zone, and are cut where a step ends. In small zones a leaf that was moved just now would
/// be scattered again, if its runs had to be as long as elsewhere.
pub(super) fn blocks_a_run(kernel: &Kernel) -> usize {
    let of_zone = (kernel.geometry().zone_blocks / RUNS_A_ZONE) as usize;
    kernel.settings.blocks_a_run.min(of_zone.max(BLOCKS_A_RUN_MIN))
}

/// True when there is room for so many copies more: few were made so far, and space is left for them and
/// for the pages that the next checkpoint writes because of them, `shared` pages of maps that share them
/// among these. Without room those that there are wait for a checkpoint.
pub(in crate::engine) fn has_room(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    moves: &Moves,
    more: usize,
    shared: u64,
) -> bool {
    has_room_for_both(kernel, scheme, moves, (more, more), shared)
}

/// The same for so many addresses that are to name something else, and for as many places as they need.
pub(super) fn has_room_for_both(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    moves: &Moves,
    (more, places): (usize, usize),
    shared: u64,
) -> bool {
    let mut state = kernel.state.lock();
    let (copies, places) = (more as u64, places as u64);
    // Of the pages of a checkpoint none are counted yet for moves that nobody has begun.
    let counted = match state.moving.records() {
        0 => 0,
        _ => scheme.reserve(kernel, &state, &state.moving, 0),
    };
    let before = state.moving.count_shared_pages(shared);
    let pages = scheme.reserve(kernel, &state, &state.moving, copies);
    state.moving.set_shared_pages(before);
    let wanted = places + pages.saturating_sub(counted) + kept(kernel, &state, moves.most.own);
    moves.len() + more <= moves.most.moves && has_spare(kernel, scheme, &state, wanted)
}

/// What was copied so far becomes true, but no checkpoint is made for that beside requests.
pub(super) fn want_checkpoint(kernel: &Kernel, beside_requests: bool, moves: &Moves) {
    kernel.state.lock().checkpoint_wanted |= !beside_requests && !moves.is_empty();
}

/// Takes the blocks of a leaf that one step looks at: from where the step before came to, which is
/// `goes_on`, as far as their counts lie in [`COUNTS_A_STEP`] pages. Returns where the next step goes on,
/// if some are left for it.
pub(super) fn part_of(
    goes_on: Option<(VolumeId, Lba)>,
    volume: VolumeId,
    blocks: &mut Found,
) -> Option<(VolumeId, Lba)> {
    let leaf = |lba: Lba| lba.0 / Table::Map.per_leaf();
    let &(first, _) = blocks.first()?;
    if let Some((_, from)) = goes_on.filter(|&(of, from)| (of, leaf(from)) == (volume, leaf(first)))
    {
        blocks.retain(|&(lba, _)| lba >= from);
    }
    let mut pages = BTreeSet::new();
    let end = blocks.iter().position(|(_, entry)| match entry {
        MapEntry::Block { pba, .. } => {
            pages.insert(pba.0 / Table::References.per_leaf());
            pages.len() > COUNTS_A_STEP
        }
        _ => false,
    })?;
    let next = blocks[end].0;
    blocks.truncate(end);
    Some((volume, next))
}

/// Picks those blocks of a leaf that may be moved: only this entry names them, and no change waits for
/// their addresses.
pub(super) fn movable(
    kernel: &Kernel,
    tables: &Tables,
    volume: &Volume,
    mut blocks: Found,
    moves: &Moves,
) -> Result<Found> {
    {
        let state = kernel.state.lock();
        blocks.retain(|&(lba, _)| is_still_there(&state, tables, volume.id, lba, moves));
    }
    let pba = |entry: MapEntry| match entry {
        MapEntry::Block { pba, .. } => Some(pba),
        _ => None,
    };
    let places = blocks.iter().filter_map(|&(_, entry)| Some(pba(entry)?.0));
    let references =
        kernel.pages.holding(Table::References, 0, &tables.state.references, places)?;
    let counts_once = |pba: Pba| {
        references
            .get(pba.0)
            .is_some_and(|((_, page), slot)| ReferenceEntry::get(page, slot).references == 1)
    };
    blocks.retain(|&(_, entry)| pba(entry).is_some_and(counts_once));
    Ok(blocks)
}

/// True when an address names what the tables say, as far as anybody knows, and has no copy yet.
fn is_still_there(
    state: &State,
    tables: &Tables,
    volume: VolumeId,
    lba: Lba,
    moves: &Moves,
) -> bool {
    !state.windows.open().holds(volume, lba)
        && matches!(state.locate(volume, lba), Where::Tables)
        && tables.discards.get(volume, lba.0).is_none()
        && !moves.has(volume, lba)
}

/// True for a map whose blocks may be moved.
pub(super) fn is_movable(kernel: &Kernel, volume: &Volume) -> bool {
    let kind = volume.sharing.kind;
    // Blocks that nobody can read stay where they are.
    matches!(kind, MapKind::Volume | MapKind::Snapshot)
        && !volume.name.is_empty()
        && volume.map.height > 0
        && kernel.identity.has_domain(volume.domain)
}

/// True when a leaf is its map's alone: no page on the way to it is needed by others, nor borrows. Blocks of
/// another one would stay where they are, too, and be stored twice.
pub(in crate::engine) fn is_alone(
    kernel: &Kernel,
    tables: &Tables,
    volume: &Volume,
    leaf: u64,
) -> Result<bool> {
    if !tables.state.shares_pages() {
        return Ok(true);
    }
    for level in 0..volume.map.height {
        let index = leaf / FANOUT.pow(u32::from(level));
        let page =
            kernel.pages.inner_pointer(Table::Map, volume.family(), &volume.map, level, index)?;
        let Some(page) = page else { return Ok(false) };
        if share_of(kernel, &tables.state.shares, page.address)? != Share::default() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first leaf of a map from `from` on whose blocks may be moved; `None` when there is none.
pub(super) fn next_movable(kernel: &Kernel, volume: &Volume, from: u64) -> Result<Option<u64>> {
    if !is_movable(kernel, volume) {
        return Ok(None);
    }
    let next = kernel.pages.next_leaf(Table::Map, volume.family(), &volume.map, from)?;
    // A stranger's map may have leaves far beyond the end of its volume.
    Ok(next.filter(|&leaf| leaf < volume.blocks.div_ceil(Table::Map.per_leaf())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::page::Form;

    #[test]
    fn rule_20_a_step_reads_the_counts_of_so_many_pages_and_the_next_one_goes_on() {
        let per_page = Table::References.per_leaf();
        let at = |n: u64| MapEntry::Block { pba: Pba(n * per_page), form: Form::Raw, prefix: n };
        let leaf: Found = (0..288).map(|n| (Lba(288 + n), at(n * 5 % 288))).collect();
        let (mut goes_on, mut seen) = (None, Vec::new());
        loop {
            let mut part = leaf.clone();
            goes_on = part_of(goes_on, VolumeId(4), &mut part);
            assert!(part.len() <= COUNTS_A_STEP);
            seen.extend(part);
            if goes_on.is_none() {
                break;
            }
        }
        assert_eq!(seen, leaf);
        // Blocks whose counts lie in few pages are looked at together.
        let mut near: Found = (0..288)
            .map(|n| (Lba(n), MapEntry::Block { pba: Pba(n * 2), form: Form::Raw, prefix: n }))
            .collect();
        assert!(part_of(None, VolumeId(4), &mut near).is_none() && near.len() == 288);
    }
}
