//! The bytes that a collection frees, would free, and leaves, and why.
//!
//! A survey counts as a collection does, and writes nothing. Of a container that has live chunks
//! the dead ones are taken to be of its mean size.

use std::sync::Arc;

use onefold_core::Result;

use super::{collection::Options, dead_chunks::DeadChunks, erased_domains::containers_of_erased};
use crate::{
    container::{Pace, Rewriter},
    format::record::Record,
    operations_log::{Archive, EpochGuard},
    tables::Tables,
    tree::{Expiry, expiry},
};

/// Where the bytes are that nothing needs. All bytes are of space on one copy, without parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Dead chunks: no stream, volume or snapshot names them, those in the trash included.
    pub dead_bytes: u64,
    /// Of them, in containers that have no other chunks: freed without a write.
    pub droppable_bytes: u64,
    /// Of them, in containers that are less than half full: freed when what lives there is copied.
    pub mergeable_bytes: u64,
    /// Bytes of live chunks that merging these containers writes.
    pub merge_writes_bytes: u64,
    /// Space that no record names any more, and that waits for those who may still read it.
    pub waiting_bytes: u64,
    /// Containers of puts that run or were killed and that are kept whole for a repeated put. Chunks
    /// that something names count too.
    pub unfinished_bytes: u64,
    /// Containers of domains that were erased.
    pub erased_bytes: u64,
    /// Chunks that only forgotten snapshots name.
    pub trash: Trash,
}

/// Forgotten snapshots that are kept for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trash {
    /// How many.
    pub snapshots: u64,
    /// Bytes of chunks that only they name.
    pub bytes: u64,
    /// When the first of them goes, and the last, in seconds since 1970. Those that no collection
    /// saw yet are taken as seen now.
    pub until: (u64, u64),
}

/// Finds out what a collection with these options would free now, and what it would leave. Snapshots
/// whose time in the trash is over count as gone.
///
/// The counts are gone through once, and once more when something is in the trash; of what came and
/// went since they were made, the recipes and nodes are read. Memory as for a collection.
///
/// # Errors
/// Errors of the system, and of damaged recipes.
pub fn survey(archive: &Arc<Archive>, options: Options) -> Result<Survey> {
    // Counted chunks stay where they are, also beside a collection.
    let guard = EpochGuard::enter(archive)?;
    let Expiry { expired, mut kept, .. } =
        expiry(&guard.tables, options.now, options.trash, options.keep_partial);
    let tables = without(&guard.tables, expired)?;
    let mut found = count(archive, &tables, options)?;
    found.waiting_bytes = tables.waiting_to_be_freed.keys().map(|place| tables.taken(place)).sum();
    for (id, at) in &tables.unfinished {
        if options.spare_unfinished(*at)
            && let Some(container) = tables.containers.get(id)?
        {
            found.unfinished_bytes += tables.taken(&container.stored.place);
        }
    }
    for id in containers_of_erased(&tables)?.0.into_values().flatten() {
        let container = tables.containers.get(&id)?;
        found.erased_bytes +=
            container.map_or(0, |container| tables.taken(&container.stored.place));
    }
    kept.sort_unstable_by_key(|(until, _)| *until);
    if let (Some(first), Some(last)) = (kept.first(), kept.last()) {
        found.trash.until = (first.0, last.0);
        found.trash.snapshots = kept.len() as u64;
        let emptied = without(&tables, kept.into_iter().map(|(_, id)| id).collect())?;
        let then = count(archive, &emptied, options)?.dead_bytes;
        found.trash.bytes = then.saturating_sub(found.dead_bytes);
    }
    Ok(found)
}

/// The tables as they would be without some snapshots.
fn without(tables: &Tables, ids: Vec<crate::format::backup::SnapshotId>) -> Result<Tables> {
    let mut tables = Tables::clone(tables);
    if !ids.is_empty() {
        tables.apply(tables.sequence, vec![Record::Expired { ids }])?;
    }
    Ok(tables)
}

fn count(archive: &Arc<Archive>, tables: &Tables, options: Options) -> Result<Survey> {
    let mut found = DeadChunks::new(archive, tables, options, Pace::default());
    Rewriter::new(archive).counts(tables, &mut |id, counts| found.look(id, counts))?;
    let mut survey = Survey::default();
    for (id, (dead, _)) in found.dead {
        let Some(container) = tables.containers.get(&id)?.filter(|_| dead > 0) else { continue };
        let all = u64::from(container.stored.chunks).max(1);
        let (taken, dead) = (tables.taken(&container.stored.place), u64::from(dead).min(all));
        let dead_bytes = taken.saturating_mul(dead) / all;
        survey.dead_bytes += dead_bytes;
        if dead == all {
            survey.droppable_bytes += dead_bytes;
        } else if (all - dead) * 2 < all {
            survey.mergeable_bytes += dead_bytes;
            survey.merge_writes_bytes += taken - dead_bytes;
        }
    }
    Ok(survey)
}
