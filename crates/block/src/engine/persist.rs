//! Persisting windows: write, one flush, acknowledge and publish in order.
//!
//! After each step this is true:
//! 1. *written*: the blocks and carriers of the window may be on the disk, in any part; nobody was
//!    told.
//! 2. *flushed* (or written durably): all of it is on the disk. The window is durable once every
//!    window before it is.
//! 3. *published*: the records are in the active overlay, `durable` has risen, waiting clients are
//!    answered.
//!
//! A crash before 2 leaves records that are believed one by one if the block that they name hashes
//! to their fingerprint; after 2 recovery finds all of them.

use onefold_core::Result;

use super::prepare::prepare_window;
use crate::{
    engine::checkpoint::{CheckpointStep, checkpoint_for_leaves, commit_by_checkpoint},
    kernel::Kernel,
    scheme::verbs::{Durability, Progress, Scheme},
};

/// Writes the oldest prepared window. Returns whether there was one.
pub(crate) fn write_window(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    scheme.write(kernel, Durability::Cached).map(Progress::advanced)
}

/// Writes the oldest prepared window durably in one go, where that is possible.
pub(crate) fn write_window_durably(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    scheme.write(kernel, Durability::AtOnce).map(Progress::advanced)
}

/// Makes the windows that were written durable: by flushes, then by checkpoints where windows wait
/// for one. Returns whether anything waited for it.
pub(crate) fn make_durable(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let mut advanced = false;
    loop {
        let progress = scheme.make_durable(kernel)?;
        advanced |= progress.advanced();
        if progress != Progress::Again {
            break;
        }
    }
    advanced |= commit_by_checkpoint(kernel, scheme)?;
    Ok(make_leaves(kernel, scheme)? || advanced)
}

/// Checkpoints until the leaves exist that a window waits for. Returns whether it did anything; it
/// stops where a reader is in the way.
fn make_leaves(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let mut made = false;
    while kernel.state.lock().leaves_wanted {
        match checkpoint_for_leaves(kernel, scheme)? {
            CheckpointStep::NeedsFlush => drop(scheme.make_durable(kernel)?),
            CheckpointStep::NeedsReaders => break,
            CheckpointStep::Advanced | CheckpointStep::Idle => {}
        }
        made = true;
    }
    Ok(made)
}

/// Runs the steps until everything gathered so far is durable.
pub(crate) fn flush(kernel: &Kernel, scheme: &dyn Scheme) -> Result<()> {
    kernel.state.lock().close();
    let newest = kernel.newest();
    loop {
        while prepare_window(kernel, scheme)? {}
        let single = kernel.has_one_closed_window();
        if !(single && write_window_durably(kernel, scheme)?) {
            while write_window(kernel, scheme)? {}
        }
        // A window may wait for leaves that only a checkpoint makes; the others need one round.
        let made = make_durable(kernel, scheme)?;
        if !made || kernel.durable() >= newest || kernel.state.lock().closed_windows.is_empty() {
            return Ok(());
        }
    }
}
