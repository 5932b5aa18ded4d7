//! Runs of the chunk index merged beside puts, in portions.
//!
//! An import writes a run for what is new, so that it costs no more than that. With each run more a
//! look-up asks one filter more, so runs become one file when those that are newer have half as many
//! entries as the oldest of them together: an entry is written again some times, never with each
//! import. The index itself is the oldest file, and is merged by the same rule.
//!
//! *Crash argument:* the file is synced, its name too, before the record that names it in place of
//! the files that it was made of; the record names runs that were written meanwhile as before. What a
//! killed process leaves is a file that nothing names, which the next import removes.

use std::sync::Arc;

use onefold_core::Result;

use super::{
    import::{Importing, may_merge, next_number, possible, remove},
    merge::Merge,
};
use crate::{
    format::record::{IndexFile, Record},
    operations_log::Archive,
    rules::Rule,
    tables::Tables,
};

/// The first of the files, the oldest first, that are worth merging with all newer ones; `None`
/// when there is none.
pub(crate) fn first_to_merge(files: &[IndexFile]) -> Option<usize> {
    let (mut newer, mut first) = (0u64, None);
    for (n, file) in files.iter().enumerate().rev() {
        if n + 1 < files.len() && file.entries <= newer.saturating_mul(2) {
            first = Some(n);
        }
        newer = newer.saturating_add(file.entries);
    }
    first
}

/// Files of the index on their way into one. It holds the importer's lock, which other imports of
/// this process need not wait for.
pub(crate) struct RunMerge {
    _importing: Importing,
    merge: Merge,
    from: Vec<IndexFile>,
}

impl RunMerge {
    /// Begins with the files that are worth it; `None` when there are none, some of them are lost, or
    /// another process imports.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn begin(archive: &Arc<Archive>) -> Result<Option<RunMerge>> {
        let Some(importing) = Importing::begin(archive, None)? else { return Ok(None) };
        let tables = archive.refresh()?;
        let files = &tables.index.files;
        let Some(first) = first_to_merge(files) else { return Ok(None) };
        let from = files[first..].to_vec();
        if !may_merge(archive, &from)? {
            return Ok(None);
        }
        let number = next_number(archive, &tables, None)?;
        let merge = Merge::new(archive, number, &possible(archive, &from)?, Vec::new())?;
        Ok(Some(RunMerge { _importing: importing, merge, from }))
    }

    /// The number of the file that is made.
    pub(crate) fn number(&self) -> u64 {
        self.merge.number()
    }

    /// Takes about `most` entries on; false when nothing is left but [`finish`](Self::finish). The
    /// caller stays in the epoch of `tables`, whose leaves are looked at.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn step(&mut self, tables: &Tables, most: usize) -> Result<bool> {
        let more = self.merge.step(tables, most)?;
        self.merge.keep_up()?;
        Ok(more)
    }

    /// Names the new file in place of the old ones. Gives how many these were, and the tables as they
    /// then are; `None` when the index was made anew meanwhile.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn finish(self, archive: &Archive) -> Result<Option<(u64, Arc<Tables>)>> {
        let (number, RunMerge { _importing, merge, from }) = (self.number(), self);
        match merge.finish().and_then(|made| name(archive, &from, made)) {
            Ok(Some(now)) => {
                from.iter().try_for_each(|gone| remove(archive, gone))?;
                Ok(Some((from.len() as u64, now)))
            }
            not_named => {
                remove(archive, &unnamed(number))?;
                not_named.map(|_| None)
            }
        }
    }

    /// Gives it up.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn give_up(self, archive: &Archive) -> Result<()> {
        remove(archive, &unnamed(self.number()))
    }
}

/// A file by its number alone.
fn unnamed(number: u64) -> IndexFile {
    IndexFile { number, pages: 0, filter_pages: 0, entries: 0 }
}

/// Names a file in place of those that it was made of; `None` when they are not all there, one
/// behind the other.
fn name(archive: &Archive, from: &[IndexFile], made: IndexFile) -> Result<Option<Arc<Tables>>> {
    let mut is_there = false;
    let now = archive.commit(false, |tables| {
        let files = &tables.index.files;
        let Some(first) = files.windows(from.len()).position(|some| some == from) else {
            return Ok(Vec::new());
        };
        is_there = true;
        let mut files_then = files[..first].to_vec();
        files_then.push(made);
        if archive.keeps(Rule::NewerRunsKept) {
            files_then.extend_from_slice(&files[first + from.len()..]);
        }
        Ok(vec![Record::Imported { files: files_then, upto: tables.index.upto }])
    })?;
    Ok(is_there.then_some(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(entries: &[u64]) -> Option<usize> {
        let file = |&entries: &u64| IndexFile { number: 1, pages: 1, filter_pages: 1, entries };
        first_to_merge(&entries.iter().map(file).collect::<Vec<_>>())
    }

    #[test]
    fn runs_are_merged_when_the_newer_ones_are_worth_it() {
        assert_eq!(first(&[]), None);
        assert_eq!(first(&[1000]), None);
        assert_eq!(first(&[1000, 10]), None);
        assert_eq!(first(&[1000, 10, 5]), Some(1));
        assert_eq!(first(&[1000, 10, 4]), None);
        // Two that are alike become one, whatever came after them.
        assert_eq!(first(&[1000, 100, 100, 1]), Some(1));
        assert_eq!(first(&[1000, 300, 200, 1]), Some(0));
    }

    #[test]
    fn an_entry_is_written_again_some_times_only() {
        let (mut files, mut written) = (Vec::<u64>::new(), 0);
        for _ in 0..10_000 {
            files.extend([1]);
            while let Some(first) = first(&files) {
                let merged: u64 = files.drain(first..).sum();
                written += merged;
                files.push(merged);
            }
        }
        assert!(written < 12 * 10_000 && files.len() < 9, "{written} {files:?}");
    }
}
