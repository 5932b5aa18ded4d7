//! The end of a checkpoint: its tables become current, and what only older ones need is released.

use std::sync::Arc;

use onefold_core::Pba;

use crate::{
    counters::add,
    coverage::Mark,
    kernel::{Kernel, NextCheckpoint, State},
    overlay::Tables,
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
    let old = state.overlays.make_current(next.tables.clone());
    state.windows.acknowledge(next.tables.state.committed);
    scheme.acknowledge(kernel, &mut state);
    state.checkpoint_awaited &= !next.checkpoint_awaited;
    state.releases.begin();
    tell_of_acts(&mut state, &mut next);
    state.domains.made_durable(next.limits);
    if let Some(filter) = next.filter.take() {
        kernel.index.lock().finish_spill(filter);
    }
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

/// Frees the blocks that the new version does not need, but for those that newer records name.
pub(super) fn release(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    deferred: &mut Vec<Pba>,
    next: NextCheckpoint,
) {
    let mut state = kernel.state.lock();
    let (kept, freed) = scheme.keep(kernel, &state, next.freed);
    state.allocator.release(
        &freed,
        &next.zones,
        next.tables.state.committed,
        kept.iter().copied().collect(),
    );
    state.checkpoint_wanted = false;
    kernel.coverage.add(Mark::BlocksKept, kept.len());
    *deferred = kept;
    deferred.extend(next.reclaimed.put_off);
    state.releases.end(next.tables.state.zones, deferred.len());
}
