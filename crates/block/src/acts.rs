//! What happens to whole maps of an engine, for those who use it.

use onefold_core::{Result, VolumeId};

use crate::{Asked, Engine, VolumeState, engine::acts};
pub use crate::{engine::acts::Times, moments::Receive};

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

    /// The snapshots that are being received, by number.
    #[must_use]
    pub fn receiving(&self) -> Vec<(VolumeId, VolumeState)> {
        acts::receiving(&self.0.kernel)
    }

    /// Asks that a snapshot begins to be received. Once that is done, the blocks of the snapshot are
    /// written to the number that is returned, which no name leads to and no client sees.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn receive(&self, what: Receive) -> Result<(VolumeId, Asked)> {
        acts::receive(&self.0.kernel, &*self.0.scheme, what)
    }

    /// Notes for a receive that goes on after a crash that all blocks before `cursor` were written
    /// before this call.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot). `Busy` does no harm: a later cursor will do.
    pub fn cursor(&self, id: VolumeId, cursor: u64, now_ms: u64) -> Result<Asked> {
        acts::receive_cursor(&self.0.kernel, &*self.0.scheme, id, cursor, now_ms)
    }

    /// Asks that what was received, `blocks` large, becomes the snapshot, and that its volume, a
    /// replica whose number is returned, holds it. With `rollback` the volume may have been changed since the base.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn received(
        &self,
        id: VolumeId,
        blocks: u64,
        rollback: bool,
        times: Times,
    ) -> Result<(VolumeId, Asked)> {
        acts::received(&self.0.kernel, &*self.0.scheme, id, blocks, rollback, times)
    }

    /// Asks that a replica becomes an ordinary volume.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot), and `InvalidInput` while a snapshot of it is being received.
    pub fn promote(&self, id: VolumeId) -> Result<Asked> {
        acts::promote(&self.0.kernel, &*self.0.scheme, id)
    }

    /// The number of the last moment whose acts are durable.
    #[must_use]
    pub fn done(&self) -> u64 {
        acts::acts_done(&self.0.kernel)
    }
}
