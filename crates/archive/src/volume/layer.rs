//! The changes of a volume that are in memory and not written back.

use std::{collections::BTreeMap, ops::Range};

use crate::{format::parameters::VOLUME_BLOCK_BYTES, memory::BufferPool, tables::Volume};

/// Bytes of a sector: a block is known in part or as a whole, sector by sector.
pub(crate) const SECTOR: usize = 512;

const SECTORS: usize = BLOCK / SECTOR;

/// The sectors of a block that are known, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Have([u64; SECTORS / 64]);

impl Have {
    /// All of them.
    pub(super) const ALL: Have = Have([u64::MAX; SECTORS / 64]);

    pub(super) fn has(&self, sector: usize) -> bool {
        self.0[sector / 64] >> (sector % 64) & 1 == 1
    }

    fn set(&mut self, sector: usize) {
        self.0[sector / 64] |= 1 << (sector % 64);
    }

    /// True when all of a range of bytes are there.
    pub(super) fn covers(&self, bytes: &Range<usize>) -> bool {
        *self == Have::ALL
            || (bytes.start / SECTOR..bytes.end.div_ceil(SECTOR)).all(|sector| self.has(sector))
    }
}

/// The known sectors of a block.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    pub(super) bytes: Vec<u8>,
    pub(super) have: Have,
    /// The last frame that was known when it was written.
    pub(super) since: u64,
}

impl Patch {
    /// Nothing is known, or that all is zero. Memory comes from `spare`, with whatever is in it.
    pub(super) fn new(zero: bool, since: u64, buffers: &BufferPool) -> Patch {
        let mut bytes = buffers.take();
        bytes.resize(BLOCK, 0);
        if zero {
            bytes.fill(0);
        }
        Patch { bytes, have: if zero { Have::ALL } else { Have::default() }, since }
    }

    /// Writes whole sectors, or what lies in sectors that are there.
    pub(super) fn write(&mut self, at: usize, data: &[u8]) {
        self.bytes[at..at + data.len()].copy_from_slice(data);
        (at.div_ceil(SECTOR)..(at + data.len()) / SECTOR).for_each(|sector| self.have.set(sector));
    }

    /// Takes from `below` the sectors that are there and are not here.
    pub(super) fn fill(&mut self, below: &[u8], there: &Have) {
        for sector in 0..SECTORS {
            if there.has(sector) && !self.have.has(sector) {
                let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                self.bytes[bytes.clone()].copy_from_slice(&below[bytes]);
                self.have.set(sector);
            }
        }
    }
}

/// Ranges of blocks that do not touch each other.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn insert(&mut self, mut new: Range<u64>) {
        let touching: Vec<u64> = self
            .0
            .range(..=new.end)
            .rev()
            .take_while(|(_, end)| **end >= new.start)
            .map(|(&start, _)| start)
            .collect();
        for start in touching {
            if let Some(end) = self.0.remove(&start) {
                new = new.start.min(start)..new.end.max(end);
            }
        }
        self.0.insert(new.start, new.end);
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        self.end_of(block).is_some()
    }

    /// Where the range ends that `block` is in.
    pub(super) fn end_of(&self, block: u64) -> Option<u64> {
        self.0.range(..=block).next_back().map(|(_, &end)| end).filter(|&end| block < end)
    }

    /// The first block from `block` on that is in a range.
    pub(super) fn next(&self, block: u64) -> Option<u64> {
        if self.contains(block) {
            Some(block)
        } else {
            self.0.range(block..).next().map(|(&start, _)| start)
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }
}

/// Zeroes first, then blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    pub(super) zeroed: Ranges,
    pub(super) blocks: BTreeMap<u64, Patch>,
}

impl Layer {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.zeroed.0.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK) as u64
    }

    /// The block's patch, unless the volume was cut there since.
    pub(super) fn patch(&self, volume: &Volume, block: u64) -> Option<&Patch> {
        self.blocks.get(&block).filter(|patch| !volume.was_cut(block, patch.since))
    }

    /// The first block from `block` on that has a patch, the volume's cuts apart.
    pub(super) fn next_patch(&self, block: u64) -> Option<u64> {
        self.blocks.range(block..).next().map(|(&block, _)| block)
    }

    /// The block's patch, to be written to.
    pub(super) fn open(
        &mut self,
        volume: &Volume,
        block: u64,
        since: u64,
        buffers: &BufferPool,
    ) -> &mut Patch {
        let zero = self.zeroed.contains(block);
        let patch = self.blocks.entry(block).or_insert_with(|| Patch::new(zero, since, buffers));
        if volume.was_cut(block, patch.since) {
            *patch = Patch::new(zero, since, buffers);
        }
        patch
    }

    /// Makes whole blocks zero.
    pub(super) fn zero(&mut self, blocks: Range<u64>) {
        let gone: Vec<u64> = self.blocks.range(blocks.clone()).map(|(&block, _)| block).collect();
        gone.iter().for_each(|block| {
            self.blocks.remove(block);
        });
        self.zeroed.insert(blocks);
    }

    /// Takes in the layer below, which could not be written back, of a volume that may be gone.
    pub(super) fn absorb(&mut self, below: Layer, volume: Option<&Volume>) {
        for (block, patch) in below.blocks {
            if self.zeroed.contains(block)
                || volume.is_none_or(|volume| volume.was_cut(block, patch.since))
            {
                continue;
            }
            match self.blocks.get_mut(&block) {
                Some(upper) => upper.fill(&patch.bytes, &patch.have),
                None => {
                    self.blocks.insert(block, patch);
                }
            }
        }
        for zeroed in below.zeroed.iter() {
            for (_, patch) in self.blocks.range_mut(zeroed.clone()) {
                patch.fill(&[0; BLOCK], &Have::ALL);
            }
            self.zeroed.insert(zeroed);
        }
    }
}

/// Bytes of a block.
pub(crate) const BLOCK: usize = VOLUME_BLOCK_BYTES as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut ranges = Ranges::default();
        for range in [5..7, 20..30, 8..9, 7..8, 1..2, 25..40] {
            ranges.insert(range);
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [1..2, 5..9, 20..40]);
        assert_eq!(
            (ranges.next(2), ranges.next(6), ranges.next(40), ranges.end_of(39)),
            (Some(5), Some(6), None, Some(40))
        );
        ranges.insert(0..50);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), std::iter::once(0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_layer_that_comes_back_lies_below_what_was_written_since() {
        let volume = Volume {
            name: String::new(),
            bytes: 100 * BLOCK as u64,
            created: 0,
            read_only: false,
            cuts: Vec::new(),
            block_index: std::sync::Arc::default(),
        };
        let buffers = BufferPool::default();
        let mut below = Layer::default();
        below.zero(10..20);
        for block in [1, 2, 3] {
            below.open(&volume, block, 0, &buffers).write(0, &[1; 2 * SECTOR]);
        }
        let mut upper = Layer::default();
        upper.zero(2..3);
        upper.open(&volume, 3, 0, &buffers).write(SECTOR, &[2; SECTOR]);
        upper.open(&volume, 12, 0, &buffers).write(0, &[3; SECTOR]);
        upper.absorb(below, Some(&volume));
        assert!(
            upper.zeroed.contains(2) && upper.zeroed.contains(15) && !upper.blocks.contains_key(&2)
        );
        let of = |block: u64| &upper.blocks[&block];
        assert_eq!(
            (
                of(1).bytes[0],
                of(3).bytes[0],
                of(3).bytes[SECTOR],
                of(12).bytes[0],
                of(12).bytes[SECTOR]
            ),
            (1, 1, 2, 3, 0)
        );
        assert!(of(12).have == Have::ALL && of(3).have.has(1) && !of(3).have.has(2));
    }
}
