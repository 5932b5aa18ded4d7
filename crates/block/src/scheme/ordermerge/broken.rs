//! Steps that break a rule; only the simulator runs them.

use onefold_core::Result;

use super::{increments::count_links, soft_updates::SoftUpdates};
use crate::kernel::Kernel;

/// Breaks `CountBeforeLink`: counts the links of windows whose links are durable already.
pub(super) fn count_late(kernel: &Kernel, updates: &mut SoftUpdates) -> Result<()> {
    for (plan, leaves) in std::mem::take(&mut updates.uncounted) {
        kernel.pages.hold(&leaves)?;
        count_links(kernel, &plan, &leaves);
    }
    Ok(())
}
