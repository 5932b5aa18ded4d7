//! Steps that break a rule; only the simulator runs them.

use onefold_core::{Block, Pba};

use super::handing::Placed;
use crate::{kernel::Kernel, moving::Moves, rules::Rule};

/// Breaks `PacksBeforeSuperblock` in the same way. Returns whether it does.
pub(super) fn packs_late(kernel: &Kernel, packs: &[(Pba, Box<Block>)], moves: &mut Moves) -> bool {
    if kernel.keeps(Rule::PacksBeforeSuperblock) {
        return false;
    }
    moves.late.extend(packs.iter().map(|(at, pack)| (*at, (**pack).clone())));
    true
}

/// Breaks `CopiesBeforeSuperblock`: copies wait until the superblock that names them is written. Returns
/// whether they do.
pub(super) fn writes_late(kernel: &Kernel, placed: &Placed, moves: &mut Moves) -> bool {
    if kernel.keeps(Rule::CopiesBeforeSuperblock) {
        return false;
    }
    for (extent, copies) in placed {
        let blocks = copies.iter().map(|copy| copy.block.clone());
        moves.late.extend((0..).zip(blocks).map(|(n, block)| (extent.at.plus(n), block)));
    }
    true
}
