//! `onefold check`: are all tables of a store whole, and do they agree?

pub(super) mod archive;
pub(super) mod block_repair;
pub(super) mod cluster;
mod report;

use std::path::{Path, PathBuf};

use clap::Args;
use onefold_block::check::{self, Report};
use onefold_core::{Error, Kind};

pub(super) use self::report::show;
use self::report::{checked, counts};
use super::{Found, refused};
use onefold::parts::{
    archive_care::{Depth, Extent},
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{Size, counted, grouped},
};

/// Memory for comparing blocks, unless it is asked for.
pub(super) const COMPARING_BYTES: u64 = 256 << 20;

/// Verifies all metadata of a store; the exit status is 0 only when all is well
///
/// The verb writes nothing: if a crash left work for recovery, it recovers in memory and verifies
/// the result. `onefold scrub` verifies the data itself, and `onefold repair` mends what can be
/// mended. Archives and stores on Ceph may be in use meanwhile; block stores and folders of the
/// cluster engine may not be served.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  onefold check disk.onefold\n  \
                  onefold check /dev/sdb --memory 2G\n  \
                  onefold check backups --only monday")]
pub(crate) struct Options {
    /// The store, of any engine
    store: PathBuf,

    /// Of a block store: memory for comparing blocks [default: 256M]; when it is too little for all
    /// of them, the maps are read several times. Of an archive: memory for its tables [default:
    /// 64M], besides an allowance that grows with the bytes that they occupy
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,

    /// Only this stream or volume of an archive, and the containers that it needs
    #[arg(long, value_name = "NAME")]
    only: Option<String>,

    #[command(flatten)]
    answer: Answer,
}

/// The store at a path; only archives know `--only`.
pub(super) fn found_for(store: &Path, only: Option<&str>) -> Result<Found, Failure> {
    match Found::at(store)? {
        archive @ Found::Archive(_) => Ok(archive),
        other if only.is_some() => Err(refused(store, &other, "--only is for archives")),
        other => Ok(other),
    }
}

/// Checks, and tells what was found.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let only = options.only.as_deref();
    let file = match found_for(&options.store, only)? {
        Found::Block(file) => file,
        Found::Archive(directory) => {
            let memory = options.memory.map_or(onefold_archive::READER_BYTES, |memory| memory.0);
            let extent = Extent { depth: Depth::Check, only, memory };
            return archive::run(&directory, extent, options.answer.json);
        }
        Found::Cluster(url) => return cluster::look(&url, false, options.answer),
    };
    let memory = options.memory.map_or(COMPARING_BYTES, |memory| memory.0);
    let disk = file.open_for_reading().map_err(|e| match e.kind() {
        Kind::Busy => Error::new(
            Kind::Busy,
            format!("{e}, or verify its data with `onefold scrub` while it is served"),
        ),
        _ => e,
    })?;
    let bar = Progress::new("checking");
    let keys = file.keys();
    let report =
        check::check_with(&disk, &keys, memory, &mut |progress| show(&bar, "checking", &progress));
    drop(bar);
    let report = report.map_err(|e| Failure::new(format!("{}: {e}", options.store.display())))?;
    tell(&file, &report, options.answer)
}

fn tell(file: &StoreFile, report: &Report, answer: Answer) -> Result<(), Failure> {
    let shown = file.path().display();
    if answer.json {
        output::json(&checked(report))?;
        return damaged(file, report);
    }
    counts(report);
    report.problems.iter().for_each(|problem| output::line(format_args!("problem: {problem}")));
    if report.is_well() {
        output::line(format_args!("{shown} is well"));
        return Ok(());
    }
    let unnamed = report.problems_found - report.problems.len() as u64;
    if unnamed > 0 {
        output::line(format_args!("problem: {} more", grouped(unnamed)));
    }
    damaged(file, report)
}

fn damaged(file: &StoreFile, report: &Report) -> Result<(), Failure> {
    if report.is_well() {
        return Ok(());
    }
    let shown = file.path().display();
    Err(Failure::new(format!(
        "{shown} is damaged: {}; `onefold repair` restores what can be restored",
        counted(report.problems_found, "problem")
    )))
}
