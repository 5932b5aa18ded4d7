//! Epochs: containers that may be read in one are not freed before its readers have left.

use std::sync::Arc;

use onefold_core::{Hold, Lock, Result};

use super::archive::Archive;
use crate::{format::names::EPOCHS, tables::Tables};

/// Keeps the containers of this epoch from being freed.
pub struct EpochGuard {
    _lock: Box<dyn Lock>,
    /// The archive as of then.
    pub tables: Arc<Tables>,
}

impl EpochGuard {
    /// Stays in the current epoch: everything that its tables name can be read until the value is
    /// dropped.
    ///
    /// # Errors
    /// The errors of [`Archive::open`].
    pub fn enter(archive: &Archive) -> Result<EpochGuard> {
        loop {
            let epoch = archive.refresh()?.epoch;
            let lock = archive.files.lock(EPOCHS[epoch as usize % 2], Hold::Shared, true)?;
            let tables = archive.refresh()?;
            if tables.epoch == epoch {
                return Ok(EpochGuard { _lock: lock, tables });
            }
        }
    }
}

/// Returns when nobody stays in the epoch before `epoch`, which is the present one.
///
/// # Errors
/// `Busy` when somebody does and nobody waits.
pub(crate) fn await_earlier_epoch(archive: &Archive, epoch: u32, wait: bool) -> Result<()> {
    archive.files.lock(EPOCHS[(epoch as usize + 1) % 2], Hold::Alone, wait).map(|_| ())
}
