//! The container cache (dedupv1 3.2, after Zhu et al.): the fingerprints of containers that were
//! found lately. Where one chunk of a container comes back, its neighbours do too.

use onefold_core::Result;

use super::filter::{Answer, Best, Filter, Known, Query};

/// The container cache as a filter.
pub(super) struct CacheFilter;

impl Filter for CacheFilter {
    fn best(&self) -> Best {
        Best::StrongMaybe
    }

    fn check(&mut self, query: &Query<'_>, known: &mut Known<'_>) -> Result<Answer> {
        Ok(known.cache.find(&query.fingerprint).map_or(Answer::WeakMaybe, Answer::StrongMaybe))
    }
}
