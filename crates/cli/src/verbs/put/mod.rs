//! `onefold put`: a stream, a file or a directory into an archive; a stream or a file into a store
//! of the cluster engine.

mod source;

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use clap::Args;
use onefold_archive::{
    Archive, FilterName, Gauge, Ingest, PutReport as Report, PutRequest, Settings, Shape,
    domain_called, put_on,
};
use onefold_core::{Kind, Result};
use serde::{Deserialize, Serialize};

use self::source::{Source, Tree};

use super::{
    Found, VOLUMES_ONLY, cluster,
    exclude::{self, Exclude},
    refused,
    waiting::{Patience, Waiting},
    with_advice,
};
use onefold::parts::{
    archive_dir::{ArchiveDir, now},
    control::{self, Client},
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{Size, counted, share},
};

/// The usual filter chain.
pub(super) const FILTERS: &str = "block-index,container-cache,bloom,chunk-index";

/// Time between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Stores a stream, a file or a directory under a name, and replaces what had the name before
///
/// Without FILE and without -r the verb stores standard input. When it succeeds, the stream is
/// durable; when it fails, the name keeps what it had before. A repeated put finds the chunks again
/// that a killed one had stored. When the archive is served, its server stores the stream, beside
/// other puts and writes to volumes. If files of a directory can't be read, the verb names them and
/// leaves them out, marks the stream as incomplete, and the exit status is 3. A store of the
/// cluster engine takes streams and files, and no directories.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold put backups etc-monday -r /etc\n  \
                  onefold put backups vm1 vm1.raw\n  \
                  onefold put backups dump --json\n  \
                  onefold put backups home -r /home --exclude '*.tmp' --exclude .cache/ \
                  --exclude-caches --one-file-system")]
pub(crate) struct Options {
    /// The store: an archive, or a store of the cluster engine
    store: PathBuf,

    /// The name
    name: String,

    /// A file or a device; holes of a file take no space in an archive
    file: Option<PathBuf>,

    /// A directory with all that is in it: names, modes, owners, times, links, holes and extended
    /// attributes
    #[arg(short, long, value_name = "DIR", conflicts_with = "file")]
    recursive: Option<PathBuf>,

    #[command(flatten)]
    selection: exclude::Options,

    /// Fails when something can't be read, instead of leaving it out
    #[arg(long)]
    strict: bool,

    /// The domain that the stream belongs to: it shares nothing with streams of others, and is gone when
    /// its domain is erased. Without it, the domain of the stream that it replaces, or else the one that
    /// each archive begins with. Encrypted archives only
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,

    /// Continues when nodes are absent, as long as one more is present than the data needs.
    /// Archives on several nodes only
    #[arg(long)]
    degraded: bool,

    #[command(flatten)]
    patience: Patience,

    /// The filter chain, in order: block-index, container-cache, bloom, chunk-index, byte-compare.
    /// A server uses its own
    #[arg(long, value_delimiter = ',', default_value = FILTERS, value_name = "FILTERS")]
    filters: Vec<FilterName>,

    /// Level of Zstandard for new chunks, in an archive with --compress zstd. A server uses its own
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = clap::value_parser!(i32).range(1..=19)
    )]
    level: i32,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

impl Options {
    /// Figures that only archives know.
    fn is_about_archives(&self) -> bool {
        self.recursive.is_some()
            || self.is_about_trees()
            || self.degraded
            || self.patience.is_given()
            || self.domain.is_some()
    }

    fn is_about_trees(&self) -> bool {
        self.selection.are_given() || self.strict
    }
}

/// The outcome of a put.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    name: String,
    bytes: u64,
    chunks: u64,
    /// Chunks that were there already.
    duplicate_chunks: u64,
    /// Bytes of new chunks.
    new_bytes: u64,
    /// Bytes by which the archive grew, with recipes and metadata.
    added_bytes: u64,
    /// Something of the tree is missing.
    #[serde(default)]
    incomplete: bool,
    /// Files and directories that could not be read, whole or in part.
    #[serde(default)]
    skipped: u64,
    index_page_reads: u64,
    metadata_reads: u64,
    seconds: f64,
    cpu_seconds: f64,
}

/// Stores it, and tells what it took.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = match Found::at(&options.store)? {
        Found::Archive(directory) => directory,
        Found::Cluster(url) if !options.is_about_archives() => {
            let answer = Answer { json: options.json };
            return cluster::put(&url, &options.name, options.file.as_deref(), answer);
        }
        other @ Found::Block(_) => return Err(refused(&options.store, &other, VOLUMES_ONLY)),
        other => {
            let why =
                "it takes streams and files, and has no nodes, no domains and no puts to wait for";
            return Err(refused(&options.store, &other, why));
        }
    };
    valid_filters(&options.filters)?;
    if options.recursive.is_none() && options.is_about_trees() {
        return Err(Failure::usage(
            "--strict and the options of what is left out are about a directory: give --recursive DIR",
        ));
    }
    let source = match (&options.recursive, &options.file) {
        (Some(root), _) => Source::Tree(Box::new(tree(root, &directory, options)?)),
        (None, Some(path)) => Source::File(path.clone()),
        (None, None) => Source::Input,
    };
    let begun = Instant::now();
    let (gauge, total) = (Gauge::default(), source.total()?);
    let ended = AtomicBool::new(false);
    let mut notes = Vec::new();
    let stored = std::thread::scope(|scope| {
        let shown = scope.spawn(|| show(&gauge, total, &ended));
        let stored = match directory.server() {
            Ok(Some(server)) => send((server, &directory), &source, &gauge, options),
            Ok(None) => store(&directory, &source, &gauge, options, &mut notes),
            Err(error) => Err(error),
        };
        ended.store(true, Relaxed);
        shown.thread().unpark();
        stored.map_err(|error| with_advice(error, directory.path()))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    tell(
        options,
        Stored {
            seconds,
            cpu_seconds: onefold_backend::process::cpu_time().as_secs_f64(),
            skipped: source.skipped(),
            ..stored
        },
    )?;
    if !options.json {
        notes.iter().for_each(|note| output::line(format_args!("note: {note}")));
    }
    match source.skipped() {
        0 => Ok(()),
        n => Err(Failure::in_part(format!(
            "'{}' is stored and marked as incomplete: the messages above name {} that could \
             not be read",
            options.name,
            counted(n, "path")
        ))),
    }
}

/// A directory as the options want it.
fn tree(root: &Path, directory: &ArchiveDir, options: &Options) -> Result<Tree, Failure> {
    Ok(Tree {
        root: root.to_owned(),
        exclude: Exclude::new(root, &options.selection)?.without(directory),
        selection: options.selection.clone(),
        strict: options.strict,
        skipped: AtomicU64::new(0),
    })
}

/// A filter chain that finds duplicates.
pub(super) fn valid_filters(filters: &[FilterName]) -> Result<(), Failure> {
    if filters.contains(&FilterName::ChunkIndex) {
        return Ok(());
    }
    Err(Failure::usage("--filters without chunk-index would find no duplicates of earlier streams"))
}

/// Stores it here; waits for another ingesting process, or hands it to one that begins to serve
/// meanwhile.
fn store(
    directory: &ArchiveDir,
    source: &Source,
    gauge: &Gauge,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Stored> {
    let settings =
        Settings { filters: options.filters.clone(), level: options.level, ..Settings::default() };
    let (mut archive, mut nodes) = directory.open_nodes(settings.clone(), options.degraded)?;
    onefold_archive::valid_name(&options.name)?;
    directory.warn_of_lost_index(&archive);
    let (mut waiting, mut looked_at) =
        (Waiting::new(directory, options.patience), directory.clone());
    let ingest = loop {
        // Perhaps it was waited for the end of a move.
        if let Some(moved) = looked_at.after_move()? {
            (archive, nodes) = moved.open_nodes(settings.clone(), options.degraded)?;
            looked_at = moved;
        }
        match Ingest::begin(&archive, false, false) {
            Err(error) if error.kind() == Kind::Busy => {}
            begun => break begun?,
        }
        if let Some(server) = directory.server()? {
            drop(waiting);
            return send((server, directory), source, gauge, options);
        }
        waiting.go_on()?;
    };
    drop(waiting);
    let shape = if matches!(source, Source::Tree(_)) { Shape::Tree } else { Shape::Bytes };
    let domain = domain(options, &archive)?;
    let name = options.name.clone();
    let request = PutRequest { name, shape, domain, now: now(), wait: false };
    let report = put_on(&ingest, request, gauge, |feeder| source.feed(feeder))?;
    notes.extend(nodes.iter().flat_map(|nodes| directory.notes(nodes)));
    Ok(Stored::new(&options.name, &report))
}

/// The number of the domain that it goes to.
fn domain(options: &Options, archive: &Archive) -> Result<Option<u32>> {
    options.domain.as_deref().map(|name| domain_called(archive, name)).transpose()
}

/// Lets the server of the archive store it.
fn send(
    (mut server, directory): (Client, &ArchiveDir),
    source: &Source,
    gauge: &Gauge,
    options: &Options,
) -> Result<Stored> {
    // Its number is in the archive, which this process need not open otherwise.
    let domain = match options.domain {
        Some(_) => domain(options, &*directory.open_to_read(Settings::default().memory)?)?,
        None => None,
    };
    let request = control::Request::Put {
        name: options.name.clone(),
        tree: matches!(source, Source::Tree(_)),
        domain,
    };
    let mut progress = |new, read| {
        gauge.new.store(new, Relaxed);
        gauge.read.store(read, Relaxed);
    };
    server.send(&request, &mut progress, |outlet| source.feed(outlet))
}

impl Stored {
    pub(super) fn new(name: &str, report: &Report) -> Stored {
        Stored {
            name: name.to_owned(),
            bytes: report.stream.bytes,
            chunks: report.stream.chunks,
            duplicate_chunks: report.counts.duplicates,
            new_bytes: report.new_bytes,
            added_bytes: report.stream.added,
            incomplete: report.stream.is_incomplete(),
            skipped: 0,
            index_page_reads: report.counts.page_reads,
            metadata_reads: report.counts.metadata_reads,
            seconds: 0.0,
            cpu_seconds: 0.0,
        }
    }
}

/// Shows how far it is until it ends; who ends it wakes this thread.
fn show(gauge: &Gauge, total: u64, ended: &AtomicBool) {
    let bar = Progress::new("storing");
    while !ended.load(Relaxed) {
        std::thread::park_timeout(LOOK_EVERY);
        let (read, new) = (gauge.read.load(Relaxed), gauge.new.load(Relaxed));
        if read > 0 {
            bar.note(&format!("storing, {} new", share(new.min(read), read)));
        }
        bar.set(read, total);
    }
}

/// The share of a stream that is new. Of a tree more may be new than its content: names and attributes.
fn share_new(new: u64, bytes: u64) -> String {
    if new > bytes { String::new() } else { format!(", {} of it new", share(new, bytes)) }
}

fn tell(options: &Options, stored: Stored) -> Result<(), Failure> {
    if options.json {
        output::json(&stored)?;
        return Ok(());
    }
    output::line(format_args!(
        "stored '{}': {} in {}{}; the archive grew by {}",
        stored.name.escape_debug(),
        Size(stored.bytes),
        counted(stored.chunks, "chunk"),
        share_new(stored.new_bytes, stored.bytes),
        Size(stored.added_bytes)
    ));
    Ok(())
}
