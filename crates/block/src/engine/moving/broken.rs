//! Steps that break a rule; only the simulator runs them.

use super::{Copied, Extent, Kernel, Moves};
use crate::rules::Rule;

/// Breaks `CopiesBeforeSuperblock`: copies wait until the superblock that names them is written. Returns
/// whether they do.
pub(super) fn writes_late(
    kernel: &Kernel,
    extent: Extent,
    copies: &[Copied],
    moves: &mut Moves,
) -> bool {
    if kernel.keeps(Rule::CopiesBeforeSuperblock) {
        return false;
    }
    moves.late.extend((0..).zip(copies).map(|(n, copy)| (extent.at.plus(n), copy.block.clone())));
    true
}
