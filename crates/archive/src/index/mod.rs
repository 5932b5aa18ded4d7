//! The chunk index (dedupv1 3.4): fingerprint → address, larger than memory.
//!
//! New entries are in the *auxiliary index* in memory. At its limit, and at the end of a put, those
//! whose containers are listed are written as a *run*: one sequential file, a hash table of its own
//! with its Bloom filter. The importer merges index and runs into a new file, sequentially too.
//! No page is ever written twice.
//!
//! *Invariant:* it advises. An entry may be stale; who takes it looks into the container first. A
//! lost or damaged page costs duplicates.
//!
//! *Crash argument:* a file is synced, its name too, before the record that names it. Containers
//! that were listed after that record's place in the log come back into the auxiliary index from
//! their metadata.

pub mod auxiliary;
pub mod file;

use std::sync::Arc;

use onefold_core::{Fingerprint, Hold, Kind, Result};

use self::{
    auxiliary::Auxiliary,
    file::{Entry, OpenIndex, Writer, index_name},
};
use crate::{
    archive::{Archive, IMPORTER},
    check::is_damage,
    format::{Address, record::Record},
    repair::lost_chunks::is_damaged,
    segments::ContainerReader,
    settings::PlantedBug,
    tables::Tables,
};

/// Runs beside the index; with more, the importer must merge.
pub const RUNS_MAX: usize = 8;

/// Entries for which a run is written at the end of a put: fewer are found again in their
/// containers' metadata.
const RUN_LEAST: usize = 16 << 10;

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
    /// Those of the system.
    pub fn open(archive: Arc<Archive>, tables: &Tables) -> Result<ChunkIndex> {
        let mut files = Vec::new();
        let all: u64 = tables.index.files.iter().map(|file| u64::from(file.pages)).sum();
        for file in &tables.index.files {
            let cache = archive.settings.page_cache_bytes * u64::from(file.pages) / all.max(1);
            match OpenIndex::open(&archive, file, cache) {
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
    /// Those of the system.
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

/// Loads into `auxiliary` what was listed since the last import.
///
/// # Errors
/// Those of the system; a damaged container is left out.
pub(crate) fn load_recent(
    container_reader: &ContainerReader,
    tables: &Tables,
    auxiliary: &mut Auxiliary,
) -> Result<()> {
    let recent =
        tables.containers.values().filter(|container| container.logged > tables.index.upto);
    for container in recent {
        match container_reader.metadata(container) {
            Ok(metadata) => {
                let entries = metadata.chunks.iter().map(|chunk| (chunk.fingerprint, chunk.first));
                auxiliary.load(container.stored.id, container.logged, entries);
            }
            Err(error) if is_damage(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes what is listed of the auxiliary index as a run, and with `merge` index and runs as a new
/// index. Never in the path of a put's chunks. `all` writes a run for few entries too. Gives the
/// tables as they then are, and the place in the log up to which the auxiliary index may forget;
/// `None` when there was nothing to do, or another process does it.
///
/// # Errors
/// Those of the system; a full disk only puts it off.
pub(crate) fn import(
    archive: &Arc<Archive>,
    auxiliary: &parking_lot::Mutex<Auxiliary>,
    all: bool,
) -> Result<Option<(Arc<Tables>, u64)>> {
    let Ok(_lock) = archive.files.lock(IMPORTER, Hold::Alone, false) else { return Ok(None) };
    let tables = archive.tables();
    let (entries, upto) = auxiliary.lock().listed();
    if entries.is_empty()
        || (!all && entries.len() < RUN_LEAST.min(archive.settings.auxiliary_entries / 2))
    {
        return Ok(None);
    }
    match import_entries(archive, &tables, entries, upto) {
        Err(error) if error.kind() == Kind::NoSpace => Ok(None),
        Err(error) => Err(error),
        Ok(now) => Ok(Some((now, upto))),
    }
}

fn import_entries(
    archive: &Arc<Archive>,
    tables: &Tables,
    mut entries: Vec<Entry>,
    upto: u64,
) -> Result<Arc<Tables>> {
    entries.sort_unstable_by_key(|entry| entry.0.prefix());
    let old = &tables.index.files;
    let in_runs: u64 =
        old.iter().skip(1).map(|file| file.entries).sum::<u64>() + entries.len() as u64;
    // Merging costs as much as the index is long: it waits for runs that are worth it.
    let merges =
        old.len() > RUNS_MAX || old.first().is_none_or(|index| in_runs * 4 >= index.entries);
    let number = next_number(archive, tables)?;
    let (file, kept) = if merges {
        let count = old.iter().map(|file| file.entries).sum::<u64>() + entries.len() as u64;
        let mut writer = Writer::create(archive, number, count)?;
        file::merge(archive, tables, old, &entries, &mut writer)?;
        (writer.finish()?, Vec::new())
    } else {
        let mut writer = Writer::create(archive, number, entries.len() as u64)?;
        entries.iter().try_for_each(|entry| writer.push(entry))?;
        (writer.finish()?, old.clone())
    };
    let files: Vec<_> = kept.into_iter().chain([file]).collect();
    let before = old.clone();
    let now =
        archive.commit(false, |_| Ok(vec![Record::Imported { files: files.clone(), upto }]))?;
    for gone in before.iter().filter(|gone| !files.contains(gone)) {
        match archive.files.remove(&index_name(gone.number)) {
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(now)
}

/// A number that no index file has; files that nothing names are removed.
fn next_number(archive: &Archive, tables: &Tables) -> Result<u64> {
    let mut highest = 0;
    for name in archive.files.names()? {
        let Some(number) =
            name.strip_prefix("index-").and_then(|digits| digits.parse::<u64>().ok())
        else {
            continue;
        };
        highest = highest.max(number);
        if tables.index.files.iter().all(|file| file.number != number) {
            archive.files.remove(&name)?;
        }
    }
    Ok(highest.saturating_add(1))
}

/// Throws the index away and makes it anew from the metadata of all containers.
///
/// # Errors
/// Those of the system.
pub fn rebuild(archive: &Arc<Archive>, progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
    let _lock = archive.files.lock(IMPORTER, Hold::Alone, true)?;
    let tables = archive.refresh()?;
    let container_reader = ContainerReader::new(archive.clone());
    let (mut entries, total) = (Vec::new(), tables.containers.len() as u64);
    for (n, container) in tables.containers.values().enumerate() {
        if let Ok(metadata) = container_reader.metadata(container) {
            let whole = metadata
                .chunks
                .iter()
                .enumerate()
                .filter(|(n, _)| !is_damaged(&tables, container.stored.id, *n));
            entries.extend(whole.map(|(_, chunk)| (chunk.fingerprint, chunk.first)));
        }
        progress(n as u64 + 1, total);
    }
    let count = entries.len() as u64;
    let empty = Tables { index: crate::tables::IndexState::default(), ..Tables::clone(&tables) };
    import_entries(archive, &empty, entries, tables.sequence)?;
    Ok(count)
}

/// True when the pages of an import count before they are durable: a planted bug.
pub(crate) fn imports_ahead(archive: &Archive) -> bool {
    archive.settings.has(PlantedBug::ImportAhead)
}
