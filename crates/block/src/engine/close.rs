//! Closing a store.

use onefold_core::{Error, Kind, Result};

use super::checkpoint::{checkpoint_needed, checkpoint_running};
use crate::{
    engine::checkpoint::checkpoint_to_end,
    kernel::{Kernel, Reason},
    scheme::verbs::Scheme,
};

/// Carries everything into the tables, which is durable already, and marks the store clean: the
/// next opening has nothing to recover. Nobody may be reading. The engine accepts no more writes
/// afterwards.
pub(crate) fn close(kernel: &Kernel, scheme: &dyn Scheme) -> Result<()> {
    // One checkpoint may be under way, one carries the windows published since, and the discards
    // take as many as they need.
    while checkpoint_needed(kernel, scheme) || checkpoint_running(kernel) {
        if !checkpoint_to_end(kernel, scheme, Reason::Changes)? {
            return Err(Error::new(Kind::Busy, "a reader is still at work"));
        }
    }
    let checkpoints = scheme.count_ahead(&kernel.state.lock()).is_some();
    if checkpoints {
        checkpoint_to_end(kernel, scheme, Reason::Clean)?;
    }
    kernel.state.lock().fail_stop.close();
    Ok(())
}
