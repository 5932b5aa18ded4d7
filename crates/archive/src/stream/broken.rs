//! Steps that break a rule; only the simulator runs them.

use super::gathered::NewChunk;

/// Breaks `CountsOfTheirBatch`: chunks get the counts that those of the batch before had.
pub(super) fn take_counts_of_another(chunks: &mut [NewChunk], before: &mut Vec<u16>) {
    let own = chunks.iter().map(|chunk| chunk.count).collect();
    let other = std::mem::replace(before, own);
    chunks.iter_mut().zip(other.into_iter().chain(std::iter::repeat(1))).for_each(
        |(chunk, count)| {
            chunk.count = count;
        },
    );
}
