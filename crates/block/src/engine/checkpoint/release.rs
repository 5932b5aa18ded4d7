//! The end of a checkpoint: its tables become current, and what only older ones need is released.

use std::sync::Arc;

use onefold_core::Pba;

use crate::{
    counters::add,
    coverage::Mark,
    kernel::{Kernel, NextCheckpoint, State},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::Scheme,
};

/// The superblock is durable: reads go to the new version.
pub(super) fn make_current(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    mut next: Box<NextCheckpoint>,
) -> (Box<NextCheckpoint>, Option<Arc<Tables>>) {
    add(&kernel.counters.checkpoints, 1);
    let mut state = kernel.state.lock();
    let (old, frozen) = state.overlays.make_current(next.tables.clone());
    state.windows.acknowledge(next.tables.state.committed);
    scheme.acknowledge(kernel, &mut state);
    state.checkpoint_awaited &= !next.checkpoint_awaited;
    state.releases.begin();
    tell_of_acts(&mut state, &mut next);
    state.domains.made_durable(next.limits);
    if let Some(filter) = next.filter.take() {
        kernel.index.lock().finish_spill(filter);
    }
    drop(state);
    drop(frozen);
    (next, Some(old))
}

/// The acts of the moment are durable: clients see what they made.
pub(super) fn tell_of_acts(state: &mut State, next: &mut NextCheckpoint) {
    let Some(moment) = next.moment.take() else { return };
    for act in &moment.acts {
        state.volumes.performed(act, &next.tables.volumes);
    }
    state.moments.1 = moment.number;
}

/// So many blocks are released for each zone that becomes known anew with them.
const BLOCKS_A_ZONE: usize = 16;

/// Nobody reads the version before: the blocks that the new one does not need become free, by steps of
/// [`release_some`]. Whoever reads or writes needs the same lock, and there may be more than a million of them.
pub(super) fn begin_release(kernel: &Kernel, deferred: &mut Vec<Pba>, next: &mut NextCheckpoint) {
    let mut freed = std::mem::take(&mut next.freed);
    freed.sort_unstable();
    deferred.clear();
    let mut state = kernel.state.lock();
    #[cfg(feature = "planted-bugs")]
    if !kernel.keeps(crate::rules::Rule::ReleasingKept) {
        state.allocator.overlook_releasing();
    }
    state.allocator.begin_release(freed);
    state.releases.start(next.tables.state.zones);
}

/// Frees some blocks, but for those that newer records name. Returns whether it freed the last ones.
pub(super) fn release_some(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    deferred: &mut Vec<Pba>,
    next: &mut NextCheckpoint,
) -> bool {
    let limited = kernel.keeps(Rule::ReleasesLimited);
    let most = if limited { kernel.settings.limits.released } else { usize::MAX };
    let from = next.zones.len().saturating_sub((most / BLOCKS_A_ZONE).max(1));
    let geometry = kernel.geometry();
    let least = next.zones.get(from).map_or(Pba(0), |(zone, _)| geometry.start_of(*zone));
    let mut state = kernel.state.lock();
    let freed = state.allocator.next_released(least, most);
    state.released = freed.len();
    let (kept, freed) = match freed.len() {
        0 => (Vec::new(), freed),
        _ => scheme.keep(kernel, &state, freed),
    };
    // A zone is known anew when all its blocks are released.
    let all = state.allocator.is_released_from(least);
    let zones = if all { next.zones.split_off(from) } else { Vec::new() };
    state.allocator.release_some(&freed, &kept, &zones);
    kernel.coverage.add(Mark::BlocksKept, kept.len());
    deferred.extend(kept);
    let is_last = next.zones.is_empty() && state.allocator.is_released_from(Pba(0));
    kernel.coverage.add(Mark::ReleasedInPart, usize::from(!is_last));
    if is_last {
        state.allocator.end_release(next.tables.state.committed);
        state.checkpoint_wanted = false;
        deferred.append(&mut next.reclaimed.put_off);
        state.releases.end(deferred.len());
    }
    is_last
}
