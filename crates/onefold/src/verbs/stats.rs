//! `onefold stats`, and `onefold status` of an archive: what it holds and what it saved.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::{
    archive_dir::ArchiveDir,
    failure::Failure,
    output,
    size::{Size, counted, grouped},
};

/// Shows what an archive holds, and what deduplication and compression saved
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold stats backups\n  onefold stats backups --json")]
pub(crate) struct Options {
    /// The archive
    archive: PathBuf,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// The figures.
#[derive(Debug, Serialize)]
struct Stats {
    archive: String,
    chunking: String,
    compression: String,
    streams: u64,
    /// Content of all streams.
    bytes: u64,
    /// Containers as stored.
    stored_bytes: u64,
    /// Content for each byte stored.
    ratio: Option<f64>,
    containers: u64,
    chunks: u64,
    /// Chunks as they were before compression.
    chunk_bytes: u64,
    /// Containers that no stream names yet, of puts that run or were killed.
    unfinished_containers: u64,
    /// Bytes that gc could not free yet, because somebody read there.
    held_back_bytes: u64,
    index_entries: u64,
    index_files: u64,
    /// Held back for deletion on a full disk.
    reserve_bytes: u64,
    epoch: u32,
}

/// Tells.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    show(&options.archive, options.json)
}

/// Tells about the archive at `path`.
pub(crate) fn show(path: &Path, json: bool) -> Result<(), Failure> {
    let archive = ArchiveDir::look(path)?.open_to_read()?;
    let tables = archive.tables();
    let bytes = tables.streams.values().map(|stream| stream.bytes).sum::<u64>();
    let stored_bytes = tables.stored_bytes();
    let stats = Stats {
        archive: path.display().to_string(),
        chunking: archive.label().chunking.to_string(),
        compression: archive.label().compression.to_string(),
        streams: tables.streams.len() as u64,
        bytes,
        stored_bytes,
        ratio: (stored_bytes > 0).then(|| bytes as f64 / stored_bytes as f64),
        containers: tables.containers.len() as u64,
        chunks: tables.containers.values().map(|container| u64::from(container.stored.chunks)).sum(),
        chunk_bytes: tables.containers.values().map(|container| u64::from(container.stored.raw_bytes)).sum(),
        unfinished_containers: tables.unfinished.len() as u64,
        held_back_bytes: tables.leaving.iter().map(|(place, _)| u64::from(place.bytes)).sum(),
        index_entries: tables.index.files.iter().map(|file| file.entries).sum(),
        index_files: tables.index.files.len() as u64,
        reserve_bytes: archive.reserve_bytes()?,
        epoch: tables.epoch,
    };
    if json {
        let text = serde_json::to_string_pretty(&stats).map_err(|e| Failure::new(format!("the figures can't be written as JSON: {e}")))?;
        output::line(text);
        return Ok(());
    }
    let row = |label: &str, text: String| output::line(format_args!("{label:<15}{text}"));
    row("archive", stats.archive.clone());
    row("created", format!("chunks by {}, compressed by {}", stats.chunking, stats.compression));
    row("streams", format!("{} with {}", grouped(stats.streams), Size(stats.bytes)));
    let ratio = stats.ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} times less"));
    row("stored", format!("{} in {}{ratio}", Size(stats.stored_bytes), counted(stats.containers, "container")));
    row("chunks", format!("{} with {} before compression", grouped(stats.chunks), Size(stats.chunk_bytes)));
    row("index", format!("{} entries in {}", grouped(stats.index_entries), counted(stats.index_files, "file")));
    if stats.unfinished_containers > 0 {
        row("unfinished", format!("{} of puts that run or were killed", counted(stats.unfinished_containers, "container")));
    }
    if stats.held_back_bytes > 0 {
        row("to be freed", format!("{} when its readers have ended", Size(stats.held_back_bytes)));
    }
    row("reserve", format!("{} for deletion on a full disk", Size(stats.reserve_bytes)));
    Ok(())
}
