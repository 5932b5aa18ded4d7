//! The index made anew from the metadata of all containers, or written again elsewhere.
//!
//! *Crash argument:* new files are named by one record at the end, when all of them are durable. Files
//! that nothing names are removed by the next import.

use std::{cmp::Reverse, sync::Arc};

use onefold_core::{Error, Hold, Kind, Lock, Result};

use super::{
    file::{Entry, Writer},
    import::{Importing, lost_among, next_number, possible, remove},
    merge::Merge,
    run_merge::first_to_merge,
};
use crate::{
    container::{ContainerReader, Pace},
    erasure::IndexDirectory,
    format::{
        container::ContainerKind,
        damage::is_damage,
        names::{IMPORTER, WRITER},
        record::{IndexFile, Record},
    },
    operations_log::{Archive, EpochGuard},
    rules::Rule,
    tables::{Tables, is_damaged},
};

/// Bytes of an entry in a file, about.
const ENTRY_BYTES: u64 = 36;

/// Told how many containers were looked at, and of how many.
type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Files of the index that are lost: not there, or not as long as they were made. What they had would
/// be stored again, so the next ingesting process makes the index anew.
///
/// # Errors
/// Errors of the system.
pub fn lost_files(archive: &Archive) -> Result<u64> {
    match lost_among(archive, &archive.tables().index.files)? {
        0 => Ok(0),
        // Another process may have named others since the last look at the log.
        _ => lost_among(archive, &archive.refresh()?.index.files),
    }
}

/// Makes the index anew when a file of it is lost; gives how many entries it has then. `None` when
/// nothing is lost, or another process writes the index just now.
///
/// # Errors
/// `NoSpace`, and those of the system.
pub fn make_whole(archive: &Arc<Archive>, progress: &mut Progress<'_>) -> Result<Option<u64>> {
    make_whole_paced(archive, &Pace::default(), progress)
}

/// The same in the background.
pub(crate) fn make_whole_paced(
    archive: &Arc<Archive>,
    pace: &Pace,
    progress: &mut Progress<'_>,
) -> Result<Option<u64>> {
    archive.refresh()?;
    if lost_files(archive)? == 0 || !archive.keeps(Rule::LostIndexMadeAnew) {
        return Ok(None);
    }
    let Some(_importing) = Importing::begin(archive, None)? else { return Ok(None) };
    // Another process may have made it before this one had the lock.
    if lost_files(archive)? == 0 {
        return Ok(None);
    }
    from_metadata_twice(archive, pace, progress).map(Some)
}

/// Makes the index anew from the metadata of all containers; false when another process writes it just now.
///
/// # Errors
/// `NoSpace`, and those of the system.
pub(crate) fn make_anew_paced(archive: &Arc<Archive>, pace: &Pace) -> Result<bool> {
    let Some(_importing) = Importing::begin(archive, None)? else { return Ok(false) };
    archive.refresh()?;
    from_metadata_twice(archive, pace, &mut |_, _| {})?;
    Ok(true)
}

/// Makes the index anew from the metadata of all containers, and names it in place of the old one;
/// gives how many entries it has. It is one file afterwards, unless the disk has no room to make one of
/// several. Memory as for an auxiliary index.
///
/// # Errors
/// `NoSpace`, and those of the system.
pub fn rebuild(archive: &Arc<Archive>, progress: &mut Progress<'_>) -> Result<u64> {
    let _lock = archive.files.lock(IMPORTER, Hold::Alone, true)?;
    let made = from_metadata_twice(archive, &Pace::default(), progress)?;
    if archive.tables().index.files.len() < 2 {
        return Ok(made);
    }
    match without_remains(archive, rewrite(archive, None)) {
        Err(error) if error.kind() == Kind::NoSpace => Ok(made),
        merged => merged,
    }
}

/// Makes one file of all.
fn rewrite(archive: &Arc<Archive>, to: Option<&IndexDirectory>) -> Result<u64> {
    let guard = EpochGuard::enter(archive)?;
    let tables = &guard.tables;
    let files = possible(archive, &tables.index.files)?;
    let mut made = Made::new(archive, tables, tables.index.upto)?;
    if !files.is_empty() {
        made.merge(&files)?;
    }
    made.name(to)
}

/// The index on its way to where an archive, as it was opened, makes new files of it. Puts and imports
/// wait meanwhile.
pub struct IndexMove {
    archive: Arc<Archive>,
    _locks: [Box<dyn Lock>; 2],
}

impl IndexMove {
    /// Waits for puts and imports.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn begin(archive: &Arc<Archive>) -> Result<IndexMove> {
        let lock = |name| archive.files.lock(name, Hold::Alone, true);
        let _locks = [lock(WRITER)?, lock(IMPORTER)?];
        archive.refresh()?;
        Ok(IndexMove { archive: archive.clone(), _locks })
    }

    /// Writes all of it again, and names it in place of the old one; gives how many entries it has.
    /// Where files are lost, or can't be read, it is made anew. `to` is where the new files are made,
    /// unless that is beside the data.
    ///
    /// # Errors
    /// `NoSpace`, also when `to` failed; those of the system. The old index stays then.
    pub fn run(&self, to: Option<&IndexDirectory>, progress: &mut Progress<'_>) -> Result<u64> {
        let archive = &self.archive;
        if lost_files(archive)? > 0 {
            return from_metadata(archive, to, &Pace::default(), progress);
        }
        match without_remains(archive, rewrite(archive, to)) {
            // Where the old files are can't be read.
            Err(error) if error.kind() == Kind::NoSpace && archive.index_failure().is_some() => {
                has_not_failed(to)?;
                from_metadata(archive, to, &Pace::default(), progress)
            }
            made => made,
        }
    }
}

fn has_not_failed(directory: Option<&IndexDirectory>) -> Result<()> {
    match directory.and_then(IndexDirectory::failure) {
        Some(error) => {
            Err(Error::new(Kind::NoSpace, format!("the index directory failed: {error}")))
        }
        None => Ok(()),
    }
}

/// The same twice where an index directory failed: the second time files are made beside the data.
fn from_metadata_twice(
    archive: &Arc<Archive>,
    pace: &Pace,
    progress: &mut Progress<'_>,
) -> Result<u64> {
    match from_metadata(archive, None, pace, progress) {
        Err(error) if error.kind() == Kind::NoSpace && archive.index_failure().is_some() => {
            from_metadata(archive, None, pace, progress)
        }
        made => made,
    }
}

/// Makes the index from metadata. The caller holds the importer's lock.
fn from_metadata(
    archive: &Arc<Archive>,
    to: Option<&IndexDirectory>,
    pace: &Pace,
    progress: &mut Progress<'_>,
) -> Result<u64> {
    without_remains(archive, try_from_metadata(archive, to, pace, progress))
}

/// Removes what is half made where the making ended for want of room, or for others: it takes room.
/// The caller holds the importer's lock.
fn without_remains(archive: &Archive, made: Result<u64>) -> Result<u64> {
    if made.as_ref().is_err_and(|error| matches!(error.kind(), Kind::NoSpace | Kind::Busy)) {
        // The first error is the one to tell.
        let _ = next_number(archive, &archive.tables(), None);
    }
    made
}

/// True for an error of one container, whose chunks are stored again: it must not keep anybody from
/// storing. The pace, a lost claim and a full disk are not about one container.
fn is_of_container(error: &Error) -> bool {
    !matches!(error.kind(), Kind::Busy | Kind::Stopped | Kind::NoSpace)
}

fn try_from_metadata(
    archive: &Arc<Archive>,
    to: Option<&IndexDirectory>,
    pace: &Pace,
    progress: &mut Progress<'_>,
) -> Result<u64> {
    // Containers stay where they are, and leaves that are looked at.
    let guard = EpochGuard::enter(archive)?;
    let tables = &guard.tables;
    let reader = ContainerReader::paced(archive.clone(), pace.clone());
    let mut made = Made::new(archive, tables, tables.sequence)?;
    let (mut entries, total) = (Vec::new(), tables.containers.len() as u64);
    for (n, container) in tables.containers.iter().enumerate() {
        progress(n as u64 + 1, total);
        let container = match container {
            // What can't be looked up is stored again.
            Err(error) if is_damage(&error) => continue,
            found => found?,
        };
        if container.stored.kind != ContainerKind::Data {
            continue;
        }
        let metadata = match reader.metadata(&container) {
            Err(error) if is_of_container(&error) => continue,
            found => found?,
        };
        let chunks = metadata.chunks.iter().enumerate();
        let whole = chunks.filter(|(n, _)| !is_damaged(tables, container.stored.id, *n));
        entries.extend(whole.map(|(_, chunk)| (chunk.fingerprint, chunk.first)));
        if entries.len() >= archive.settings.auxiliary_entries {
            pace.ask(entries.len() as u64 * ENTRY_BYTES)?;
            made.run(std::mem::take(&mut entries))?;
        }
    }
    made.run(entries)?;
    made.name(to)
}

/// New files of the index, which nothing names yet.
struct Made<'a> {
    archive: &'a Arc<Archive>,
    tables: &'a Tables,
    files: Vec<IndexFile>,
    /// The number of the next one.
    next: u64,
    /// The place in the log up to which they have all.
    upto: u64,
}

impl<'a> Made<'a> {
    /// The caller holds the importer's lock.
    fn new(archive: &'a Arc<Archive>, tables: &'a Tables, upto: u64) -> Result<Made<'a>> {
        let next = next_number(archive, tables, None)?;
        Ok(Made { archive, tables, files: Vec::new(), next, upto })
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        self.next = number.saturating_add(1);
        number
    }

    /// Writes entries as a run, and merges runs that are worth it.
    fn run(&mut self, mut entries: Vec<Entry>) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        // A chunk that many containers have would fill pages, of which the newest address is read.
        entries.sort_unstable_by_key(|(fingerprint, address)| {
            (fingerprint.prefix(), fingerprint.0, Reverse(address.container.0))
        });
        entries.dedup_by_key(|entry| entry.0);
        let mut writer = Writer::create(self.archive, self.number(), entries.len() as u64)?;
        entries.iter().try_for_each(|entry| writer.push(entry))?;
        self.files.push(writer.finish()?);
        while let Some(first) = first_to_merge(&self.files) {
            let from = self.files.split_off(first);
            self.merge(&from)?;
            from.iter().try_for_each(|gone| remove(self.archive, gone))?;
        }
        Ok(())
    }

    /// Makes one file of several.
    fn merge(&mut self, from: &[IndexFile]) -> Result<()> {
        let mut merge = Merge::new(self.archive, self.number(), from, Vec::new())?;
        while merge.step(self.tables, usize::MAX)? {}
        self.files.push(merge.finish()?);
        Ok(())
    }

    /// Names them in place of the files that the tables name, unless the directory that they were to
    /// be made in failed.
    fn name(self, to: Option<&IndexDirectory>) -> Result<u64> {
        has_not_failed(to)?;
        let Made { archive, tables, files, upto, .. } = self;
        if files.is_empty() && tables.index.files.is_empty() {
            return Ok(0);
        }
        let entries = files.iter().map(|file| file.entries).sum();
        archive.commit(false, |now| {
            // The importer's lock keeps others from it, where locks hold.
            if now.index != tables.index {
                return Err(Error::new(
                    Kind::Busy,
                    "another process wrote the chunk index meanwhile",
                ));
            }
            Ok(vec![Record::Imported { files, upto }])
        })?;
        tables.index.files.iter().try_for_each(|gone| remove(archive, gone))?;
        Ok(entries)
    }
}
