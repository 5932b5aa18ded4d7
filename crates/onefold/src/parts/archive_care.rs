//! Check, scrub and repair of an archive: what each reads, records and restores.

use std::sync::Arc;

use onefold_archive::{
    Archive, CheckReport, Rebuilt, Restored, Settings, check, check_one, lost_index_files,
    mend_leaves, note_scrubbed, rebuild_chunk_index, record_damage, renew_snapshot, repair_units,
    restore_chunks,
};
use onefold_core::{Kind, Result};

use super::{
    archive_dir::{ArchiveDir, now},
    kept_objects,
};

/// How far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Reads metadata, and changes nothing.
    Check,
    /// Reads all data too, and records what is damaged, so that no put takes it for a duplicate.
    Scrub,
    /// The same, and restores what can be restored.
    Repair,
}

/// The part of the archive, and how far it goes.
#[derive(Clone, Copy, Debug)]
pub struct Extent<'a> {
    /// How far.
    pub depth: Depth,
    /// One stream or volume, and the containers that it needs.
    pub only: Option<&'a str>,
    /// Bytes of memory for the tables.
    pub memory: u64,
}

/// The findings, and what was made anew.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The findings; after a repair that restored chunks, those that are left.
    pub report: CheckReport,
    /// Entries of the chunk index, when it was made anew.
    pub index_entries: Option<u64>,
    /// Files of the chunk index that are lost, and cost no data: it is made anew by the next put.
    pub lost_index_files: u64,
    /// Units on the nodes, when the archive has several.
    pub units: Option<Rebuilt>,
    /// Copies of the tables' leaves, and of volumes' maps, that were damaged and were written again.
    pub leaf_copies: u64,
    /// The last snapshot of the tables could not be read, and was written anew.
    pub renewed_snapshot: bool,
    /// Chunks that other copies made whole.
    pub restored: Restored,
    /// Why restoring chunks ended before all were tried.
    pub not_restored: Option<String>,
}

impl Outcome {
    /// Units of 4 KiB that were bad on their nodes.
    #[must_use]
    pub fn bad_units(&self) -> u64 {
        self.units.map_or(0, |found| found.units.bad_units)
    }

    /// Those of them that were made anew.
    #[must_use]
    pub fn repaired_units(&self) -> u64 {
        self.units.map_or(0, |found| found.units.repaired_units)
    }

    /// True when nothing is damaged any more.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.report.is_well() && self.bad_units() == self.repaired_units()
    }
}

/// Checks, scrubs or repairs. `progress` hears what is done, how much of it, and of how much.
/// Where this user may write nothing, nothing is recorded or restored.
///
/// # Errors
/// The errors of opening. Damage is no error: the report has it.
pub fn run(
    directory: &ArchiveDir,
    extent: Extent<'_>,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Outcome> {
    kept_objects::look_at_stores_alone();
    let (data, repairs) = (extent.depth != Depth::Check, extent.depth == Depth::Repair);
    let settings = || Settings { memory: extent.memory, ..Settings::default() };
    let mut outcome = Outcome::default();
    if repairs && extent.only.is_none() {
        let archive = directory.open(settings())?;
        let mut told = |done, total| progress("rebuilding the chunk index", done, total);
        outcome.index_entries = Some(rebuild_chunk_index(&archive, &mut told)?);
    }
    let archive = if data {
        directory.open_to_mend(extent.memory)?
    } else {
        directory.open_to_read(extent.memory)?
    };
    if data && extent.only.is_none() {
        // Every shard is looked at, parity included.
        if let Ok((archive, Some(nodes))) = directory.open_nodes(settings(), false) {
            let mut told = |done, total| progress("looking at shards", done, total);
            outcome.units = Some(repair_units(&archive, &nodes, repairs, &mut told)?);
        }
    }
    if repairs && extent.only.is_none() && archive.is_writable() {
        outcome.leaf_copies = mend_leaves(&archive)?;
        outcome.renewed_snapshot = match renew_snapshot(&archive) {
            // The findings tell that it is still to be done.
            Err(error) if error.kind() == Kind::NoSpace => false,
            renewed => renewed?,
        };
    }
    if extent.only.is_none() && directory.sees_index() {
        outcome.lost_index_files = lost_index_files(&archive)?;
    }
    outcome.report = look(&archive, extent, progress)?;
    if !data || !archive.is_writable() {
        return Ok(outcome);
    }
    if !outcome.report.rotten.is_empty() {
        record_damage(&archive, &outcome.report.rotten)?;
    }
    if extent.only.is_none() {
        note_scrubbed(&archive, now())?;
    }
    if repairs {
        let mut told = |done, total| progress("restoring", done, total);
        match restore_chunks(&archive, &outcome.report.lost, &mut told) {
            Ok(restored) => outcome.restored = restored,
            // The findings are told all the same.
            Err(error) => outcome.not_restored = Some(error.to_string()),
        }
        if outcome.restored.chunks > 0 || outcome.not_restored.is_some() {
            let bytes = outcome.report.bytes;
            archive.refresh()?;
            outcome.report = look(&archive, Extent { depth: Depth::Check, ..extent }, progress)?;
            outcome.report.bytes = bytes;
        }
    }
    Ok(outcome)
}

fn look(
    archive: &Arc<Archive>,
    extent: Extent<'_>,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<CheckReport> {
    let data = extent.depth != Depth::Check;
    let doing = if data { "scrubbing" } else { "checking" };
    let mut told = |what: &str, done, total| progress(&format!("{doing} {what}"), done, total);
    match extent.only {
        Some(name) => check_one(archive, name, data, &mut told),
        None => check(archive, data, &mut told),
    }
}
