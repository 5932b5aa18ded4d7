//! Snapshots and streams of another archive, copied into this one: a second site.
//!
//! A copy keeps the id of its snapshot, so that a snapshot is here or is not, whatever happened between two
//! copies. Nothing is noted besides. What was forgotten here stays so: of a set of a host only those are chosen
//! that the other archive lists behind the newest one which both archives have, and that are newer than those here
//! which the other archive has no more.
//!
//! *Crash argument:* a copy is stored as a backup is. Its chunks and nodes are durable before the frame that
//! lists the snapshot; its checkpoints are those of backups, with ids of which the first twelve bytes are the
//! snapshot's own, and the next copy of that snapshot goes on from one. Collections of both archives see it as
//! they see a backup and a reader.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Kind, Result};

use crate::{
    format::{
        backup::{Completeness, Snapshot, SnapshotId},
        record::{Shape, Stream},
    },
    operations_log::{Archive, domain_of, is_erased},
    rules::Rule,
    stream::{Content, Gauge, Ingest, Reader, Report, Request, Verify, put_on},
    tables::Tables,
    tree::{
        BackupReport, BackupRequest, CopiedFrom, CopyCounts, CopyFailure, CopySink, Copying,
        backup_on,
    },
};

/// Bytes of an id that a checkpoint of a copy has in common with its snapshot.
const ID_KEPT: usize = 12;

/// Checkpoints of one copy at most: ten minutes apart, they last for a week.
const CHECKPOINTS_MAX: usize = 1000;

/// Which snapshots of another archive are wanted.
#[derive(Clone, Debug, Default)]
pub struct CopyChoice {
    /// These alone, whatever else is here.
    pub ids: Option<Vec<SnapshotId>>,
    /// Of this set alone.
    pub set: Option<String>,
    /// Of this host alone.
    pub host: Option<String>,
    /// Of those that ended before, in seconds since 1970, none.
    pub since: Option<u64>,
    /// Also those that the other archive lists before one which both have.
    pub all: bool,
}

/// What a copy has to do.
#[derive(Clone, Debug, Default)]
pub struct CopyPlan {
    /// The snapshots to copy, in the order in which the other archive has them.
    pub wanted: Vec<Snapshot>,
    /// Chosen snapshots that are here, listed or forgotten.
    pub present: u64,
    /// Those of them that are forgotten.
    pub forgotten: u64,
    /// Those that are not here, and come before one which both archives have.
    pub passed: u64,
    /// Those that are not here, come behind all that both archives have, and are no newer than one of their set
    /// and host that only this archive has: another archive or a backup stored that one, or the other
    /// archive forgot it.
    pub blocked: Vec<Snapshot>,
    /// Those of domains that the other archive erased.
    pub erased: u64,
    /// Ids that both archives have, of two snapshots: none of them is copied.
    pub others: Vec<SnapshotId>,
}

/// The snapshots of one set of one host.
fn series(of: &Snapshot) -> (&str, &str) {
    (&of.host, &of.set)
}

/// Whether the snapshot here is a copy of the one there, and not another one of its id: the fingerprint of a root
/// stands for all content, whoever made the copy, and what the list of snapshots says besides must be the same.
fn is_copy(from: &Archive, here: &Snapshot, there: &Snapshot) -> bool {
    let as_there = Snapshot {
        domain: there.domain,
        origin: there.origin,
        root: there.root,
        stats: there.stats,
        added: there.added,
        forgotten: there.forgotten,
        ..here.clone()
    };
    as_there == *there && is_of_root(from, here, there)
}

fn is_of_root(from: &Archive, here: &Snapshot, there: &Snapshot) -> bool {
    here.is_copy_of(&there.root) || !from.keeps(Rule::CopiesOfOneRoot)
}

fn is_no_checkpoint(snapshot: &&Snapshot) -> bool {
    snapshot.completeness != Completeness::Checkpoint
}

/// Decides what a copy from an archive to another one, which has these tables, has to do. `now` is in seconds
/// since 1970: snapshots here that are of the future say nothing.
#[must_use]
pub fn plan_copy(from: &Archive, to: &Tables, choice: &CopyChoice, now: u64) -> CopyPlan {
    let tables = from.tables();
    let there: Vec<&Snapshot> = tables.snapshots.values().filter(is_no_checkpoint).collect();
    let here = |of: &Snapshot| to.snapshots.get(of.id).ok().filter(is_no_checkpoint);
    let mut common: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (n, snapshot) in there.iter().enumerate() {
        if here(snapshot).is_some_and(|here| is_copy(from, here, snapshot)) {
            common.insert(series(snapshot), n);
        }
    }
    let mut newest: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    // Of what the other archive has no more, the order is not known any more, but the time.
    let is_lost = |one: &&Snapshot| one.ended <= now && tables.snapshots.get(one.id).is_err();
    for snapshot in to.snapshots.values().filter(is_no_checkpoint).filter(is_lost) {
        let ended = newest.entry(series(snapshot)).or_default();
        *ended = snapshot.ended.max(*ended);
    }
    let is = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|name| name == has);
    let mut plan = CopyPlan::default();
    for (n, &snapshot) in there.iter().enumerate() {
        let is_chosen = match &choice.ids {
            Some(ids) => ids.contains(&snapshot.id),
            None => {
                is(&choice.set, &snapshot.set)
                    && is(&choice.host, &snapshot.host)
                    && choice.since.is_none_or(|since| snapshot.ended >= since)
            }
        };
        if !is_chosen || snapshot.forgotten.is_some() {
            continue;
        }
        if let Ok(here) = to.snapshots.get(snapshot.id) {
            match is_copy(from, here, snapshot) {
                true => {
                    plan.present += 1;
                    plan.forgotten += u64::from(here.forgotten.is_some());
                }
                false => plan.others.push(snapshot.id),
            }
            continue;
        }
        if is_erased(from, snapshot.domain) || tables.domains.erased.contains_key(&snapshot.domain)
        {
            plan.erased += 1;
            continue;
        }
        let is_behind = common.get(&series(snapshot)).is_none_or(|&last| n > last);
        let is_newer = newest.get(&series(snapshot)).is_none_or(|&newest| snapshot.ended > newest);
        let is_wanted = choice.all || choice.ids.is_some();
        match (is_behind, is_newer) {
            (true, true) => plan.wanted.push(snapshot.clone()),
            _ if is_wanted || !from.keeps(Rule::ForgottenNotCopied) => {
                plan.wanted.push(snapshot.clone());
            }
            // Nobody forgot it here for sure: whoever asks for the copy is told.
            (true, false) => plan.blocked.push(snapshot.clone()),
            (false, _) => plan.passed += 1,
        }
    }
    plan
}

/// True when both archives compute fingerprints of content in these domains by one secret.
///
/// # Errors
/// `Denied`: a domain was erased, or its key is not there. Those of reading the key area.
pub fn share_secret(
    (one, of_one): (&Archive, u32),
    (other, of_other): (&Archive, u32),
) -> Result<bool> {
    let probe = b"onefold: do two archives share a secret?";
    let print = |archive: &Archive, domain| -> Result<_> {
        Ok(domain_of(archive, domain)?.fingerprinter.bytes(probe))
    };
    Ok(one.label().fingerprint == other.label().fingerprint
        && print(one, of_one)? == print(other, of_other)?)
}

/// How a snapshot of another archive is copied: what both archives have of it.
pub struct CopyRequest {
    from: Arc<Archive>,
    snapshot: Snapshot,
    /// Which copy is stored, and from what it takes over.
    pub request: BackupRequest,
    before: Option<Snapshot>,
    shares: bool,
    /// Ids for checkpoints.
    ids: Vec<SnapshotId>,
}

impl CopyRequest {
    /// By both archives as they are now. `domain` is the number of the domain here, if that is said; else it is
    /// that of the set, or the first one.
    ///
    /// # Errors
    /// The snapshot can't be stored here, or what it was made with can't be read there. `Denied`: a key is not there.
    pub fn new(
        from: &Arc<Archive>,
        snapshot: &Snapshot,
        to: &Archive,
        domain: Option<u32>,
    ) -> Result<CopyRequest, CopyFailure> {
        let (there, here) = (from.tables(), to.refresh().map_err(CopyFailure::at_target)?);
        let mut request = BackupRequest {
            id: snapshot.id,
            set: snapshot.set.clone(),
            domain,
            host: snapshot.host.clone(),
            machine: snapshot.machine,
            paths: snapshot.paths.clone(),
            tags: snapshot.tags.clone(),
            now: snapshot.began,
            accept: true,
            copied: Some(CopiedFrom {
                root: snapshot.root.fingerprint,
                ended: snapshot.ended,
                completeness: snapshot.completeness,
                left_out: snapshot.left_out,
            }),
            ..BackupRequest::default()
        };
        let number = request.domain_in(&here).map_err(CopyFailure::at_target)?;
        let before = before((from, &there), (&here, number), snapshot).cloned();
        let by_id = to.keeps(Rule::CheckpointsOfTheirCopy);
        let is_own = |one: &&Snapshot| {
            let is_of = is_of(one.id, snapshot.id) && is_of_root(from, one, snapshot);
            (is_of || !by_id) && request.goes_on_from(one)
        };
        let checkpoint = here.snapshots.checkpoints().rfind(is_own).map(|one| one.id);
        request.parent = before.as_ref().map(|before| before.id);
        request.checkpoint = checkpoint;
        // The key of the other archive is read first, so that an error names whose it is.
        domain_of(from, snapshot.domain).map_err(CopyFailure::at_source)?;
        let shares = share_secret((from, snapshot.domain), (to, number));
        let shares = shares.map_err(CopyFailure::at_target)?;
        let ids = checkpoint_ids(&here, snapshot.id);
        Ok(CopyRequest {
            from: from.clone(),
            snapshot: snapshot.clone(),
            request,
            before,
            shares,
            ids,
        })
    }

    /// Tells the snapshot to a sink, to its end. `due` is asked after each entry whether a checkpoint is due.
    ///
    /// # Errors
    /// As [`Copying::tell`].
    pub fn tell(
        &self,
        sink: &mut dyn CopySink,
        due: &mut dyn FnMut() -> bool,
    ) -> Result<CopyCounts, CopyFailure> {
        let copying = Copying {
            from: &self.from,
            snapshot: &self.snapshot,
            before: self.before.as_ref(),
            has_checkpoint: self.request.checkpoint.is_some(),
            shares: self.shares,
        };
        let mut ids = self.ids.iter().copied();
        copying.tell(sink, &mut || if due() { ids.next() } else { None })
    }
}

/// Copies a snapshot of another archive, which is here, durably, when this returns. `domain` is the number of
/// its domain here, if that is said; else it is that of its set, or the first one. `due` is asked after
/// each entry whether a checkpoint is due.
///
/// # Errors
/// The snapshot can't be read there, or not stored here.
pub fn copy_snapshot(
    from: &Arc<Archive>,
    snapshot: &Snapshot,
    (ingest, domain): (&Arc<Ingest>, Option<u32>),
    gauge: &Gauge,
    mut due: impl FnMut() -> bool + Send,
) -> Result<(BackupReport, CopyCounts), CopyFailure> {
    let copying = CopyRequest::new(from, snapshot, &ingest.archive, domain)?;
    let (mut failed, mut counts) = (None, CopyCounts::default());
    let made =
        backup_on(ingest, &copying.request, gauge, |feeder| match copying.tell(feeder, &mut due) {
            Ok(told) => {
                counts = told;
                Ok(())
            }
            Err(failure) => Err(failed.insert(failure).error.clone()),
        });
    match (made, failed) {
        (Ok(report), _) => Ok((report, counts)),
        (Err(_), Some(failure)) if failure.at_source => Err(failure),
        (Err(error), _) => Err(CopyFailure::at_target(error)),
    }
}

/// The newest snapshot of the same set and host that comes before this one where it is from, and that both
/// archives have. Here it is in the domain into which is copied: keys of another one may be lost later.
fn before<'a>(
    (from, there): (&Archive, &'a Tables),
    (here, domain): (&Tables, u32),
    snapshot: &Snapshot,
) -> Option<&'a Snapshot> {
    let earlier = there.snapshots.values().take_while(|one| one.id != snapshot.id);
    let of_series =
        |one: &&Snapshot| series(one) == series(snapshot) && one.domain == snapshot.domain;
    let is_here = |one: &&Snapshot| {
        let copied = here.snapshots.get(one.id);
        copied.is_ok_and(|copy| copy.domain == domain && is_copy(from, copy, one))
    };
    earlier.filter(is_no_checkpoint).filter(of_series).filter(is_here).last()
}

/// True for the id of a checkpoint of a copy of this snapshot.
fn is_of(checkpoint: SnapshotId, snapshot: SnapshotId) -> bool {
    checkpoint != snapshot && checkpoint.0[..ID_KEPT] == snapshot.0[..ID_KEPT]
}

/// Ids for checkpoints of a copy of this snapshot that no snapshot has.
fn checkpoint_ids(here: &Tables, of: SnapshotId) -> Vec<SnapshotId> {
    let id = |n: u32| {
        let mut id = of;
        let last = id.0[ID_KEPT..].iter_mut().zip(n.to_be_bytes());
        last.for_each(|(byte, more)| *byte ^= more);
        id
    };
    let free = (1..=u32::MAX).map(id).filter(|id| here.snapshots.get(*id).is_err());
    free.take(CHECKPOINTS_MAX).collect()
}

/// What there is to do with a stream of another archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPresence {
    /// There is none of its name here.
    Missing,
    /// It is here: of the same time, and as long.
    Present,
    /// Another one has its name here.
    Other,
}

/// Compares a stream of another archive with what has its name here.
#[must_use]
pub fn stream_presence(to: &Tables, name: &str, there: &Stream) -> StreamPresence {
    let told = |of: &Stream| (of.created, of.bytes, of.shape);
    match to.streams.get(name) {
        None => StreamPresence::Missing,
        Some(here) if told(here) == told(there) => StreamPresence::Present,
        Some(_) => StreamPresence::Other,
    }
}

/// Copies a stream of another archive, which is here, durably, when this returns.
///
/// # Errors
/// It can't be read there, or not stored here.
pub fn copy_stream(
    from: &Arc<Archive>,
    (name, stream): (&str, &Stream),
    (ingest, domain): (&Arc<Ingest>, Option<u32>),
    gauge: &Gauge,
) -> Result<Report, CopyFailure> {
    let at_source = CopyFailure::at_source;
    let mut reader = Reader::new(from).map_err(at_source)?;
    let request = Request {
        name: name.to_owned(),
        shape: stream.shape,
        domain,
        now: stream.created,
        wait: false,
    };
    let mut failed: Option<CopyFailure> = None;
    let put = put_on(ingest, request, gauge, |feeder| {
        let mut told = None;
        let listing = (stream.shape == Shape::Tree).then_some(&stream.listing);
        for (n, recipe) in [Some(&stream.recipe), listing].into_iter().flatten().enumerate() {
            if n > 0 {
                feeder.end_recipe()?;
            }
            let done = reader.read(recipe, Verify::Chunks, &mut |content| {
                let fed = match content {
                    Content::Bytes(bytes) => feeder.bytes(bytes),
                    Content::Zeroes(n) | Content::Hole(n) => feeder.zeroes(n),
                };
                fed.inspect_err(|error| told = Some(error.clone()))
            });
            if let Err(error) = done {
                failed = told.is_none().then(|| at_source(error.clone()));
                return Err(error);
            }
        }
        if stream.is_incomplete() {
            feeder.incomplete();
        }
        Ok(())
    });
    match (put, failed) {
        (Ok(report), _) => Ok(report),
        (Err(_), Some(failure)) => Err(failure),
        (Err(error), None) => Err(CopyFailure::at_target(error)),
    }
}

/// Refuses to copy an archive into itself, and into one that has no snapshots.
///
/// # Errors
/// `InvalidInput`, `Unsupported`.
pub fn may_copy(from: &Archive, to: &Archive) -> Result<()> {
    if from.label().id == to.label().id {
        let why = "both are one archive, or the files of one are a copy of the other's: a second site is an \
                   archive of its own, which `onefold create archive` makes";
        return Err(Error::new(Kind::InvalidInput, why));
    }
    Ok(())
}
