//! Steps that break a rule; only the simulator runs them.

use std::collections::BTreeSet;

use crate::format::ContainerId;

/// Breaks `AllPlacesRecorded`: of the containers to which the chunks of several old ones went, each
/// counts for one old container only.
pub(super) fn forget_places(known: &mut [Vec<ContainerId>]) {
    let mut seen = BTreeSet::new();
    for ids in known {
        let first = ids[0];
        ids.retain(|id| seen.insert(*id));
        if ids.is_empty() {
            ids.push(first);
        }
    }
}
