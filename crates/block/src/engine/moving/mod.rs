//! Moving in pauses: blocks that belong together are copied next to each other, and a checkpoint puts
//! the copies into the maps.
//!
//! [`moving`](crate::moving) says what a move is. A step copies so few blocks that it ends within
//! about 2 ms. It holds the lock of checkpoints, and runs between two of them: so what it chose by the
//! tables is still so when the next checkpoint begins.
//!
//! Of a leaf that maps share, the copies come into all of them. Some blocks stay where they are: blocks
//! that an entry at another address names, since others want them there; those of a family with an
//! orphan, as what hangs below it is not found; blocks of an erased domain, which nobody can read; and
//! what is damaged.

#[cfg(feature = "planted-bugs")]
mod broken;
mod emptying;
mod handing;
mod learning;
mod looking;
mod neighbours;
mod packing;
mod placing;
mod resealing;
mod sharers;

use onefold_core::{BlockRef, Class, Result, Run};

pub(super) use self::{
    handing::read_in_order,
    looking::{has_room, is_alone},
    resealing::{UnderOlder, under_older},
};
use self::{
    handing::{Copied, Placed},
    looking::{Look, has_room_for_both, is_movable, movable, want_checkpoint},
    placing::place,
    sharers::{ALONE_PAGES_MAX, OfLeaf, SHARED_PAGES_MAX, has_shared_room},
};
use crate::{
    counters::add,
    coverage::Mark,
    engine::checkpoint::build::look_for_leftovers,
    format::page::{Form, MapEntry, Table},
    idleness::Idleness,
    kernel::{Checkpointer, Kernel, Mover, Phase, Plan},
    moving::{Most, Moves, Why},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::Scheme,
    sharing::Orphan,
    space::Extent,
};

/// Beside requests a checkpoint moves so much less than in a pause, since clients wait for it: for its room,
/// its acts, and with copy-on-write trees for their own writes.
const BESIDE_SHARE: usize = 8;

/// And no less than the blocks of four leaves, with little memory.
const BESIDE_MIN: usize = 4 * 288;

/// Copies a few blocks, or looks for some to copy. Returns whether there may be more to do now.
pub(crate) fn move_step(kernel: &Kernel, scheme: &dyn Scheme, idleness: Idleness) -> Result<bool> {
    let mut checkpointer = kernel.checkpointing.lock();
    if kernel.settings.pack_after.is_some() && matches!(checkpointer.phase, Phase::Idle) {
        // A store that nobody writes to has no checkpoint that would find out, and is what packing is for. What
        // can't be read stays.
        let _ = look_for_leftovers(kernel, &mut checkpointer);
    }
    let Checkpointer { phase: Phase::Idle, moves, mover, orphans, .. } = &mut *checkpointer else {
        return Ok(false);
    };
    {
        let state = kernel.state.lock();
        if state.fail_stop.reason().is_some() || state.growth.is_some() {
            return Ok(false);
        }
    }
    // While requests flow copies wait for a checkpoint that clients need.
    mover.beside_requests = idleness < Idleness::Pause;
    let most = kernel.settings.moves_max();
    moves.most = if mover.beside_requests {
        let some = (most / BESIDE_SHARE).max(BESIDE_MIN).min(most);
        Most { moves: some, shared_pages: SHARED_PAGES_MAX / BESIDE_SHARE as u64, own: None }
    } else {
        let own = mover.reseals_alone;
        let shared_pages = own.map_or(SHARED_PAGES_MAX, |_| ALONE_PAGES_MAX);
        Most { moves: most, shared_pages, own }
    };
    let (tables, orphans) = (kernel.tables(), orphans.as_deref());
    if mover.beside_requests && mover.plan.why == Why::Packing {
        packing::put_off(mover);
    }
    if mover.plan.sequence != tables.state.sequence {
        if !kernel.keeps(Rule::PlansOutliveCheckpoints)
            && let Some((lba, _)) = mover.plan.blocks.first()
        {
            mover.leaves.look_again((mover.plan.volume, lba.0 / Table::Map.per_leaf()));
            mover.plan.blocks.clear();
        }
        // A checkpoint has changed what it was made by. What can't be read stays.
        if !renew(kernel, &tables, (&mut *mover, orphans), moves).unwrap_or(true) {
            return Ok(true);
        }
        mover.plan.sequence = tables.state.sequence;
    }
    if mover.plan.blocks.is_empty() {
        let mut found = Look::Nothing;
        if mover.reseals_alone.is_none() {
            found = emptying::look((kernel, scheme), &tables, (&mut *mover, orphans), moves);
            if matches!(found, Look::Nothing) && mover.lacks_run != tables.state.sequence {
                found = neighbours::look(kernel, &tables, (&mut *mover, orphans), moves);
            }
        }
        if matches!(found, Look::Nothing) {
            found = resealing::look(kernel, &tables, (&mut *mover, orphans), moves);
        }
        if matches!(found, Look::Nothing) && !mover.beside_requests && mover.reseals_alone.is_none()
        {
            found = packing::look(kernel, &tables, (&mut *mover, orphans), moves);
        }
        match found {
            Look::Chosen(plan) => mover.plan = plan,
            Look::More => return Ok(true),
            Look::Nothing => {
                // What was copied so far becomes true.
                want_checkpoint(kernel, mover.beside_requests, moves);
                return Ok(false);
            }
        }
    }
    let limited = kernel.keeps(Rule::MoveStepsLimited);
    let most = if limited { kernel.settings.limits.moved } else { usize::MAX };
    let mut some = mover.plan.blocks.len().min(most).min(moves.most.moves);
    let has_room_for = |some| {
        // How many packs they need is known when they are compressed; with less than this there is no use.
        let places = match mover.plan.why {
            Why::Packing => packing::packs_of(some),
            _ => some,
        };
        match &mover.plan.shared {
            Some(shared) => has_shared_room(kernel, scheme, moves, (some, places), shared),
            None => has_room_for_both(kernel, scheme, moves, (some, places), 0),
        }
    };
    let mut fits = has_room_for(some);
    // Neighbours come together or not at all.
    while !fits && some > 1 && matches!(mover.plan.why, Why::Resealing | Why::Packing) {
        some /= 2;
        fits = has_room_for(some);
    }
    if !fits {
        kernel.coverage.hit(Mark::MovesFull);
        mover.resealing.hindered.by_room |=
            mover.plan.why == Why::Resealing && moves.is_empty() && !mover.beside_requests;
        if moves.is_empty() && !mover.beside_requests && has_room(kernel, scheme, moves, 1, 0) {
            // There will be none for this one. The leaf stays until it changes, and others have their turn.
            mover.plan.blocks.clear();
            return Ok(true);
        }
        want_checkpoint(kernel, mover.beside_requests, moves);
        let room_may_come = kernel.state.lock().can_reclaim();
        if !room_may_come {
            emptying::give_up(kernel, mover);
        }
        return Ok(!kernel.keeps(Rule::MovesWaitForRoom));
    }
    copy_some((kernel, scheme), &tables, (mover, some), moves)
}

/// Copies the next blocks of a plan. Those that changed since, or can't be read, stay where they are.
fn copy_some(
    (kernel, scheme): (&Kernel, &dyn Scheme),
    tables: &Tables,
    (mover, some): (&mut Mover, usize),
    moves: &mut Moves,
) -> Result<bool> {
    let plan = &mut mover.plan;
    let Some(domain) = tables.volumes.get(&plan.volume).map(|volume| volume.domain) else {
        plan.blocks.clear();
        return Ok(true);
    };
    kernel.state.lock().copied = some;
    let run = plan.blocks.len() as u64;
    let rest = plan.blocks.len().saturating_sub(some);
    let mut next = plan.blocks.split_off(rest);
    next.reverse();
    let (asked, first) = (next.len(), next.first().map(|&(lba, _)| lba));
    let mut copied = handing::copies_of(kernel, domain, &next, (&*plan, &mut mover.handed))?;
    if plan.why == Why::Packing {
        if packing::pack((kernel, scheme), tables, plan, &copied, moves)? {
            return Ok(true);
        }
        kernel.coverage.hit(Mark::MovesFull);
        if moves.is_empty() {
            // There will be no room for these. The leaf stays until it changes, and others have their turn.
            plan.blocks.clear();
            return Ok(true);
        }
        // Packs without a place come with the next checkpoint.
        next.retain(|&(lba, _)| match &plan.shared {
            Some(shared) => !moves.has_shared(shared.family, lba),
            None => !moves.has(plan.volume, lba),
        });
        plan.blocks.extend(next.into_iter().rev());
        want_checkpoint(kernel, mover.beside_requests, moves);
        return Ok(!kernel.keeps(Rule::MovesWaitForRoom));
    }
    let before = moves.len();
    let mut again = Vec::new();
    if plan.why == Why::Resealing {
        let of = (&mut *plan, asked);
        let hindered = &mut mover.resealing.hindered;
        let copied_now = (copied, &mut *moves);
        copied = resealing::to_copy(kernel, tables, domain, of, copied_now, hindered)?;
        copied = resealing::once_each(kernel, plan, copied, moves, &mut again);
    }
    let (mut placed, all_placed) = place(kernel, tables, (plan.why, run), copied)?;
    for (extent, copies) in &mut placed {
        seal(kernel, (domain, plan.why), *extent, copies)?;
    }
    #[cfg(feature = "planted-bugs")]
    let is_late = broken::writes_late(kernel, &placed, moves);
    #[cfg(not(feature = "planted-bugs"))]
    let is_late = false;
    if !is_late {
        write(kernel, &placed)?;
    }
    for (extent, copies) in placed {
        note(kernel, plan, extent, copies, moves);
    }
    if plan.why == Why::Resealing && all_placed {
        // Their first one has its copy by now.
        let later = resealing::once_each(kernel, plan, again, moves, &mut Vec::new());
        debug_assert!(later.is_empty(), "what comes again has a copy");
        if plan.blocks.is_empty() {
            resealing::mark(kernel, domain, plan, moves);
        }
    }
    let has_worked = plan.why == Why::Resealing && moves.len() > before;
    if !all_placed {
        want_checkpoint(kernel, mover.beside_requests, moves);
        plan.blocks.clear();
        let why = plan.why;
        match why {
            // No hole is left: reading what else lives in the zones would be in vain.
            Why::Emptying if moves.is_empty() => emptying::give_up(kernel, mover),
            Why::Resealing => resealing::lacks_room(tables, mover, first, moves),
            Why::Emptying | Why::Neighbours | Why::Packing => {}
        }
    }
    mover.resealing.worked |= has_worked;
    Ok(true)
}

/// Seals copies for their places, in a sealed store.
fn seal(
    kernel: &Kernel,
    (domain, why): (u32, Why),
    extent: Extent,
    copies: &mut [Copied],
) -> Result<()> {
    for (n, copy) in (0..).zip(copies.iter_mut()) {
        if let Some(sealing) = &kernel.identity.sealing {
            let (prefix, at) = (copy.fingerprint.prefix(), extent.at.plus(n));
            let stays_older =
                copy.is_older && why != Why::Resealing && !kernel.keeps(Rule::CopiesByNewestKey);
            let sealed = match stays_older {
                true => sealing.seal_by_older(domain, prefix, at, &mut copy.block),
                false => sealing.seal_raw(domain, prefix, at, &mut copy.block),
            };
            sealed.map_err(|e| kernel.stop(&e))?;
        }
    }
    Ok(())
}

/// Writes sealed copies to their places, all together: holes are short, and a disk takes many writes at
/// once. They are durable with the flush of the checkpoint.
fn write(kernel: &Kernel, placed: &Placed) -> Result<()> {
    let blocks: Vec<BlockRef<'_>> = placed
        .iter()
        .flat_map(|(_, copies)| copies)
        .map(|copy| BlockRef { block: &copy.block, class: Class::Data })
        .collect();
    let (mut runs, mut rest) = (Vec::with_capacity(placed.len()), &blocks[..]);
    for (extent, copies) in placed {
        let (mine, others) = rest.split_at(copies.len());
        runs.push(Run { at: extent.at, blocks: mine });
        rest = others;
    }
    if runs.is_empty() { Ok(()) } else { kernel.disk.write(&runs).map_err(|e| kernel.stop(&e)) }
}

/// The next checkpoint puts these copies into the map.
fn note(kernel: &Kernel, plan: &Plan, extent: Extent, copies: Vec<Copied>, moves: &mut Moves) {
    let volume = plan.volume;
    add(&kernel.counters.data_blocks, copies.len() as u64);
    let counter = match plan.why {
        Why::Neighbours => &kernel.counters.neighbour_blocks,
        Why::Emptying => &kernel.counters.emptied_blocks,
        Why::Resealing => &kernel.counters.resealed_blocks,
        Why::Packing => &kernel.counters.packed_blocks,
    };
    add(counter, copies.len() as u64);
    kernel.coverage.add(Mark::BlocksMoved, copies.len());
    if let Some(shared) = &plan.shared {
        sharers::count(kernel, moves, shared);
    }
    let mut state = kernel.state.lock();
    for (n, copy) in (0..).zip(copies) {
        let to = (extent.at.plus(n), copy.fingerprint);
        if plan.why == Why::Resealing
            && let MapEntry::Block { pba, .. } = copy.from
        {
            let prefix = copy.fingerprint.prefix();
            moves.note_resealed(pba, MapEntry::Block { pba: to.0, form: Form::Raw, prefix });
        }
        match &plan.shared {
            Some(shared) => {
                moves.note_shared(shared.family, copy.lba, copy.from, to);
                state.moving.count_shared_move();
            }
            None => {
                moves.note(volume, copy.lba, copy.from, to);
                state.moving.count_move(volume, copy.lba);
            }
        }
    }
}

/// Leaves of a plan what newer tables leave. False when not all maps that share the leaf are found yet.
///
/// Only the rest is moved: a leaf that was planned anew after each checkpoint would be moved for ever.
fn renew(
    kernel: &Kernel,
    tables: &Tables,
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Result<bool> {
    let mut rest = std::mem::take(&mut mover.plan.blocks);
    if mover.plan.why == Why::Resealing {
        // Its leaf is looked at once more.
        if let Some(&(next, _)) = rest.last() {
            mover.resealing.at = (mover.plan.volume, mover.plan.leaf);
            mover.resealing.lacks_room = Some((mover.plan.volume, next));
        }
        return Ok(true);
    }
    let volume = tables.volumes.get(&mover.plan.volume);
    let (Some((first, _)), Some(volume)) =
        (rest.first(), volume.filter(|volume| is_movable(kernel, volume)))
    else {
        return Ok(true);
    };
    let leaf = first.0 / Table::Map.per_leaf();
    let found = kernel.pages.leaf(Table::Map, volume.family(), &volume.map, leaf)?;
    let Some((pointer, page)) = found else { return Ok(true) };
    rest.retain(|&(lba, entry)| MapEntry::get(&page, lba.0 % Table::Map.per_leaf()) == Some(entry));
    if is_alone(kernel, tables, volume, leaf)? {
        mover.plan.shared = None;
        mover.plan.blocks = movable(kernel, tables, volume, rest, moves)?;
        return Ok(true);
    }
    match sharers::of_leaf(kernel, tables, (&mut *mover, orphans), volume, leaf)? {
        OfLeaf::More => {
            mover.plan.blocks = rest;
            return Ok(false);
        }
        OfLeaf::Stays(_) => {}
        OfLeaf::Found(place, shared) => {
            let mine = (volume, pointer.address, mover.plan.why);
            mover.plan.blocks = sharers::movable(kernel, tables, mine, rest, (&place, moves))?;
            mover.plan.shared = Some(shared);
        }
    }
    Ok(true)
}
