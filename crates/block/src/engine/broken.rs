//! Steps that break a rule; only the simulator runs them.

use crate::{
    format::{geometry::Geometry, page::MapEntry},
    kernel::{Kernel, State},
    rules::Rule,
    window::Window,
};

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

/// Breaks `ListPagesFollowMove` or `ListZonesKept`, when the zone list has moved.
pub(super) fn forget_move(kernel: &Kernel, state: &mut State, before: Geometry) {
    if !kernel.keeps(Rule::ListPagesFollowMove) {
        state.allocator.list.stay_at(before);
    }
    if !kernel.keeps(Rule::ListZonesKept) {
        state.allocator.hand_out_list();
    }
}
