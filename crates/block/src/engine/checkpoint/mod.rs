//! Checkpoints: the published records go into the structured tables.
//!
//! 1. *freeze*: what is published so far is set aside; new windows are published beside it.
//! 2. *build*: changed pages are written to new places, leaves first: maps, references,
//!    fingerprints, catalogue, discards, the index on disk, the zone table.
//! 3. *flush*, which a window's flush does as well.
//! 4. *superblock*, to the place of the older one.
//! 5. *flush*, again a window's. From here on the checkpoint is true.
//! 6. *twin*: the same superblock, as the next version, to the other place; *flush*, once more a
//!    window's.
//! 7. *release*, when nobody reads the version before: old pages, blocks without references and
//!    carriers become free, some in each step.
//!
//! Because of 6 one superblock is enough at any time: when the other one rots, the store that it
//! names is whole.
//!
//! | crash after | what is found |
//! |---|---|
//! | 1–3 | the old superblock and the carriers since it; new pages lie in free blocks |
//! | 4 | either superblock; with the old one as before; with the new one, its pages are whole, because 3 came first |
//! | 5–7 | the new superblock; nothing that it, or the old one while there is one, names was released |

#[cfg(feature = "planted-bugs")]
mod broken;
pub(crate) mod build;
mod release;
pub(crate) mod spill;
pub(crate) mod zones;

use onefold_core::Result;

use crate::{
    engine::{
        admission::discards_crowded,
        checkpoint::{
            build::build,
            release::{begin_release, make_current, release_some, tell_of_acts},
            spill::spill,
        },
        growth,
    },
    kernel::{Kernel, Leftovers, Phase, Reason, write_superblock},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::Scheme,
};

/// The outcome of a checkpoint step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// There is nothing to do.
    Idle,
    /// A step was made.
    Advanced,
    /// A flush is needed first; any will do.
    NeedsFlush,
    /// A reader of the version before is still at work.
    NeedsReaders,
}

/// True when a checkpoint should begin: three quarters of a limit are used, or somebody waits
/// for one.
pub(crate) fn checkpoint_due(kernel: &Kernel, scheme: &dyn Scheme) -> bool {
    let state = kernel.state.lock();
    if scheme.count_ahead(&state).is_none() {
        return false;
    }
    state.checkpoint_wanted
        || state.growth.is_some()
        || state.overlays.sealed().next().is_some()
        || state.overlays.active().records() >= kernel.settings.records_max / 4 * 3
        || state.overlays.active().carriers() >= kernel.settings.limits.carriers / 4 * 3
        || discards_crowded(kernel, scheme, &state)
        || state.allocator.list.listed() >= state.allocator.list.limit() / 4 * 3
        || state.overlays.active().records() > 0 && spill(kernel, scheme, &state).is_some()
}

/// True when a checkpoint would change anything, or find out whether there is something to change.
pub(crate) fn checkpoint_useful(kernel: &Kernel, scheme: &dyn Scheme) -> bool {
    checkpoint_needed(kernel, scheme) || kernel.state.lock().leftovers != Leftovers::None
}

/// True when a clean store needs a checkpoint first: what deleted maps left behind can wait.
pub(crate) fn checkpoint_needed(kernel: &Kernel, scheme: &dyn Scheme) -> bool {
    let state = kernel.state.lock();
    if scheme.count_ahead(&state).is_none() {
        return false;
    }
    !state.overlays.is_empty()
        || !state.overlays.tables().discards.is_empty()
        || state.checkpoint_awaited
        || state.domains.wait_for_checkpoint()
        || state.growth.is_some()
}

/// True between the steps of a checkpoint.
pub(crate) fn checkpoint_running(kernel: &Kernel) -> bool {
    !matches!(kernel.checkpointing.lock().phase, Phase::Idle)
}

/// Makes one step of a checkpoint; begins one when anything was published since the last.
pub(crate) fn checkpoint_step(kernel: &Kernel, scheme: &dyn Scheme) -> Result<CheckpointStep> {
    checkpoint_advance(kernel, scheme, Reason::Changes)
}

/// As `checkpoint_step`, also when nothing was published: closed windows wait for it.
pub(crate) fn forced_checkpoint_step(
    kernel: &Kernel,
    scheme: &dyn Scheme,
) -> Result<CheckpointStep> {
    checkpoint_advance(kernel, scheme, Reason::Forced)
}

/// As `checkpoint_step`, for a reason.
fn checkpoint_advance(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    reason: Reason,
) -> Result<CheckpointStep> {
    let mut checkpointer = kernel.checkpointing.lock();
    {
        let mut state = kernel.state.lock();
        state.check_running()?;
        state.released = 0;
    }
    let flushed_after = |note: u64| kernel.state.lock().flushes.has_followed(note);
    match std::mem::take(&mut checkpointer.phase) {
        // Between two checkpoints, so that the pages of none are on their way.
        Phase::Idle if growth::perform(kernel, scheme)? => {}
        Phase::Idle => {
            let Some(next) =
                build(kernel, scheme, &mut checkpointer, reason).map_err(|e| kernel.stop(&e))?
            else {
                let mut state = kernel.state.lock();
                let more_may_come = state.can_reclaim();
                state.act_turn.nothing_to_do(kernel.progress(), more_may_come);
                return Ok(CheckpointStep::Idle);
            };
            checkpointer.phase = Phase::Built(Box::new(next), want_flush(kernel));
        }
        Phase::Built(next, note) => {
            if kernel.keeps(Rule::PagesBeforeSuperblock) && !flushed_after(note) {
                checkpointer.phase = Phase::Built(next, note);
                return Ok(CheckpointStep::NeedsFlush);
            }
            write_superblock(kernel, &next.tables, 1).map_err(|e| kernel.stop(&e))?;
            let mut next = next;
            #[cfg(feature = "planted-bugs")]
            broken::of_moves(kernel, &mut next)?;
            if !kernel.keeps(Rule::ActsToldWhenDurable) {
                tell_of_acts(&mut kernel.state.lock(), &mut next);
            }
            checkpointer.phase = Phase::Named(next, want_flush(kernel));
            #[cfg(feature = "planted-bugs")]
            if !kernel.keeps(Rule::ReleaseAfterSuperblock) {
                broken::release_early(kernel, scheme, &mut checkpointer);
            }
        }
        Phase::Named(next, note) => {
            if !flushed_after(note) {
                checkpointer.phase = Phase::Named(next, note);
                return Ok(CheckpointStep::NeedsFlush);
            }
            let (next, old) = match next.superblocks {
                2.. => (next, None),
                _ => make_current(kernel, scheme, next),
            };
            write_superblock(kernel, &next.tables, 0).map_err(|e| kernel.stop(&e))?;
            checkpointer.phase = Phase::Twinned(next, old, want_flush(kernel));
        }
        Phase::Twinned(next, old, note) => {
            if !flushed_after(note) {
                checkpointer.phase = Phase::Twinned(next, old, note);
                return Ok(CheckpointStep::NeedsFlush);
            }
            let (next, old) =
                if old.is_some() { (next, old) } else { make_current(kernel, scheme, next) };
            checkpointer.phase = old.map_or(Phase::Idle, |old| Phase::Releasing(next, old));
        }
        Phase::Releasing(next, old) => {
            if Tables::has_readers(&old) {
                checkpointer.phase = Phase::Releasing(next, old);
                return Ok(CheckpointStep::NeedsReaders);
            }
            drop(old);
            scheme.release(kernel, &next.reclaimed.blocks).map_err(|e| kernel.stop(&e))?;
            let mut next = next;
            begin_release(kernel, &mut checkpointer.deferred, &mut next);
            checkpointer.phase = Phase::Freeing(next);
        }
        Phase::Freeing(mut next) => {
            if !release_some(kernel, scheme, &mut checkpointer.deferred, &mut next) {
                checkpointer.phase = Phase::Freeing(next);
            }
        }
    }
    Ok(CheckpointStep::Advanced)
}

/// Runs the steps of a checkpoint to its end, flushing as needed. Does not wait for readers.
pub(crate) fn checkpoint(kernel: &Kernel, scheme: &dyn Scheme) -> Result<()> {
    checkpoint_to_end(kernel, scheme, Reason::Changes).map(|_| ())
}

/// Returns whether the checkpoint ended; it has not when a reader is in the way.
pub(crate) fn checkpoint_to_end(
    kernel: &Kernel,
    scheme: &dyn Scheme,
    mut reason: Reason,
) -> Result<bool> {
    loop {
        match checkpoint_advance(kernel, scheme, reason)? {
            CheckpointStep::Idle => return Ok(true),
            CheckpointStep::NeedsReaders => return Ok(false),
            CheckpointStep::NeedsFlush => {
                scheme.make_durable(kernel)?;
            }
            CheckpointStep::Advanced
                if matches!(kernel.checkpointing.lock().phase, Phase::Idle) =>
            {
                return Ok(true);
            }
            CheckpointStep::Advanced => reason = Reason::Changes,
        }
    }
}

/// Checkpoints until all published windows are durable; returns whether it did anything. It
/// stops where a reader is in the way.
pub(crate) fn commit_by_checkpoint(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let published = {
        let state = kernel.state.lock();
        if state.windows.acknowledged() >= state.windows.durable() {
            return Ok(false);
        }
        state.windows.durable()
    };
    while kernel.state.lock().windows.acknowledged() < published {
        match checkpoint_advance(kernel, scheme, Reason::Changes)? {
            CheckpointStep::NeedsFlush => drop(scheme.make_durable(kernel)?),
            CheckpointStep::NeedsReaders => break,
            // Nothing came of the windows.
            CheckpointStep::Idle => kernel.state.lock().windows.acknowledge(published),
            CheckpointStep::Advanced => {}
        }
    }
    Ok(true)
}

/// Asks for a flush, and gives the number of the last one that began too early for what was
/// written just now.
fn want_flush(kernel: &Kernel) -> u64 {
    kernel.state.lock().flushes.want()
}
