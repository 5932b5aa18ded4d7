//! The usage counts that a frame names: what proves them, and what is said of others.

use std::collections::BTreeSet;

use onefold_core::Error;

use crate::{format::bytes::corrupt, operations_log::Archive, rules::Rule, tables::NamedCounts};

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

/// The file has its number, and is not the one that a frame names.
pub(super) fn others() -> Error {
    corrupt("the usage counts are not those that the log names: others were put in their place")
}
