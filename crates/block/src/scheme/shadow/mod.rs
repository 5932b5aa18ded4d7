//! Shadow-paged tables: checkpoints write all changed pages of maps, references and fingerprints to
//! new places. All schemes but [`ordermerge`](super::ordermerge) share it.

#[cfg(feature = "planted-bugs")]
mod broken;
mod deltas;
mod domain_counts;
mod maps;
mod pages;
mod references;
mod shared;

use std::collections::BTreeMap;

pub(crate) use domain_counts::{DomainCounts, LimitsAtFreeze};
use maps::Changes;
use onefold_core::{Fingerprint, Pba, Result, VolumeId};
pub(crate) use pages::{count_ahead, leaf_of_map, pages_of, pages_of_changes};
pub(crate) use references::unused;
use shared::Maps;
pub(crate) use shared::{load_orphans, share_of, tops};

use crate::{
    coverage::Mark,
    format::catalogue::Volume,
    kernel::{Kernel, Reclaimed, State},
    rules::Rule,
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
    // A quota needs the count of a map, which only those have that can share pages.
    let shares = build.old.state.shares_pages()
        || job.frozen.moment().is_some()
        || volumes.values().any(|volume| volume.quota > 0)
        || build.domains.are_named();
    let (pending, sharing) = if shares {
        let Job { frozen, orphans, moves, .. } = &job;
        let maps = Maps { frozen, volumes, discards, orphans: orphans.clone(), moves };
        let (pending, sharing) = build.shared_maps(maps, scheme, &mut deltas)?;
        (pending, Some(sharing))
    } else {
        let changes = Changes {
            kernel: build.kernel,
            frozen: job.frozen,
            discards: &discards,
            moves: job.moves,
        };
        let pending = build.maps(&changes, volumes, scheme, &mut deltas)?;
        volumes.retain(|id, volume| {
            !volume.name.is_empty() || pending.meeting(*id, 0, u64::MAX).next().is_some()
        });
        (pending, None)
    };
    build.kernel.coverage.add(Mark::DiscardsLeft, pending.iter().count());
    let (references, stored) = build.references(job.frozen, job.deferred, job.moves, deltas)?;
    let fingerprints = build.fingerprints(&stored, job.moves)?;
    Ok(NewRoots {
        references,
        fingerprints,
        pending,
        reclaimed: Reclaimed::default(),
        // Nobody sees what an act made before both superblocks have it.
        superblocks: if job.frozen.moment().is_some() { 2 } else { 1 },
        inexact: build.inexact,
        sharing,
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
pub(crate) fn keep(kernel: &Kernel, state: &State, freed: Vec<Pba>) -> (Vec<Pba>, Vec<Pba>) {
    let sees_sealed = kernel.keeps(Rule::SealedRecordsPin);
    let pinned = state.windows.pinned();
    freed
        .into_iter()
        .partition(|pba| pinned.contains(pba) || state.overlays.pins(*pba, sees_sealed))
}
