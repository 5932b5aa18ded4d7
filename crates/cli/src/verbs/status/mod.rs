//! `onefold status`: what a store holds, what it saved, and how it is doing.

mod archive;
mod cluster;

pub(in crate::verbs) use self::archive::Stats;

use std::path::{Path, PathBuf};

use clap::Args;
use onefold_core::Result;

use super::{Found, served_or_not};
use crate::report::Report;
use onefold::parts::{control::Request, store_file::StoreFile};
use onefold_console::{failure::Failure, output, size::Size};

/// Shows what a store holds, what it saved, and how it is doing
///
/// Block stores, archives and stores on Ceph may be served meanwhile; a folder of the cluster
/// engine may not.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold status disk.onefold\n  onefold status disk.onefold --json"
)]
pub(crate) struct Options {
    /// The store, of any engine
    store: PathBuf,

    /// Memory for an archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// Prints the report.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let file = match Found::at(&options.store)? {
        Found::Block(file) => file,
        Found::Archive(directory) => {
            return archive::show(&directory, options.memory.0, options.json);
        }
        Found::Cluster(url) => return cluster::show(&url, options.json),
    };
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
fn offline(path: &Path) -> Result<Report> {
    // Looked at again: a server that just stopped changed it.
    let file = StoreFile::look(path)?;
    let engine = file.open_unchanged()?;
    let clean = StoreFile::look(path)?.superblock().state.clean;
    Ok(Report { clean: Some(clean), ..Report::new(&file, &engine, &engine.status()) })
}
