//! Blocks that readers in order handed over: they were read and lie scattered, so that moving reads
//! them no second time.
//!
//! What is handed over is a hint. It may be older than what the map names by then, and counts only
//! where its fingerprint is that of the map.

use std::collections::{BTreeMap, VecDeque};

use onefold_core::{Block, Lba, VolumeId};

use crate::format::page::Table;

/// Leaves whose blocks wait, at most: 4.5 MiB. Later ones are left to a later reader.
const LEAVES_MAX: usize = 4;

/// Blocks of a leaf that were handed over.
pub(crate) struct HandedLeaf {
    pub(crate) volume: VolumeId,
    pub(crate) leaf: u64,
    blocks: BTreeMap<Lba, Box<Block>>,
    /// Whether the leaf was looked at, and its blocks are being moved.
    pub(crate) is_planned: bool,
}

impl HandedLeaf {
    /// The leaf, whose blocks are being moved.
    pub(crate) fn planned(self) -> HandedLeaf {
        HandedLeaf { is_planned: true, ..self }
    }

    /// The block that was read at an address.
    pub(crate) fn take(&mut self, lba: Lba) -> Option<Block> {
        self.blocks.remove(&lba).map(|block| *block)
    }
}

/// The blocks that wait to be moved, by their leaves.
#[derive(Default)]
pub(crate) struct Handed {
    leaves: VecDeque<HandedLeaf>,
    /// Where a reader was last.
    last: Option<(VolumeId, u64)>,
}

impl Handed {
    /// Takes over what a reader found from an address on.
    pub(crate) fn take_over(&mut self, volume: VolumeId, first: Lba, blocks: &[Block]) {
        let per_leaf = Table::Map.per_leaf();
        for (lba, block) in (first.0..).zip(blocks) {
            let leaf = lba / per_leaf;
            self.last = Some((volume, leaf));
            let at = |one: &HandedLeaf| (one.volume, one.leaf) == (volume, leaf);
            if !self.leaves.iter().any(at) {
                if self.leaves.len() == LEAVES_MAX {
                    continue;
                }
                let blocks = BTreeMap::new();
                self.leaves.push_back(HandedLeaf { volume, leaf, blocks, is_planned: false });
            }
            let Some(found) = self.leaves.iter_mut().find(|one| at(one)) else { continue };
            found.blocks.insert(Lba(lba), Box::new(block.clone()));
        }
    }

    /// A reader is there, and what it found is not scattered.
    pub(crate) fn pass(&mut self, volume: VolumeId, lba: Lba) {
        self.last = Some((volume, lba.0 / Table::Map.per_leaf()));
    }

    /// The oldest leaf whose reader is elsewhere by now, or has read all of it.
    pub(crate) fn next(&mut self) -> Option<HandedLeaf> {
        let all = Table::Map.per_leaf() as usize;
        let left = |one: &HandedLeaf| self.last != Some((one.volume, one.leaf));
        let at = self.leaves.iter().position(|one| left(one) || one.blocks.len() == all)?;
        self.leaves.remove(at)
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.blocks.len() as u64 * 4160).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_moved_when_its_reader_has_left_it_and_few_wait() {
        let mut handed = Handed::default();
        let blocks = Block::zeroed_vec(100);
        handed.take_over(VolumeId(1), Lba(0), &blocks);
        assert!(handed.next().is_none(), "the reader goes on there");
        for first in (100..288 * 20).step_by(100) {
            handed.take_over(VolumeId(1), Lba(first), &blocks);
        }
        assert!(handed.memory() <= LEAVES_MAX as u64 * 288 * 4160);
        let mut first = handed.next().expect("the reader has left it");
        assert_eq!((first.volume, first.leaf), (VolumeId(1), 0));
        assert!(first.take(Lba(287)).is_some() && first.take(Lba(287)).is_none());
        assert!(first.take(Lba(288)).is_none());
        assert_eq!(handed.next().map(|leaf| leaf.leaf), Some(1));
    }

    #[test]
    fn a_reader_leaves_a_leaf_for_one_that_is_not_scattered_too() {
        let mut handed = Handed::default();
        handed.take_over(VolumeId(1), Lba(0), &Block::zeroed_vec(100));
        handed.pass(VolumeId(1), Lba(287));
        assert!(handed.next().is_none(), "it is the same leaf");
        handed.pass(VolumeId(1), Lba(288));
        assert_eq!(handed.next().map(|leaf| leaf.leaf), Some(0));
    }
}
