//! Ordered writes (the rival that ThinDedup measures): the data, a flush, then the records in
//! place, and a flush.
//!
//! A record goes to the page of its address in the table of left-over records; several of a window
//! may share a page. A record whose page waits for a flush, or is full, goes into a block of
//! records, as changes of ranges and volumes do. The table is read back at recovery, and
//! checkpoints carry it into the structured tables as they do for every scheme.

use std::collections::BTreeMap;

use onefold_core::{Pba, Result, VolumeId};

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

/// Ordered writes.
#[derive(Default)]
pub(crate) struct Ordered(Records);

impl Scheme for Ordered {
    fn lay_out(&self, kernel: &Kernel, window: &Window, decided: &Decided<'_>) -> Arrangement {
        self.0.lay_out(kernel, window, decided, |_, _, _, _| Vec::new(), WriteOrder::DataFirst)
    }

    fn seal(
        &self,
        kernel: &Kernel,
        plan: &mut Plan,
        arrangement: &Arrangement,
        header: Header,
    ) -> Result<()> {
        self.0.seal(kernel, plan, arrangement, header)
    }

    fn write(&self, kernel: &Kernel, how: Durability) -> Result<Progress> {
        match how {
            Durability::Cached => windows::write_window(kernel, self, WriteOrder::DataFirst),
            Durability::AtOnce => Ok(Progress::Idle),
        }
    }

    fn make_durable(&self, kernel: &Kernel) -> Result<Progress> {
        windows::flush_and_publish(kernel, self, Flush::Windows)
    }

    fn acknowledge(&self, _: &Kernel, state: &mut State) {
        state.windows.acknowledge_published();
    }

    fn end_change(&self, _: &mut State) {}

    fn reserve(&self, kernel: &Kernel, state: &State, overlay: &Overlay, more: u64) -> u64 {
        shadow::pages_of(kernel, state, overlay, more)
    }

    fn count_ahead(&self, state: &State) -> Option<Ahead> {
        Some(shadow::count_ahead(state))
    }

    fn checkpoint(
        &self,
        build: &mut TableBuild<'_>,
        volumes: &mut BTreeMap<VolumeId, Volume>,
        job: Job<'_>,
    ) -> Result<NewRoots> {
        shadow::checkpoint(self, build, volumes, job)
    }

    fn built(&self, state: &State, committed: WindowNumber) -> WindowNumber {
        state.windows.durable().max(committed)
    }

    /// The checkpoint itself writes the tables' entries of blocks.
    fn release(&self, _: &Kernel, _: &[Pba]) -> Result<()> {
        Ok(())
    }

    fn keep(&self, kernel: &Kernel, state: &State, freed: Vec<Pba>) -> (Vec<Pba>, Vec<Pba>) {
        shadow::keep(kernel, state, freed)
    }

    fn recover(&self, kernel: &Kernel, found: FoundAtOpening) -> Result<Progress> {
        let replay = Replay { scheme: self, records: &self.0, lists_zones: true };
        recover(kernel, &replay, found)
    }

    /// Writes down how far windows are durable, so that a carrier that rots later is missed.
    fn idle(&self, kernel: &Kernel, idleness: Idleness) -> Result<Progress> {
        if idleness < Idleness::Short {
            return Ok(Progress::Idle);
        }
        windows::note_durable(kernel, self)
    }

    fn counts(&self) -> &'static dyn CountRule {
        &shadow::LinksAlone
    }
}
