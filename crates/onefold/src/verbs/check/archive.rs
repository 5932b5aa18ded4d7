//! `onefold check` and `onefold scrub` of an archive.

use std::path::Path;

use onefold_archive::{
    Settings, check, index,
    nodes::rebuild::{self, Rebuilt},
    settings::VOLUME_BLOCK_BYTES,
};
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
    volumes: u64,
    /// Blocks of 128 KiB of volumes that are no zeroes.
    blocks: u64,
    damaged_volumes: Vec<Damaged>,
    /// Units of 4 KiB that were bad on a node, and how many of them were made anew.
    bad_units: u64,
    repaired_units: u64,
    well: bool,
}

/// A volume that lost something.
#[derive(Debug, Serialize)]
struct Damaged {
    name: String,
    /// Where, in bytes: 128 KiB each; the first thousand.
    offsets: Vec<u64>,
}

/// Checks the archive at `path`; with `data` all of its data too.
pub(crate) fn run(path: &Path, data: bool, json: bool) -> Result<(), Failure> {
    let directory = ArchiveDir::look(path)?;
    let archive = directory.open_to_read()?;
    let mended = if data { mend(&directory)? } else { None };
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
            volumes: report.volumes,
            blocks: report.blocks,
            damaged_volumes: report
                .hit_volumes
                .iter()
                .map(|(name, blocks)| Damaged {
                    name: name.clone(),
                    offsets: blocks.iter().map(|block| block * VOLUME_BLOCK_BYTES).collect(),
                })
                .collect(),
            bad_units: mended.map_or(0, |mended| mended.units.bad_units),
            repaired_units: mended.map_or(0, |mended| mended.units.repaired_units),
            well,
        };
        output::json(&found)?;
    } else {
        output::line(format_args!(
            "{} with {} in {}",
            counted(report.streams, "stream"),
            counted(report.chunks, "chunk"),
            counted(report.containers, "container")
        ));
        if report.volumes > 0 {
            let volumes = counted(report.volumes, "volume");
            output::line(format_args!("{volumes} with {} of 128 KiB", counted(report.blocks, "block")));
        }
        if data {
            output::line(format_args!("{} of data were read", Size(report.bytes)));
        }
        if let Some(mended) = mended.filter(|mended| mended.units.bad_units > 0) {
            let (bad, anew) = (grouped(mended.units.bad_units), grouped(mended.units.repaired_units));
            output::line(format_args!("{bad} units of 4 KiB were bad on their nodes, {anew} were made anew"));
        }
        report.problems.iter().for_each(|problem| output::line(format_args!("problem: {problem}")));
        let unnamed = report.problems_found - report.problems.len() as u64;
        if unnamed > 0 {
            output::line(format_args!("problem: {} more", grouped(unnamed)));
        }
        for name in &report.hit {
            output::line(format_args!("damaged: stream '{}'", name.escape_debug()));
        }
        for (name, blocks) in &report.hit_volumes {
            for block in blocks {
                let at = block * VOLUME_BLOCK_BYTES;
                output::line(format_args!("damaged: volume '{}', {VOLUME_BLOCK_BYTES} bytes at {at}", name.escape_debug()));
            }
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

/// Looks at every shard of an archive on several nodes, parity included, and mends what is bad; where nothing may be written, nothing is done.
fn mend(directory: &ArchiveDir) -> Result<Option<Rebuilt>, Failure> {
    let Ok((archive, Some(nodes))) = directory.open_nodes(Settings::default(), false) else { return Ok(None) };
    let bar = Progress::of("mending", "containers");
    Ok(Some(rebuild::repair(&archive, &nodes, &mut |done, total| bar.set(done, total))?))
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
