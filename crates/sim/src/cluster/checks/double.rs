//! Work that two workers did: references that one of them made, and another one again.

use std::collections::BTreeMap;

use onefold_cluster::format::key;
use onefold_core::object::{Change, ObjectName, Write};

/// Counts references that several workers made.
#[derive(Default)]
pub(crate) struct DoubleWork {
    made: BTreeMap<(ObjectName, Vec<u8>), usize>,
    /// References that workers made.
    pub(crate) all: u64,
    /// References that another worker had made before.
    pub(crate) twice: u64,
}

impl DoubleWork {
    /// Takes note of an operation of a worker that was applied.
    pub(crate) fn note(&mut self, actor: usize, op: &Write) {
        for change in &op.changes {
            let Change::SetOmap(pairs) = change else { continue };
            for (key, _) in pairs.iter().filter(|(key, _)| key::parse_reference(key).is_some()) {
                let before = self.made.insert((op.object.clone(), key.clone()), actor);
                self.all += 1;
                self.twice += u64::from(before.is_some_and(|before| before != actor));
            }
        }
    }
}
