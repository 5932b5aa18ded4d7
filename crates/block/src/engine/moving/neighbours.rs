//! Which blocks should be neighbours: those of a leaf that lies in many runs.

use std::time::Duration;

use onefold_core::{Result, VolumeId};

use super::{
    looking::{Look, blocks_a_run, is_alone, is_movable, movable, next_movable, part_of},
    sharers::{self, OfLeaf},
};
use crate::{
    format::page::Table,
    kernel::{Kernel, Mover, Plan, SharedPlan},
    moving::{HandedLeaf, Leaves, Moves, Why, comes_together, scattered},
    overlay::Tables,
    sharing::Orphan,
};

/// Leaves that one step looks at.
const LEAVES_A_STEP: usize = 16;

/// Looks at a few leaves for one that lies in many runs: of those that clients changed the ones that
/// have been left alone for long enough, then those of a walk through all maps.
pub(super) fn look(
    kernel: &Kernel,
    tables: &Tables,
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Look {
    // What a reader had found of it is moved.
    let goes_on = mover.goes_on.map(|(volume, lba)| (volume, lba.0 / Table::Map.per_leaf()));
    mover
        .handed
        .take_if(|handed| handed.is_planned && goes_on != Some((handed.volume, handed.leaf)));
    for _ in 0..LEAVES_A_STEP {
        let (volume, leaf) = match next_leaf(kernel, tables, mover) {
            Next::Leaf(volume, leaf) => (volume, leaf),
            Next::EndOfMap => continue,
            Next::Nothing => return Look::Nothing,
        };
        // It comes back only when there is something to be done with it.
        let handed = mover.handed.take();
        // A page that can't be read is left to `check`.
        let at = (volume, leaf);
        let Ok(planned) = plan(kernel, tables, at, (&mut *mover, orphans), moves) else {
            return Look::More;
        };
        let plan = match planned {
            Planned::Stays => continue,
            Planned::StaysForOthers => return Look::More,
            Planned::Later => {
                mover.leaves.look_again(at);
                mover.handed = handed;
                return Look::More;
            }
            Planned::These(plan) => plan,
        };
        mover.handed = handed.map(HandedLeaf::planned);
        if plan.blocks.is_empty() {
            return Look::More;
        }
        if kernel.state.lock().allocator.has_run(plan.blocks.len() as u64) {
            return Look::Chosen(plan);
        }
        // Its turn comes when emptying has made room, and after others that may need less.
        mover.leaves.look_later(at, kernel.clock.now());
        mover.lacks_run = tables.state.sequence;
        return Look::Nothing;
    }
    Look::More
}

/// The next thing to look at.
pub(super) enum Next {
    Leaf(VolumeId, u64),
    /// A map has no more leaves.
    EndOfMap,
    Nothing,
}

/// The next leaf to look at. What a reader handed over is kept only if it is of this leaf.
fn next_leaf(kernel: &Kernel, tables: &Tables, mover: &mut Mover) -> Next {
    let (now, settled) = (kernel.clock.now(), kernel.settings.settled_after);
    if mover.handed.is_none() {
        mover.handed = kernel.handed.lock().next();
    }
    if let Some(HandedLeaf { volume, leaf, .. }) = mover.handed {
        if mover.leaves.take((volume, leaf), now, settled) {
            return Next::Leaf(volume, leaf);
        }
        mover.handed = None;
    }
    next_settled(kernel, tables, &mut mover.leaves, settled)
}

/// The next leaf that nobody changed for so long: of those that changed, then of a walk.
pub(super) fn next_settled(
    kernel: &Kernel,
    tables: &Tables,
    leaves: &mut Leaves,
    settled: Duration,
) -> Next {
    let now = kernel.clock.now();
    if let Some((volume, leaf)) = leaves.take_settled(now, settled) {
        return Next::Leaf(volume, leaf);
    }
    let Some((at, from)) = leaves.walk(now, settled) else { return Next::Nothing };
    let Some((&id, volume)) = tables.volumes.range(at..).next() else {
        leaves.walk_on(None);
        return Next::EndOfMap;
    };
    let from = if id == at { from } else { 0 };
    match next_movable(kernel, volume, from).ok().flatten() {
        Some(leaf) => {
            leaves.walk_on(Some((id, leaf + 1)));
            Next::Leaf(id, leaf)
        }
        None => {
            leaves.walk_on(id.0.checked_add(1).map(|next| (VolumeId(next), 0)));
            Next::EndOfMap
        }
    }
}

/// The verdict on a leaf.
enum Planned {
    /// It stays as it is.
    Stays,
    /// The same, since maps share it. Finding that out may have read all leaves at its place, so that it is
    /// enough for a step.
    StaysForOthers,
    /// Not all maps that share it are found yet.
    Later,
    /// These blocks are moved: none when that is not worth it.
    These(Plan),
}

/// The blocks of a leaf that are to be moved together, or of a part of it. Finding that out may read a page
/// of references for each block, so a step does it once.
fn plan(
    kernel: &Kernel,
    tables: &Tables,
    (id, leaf): (VolumeId, u64),
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Result<Planned> {
    let Some(volume) = tables.volumes.get(&id).filter(|volume| is_movable(kernel, volume)) else {
        return Ok(Planned::Stays);
    };
    let found = kernel.pages.leaf(Table::Map, volume.family(), &volume.map, leaf)?;
    let Some((pointer, page)) = found else { return Ok(Planned::Stays) };
    let blocks_a_run = blocks_a_run(kernel);
    let mut short = scattered(leaf, &page, blocks_a_run);
    let goes_on = part_of(mover.goes_on, id, &mut short);
    let (Some(&(first, _)), Some(&(last, _))) = (short.first(), short.last()) else {
        return Ok(Planned::Stays);
    };
    let sharers = if is_alone(kernel, tables, volume, leaf)? {
        None
    } else {
        match sharers::of_leaf(kernel, tables, (&mut *mover, orphans), volume, leaf)? {
            OfLeaf::More => return Ok(Planned::Later),
            OfLeaf::Stays(_) => return Ok(Planned::StaysForOthers),
            OfLeaf::Found(place, shared) => Some((place, shared)),
        }
    };
    mover.goes_on = goes_on;
    if goes_on.is_some() {
        mover.leaves.look_again((id, leaf));
    }
    let why = Why::Neighbours;
    let all = short.len();
    let mut blocks = match &sharers {
        None => movable(kernel, tables, volume, short, moves)?,
        Some((place, _)) => {
            let mine = (volume, pointer.address, why);
            sharers::movable(kernel, tables, mine, short, (place, moves))?
        }
    };
    let is_worth_it = blocks.len() * 2 > all
        && sharers.as_ref().is_none_or(|(place, shared)| {
            blocks.len() >= place.len() && is_worth_pages(blocks.len(), moves, shared)
        })
        && comes_together((leaf, &page), (first, last), &blocks);
    if !is_worth_it {
        blocks.clear();
    }
    let shared = sharers.map(|(_, shared)| shared);
    blocks.reverse();
    let sequence = tables.state.sequence;
    Ok(Planned::These(Plan { volume: id, sequence, why, blocks, shared, ..Plan::default() }))
}

/// True when no more than two pages of maps are written for each block.
pub(super) fn is_worth_pages(blocks: usize, moves: &Moves, shared: &SharedPlan) -> bool {
    moves.uncounted(shared.family, &shared.places) <= 2 * blocks as u64
}
