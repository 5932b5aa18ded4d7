//! Making the zone list durable before a window could carry it.

use onefold_core::Result;

use crate::{
    engine::checkpoint::commit_by_checkpoint,
    kernel::Kernel,
    scheme::{
        verbs::{Progress, Scheme},
        windows,
    },
};

/// Makes due pages of the zone list durable at once, when zones ran out before a window could
/// carry them.
pub(crate) fn flush_zone_list(kernel: &Kernel, scheme: &dyn Scheme) -> Result<()> {
    if windows::flush_zone_list(kernel, scheme)? == Progress::Commit {
        commit_by_checkpoint(kernel, scheme)?;
    }
    Ok(())
}
