//! Space and limits: a change is admitted only when everything that follows from it has room.
//!
//! An admitted block needs a physical block, a share of a carrier, and the table pages that the
//! next checkpoint writes because of it. A fixed reserve is left untouched by writes, so that
//! trims, duplicates, checkpoints and recovery always have room.

use onefold_core::{Error, Kind, Result};

use super::{
    domain_room::kept,
    kept_room::{blocks_kept, ranges_kept},
};
use crate::{
    coverage::Mark,
    kernel::{Kernel, State},
    rules::Rule,
    scheme::{
        room::{pages_ahead, reserve, to_place},
        verbs::Scheme,
    },
};

/// The purpose for which a change is admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// New blocks.
    Data,
    /// Blocks that a tenant of several wrote, new or not: as many as these are left to nobody.
    Shared { withheld: u64 },
    /// Blocks of a domain that has stored less than its reserve: they leave alone what is kept for others.
    Reserved { domain: u32 },
    /// Duplicates and new volumes, which may make tables grow: half of the reserve is for them.
    Known,
    /// Trims and other changes of clients that make room: all of the reserve is for them.
    FreesSpace,
    /// Deletions, which free the most: they wait for no act either.
    Relief,
}

/// How full the structures with limits are, between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Published carriers that wait for a checkpoint.
    pub carriers: u64,
    /// Windows that are closed and not yet published.
    pub closed_windows: usize,
    /// Ranges of the open window.
    pub ranges: usize,
    /// Snapshots of the volume that has most of them, those included that acts will make.
    pub snapshots: usize,
    /// Moments that no checkpoint has made durable.
    pub moments: usize,
    /// Pieces of deleted maps that the last checkpoint worked through.
    pub pieces: u64,
    /// Blocks that the last step of moving was to copy.
    pub copied: usize,
    /// Blocks that the last step of a checkpoint was to release.
    pub released: usize,
}

/// Whether a change may go on.
pub(crate) enum Admission {
    Granted,
    /// Steps must be run first.
    Wait,
    /// Nothing can be reclaimed: the store is full.
    Full,
}

/// Tells how full the structures with limits are.
pub(crate) fn filled(kernel: &Kernel) -> Filled {
    let state = kernel.state.lock();
    let volumes = state.volumes.iter().map(|(id, _)| *id);
    Filled {
        carriers: state.overlays.carriers(),
        closed_windows: state.windows.closed(),
        ranges: state.windows.open().ranges.len(),
        snapshots: volumes.map(|id| state.volumes.snapshots_ahead(id)).max().unwrap_or(0),
        moments: state.moments_ahead().count(),
        pieces: state.pieces,
        copied: state.copied,
        released: state.released,
    }
}

/// How many more ranges may be gathered before a checkpoint: the table of discards has room for all
/// of them, and for older ranges that they cut. Each range adds itself, and may cut an older one in
/// two.
pub(crate) fn ranges_left(kernel: &Kernel, scheme: &dyn Scheme, state: &State) -> u64 {
    let ranges = scheme.count_ahead(state).and_then(|ahead| ahead.ranges);
    let Some(ranges) = ranges.filter(|_| kernel.keeps(Rule::DiscardsLimited)) else {
        return u64::MAX;
    };
    kernel.settings.limits.discards.saturating_sub(ranges) / 2
}

/// As [`ranges_left`], for clients: none while an act waits for them.
pub(crate) fn client_ranges_left(kernel: &Kernel, scheme: &dyn Scheme, state: &mut State) -> u64 {
    if ranges_kept(kernel, state) { 0 } else { ranges_left(kernel, scheme, state) }
}

/// True when the table of discards may soon have no room.
pub(crate) fn discards_crowded(kernel: &Kernel, scheme: &dyn Scheme, state: &State) -> bool {
    let ranges = scheme.count_ahead(state).and_then(|ahead| ahead.ranges);
    ranges.is_some_and(|ranges| ranges > kernel.settings.limits.discards / 4 * 3)
}

/// Admits one range.
pub(crate) fn admit_range(kernel: &Kernel, scheme: &dyn Scheme, state: &mut State) -> Result<()> {
    if ranges_left(kernel, scheme, state) > 0 {
        Ok(())
    } else {
        Err(wait_for_ranges(kernel, state))
    }
}

/// Admits one range of a client.
pub(crate) fn admit_client_range(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &mut State,
) -> Result<()> {
    if client_ranges_left(kernel, scheme, state) > 0 {
        Ok(())
    } else {
        Err(wait_for_ranges(kernel, state))
    }
}

/// The table of discards may have no room for a range before the next checkpoint, which works
/// through some of them.
pub(crate) fn wait_for_ranges(kernel: &Kernel, state: &mut State) -> Error {
    kernel.coverage.hit(Mark::RangesWait);
    state.checkpoint_wanted = true;
    wait()
}

/// Decides whether a change of `blocks` new blocks may be gathered. `Wait` also asks for what
/// makes the wait end.
pub(crate) fn admit(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    state: &mut State,
    blocks: u64,
    purpose: Purpose,
) -> Result<Admission> {
    state.check_running()?;
    let gathered = state.windows.closed_slots() + state.windows.open().slots();
    if gathered as u64 + blocks > kernel.settings.unflushed_blocks as u64 && gathered > 0 {
        return Ok(Admission::Wait);
    }
    if state.windows.closed() >= kernel.settings.limits.closed_windows
        && kernel.keeps(Rule::ClosedWindowsLimited)
    {
        kernel.coverage.hit(Mark::ClosedWindowsFull);
        return Ok(Admission::Wait);
    }
    let carriers_full = state.overlays.carriers() >= kernel.settings.limits.carriers
        && kernel.keeps(Rule::CarriersLimited);
    kernel.coverage.add(Mark::CarriersFull, usize::from(carriers_full));
    if (carriers_full || state.uncommitted_records() + blocks > kernel.settings.records_max)
        && !state.overlays.is_empty()
    {
        state.checkpoint_wanted = true;
        return Ok(Admission::Wait);
    }
    let to_place = to_place(kernel, state, blocks);
    let reserve = reserve(&kernel.geometry());
    let margin = match purpose {
        Purpose::Data => reserve + kept(kernel, state, None),
        Purpose::Shared { withheld } => reserve + withheld + kept(kernel, state, None),
        Purpose::Known => reserve / 2 + kept(kernel, state, None),
        Purpose::Reserved { domain } => reserve / 2 + kept(kernel, state, Some(domain)),
        Purpose::FreesSpace | Purpose::Relief => 0,
    };
    let promised = to_place + pages_ahead(kernel, scheme, state, blocks + 1);
    let needed = promised + margin;
    let zones = kernel.zones(state.releases.zone_table());
    if state.allocator.free() < needed {
        state.allocator.grow_to(needed, &zones);
    }
    // Blocks must also be within reach of the zone list: on an aged store a zone may offer only
    // a few.
    if state.allocator.free() < needed || state.allocator.data.ready_blocks() < to_place {
        state.allocator.open_ahead(to_place, &zones)?;
    }
    if state.allocator.free() < needed || state.allocator.data.ready_blocks() < to_place {
        state.allocator.rewind();
        state.allocator.open_ahead(to_place, &zones)?;
    }
    if state.allocator.free() >= needed && state.allocator.data.ready_blocks() >= to_place {
        let kept = if purpose == Purpose::Relief { 0 } else { blocks_kept(kernel, state) };
        if kept == 0 || state.allocator.free() >= promised + kept {
            return Ok(Admission::Granted);
        }
        kernel.coverage.hit(Mark::WaitsForAct);
        state.checkpoint_wanted = true;
        return Ok(Admission::Wait);
    }
    Ok(if state.can_reclaim() {
        state.checkpoint_wanted = true;
        Admission::Wait
    } else {
        Admission::Full
    })
}

/// The store is full.
pub(crate) fn full() -> Error {
    Error::new(Kind::NoSpace, "the store is full; trim or delete data, or give it more space")
}

/// Steps must be run first.
pub(crate) fn wait() -> Error {
    Error::new(Kind::Busy, "the store waits for its disk")
}
