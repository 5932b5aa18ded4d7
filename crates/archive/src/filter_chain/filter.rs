//! A filter: its query, and its four answers.

use std::sync::Arc;

use onefold_core::{Fingerprint, Result};

use super::cache::ContainerCache;
use crate::{
    chunk_index::{ByFingerprint, ChunkIndex},
    container::ContainerReader,
    format::{Address, container::OpenContainer},
    operations_log::Archive,
    tables::Tables,
};

/// A filter's answer about a chunk (dedupv1 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// EXISTING: the chunk is stored at this address.
    Existing(Address),
    /// STRONG-MAYBE: a chunk of its fingerprint is at this address.
    StrongMaybe(Address),
    /// WEAK-MAYBE: the filter knows nothing.
    WeakMaybe,
    /// NON-EXISTING: the chunk is not stored.
    NonExisting,
}

/// The best answer that a filter can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Best {
    /// Compares bytes.
    Existing,
    /// Compares fingerprints.
    StrongMaybe,
    /// Only rules out.
    WeakMaybe,
}

/// A chunk that is looked up.
pub(crate) struct Query<'a> {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The best answer so far.
    pub answer: Answer,
    /// The answer was looked up in the container, or needs no look.
    pub certain: bool,
}

/// The state that filters may read.
pub(crate) struct Known<'a> {
    /// The archive as this process saw it last, not before the session's beginning.
    pub tables: &'a Tables,
    /// The chunk index.
    pub index: &'a mut ChunkIndex,
    /// Containers read lately.
    pub cache: &'a mut ContainerCache,
    /// The containers of this session that are not written yet, for their bytes.
    pub unwritten: &'a [Arc<OpenContainer>],
    /// The chunks that the places have which are written again.
    pub placed: &'a ByFingerprint<Address>,
    pub(crate) archive: &'a Archive,
    pub(crate) container_reader: &'a ContainerReader,
}

/// A filter. The chain owns its order; a filter sees one chunk at a time.
pub(crate) trait Filter: Send {
    /// The best answer that it can give.
    fn best(&self) -> Best;

    /// True when an answer costs a read: it is asked for a few chunks at a time.
    fn reads(&self) -> bool {
        false
    }

    /// The filter's answer about a chunk.
    ///
    /// # Errors
    /// Errors of the system.
    fn check(&mut self, query: &Query<'_>, known: &mut Known<'_>) -> Result<Answer>;

    /// A chunk turned out to be new, and is stored now.
    fn learn(&mut self, _fingerprint: &Fingerprint, _address: Address) {}
}

/// The address that an answer names.
#[must_use]
pub(crate) fn address_of(answer: Answer) -> Option<Address> {
    match answer {
        Answer::Existing(address) | Answer::StrongMaybe(address) => Some(address),
        Answer::WeakMaybe | Answer::NonExisting => None,
    }
}
