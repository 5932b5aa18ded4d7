//! The chunk index looked up: its files, the newest run first.

use std::sync::Arc;

use onefold_core::{Fingerprint, Kind, Result};

use super::file::OpenIndex;
use crate::{
    container::{ContainerReader, Pace},
    format::{Address, container::ContainerKind},
    operations_log::{Archive, EpochGuard, is_erased},
    tables::Tables,
};

/// The files of the index.
pub struct ChunkIndex {
    archive: Arc<Archive>,
    files: Vec<OpenIndex>,
    /// Page reads so far.
    pub page_reads: u64,
}

impl ChunkIndex {
    /// The index as `tables` name it. A file that is not there costs duplicates.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn open(archive: Arc<Archive>, tables: &Tables) -> Result<ChunkIndex> {
        ChunkIndex::open_paced(archive, tables, &Pace::default())
    }

    /// The same in the background.
    pub(crate) fn open_paced(
        archive: Arc<Archive>,
        tables: &Tables,
        pace: &Pace,
    ) -> Result<ChunkIndex> {
        let mut files = Vec::new();
        let all: u64 = tables.index.files.iter().map(|file| u64::from(file.pages)).sum();
        for file in &tables.index.files {
            let cache = archive.settings.page_cache_bytes * u64::from(file.pages) / all.max(1);
            match OpenIndex::open(&archive, file, cache, pace) {
                Ok(open) => files.push(open),
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Corrupt) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ChunkIndex { archive, files, page_reads: 0 })
    }

    /// True unless no file holds the fingerprint.
    #[must_use]
    pub fn may_hold(&self, fingerprint: &Fingerprint) -> bool {
        self.files.iter().any(|file| file.filter.may_hold(fingerprint))
    }

    /// Where the index says that the chunk is. Without `filtered` the filter of the index itself is
    /// not asked, only those of the runs.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn look_up(
        &mut self,
        fingerprint: &Fingerprint,
        filtered: bool,
    ) -> Result<Option<Address>> {
        // The newest run knows best.
        for n in (0..self.files.len()).rev() {
            let file = &mut self.files[n];
            if (n > 0 || filtered) && !file.filter.may_hold(fingerprint) {
                continue;
            }
            if let Some(address) = file.look_up(&self.archive, fingerprint, &mut self.page_reads)? {
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Memory of the filters.
    #[must_use]
    pub fn filter_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.filter.bytes()).sum()
    }
}

/// Chunks of imported containers that the index does not find; each of them would be stored again.
/// Reads the metadata of all containers: for tests and simulations.
///
/// # Errors
/// Errors of the system, and of damaged containers.
pub fn not_found(archive: &Arc<Archive>) -> Result<u64> {
    let guard = EpochGuard::enter(archive)?;
    let tables = &guard.tables;
    let reader = ContainerReader::new(archive.clone());
    let mut index = ChunkIndex::open(archive.clone(), tables)?;
    let mut missing = 0;
    for container in &tables.containers {
        let container = container?;
        let is_imported = container.logged <= tables.index.upto;
        let is_gone = is_erased(archive, container.stored.domain);
        if !is_imported || is_gone || container.stored.kind != ContainerKind::Data {
            continue;
        }
        for chunk in reader.metadata(&container)?.chunks {
            missing += u64::from(index.look_up(&chunk.fingerprint, true)?.is_none());
        }
    }
    Ok(missing)
}
