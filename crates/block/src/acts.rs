//! What happens to whole maps of an engine, for those who use it.

use onefold_core::{Result, VolumeId};

use crate::{Asked, Engine, VolumeState, engine::acts};

/// What happens to whole maps of an engine: snapshots, clones, rollbacks.
pub struct Acts<'e>(&'e Engine);

impl<'e> Acts<'e> {
    /// Those of an engine.
    #[must_use]
    pub fn of(engine: &'e Engine) -> Acts<'e> {
        Acts(engine)
    }

    /// The snapshots of a volume.
    #[must_use]
    pub fn snapshots(&self, of: VolumeId) -> Vec<(VolumeId, VolumeState)> {
        acts::snapshots(&self.0.kernel, of)
    }

    /// Asks for snapshots of volumes, all as of one moment: they hold exactly what was written
    /// before this call. They are there once [`acts_done`](Self::done) has reached the number
    /// of the moment, to which checkpoints lead. `made_ms` is the time since 1970.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `InvalidInput`, `Busy` (run steps, then ask again), `NoSpace`,
    /// `Unsupported` with leaves in place.
    pub fn snapshot(
        &self,
        wanted: &[(VolumeId, String)],
        made_ms: u64,
    ) -> Result<(Vec<VolumeId>, Asked)> {
        acts::snapshot(&self.0.kernel, &*self.0.scheme, wanted, made_ms)
    }

    /// Asks for a volume that holds what a volume or a snapshot holds now.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn clone_volume(
        &self,
        of: VolumeId,
        name: &str,
        made_ms: u64,
    ) -> Result<(VolumeId, Asked)> {
        acts::clone_volume(&self.0.kernel, &*self.0.scheme, of, name, made_ms)
    }

    /// Asks that a volume holds what one of its snapshots holds, with its size and its blocks that
    /// are not deduplicated. Until that is done it takes no changes. With `keep`, a snapshot of this
    /// name gets what it held before, and its number is returned.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn rollback(
        &self,
        volume: VolumeId,
        to: VolumeId,
        keep: Option<&str>,
        made_ms: u64,
    ) -> Result<(Option<VolumeId>, Asked)> {
        acts::rollback(&self.0.kernel, &*self.0.scheme, volume, to, keep, made_ms)
    }

    /// The number of the last moment whose acts are durable.
    #[must_use]
    pub fn done(&self) -> u64 {
        acts::acts_done(&self.0.kernel)
    }
}
