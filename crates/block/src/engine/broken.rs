//! Steps that break a rule; only the simulator runs them.

use crate::{format::page::MapEntry, kernel::State, window::Window};

/// Breaks `ReuseAfterRelease`: the blocks that the window overwrites may be handed out at once.
pub(super) fn reuse_early(state: &mut State, window: &Window, slots: &[usize]) {
    for &slot in slots {
        let block = &window.blocks[slot];
        if let Some(MapEntry::Block { pba, .. }) =
            state.overlays.active().find(block.volume, block.lba)
        {
            state.allocator.reuse_early(pba);
        }
    }
}
