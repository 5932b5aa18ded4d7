//! Where compaction is.

use onefold_core::VolumeId;

/// Where compaction is.
#[derive(Default)]
pub(crate) struct Compactor {
    pub(crate) volume: VolumeId,
    pub(crate) leaf: u64,
    /// Client changes when the last pass ended: without new ones another pass would find nothing.
    pub(crate) done_at: Option<u64>,
}
