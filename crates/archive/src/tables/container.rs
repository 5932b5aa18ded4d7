//! An entry of the container table.

use std::collections::BTreeSet;

use crate::format::{ContainerId, record::Stored};

/// A container and the ids that it answers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// As it was listed.
    pub stored: Stored,
    /// Other containers whose chunks lie here now.
    pub merged: Vec<ContainerId>,
    /// The sequence number of the frame that listed it; after a merge, the highest of the merged
    /// containers.
    pub logged: u64,
    /// The version that was put when it was listed; where encoding is late.
    pub born: u64,
    /// The version with which its counts changed last, as far as they were counted; where encoding
    /// is late.
    pub changed: u64,
}

impl Container {
    /// The numbers under which its chunks are known.
    pub(crate) fn numbers(&self) -> BTreeSet<ContainerId> {
        let own = self.merged.is_empty().then_some(self.stored.id);
        own.into_iter().chain(self.merged.iter().copied()).collect()
    }
}
