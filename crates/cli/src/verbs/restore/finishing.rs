//! The directories of what was restored, finished; and what they have beyond it, removed.

use onefold_archive::{Entries, Top, TreeEntry, TreeReader, TreeWhat};
use onefold_backend::tree::{Keeps, Removal, Restorer, Sweep, Swept};
use onefold_console::output;
use onefold_core::{Error, Kind, Result};

use super::walk::{Pending, Visitor, is_of_entry, plain};

/// Finishes the directories of what was restored.
pub(super) struct Finishing {
    pub(super) restorer: Restorer,
    pub(super) pending: Pending,
    /// Removes what the snapshot lacks.
    pub(super) sweep: Option<Sweep>,
    pub(super) swept: Swept,
    /// Something could not be made, and was told of.
    pub(super) has_refused: bool,
    /// Directories that could not get their owner, rights or times.
    pub(super) unfinished: u64,
}

impl Visitor for Finishing {
    /// What could not be made was told of; what can't be finished is told of now.
    fn fails(&mut self, path: &[u8], error: Error) -> Result<()> {
        match error.kind() {
            Kind::Corrupt => Ok(()),
            Kind::NotFound | Kind::Exists if self.has_refused => Ok(()),
            _ if is_of_entry(&error, true) => {
                self.unfinished += 1;
                tracing::warn!("not finished: '{}': {error}", String::from_utf8_lossy(path));
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn way(&mut self, _: &mut TreeReader, path: &[u8], entry: &TreeEntry) {
        self.pending.push(path, entry);
    }

    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<()> {
        let (above, all) = self.pending.leading(path);
        for (length, node) in all {
            self.restorer.finish(&plain(reader, &above[..length], &node)?)?;
        }
        let TreeWhat::Directory(_) = node.what else { return Ok(()) };
        self.restorer.finish(&plain(reader, path, node)?)?;
        let Finishing { sweep, swept, unfinished, restorer, .. } = self;
        if let Some(sweep) = sweep
            && let Some(mut names) = names(reader, node)
            && let Some(directory) = restorer.here()
        {
            // What can't be removed keeps nothing from being finished that lies below.
            let mut told = 0;
            let done = sweep.directory(directory, path, &mut names, true, &mut stays(&mut told));
            *unfinished += told;
            match done {
                Err(error) if is_of_entry(&error, true) => {
                    *unfinished += 1;
                    tracing::warn!("not swept: '{}': {error}", String::from_utf8_lossy(path));
                }
                of_directory => *swept += of_directory?,
            }
        }
        Ok(())
    }
}

/// Tells of what can't be removed, and counts it.
fn stays(count: &mut u64) -> impl FnMut(&[u8], Removal) {
    |path, removal| {
        if let Removal::Stays(error) = removal {
            *count += 1;
            tracing::warn!("not removed: '{}': {error}", String::from_utf8_lossy(path));
        }
    }
}

impl Finishing {
    /// The root, of which nothing but its surplus is changed.
    pub(super) fn root(&mut self, reader: &mut TreeReader, root: &TreeEntry) -> Result<()> {
        let Finishing { sweep: Some(sweep), swept, unfinished, .. } = self else { return Ok(()) };
        if let Some(mut names) = names(reader, root)
            && let Some(directory) = sweep.open(b"")?
        {
            let stays = &mut stays(unfinished);
            *swept += sweep.directory(&directory, b"", &mut names, true, stays)?;
        }
        Ok(())
    }
}

/// Counts what the directories have beyond what is wanted.
pub(super) struct Surplus {
    pub(super) sweep: Sweep,
    pub(super) swept: Swept,
    /// Shows what would be removed.
    pub(super) shows: bool,
}

impl Visitor for Surplus {
    /// Who removes it tells of it.
    fn fails(&mut self, _: &[u8], error: Error) -> Result<()> {
        if is_of_entry(&error, true) { Ok(()) } else { Err(error) }
    }

    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<()> {
        let Surplus { sweep, swept, shows } = self;
        if let Some(mut names) = names(reader, node)
            && let Some(directory) = sweep.open(path)?
        {
            let mut show = |path: &[u8], removal: Removal| {
                if let Removal::Gone = removal
                    && *shows
                {
                    let path = String::from_utf8_lossy(path);
                    output::line(format_args!("would be removed: {}", path.escape_debug()));
                }
            };
            *swept += sweep.directory(&directory, path, &mut names, false, &mut show)?;
        }
        Ok(())
    }
}

/// The names that a directory of the snapshot has.
struct Names<'a> {
    reader: &'a mut TreeReader,
    top: Option<Top>,
    entries: Entries,
}

/// `None` for a directory from which something was left out: nothing is removed there.
fn names<'a>(reader: &'a mut TreeReader, node: &TreeEntry) -> Option<Names<'a>> {
    match node.what {
        TreeWhat::Directory(top) if !node.is_in_part => {
            Some(Names { reader, top, entries: Entries::new(top, None) })
        }
        _ => None,
    }
}

impl Keeps for Names<'_> {
    fn begin(&mut self) {
        self.entries = Entries::new(self.top, None);
    }

    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(self.entries.next(self.reader)?.map(|(entry, _)| entry.name))
    }
}
