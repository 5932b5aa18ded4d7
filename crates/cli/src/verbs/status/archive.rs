//! `onefold status` of an archive: what it holds and what it saved.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use onefold_archive::{
    Archive, Care, Class, Completeness, DataKeyListed, EpochGuard, Format, Nodes, Tables, Totals,
    WriteCost, data_keys, head_of, lost_index_files, replay_due,
};
use onefold_backend::room::room;
use onefold_core::{Kind, Result, clock::age};
use serde::Serialize;

use super::replay::DueLine;
use crate::{
    report::archive::ArchiveServer,
    verbs::{
        keeping::{file::PolicyFile, policy::Terms, retention::Judged},
        volume::archive::{self as archive_volume, Line},
    },
};
use onefold::parts::{
    archive_dir::{ArchiveDir, now},
    control::Request,
};
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted, duration, grouped},
};

/// A domain that has two data keys.
#[derive(Debug, Serialize)]
struct OlderKey {
    domain: u32,
    /// Containers that are left under the older one.
    containers: u64,
    bytes: u64,
}

impl OlderKey {
    fn of(listed: DataKeyListed) -> OlderKey {
        let DataKeyListed { domain, containers, bytes, .. } = listed;
        OlderKey { domain, containers, bytes }
    }
}

/// The figures.
#[derive(Debug, Serialize)]
pub(in crate::verbs) struct Stats {
    /// The engine.
    engine: &'static str,
    archive: String,
    chunking: String,
    compression: String,
    /// The archive is encrypted.
    encrypted: bool,
    /// Its containers take few lengths.
    pads: bool,
    /// Of an encrypted one, where its history has come to: two who see the same head see the same archive.
    head: Option<String>,
    /// Domains of an encrypted archive that have two data keys, and what is left under the older one.
    older_data_keys: Vec<OlderKey>,
    fingerprint: String,
    streams: u64,
    /// Content of all streams.
    bytes: u64,
    /// Snapshots of directories that are listed, their content together, and those that were
    /// forgotten and are not gone.
    snapshots: u64,
    snapshot_bytes: u64,
    forgotten_snapshots: u64,
    /// The sets of snapshots.
    sets: Vec<SetLine>,
    /// Chunks that are known to be damaged.
    damaged_chunks: u64,
    /// When gc and scrub were done last.
    care: CareLine,
    /// Containers as stored.
    stored_bytes: u64,
    /// Content of streams and snapshots, and blocks of volumes that are no zeroes, for each byte
    /// stored.
    ratio: Option<f64>,
    containers: u64,
    chunks: u64,
    /// Chunks as they were before compression.
    chunk_bytes: u64,
    /// Containers that no stream names yet, of puts that run or were killed.
    unfinished_containers: u64,
    /// Bytes that gc could not free yet, because somebody read there.
    held_back_bytes: u64,
    /// Free space of the file system, for an archive of one directory.
    free_bytes: Option<u64>,
    index_entries: u64,
    index_files: u64,
    /// Files of the index that are lost: it is made anew by the next put.
    index_lost_files: u64,
    /// Where the index is, unless it is beside the data, and why that is not used, if it is not.
    index_directory: Option<String>,
    index_directory_unused: Option<String>,
    /// What a background replay would do.
    due: DueLine,
    /// Held back for deletion on a full disk.
    reserve_bytes: u64,
    epoch: u32,
    /// Nodes, and shards of a container with and without parity.
    nodes: u64,
    code: [u64; 2],
    /// round-robin, or rad with its parameters.
    placement: &'static str,
    delay: Option<u32>,
    batch: Option<u32>,
    batch_bytes: Option<u64>,
    /// The content of the containers of each class; in an archive with round-robin all are plain.
    classes: Vec<ClassLine>,
    /// Bytes that stand replicated, with their copies.
    replicated_bytes: u64,
    /// The cost of writing since the archive was made.
    work: WorkLine,
    /// Nodes that do not count, and why.
    absent: Vec<Absent>,
    volumes: Vec<Line>,
    /// The server, when there is one.
    server: Option<ArchiveServer>,
}

/// The snapshots of a set on one host.
#[derive(Debug, Serialize)]
struct SetLine {
    set: String,
    host: String,
    snapshots: u64,
    /// When the newest whole one was made, in seconds since 1970.
    newest_whole: Option<u64>,
}

/// When gc and scrub were done last, in seconds since 1970.
#[derive(Debug, Serialize)]
struct CareLine {
    /// When a gc went through to its end last.
    gc_ended: Option<u64>,
    /// When all data had been read last.
    scrub_ended: Option<u64>,
    /// When the reading of all data began that is under way, and the share of it that is done.
    scrub_began: Option<u64>,
    scrubbed_bytes: u64,
}

impl CareLine {
    fn of(tables: &Tables) -> Result<CareLine> {
        let Care { collected, scrub_began, scrubbed, scrub_ended } = tables.care;
        let at = |at: u64| (at > 0).then_some(at);
        let mut scrubbed_bytes = 0;
        for container in &tables.containers {
            let stored = match container {
                // A check tells of a leaf that is lost; all other figures are known.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Io) => continue,
                found => found?.stored,
            };
            if stored.id > scrubbed {
                break;
            }
            scrubbed_bytes += u64::from(stored.place.bytes);
        }
        Ok(CareLine {
            gc_ended: at(collected),
            scrub_ended: at(scrub_ended),
            scrub_began: at(scrub_began),
            scrubbed_bytes,
        })
    }
}

/// How old things may be before an operator is needed, in seconds; nothing is not looked at. And how many
/// bytes of each file system must be free; else as many as an archive holds back for deletion.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limits {
    /// The newest whole snapshot of each set.
    pub(super) snapshot: Option<u64>,
    /// The last gc that went through to its end.
    pub(super) gc: Option<u64>,
    /// The last time that all data had been read.
    pub(super) scrub: Option<u64>,
    pub(super) free: Option<u64>,
}

fn sets(tables: &Tables) -> Vec<SetLine> {
    let mut sets: BTreeMap<(&str, &str), (u64, Option<u64>)> = BTreeMap::new();
    for snapshot in tables.snapshots.listed() {
        let (count, newest) = sets.entry((&snapshot.set, &snapshot.host)).or_default();
        *count += 1;
        if snapshot.completeness == Completeness::Whole {
            *newest = newer(*newest, snapshot.ended);
        }
    }
    let line = |((set, host), (snapshots, newest_whole)): ((&str, &str), _)| SetLine {
        set: set.to_owned(),
        host: host.to_owned(),
        snapshots,
        newest_whole,
    };
    sets.into_iter().map(line).collect()
}

/// The newer one of two times, of which those in the future count only where there is no other one.
fn newer(one: Option<u64>, other: u64) -> Option<u64> {
    let is_known = |at: u64| Last::of(Some(at)) != Last::InTheFuture;
    one.into_iter().chain([other]).max_by_key(|&at| (is_known(at), at))
}

/// The containers of a class.
#[derive(Debug, Serialize)]
struct ClassLine {
    class: String,
    code: [u64; 2],
    chunks: u64,
    /// Before compression.
    chunk_bytes: u64,
    /// A container is a stripe.
    stripes: u64,
    /// With parity, or copies, in whole units of 4 KiB.
    written_bytes: u64,
}

/// Bytes written, with parity and copies, and what gc did for them.
#[derive(Debug, Serialize)]
struct WorkLine {
    upload_written_bytes: u64,
    encode_written_bytes: u64,
    merge_written_bytes: u64,
    encoded_chunks: u64,
    encoded_chunk_bytes: u64,
    reencoded_chunks: u64,
    reencoded_chunk_bytes: u64,
}

fn classes(tables: &Tables) -> Vec<ClassLine> {
    let line = |class: Class| {
        let totals = tables.sums().of(class);
        let data = u64::from(tables.data_of(class)?);
        Some(ClassLine {
            class: class.to_string(),
            code: [data + u64::from(tables.parity), data],
            chunks: totals.chunks,
            chunk_bytes: totals.raw_bytes,
            stripes: totals.containers,
            written_bytes: totals.written_bytes,
        })
        .filter(|line| line.stripes > 0)
    };
    Class::ALL.into_iter().filter_map(line).collect()
}

/// A node that does not count.
#[derive(Debug, Serialize)]
struct Absent {
    node: usize,
    directory: String,
    why: String,
}

impl Stats {
    /// The figures of an archive whose `tables` these are.
    pub(in crate::verbs) fn new(
        directory: &ArchiveDir,
        archive: &Archive,
        tables: &Tables,
        nodes: Option<&Nodes>,
        server: Option<ArchiveServer>,
    ) -> Result<Stats> {
        let absent = nodes.into_iter().flat_map(Nodes::absent).map(|(node, why)| Absent {
            node,
            directory: directory.node(node).display().to_string(),
            why: why.to_string(),
        });
        let code = nodes.map_or([1, 1], |nodes| [nodes.code().0 as u64, nodes.code().1 as u64]);
        let late = archive.label().late;
        // Holes make the sums as large as anybody likes.
        let streams = tables.streams.values().map(|stream| stream.bytes);
        let bytes = streams.fold(0, u64::saturating_add);
        let snapshot_bytes = tables.snapshots.listed().map(|one| one.bytes);
        let snapshot_bytes = snapshot_bytes.fold(0, u64::saturating_add);
        let damaged = tables.damaged.values().flatten();
        let stored_bytes = tables.sums().all().bytes;
        let volumes = archive_volume::lines(tables);
        let mapped = volumes.iter().map(|volume| volume.mapped_bytes).sum::<u64>();
        let Totals { chunks, raw_bytes: chunk_bytes, .. } = tables.sums().all();
        let (index_directory, unused) = directory
            .index_directory()
            .map(|(path, unused)| (path.display().to_string(), unused))
            .unzip();
        Ok(Stats {
            engine: "archive",
            archive: directory.path().display().to_string(),
            chunking: archive.label().chunking.to_string(),
            compression: archive.label().compression.to_string(),
            encrypted: archive.label().sealed.is_some(),
            pads: archive.label().pads,
            head: archive.label().sealed.map(|_| head_of(&archive.tables()).to_string()),
            older_data_keys: data_keys(tables)?
                .into_iter()
                .filter(|one| one.has_older)
                .map(OlderKey::of)
                .collect(),
            fingerprint: archive.label().fingerprint.to_string(),
            streams: tables.streams.len() as u64,
            bytes,
            snapshots: tables.snapshots.listed().count() as u64,
            snapshot_bytes,
            forgotten_snapshots: tables.snapshots.forgotten().count() as u64,
            sets: sets(tables),
            damaged_chunks: damaged.map(|bits| u64::from(bits.count_ones())).sum(),
            care: CareLine::of(tables)?,
            stored_bytes,
            ratio: (stored_bytes > 0).then(|| {
                (bytes as f64 + snapshot_bytes as f64 + mapped as f64) / stored_bytes as f64
            }),
            containers: tables.containers.len() as u64,
            chunks,
            chunk_bytes,
            unfinished_containers: tables.unfinished.len() as u64,
            held_back_bytes: tables
                .waiting_to_be_freed
                .keys()
                .map(|place| u64::from(place.bytes))
                .sum(),
            free_bytes: match nodes {
                Some(_) => None,
                None => Some(directory.free_bytes()?),
            },
            index_entries: tables.index.files.iter().map(|file| file.entries).sum(),
            index_files: tables.index.files.len() as u64,
            index_lost_files: if directory.sees_index() { lost_index_files(archive)? } else { 0 },
            index_directory,
            index_directory_unused: unused.flatten(),
            due: replay_due(archive, tables)?.into(),
            reserve_bytes: archive.reserve().bytes()?,
            epoch: tables.epoch,
            nodes: nodes.map_or(1, |nodes| nodes.count() as u64),
            code,
            placement: if late.is_some() { "rad" } else { "round-robin" },
            delay: late.map(|rad| rad.delay),
            batch: late.map(|rad| rad.batch),
            batch_bytes: late.filter(|rad| rad.gathers > 0).map(|rad| u64::from(rad.gathers) << 10),
            classes: classes(tables),
            replicated_bytes: tables.sums().replicated().0,
            work: WorkLine::from(&tables.write_cost),
            absent: absent.collect(),
            volumes,
            server,
        })
    }
}

impl From<&WriteCost> for WorkLine {
    fn from(work: &WriteCost) -> WorkLine {
        WorkLine {
            upload_written_bytes: work.upload_bytes,
            encode_written_bytes: work.encode_bytes,
            merge_written_bytes: work.merge_bytes,
            encoded_chunks: work.encoded_chunks,
            encoded_chunk_bytes: work.encoded_chunk_bytes,
            reencoded_chunks: work.reencoded_chunks,
            reencoded_chunk_bytes: work.reencoded_chunk_bytes,
        }
    }
}

impl Stats {
    /// What needs an operator, a sentence each. What was never done is late when something is there
    /// for as long, `first` being the time of the oldest.
    fn problems(&self, limits: Limits, first: Option<u64>) -> Vec<String> {
        let mut all = Vec::new();
        if let Some(server) = &self.server {
            let only_reads = |reason| format!("its server only reads: {reason}");
            all.extend(server.stopped.iter().map(only_reads));
            all.extend(server.held_back.iter().cloned());
            let failed = |why| {
                format!(
                    "the index directory of its server failed, and is used again when the server is \
                     started again: {why}"
                )
            };
            all.extend(server.index_failed.iter().map(failed));
        }
        if let Some(why) = &self.index_directory_unused {
            all.push(format!(
                "the chunk index is not where it should be: {why} (`onefold index {} --beside-data` \
                 forgets a directory that is lost for good)",
                self.archive
            ));
        }
        if self.index_lost_files > 0 {
            all.push(format!(
                "the chunk index lost {}; the next put makes it anew",
                counted(self.index_lost_files, "file")
            ));
        }
        for absent in &self.absent {
            all.push(format!(
                "node {} ({}) does not count: {}",
                absent.node, absent.directory, absent.why
            ));
        }
        if self.damaged_chunks > 0 {
            all.push(format!("{} damaged", counted(self.damaged_chunks, "chunk")));
        }
        for set in &self.sets {
            let newest = Last::of(set.newest_whole);
            if newest.is_late(limits.snapshot) {
                let (name, host) = (set.set.escape_debug(), set.host.escape_debug());
                let made = newest.told("was made ");
                all.push(format!("the last whole snapshot of set '{name}' of {host} {made}"));
            }
        }
        let (gc, scrub) = (Last::of(self.care.gc_ended), Last::of(self.care.scrub_ended));
        // An archive whose first content is dated in the future is new: gc and scrub have their time.
        let first = match Last::of(first) {
            Last::InTheFuture | Last::Never => Last::Ago(0),
            ago => ago,
        };
        if gc.or(first).is_late(limits.gc) {
            all.push(format!("gc is overdue: {}", went_through(gc)));
        }
        // The first round has its time, too.
        if scrub.or(Last::of(self.care.scrub_began)).or(first).is_late(limits.scrub) {
            all.push(format!("scrub is overdue: {}", had_read(scrub)));
        }
        all
    }
}

/// When something was done last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Never,
    /// So many seconds ago.
    Ago(u64),
    /// By a clock that was wrong: nobody knows when.
    InTheFuture,
}

impl Last {
    /// Of a time in seconds since 1970.
    fn of(at: Option<u64>) -> Last {
        let age = |at| age(Duration::from_secs(at), Duration::from_secs(now()));
        at.map_or(Last::Never, |at| {
            age(at).map_or(Last::InTheFuture, |age| Last::Ago(age.as_secs()))
        })
    }

    /// The other one if this was never.
    fn or(self, other: Last) -> Last {
        if self == Last::Never { other } else { self }
    }

    /// True when it is longer ago than it may be, or nobody knows how long.
    fn is_late(self, most: Option<u64>) -> bool {
        most.is_some_and(|most| match self {
            Last::Never | Last::InTheFuture => true,
            Last::Ago(age) => age > most,
        })
    }

    /// In words, behind what was done then.
    fn told(self, what: &str) -> String {
        match self {
            Last::Never => format!("{what}never"),
            Last::Ago(age) => format!("{what}{} ago", duration(age)),
            Last::InTheFuture => "is dated in the future".to_owned(),
        }
    }
}

/// How long ago a gc went through to its end.
fn went_through(last: Last) -> String {
    match last {
        Last::Never => "none ever went through to its end".to_owned(),
        Last::Ago(_) => last.told("the last one went through to its end "),
        Last::InTheFuture => "the end of the last one is dated in the future".to_owned(),
    }
}

/// How long ago scrubs had read all data.
fn had_read(last: Last) -> String {
    match last {
        Last::InTheFuture => "the end of the last round is dated in the future".to_owned(),
        Last::Never => "all data were never read".to_owned(),
        last => last.told("all data had been read "),
    }
}

/// The figures of an archive, served or not.
fn look(directory: &ArchiveDir, memory: u64) -> Result<(Arc<Archive>, Stats)> {
    let archive = directory.open_to_read(memory)?;
    let nodes = directory.nodes(false, false)?;
    let server =
        directory.server().ok().flatten().and_then(|mut server| server.ask(&Request::Status).ok());
    // What is read when it is looked at stays where it is.
    let guard = EpochGuard::enter(&archive)?;
    let stats = Stats::new(directory, &archive, &guard.tables, nodes.as_deref(), server)?;
    drop(guard);
    Ok((archive, stats))
}

/// The free bytes of the file systems on which the archive lies: its own, or those of the nodes that count.
fn free_of_each(directory: &ArchiveDir, stats: &Stats) -> Result<Vec<(String, u64)>> {
    if let Some(free) = stats.free_bytes {
        return Ok(vec![(stats.archive.clone(), free)]);
    }
    let counts = |node: &usize| stats.absent.iter().all(|absent| absent.node != *node);
    let nodes = (0..stats.nodes as usize).filter(counts).map(|node| directory.node(node));
    nodes.map(|path| Ok((path.display().to_string(), room(&path)?.bytes))).collect()
}

/// Says so when a file system has less free than it must have.
fn too_little(path: &str, free: u64, least: u64) -> Option<String> {
    (free < least).then(|| {
        format!(
            "the file system of {path} has {} free, less than {}: `onefold forget` and `onefold gc` make \
             room, or a larger disk",
            Size(free),
            Size(least)
        )
    })
}

/// A sentence for each set whose newest snapshot is marked as shrunk.
fn shrunk(tables: &Tables) -> impl Iterator<Item = String> {
    let mut newest = BTreeMap::new();
    for snapshot in tables.snapshots.listed() {
        let last = newest.entry((&snapshot.host, &snapshot.set)).or_insert(snapshot);
        if snapshot.ended >= last.ended {
            *last = snapshot;
        }
    }
    newest.into_iter().filter(|(_, last)| last.completeness == Completeness::Shrunk).map(
        |((host, set), _)| {
            format!(
                "the newest snapshot of set '{}' of {} is marked as shrunk: look for what is missing, or say by \
                 `onefold backup --accept` that all is well",
                set.escape_debug(),
                host.escape_debug()
            )
        },
    )
}

/// What needs an operator, a sentence each; with policies also the sets from which they would take
/// too much.
pub(super) fn problems(
    directory: &ArchiveDir,
    memory: u64,
    limits: Limits,
    policies: Option<&PolicyFile>,
) -> Result<Vec<String>> {
    let (archive, stats) = look(directory, memory)?;
    let tables = archive.tables();
    let snapshots = tables.snapshots.listed().map(|snapshot| snapshot.ended);
    let first = snapshots.chain(tables.streams.values().map(|stream| stream.created)).min();
    let mut all = stats.problems(limits, first);
    let least = limits.free.unwrap_or(Format::new([0; 16], [0; 32], [0; 16]).reserve_bytes);
    for (path, free) in free_of_each(directory, &stats)? {
        all.extend(too_little(&path, free, least));
    }
    // For how long one whole snapshot is enough is the operator's word.
    if limits.snapshot.is_none() {
        all.extend(shrunk(&tables));
    }
    if let Some(policies) = policies {
        let append_only =
            policies.append_only || stats.server.is_some_and(|server| server.append_only);
        let terms = Terms { now: now(), zone: policies.zone.clone(), append_only };
        let policy_of = |host: &str, set: &str| policies.policy(host, set);
        let judged = Judged::new(&tables, &|_| true, &policy_of, &terms, false);
        // The server may have said the same.
        all.extend(judged.guarded);
        let mut said = BTreeSet::new();
        all.retain(|problem| said.insert(problem.clone()));
    }
    Ok(all)
}

/// Tells about an archive.
pub(super) fn show(directory: &ArchiveDir, memory: u64, json: bool) -> Result<(), Failure> {
    let (archive, stats) = look(directory, memory)?;
    let (late, work) = (archive.label().late, archive.tables().write_cost);
    if json {
        output::json(&stats)?;
        return Ok(());
    }
    let row = |label: &str, text: String| output::line(format_args!("{label:<15}{text}"));
    row("archive", stats.archive.clone());
    row(
        "form",
        format!(
            "chunks by {}, compressed by {}, fingerprints by {}",
            stats.chunking, stats.compression, stats.fingerprint
        ),
    );
    let encryption = match (stats.encrypted, stats.pads) {
        (true, true) => "encrypted (experimental), containers padded to few lengths",
        (true, false) => "encrypted (experimental)",
        (false, _) => "not encrypted",
    };
    row("encryption", encryption.to_owned());
    if let Some(head) = &stats.head {
        row("head", head.clone());
    }
    for OlderKey { domain, containers, bytes } in &stats.older_data_keys {
        let left = format!("{} with {}", counted(*containers, "container"), Size(*bytes));
        row(
            "data keys",
            format!("domain {domain} has two: {left} left under the older one, for gc --reseal"),
        );
    }
    if stats.nodes > 1 {
        let [n, k] = stats.code;
        row(
            "nodes",
            format!("{}, containers in {n} shards of which any {k} are enough", stats.nodes),
        );
        stats.absent.iter().for_each(|absent| {
            row("absent", format!("node {} ({}): {}", absent.node, absent.directory, absent.why))
        });
    }
    if let (Some(delay), Some(batch)) = (stats.delay, stats.batch) {
        let versions = |n: u32| counted(u64::from(n), "version");
        let placement = match stats.batch_bytes {
            Some(bytes) => format!(
                "rad: new chunks of puts and backups are encoded at once, {} at a time",
                Size(bytes)
            ),
            None => format!(
                "rad: encoded when counts did not change for {}, {} at a time",
                versions(delay),
                versions(batch)
            ),
        };
        row("placement", placement);
        for line in &stats.classes {
            let (stripes, [n, k]) = (counted(line.stripes, "stripe"), line.code);
            let (chunks, bytes, written) =
                (grouped(line.chunks), Size(line.chunk_bytes), Size(line.written_bytes));
            row(
                &line.class,
                format!(
                    "{stripes} of {n},{k}: {chunks} chunks with {bytes}, {written} on the nodes"
                ),
            );
        }
    }
    let WriteCost {
        upload_bytes, encode_bytes, merge_bytes, encoded_chunks, reencoded_chunks, ..
    } = work;
    let encoded = if late.is_some() {
        format!(", {} to encode {}", Size(encode_bytes), counted(encoded_chunks, "chunk"))
    } else {
        String::new()
    };
    let merged =
        format!("{} by gc to merge {}", Size(merge_bytes), counted(reencoded_chunks, "chunk"));
    row("written", format!("{} by puts and backups{encoded}, {merged}", Size(upload_bytes)));
    if let Some(server) = &stats.server {
        row("served", format!("by process {} at {}", server.pid, server.listeners.join(" and ")));
        row("to be flushed", Size(server.dirty_bytes).to_string());
        server.stopped.iter().for_each(|reason| row("READING ONLY", reason.clone()));
    }
    for volume in &stats.volumes {
        let (bytes, mapped) = (Size(volume.bytes), Size(volume.mapped_bytes));
        row("volume", format!("{} of {bytes}, {mapped} written", volume.name.escape_debug()));
    }
    row("streams", format!("{} with {}", grouped(stats.streams), Size(stats.bytes)));
    if stats.snapshots > 0 {
        row(
            "snapshots",
            format!("{} with {}", grouped(stats.snapshots), Size(stats.snapshot_bytes)),
        );
    }
    for set in &stats.sets {
        let newest = match Last::of(set.newest_whole) {
            Last::Never => "none is whole".to_owned(),
            last => format!("the newest whole one {}", last.told("")),
        };
        let (name, host) = (set.set.escape_debug(), set.host.escape_debug());
        let all = counted(set.snapshots, "snapshot");
        row("set", format!("{name} of host {host}: {all}, {newest}"));
    }
    if stats.forgotten_snapshots > 0 {
        row("in the trash", counted(stats.forgotten_snapshots, "forgotten snapshot"));
    }
    row("gc", went_through(Last::of(stats.care.gc_ended)));
    let round = stats.care.scrub_began.map_or_else(String::new, |began| {
        let done = stats.care.scrubbed_bytes as f64 / stats.stored_bytes.max(1) as f64;
        let began = Last::of(Some(began)).told("began ");
        format!("; {:.0} % of a round that {began}", (done * 100.0).min(100.0))
    });
    let read = match Last::of(stats.care.scrub_ended) {
        Last::Never => "has not read all data yet".to_owned(),
        Last::InTheFuture => had_read(Last::InTheFuture),
        last => last.told("last read all data "),
    };
    row("scrub", format!("{read}{round}"));
    if stats.damaged_chunks > 0 {
        row("DAMAGED", counted(stats.damaged_chunks, "chunk"));
    }
    // A small archive has more of its own than of what it keeps.
    let ratio = stats.ratio.filter(|ratio| *ratio >= 1.0);
    let ratio = ratio.map_or_else(String::new, |ratio| {
        format!(" for {ratio:.2} times as much in streams, snapshots and volumes")
    });
    row(
        "stored",
        format!(
            "{} in {}{ratio}",
            Size(stats.stored_bytes),
            counted(stats.containers, "container")
        ),
    );
    row(
        "chunks",
        format!("{} with {} before compression", grouped(stats.chunks), Size(stats.chunk_bytes)),
    );
    row(
        "chunk index",
        format!(
            "{} in {}",
            counted(stats.index_entries, "entry"),
            counted(stats.index_files, "file")
        ),
    );
    if let Some(path) = &stats.index_directory {
        let not = stats
            .index_directory_unused
            .as_ref()
            .map_or_else(String::new, |why| format!(", NOT USED: {why}"));
        row("index in", format!("{path}{not}"));
    }
    if stats.index_lost_files > 0 {
        let lost = counted(stats.index_lost_files, "file");
        row("INDEX LOST", format!("{lost}; the next put makes the index anew"));
    }
    if let Some(why) = stats.server.as_ref().and_then(|server| server.index_failed.as_ref()) {
        row("INDEX FAILED", format!("its directory is used again by the next server: {why}"));
    }
    row("to be replayed", stats.due.told(stats.server.as_ref()));
    if stats.unfinished_containers > 0 {
        row(
            "unfinished",
            format!(
                "{} of puts that run or were killed",
                counted(stats.unfinished_containers, "container")
            ),
        );
    }
    if stats.held_back_bytes > 0 {
        row("to be freed", format!("{} when its readers have ended", Size(stats.held_back_bytes)));
    }
    let (reserve, ahead) =
        (Size(stats.reserve_bytes), Size(onefold_archive::Settings::default().log_ahead_bytes));
    row(
        "reserve",
        format!(
            "{reserve} so that forget, rm and gc work on a full disk; up to {ahead} for the log"
        ),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_that_is_dated_in_the_future_is_late_unless_there_is_another_one() {
        let (before, ahead) = (now() - 60, now() + 1000 * 86_400);
        let newest = |times: &[u64]| times.iter().fold(None, |newest, at| newer(newest, *at));
        assert_eq!(newest(&[before - 5, ahead, before]), Some(before));
        let last = Last::of(newest(&[ahead]));
        assert!(last == Last::InTheFuture && last.is_late(Some(u64::MAX)) && !last.is_late(None));
        assert_eq!(last.told("was made "), "is dated in the future");
        // Clocks of several hosts differ a little.
        assert_eq!(Last::of(Some(now() + 100)), Last::Ago(0));
    }
}
