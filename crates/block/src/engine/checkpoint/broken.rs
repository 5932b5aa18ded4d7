//! Steps that break a rule; only the simulator runs them.

use onefold_core::{BlockRef, Class, Result, Run};

use super::release::{begin_release, make_current, release_some};
use crate::{
    kernel::{Checkpointer, Kernel, NextCheckpoint, Phase, write_superblock},
    rules::Rule,
    scheme::verbs::Scheme,
};

/// Breaks rules of moves: copies are written after the superblock that names them, or what they replace
/// is free with it.
pub(super) fn of_moves(kernel: &Kernel, next: &mut NextCheckpoint) -> Result<()> {
    for (at, block) in &next.moves.late {
        let blocks = &[BlockRef { block, class: Class::Data }];
        kernel.disk.write(&[Run { at: *at, blocks }]).map_err(|e| kernel.stop(&e))?;
    }
    if !kernel.keeps(Rule::MovedBlocksKept) {
        let moved = next.moves.replaced();
        let mut state = kernel.state.lock();
        next.freed.retain(|pba| !(moved.contains(pba) && state.allocator.release_now(*pba)));
    }
    Ok(())
}

/// Breaks `ReleaseAfterSuperblock`: ends a checkpoint whose superblock is not durable yet.
pub(super) fn release_early(kernel: &Kernel, scheme: &dyn Scheme, checkpointer: &mut Checkpointer) {
    if let Phase::Named(next, _) = std::mem::take(&mut checkpointer.phase) {
        let (next, _) = make_current(kernel, scheme, next);
        // A failure stops the store at its next write.
        let _ = write_superblock(kernel, &next.tables, 0);
        let (mut next, deferred) = (next, &mut checkpointer.deferred);
        begin_release(kernel, deferred, &mut next);
        while !release_some(kernel, scheme, deferred, &mut next) {}
    }
}
