//! `onefold copy`: snapshots and streams from one archive to another, for a second site.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use clap::Args;
use onefold_archive::{
    Archive, CopyChoice, CopyCounts, CopyFailure, CopyPlan, CopyRequest, Gauge, Ingest, KeySource,
    Role, Settings, Snapshot, SnapshotId, StreamPresence, Tables, TreeReader, backup_elsewhere,
    copy_snapshot, copy_stream, domain_called, may_copy, plan_copy, stream_presence,
};
use onefold_core::{Error, Kind};
use serde_json::{Value, json};

use super::{
    archive_at,
    backup::{self, served, shown},
    keeping::period::period,
    snapshots::{self, SHOWN_DIGITS},
    waiting::{Patience, Waiting},
    with_advice,
};
use crate::key::KeyFrom;
use onefold::parts::{
    archive_dir::{ArchiveDir, name_archive, now, open_to_read_by},
    control,
    keys::{self, Whence},
    operator::warn,
};
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted, grouped},
};

/// Where `--from-key` says that there is none.
const NO_KEY: &str = "none";

/// Copies snapshots from one archive to another, as for a second site
///
/// A copy has the id, the set, the host, the times, the tags and the state of its snapshot. Of each set of
/// each host those are copied that FROM lists behind the newest one which both archives have: what TO
/// forgot before that one does not come back. Nothing is ever removed from TO, which has a policy of its own.
///
/// Each archive is a directory, ssh://USER@HOST/PATH, s3://BUCKET/PREFIX or bucket:DIR. FROM is only read.
/// Each chunk is compared with its fingerprint before it is stored. Content that the copy before has
/// is not read again, and neither are chunks that TO has, if it was made with `create archive --like
/// FROM`. A copy that was killed goes on from its last checkpoint. A snapshot that can't be read is left out
/// and named, the others are copied, and the exit status is 3.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold copy backups ssh://second/srv/backups\n  \
                  onefold copy /srv/backups /mnt/usb/backups --set web1 --within 30d\n  \
                  onefold copy s3://bucket/vault /srv/vault --dry-run\n  \
                  onefold copy backups second web1~2 3fa94c11")]
pub(crate) struct Options {
    /// The archive that is read
    #[arg(value_name = "FROM")]
    from: PathBuf,

    /// The archive that gets what it lacks
    #[arg(value_name = "TO")]
    to: PathBuf,

    /// Snapshots of FROM that are copied, also those that TO forgot: SET~N, SET@DATE, or digits of an id.
    /// Without them, all that are newer than what both archives have
    #[arg(conflicts_with_all = ["set", "host", "within", "all"])]
    snapshots: Vec<String>,

    /// Only of this set
    #[arg(long, value_name = "NAME")]
    set: Option<String>,

    /// Only of this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Only those of the last time, like 48h, 14d or 6M: s, min, h, d, w, M for months, y
    #[arg(long, value_name = "TIME", value_parser = period)]
    within: Option<Duration>,

    /// Also those that FROM lists before one which both archives have, and those that are no newer than one of
    /// TO alone: what TO forgot, and removed since, comes back
    #[arg(long)]
    all: bool,

    /// Copies streams, too, which `onefold put` stored: those that TO does not have. One whose name TO has
    /// for another stream is named, and stays as it is
    #[arg(long)]
    streams: bool,

    /// The domain of TO that new sets belong to; without it, the one that each archive begins with. A set
    /// stays in its domain
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    /// Where the key of FROM is, if it is not where --key says; `none` says that FROM is not encrypted
    #[arg(long, value_name = "WHERE")]
    from_key: Option<KeyFrom>,

    /// Copies from an encrypted archive to one that is not: whoever reads the files of TO reads what it has
    #[arg(long)]
    decrypt: bool,

    /// Says what would be copied, and stores nothing
    #[arg(short = 'n', long)]
    dry_run: bool,

    /// Minutes between two checkpoints: a copy that was killed goes on from the last one
    #[arg(long, default_value_t = 10, value_name = "MINUTES")]
    checkpoint: u64,

    #[command(flatten)]
    patience: Patience,

    /// Level of Zstandard for new chunks, in an archive with --compress zstd
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = clap::value_parser!(i32).range(1..=19)
    )]
    level: i32,

    /// Memory for the tables of FROM, besides an allowance that grows with the bytes that they occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// What was done so far.
#[derive(Default)]
struct Done {
    copied: Vec<Value>,
    streams: Vec<Value>,
    failed: Vec<Value>,
    /// Ids of snapshots that FROM forgot and collected since they were chosen.
    gone: Vec<String>,
    /// Hosts and sets of which a snapshot could not be read this time.
    waiting: BTreeSet<(String, String)>,
    /// Hosts and sets of which TO had a newer snapshot than one that was copied.
    stored_late: BTreeSet<(String, String)>,
    /// Snapshots that wait for an earlier one of theirs.
    waits: u64,
    /// Streams whose names others have.
    other_streams: Vec<String>,
    streams_present: u64,
    /// Streams of FROM that nobody asked for.
    streams_left: u64,
}

/// Copies them.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let begun = Instant::now();
    let (from_dir, to_dir) =
        (archive_at(&options.from, snapshots::NONE)?, archive_at(&options.to, snapshots::NONE)?);
    let from = open_to_read_by(&from_dir, options.memory.0, opener(options)?);
    let from = from.map_err(|error| hinted(options, error))?;
    let here = to_dir.open_to_read(Settings::default().memory)?;
    suit(options, &from, &here)?;
    let choice = choice(options, &from.tables())?;
    let plan = plan_copy(&from, &here.tables(), &choice, now());
    let mut done = Done::default();
    let streams = streams(options, &from, &here.tables(), &mut done);
    drop(here);
    let is_idle = plan.wanted.is_empty() && streams.is_empty();
    let copied = match options.dry_run || is_idle {
        true => Ok(()),
        false => store(options, &to_dir, (&from, &choice), &streams, &mut done),
    };
    tell(options, &plan, &streams, &done, begun.elapsed())?;
    copied?;
    judge(&plan, &done)
}

/// Says how the key of TO is told from that of FROM.
fn hinted(options: &Options, error: Error) -> Failure {
    let is_of_both = options.from_key.is_none()
        && keys::asker().is_some_and(|asker| asker.named().is_some())
        && error.kind() == Kind::Denied;
    let failure = Failure::from(error.context("FROM"));
    match is_of_both {
        true => failure.and(
            "--key says where the key of TO is, too: --from-key is for FROM alone, and `--from-key none` if \
             it is not encrypted",
        ),
        false => failure,
    }
}

/// Who is asked for the key of FROM.
fn opener(options: &Options) -> Result<KeySource, Failure> {
    let Some(KeyFrom(whence)) = &options.from_key else { return Ok(KeySource::default()) };
    let none = Whence::File(NO_KEY.into());
    let asker = keys::asker_by((*whence != none).then(|| whence.clone()));
    let asker = asker.ok_or_else(|| Failure::new("nobody can be asked for the key of FROM"))?;
    Ok(keys::of_archive_by(&options.from, &asker))
}

/// Refuses what can't be copied, or not into this archive.
fn suit(options: &Options, from: &Archive, to: &Archive) -> Result<(), Failure> {
    let (shown_from, shown_to) = (options.from.display(), options.to.display());
    may_copy(from, to).map_err(|error| error.context(format!("{shown_from} and {shown_to}")))?;
    if from.label().sealed.is_some() && to.label().sealed.is_none() && !options.decrypt {
        return Err(Failure::new(format!(
            "{shown_from} is encrypted, and {shown_to} is not: whoever reads the files of the copy would read \
             all; make an encrypted archive, or say --decrypt"
        )));
    }
    if !to.tables().trees {
        return Err(Failure::new(format!(
            "{shown_to}: it was made by a version without snapshots, and takes none: `onefold upgrade` \
             changes that"
        )));
    }
    if [from, to].iter().any(|archive| matches!(archive.role(), Some(Role::Put(_)))) {
        return Err(Failure::new(
            "a put key reads no snapshot, and adds those of its own host alone: a copy needs a key that reads \
             FROM, and one that manages TO",
        ));
    }
    Ok(())
}

fn choice(options: &Options, from: &Tables) -> Result<CopyChoice, Failure> {
    let id = |text: &String| snapshots::named(from, text).map(|snapshot| snapshot.id);
    let ids: Vec<SnapshotId> = options.snapshots.iter().map(id).collect::<Result<_, _>>()?;
    Ok(CopyChoice {
        ids: (!ids.is_empty()).then_some(ids),
        set: options.set.clone(),
        host: options.host.clone(),
        since: options.within.map(|time| now().saturating_sub(time.as_secs())),
        all: options.all,
    })
}

/// The names of streams that are to be copied.
fn streams(options: &Options, from: &Archive, to: &Tables, done: &mut Done) -> Vec<String> {
    let (tables, mut wanted) = (from.tables(), Vec::new());
    for (name, stream) in &tables.streams {
        if !options.streams {
            done.streams_left += 1;
            continue;
        }
        match stream_presence(to, name, stream) {
            StreamPresence::Missing => wanted.push(name.clone()),
            StreamPresence::Present => done.streams_present += 1,
            StreamPresence::Other => done.other_streams.push(name.clone()),
        }
    }
    wanted
}

/// Who stores into TO.
enum Storer {
    /// This process, from now on.
    Here(Arc<Ingest>, Arc<Archive>),
    /// The server of TO; this process reads it.
    Server(Arc<Archive>),
}

impl Storer {
    fn archive(&self) -> &Arc<Archive> {
        match self {
            Storer::Here(_, archive) | Storer::Server(archive) => archive,
        }
    }
}

/// Copies what is still missing in TO, as the process that stores or by the server.
fn store(
    options: &Options,
    directory: &ArchiveDir,
    (from, choice): (&Arc<Archive>, &CopyChoice),
    streams: &[String],
    done: &mut Done,
) -> Result<(), Failure> {
    let storer = begin(options, directory)?;
    let to = storer.archive();
    // It is another opening than the one that was judged: a move may have brought another archive there.
    suit(options, from, to)?;
    let domain = options.domain.as_deref().map(|name| domain_called(to, name)).transpose()?;
    // Others may have stored meanwhile.
    let tables = to.refresh()?;
    let plan = plan_copy(from, &tables, choice, now());
    let all = plan.wanted.len();
    for (n, snapshot) in plan.wanted.iter().enumerate() {
        // A newer one that is here would be what both have, and the earlier one would never be tried again.
        let series = (snapshot.host.clone(), snapshot.set.clone());
        if choice.ids.is_none() && done.waiting.contains(&series) {
            done.waits += 1;
            continue;
        }
        let what = format!("copying {} of {all}", n + 1);
        let mut clock = Instant::now();
        let every = Duration::from_secs(options.checkpoint.saturating_mul(60));
        let mut due = || {
            let is_due = clock.elapsed() >= every && !every.is_zero();
            if is_due {
                clock = Instant::now();
            }
            is_due
        };
        let mut failure = None;
        let made = shown(&what, snapshot.bytes, |gauge| {
            let made = match &storer {
                Storer::Here(ingest, _) => {
                    copy_snapshot(from, snapshot, (ingest, domain), gauge, &mut due)
                        .map(|(made, counts)| (backup::report(&made), counts))
                }
                Storer::Server(archive) => {
                    send((directory, archive), (from, snapshot), domain, gauge, &mut due)
                }
            };
            Ok(made.map_err(|it| failure = Some(it)).ok())
        })?;
        match (made, failure) {
            (Some((made, counts)), _) => {
                copied(options, made, counts, done);
                if has_newer(&tables, snapshot) {
                    done.stored_late.insert(series);
                }
            }
            (None, Some(failure)) => left_out(options, from, snapshot, failure, done)?,
            (None, None) => {}
        }
    }
    match &storer {
        Storer::Here(ingest, _) => copy_streams(options, (from, streams), (ingest, domain), done),
        Storer::Server(_) if streams.is_empty() => Ok(()),
        Storer::Server(_) => Err(Failure::new(format!(
            "{} is served, and its server takes no copies of streams: stop it meanwhile",
            options.to.display()
        ))),
    }
}

/// Names of snapshots and policies go by the order in which an archive stored them.
fn has_newer(to: &Tables, than: &Snapshot) -> bool {
    let of_series = |one: &&Snapshot| (&one.host, &one.set) == (&than.host, &than.set);
    to.snapshots.listed().filter(of_series).any(|one| one.ended > than.ended)
}

/// Copies streams that TO does not have.
fn copy_streams(
    options: &Options,
    (from, streams): (&Arc<Archive>, &[String]),
    (ingest, domain): (&Arc<Ingest>, Option<u32>),
    done: &mut Done,
) -> Result<(), Failure> {
    let tables = from.tables();
    for name in streams {
        let Some(stream) = tables.streams.get(name) else { continue };
        let mut failure = None;
        let what = format!("copying '{}'", name.escape_debug());
        let made = shown(&what, stream.bytes, |gauge| {
            let made = copy_stream(from, (name, stream), (ingest, domain), gauge);
            Ok(made.map_err(|it| failure = Some(it)).ok())
        })?;
        match (made, failure) {
            (Some(report), _) => {
                if !options.json {
                    let (shown, bytes) = (name.escape_debug(), Size(report.stream.bytes));
                    output::line(format_args!("copied stream '{shown}', {bytes}"));
                }
                done.streams.push(json!({
                    "name": name, "bytes": report.stream.bytes, "new_bytes": report.new_bytes,
                    "added_bytes": report.stream.added,
                }));
            }
            (None, Some(CopyFailure { error, at_source: false, .. })) => {
                return Err(with_advice(name_archive(&options.to, error), &options.to).into());
            }
            (None, Some(CopyFailure { error, .. })) => {
                is_reached(options, from, &error)?;
                warn(&format!("stream '{}' is not copied: {error}", name.escape_debug()));
                done.failed.push(json!({ "stream": name, "why": error.to_string() }));
            }
            (None, None) => {}
        }
    }
    Ok(())
}

/// Lets the server of TO store a snapshot. It gets all content of files that changed, and finds duplicates itself.
fn send(
    (directory, archive): (&ArchiveDir, &Arc<Archive>),
    (from, snapshot): (&Arc<Archive>, &Snapshot),
    domain: Option<u32>,
    gauge: &Gauge,
    due: &mut dyn FnMut() -> bool,
) -> Result<(Value, CopyCounts), CopyFailure> {
    let at_target = CopyFailure::at_target;
    let gone = || Error::new(Kind::Busy, "the server of the archive has ended meanwhile");
    let mut server = directory.server().and_then(|it| it.ok_or_else(gone)).map_err(at_target)?;
    // What the parents name is not freed before the server has named it.
    let kept = TreeReader::new(archive).map_err(at_target)?;
    let copying = CopyRequest::new(from, snapshot, archive, domain)?;
    let tables = kept.tables().clone();
    let parents = [copying.request.checkpoint, copying.request.parent].into_iter().flatten();
    let parents: Vec<&Snapshot> = parents.filter_map(|id| tables.snapshots.get(id).ok()).collect();
    let asked = control::Request::Copy(Box::new(served::asked(&copying.request)));
    let (mut failed, mut counts) = (None, CopyCounts::default());
    let made = server.send(&asked, &mut |new, _| gauge.new.store(new, Relaxed), |outlet| {
        backup_elsewhere(archive, &parents, gauge, Some(outlet), |feeder| {
            match copying.tell(feeder, due) {
                Ok(told) => {
                    counts = told;
                    Ok(())
                }
                Err(failure) => Err(failed.insert(failure).error.clone()),
            }
        })
    });
    match (made, failed) {
        (Ok(made), _) => Ok((made, counts)),
        (Err(_), Some(failure)) if failure.at_source => Err(failure),
        (Err(error), _) => Err(at_target(error)),
    }
}

/// Becomes the process that stores; waits for another one, and lets a server store.
fn begin(options: &Options, directory: &ArchiveDir) -> Result<Storer, Failure> {
    let settings = Settings { level: options.level, ..Settings::default() };
    let is_served = || -> Result<Option<Storer>, Failure> {
        match directory.server()? {
            None => Ok(None),
            Some(_) => {
                let archive = directory.open_to_read(Settings::default().memory)?;
                Ok(Some(Storer::Server(archive)))
            }
        }
    };
    if let Some(server) = is_served()? {
        return Ok(server);
    }
    let (mut archive, mut looked_at) = (directory.open(settings.clone())?, directory.clone());
    directory.warn_of_lost_index(&archive);
    let mut waiting = Waiting::new(directory, options.patience);
    loop {
        // Perhaps it was waited for the end of a move.
        if let Some(moved) = looked_at.after_move()? {
            archive = moved.open(settings.clone())?;
            looked_at = moved;
        }
        match Ingest::begin(&archive, false, false) {
            Err(error) if error.kind() == Kind::Busy => {}
            begun => return Ok(Storer::Here(begun?, archive)),
        }
        if let Some(server) = is_served()? {
            return Ok(server);
        }
        waiting.go_on()?;
    }
}

/// Tells of a snapshot that was copied.
fn copied(options: &Options, made: Value, counts: CopyCounts, done: &mut Done) {
    let (text, number) = (
        |key: &str| made[key].as_str().unwrap_or_default(),
        |key: &str| made[key].as_u64().unwrap_or_default(),
    );
    if !options.json {
        output::line(format_args!(
            "copied {}  {}  {}: {}, {} read; the archive grew by {}",
            text("id").get(..SHOWN_DIGITS).unwrap_or_default(),
            snapshots::shown(number("ended")),
            text("set").escape_debug(),
            Size(number("bytes")),
            Size(counts.read),
            Size(number("added_bytes")),
        ));
    }
    let mut line = made.clone();
    line["read_bytes"] = counts.read.into();
    line["taken_over_bytes"] = counts.taken_over.into();
    done.copied.push(line);
}

/// Tells of a snapshot that could not be copied; the next one is tried, unless TO failed, or nothing of FROM
/// can be read any more.
fn left_out(
    options: &Options,
    from: &Archive,
    snapshot: &Snapshot,
    CopyFailure { error, at_source, is_gone }: CopyFailure,
    done: &mut Done,
) -> Result<(), Failure> {
    // TO refuses what no archive can have.
    let is_refused = matches!(error.kind(), Kind::InvalidInput | Kind::Exists);
    if !at_source && !is_refused {
        return Err(with_advice(name_archive(&options.to, error), &options.to).into());
    }
    is_reached(options, from, &error)?;
    let set = snapshot.set.escape_debug();
    warn(&format!(
        "snapshot {} of '{set}' is not copied: {}",
        snapshots::short(snapshot.id),
        name_archive(if at_source { &options.from } else { &options.to }, error.clone())
    ));
    if is_gone {
        // A policy of FROM took it meanwhile.
        done.gone.push(snapshot.id.to_string());
        return Ok(());
    }
    if at_source && error.kind() == Kind::Io {
        done.waiting.insert((snapshot.host.clone(), snapshot.set.clone()));
    }
    done.failed.push(json!({
        "id": snapshot.id.to_string(), "set": snapshot.set, "host": snapshot.host,
        "why": error.to_string(),
    }));
    Ok(())
}

/// Errors when an error was not that of one snapshot: FROM can't be reached any more.
fn is_reached(options: &Options, from: &Archive, error: &Error) -> Result<(), Failure> {
    if from.refresh().is_ok() {
        return Ok(());
    }
    Err(name_archive(&options.from, error.clone()).into())
}

fn tell(
    options: &Options,
    plan: &CopyPlan,
    streams: &[String],
    done: &Done,
    took: Duration,
) -> Result<(), Failure> {
    for (host, set) in &done.stored_late {
        warn(&format!(
            "TO has newer snapshots of '{}' of host '{}' than one that was stored behind them now: SET and SET~N go \
             by that order, and SET@DATE by the dates",
            set.escape_debug(),
            host.escape_debug()
        ));
    }
    if options.json {
        let wanted = plan.wanted.iter().map(snapshots::json).collect::<Vec<_>>();
        let mut report = json!({
            "copied": done.copied,
            "streams": done.streams,
            "failed": done.failed,
            "present": plan.present,
            "present_forgotten": plan.forgotten,
            "passed": plan.passed,
            "blocked": plan.blocked.iter().map(snapshots::json).collect::<Vec<_>>(),
            "gone": done.gone,
            "waits": done.waits,
            "erased": plan.erased,
            "other_snapshots": plan.others.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "other_streams": done.other_streams,
            "streams_present": done.streams_present,
            "streams_left": done.streams_left,
            "seconds": took.as_secs_f64(),
        });
        if options.dry_run {
            report["wanted"] = wanted.into();
            report["wanted_streams"] = streams.into();
        }
        return output::json(&report);
    }
    if options.dry_run {
        for snapshot in &plan.wanted {
            output::line(format_args!(
                "{}  {}  {:>9}  {}  {}",
                snapshots::short(snapshot.id),
                snapshots::shown(snapshot.ended),
                Size(snapshot.bytes).to_string(),
                snapshot.host.escape_debug(),
                snapshot.set.escape_debug(),
            ));
        }
        streams
            .iter()
            .for_each(|name| output::line(format_args!("stream '{}'", name.escape_debug())));
    }
    let (snapshots, streams) = match options.dry_run {
        true => (plan.wanted.len(), streams.len()),
        false => (done.copied.len(), done.streams.len()),
    };
    let mut told = counted(snapshots as u64, "snapshot");
    if streams > 0 {
        told += &format!(" and {}", counted(streams as u64, "stream"));
    }
    told += if options.dry_run { " would be copied" } else { " copied" };
    told += &format!(", {} there before", grouped(plan.present + done.streams_present));
    if plan.forgotten > 0 && !options.snapshots.is_empty() {
        told += &format!(
            "; {} in the trash of TO: `onefold undelete` lists what is there again",
            grouped(plan.forgotten)
        );
    }
    if plan.passed > 0 {
        told += &format!(
            "; {} not copied that FROM lists before one which both have: --all copies them",
            grouped(plan.passed)
        );
    }
    if plan.erased > 0 {
        told += &format!("; {} of erased domains", grouped(plan.erased));
    }
    if done.streams_left > 0 {
        told += &format!("; --streams copies {}, too", counted(done.streams_left, "stream"));
    }
    output::line(told);
    Ok(())
}

/// The exit status.
fn judge(plan: &CopyPlan, done: &Done) -> Result<(), Failure> {
    if let Some(id) = plan.others.first() {
        return Err(Failure::in_part(format!(
            "{} of FROM has the id of another one in TO, like {id}, and is not copied",
            counted(plan.others.len() as u64, "snapshot")
        )));
    }
    if let Some(name) = done.other_streams.first() {
        return Err(Failure::in_part(format!(
            "{} of FROM has the name of another one in TO, like '{}', and is not copied: `onefold mv` gives the \
             one in TO another name, and `onefold rm` removes it",
            counted(done.other_streams.len() as u64, "stream"),
            name.escape_debug()
        )));
    }
    if let (true, Some(first)) = (done.failed.is_empty(), plan.blocked.first()) {
        return Err(Failure::in_part(format!(
            "{} of FROM not copied, like {} of '{}' of host '{}': TO has a snapshot of that set which FROM does not \
             have, and which is no older. A backup or another archive stored it in TO, or FROM forgot it. Name \
             what is to be copied, or say --all",
            counted(plan.blocked.len() as u64, "snapshot"),
            snapshots::short(first.id),
            first.set.escape_debug(),
            first.host.escape_debug(),
        )));
    }
    if done.waits > 0 {
        return Err(Failure::in_part(format!(
            "{} not copied that could not be read this time, and {} behind: the next copy tries them again; one that \
             is named is copied alone",
            grouped(done.failed.len() as u64),
            counted(done.waits, "snapshot")
        )));
    }
    match done.failed.len() as u64 {
        0 => Ok(()),
        n => Err(Failure::in_part(format!(
            "{} not copied: the messages above say why. A later copy leaves out what is older than the newest copy \
             of its set: name it once FROM is mended",
            if n == 1 { "one was".to_owned() } else { format!("{} were", grouped(n)) }
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test panics where it fails")]
mod tests {
    use clap::Parser;
    use onefold_archive::{
        Attributes, BackupRequest, Compression, Event, FileMap, Format, Known, Stat, TreeEntry,
        TreeWhat, backup,
    };
    use onefold_backend::Directory;
    use onefold_core::Files;
    use onefold_testbed::{Rng, VirtualFiles, files::Layout};

    use super::*;

    /// The segment in which the first archive has its content.
    const SEGMENT: &str = "segment-00000001";

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn format(id: u8) -> Format {
        let format = Format::new([id; 16], [id; 32], [id; 16]).with_features();
        Format { reserve_bytes: 0, compression: Compression::None, ..format }
    }

    fn content(number: u8) -> Vec<u8> {
        let mut bytes = vec![0; 200_000];
        Rng::new(number.into()).fill(&mut bytes);
        bytes
    }

    fn entry(name: &str, what: TreeWhat) -> TreeEntry {
        TreeEntry {
            name: name.into(),
            what,
            mode: 0o600,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            link: 0,
            is_in_part: false,
            attributes: Attributes::default(),
        }
    }

    fn store_snapshot(archive: &Arc<Archive>, set: &str, number: u8) {
        let request = BackupRequest {
            id: SnapshotId([number; 16]),
            set: set.into(),
            host: "host".into(),
            now: 1_000 + u64::from(number),
            ..BackupRequest::default()
        };
        backup(archive, &request, false, &Gauge::default(), |feeder| {
            let root = entry("", TreeWhat::Directory(None));
            feeder.event(Event::Enter(root, Stat::default(), Known::new()))?;
            feeder.bytes(&content(number))?;
            let file = entry("file", TreeWhat::File(0, FileMap::default()));
            feeder.event(Event::File(file, Stat::default(), None))?;
            feeder.event(Event::End(0))
        })
        .unwrap();
    }

    fn bytes_of(files: &VirtualFiles) -> Vec<u8> {
        let file = files.open(SEGMENT).unwrap();
        let mut bytes = vec![0; file.bytes().unwrap() as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn open(files: &VirtualFiles) -> Arc<Archive> {
        Arc::new(Archive::open(Arc::new(files.clone()), true, Settings::default()).unwrap())
    }

    /// The disk can't read a sector of the content of a snapshot from now on.
    fn spoil(files: &VirtualFiles, number: u8) {
        let (whole, wanted) = (bytes_of(files), content(number));
        let first = (0..whole.len()).find(|&at| whole[at..].starts_with(&wanted[..64])).unwrap();
        let file = files.open(SEGMENT).unwrap();
        let mut pick = Rng::new(1);
        for _ in 0..1_000 {
            assert!(files.damage(SEGMENT, true, &mut pick));
            if file.read_at(first as u64, &mut vec![0; 100_000]).is_err() {
                return;
            }
            files.mend();
        }
        panic!("the content of one in four is never hit");
    }

    #[test]
    fn what_could_not_be_read_for_now_keeps_newer_ones_of_its_set_waiting() {
        let files = VirtualFiles::new(Layout::default(), Rng::new(1));
        Archive::create(&files, &format(1)).unwrap();
        let from = open(&files);
        for (number, set) in [(1, "web"), (2, "web"), (3, "web"), (4, "mail")] {
            store_snapshot(&from, set, number);
        }
        drop(from);
        spoil(&files, 2);
        let from = open(&files);
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("to");
        Archive::create(&Directory::create(&to).unwrap(), &format(2)).unwrap();
        let Line { options } = Line::parse_from(["copy", "from", to.to_str().unwrap()]);
        let directory = ArchiveDir::look(&to).unwrap();
        let copy = |from: &Arc<Archive>, ids: Option<u8>| {
            let ids = ids.map(|number| vec![SnapshotId([number; 16])]);
            let (mut done, choice) = (Done::default(), CopyChoice { ids, ..CopyChoice::default() });
            store(&options, &directory, (from, &choice), &[], &mut done).unwrap();
            let copied = done.copied.iter().map(|one| one["id"].as_str().unwrap()[..2].to_owned());
            (copied.collect::<Vec<_>>(), done)
        };
        let (copied, done) = copy(&from, None);
        assert_eq!(
            (&copied[..], done.failed.len(), done.waits),
            (&["01".into(), "04".into()][..], 1, 1)
        );
        let told = format!("{:?}", judge(&CopyPlan::default(), &done).unwrap_err());
        assert!(told.contains("the next copy tries them again"), "{told}");
        // It is no different the next time.
        let (copied, done) = copy(&from, None);
        assert_eq!((copied.len(), done.failed.len(), done.waits), (0, 1, 1));
        // The disk can read it again.
        files.mend();
        let (copied, done) = copy(&open(&files), None);
        assert_eq!((&copied[..], done.waits), (&["02".into(), "03".into()][..], 0));
        judge(&CopyPlan::default(), &done).unwrap();
    }
}
