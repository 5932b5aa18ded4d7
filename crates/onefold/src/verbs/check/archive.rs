//! `onefold check` and `onefold scrub` of an archive.

use std::path::Path;

use onefold_archive::{Settings, check, index};
use serde::Serialize;

use crate::{
    archive_dir::ArchiveDir,
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted, grouped},
};

/// What was found.
#[derive(Debug, Serialize)]
struct Found {
    streams: u64,
    containers: u64,
    chunks: u64,
    /// Bytes of data read and verified; a check reads none.
    bytes: u64,
    problems: Vec<String>,
    problems_found: u64,
    /// Streams that lost something.
    damaged_streams: Vec<String>,
    well: bool,
}

/// Checks the archive at `path`; with `data` all of its data too.
pub(crate) fn run(path: &Path, data: bool, json: bool) -> Result<(), Failure> {
    let archive = ArchiveDir::look(path)?.open_to_read()?;
    let bar = if data { Progress::new("scrubbing") } else { Progress::of("checking", "parts") };
    let report = check::check(&archive, data, &mut |what, done, total| {
        bar.stage(&format!("{} {what}", if data { "scrubbing" } else { "checking" }));
        bar.set(done, total);
    })?;
    drop(bar);
    let shown = path.display();
    let well = report.is_well();
    if json {
        let found = Found {
            streams: report.streams,
            containers: report.containers,
            chunks: report.chunks,
            bytes: report.bytes,
            problems: report.problems.clone(),
            problems_found: report.problems_found,
            damaged_streams: report.hit.iter().cloned().collect(),
            well,
        };
        let text = serde_json::to_string_pretty(&found).map_err(|e| Failure::new(format!("the report can't be written: {e}")))?;
        output::line(text);
    } else {
        output::line(format_args!(
            "{} with {} in {}",
            counted(report.streams, "stream"),
            counted(report.chunks, "chunk"),
            counted(report.containers, "container")
        ));
        if data {
            output::line(format_args!("{} of data were read", Size(report.bytes)));
        }
        report.problems.iter().for_each(|problem| output::line(format_args!("problem: {problem}")));
        let unnamed = report.problems_found - report.problems.len() as u64;
        if unnamed > 0 {
            output::line(format_args!("problem: {} more", grouped(unnamed)));
        }
        for name in &report.hit {
            output::line(format_args!("damaged: stream '{}'", name.escape_debug()));
        }
    }
    if well {
        if !json {
            output::line(format_args!("{shown} is well"));
        }
        return Ok(());
    }
    Err(Failure::new(format!("{shown} is damaged: {}", counted(report.problems_found, "problem"))))
}

/// Makes the chunk index of the archive at `path` anew.
pub(crate) fn repair(path: &Path) -> Result<(), Failure> {
    let archive = ArchiveDir::look(path)?.open(Settings::default())?;
    let bar = Progress::of("rebuilding the chunk index", "containers");
    let entries = index::rebuild(&archive, &mut |done, total| bar.set(done, total))?;
    drop(bar);
    output::line(format_args!("restored: the chunk index, with {} entries", grouped(entries)));
    run(path, false, false)
}
