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
    match change_snapshots(archive, ids, |ids| Record::Undeleted { ids }) {
        Err(error) if error.kind() == Kind::NotFound && !archive.keeps(Rule::GoneNotUndeleted) => {
            Ok(())
        }
        done => done,
    }
}

/// Seconds by which a clock may be ahead of the newest date in an archive before what counts by it is doubted.
const AHEAD_MAX: u64 = 30 * 86_400;

/// True when `now` is more than 30 days after all dates of the archive that are not in its future: when snapshots
/// ended, when a collection saw that they were forgotten, and when streams were stored. Then the archive lay unused for so
/// long, or the clock of this host is wrong. False when no snapshot is forgotten: nothing counts by the clock.
#[must_use]
pub fn is_clock_ahead(tables: &Tables, now: u64) -> bool {
    let of_snapshots = tables.snapshots.values().map(|snapshot| {
        let seen = snapshot.forgotten.and_then(|(_, seen)| seen);
        snapshot.ended.max(seen.unwrap_or(0))
    });
    let of_streams = tables.streams.values().map(|stream| stream.created);
    let newest = of_snapshots.chain(of_streams).filter(|&date| date <= now).max();
    tables.snapshots.forgotten().next().is_some()
        && newest.is_some_and(|newest| now > newest.saturating_add(AHEAD_MAX))
}

/// Takes note that a collection saw forgotten snapshots, and checkpoints, and removes those whose
/// time of `trash` seconds, or for checkpoints `keep_partial`, is over by the clock of collections:
/// no clock of another process counts. Gives how many snapshots are gone. With `doubts`, a clock that
/// [is ahead](is_clock_ahead) notes nothing and ends no time but one of zero seconds; true is given when the trash
/// stays for that.
///
/// # Errors
/// As for every change.
pub(crate) fn expire(
    archive: &Archive,
    now: u64,
    (trash, keep_partial): (u64, u64),
    doubts: bool,
) -> Result<(u64, bool)> {
    let (mut gone, mut is_ahead) = (0, false);
    let by_collection = archive.keeps(Rule::TrashFromCollection);
    archive.commit(true, |tables| {
        is_ahead = doubts && is_clock_ahead(tables, now);
        let found = match is_ahead {
            true => without_clock(tables, trash, keep_partial),
            false => judge(tables, now, trash, keep_partial, by_collection),
        };
        let Expiry { seen, expired, .. } = found;
        let is_snapshot = |id: &&SnapshotId| {
            tables.snapshots.get(**id).is_ok_and(|one| one.completeness != Completeness::Checkpoint)
        };
        gone = expired.iter().filter(is_snapshot).count() as u64;
        let seen = (!seen.is_empty()).then_some(Record::ForgottenSeen { ids: seen, at: now });
        let expired = (!expired.is_empty()).then_some(Record::Expired { ids: expired });
        Ok(seen.into_iter().chain(expired).collect())
    })?;
    Ok((gone, is_ahead && trash > 0))
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

/// Finds out what goes by no clock: what is kept for no time.
fn without_clock(tables: &Tables, trash: u64, keep_partial: u64) -> Expiry {
    let forgotten = tables.snapshots.values().filter(|snapshot| snapshot.forgotten.is_some());
    let time = |snapshot: &Snapshot| match snapshot.completeness {
        Completeness::Checkpoint => keep_partial,
        _ => trash,
    };
    let expired = forgotten.filter(|snapshot| time(snapshot) == 0).map(|snapshot| snapshot.id);
    Expiry { expired: expired.collect(), ..Expiry::default() }
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
