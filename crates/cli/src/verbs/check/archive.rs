//! `onefold check`, `scrub` and `repair` of an archive.

use std::path::Path;

use onefold_archive::VOLUME_BLOCK_BYTES;
use serde::Serialize;

use onefold::parts::{
    archive_care::{self, Depth, Extent, Outcome},
    archive_dir::{ArchiveDir, lost_objects},
    operator::warn,
};
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
    snapshots: u64,
    containers: u64,
    chunks: u64,
    /// Bytes of data read and verified; a check reads none.
    bytes: u64,
    problems: Vec<String>,
    problems_found: u64,
    /// Streams that lost something.
    damaged_streams: Vec<String>,
    /// Ids of snapshots of directories that lost something.
    damaged_snapshots: Vec<String>,
    volumes: u64,
    /// Blocks of 128 KiB of volumes that are no zeroes.
    blocks: u64,
    damaged_volumes: Vec<Damaged>,
    /// Units of 4 KiB that were bad on a node, and how many of them were made anew.
    bad_units: u64,
    repaired_units: u64,
    /// Damaged copies of leaves of the tables, and of volumes' maps, that were written again.
    repaired_leaf_copies: u64,
    /// The last snapshot of the tables could not be read, and was written anew.
    renewed_snapshot: bool,
    /// Lost chunks that other copies made whole.
    restored_chunks: u64,
    /// Why putting chunks back from other copies ended early, where damage was found.
    not_restored: Option<String>,
    /// Chunks whose usage counts are too low, which is a problem, or too high, which keeps their space;
    /// nothing where the counts were not compared with what names the chunks.
    usage_counts_too_low: Option<u64>,
    usage_counts_too_high: Option<u64>,
    /// Entries of the chunk index, when it was made anew.
    index_entries: Option<u64>,
    /// Files of the chunk index that are lost: the next put makes it anew.
    index_lost_files: u64,
    /// Snapshots of put keys that are not what they say and that no `gc` has looked through; that is no
    /// problem.
    untrue_snapshots: u64,
    /// What nobody can read any more, since its domain was erased; that is no problem.
    erased: Erased,
    /// Objects of an archive in a bucket that are lost or have another length, a sentence each.
    lost_objects: Vec<String>,
    well: bool,
}

/// What belongs to domains that were erased.
#[derive(Debug, Serialize)]
struct Erased {
    domains: Vec<u32>,
    streams: u64,
    snapshots: u64,
    volumes: u64,
    containers: u64,
    bytes: u64,
}

/// Containers that a note names.
const CONTAINERS_SHOWN: usize = 10;

/// A volume that lost something.
#[derive(Debug, Serialize)]
struct Damaged {
    name: String,
    /// Where, in bytes: 128 KiB each; the first thousand.
    offsets: Vec<u64>,
}

/// Checks, scrubs or repairs an archive, and tells what was found.
pub(crate) fn run(directory: &ArchiveDir, extent: Extent<'_>, json: bool) -> Result<(), Failure> {
    let (data, repairs) = (extent.depth != Depth::Check, extent.depth == Depth::Repair);
    let mut bars = Bars::default();
    let made = archive_care::run(directory, extent, &mut |doing, done, total| {
        let bar = bars.of(doing);
        bar.stage(doing);
        bar.set(done, total);
    })?;
    drop(bars);
    let what = what(directory.path(), extent.only);
    let lost = lost_objects(directory)?;
    lost.iter().for_each(|sentence| warn(sentence));
    if json {
        output::json(&found(&made, &lost))?
    } else {
        tell(&made, data)
    }
    if !lost.is_empty() {
        let objects = counted(lost.len() as u64, "object");
        return Err(Failure::new(format!("{what} is damaged: {objects} lost or cut off")));
    }
    if made.is_well() {
        if !json {
            output::line(format_args!("{what} is well"));
        }
        return Ok(());
    }
    let problems = match made.report.problems_found {
        0 => counted(made.bad_units(), "bad unit"),
        n => counted(n, "problem"),
    };
    let advice = if repairs { "" } else { "; `onefold repair` restores what can be restored" };
    Err(Failure::new(format!("{what} is damaged: {problems}{advice}")))
}

/// The bar of what is being done: data is counted in bytes, all else in things.
#[derive(Default)]
struct Bars(Option<(&'static str, Progress)>);

impl Bars {
    fn of(&mut self, doing: &str) -> &Progress {
        let unit = match doing {
            doing if doing.starts_with("scrubbing") => "",
            doing if doing.starts_with("checking") => "parts",
            _ => "containers",
        };
        let (_, bar) = match self.0.take().filter(|(of, _)| *of == unit) {
            Some(bar) => self.0.insert(bar),
            None if unit.is_empty() => self.0.insert((unit, Progress::new(doing))),
            None => self.0.insert((unit, Progress::of(doing, unit))),
        };
        bar
    }
}

fn what(path: &Path, only: Option<&str>) -> String {
    only.map_or_else(
        || path.display().to_string(),
        |name| format!("'{}' of {}", name.escape_debug(), path.display()),
    )
}

fn found(made: &Outcome, lost: &[String]) -> Found {
    let report = &made.report;
    let offsets =
        |blocks: &Vec<u64>| blocks.iter().map(|block| block * VOLUME_BLOCK_BYTES).collect();
    Found {
        streams: report.streams,
        snapshots: report.snapshots,
        containers: report.containers,
        chunks: report.chunks,
        bytes: report.bytes,
        problems: report.problems.clone(),
        problems_found: report.problems_found,
        damaged_streams: report.hit.iter().cloned().collect(),
        damaged_snapshots: report.hit_snapshots.iter().cloned().collect(),
        volumes: report.volumes,
        blocks: report.blocks,
        damaged_volumes: report
            .hit_volumes
            .iter()
            .map(|(name, blocks)| Damaged { name: name.clone(), offsets: offsets(blocks) })
            .collect(),
        bad_units: made.bad_units(),
        repaired_units: made.repaired_units(),
        repaired_leaf_copies: made.leaf_copies,
        renewed_snapshot: made.renewed_snapshot,
        restored_chunks: made.restored.chunks,
        not_restored: made.not_restored.clone(),
        usage_counts_too_low: report.counts.as_ref().map(|counts| counts.too_low.chunks),
        usage_counts_too_high: report.counts.as_ref().map(|counts| counts.too_high.chunks),
        index_entries: made.index_entries,
        index_lost_files: made.lost_index_files,
        untrue_snapshots: report.untrue_found,
        erased: Erased {
            domains: report.erased.domains.iter().copied().collect(),
            streams: report.erased.streams,
            snapshots: report.erased.snapshots,
            volumes: report.erased.volumes,
            containers: report.erased.containers,
            bytes: report.erased.bytes,
        },
        lost_objects: lost.to_vec(),
        well: made.is_well() && lost.is_empty(),
    }
}

fn tell(made: &Outcome, data: bool) {
    let report = &made.report;
    if let Some(entries) = made.index_entries {
        output::line(format_args!("restored: the chunk index, with {}", counted(entries, "entry")));
    }
    let volumes = match report.volumes {
        0 => String::new(),
        n => format!(
            ", {} with {} of 128 KiB",
            counted(n, "volume"),
            counted(report.blocks, "block")
        ),
    };
    output::line(format_args!(
        "looked at: {}, {}{volumes}; {} in {}",
        counted(report.streams, "stream"),
        counted(report.snapshots, "snapshot"),
        counted(report.chunks, "chunk"),
        counted(report.containers, "container")
    ));
    let erased = &report.erased;
    if !erased.domains.is_empty() {
        let numbers: Vec<String> = erased.domains.iter().map(u32::to_string).collect();
        let frees = if erased.containers > 0 {
            format!("; gc frees {}", Size(erased.bytes))
        } else {
            String::new()
        };
        output::line(format_args!(
            "erased: {}, {} and {} of domain {}, which nobody can read any more{frees}",
            counted(erased.streams, "stream"),
            counted(erased.snapshots, "snapshot"),
            counted(erased.volumes, "volume"),
            numbers.join(", ")
        ));
    }
    if made.lost_index_files > 0 {
        output::line(format_args!(
            "note: the chunk index lost {}, which costs no data; the next put makes it anew",
            counted(made.lost_index_files, "file")
        ));
    }
    match data {
        true => output::line(format_args!("{} of data were read", Size(report.bytes))),
        false => output::line("data was not read: `onefold scrub` does that"),
    }
    if made.bad_units() > 0 {
        let (bad, anew) = (grouped(made.bad_units()), grouped(made.repaired_units()));
        output::line(format_args!(
            "{bad} units of 4 KiB were bad on their nodes, {anew} were made anew"
        ));
    }
    if made.leaf_copies > 0 {
        output::line(format_args!(
            "restored: {} of leaves of the tables and of maps",
            if made.leaf_copies == 1 {
                "1 copy".to_owned()
            } else {
                format!("{} copies", grouped(made.leaf_copies))
            }
        ));
    }
    if made.renewed_snapshot {
        output::line("restored: the last snapshot of the tables");
    }
    if made.restored.chunks > 0 {
        output::line(format_args!(
            "restored: {} from other copies",
            counted(made.restored.chunks, "lost chunk")
        ));
    }
    if let Some(why) = &made.not_restored {
        output::line(format_args!(
            "note: putting chunks back from other copies ended early: {why}"
        ));
    }
    if let Some(counts) = report.counts.as_ref().filter(|counts| counts.is_part) {
        output::line(format_args!(
            "note: the usage counts of {} were compared with what names them, and not those of the rest: \
             `onefold gc --recount` counts all",
            counted(counts.compared, "chunk")
        ));
    }
    if let Some(high) = report.counts.as_ref().map(|counts| &counts.too_high)
        && high.chunks > 0
    {
        let shown = high.containers.iter().take(CONTAINERS_SHOWN).map(|(id, _)| id.to_string());
        let more = if high.in_containers > CONTAINERS_SHOWN as u64 { ", …" } else { "" };
        output::line(format_args!(
            "note: the usage counts of {} are too high, and their space is not freed: `onefold gc \
             --recount` counts all anew (containers {}{more})",
            counted(high.chunks, "chunk"),
            shown.collect::<Vec<_>>().join(", ")
        ));
    }
    for what in &report.untrue {
        output::line(format_args!(
            "note: a put key made a {what}; that is no damage, and `onefold gc --drop-untrue` drops it"
        ));
    }
    let unnamed = report.untrue_found - report.untrue.len() as u64;
    if unnamed > 0 {
        output::line(format_args!("note: {} more of this kind", grouped(unnamed)));
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
            "note: a put of the same content stores lost chunks anew; `onefold repair` after it \
             puts them back wherever they are named",
        );
    }
}
