//! New entries written into the chunk index.

use std::sync::Arc;

use onefold_core::{Hold, Kind, Lock, Result};

use super::{
    auxiliary_index::Auxiliary,
    file,
    file::{Entry, PAGE_BYTES, Writer, index_name},
    merge::Merge,
};
use crate::{
    container::ContainerReader,
    format::{
        damage::is_damage,
        names::{IMPORTER, whole_or_gone},
        record::{IndexFile, Record},
    },
    operations_log::Archive,
    rules::Rule,
    tables::Tables,
};

/// Runs beside the index; with more, the importer must merge.
pub(crate) const RUNS_MAX: usize = 8;

/// Entries for which a run is written at the end of a put: fewer are found again in their
/// containers' metadata.
const RUN_LEAST: usize = 16 << 10;

/// Loads into `auxiliary` what was listed since the last import.
///
/// # Errors
/// Errors of the system; a damaged container is left out.
pub(crate) fn load_recent(
    container_reader: &ContainerReader,
    tables: &Tables,
    auxiliary: &mut Auxiliary,
) -> Result<()> {
    let mut recent = tables.not_imported()?;
    recent.sort_unstable();
    for id in &recent {
        let container = match tables.containers.get(id) {
            Err(error) if is_damage(&error) => continue,
            found => found?,
        };
        let Some(container) = container else { continue };
        if !container_reader.may_share(tables, &container) {
            continue;
        }
        match container_reader.metadata(&container) {
            Ok(metadata) => {
                let entries = metadata.chunks.iter().map(|chunk| (chunk.fingerprint, chunk.first));
                auxiliary.load(container.stored.id, container.logged, entries);
            }
            // A domain whose key is not there keeps no other one from being stored into.
            Err(error) if is_damage(&error) || error.kind() == Kind::Denied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How the importer's lock is held.
pub(crate) enum Importing {
    Alone {
        _lock: Box<dyn Lock>,
    },
    /// By a merge of this process, which makes the index file of this number.
    BesideMerge(u64),
}

impl Importing {
    /// Takes the importer's lock, unless a merge of this process has it. `None` when another process
    /// does.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn begin(archive: &Archive, merging: Option<u64>) -> Result<Option<Importing>> {
        if let Some(number) = merging {
            return Ok(Some(Importing::BesideMerge(number)));
        }
        match archive.files.lock(IMPORTER, Hold::Alone, false) {
            Err(error) if error.kind() == Kind::Busy => Ok(None),
            locked => locked.map(|lock| Some(Importing::Alone { _lock: lock })),
        }
    }

    fn merging(&self) -> Option<u64> {
        match self {
            Importing::Alone { .. } => None,
            Importing::BesideMerge(number) => Some(*number),
        }
    }
}

/// Writes what is listed of the auxiliary index as a run, or together with index and runs as a new
/// index. Never in the path of a put's chunks. `all` writes a run for few entries too. Gives the
/// tables as they then are, and the place in the log up to which the auxiliary index may forget;
/// `None` when there was nothing to do.
///
/// # Errors
/// Errors of the system; a full disk, and memory that is not there, only put it off.
pub(crate) fn import(
    archive: &Arc<Archive>,
    auxiliary: &parking_lot::Mutex<Auxiliary>,
    all: bool,
    importing: &Importing,
) -> Result<Option<(Arc<Tables>, u64)>> {
    // Another process may have imported before this one had the lock.
    let tables = archive.refresh()?;
    let (entries, upto) = auxiliary.lock().listed();
    let upto = upto.max(tables.index.upto);
    if entries.is_empty()
        || (!all && entries.len() < RUN_LEAST.min(archive.settings.auxiliary_entries / 2))
    {
        return Ok(None);
    }
    match import_entries(archive, &tables, entries, upto, importing.merging()) {
        // Nobody keeps the tables for it while others change the archive: the next import has newer
        // ones.
        Err(error) if matches!(error.kind(), Kind::NoSpace | Kind::Busy | Kind::Memory) => Ok(None),
        Err(error) => Err(error),
        Ok(now) => Ok(Some((now, upto))),
    }
}

fn import_entries(
    archive: &Arc<Archive>,
    tables: &Tables,
    mut entries: Vec<Entry>,
    upto: u64,
    merging: Option<u64>,
) -> Result<Arc<Tables>> {
    let old = &tables.index.files;
    let in_runs =
        old.iter().skip(1).fold(entries.len() as u64, |sum, file| sum.saturating_add(file.entries));
    // Merging costs as much as the index is long: it waits for runs that are worth it.
    let merges = old.len() > RUNS_MAX
        || old.first().is_none_or(|index| in_runs.saturating_mul(4) >= index.entries);
    if !merges || merging.is_some() || !may_merge(archive, old)? {
        return write_run(archive, tables, entries, upto, merging);
    }
    entries.sort_unstable_by_key(|entry| entry.0.prefix());
    let number = next_number(archive, tables, None)?;
    let mut merge = Merge::new(archive, number, &possible(archive, old)?, entries)?;
    while merge.step(tables, usize::MAX)? {}
    let files = vec![merge.finish()?];
    let now = archive.commit(false, |_| Ok(vec![Record::Imported { files, upto }]))?;
    old.iter().try_for_each(|gone| remove(archive, gone))?;
    Ok(now)
}

/// Writes entries as a run, and imports them. The caller holds the importer's lock; a merge of this
/// process may be making the file `merging`.
pub(crate) fn write_run(
    archive: &Arc<Archive>,
    tables: &Tables,
    mut entries: Vec<Entry>,
    upto: u64,
    merging: Option<u64>,
) -> Result<Arc<Tables>> {
    let mut files = tables.index.files.clone();
    if !entries.is_empty() {
        entries.sort_unstable_by_key(|entry| entry.0.prefix());
        let number = next_number(archive, tables, merging)?;
        let made = Writer::create(archive, number, entries.len() as u64).and_then(|mut writer| {
            entries.iter().try_for_each(|entry| writer.push(entry))?;
            writer.finish()
        });
        files.push(whole_or_gone(&*archive.files, &index_name(number), made)?);
    }
    archive.commit(false, |_| Ok(vec![Record::Imported { files, upto }]))
}

/// Removes a file of the index that nothing names any more.
pub(super) fn remove(archive: &Archive, gone: &IndexFile) -> Result<()> {
    match archive.files.remove(&index_name(gone.number)) {
        Err(error) if error.kind() != Kind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The files whose sizes can be true: what a log says of the others would only cost memory.
pub(super) fn possible(archive: &Archive, files: &[IndexFile]) -> Result<Vec<IndexFile>> {
    let mut possible = Vec::with_capacity(files.len());
    for named in files {
        let file = archive.files.open(&index_name(named.number));
        match file.and_then(|file| file::is_possible(archive, named, &*file)) {
            Ok(true) => possible.push(*named),
            Ok(false) => {}
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(possible)
}

/// How many of these files are lost: not there, not to be opened, or of another length than they were
/// made with, as in an older copy of a directory.
///
/// # Errors
/// Errors of the system.
pub(super) fn lost_among(archive: &Archive, files: &[IndexFile]) -> Result<u64> {
    let mut lost = 0;
    for named in files {
        let pages = u64::from(named.pages) + u64::from(named.filter_pages);
        let found = archive.files.open(&index_name(named.number)).and_then(|file| file.bytes());
        lost += match found {
            Ok(bytes) => u64::from(bytes != pages * PAGE_BYTES as u64),
            // Denied: something else has its name, or it is somebody else's.
            Err(error)
                if is_damage(&error) || matches!(error.kind(), Kind::NotFound | Kind::Denied) =>
            {
                1
            }
            Err(error) => return Err(error),
        };
    }
    Ok(lost)
}

/// True when these files may become one. A file that is lost comes back with its disk, or is made anew
/// with all others; merged, it would be forgotten, and its chunks would be stored again for ever.
pub(super) fn may_merge(archive: &Archive, files: &[IndexFile]) -> Result<bool> {
    if !archive.keeps(Rule::LostFilesNotMerged) {
        return Ok(true);
    }
    let beside = |file: &IndexFile| archive.files.is_beside(&index_name(file.number));
    let are_read = archive.index_failure().is_none() || files.iter().all(beside);
    Ok(are_read && lost_among(archive, files)? == 0)
}

/// Numbers from here on no program gives to a file.
const MADE_UP: u64 = 1 << 60;

/// A number that no index file has or had when the log was shorter, so that no file of an older copy of
/// the directory passes for a new one. Files that nothing names are removed, but for the one that a
/// merge is making.
pub(super) fn next_number(archive: &Archive, tables: &Tables, merging: Option<u64>) -> Result<u64> {
    // Where the index directory is away, its names are not seen.
    let named = tables.index.files.iter().map(|file| file.number);
    let mut highest = named.chain(merging).fold(tables.sequence, u64::max);
    for name in archive.files.names()? {
        let Some(number) =
            name.strip_prefix("index-").and_then(|digits| digits.parse::<u64>().ok())
        else {
            continue;
        };
        // A name that somebody made uses up no numbers.
        if number < MADE_UP {
            highest = highest.max(number);
        }
        let is_named = tables.index.files.iter().any(|file| file.number == number);
        if !is_named && merging != Some(number) {
            match archive.files.remove(&name) {
                Err(error) if error.kind() != Kind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(highest.saturating_add(1))
}
