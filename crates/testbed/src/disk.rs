//! The virtual disk: a volatile cache over a durable image, and everything that can go wrong with
//! both.
//!
//! A write goes to the *view*, which reads see, and to the list of unflushed block writes; a flush
//! moves the list to the durable image; a durable write moves only itself. When the power fails, of
//! each unflushed block write any subset of its eight sectors persists (see `crash.rs`). A crash
//! can be armed to happen inside a call: that call's blocks join the unflushed ones, the call
//! fails, and so does everything after it, until [`VirtualDisk::power_cycle`].
//!
//! Every call is folded, with a hash of what it wrote, into one number: two runs of one seed must
//! agree in it.
//!
//! *Invariant:* nothing here depends on wall-clock time, threads, or the order of a hash map.

mod crash;
mod fault;
mod image;
mod state;

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{Class, Disk, Pba, Read, Result, Run};
use parking_lot::Mutex;

pub use crash::Unflushed;
use fault::Call;
pub use fault::Fault;
pub use image::{Bytes, Image, SECTOR_BYTES, SECTORS};
use state::{State, host_full, power_failed};

use crate::{Reach, Rng, VirtualClock};

/// The state at one moment inside a write call: what a crash there can choose from.
#[derive(Clone)]
pub struct Snapshot {
    /// The durable blocks.
    pub durable: Image,
    /// The unflushed writes, those of the call itself among them, in the order of arrival.
    pub unflushed: Vec<Unflushed>,
    /// The number of the write call.
    pub call: u64,
}

/// A disk in memory that crashes and fails on demand.
pub struct VirtualDisk {
    clock: Arc<VirtualClock>,
    state: Mutex<State>,
}

impl VirtualDisk {
    /// An empty disk of `blocks` blocks whose faults are drawn from `rng`.
    #[must_use]
    pub fn new(blocks: u64, clock: Arc<VirtualClock>, rng: Rng) -> VirtualDisk {
        VirtualDisk::from_image(Image::default(), blocks, clock, rng)
    }

    /// A disk that holds `durable`.
    #[must_use]
    pub fn from_image(
        durable: Image,
        blocks: u64,
        clock: Arc<VirtualClock>,
        rng: Rng,
    ) -> VirtualDisk {
        VirtualDisk { clock, state: Mutex::new(State::new(durable, blocks, rng)) }
    }

    /// Lets the power fail inside the call that changes something and comes after `calls` others.
    pub fn arm_crash(&self, calls: u64) {
        self.state.lock().crash_in = Some(calls);
    }

    /// Lets the armed crash, if there is one, come in the next call that changes something.
    pub fn hasten_crash(&self) {
        let mut state = self.state.lock();
        state.crash_in = state.crash_in.map(|_| 0);
    }

    /// Takes the armed crash back.
    pub fn disarm_crash(&self) {
        self.state.lock().crash_in = None;
    }

    /// Lets `fault` happen after `calls` more calls that it fits.
    pub fn arm(&self, fault: Fault, calls: u64) {
        self.state.lock().plan.arm(fault, calls);
    }

    /// Forgets the faults that have not happened yet.
    pub fn disarm(&self) {
        self.state.lock().plan.clear();
    }

    /// From now on the host has no space, or has it again: blocks that were never written nor
    /// allocated can't be.
    pub fn set_host_full(&self, full: bool) {
        self.state.lock().host_full = full;
    }

    /// Changes the capacity; the engine must be closed.
    pub fn set_blocks(&self, blocks: u64) {
        self.state.lock().blocks = blocks;
    }

    /// True after the power failed.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    /// The power fails now, if it has not, and comes back; of each unflushed write a part persists
    /// that the disk's generator chooses.
    pub fn power_cycle(&self) {
        let mut state = self.state.lock();
        let State { unflushed, rng, .. } = &mut *state;
        let masks = crash::masks(unflushed, rng);
        state.power_cycle(&masks);
    }

    /// The same with the given sector mask for each unflushed block write (missing ones are lost).
    pub fn power_cycle_with(&self, masks: &[u8]) {
        self.state.lock().power_cycle(masks);
    }

    /// The process is killed and the power stays on: of the call that was under way any part
    /// happened, and what is unflushed stays in the cache, where the next session sees it, and
    /// where the next power failure may lose it.
    pub fn kill(&self) {
        self.state.lock().kill();
    }

    /// The engine goes away in an orderly way and the power stays on: the cache stays, the
    /// session's failures are forgotten.
    pub fn next_session(&self) {
        self.state.lock().next_session();
    }

    /// A bit or a sector of a block that was written before rots while nobody looks.
    pub fn rot(&self) {
        let mut state = self.state.lock();
        state.damage += 1;
        state.reach.hit(Fault::Rot.name());
        state.rot();
    }

    /// The same of a block that the caller chooses.
    pub fn rot_block(&self, at: Pba) {
        let mut state = self.state.lock();
        state.damage += 1;
        state.rot_at(at.0);
    }

    /// The same of one of which another place has a copy: it excuses nothing.
    pub fn rot_copy(&self, at: Pba) {
        self.state.lock().rot_at(at.0);
    }

    /// The writes that no flush has made durable.
    #[must_use]
    pub fn unflushed(&self) -> Vec<Unflushed> {
        self.state.lock().unflushed.clone()
    }

    /// True when a block of this class is written and not flushed.
    #[must_use]
    pub fn caches(&self, class: Class) -> bool {
        let state = self.state.lock();
        state.unflushed.iter().any(|write| state.classes.get(&write.at) == Some(&class))
    }

    /// True when a write or a flush of this session failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Writes and flushes that were tried after the first failure of this session: there must be
    /// none.
    #[must_use]
    pub fn calls_after_failure(&self) -> u64 {
        self.state.lock().calls_after_failure
    }

    /// Faults so far that can have cost data.
    #[must_use]
    pub fn damage(&self) -> u64 {
        self.state.lock().damage
    }

    /// The blocks that are damaged now: that can't be read, or hold anything of what rot, a lost or
    /// a misdirected write left there.
    #[must_use]
    pub fn damaged(&self) -> BTreeSet<u64> {
        self.state.lock().damaged()
    }

    /// The blocks that can't be read.
    #[must_use]
    pub fn unreadable(&self) -> BTreeSet<u64> {
        self.state.lock().bad.clone()
    }

    /// Lets [`met_damage`](VirtualDisk::met_damage) speak of the reads from here on.
    pub fn forget_reads(&self) {
        let mut state = self.state.lock();
        state.met.clear();
        state.met_transient = false;
    }

    /// True when a read since then met a damaged block or a fault of its own.
    #[must_use]
    pub fn met_damage(&self) -> bool {
        !self.state.lock().met.is_empty()
    }

    /// Lets [`met_transient`](VirtualDisk::met_transient) speak of the reads from here on.
    pub fn forget_transient(&self) {
        self.state.lock().met_transient = false;
    }

    /// True when a read since then met a fault that the next one does not meet.
    #[must_use]
    pub fn met_transient(&self) -> bool {
        self.state.lock().met_transient
    }

    /// Damaged blocks that reads of this session met.
    #[must_use]
    pub fn met_in_session(&self) -> BTreeSet<u64> {
        self.state.lock().met_in_session.clone()
    }

    /// The class of the last write to the block.
    #[must_use]
    pub fn class_of(&self, at: u64) -> Option<Class> {
        self.state.lock().classes.get(&at).copied()
    }

    /// The disk as a run leaves it, as a disk of its own: damage stays, and no new faults come.
    #[must_use]
    pub fn copy(&self, clock: Arc<VirtualClock>) -> VirtualDisk {
        let state = self.state.lock();
        let copy =
            VirtualDisk::from_image(state.view.clone(), state.blocks, clock, Rng::new(state.trace));
        copy.state.lock().inherit(&state);
        copy
    }

    /// Reads of this session that failed or were misdirected.
    #[must_use]
    pub fn read_faults(&self) -> u64 {
        self.state.lock().read_faults
    }

    /// Blocks read in this session.
    #[must_use]
    pub fn blocks_read(&self) -> u64 {
        self.state.lock().blocks_read
    }

    /// Takes the list of what no user of a disk may do (outside of the capacity, one block twice in
    /// a batch) and yet was done.
    #[must_use]
    pub fn take_abuse(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().abuse)
    }

    /// The blocks as reads see them now, shared.
    #[must_use]
    pub fn view(&self) -> Image {
        self.state.lock().view.clone()
    }

    /// Starts to keep a snapshot of the inside of every write call.
    pub fn record(&self) {
        self.state.lock().recording = Some(Vec::new());
    }

    /// The snapshots since the last call.
    #[must_use]
    pub fn take_snapshots(&self) -> Vec<Snapshot> {
        self.state.lock().recording.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Folds something seen outside of the disk into the trace.
    pub fn fold(&self, value: u64) {
        self.state.lock().fold(value);
    }

    /// The hash of all calls so far.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.state.lock().trace
    }

    /// Faults and branches that were met, and how often.
    #[must_use]
    pub fn reach(&self) -> Reach {
        self.state.lock().reach.clone()
    }
}

impl Disk for VirtualDisk {
    fn blocks(&self) -> u64 {
        self.state.lock().blocks
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        let mut state = self.state.lock();
        for read in reads {
            read.result = match state.begin(Call::Read, &self.clock) {
                Ok(fault) => state.read(read, fault),
                Err(error) => Err(error),
            };
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        if runs.iter().all(|run| run.blocks.is_empty()) {
            return Ok(());
        }
        let mut state = self.state.lock();
        let fault = state.begin(Call::Write, &self.clock)?;
        state.write(runs, false, fault)
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        if run.blocks.is_empty() {
            return Ok(());
        }
        let mut state = self.state.lock();
        let fault = state.begin(Call::Write, &self.clock)?;
        state.fold(1);
        state.write(std::slice::from_ref(run), true, fault)
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state.lock();
        let fault = state.begin(Call::Flush, &self.clock)?;
        state.flush(fault)
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        let mut state = self.state.lock();
        let fault = state.begin(Call::Allocate, &self.clock)?;
        if state.down {
            return Err(power_failed());
        }
        state.bounds(at, blocks, "allocation")?;
        if fault == Some(Fault::NoSpaceAllocate)
            || (state.host_full && (at.0..at.0 + blocks).any(|at| state.needs_space(at)))
        {
            return Err(host_full());
        }
        if !state.allocated.contains(&(at.0, at.0 + blocks)) {
            state.allocated.push((at.0, at.0 + blocks));
        }
        Ok(())
    }

    fn extend(&self, from: Pba, blocks: Option<u64>, reserve: bool) -> Result<u64> {
        let mut state = self.state.lock();
        let Some(blocks) = blocks else { return Ok(state.blocks) };
        let fault = state.begin(Call::Allocate, &self.clock)?;
        if state.down {
            return Err(power_failed());
        }
        if reserve && (fault == Some(Fault::NoSpaceAllocate) || state.host_full) {
            return Err(host_full());
        }
        if reserve {
            state.allocated.push((from.0, blocks));
        }
        state.blocks = state.blocks.max(blocks);
        Ok(state.blocks)
    }
}
