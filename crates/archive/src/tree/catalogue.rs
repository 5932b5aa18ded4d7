//! Snapshots forgotten, undeleted, and gone for good.

use onefold_core::{Error, Kind, Result};

use crate::{
    format::{
        backup::{Completeness, Snapshot, SnapshotId},
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
    change_snapshots(archive, ids, |ids| Record::Undeleted { ids })
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
        let forgotten = |snapshot: &&Snapshot| snapshot.forgotten.is_some();
        let (mut seen, mut expired) = (Vec::new(), Vec::new());
        gone = 0;
        for snapshot in tables.snapshots.values().filter(forgotten) {
            let is_checkpoint = snapshot.completeness == Completeness::Checkpoint;
            let kept = if is_checkpoint { keep_partial } else { trash };
            match snapshot.forgotten {
                Some((at, _)) if !by_collection && at.saturating_add(kept) > now => {}
                Some((_, None)) if kept > 0 && by_collection => seen.push(snapshot.id),
                Some((_, Some(at))) if at.saturating_add(kept) > now => {}
                _ => {
                    gone += u64::from(!is_checkpoint);
                    expired.push(snapshot.id);
                }
            }
        }
        let seen = (!seen.is_empty()).then_some(Record::ForgottenSeen { ids: seen, at: now });
        let expired = (!expired.is_empty()).then_some(Record::Expired { ids: expired });
        Ok(seen.into_iter().chain(expired).collect())
    })?;
    Ok(gone)
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
