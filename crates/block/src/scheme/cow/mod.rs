//! Copy-on-write trees (Dmdedup): each window is a transaction of its own.
//!
//! The window's data goes out, then the changed pages of all tables to new places, then the
//! superblock that names them, each behind a flush: a checkpoint for every window. There is nothing
//! to replay after a crash.

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
    rules::Rule,
    table_build::TableBuild,
    window::{Plan, Window},
};

/// Copy-on-write trees.
pub(crate) struct Cow;

impl Scheme for Cow {
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
            Durability::AtOnce => Ok(Progress::Idle),
        }
    }

    /// The flush of the checkpoint that makes windows durable is theirs as well.
    fn make_durable(&self, kernel: &Kernel) -> Result<Progress> {
        let progress = windows::flush_and_publish(kernel, self, Flush::WhenWanted)?;
        let state = kernel.state.lock();
        Ok(if state.windows.acknowledged() < state.windows.durable() {
            Progress::Commit
        } else {
            progress
        })
    }

    /// A checkpoint does that.
    fn acknowledge(&self, kernel: &Kernel, state: &mut State) {
        if !kernel.keeps(Rule::AcknowledgedByCheckpoint) {
            state.windows.acknowledge_published();
        }
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
