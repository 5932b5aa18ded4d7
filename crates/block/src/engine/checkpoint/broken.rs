//! Steps that break a rule; only the simulator runs them.

use super::release::{make_current, release};
use crate::{
    kernel::{Checkpointer, Kernel, Phase, write_superblock},
    scheme::verbs::Scheme,
};

/// Breaks `ReleaseAfterSuperblock`: ends a checkpoint whose superblock is not durable yet.
pub(super) fn release_early(kernel: &Kernel, scheme: &dyn Scheme, checkpointer: &mut Checkpointer) {
    if let Phase::Named(next, _) = std::mem::take(&mut checkpointer.phase) {
        let (next, _) = make_current(kernel, scheme, next);
        // A failure stops the store at its next write.
        let _ = write_superblock(kernel, &next.tables, 0);
        release(kernel, scheme, &mut checkpointer.deferred, *next);
    }
}
