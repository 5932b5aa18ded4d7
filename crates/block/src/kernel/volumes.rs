//! The volumes as clients see them.

use onefold_core::VolumeLimits;

use crate::format::catalogue::NoDedup;

/// A volume as clients see it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// Its name.
    pub name: String,
    /// Its size in blocks.
    pub blocks: u64,
    /// What of it is not deduplicated.
    pub no_dedup: NoDedup,
    /// How fast clients may use it; servers see to that.
    pub limits: VolumeLimits,
}
