//! Snapshots forgotten, undeleted, and gone for good.

use onefold_core::{Error, Kind, Result};

use crate::{
    format::{
        backup::{Completeness, SnapshotId},
        record::Record,
    },
    operations_log::Archive,
    rules::Rule,
    tables::Tables,
};

/// Takes snapshots out of lists; durable on return. They stay counted until a collection finds
/// that the time of the trash is over. Those that were forgotten before stay so.
///
/// # Errors
/// `NotFound`, and as for every change.
pub fn forget(archive: &Archive, ids: &[SnapshotId], now: u64) -> Result<()> {
    change_snapshots(archive, ids, |ids| Record::Forgotten { ids, at: now })
}

/// Puts forgotten snapshots into lists again; durable on return.
///
/// # Errors
/// `NotFound`: a collection has removed it, or there never was one. As for every change.
pub fn undelete(archive: &Archive, ids: &[SnapshotId]) -> Result<()> {
    match change_snapshots(archive, ids, |ids| Record::Undeleted { ids }) {
        Err(error) if error.kind() == Kind::NotFound && !archive.keeps(Rule::GoneNotUndeleted) => {
            Ok(())
        }
        done => done,
    }
}

/// Takes note that a collection saw forgotten snapshots, and checkpoints, and removes those whose
/// time of `trash` seconds, or for checkpoints `keep_partial`, is over by the clock of collections:
/// no clock of another process counts. Gives how many snapshots are gone.
///
/// # Errors
/// As for every change.
pub(crate) fn expire(archive: &Archive, now: u64, trash: u64, keep_partial: u64) -> Result<u64> {
    let mut gone = 0;
    let by_collection = archive.keeps(Rule::TrashFromCollection);
    archive.commit(true, |tables| {
        let found = judge(tables, now, trash, keep_partial, by_collection);
        let Expiry { seen, expired, .. } = found;
        let is_snapshot = |id: &&SnapshotId| {
            tables.snapshots.get(**id).is_ok_and(|one| one.completeness != Completeness::Checkpoint)
        };
        gone = expired.iter().filter(is_snapshot).count() as u64;
        let seen = (!seen.is_empty()).then_some(Record::ForgottenSeen { ids: seen, at: now });
        let expired = (!expired.is_empty()).then_some(Record::Expired { ids: expired });
        Ok(seen.into_iter().chain(expired).collect())
    })?;
    Ok(gone)
}

/// What a collection does with forgotten snapshots and checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// Those that it sees for the first time, and keeps.
    seen: Vec<SnapshotId>,
    /// Those whose time is over.
    pub(crate) expired: Vec<SnapshotId>,
    /// Snapshots that it keeps, and until when.
    pub(crate) kept: Vec<(u64, SnapshotId)>,
}

/// Finds out what a collection would do at `now`.
pub(crate) fn expiry(tables: &Tables, now: u64, trash: u64, keep_partial: u64) -> Expiry {
    judge(tables, now, trash, keep_partial, true)
}

fn judge(tables: &Tables, now: u64, trash: u64, keep_partial: u64, by_collection: bool) -> Expiry {
    let mut found = Expiry::default();
    for snapshot in tables.snapshots.values() {
        let Some((at, seen)) = snapshot.forgotten else { continue };
        let is_checkpoint = snapshot.completeness == Completeness::Checkpoint;
        let time = if is_checkpoint { keep_partial } else { trash };
        // Nobody else's clock counts.
        let since = if by_collection { seen.unwrap_or(now) } else { at };
        let until = since.saturating_add(time);
        if until <= now {
            found.expired.push(snapshot.id);
            continue;
        }
        if seen.is_none() && by_collection {
            found.seen.push(snapshot.id);
        }
        if !is_checkpoint {
            found.kept.push((until, snapshot.id));
        }
    }
    found
}

fn change_snapshots(
    archive: &Archive,
    ids: &[SnapshotId],
    record: impl FnOnce(Vec<SnapshotId>) -> Record,
) -> Result<()> {
    let decide = |tables: &Tables| {
        for &id in ids {
            if tables.snapshots.get(id)?.completeness == Completeness::Checkpoint {
                let what = format!("{id} is no snapshot, but a backup that did not end");
                return Err(Error::new(Kind::NotFound, what));
            }
        }
        match ids.is_empty() {
            true => Err(Error::new(Kind::InvalidInput, "no snapshot is named")),
            false => Ok(vec![record(ids.to_vec())]),
        }
    };
    archive.commit(true, decide).map(|_| ())
}
