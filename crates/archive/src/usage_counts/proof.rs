//! Counts that were written, and what proves them.

use std::collections::BTreeSet;

use crate::{operations_log::Archive, rules::Rule, tables::NamedCounts};

/// Counts that were written, durable but for those in memory.
pub(super) struct Written {
    /// The numbers of the files that they lie in.
    pub(super) files: BTreeSet<u64>,
    /// What the frame keeps that names them.
    pub(super) proof: u64,
}

/// What the newest file of counts must have as the first half of its tag; `None` in a plain archive.
pub(super) fn expected(archive: &Archive, counts: NamedCounts) -> Option<u64> {
    let is_compared = archive.identity.sealing().is_some() && archive.keeps(Rule::CountsProven);
    counts.proof.filter(|_| is_compared)
}
