//! `onefold check` and `onefold scrub` of an archive.

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
    /// Lost chunks that other copies made whole.
    healed_chunks: u64,
    /// Why none could be put back, where damage was found.
    not_healed: Option<String>,
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

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Extent<'a> {
    /// Reads all data.
    pub(crate) data: bool,
    /// Restores what can be restored.
    pub(crate) repair: bool,
    /// One stream or volume.
    pub(crate) only: Option<&'a str>,
    /// Memory for the tables.
    pub(crate) memory: u64,
}

/// Checks the archive at `path`, and mends what can be mended: with `data` and with `repair`.
pub(crate) fn run(path: &Path, extent: Extent<'_>, json: bool) -> Result<(), Failure> {
    let directory = ArchiveDir::look(path)?;
    let mut made = Made::default();
    if extent.repair && extent.only.is_none() {
        let bar = Progress::of("rebuilding the chunk index", "containers");
        made.index_entries =
            Some(rebuild_chunk_index(&directory.open(settings(extent))?, &mut |done, total| {
                bar.set(done, total)
            })?);
    }
    let archive = if extent.data || extent.repair {
        directory.open_to_mend(extent.memory)?
    } else {
        directory.open_to_read(extent.memory)?
    };
    if extent.data && extent.only.is_none() {
        made.units = mend(&directory, extent)?;
    }
    let mut report = look(&archive, extent)?;
    if extent.data || extent.repair {
        match heal(&archive, &report) {
            Ok(healed) => made.healed = healed,
            // What was found is told all the same.
            Err(error) => made.not_healed = Some(error.to_string()),
        }
        if made.healed.chunks > 0 {
            let bytes = report.bytes;
            archive.refresh()?;
            report = look(&archive, Extent { data: false, ..extent })?;
            report.bytes = bytes;
        }
    }
    if json {
        output::json(&found(&report, &made))?
    } else {
        tell(&report, &made, extent.data)
    }
    if report.is_well() {
        if !json {
            output::line(format_args!("{} is well", what(path, extent.only)));
        }
        return Ok(());
    }
    let problems = counted(report.problems_found, "problem");
    Err(Failure::new(format!("{} is damaged: {problems}", what(path, extent.only))))
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

/// What was mended.
#[derive(Default)]
struct Made {
    index_entries: Option<u64>,
    units: Option<Rebuilt>,
    healed: Restored,
    /// Why nothing was put back.
    not_healed: Option<String>,
}

fn look(archive: &Arc<Archive>, extent: Extent<'_>) -> Result<Report, Failure> {
    let (bar, doing) = if extent.data {
        (Progress::new("scrubbing"), "scrubbing")
    } else {
        (Progress::of("checking", "parts"), "checking")
    };
    let mut progress = |what: &str, done, total| {
        bar.stage(&format!("{doing} {what}"));
        bar.set(done, total);
    };
    Ok(match extent.only {
        Some(name) => check_one(archive, name, extent.data, &mut progress)?,
        None => check(archive, extent.data, &mut progress)?,
    })
}

/// Names damage in the log, so that no put takes it for a duplicate, and puts back what is stored
/// elsewhere; where nothing may be written, nothing is done.
fn heal(archive: &Arc<Archive>, report: &Report) -> Result<Restored> {
    if !archive.is_writable() {
        return Ok(Restored::default());
    }
    if !report.rotten.is_empty() {
        record_damage(archive, &report.rotten)?;
    }
    let bar = Progress::of("healing", "containers");
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
        bad_units: made.units.map_or(0, |mended| mended.units.bad_units),
        repaired_units: made.units.map_or(0, |mended| mended.units.repaired_units),
        healed_chunks: made.healed.chunks,
        not_healed: made.not_healed.clone(),
        index_entries: made.index_entries,
        well: report.is_well(),
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
    if made.healed.chunks > 0 {
        output::line(format_args!(
            "restored: {} from other copies",
            counted(made.healed.chunks, "lost chunk")
        ));
    }
    if let Some(why) = &made.not_healed {
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
            "note: a put of the same content stores lost chunks anew; a scrub after it puts them back wherever they are named",
        );
    }
}

/// Looks at every shard of an archive on several nodes, parity included, and mends what is bad;
/// where nothing may be written, nothing is done.
fn mend(directory: &ArchiveDir, extent: Extent<'_>) -> Result<Option<Rebuilt>, Failure> {
    let Ok((archive, Some(nodes))) = directory.open_nodes(settings(extent), false) else {
        return Ok(None);
    };
    let bar = Progress::of("mending", "containers");
    Ok(Some(repair_units(&archive, &nodes, &mut |done, total| bar.set(done, total))?))
}
