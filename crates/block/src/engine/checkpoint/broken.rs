//! Steps that break a rule; only the simulator runs them.

use onefold_core::{BlockRef, Class, Result, Run};

use super::release::{make_current, release};
use crate::{
    kernel::{Checkpointer, Kernel, Phase, write_superblock},
    moving::Moves,
    rules::Rule,
    scheme::verbs::Scheme,
};

/// Breaks rules of moves: copies are written after the superblock that names them. Returns whether what
/// they replace is to be released with it.
pub(super) fn of_moves(kernel: &Kernel, moves: &Moves) -> Result<bool> {
    for (at, block) in &moves.late {
        let blocks = &[BlockRef { block, class: Class::Data }];
        kernel.disk.write(&[Run { at: *at, blocks }]).map_err(|e| kernel.stop(&e))?;
    }
    Ok(!moves.is_empty() && !kernel.keeps(Rule::MovedBlocksKept))
}

/// Breaks `ReleaseAfterSuperblock`: ends a checkpoint whose superblock is not durable yet.
pub(super) fn release_early(kernel: &Kernel, scheme: &dyn Scheme, checkpointer: &mut Checkpointer) {
    if let Phase::Named(next, _) = std::mem::take(&mut checkpointer.phase) {
        let (next, _) = make_current(kernel, scheme, next);
        // A failure stops the store at its next write.
        let _ = write_superblock(kernel, &next.tables, 0);
        release(kernel, scheme, &mut checkpointer.deferred, *next);
    }
}
