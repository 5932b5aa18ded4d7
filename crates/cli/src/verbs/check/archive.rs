//! `onefold check`, `scrub` and `repair` of an archive.

use std::{path::Path, sync::Arc};

use onefold_archive::{
    Archive, CheckReport as Report, Rebuilt, Restored, Settings, VOLUME_BLOCK_BYTES, check,
    check_one, rebuild_chunk_index, record_damage, repair_units, restore_chunks,
};
use onefold_core::Result;
use serde::Serialize;

use onefold::parts::archive_dir::ArchiveDir;
use onefold_console::{
    failure::Failure,
    output,
    progress::Progress,
    size::{Size, counted, grouped},
};

/// The result.
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
    /// Lost chunks that other copies made whole.
    restored_chunks: u64,
    /// Why none could be put back, where damage was found.
    not_restored: Option<String>,
    /// Entries of the chunk index, when it was made anew.
    index_entries: Option<u64>,
    well: bool,
}

/// A volume that lost something.
#[derive(Debug, Serialize)]
struct Damaged {
    name: String,
    /// Where, in bytes: 128 KiB each; the first thousand.
    offsets: Vec<u64>,
}

/// How far it goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Reads metadata.
    Check,
    /// Reads all data too, and records what is damaged, so that no put takes it for a duplicate.
    Scrub,
    /// The same, and restores what can be restored.
    Repair,
}

/// The kind of the check.
#[derive(Clone, Copy)]
pub(crate) struct Extent<'a> {
    pub(crate) depth: Depth,
    /// One stream or volume.
    pub(crate) only: Option<&'a str>,
    /// Memory for the tables.
    pub(crate) memory: u64,
}

/// Checks, scrubs or repairs an archive, and tells what was found.
pub(crate) fn run(directory: &ArchiveDir, extent: Extent<'_>, json: bool) -> Result<(), Failure> {
    let path = directory.path();
    let (data, repairs) = (extent.depth != Depth::Check, extent.depth == Depth::Repair);
    let mut made = Made::default();
    if repairs && extent.only.is_none() {
        let bar = Progress::of("rebuilding the chunk index", "containers");
        made.index_entries =
            Some(rebuild_chunk_index(&directory.open(settings(extent))?, &mut |done, total| {
                bar.set(done, total)
            })?);
    }
    let archive = if data {
        directory.open_to_mend(extent.memory)?
    } else {
        directory.open_to_read(extent.memory)?
    };
    if data && extent.only.is_none() {
        made.units = look_at_shards(directory, extent)?;
    }
    let mut report = look(&archive, extent)?;
    if data {
        record(&archive, &report)?;
    }
    if repairs {
        match restore(&archive, &report) {
            Ok(restored) => made.restored = restored,
            // The findings are told all the same.
            Err(error) => made.not_restored = Some(error.to_string()),
        }
        if made.restored.chunks > 0 {
            let bytes = report.bytes;
            archive.refresh()?;
            report = look(&archive, Extent { depth: Depth::Check, ..extent })?;
            report.bytes = bytes;
        }
    }
    if json {
        output::json(&found(&report, &made))?
    } else {
        tell(&report, &made, data)
    }
    if report.is_well() && !made.is_left() {
        if !json {
            output::line(format_args!("{} is well", what(path, extent.only)));
        }
        return Ok(());
    }
    let problems = match report.problems_found {
        0 => counted(made.bad_units(), "bad unit"),
        n => counted(n, "problem"),
    };
    let advice = if repairs { "" } else { "; `onefold repair` restores what can be restored" };
    Err(Failure::new(format!("{} is damaged: {problems}{advice}", what(path, extent.only))))
}

fn settings(extent: Extent<'_>) -> Settings {
    Settings { memory: extent.memory, ..Settings::default() }
}

fn what(path: &Path, only: Option<&str>) -> String {
    only.map_or_else(
        || path.display().to_string(),
        |name| format!("'{}' of {}", name.escape_debug(), path.display()),
    )
}

/// The repaired parts.
#[derive(Default)]
struct Made {
    index_entries: Option<u64>,
    units: Option<Rebuilt>,
    restored: Restored,
    /// Why nothing was put back.
    not_restored: Option<String>,
}

impl Made {
    /// Units of 4 KiB that were bad on their nodes.
    fn bad_units(&self) -> u64 {
        self.units.map_or(0, |found| found.units.bad_units)
    }

    /// True when some of them still are.
    fn is_left(&self) -> bool {
        self.units.is_some_and(|found| found.units.repaired_units < found.units.bad_units)
    }
}

fn look(archive: &Arc<Archive>, extent: Extent<'_>) -> Result<Report, Failure> {
    let data = extent.depth != Depth::Check;
    let (bar, doing) = if data {
        (Progress::new("scrubbing"), "scrubbing")
    } else {
        (Progress::of("checking", "parts"), "checking")
    };
    let mut progress = |what: &str, done, total| {
        bar.stage(&format!("{doing} {what}"));
        bar.set(done, total);
    };
    Ok(match extent.only {
        Some(name) => check_one(archive, name, data, &mut progress)?,
        None => check(archive, data, &mut progress)?,
    })
}

/// Names damage in the log, so that no put takes it for a duplicate; where nothing may be written,
/// nothing is done.
fn record(archive: &Arc<Archive>, report: &Report) -> Result<()> {
    if archive.is_writable() && !report.rotten.is_empty() {
        record_damage(archive, &report.rotten)?;
    }
    Ok(())
}

/// Puts back what is stored elsewhere; where nothing may be written, nothing is done.
fn restore(archive: &Arc<Archive>, report: &Report) -> Result<Restored> {
    if !archive.is_writable() {
        return Ok(Restored::default());
    }
    let bar = Progress::of("restoring", "containers");
    restore_chunks(archive, &report.lost, &mut |done, total| bar.set(done, total))
}

fn found(report: &Report, made: &Made) -> Found {
    let offsets =
        |blocks: &Vec<u64>| blocks.iter().map(|block| block * VOLUME_BLOCK_BYTES).collect();
    Found {
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
            .map(|(name, blocks)| Damaged { name: name.clone(), offsets: offsets(blocks) })
            .collect(),
        bad_units: made.bad_units(),
        repaired_units: made.units.map_or(0, |mended| mended.units.repaired_units),
        restored_chunks: made.restored.chunks,
        not_restored: made.not_restored.clone(),
        index_entries: made.index_entries,
        well: report.is_well() && !made.is_left(),
    }
}

fn tell(report: &Report, made: &Made, data: bool) {
    if let Some(entries) = made.index_entries {
        output::line(format_args!("restored: the chunk index, with {} entries", grouped(entries)));
    }
    let (streams, chunks) = (counted(report.streams, "stream"), counted(report.chunks, "chunk"));
    output::line(format_args!(
        "{streams} with {chunks} in {}",
        counted(report.containers, "container")
    ));
    if report.volumes > 0 {
        let volumes = counted(report.volumes, "volume");
        output::line(format_args!("{volumes} with {} of 128 KiB", counted(report.blocks, "block")));
    }
    if data {
        output::line(format_args!("{} of data were read", Size(report.bytes)));
    }
    if let Some(mended) = made.units.filter(|mended| mended.units.bad_units > 0) {
        let (bad, anew) = (grouped(mended.units.bad_units), grouped(mended.units.repaired_units));
        output::line(format_args!(
            "{bad} units of 4 KiB were bad on their nodes, {anew} were made anew"
        ));
    }
    if made.restored.chunks > 0 {
        output::line(format_args!(
            "restored: {} from other copies",
            counted(made.restored.chunks, "lost chunk")
        ));
    }
    if let Some(why) = &made.not_restored {
        output::line(format_args!("note: nothing was put back from other copies: {why}"));
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
            output::line(format_args!(
                "damaged: volume '{}', {VOLUME_BLOCK_BYTES} bytes at {at}",
                name.escape_debug()
            ));
        }
    }
    if !report.lost.is_empty() {
        output::line(
            "note: a put of the same content stores lost chunks anew; `onefold repair` after it puts them back wherever they are named",
        );
    }
}

/// Looks at every shard of an archive on several nodes, parity included, and repairs what is bad
/// when that is asked for; where nothing may be written, nothing is done.
fn look_at_shards(directory: &ArchiveDir, extent: Extent<'_>) -> Result<Option<Rebuilt>, Failure> {
    let Ok((archive, Some(nodes))) = directory.open_nodes(settings(extent), false) else {
        return Ok(None);
    };
    let bar = Progress::of("looking at shards", "containers");
    let mends = extent.depth == Depth::Repair;
    Ok(Some(repair_units(&archive, &nodes, mends, &mut |done, total| bar.set(done, total))?))
}
