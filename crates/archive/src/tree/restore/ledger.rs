//! What each file of a window waits for before it is finished.

use std::{
    collections::BTreeMap,
    sync::atomic::{
        AtomicU64,
        Ordering::{AcqRel, Acquire},
    },
};

use onefold_core::{Error, Result};
use parking_lot::Mutex;

use super::target::RestoreTarget;

struct File {
    /// Ranges to come, and one more until it is settled how many there are.
    waits: AtomicU64,
    /// All of its content is known.
    is_ended: bool,
}

/// Files from a number on.
#[derive(Default)]
pub(super) struct Ledger {
    first: usize,
    files: Vec<File>,
    lost: Mutex<BTreeMap<usize, Error>>,
    /// A planted bug finishes files before their last range.
    #[cfg(feature = "planted-bugs")]
    pub(super) is_hasty: bool,
}

impl Ledger {
    /// The next file; gives its number.
    pub(super) fn push(&mut self) -> usize {
        self.files.push(File { waits: AtomicU64::new(1), is_ended: false });
        self.first + self.files.len() - 1
    }

    /// All content of the last file is known.
    pub(super) fn end(&mut self) {
        if let Some(last) = self.files.last_mut() {
            last.is_ended = true;
        }
    }

    /// The numbers of the files.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.files.len()
    }

    fn file(&self, file: usize) -> Option<&File> {
        self.files.get(file.checked_sub(self.first)?)
    }

    /// A file waits for so many ranges more.
    pub(super) fn wait(&self, file: usize, ranges: u64) {
        if let Some(file) = self.file(file) {
            file.waits.fetch_add(ranges, AcqRel);
        }
    }

    /// True when ranges of a file are to come.
    pub(super) fn waits(&self, file: usize) -> bool {
        self.file(file).is_some_and(|file| file.waits.load(Acquire) > 1)
    }

    /// Something of a file is lost.
    pub(super) fn lose(&self, file: usize, error: Error) {
        self.lost.lock().entry(file).or_insert(error);
    }

    /// So many ranges were written, or are lost. Behind the last one the file is finished.
    pub(super) fn done(&self, file: usize, ranges: u64, target: &dyn RestoreTarget) -> Result<()> {
        let Some(state) = self.file(file) else { return Ok(()) };
        let before = state.waits.fetch_sub(ranges, AcqRel);
        if self.is_last(before, ranges) {
            let lost = self.lost.lock().remove(&file);
            return target.finish(file, lost);
        }
        Ok(())
    }

    /// True when nothing is to come after these; with the planted bug, when one range is.
    fn is_last(&self, before: u64, ranges: u64) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.is_hasty {
            return before == ranges + 1;
        }
        before == ranges
    }

    /// How many ranges of a file are to come is known now. Those for which nothing is to come are
    /// finished.
    pub(super) fn settle(&self, file: usize, target: &dyn RestoreTarget) -> Result<()> {
        match self.file(file) {
            Some(state) if state.is_ended => self.done(file, 1, target),
            _ => Ok(()),
        }
    }

    /// Forgets the files but for a last one whose content goes on.
    pub(super) fn next_window(&mut self) {
        let last = self.files.pop().filter(|last| !last.is_ended);
        self.first += self.files.len() + usize::from(last.is_none());
        self.files.clear();
        self.files.extend(last);
    }
}
