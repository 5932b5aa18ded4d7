//! `onefold check`: are all tables of a store whole, and do they agree?

use std::path::PathBuf;

use clap::Args;
use onefold_block::check::{self, Phase, Report};
use onefold_core::{BLOCK_BYTES, Error, Kind};

use crate::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, grouped},
    store_file::StoreFile,
};

/// Verifies all metadata of a store that is not served; the exit status is 0 only when all is well
///
/// Nothing is written. What a crash left to recover is recovered in memory and verified too. The data itself is verified by
/// `onefold scrub`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold check disk.onefold\n  onefold check /dev/sdb --memory 2G")]
pub(crate) struct Options {
    /// The store
    store: PathBuf,

    /// Memory for comparing blocks; with too little for all of them the maps are read several times
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    memory: Size,
}

/// Checks, and tells what was found.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let file = StoreFile::look(&options.store)?;
    let disk = file.open_for_reading().map_err(|e| match e.kind() {
        Kind::Busy => Error::new(Kind::Busy, format!("{e}, or verify its data with `onefold scrub` while it is served")),
        _ => e,
    })?;
    let bar = Progress::new("checking");
    let report = check::check_within(&disk, options.memory.0, &mut |progress| show(&bar, "checking", &progress));
    drop(bar);
    let report = report.map_err(|e| Failure::new(format!("{}: {e}", options.store.display())))?;
    tell(&file, &report)
}

/// Shows how far a check, repair or scrub is.
pub(super) fn show(bar: &Progress, doing: &str, progress: &check::Progress) {
    let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
    bar.stage(&format!("{doing} {}", progress.what));
    match progress.what {
        // Counted in volumes.
        Phase::Names => bar.set(0, 0),
        _ => bar.set(bytes(progress.done), bytes(progress.total)),
    }
}

fn tell(file: &StoreFile, report: &Report) -> Result<(), Failure> {
    let shown = file.path().display();
    let size = |blocks: u64| Size(blocks * BLOCK_BYTES as u64);
    output::line(format_args!(
        "{} volumes hold {}, stored in {}; {} table pages, {} carriers",
        grouped(report.volumes),
        size(report.mapped_blocks),
        size(report.live_blocks),
        grouped(report.pages),
        grouped(report.carriers)
    ));
    if !report.clean {
        output::line("note: it was not closed in order; what recovery would make of it was checked too");
    }
    let notes = [
        (report.leaked_blocks, "blocks are in use that nothing names"),
        (report.saturated_blocks, "blocks have more references than can be counted"),
        (report.pending_discards, "dropped ranges are still to be freed"),
    ];
    for (number, what) in notes.iter().filter(|(number, _)| *number > 0) {
        output::line(format_args!("note: {} {what}", grouped(*number)));
    }
    report.notes.iter().for_each(|note| output::line(format_args!("note: {note}")));
    report.problems.iter().for_each(|problem| output::line(format_args!("problem: {problem}")));
    if report.is_well() {
        output::line(format_args!("{shown} is well"));
        return Ok(());
    }
    let unnamed = report.problems_found - report.problems.len() as u64;
    if unnamed > 0 {
        output::line(format_args!("problem: {} more", grouped(unnamed)));
    }
    Err(Failure::new(format!("{shown} is damaged: {} problems", grouped(report.problems_found))))
}
