//! How many numbers of containers merges moved to another container since the snapshot: what
//! replaying the log costs beyond its bytes.

use onefold_core::Result;

use crate::format::bytes::corrupt;

/// Numbers that were moved, and the most that a reader takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct MovedNumbers {
    count: u64,
    most: Option<u64>,
}

impl MovedNumbers {
    /// Refuses merges that move more numbers than this.
    pub(crate) fn limit(&mut self, most: Option<u64>) {
        self.most = most;
    }

    /// So many more were moved.
    ///
    /// # Errors
    /// `Corrupt` when they are too many.
    pub(super) fn add(&mut self, numbers: usize) -> Result<()> {
        let is_first = self.count == 0;
        self.count = self.count.saturating_add(numbers as u64);
        // One merge after a snapshot costs no more than the snapshot has bytes.
        if self.most.is_some_and(|most| self.count > most && !is_first) {
            let what = "reading the operations log takes too long: it merges more than one log may";
            return Err(corrupt(format!("{what}; a put by its owner makes it shorter")));
        }
        Ok(())
    }

    /// Numbers that were moved since the snapshot.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// A snapshot has them where they are now.
    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }
}
