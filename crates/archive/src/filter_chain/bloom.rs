//! The Bloom filter (dedupv1 3.2, after Zhu et al.): tells most new chunks without a read.
//!
//! The bits are in the files of the chunk index, behind the pages that they speak for, so that they
//! are never older than these. Chunks that are not imported are in the auxiliary index, which is
//! asked before.

use onefold_core::Result;

use super::filter::{Answer, Best, Filter, Known, Query};

/// Rules out fingerprints that no file of the index holds.
pub(crate) struct BloomFilter;

impl Filter for BloomFilter {
    fn best(&self) -> Best {
        Best::WeakMaybe
    }

    fn check(&mut self, query: &Query<'_>, known: &mut Known<'_>) -> Result<Answer> {
        Ok(if known.index.may_hold(&query.fingerprint) {
            Answer::WeakMaybe
        } else {
            Answer::NonExisting
        })
    }
}
