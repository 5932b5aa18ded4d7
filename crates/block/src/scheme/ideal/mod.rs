//! The ideal: deduplication without any metadata on the disk, which no real store can reach. It
//! loses everything at the first crash and is never served; the laboratory measures the others
//! against it.

use std::collections::BTreeMap;

use onefold_core::{Error, Kind, Pba, Result, VolumeId};

use super::{
    records::{Records, Replay, recover},
    shadow,
    verbs::{
        Ahead, Arrangement, CountRule, Decided, Durability, FoundAtOpening, Job, NewRoots,
        Progress, Scheme,
    },
    windows::{self, Flush, WriteOrder},
};
use crate::{
    format::{carrier::Header, catalogue::Volume, record::WindowNumber},
    idleness::Idleness,
    kernel::{Kernel, State},
    overlay::Overlay,
    table_build::TableBuild,
    window::{Plan, Window},
};

/// No metadata.
pub(crate) struct Ideal;

impl Scheme for Ideal {
    fn lay_out(&self, kernel: &Kernel, _: &Window, decided: &Decided<'_>) -> Arrangement {
        Arrangement::raw(decided.new.len(), windows::lanes(kernel, decided.new.len()))
    }

    /// There are no records.
    fn seal(&self, _: &Kernel, _: &mut Plan, _: &Arrangement, _: Header) -> Result<()> {
        Ok(())
    }

    fn write(&self, kernel: &Kernel, how: Durability) -> Result<Progress> {
        match how {
            Durability::Cached => windows::write_window(kernel, self, WriteOrder::Together),
            Durability::AtOnce => windows::write_window_durably(kernel, self),
        }
    }

    fn make_durable(&self, kernel: &Kernel) -> Result<Progress> {
        windows::flush_and_publish(kernel, self, Flush::Windows)
    }

    fn acknowledge(&self, _: &Kernel, state: &mut State) {
        state.windows.acknowledge_published();
    }

    fn begin_moment(&self) -> Result<()> {
        Err(Error::new(
            Kind::Unsupported,
            "a store of the scheme ideal has no snapshots or clones, since there are no checkpoints",
        ))
    }

    fn end_change(&self, _: &mut State) {}

    fn reserve(&self, kernel: &Kernel, state: &State, overlay: &Overlay, more: u64) -> u64 {
        shadow::pages_of(kernel, state, overlay, more)
    }

    /// There are no checkpoints.
    fn count_ahead(&self, _: &State) -> Option<Ahead> {
        None
    }

    fn checkpoint(
        &self,
        build: &mut TableBuild<'_>,
        volumes: &mut BTreeMap<VolumeId, Volume>,
        job: Job<'_>,
    ) -> Result<NewRoots> {
        shadow::checkpoint(self, build, volumes, job)
    }

    fn built(&self, _: &State, committed: WindowNumber) -> WindowNumber {
        committed
    }

    /// The checkpoint itself writes the tables' entries of blocks.
    fn release(&self, _: &Kernel, _: &[Pba]) -> Result<()> {
        Ok(())
    }

    fn keep(&self, kernel: &Kernel, state: &State, freed: Vec<Pba>) -> (Vec<Pba>, Vec<Pba>) {
        shadow::keep(kernel, state, freed)
    }

    fn recover(&self, kernel: &Kernel, found: FoundAtOpening) -> Result<Progress> {
        let replay = Replay { scheme: self, records: &Records::default(), lists_zones: false };
        recover(kernel, &replay, found)
    }

    fn idle(&self, _: &Kernel, _: Idleness) -> Result<Progress> {
        Ok(Progress::Idle)
    }

    fn counts(&self) -> &'static dyn CountRule {
        &shadow::LinksAlone
    }
}
