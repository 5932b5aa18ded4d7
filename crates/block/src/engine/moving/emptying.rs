//! Zones that become free as a whole, for the long writes of windows.
//!
//! When too few zones are free as a whole, those with most free blocks are named. One walk over the
//! tables finds what lives there, since no block knows who names it: pages of tables get new places
//! with the next checkpoint, and blocks go into holes of other zones. The zones that are named take
//! nothing meanwhile, as long as there are others.

use std::collections::BTreeSet;

use onefold_core::{Lba, Pba, Result, VolumeId, ZoneId};

use super::{
    looking::{Look, has_room, is_alone, movable, next_movable, part_of, want_checkpoint},
    sharers::{self, OfLeaf, has_shared_room},
};
use crate::{
    coverage::Mark,
    format::page::{FANOUT, MapEntry, Pointer, Table},
    kernel::{Emptying, Kernel, Mover, Plan, SharedPlan, Stage},
    moving::{Found, Home, Moves, Why},
    overlay::Tables,
    scheme::verbs::Scheme,
    sharing::Orphan,
    space::ZoneSource,
};

/// Zones that are free as a whole should be this share of all, but for no more than half of what is
/// free.
const WHOLE_SHARE: u64 = 16;

/// Of all zones so many are named at once.
const NAMED_SHARE: u64 = 20;

/// Most zones that should be free as a whole, and most that are named: 16 GiB. A superblock says how many
/// zones there are, and may be a stranger's.
const ZONES_MAX: u64 = 4096;

/// A zone is worth it when so much of it is free.
const FREE_SHARE: u64 = 10;

/// After a walk that came to little, clients write this share of the store before the next one.
const REST_SHARE: u64 = 64;

/// So many pages of maps that share them may be written for each block or page that leaves its zone.
const WRITTEN_FOR_ONE: u64 = 8;

/// This share of a zone may be written for a leaf, however little of it lives in the zones.
const WRITTEN_SHARE: u64 = 4;

/// Zones that one step looks at: their bitmaps are in eight pages.
const ZONES_A_STEP: u64 = 8 * 31;

/// Pointers to pages that one step looks at, those of neighbouring inner pages.
const POINTERS_A_STEP: u64 = 16 * FANOUT;

/// Leaves of maps that one step looks at.
const LEAVES_A_STEP: usize = 16;

/// Goes on with emptying zones, or begins if too few are free as a whole.
pub(super) fn look(
    (kernel, scheme): (&Kernel, &dyn Scheme),
    tables: &Tables,
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &mut Moves,
) -> Look {
    let Some(mut emptying) = mover.emptying.take().or_else(|| begin(kernel, mover)) else {
        return Look::Nothing;
    };
    let looked = match emptying.stage {
        Stage::Looking { .. } => look_at_zones(kernel, tables, &mut emptying),
        Stage::Pages(table, next) => {
            look_at_pages((kernel, scheme), tables, &mut emptying, (table, next), moves)
        }
        Stage::Maps(..) => {
            look_at_maps((kernel, scheme), tables, (&mut emptying, &mut *mover, orphans), moves)
        }
        Stage::Ends { sequence } => {
            if tables.state.sequence > sequence {
                end(kernel, mover, &emptying);
                return Look::More;
            }
            Ok(Look::Nothing)
        }
    };
    match looked {
        Ok(found) => {
            mover.emptying = Some(emptying);
            found
        }
        // What can't be read is left to `check`, and so are zones that nobody can empty then.
        Err(_) => {
            end(kernel, mover, &emptying);
            Look::Nothing
        }
    }
}

/// Zones that should be free as a whole.
fn wanted(kernel: &Kernel) -> u64 {
    let geometry = kernel.geometry();
    let free = kernel.state.lock().allocator.free();
    (geometry.zones / WHOLE_SHARE).min(free / 2 / geometry.zone_blocks).min(ZONES_MAX)
}

fn begin(kernel: &Kernel, mover: &Mover) -> Option<Emptying> {
    if kernel.counters.counts().client_blocks < mover.rests_until {
        return None;
    }
    let wanted = wanted(kernel);
    let whole = kernel.state.lock().allocator.idle.whole_zones(wanted);
    let stage = Stage::Looking { next: 0, best: BTreeSet::new() };
    (whole < wanted).then(|| Emptying { stage, zones: BTreeSet::new(), whole })
}

/// The zones are as empty as they get.
fn end(kernel: &Kernel, mover: &mut Mover, emptying: &Emptying) {
    let mut state = kernel.state.lock();
    state.allocator.idle.empty(BTreeSet::new());
    let whole = state.allocator.idle.whole_zones(u64::MAX);
    drop(state);
    let gained = whole.saturating_sub(emptying.whole);
    kernel.coverage.add(Mark::ZonesWhole, gained as usize);
    let named = emptying.zones.len() as u64;
    let neighbours = kernel.counters.counts().neighbour_blocks;
    if neighbours > mover.neighbours {
        (mover.neighbours, mover.reached) = (neighbours, 0);
    }
    // Each walk reaches more than the one before, or is the last one for now.
    if named > 0 && gained * 4 >= named && whole > mover.reached {
        mover.reached = whole;
    } else {
        mover.reached = 0;
        let written = kernel.counters.counts().client_blocks;
        mover.rests_until = written + 1 + kernel.geometry().usable_blocks() / REST_SHARE;
    }
    mover.emptying = None;
}

/// No checkpoint makes room for copies: the zones that are named take blocks again.
pub(super) fn give_up(kernel: &Kernel, mover: &mut Mover) {
    let Some(emptying) = mover.emptying.take() else { return };
    if mover.plan.why == Why::Emptying {
        mover.plan.blocks.clear();
    }
    end(kernel, mover, &emptying);
}

/// Finds the zones with most free blocks.
fn look_at_zones(kernel: &Kernel, tables: &Tables, emptying: &mut Emptying) -> Result<Look> {
    let geometry = kernel.geometry();
    let Stage::Looking { next, best } = &mut emptying.stage else { return Ok(Look::Nothing) };
    // Behind these no zone was ever used.
    let used = kernel.state.lock().allocator.idle.high_water().min(geometry.zones);
    let (first, end) = (*next, (*next + ZONES_A_STEP).min(used));
    let named = (geometry.zones / NAMED_SHARE).clamp(1, ZONES_MAX);
    if first < end {
        let bitmaps = kernel.zones(tables.state.zones).bitmaps(ZoneId(first), end - first)?;
        let state = kernel.state.lock();
        for (zone, used) in (first..end).map(ZoneId).zip(bitmaps) {
            let free = used.clear_from(0, geometry.zone_blocks as usize) as u64;
            if free * FREE_SHARE >= geometry.zone_blocks
                && state.allocator.idle.may_be_emptied(zone)
            {
                best.insert((free, zone));
                if best.len() as u64 > named {
                    best.pop_first();
                }
            }
        }
    }
    *next = end;
    if end < used {
        return Ok(Look::More);
    }
    emptying.zones = best.iter().map(|&(_, zone)| zone).collect();
    emptying.stage = Stage::Pages(Table::References, 0);
    kernel.coverage.add(Mark::ZonesEmptied, emptying.zones.len());
    kernel.state.lock().allocator.idle.empty(emptying.zones.clone());
    if emptying.zones.is_empty() {
        // Nothing is worth it.
        emptying.stage = Stage::Ends { sequence: 0 };
    }
    Ok(Look::More)
}

impl Emptying {
    fn has(&self, kernel: &Kernel, page: &Pointer) -> bool {
        !page.is_none() && self.zones.contains(&kernel.geometry().zone_of(page.address))
    }
}

/// Finds pages of the tables of blocks that live in the zones, and those above them.
fn look_at_pages(
    (kernel, scheme): (&Kernel, &dyn Scheme),
    tables: &Tables,
    emptying: &mut Emptying,
    (table, next): (Table, u64),
    moves: &mut Moves,
) -> Result<Look> {
    let (root, home) = match table {
        Table::References => (tables.state.references, Home::References),
        _ => (tables.state.fingerprints, Home::Fingerprints),
    };
    let leaves = kernel.geometry().blocks().div_ceil(table.per_leaf());
    let end = (next + POINTERS_A_STEP).min(leaves);
    let numbers: Vec<u64> = (next..end).collect();
    let pointers = kernel.pages.leaf_pointers(table, 0, &root, &numbers)?;
    for (&leaf, pointer) in numbers.iter().zip(&pointers) {
        let Some(pointer) = pointer.filter(|pointer| !pointer.is_none()) else { continue };
        let mut lives_there = emptying.has(kernel, &pointer);
        // A page above is written with its first leaf.
        if leaf % FANOUT == 0 || leaf == next {
            for level in 1..root.height {
                let index = leaf / FANOUT.pow(u32::from(level));
                let page = kernel.pages.inner_pointer(table, 0, &root, level, index)?;
                lives_there |= page.is_some_and(|page| emptying.has(kernel, &page));
            }
        }
        if lives_there {
            note_page((kernel, scheme), moves, home, leaf);
        }
    }
    emptying.stage = match (end < leaves, table) {
        (true, _) => Stage::Pages(table, end),
        (false, Table::References) => Stage::Pages(Table::Fingerprints, 0),
        (false, _) => Stage::Maps(VolumeId(0), 0),
    };
    Ok(Look::More)
}

fn note_page((kernel, scheme): (&Kernel, &dyn Scheme), moves: &mut Moves, home: Home, leaf: u64) {
    if !has_room(kernel, scheme, moves, 1, 0) {
        return;
    }
    let mut state = kernel.state.lock();
    kernel.coverage.hit(Mark::PagesMoved);
    moves.note_page(home, leaf);
    let (volume, leaf) = match home {
        Home::Map(volume) => (volume, leaf),
        // The count of pages covers three of references, and one of fingerprints, for a record.
        Home::References | Home::Fingerprints => (VolumeId(0), 0),
    };
    state.moving.count_move(volume, Lba(leaf * Table::Map.per_leaf()));
}

/// Finds the blocks of maps that live in the zones.
fn look_at_maps(
    (kernel, scheme): (&Kernel, &dyn Scheme),
    tables: &Tables,
    (emptying, mover, orphans): (&mut Emptying, &mut Mover, Option<&[Orphan]>),
    moves: &mut Moves,
) -> Result<Look> {
    for _ in 0..LEAVES_A_STEP {
        let Stage::Maps(at, from) = emptying.stage else { return Ok(Look::Nothing) };
        let Some((&id, volume)) = tables.volumes.range(at..).next() else {
            emptying.stage = after_last_map(tables, moves);
            want_checkpoint(kernel, mover.beside_requests, moves);
            return Ok(Look::More);
        };
        let from = if id == at { from } else { 0 };
        let Some(leaf) = next_movable(kernel, volume, from)? else {
            // The last number is no volume of ours, and may be a stranger's.
            emptying.stage = match id.0.checked_add(1) {
                Some(next) => Stage::Maps(VolumeId(next), 0),
                None => after_last_map(tables, moves),
            };
            continue;
        };
        emptying.stage = Stage::Maps(id, leaf + 1);
        let Some((pointer, page)) =
            kernel.pages.leaf(Table::Map, volume.family(), &volume.map, leaf)?
        else {
            continue;
        };
        let zone_of = |pba| kernel.geometry().zone_of(pba);
        let per_leaf = Table::Map.per_leaf();
        let family = volume.family();
        let mut found: Found = (0..per_leaf)
            .filter_map(|slot| Some((slot, MapEntry::get(&page, slot)?)))
            .filter(|(_, entry)| match entry {
                MapEntry::Block { pba, .. } => emptying.zones.contains(&zone_of(*pba)),
                _ => false,
            })
            .map(|(slot, entry)| (Lba(leaf * per_leaf + slot), entry))
            .filter(|(lba, _)| !moves.has_shared(family, *lba))
            .collect();
        let lives_there =
            emptying.has(kernel, &pointer) && !moves.has_shared_page(family, pointer.address);
        let goes_on = part_of(mover.goes_on, id, &mut found);
        if found.is_empty() && !lives_there {
            continue;
        }
        // This may read a page of references for each block, so a step does it once.
        let sharers = if is_alone(kernel, tables, volume, leaf)? {
            None
        } else {
            match sharers::of_leaf(kernel, tables, (&mut *mover, orphans), volume, leaf)? {
                OfLeaf::More => {
                    emptying.stage = Stage::Maps(id, leaf);
                    return Ok(Look::More);
                }
                // Finding that out may have read all leaves there.
                OfLeaf::Stays(_) => return Ok(Look::More),
                OfLeaf::Found(place, shared) => Some((place, shared)),
            }
        };
        mover.goes_on = goes_on;
        if goes_on.is_some() {
            emptying.stage = Stage::Maps(id, leaf);
        }
        let (mut blocks, shared) = match sharers {
            None => {
                if lives_there {
                    note_page((kernel, scheme), moves, Home::Map(id), leaf);
                }
                if found.is_empty() {
                    continue;
                }
                (movable(kernel, tables, volume, found, moves)?, None)
            }
            Some((place, shared)) => {
                let mine = (volume, pointer.address, Why::Emptying);
                let blocks = sharers::movable(kernel, tables, mine, found, (&place, moves))?;
                let pages: Vec<Pba> = place
                    .values()
                    .filter(|seen| emptying.has(kernel, &seen.page))
                    .map(|seen| seen.page.address)
                    .collect();
                let written = moves.uncounted(shared.family, &shared.places);
                if !is_worth_pages(kernel, blocks.len() + pages.len(), written) {
                    return Ok(Look::More);
                }
                note_shared_pages((kernel, scheme), pages, (&shared, leaf), moves);
                (blocks, Some(shared))
            }
        };
        if blocks.is_empty() {
            return Ok(Look::More);
        }
        blocks.reverse();
        let (sequence, why) = (tables.state.sequence, Why::Emptying);
        return Ok(Look::Chosen(Plan {
            volume: id,
            sequence,
            why,
            blocks,
            shared,
            ..Plan::default()
        }));
    }
    Ok(Look::More)
}

/// All that lives in the zones has a copy, or stays.
fn after_last_map(tables: &Tables, moves: &Moves) -> Stage {
    Stage::Ends { sequence: if moves.is_empty() { 0 } else { tables.state.sequence } }
}

/// True when pages that must be written anew are few beside the blocks and pages that leave their zones, or
/// beside what a zone holds.
fn is_worth_pages(kernel: &Kernel, leaving: usize, written: u64) -> bool {
    let few = kernel.geometry().zone_blocks / WRITTEN_SHARE;
    written <= few.max(WRITTEN_FOR_ONE * leaving as u64)
}

/// Notes these leaves of a family, which live in the zones, if there is room for them.
fn note_shared_pages(
    (kernel, scheme): (&Kernel, &dyn Scheme),
    pages: Vec<Pba>,
    (shared, leaf): (&SharedPlan, u64),
    moves: &mut Moves,
) {
    if pages.is_empty()
        || !has_shared_room(kernel, scheme, moves, (pages.len(), pages.len()), shared)
    {
        return;
    }
    sharers::count(kernel, moves, shared);
    kernel.coverage.add(Mark::PagesMoved, pages.len());
    let mut state = kernel.state.lock();
    for page in pages {
        moves.note_shared_page(shared.family, page, leaf);
        state.moving.count_shared_move();
    }
}
