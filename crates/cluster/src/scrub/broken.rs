//! Steps that break a rule; only the simulator runs them.

use std::time::Duration;

use crate::{
    chunk_map::ChunkMap,
    format::{Chunk, Reference},
    kernel::Kernel,
    rules::Rule,
};

/// Breaks `ScrubJudgesByEntry`: true for a reference that no entry names in an object that has not
/// changed lately.
pub(super) fn is_old(
    kernel: &Kernel,
    map: Option<&ChunkMap>,
    chunk: &Chunk,
    reference: &Reference,
) -> bool {
    if kernel.keeps(Rule::ScrubJudgesByEntry) {
        return false;
    }
    let entry = map.and_then(|map| map.entries.get(&reference.offset));
    let named = entry.is_some_and(|entry| entry.base.is_some_and(|base| base.chunk == *chunk));
    let changed = map.map_or(Duration::ZERO, |map| map.changed);
    !named && kernel.store().time() > changed + kernel.settings().cold
}
