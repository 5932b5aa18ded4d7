//! Blocks that are not deduplicated.

use std::ops::Range;

use onefold_core::{Error, Kind, Lba, Result};

use crate::{VOLUME_BLOCKS_MAX, from_low_bytes};

/// Most critical ranges of a volume.
pub const NO_DEDUP_MAX: usize = 12;

/// Blocks of a volume that are never stored as duplicates, nor found as such: a file system that
/// keeps two copies of a block wants two. (OrderMergeDedup, "File systems maintain redundant
/// durable copies of critical information".) They rise and do not touch.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NoDedup(Vec<Range<u64>>);

impl NoDedup {
    /// Ranges of block addresses in any order; those that overlap or touch become one.
    ///
    /// # Errors
    /// `InvalidInput` when there are more than [`NO_DEDUP_MAX`], or one is empty or beyond the
    /// largest volume.
    pub fn new(mut ranges: Vec<Range<u64>>) -> Result<NoDedup> {
        if let Some(bad) =
            ranges.iter().find(|range| range.is_empty() || range.end > VOLUME_BLOCKS_MAX)
        {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("the critical range of blocks {} to {} is none", bad.start, bad.end),
            ));
        }
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        if merged.len() > NO_DEDUP_MAX {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("a volume has at most {NO_DEDUP_MAX} critical ranges"),
            ));
        }
        Ok(NoDedup(merged))
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True when a block is in one of them.
    #[must_use]
    pub fn holds(&self, lba: Lba) -> bool {
        self.0.iter().any(|range| range.contains(&lba.0))
    }

    /// The ranges, in blocks.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }

    /// Writes them at the beginning of `to`, 16 bytes each, and gives their number.
    pub fn encode(&self, to: &mut [u8]) -> u8 {
        for (range, to) in self.0.iter().zip(to.chunks_exact_mut(16)) {
            to[..8].copy_from_slice(&range.start.to_le_bytes());
            to[8..].copy_from_slice(&range.end.to_le_bytes());
        }
        self.0.len() as u8
    }

    /// Reads `count` of them; `None` when they are not as [`encode`](Self::encode) writes them.
    #[must_use]
    pub fn decode(count: u8, from: &[u8]) -> Option<NoDedup> {
        let number = |at: &[u8]| from_low_bytes(at);
        let ranges: Vec<Range<u64>> = from
            .chunks_exact(16)
            .take(usize::from(count))
            .map(|at| number(&at[..8])..number(&at[8..]))
            .collect();
        let known = NoDedup::new(ranges.clone()).ok()?;
        (known.0 == ranges && ranges.len() == usize::from(count)).then_some(known)
    }
}
