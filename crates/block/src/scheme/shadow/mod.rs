//! Shadow-paged tables: checkpoints write all changed pages of maps, references and fingerprints to
//! new places. All schemes but [`ordermerge`](super::ordermerge) share it.

mod deltas;
mod maps;
mod pages;
mod references;

use std::collections::BTreeMap;

use onefold_core::{Fingerprint, Pba, Result, VolumeId};
pub(crate) use pages::{count_ahead, leaf_of_map, pages_of, pages_of_changes};

use crate::{
    coverage::Mark,
    format::catalogue::Volume,
    kernel::{Reclaimed, State},
    scheme::verbs::{CountRule, Job, NewRoots, Scheme},
    table_build::TableBuild,
};

/// Writes maps, references and fingerprints.
pub(crate) fn checkpoint(
    scheme: &dyn Scheme,
    build: &mut TableBuild<'_>,
    volumes: &mut BTreeMap<VolumeId, Volume>,
    job: Job<'_>,
) -> Result<NewRoots> {
    let mut discards = build.old.discards.clone();
    for (volume, start, span) in job.frozen.ranges().iter() {
        discards.insert(volume, start, *span);
    }
    // For each change the old block and the new one, and each new block once more.
    let mut deltas = Vec::with_capacity(job.frozen.changed() * 3);
    let pending = build.maps(job.frozen, volumes, &discards, scheme, &mut deltas)?;
    build.kernel.coverage.add(Mark::DiscardsLeft, pending.iter().count());
    volumes.retain(|id, volume| {
        !volume.name.is_empty() || pending.meeting(*id, 0, u64::MAX).next().is_some()
    });
    let (references, stored) = build.references(job.frozen, job.deferred, deltas)?;
    let fingerprints = build.fingerprints(&stored)?;
    Ok(NewRoots {
        references,
        fingerprints,
        pending,
        reclaimed: Reclaimed::default(),
        superblocks: 1,
        inexact: build.old.state.inexact,
    })
}

/// Counts are links, and every fingerprint is written with its block.
pub(crate) struct LinksAlone;

impl CountRule for LinksAlone {
    fn links(&self, references: u32) -> u32 {
        references
    }

    fn is_known(&self, _: &Fingerprint) -> bool {
        true
    }
}

/// Parts blocks that a checkpoint found free: those that newer records name, and the others.
pub(crate) fn keep(state: &State, freed: Vec<Pba>) -> (Vec<Pba>, Vec<Pba>) {
    let pinned = state.windows.pinned();
    freed.into_iter().partition(|pba| pinned.contains(pba) || state.overlays.active().pins(*pba))
}
