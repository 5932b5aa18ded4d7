//! `onefold put`: a stream, a file or a directory into an archive.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use clap::Args;
use onefold_archive::{
    Archive, FilterName, Settings,
    format::{listing, record::Shape},
    pipeline::{Feeder, Gauge, Report, Request, put},
};
use onefold_backend::{
    sparse::next_data,
    tree::{read_data, walk},
};
use onefold_core::{Error, Result, tree::What};
use serde::Serialize;

use crate::{
    archive_dir::{ArchiveDir, now},
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, grouped, share},
};

/// Time between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Stores a stream, a file or a directory under a name; what had the name before is replaced
///
/// Without FILE and without -r it is standard input. The stream is there, durably, when the command ends, and not at all when it fails. What a killed
/// put had stored is found again when it is repeated.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold put backups etc-monday -r /etc\n  onefold put backups vm1 vm1.raw\n  onefold put backups dump --json"
)]
pub(crate) struct Options {
    /// The archive
    archive: PathBuf,

    /// The name
    name: String,

    /// A file or a device; its holes cost nothing
    file: Option<PathBuf>,

    /// A directory with all that is in it: names, modes, owners, times, links, holes and extended attributes
    #[arg(short, long, value_name = "DIR", conflicts_with = "file")]
    recursive: Option<PathBuf>,

    /// Fails when another put is running, instead of waiting for it
    #[arg(long)]
    no_wait: bool,

    /// The filter chain, in its order: container-cache, bloom, chunk-index, byte-compare
    #[arg(long, value_delimiter = ',', default_value = "container-cache,bloom,chunk-index", value_name = "FILTERS")]
    filters: Vec<FilterName>,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// What was stored.
#[derive(Debug, Serialize)]
struct Stored {
    name: String,
    bytes: u64,
    chunks: u64,
    /// Chunks that were there already.
    duplicate_chunks: u64,
    /// Bytes of new chunks.
    new_bytes: u64,
    /// Bytes by which the archive grew, with recipes and metadata.
    added_bytes: u64,
    index_page_reads: u64,
    metadata_reads: u64,
    seconds: f64,
    cpu_seconds: f64,
}

/// Stores it, and tells what it took.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = ArchiveDir::look(&options.archive)?;
    if !options.filters.contains(&FilterName::ChunkIndex) {
        return Err(Failure::usage("--filters without chunk-index would find no duplicates of earlier streams"));
    }
    let archive = directory.open(Settings { filters: options.filters.clone(), ..Settings::default() })?;
    let begun = Instant::now();
    let (gauge, total) = (Gauge::default(), total(options)?);
    let ended = AtomicBool::new(false);
    let shape = if options.recursive.is_some() { Shape::Tree } else { Shape::Bytes };
    let request = Request { name: options.name.clone(), shape, now: now(), wait: !options.no_wait };
    let report = std::thread::scope(|scope| {
        scope.spawn(|| show(&gauge, total, &ended));
        let report = store(&archive, request, &gauge, options);
        ended.store(true, Relaxed);
        report
    })?;
    tell(options, &report, begun)
}

fn store(archive: &Arc<Archive>, request: Request, gauge: &Gauge, options: &Options) -> Result<Report> {
    match (&options.recursive, &options.file) {
        (Some(root), _) => put(archive, request, gauge, |feeder| feed_tree(feeder, root)),
        (None, Some(path)) => {
            let file = File::open(path).map_err(|e| Error::from_io(path.display(), e))?;
            let end = length(path, &file)?;
            put(archive, request, gauge, |feeder| feed_file(feeder, &file, end).map_err(|e| e.context(path.display())))
        }
        (None, None) => put(archive, request, gauge, |feeder| {
            let mut input = std::io::stdin().lock();
            while feeder.fill(|room| read_once(&mut input, room))? > 0 {}
            Ok(())
        }),
    }
}

fn read_once(input: &mut impl Read, room: &mut [u8]) -> Result<usize> {
    loop {
        match input.read(room) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read.map_err(|e| Error::from_io("standard input can't be read", e)),
        }
    }
}

/// Bytes of a file or a device.
fn length(path: &Path, file: &File) -> Result<u64> {
    use std::os::unix::fs::FileTypeExt;
    let metadata = file.metadata().map_err(|e| Error::from_io(path.display(), e))?;
    if metadata.file_type().is_block_device() { onefold_backend::device_bytes(path) } else { Ok(metadata.len()) }
}

/// What is known about the size beforehand; 0 for nothing.
fn total(options: &Options) -> Result<u64> {
    match &options.file {
        Some(path) => {
            let file = File::open(path).map_err(|e| Error::from_io(path.display(), e))?;
            length(path, &file)
        }
        None => Ok(0),
    }
}

/// All bytes of a file, its holes without reading them.
fn feed_file(feeder: &mut Feeder<'_>, file: &File, end: u64) -> Result<()> {
    let mut at = 0;
    let ranges = read_ranges(feeder, file, end, &mut at)?;
    // What lies behind the last data, or was cut off meanwhile.
    if ranges && at < end { feeder.zeroes(end - at) } else { Ok(()) }
}

/// Feeds data and the holes before it; false when there was neither length nor end, as for a pipe.
fn read_ranges(feeder: &mut Feeder<'_>, file: &File, end: u64, at: &mut u64) -> Result<bool> {
    if end == 0 {
        // A pipe, or a file that does not tell its length.
        let mut file = file;
        while feeder.fill(|room| read_once(&mut file, room))? > 0 {}
        return Ok(false);
    }
    while let Some((start, stop)) = next_data(file, *at, end)? {
        if start > *at {
            feeder.zeroes(start - *at)?;
        }
        *at = start;
        let read = read_data_range(feeder, file, start, stop)?;
        *at += read;
        if *at < stop {
            break;
        }
    }
    Ok(true)
}

fn read_data_range(feeder: &mut Feeder<'_>, file: &File, start: u64, stop: u64) -> Result<u64> {
    use std::os::unix::fs::FileExt;
    let mut at = start;
    while at < stop {
        let n = feeder.fill(|room| {
            let most = room.len().min(usize::try_from(stop - at).unwrap_or(usize::MAX));
            file.read_at(&mut room[..most], at).map_err(|e| Error::from_io("it can't be read", e))
        })?;
        if n == 0 {
            break;
        }
        at += n as u64;
    }
    Ok(at - start)
}

/// The data of all files, then the listing.
fn feed_tree(feeder: &mut Feeder<'_>, root: &Path) -> Result<()> {
    let mut names = Vec::new();
    walk(root, &mut |mut found| {
        if let (What::File { bytes, data }, Some(file)) = (&mut found.entry.what, &found.file) {
            feeder.border();
            *data = read_data(file, *bytes, &mut |read| feeder.fill(|room| read(room)))?;
        }
        listing::encode(&found.entry, &mut names);
        Ok(())
    })?;
    feeder.end_recipe()?;
    feeder.bytes(&names)
}

/// Shows how far it is until it ends.
fn show(gauge: &Gauge, total: u64, ended: &AtomicBool) {
    let bar = Progress::new("storing");
    while !ended.load(Relaxed) {
        std::thread::sleep(LOOK_EVERY);
        let (read, new) = (gauge.read.load(Relaxed), gauge.new.load(Relaxed));
        if read > 0 {
            bar.note(&format!("storing, {} new", share(new, read)));
        }
        bar.set(read, total);
    }
}

fn tell(options: &Options, report: &Report, begun: Instant) -> Result<(), Failure> {
    let stream = &report.stream;
    let stored = Stored {
        name: options.name.clone(),
        bytes: stream.bytes,
        chunks: stream.chunks,
        duplicate_chunks: report.counts.duplicates,
        new_bytes: report.new_bytes,
        added_bytes: stream.added,
        index_page_reads: report.counts.page_reads,
        metadata_reads: report.counts.metadata_reads,
        seconds: begun.elapsed().as_secs_f64(),
        cpu_seconds: onefold_backend::process::cpu_time().as_secs_f64(),
    };
    if options.json {
        let text = serde_json::to_string_pretty(&stored).map_err(|e| Failure::new(format!("the report can't be written as JSON: {e}")))?;
        output::line(text);
        return Ok(());
    }
    output::line(format_args!(
        "stored {:?}: {} in {} chunks, {} of it new; the archive grew by {}",
        stored.name,
        Size(stored.bytes),
        grouped(stored.chunks),
        share(stored.new_bytes, stored.bytes),
        Size(stored.added_bytes)
    ));
    Ok(())
}
