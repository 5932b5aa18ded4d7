//! The directories of what was restored, finished; and what they have beyond it, removed.

use onefold_archive::{Entries, TreeEntry, TreeReader, TreeWhat};
use onefold_backend::tree::{Restorer, Sweep, Swept};
use onefold_console::output;
use onefold_core::{Error, Kind, Result, tree::Entry};

use super::walk::{Visitor, is_of_entry, leading, pend, plain};

/// Finishes the directories of what was restored.
pub(super) struct Finishing {
    pub(super) restorer: Restorer,
    pub(super) pending: Vec<Entry>,
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

    fn way(&mut self, reader: &mut TreeReader, path: &[u8], entry: &TreeEntry) {
        pend(&mut self.pending, reader, path, entry);
    }

    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<()> {
        for above in leading(&mut self.pending, path) {
            self.restorer.finish(&above)?;
        }
        let TreeWhat::Directory(_) = node.what else { return Ok(()) };
        self.restorer.finish(&plain(reader, path, node)?)?;
        if let Some(sweep) = &self.sweep
            && let Some(mut keeps) = keeps(reader, node)
            && let Some(directory) = self.restorer.here()
        {
            self.swept += sweep.directory(directory, path, &mut keeps, true)?.0;
        }
        Ok(())
    }
}

impl Finishing {
    /// The root, of which nothing but its surplus is changed.
    pub(super) fn root(&mut self, reader: &mut TreeReader, root: &TreeEntry) -> Result<()> {
        let Some(sweep) = &self.sweep else { return Ok(()) };
        if let Some(mut keeps) = keeps(reader, root)
            && let Some(directory) = sweep.open(b"")?
        {
            self.swept += sweep.directory(&directory, b"", &mut keeps, true)?.0;
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
    fn entry(&mut self, reader: &mut TreeReader, path: &[u8], node: &TreeEntry) -> Result<()> {
        if let Some(mut keeps) = keeps(reader, node)
            && let Some(directory) = self.sweep.open(path)?
        {
            let (swept, paths) = self.sweep.directory(&directory, path, &mut keeps, false)?;
            self.swept += swept;
            for path in paths.iter().filter(|_| self.shows) {
                let path = String::from_utf8_lossy(path);
                output::line(format_args!("would be removed: {}", path.escape_debug()));
            }
        }
        Ok(())
    }
}

/// Says of names, which come in order, whether a directory of the snapshot has them. `None` for one
/// from which something was left out: nothing is removed there.
fn keeps<'a>(
    reader: &'a mut TreeReader,
    node: &TreeEntry,
) -> Option<impl FnMut(&[u8]) -> Result<bool> + 'a> {
    let TreeWhat::Directory(top) = node.what else { return None };
    if node.is_in_part {
        return None;
    }
    let (mut entries, mut next) = (Entries::new(top, None), None::<Vec<u8>>);
    let mut is_begun = false;
    Some(move |name: &[u8]| {
        while !is_begun || next.as_ref().is_some_and(|next| &next[..] < name) {
            is_begun = true;
            next = entries.next(reader)?.map(|(entry, _)| entry.name);
        }
        Ok(next.as_deref() == Some(name))
    })
}
