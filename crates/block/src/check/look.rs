//! Opening a store to look at it, recovery and all, without changing it.

use std::sync::Arc;

use onefold_core::{Disk, Result};

use super::{
    overlay_disk::OverlayDisk,
    recovered::{OVERLAY_BYTES, Still},
};
use crate::{
    engine::Engine,
    settings::{KeySource, MEMORY_MIN, Settings},
};

/// The store on a disk that is only read: what its recovery writes stays in memory, and is gone
/// with the engine.
///
/// # Errors
/// As [`Engine::open`].
pub fn look(disk: &Arc<dyn Disk>) -> Result<Engine> {
    look_with(disk, &KeySource::default())
}

/// As [`look`], of a store that may be sealed: `keys` is asked for its key.
///
/// # Errors
/// As [`Engine::open`].
pub fn look_with(disk: &Arc<dyn Disk>, keys: &KeySource) -> Result<Engine> {
    Engine::open(
        Arc::new(OverlayDisk::new(disk.clone(), OVERLAY_BYTES)),
        Arc::new(Still),
        Settings { keys: keys.clone(), ..Settings::for_memory(MEMORY_MIN) },
    )
}
