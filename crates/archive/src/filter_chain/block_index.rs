//! The block index filter (dedupv1 3.2): a block that is written again often has the same chunks as
//! before, at the same place.
//!
//! The mappings of the blocks that are written again were read before the batch is looked up; the
//! chunks that they name need no look into the chunk index.

use onefold_core::Result;

use super::filter::{Answer, Best, Filter, Known, Query};

/// Answers STRONG-MAYBE when the block being rewritten already maps this chunk.
pub(crate) struct BlockIndexFilter;

impl Filter for BlockIndexFilter {
    fn best(&self) -> Best {
        Best::StrongMaybe
    }

    fn check(&mut self, query: &Query<'_>, known: &mut Known<'_>) -> Result<Answer> {
        Ok(known
            .placed
            .get(&query.fingerprint)
            .map_or(Answer::WeakMaybe, |&address| Answer::StrongMaybe(address)))
    }
}
