//! Blocks that a checkpoint freed, and that are about to be released.

use onefold_core::Pba;

/// They are free in the tables, and nobody may have them yet.
#[derive(Default)]
pub(super) struct Releasing {
    /// In ascending order.
    blocks: Vec<Pba>,
    /// They are overlooked where zones are learned.
    #[cfg(feature = "planted-bugs")]
    pub(super) blind: bool,
}

impl Releasing {
    /// These blocks, in ascending order, are about to be released; none are with an empty list.
    pub(super) fn are(&mut self, blocks: Vec<Pba>) {
        self.blocks = blocks;
    }

    /// Takes up to `most` of those from `least` on. Each is released or held next.
    pub(super) fn next(&mut self, least: Pba, most: usize) -> Vec<Pba> {
        let from = self.blocks.partition_point(|&pba| pba < least);
        self.blocks.split_off(from.max(self.blocks.len().saturating_sub(most)))
    }

    /// True when there is none from `least` on.
    pub(super) fn is_over_from(&self, least: Pba) -> bool {
        self.blocks.last().is_none_or(|&last| last < least)
    }

    /// True for one of them.
    pub(super) fn has(&self, pba: Pba) -> bool {
        self.blocks.binary_search(&pba).is_ok()
    }

    /// Those from `start` to before `end`.
    pub(super) fn within(&self, start: Pba, end: Pba) -> &[Pba] {
        #[cfg(feature = "planted-bugs")]
        if self.blind {
            return &[];
        }
        let at = |pba: Pba| self.blocks.partition_point(|&other| other < pba);
        &self.blocks[at(start)..at(end)]
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> u64 {
        self.blocks.capacity() as u64 * 8
    }
}
