//! Steps that break a rule; only the simulator runs them.

use onefold_core::Block;

use crate::{kernel::Kernel, moving::Moves, rules::Rule, space::Extent};

/// Breaks `CopiesBeforeSuperblock`: copies wait until the superblock that names them is written. Returns
/// whether they do.
pub(super) fn writes_late<'a>(
    kernel: &Kernel,
    extent: Extent,
    copies: impl Iterator<Item = &'a Block>,
    moves: &mut Moves,
) -> bool {
    if kernel.keeps(Rule::CopiesBeforeSuperblock) {
        return false;
    }
    moves.late.extend((0..).zip(copies).map(|(n, block)| (extent.at.plus(n), block.clone())));
    true
}
