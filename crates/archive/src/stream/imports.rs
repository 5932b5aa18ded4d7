//! The importer beside clients: the auxiliary index written into the chunk index, and its runs merged,
//! in portions.
//!
//! A portion holds locks that streams wait for (`lookup`, `pending`, the archive's) for no read or
//! write of the index. Streams that must import themselves do so beside a merge that is half done.

use std::sync::Arc;

use onefold_core::{Kind, Result};

use super::ingest::Ingest;
use crate::{
    chunk_index::{
        ChunkIndex, Entry, Importing, RunMerge, first_to_merge, make_whole_paced, write_run,
    },
    container::{ContainerReader, Pace},
    format::{ContainerId, container::ContainerKind, damage::is_damage},
    operations_log::EpochGuard,
    rules::Rule,
    tables::{Found, Tables},
};

/// Containers whose metadata a portion reads.
const CONTAINERS: usize = 64;

/// The result of a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ported {
    /// There was nothing to do.
    Nothing,
    /// Somebody else is at it, or the disk has no room.
    Later,
    /// A portion was done.
    Some,
    /// The last portion was done: the index has so many files less.
    Merged(u64),
}

/// The container with this number. One whose leaf is lost is left out, as when the index is made anew.
fn look_up(tables: &Tables, id: ContainerId) -> Result<Option<Found>> {
    match tables.containers.get(&id) {
        Err(error) if is_damage(&error) => Ok(None),
        found => found,
    }
}

impl Ingest {
    /// Imports the oldest containers that the log lists and the chunk index does not have. A
    /// container that another process listed is read first.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn import_some(&self, pace: &Pace) -> Result<Ported> {
        if self.imported.lock().is_some() {
            self.renew_beside(pace)?;
        }
        // Leaves of the container table that are looked at stay where they are.
        let _guard = EpochGuard::enter(&self.archive)?;
        let (tables, unknown) = self.not_known()?;
        if tables.not_imported()?.is_empty() {
            return Ok(Ported::Nothing);
        }
        if !unknown.is_empty() {
            self.load_some(&tables, &unknown, pace)?;
            return Ok(Ported::Some);
        }
        let most = self.archive.settings.index_portion.max(1);
        pace.ask(most as u64 * 24)?;
        let merging = self.merging.lock();
        if self.imported.lock().is_some() {
            return Ok(Ported::Later);
        }
        let number = merging.as_ref().map(RunMerge::number);
        let Some(_importing) = Importing::begin(&self.archive, number)? else {
            return Ok(Ported::Later);
        };
        let Some((tables, entries, upto)) = self.oldest(most)? else { return Ok(Ported::Some) };
        match write_run(&self.archive, &tables, entries, upto, number) {
            Err(error) if error.kind() == Kind::NoSpace => Ok(Ported::Later),
            Err(error) => Err(error),
            Ok(_) => {
                *self.imported.lock() = Some(upto);
                Ok(Ported::Some)
            }
        }
    }

    /// Makes the index anew when its directory failed since this process began, and files of it are
    /// lost; true when it was made. Else what they had would be stored again as long as the process
    /// runs.
    ///
    /// # Errors
    /// Errors of the pace, after which it begins again, and of the system.
    pub(crate) fn make_whole_beside(&self, pace: &Pace) -> Result<bool> {
        if self.archive.index_failure().is_none() || self.imported.lock().is_some() {
            return Ok(false);
        }
        // Others import later.
        let merging = self.merging.lock();
        if merging.is_some() {
            return Ok(false);
        }
        let made = make_whole_paced(&self.archive, pace, &mut |_, _| {})?;
        if made.is_some() {
            *self.imported.lock() = Some(self.archive.tables().index.upto);
        }
        Ok(made.is_some())
    }

    /// The archive as of now, and containers of chunks that neither the chunk index nor the auxiliary
    /// index has.
    fn not_known(&self) -> Result<(Arc<Tables>, Vec<ContainerId>)> {
        // A frame of this process is listed in the auxiliary index before the next look.
        let pending = self.pending.lock();
        let tables = self.archive.refresh()?;
        let mut unlisted = tables.not_imported()?;
        let auxiliary = self.auxiliary.lock();
        unlisted.retain(|id| !auxiliary.is_listed(*id));
        drop((auxiliary, pending));
        // Leaves are read without these locks.
        let mut unknown = Vec::new();
        for id in unlisted {
            if look_up(&tables, id)?.is_some_and(|found| found.stored.kind == ContainerKind::Data) {
                unknown.push(id);
            }
        }
        Ok((tables, unknown))
    }

    /// Reads which chunks some containers have.
    fn load_some(&self, tables: &Tables, unknown: &[ContainerId], pace: &Pace) -> Result<()> {
        let reader = ContainerReader::paced(self.archive.clone(), pace.clone());
        for &id in unknown.iter().take(CONTAINERS) {
            let Some(container) = look_up(tables, id)? else { continue };
            let logged = container.logged;
            match reader.metadata(&container) {
                Ok(metadata) => {
                    let chunks = metadata.chunks.iter();
                    let entries = chunks.map(|chunk| (chunk.fingerprint, chunk.first));
                    self.auxiliary.lock().load(id, logged, entries);
                }
                // It is left out, as when the index is made anew.
                Err(error) if is_damage(&error) || error.kind() == Kind::NotFound => {
                    self.auxiliary.lock().load(id, logged, std::iter::empty());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The oldest entries that may be imported, and the place in the log up to which they are all.
    /// `None` when another process listed a container just now.
    #[allow(clippy::type_complexity)]
    fn oldest(&self, most: usize) -> Result<Option<(Arc<Tables>, Vec<Entry>, u64)>> {
        let (tables, unknown) = self.not_known()?;
        if !unknown.is_empty() {
            return Ok(None);
        }
        let (entries, last) = self.auxiliary.lock().oldest_listed(most);
        let last = last.filter(|_| self.archive.keeps(Rule::ImportedInOrder));
        let upto = last.unwrap_or(tables.sequence).max(tables.index.upto);
        Ok(Some((tables, entries, upto)))
    }

    /// Lets look-ups see the index as the importer left it; they wait for no read of it.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn renew_beside(&self, pace: &Pace) -> Result<()> {
        let Some(upto) = *self.imported.lock() else { return Ok(()) };
        let index = ChunkIndex::open_paced(self.archive.clone(), &self.archive.tables(), pace)?;
        let mut lookup = self.lookup.lock();
        let mut imported = self.imported.lock();
        // Unless a stream did it meanwhile, or somebody imported again.
        if *imported == Some(upto) {
            lookup.take_index(index);
            self.auxiliary.lock().forget_listed(upto);
            *imported = None;
        }
        Ok(())
    }

    /// Goes on with the merge of runs that is half done, or begins one.
    ///
    /// # Errors
    /// Errors of the system, after which it is given up.
    pub(crate) fn merge_some(&self, pace: &Pace) -> Result<Ported> {
        let files = &self.archive.tables().index.files;
        if self.merging.lock().is_none() && first_to_merge(files).is_none() {
            return Ok(Ported::Nothing);
        }
        pace.ask(3 << 20)?;
        let mut merging = self.merging.lock();
        let mut merge = match merging.take() {
            Some(merge) => merge,
            None => match RunMerge::begin(&self.archive)? {
                Some(merge) => merge,
                None => return Ok(Ported::Later),
            },
        };
        let stepped = EpochGuard::enter(&self.archive)
            .and_then(|guard| merge.step(&guard.tables, self.archive.settings.index_portion));
        match stepped {
            Ok(true) => {
                *merging = Some(merge);
                return Ok(Ported::Some);
            }
            Ok(false) => {}
            Err(error) => {
                // The first error is the one to tell.
                let _ = merge.give_up(&self.archive);
                return if error.kind() == Kind::NoSpace { Ok(Ported::Later) } else { Err(error) };
            }
        }
        match merge.finish(&self.archive) {
            Err(error) if error.kind() == Kind::NoSpace => Ok(Ported::Later),
            Err(error) => Err(error),
            Ok(None) => Ok(Ported::Some),
            Ok(Some((files, tables))) => {
                let upto = tables.index.upto;
                let mut imported = self.imported.lock();
                *imported = Some(imported.map_or(upto, |before| before.max(upto)));
                Ok(Ported::Merged(files))
            }
        }
    }

    /// True when a merge is half done.
    pub(crate) fn is_merging(&self) -> bool {
        self.merging.lock().is_some()
    }

    /// Gives up a merge that is half done, so that nobody waits for the importer's lock.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn give_up_merge(&self) -> Result<()> {
        let merge = self.merging.lock().take();
        merge.map_or(Ok(()), |merge| merge.give_up(&self.archive))
    }
}
