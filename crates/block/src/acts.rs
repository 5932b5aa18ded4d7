//! What happens to whole maps of an engine, for those who use it.

use std::ops::Range;

use onefold_core::{Result, VolumeId};

use crate::engine::act_room::Asking;
use crate::{Asked, Engine, VolumeState, engine::acts, rules::Rule};
pub use crate::{engine::acts::Times, kernel::Place, moments::Receive};

/// What happens to whole maps of an engine: snapshots, clones, rollbacks.
pub struct Acts<'e>(&'e Engine, Option<Place>);

impl<'e> Acts<'e> {
    /// Those of an engine.
    #[must_use]
    pub fn of(engine: &'e Engine) -> Acts<'e> {
        Acts(engine, None)
    }

    /// Takes a place for somebody who asks for an act, with [`at`](Self::at), until it is admitted or
    /// given up: while the act waits for room, clients leave that room alone, after a while in turns
    /// with it. The place must be [given back](Self::give_back).
    #[must_use]
    pub fn take_place(&self) -> Place {
        self.0.kernel.state.lock().act_turn.take()
    }

    /// Those of an engine, asked for from a place.
    #[must_use]
    pub fn at(engine: &'e Engine, place: Place) -> Acts<'e> {
        Acts(engine, Some(place))
    }

    /// Nobody asks from this place any more.
    pub fn give_back(&self, place: Place) {
        let kernel = &self.0.kernel;
        if kernel.keeps(Rule::TurnsEnd) {
            kernel.state.lock().act_turn.give_back(place);
        }
    }

    fn asking(&self) -> Asking<'e> {
        Asking { kernel: &self.0.kernel, scheme: &*self.0.scheme, place: self.1 }
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
        acts::snapshot(self.asking(), wanted, made_ms)
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
        acts::clone_volume(self.asking(), of, name, made_ms)
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
        acts::rollback(self.asking(), volume, to, keep, made_ms)
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
        acts::receive(self.asking(), what)
    }

    /// Notes for a receive that goes on after a crash that all blocks before `cursor` were written
    /// before this call, but for the `lost` ones, which read as errors from then on, until they are
    /// written or trimmed: all that are lost since the last cursor that was noted.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot). `Busy` does no harm: a later cursor will do.
    pub fn cursor(
        &self,
        id: VolumeId,
        cursor: u64,
        lost: &[Range<u64>],
        now_ms: u64,
    ) -> Result<Asked> {
        let asking = Asking { place: None, ..self.asking() };
        acts::receive_cursor(asking, id, cursor, lost, now_ms)
    }

    /// Asks that what was received, `blocks` large, becomes the snapshot, and that its volume, a
    /// replica whose number is returned, holds it. Some blocks are `lost` since the last cursor, as
    /// there. With `rollback` the volume may have been changed since the base.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn received(
        &self,
        id: VolumeId,
        blocks: u64,
        lost: &[Range<u64>],
        rollback: bool,
        times: Times,
    ) -> Result<(VolumeId, Asked)> {
        acts::received(self.asking(), id, blocks, lost, rollback, times)
    }

    /// Asks that a replica becomes an ordinary volume.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot), and `InvalidInput` while a snapshot of it is being received.
    pub fn promote(&self, id: VolumeId) -> Result<Asked> {
        acts::promote(self.asking(), id)
    }

    /// The number of the last moment whose acts are durable.
    #[must_use]
    pub fn done(&self) -> u64 {
        acts::acts_done(&self.0.kernel)
    }
}
