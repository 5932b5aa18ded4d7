//! The chunk index filter (dedupv1 3.2): the basic one, which reads a page of the index for each
//! check.

use onefold_core::Result;

use super::filter::{Answer, Best, Filter, Known, Query};

/// Looks into the index.
pub(crate) struct ChunkIndexFilter {
    /// The index's own filter is asked too.
    pub(super) filtered: bool,
}

impl Filter for ChunkIndexFilter {
    fn best(&self) -> Best {
        Best::StrongMaybe
    }

    fn reads(&self) -> bool {
        true
    }

    fn check(&mut self, query: &Query<'_>, known: &mut Known<'_>) -> Result<Answer> {
        Ok(known
            .index
            .look_up(&query.fingerprint, self.filtered)?
            .map_or(Answer::NonExisting, Answer::StrongMaybe))
    }
}
