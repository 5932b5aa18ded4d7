//! Steps that break a rule; only the simulator runs them.

use super::label::{Absent, NodeLabel};

/// Breaks `NodeNeedsItsLabel`: directories without a label count as the nodes that are missing.
pub(super) fn accept_unlabelled(
    absent: &mut Vec<(usize, Absent)>,
    found: &mut [Option<NodeLabel>],
) {
    for (n, _) in absent.extract_if(.., |(_, why)| *why == Absent::Unlabelled) {
        let known = found.iter().flatten().next().cloned();
        found[n] = known.map(|label| NodeLabel { number: n as u8, ..label });
    }
}
