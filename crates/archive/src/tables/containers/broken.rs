//! What only a planted bug runs: a leaf that changed counts as one that lies on the disk.

use std::sync::Arc;

use super::{store::LeafStore, table::Leaf};
use crate::{leaf_file::LeafPlace, rules::Rule};

/// With the bug, the cache has the only copy of what changed, under the place of what was there
/// before.
pub(super) fn let_go(
    leaf: &mut Leaf,
    place: Option<LeafPlace>,
    source: Option<&(Arc<LeafStore>, u64)>,
) {
    let Some((place, (source, _))) = place.zip(source) else { return };
    if source.keeps(Rule::ChangedLeavesStay) {
        return;
    }
    if let Some(entries) = leaf.entries.take() {
        source.keep(place, entries);
        leaf.place = Some(place);
    }
}
