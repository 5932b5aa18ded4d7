//! Growth: a store gets more zones while it is used.
//!
//! Room is taken from the host first. The rest is an act of superblocks, between two checkpoints:
//! superblocks that say the same as before, and more zones. Zones that were never used are known by
//! their number, so nothing else is written, unless the zone list must move because a quarter of
//! the zones wants more pages of it:
//!
//! 1. No page of the list is written any more, and none is on its way.
//! 2. Both copies of each page go to never used zones of the new room; *flush*.
//! 3. The superblock, with the new sizes and the place of the list; *flush*.
//! 4. Its twin; *flush*. From here on the store is larger, and pages of the list go to their new
//!    places.
//!
//! Without a move, 3 and 4 alone. Windows wait for these flushes when they need a new zone, and for
//! no checkpoint.
//!
//! *Invariant:* each superblock that may be chosen names a list that has every zone with carriers
//! that its tables lack: no zone is listed between 1 and 4, and no new one before 4.
//!
//! | crash after | what is found |
//! |---|---|
//! | room was taken; 1; 2 | the store as it was; room without a use, which the next growth takes |
//! | 3 | either superblock, and both lists say the same; opening writes the other superblock anew before anything else |
//! | 4 | the larger store |

use onefold_core::{Error, Kind, Pba, Result, Run};

use super::admission::wait;
use crate::{
    counters::add,
    coverage::Mark,
    format::{
        geometry::Geometry,
        superblock::{self, MOVED_LIST},
    },
    kernel::{Kernel, write_superblock_of},
    overlay::Tables,
    rules::Rule,
    scheme::{
        verbs::Scheme,
        windows::{list_refs, list_runs},
    },
    space::zone_list::DuePage,
};

/// Asks for `blocks` blocks, rounded down to whole zones; without, for all that the host gives
/// already. Gives the number that [`grown`] has when the store is larger.
pub(crate) fn ask(kernel: &Kernel, scheme: &dyn Scheme, blocks: Option<u64>) -> Result<u64> {
    let now = kernel.geometry();
    let state = kernel.state.lock();
    state.check_running()?;
    if scheme.count_ahead(&state).is_none() {
        return Err(Error::new(Kind::Unsupported, "a store without checkpoints does not grow"));
    }
    if state.growth.is_some() {
        return Err(wait());
    }
    drop(state);
    let wanted = blocks.map(|blocks| now.grown(blocks)).transpose()?;
    let has = kernel.disk.extend(
        Pba(now.blocks()),
        wanted.map(|wanted| wanted.blocks()),
        !kernel.fixed.grow,
    )?;
    let wanted = match wanted {
        Some(wanted) => wanted,
        // A device may be larger than the largest store.
        None => now.grown(has.min(Pba::MAX.0))?,
    };
    if kernel.fixed.grow && wanted.moved_list != now.moved_list {
        let zones = wanted.list_zones();
        let blocks = (zones.end - zones.start) * wanted.zone_blocks;
        kernel.disk.allocate(Pba(wanted.moved_list), blocks)?;
    }
    let mut state = kernel.state.lock();
    if state.growth.is_some() || kernel.geometry() != now {
        return Err(wait());
    }
    if wanted != now {
        state.growth = Some(wanted);
        state.growths.0 += 1;
    }
    Ok(state.growths.0)
}

/// The number of the last growth that is durable.
pub(crate) fn grown(kernel: &Kernel) -> u64 {
    kernel.state.lock().growths.1
}

/// Performs the growth that was asked for, if one was. The caller is between two checkpoints.
pub(super) fn perform(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let (before, Some(geometry)) = (kernel.geometry(), kernel.state.lock().growth) else {
        return Ok(false);
    };
    let moves = geometry.moved_list != before.moved_list;
    if moves {
        copy_list(kernel, scheme, &geometry)?;
    }
    let mut named = geometry;
    if !kernel.keeps(Rule::ListNamedWhereItIs) {
        named.moved_list = before.moved_list;
    }
    let superblock = larger(kernel, &named);
    for sequence_before in [1, 0] {
        write_superblock_of(kernel, named, &superblock, sequence_before)
            .map_err(|e| kernel.stop(&e))?;
        flush(kernel, scheme)?;
    }
    drop(superblock);
    let tables = larger(kernel, &geometry);
    kernel.coverage.hit(Mark::StoreGrew);
    kernel.coverage.add(Mark::ListMoved, usize::from(moves));
    kernel.coverage.add(Mark::ListMovedAgain, usize::from(moves && before.moved_list != 0));
    let mut state = kernel.state.lock();
    state.overlays.named_anew(tables);
    state.allocator.grow(geometry);
    *kernel.sizes.lock() = geometry;
    #[cfg(feature = "planted-bugs")]
    super::broken::forget_move(kernel, &mut state, before);
    state.growth = None;
    state.growths.1 = state.growths.0;
    Ok(true)
}

/// The tables as they are, in a superblock of a store with these sizes.
fn larger(kernel: &Kernel, geometry: &Geometry) -> Tables {
    let tables = kernel.tables();
    let moved = if geometry.moved_list == 0 { 0 } else { MOVED_LIST };
    let state = superblock::State {
        sequence: tables.state.sequence + 2,
        features: tables.state.features | moved,
        clean: false,
        ..tables.state.clone()
    };
    Tables {
        state,
        volumes: tables.volumes.clone(),
        discards: tables.discards.clone(),
        places: tables.places.clone(),
        before: Some(tables),
    }
}

/// Steps 1 and 2.
fn copy_list(kernel: &Kernel, scheme: &dyn Scheme, geometry: &Geometry) -> Result<()> {
    while !kernel.state.lock().allocator.list.hold_still() {
        flush(kernel, scheme)?;
    }
    let copies: Vec<DuePage> = {
        let mut state = kernel.state.lock();
        state.allocator.list.copies(geometry, &kernel.identity)?
    };
    let refs = list_refs(&copies);
    let runs: Vec<Run<'_>> = list_runs(&copies, &refs).collect();
    kernel.disk.write(&runs).map_err(|e| kernel.stop(&e))?;
    add(&kernel.counters.list_blocks, copies.len() as u64);
    flush(kernel, scheme)
}

/// One flush of all that was written, which windows share.
fn flush(kernel: &Kernel, scheme: &dyn Scheme) -> Result<()> {
    let note = kernel.state.lock().flushes.want();
    loop {
        scheme.make_durable(kernel)?;
        let mut state = kernel.state.lock();
        state.check_running()?;
        if state.flushes.has_followed(note) {
            return Ok(());
        }
    }
}
