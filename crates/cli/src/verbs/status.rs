//! `onefold status`: what a store holds, what it saved, and how it is doing.

use std::path::PathBuf;

use clap::Args;
use onefold_archive::READER_BYTES;
use onefold_core::Result;

use super::{cluster, served_or_not, stats};
use crate::report::Report;
use onefold::parts::{archive_dir::ArchiveDir, control::Request, store_file::StoreFile};
use onefold_console::{failure::Failure, output};

/// Shows what a store holds, what it saved, and how it is doing
///
/// Stores in a file or device, archives and stores on Ceph are shown served or not, a folder of the
/// cluster engine only while nobody serves it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold status disk.onefold\n  onefold status disk.onefold --json"
)]
pub(crate) struct Options {
    /// The store, an archive's directory, or a store of the cluster engine
    store: PathBuf,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// Prints the report.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if let Some(url) = cluster::store_at(&options.store) {
        return cluster::status(&url, options.json);
    }
    if ArchiveDir::is_there(&options.store) {
        return stats::show(&options.store, READER_BYTES, options.json);
    }
    let file = StoreFile::look(&options.store)?;
    let report =
        served_or_not(&file, |server| server.ask(&Request::Status), || offline(&options.store))?;
    if options.json {
        output::json(&report)?;
    } else {
        output::line(report.to_string().trim_end());
    }
    Ok(())
}

/// The report of a store that nobody serves. Nothing on the disk changes.
fn offline(path: &std::path::Path) -> Result<Report> {
    // Looked at again: a server that just stopped changed it.
    let file = StoreFile::look(path)?;
    let engine = file.open_unchanged()?;
    let clean = StoreFile::look(path)?.superblock().state.clean;
    Ok(Report { clean: Some(clean), ..Report::new(&file, &engine, &engine.status()) })
}
