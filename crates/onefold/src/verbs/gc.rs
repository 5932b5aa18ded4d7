//! `onefold gc`: frees what no stream needs.

use std::path::PathBuf;

use clap::Args;
use onefold_archive::{
    Format, Settings,
    collect::{Collection, Options as Collect},
};
use serde::Serialize;

use crate::{
    archive_dir::{ArchiveDir, now},
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted},
};

/// Frees the space of chunks that no stream needs, also beside a running put
///
/// Containers without live chunks are dropped, those less than half full are merged. Chunks that a put could still take are looked at again when
/// puts and readers that began before have ended.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  onefold gc backups\n  onefold gc backups --keep-partial 0 --no-wait")]
pub(crate) struct Options {
    /// The archive
    archive: PathBuf,

    /// Hours for which the chunks of puts that were killed are kept, so that a repeat finds them
    #[arg(long, default_value_t = 24, value_name = "HOURS")]
    keep_partial: u64,

    /// Leaves to the next gc what running puts and readers hold back, instead of waiting for them
    #[arg(long)]
    no_wait: bool,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Done {
    dropped_containers: u64,
    merged_containers: u64,
    new_containers: u64,
    copied_chunks: u64,
    freed_bytes: u64,
    /// Containers that stay although they are less than half full, because a chunk of theirs is damaged.
    damaged_containers: u64,
    /// True when running puts or readers hold something back.
    held_back: bool,
}

/// Collects, and tells what was freed.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = ArchiveDir::look(&options.archive)?;
    let archive = directory.open(Settings::default())?;
    let bar = Progress::of("gc", "steps");
    let collect = Collect {
        now: now(),
        keep_partial: options.keep_partial.saturating_mul(3600),
        wait: !options.no_wait,
        settle_all: false,
        reserve_bytes: Format::new([0; 16], [0; 32], [0; 16]).reserve_bytes,
    };
    let mut steps = 0;
    let done = Collection::begin(&archive, collect)?.run(&mut |doing| {
        steps += 1;
        bar.stage(doing);
        bar.set(steps, 0);
    })?;
    drop(bar);
    let done = Done {
        dropped_containers: done.dropped,
        merged_containers: done.merged,
        new_containers: done.into,
        copied_chunks: done.copied_chunks,
        freed_bytes: done.freed_bytes,
        damaged_containers: done.damaged,
        held_back: done.waits || done.held_back > 0,
    };
    if options.json {
        output::json(&done)?;
        return Ok(());
    }
    output::line(format_args!(
        "freed {}: {} dropped, {} merged into {}",
        Size(done.freed_bytes),
        counted(done.dropped_containers, "container"),
        done.merged_containers,
        done.new_containers
    ));
    if done.held_back {
        output::line("note: running puts or readers hold more back; another gc frees it when they have ended");
    }
    if done.damaged_containers > 0 {
        let shown = directory.path().display();
        output::line(format_args!(
            "note: {} not merged, because data in it is damaged; `onefold scrub {shown}` tells which streams it hits",
            counted(done.damaged_containers, "container")
        ));
    }
    Ok(())
}
