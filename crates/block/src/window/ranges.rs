//! Ranges that read as zeroes: disjoint, the newest winning where they met.

use std::collections::BTreeMap;

use onefold_core::VolumeId;

use crate::format::record::WindowNumber;

/// A range from its start (the key) to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) end: u64,
    /// Zeroes that were written, or a hole.
    pub(crate) keep: bool,
    /// The window that made it.
    pub(crate) window: WindowNumber,
}

/// Disjoint ranges of many volumes.
#[derive(Clone, Default)]
pub(crate) struct Ranges {
    spans: BTreeMap<(VolumeId, u64), Span>,
}

impl Ranges {
    /// Adds a range that is newer than all present ones, which it cuts.
    pub(crate) fn insert(&mut self, volume: VolumeId, start: u64, span: Span) {
        self.cut(volume, start, span.end);
        // Neighbours of one kind and window are one range, so that many small trims stay few
        // records.
        let mut from = start;
        if let Some((&(_, before), last)) =
            self.spans.range((volume, 0)..(volume, start)).next_back()
            && last.end == start
            && (last.keep, last.window) == (span.keep, span.window)
        {
            from = before;
        }
        self.spans.insert((volume, from), span);
    }

    /// Removes what lies between `start` and `end`.
    pub(crate) fn cut(&mut self, volume: VolumeId, start: u64, end: u64) {
        if let Some((&key, &span)) = self.spans.range((volume, 0)..(volume, start)).next_back()
            && span.end > start
        {
            self.spans.insert(key, Span { end: start, ..span });
            if span.end > end {
                self.spans.insert((volume, end), span);
                return;
            }
        }
        while let Some((&(_, at), &span)) = self.spans.range((volume, start)..(volume, end)).next()
        {
            self.spans.remove(&(volume, at));
            if span.end > end {
                self.spans.insert((volume, end), span);
            }
        }
    }

    /// The range that covers an address.
    pub(crate) fn get(&self, volume: VolumeId, lba: u64) -> Option<&Span> {
        if self.spans.is_empty() {
            return None;
        }
        self.spans
            .range((volume, 0)..=(volume, lba))
            .next_back()
            .map(|(_, span)| span)
            .filter(|span| span.end > lba)
    }

    /// All ranges: volume, start, span.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (VolumeId, u64, &Span)> {
        self.spans.iter().map(|(&(volume, start), span)| (volume, start, span))
    }

    /// The ranges of one volume that meet `start..end`.
    pub(crate) fn meeting(
        &self,
        volume: VolumeId,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, Span)> + '_ {
        let first = self
            .spans
            .range((volume, 0)..(volume, start))
            .next_back()
            .filter(|(_, span)| span.end > start);
        first
            .into_iter()
            .chain(self.spans.range((volume, start)..(volume, end)))
            .map(|(&(_, at), &span)| (at, span))
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_ranges_cut_older_ones() {
        let volume = VolumeId(1);
        let mut ranges = Ranges::default();
        let mut model = [None; 64];
        let mut state = 7u64;
        for n in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = state >> 58;
            let end = (start + 1 + (state >> 40 & 15)).min(64);
            if start >= end {
                continue;
            }
            if state >> 30 & 3 == 0 {
                ranges.cut(volume, start, end);
                model[start as usize..end as usize].fill(None);
            } else {
                ranges.insert(volume, start, Span { end, keep: false, window: WindowNumber(n) });
                model[start as usize..end as usize].fill(Some(n));
            }
            for (lba, expected) in model.iter().enumerate() {
                assert_eq!(
                    ranges.get(volume, lba as u64).map(|span| span.window.0),
                    *expected,
                    "step {n}, address {lba}"
                );
            }
            assert_eq!(ranges.get(VolumeId(2), start), None);
        }
    }
}
