//! Check and repair of a store that is not open.

use std::{path::Path, sync::Arc};

use onefold_archive::READER_BYTES;
use onefold_backend::MonotonicClock;
use onefold_block::{
    MEMORY_MIN, Settings as Blocks,
    check::{check_with, look_with, repair_within},
};
use onefold_cluster::{Report, Scrub, Settings as Clustering};
use onefold_core::{BLOCK_BYTES, Result};

use crate::{
    care::{Findings, cluster_findings},
    locate::Found,
    parts::{
        archive_care::{self, Depth, Extent, Outcome},
        cluster_store::{Opened, Url},
        store_file::StoreFile,
    },
};

/// Bytes of memory for comparing a block store's tables with each other.
const COMPARING_BYTES: u64 = 256 << 20;

/// The outcome of [`repair`].
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("backups");
/// # onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
/// let onefold::Repair { restored, left } = onefold::repair(&path)?;
/// restored.iter().for_each(|what| println!("restored: {what}"));
/// assert!(left.is_well());
/// # Ok::<(), onefold::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// The parts that were restored, each a sentence.
    pub restored: Vec<String>,
    /// The damage that is left, and data that is lost.
    pub left: Findings,
}

/// Reads all metadata of the store at `path`, and compares it; nothing is written. Data is read by
/// [`Store::scrub`](crate::Store::scrub). Archives and stores on Ceph may be in use meanwhile.
///
/// # Errors
/// `Busy`: another process works on the block store, or on the folder of the cluster engine.
/// Otherwise as [`locate`](crate::locate). Damage is no error: it is in the findings.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk");
/// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
/// let findings = onefold::check(&path)?;
/// assert!(findings.is_well(), "{:?}", findings.problems);
/// # Ok::<(), onefold::Error>(())
/// ```
pub fn check(path: impl AsRef<Path>) -> Result<Findings> {
    match Found::at(path.as_ref())? {
        Found::Block(file) => {
            let (disk, keys) = (file.open_for_reading()?, file.keys());
            let report = check_with(&disk, &keys, COMPARING_BYTES, &mut |_| {})?;
            let problems = report.problems.iter().map(ToString::to_string).collect();
            Ok(Findings { problems, found: report.problems_found })
        }
        Found::Archive(directory) => {
            let extent = Extent { depth: Depth::Check, only: None, memory: READER_BYTES };
            let report = archive_care::run(&directory, extent, &mut |_, _, _| {})?.report;
            Ok(Findings { problems: report.problems, found: report.problems_found })
        }
        Found::Cluster(url) => {
            let opened = Opened::look(&url)?;
            let mut scrub = Scrub::look(opened.session.clone(), false)?;
            while scrub.step()? {}
            Ok(cluster_findings(scrub.report()))
        }
    }
}

/// Restores what can be restored of the store at `path`; all data of an archive or cluster store is
/// read. A block store gets back what follows with certainty from what is left; what is lost reads
/// as errors until it is written again. Archives and stores on Ceph may be in use meanwhile.
/// Durable on return.
///
/// # Errors
/// `Busy`: another process works on the block store, or on the folder of the cluster engine, or
/// collects in the archive. `Corrupt`: nothing that says which store it is, is
/// left. `Io`: the system failed. Damage that is left is no error: the outcome has it.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk");
/// # onefold::create_block(&path, &onefold::BlockFormat::of_bytes(64 << 20))?;
/// if !onefold::check(&path)?.is_well() {
///     let outcome = onefold::repair(&path)?;
///     outcome.left.problems.iter().for_each(|problem| eprintln!("{problem}"));
/// }
/// # Ok::<(), onefold::Error>(())
/// ```
pub fn repair(path: impl AsRef<Path>) -> Result<Repair> {
    match Found::at(path.as_ref())? {
        Found::Block(file) => repair_block(&file),
        Found::Archive(directory) => {
            let extent = Extent { depth: Depth::Repair, only: None, memory: READER_BYTES };
            archive_care::run(&directory, extent, &mut |_, _, _| {}).map(repaired_archive)
        }
        Found::Cluster(url) => repair_cluster(&url),
    }
}

fn repair_block(file: &StoreFile) -> Result<Repair> {
    let keeper = file.claim()?;
    let disk = keeper.disk();
    let keys = file.keys();
    let settings =
        Blocks { keys: keys.clone(), ..Blocks::for_memory(MEMORY_MIN.max(COMPARING_BYTES)) };
    let clock = Arc::new(MonotonicClock::new());
    let repaired = repair_within(&disk, clock, &settings, COMPARING_BYTES, &mut |_| {})?;
    let names = look_with(&disk, &keys).map(|engine| engine.volumes()).unwrap_or_default();
    let lost = repaired.lost.iter().map(|&(id, lba, blocks)| {
        let name = names.iter().find(|(named, _)| *named == id).map_or_else(
            || format!("number {id}"),
            |(_, volume)| format!("'{}'", volume.name.escape_debug()),
        );
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
        format!("volume {name} lost {} bytes at {}", bytes(blocks), bytes(lba.0))
    });
    let windows = repaired
        .lost_windows
        .iter()
        .map(|(from, to)| format!("the changes of the windows {} to {} are lost", from.0, to.0));
    let problems: Vec<String> = repaired.left.iter().cloned().chain(windows).chain(lost).collect();
    // The outcome names the first lost ranges, and the first problems of the check after it.
    let left = (repaired.left.len() as u64).max(repaired.after.problems_found);
    let found = left + repaired.lost_windows.len() as u64 + repaired.lost_addresses;
    Ok(Repair { restored: repaired.restored, left: Findings { problems, found } })
}

fn repaired_archive(outcome: Outcome) -> Repair {
    let mut restored = Vec::new();
    if let Some(entries) = outcome.index_entries {
        restored.push(format!("the chunk index, with {entries} entries"));
    }
    if outcome.leaf_copies > 0 {
        restored.push(format!("{} copies of leaves of tables and maps", outcome.leaf_copies));
    }
    if outcome.renewed_snapshot {
        restored.push("the last snapshot of the tables".to_owned());
    }
    if outcome.repaired_units() > 0 {
        restored.push(format!("{} units of 4 KiB on their nodes", outcome.repaired_units()));
    }
    if outcome.restored.chunks > 0 {
        restored.push(format!("{} lost chunks from other copies", outcome.restored.chunks));
    }
    let units = outcome.bad_units() - outcome.repaired_units();
    let report = outcome.report;
    let mut left = Findings { problems: report.problems, found: report.problems_found };
    if units > 0 {
        left.found += units;
        left.problems.push(format!("{units} units of 4 KiB are bad on their nodes"));
    }
    Repair { restored, left }
}

fn repair_cluster(url: &Url) -> Result<Repair> {
    let opened = Opened::open(url, Clustering::default())?;
    let mut scrub = Scrub::new(opened.session.clone(), true)?;
    while scrub.step()? {}
    let Report {
        stale,
        added,
        collected,
        restored,
        listed,
        orphans,
        left: orphans_left,
        misnamed,
        damage,
        ..
    } = scrub.report();
    let counts = [
        (stale, "stale references"),
        (added, "missing references"),
        (collected, "unused chunks"),
        (restored, "missing chunks that stood in their objects, too"),
        (listed, "unlisted objects"),
        (orphans, "orphans"),
        (misnamed, "names of a server at work that was none"),
    ];
    let restored = counts.iter().filter(|(count, _)| **count > 0);
    let mut left = Findings { problems: damage.clone(), found: damage.len() as u64 };
    if *orphans_left > 0 {
        left.found += orphans_left;
        left.problems.push(format!("{orphans_left} orphans, which the next repair removes"));
    }
    Ok(Repair { restored: restored.map(|(count, what)| format!("{count} {what}")).collect(), left })
}
