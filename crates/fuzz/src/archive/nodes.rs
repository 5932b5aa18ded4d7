//! Archives on several nodes, of which somebody else wrote any file.

use std::sync::Arc;

use onefold_archive::Nodes;
use onefold_core::Files;

use super::{all_verbs, change_files, files::MemoryFiles, good, mend};
use crate::reach;

/// A changed archive on three nodes under every verb. A quarter of the inputs lose a node, too.
pub fn nodes(data: &[u8]) {
    let (first, steps) = data.split_first().unwrap_or((&0, &[]));
    let directories = changed(*first, steps);
    let lost = if first & 0x60 == 0x60 { usize::from(first & 3) } else { usize::MAX };
    let there = |(n, files): (usize, &Arc<MemoryFiles>)| {
        (n != lost).then(|| files.clone() as Arc<dyn Files>)
    };
    let Some(nodes) =
        reach::noted(Nodes::open(directories.iter().enumerate().map(there).collect(), false))
    else {
        return;
    };
    all_verbs(&Arc::new(nodes));
}

/// The nodes, with the changes of each; the first byte of a change says whose file it is.
fn changed(first: u8, steps: &[u8]) -> Vec<Arc<MemoryFiles>> {
    let all: Vec<MemoryFiles> = good::nodes().iter().map(MemoryFiles::of).collect();
    for step in steps.chunks(1 + super::STEP_BYTES).take(super::STEPS_MAX) {
        let (node, step) = step.split_first().unwrap_or((&0, &[]));
        change_files(&all[usize::from(*node) % all.len()], "", step);
    }
    if first & 0x80 == 0 {
        all.iter().for_each(mend::all);
    }
    all.into_iter().map(Arc::new).collect()
}

/// Without a change, without a node, and with a change in each file of each node.
pub(crate) fn examples() -> Vec<Vec<u8>> {
    let mut examples = vec![vec![0], vec![0x60], vec![0x61], vec![0x62]];
    for (node, files) in good::nodes().iter().enumerate() {
        for file in 0..files.len() as u8 {
            examples
                .push([&[0, node as u8, 3, file, 40, 0, 0, 9][..], &7u64.to_le_bytes()].concat());
        }
    }
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_49_good_nodes_are_well_and_mending_changes_nothing() {
        for (files, good) in changed(0, &[]).iter().zip(good::nodes()) {
            assert!(files.all() == *good);
        }
        reach::taken();
        nodes(&[0]);
        let reached = reach::taken();
        assert!(reached.good > 10 && reached.refused.is_empty(), "{reached:?}");
    }
}
