//! The changes of a volume that are in memory and not written back.

use std::{collections::BTreeMap, ops::Range};

use crate::{format::parameters::VOLUME_BLOCK_BYTES, tables::Volume};

/// Bytes of a sector: a block is known in part or as a whole, sector by sector.
pub(crate) const SECTOR: usize = 512;

/// Bytes of a page: a patch takes memory page by page, so that small writes to many blocks take
/// little.
pub(super) const PAGE: usize = 4096;

const SECTORS: usize = BLOCK / SECTOR;

const PAGES: usize = BLOCK / PAGE;

/// The sectors of a block that are known, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Have([u64; SECTORS / 64]);

impl Have {
    /// All of them.
    pub(super) const ALL: Have = Have([u64::MAX; SECTORS / 64]);

    fn has(&self, sector: usize) -> bool {
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

    /// Bytes that are there.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum::<usize>() * SECTOR
    }

    /// The ranges of bytes that are there, as long as they can be, in order.
    pub(super) fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for at in (0..SECTORS).filter(|&sector| self.has(sector)).map(|sector| sector * SECTOR) {
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += SECTOR,
                _ => ranges.push(at..at + SECTOR),
            }
        }
        ranges
    }
}

/// The known sectors of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patch {
    /// Sectors that nobody wrote are zero: all of them where there is no page.
    pages: [Option<Box<[u8]>>; PAGES],
    pub(super) have: Have,
    /// The last frame that was known when it was written.
    pub(super) since: u64,
}

impl Patch {
    /// Nothing is known, or that all is zero.
    pub(super) fn new(zero: bool, since: u64) -> Patch {
        let have = if zero { Have::ALL } else { Have::default() };
        Patch { have, since, ..Patch::default() }
    }

    /// Bytes of memory that it takes.
    fn memory(&self) -> u64 {
        let pages = self.pages.iter().flatten().count();
        (std::mem::size_of::<Patch>() + pages * PAGE) as u64
    }

    /// Writes whole sectors.
    pub(super) fn write(&mut self, at: usize, data: &[u8]) {
        for (page, within, part) in by_page(at..at + data.len()) {
            let data = &data[part];
            match &mut self.pages[page] {
                Some(bytes) => bytes[within].copy_from_slice(data),
                none if data.len() == PAGE => *none = Some(data.into()),
                none => none.insert(zeroes())[within].copy_from_slice(data),
            }
        }
        (at / SECTOR..(at + data.len()) / SECTOR).for_each(|sector| self.have.set(sector));
    }

    /// Copies of a range what is known here and not in `known` yet.
    pub(super) fn copy(&self, range: &Range<usize>, into: &mut [u8], known: &mut Have) {
        for (page, within, part) in by_page(range.clone()) {
            let (first, end) = (page * PAGE + within.start, page * PAGE + within.end);
            for sector in first / SECTOR..end.div_ceil(SECTOR) {
                if !self.have.has(sector) || known.has(sector) {
                    continue;
                }
                known.set(sector);
                let (from, to) = ((sector * SECTOR).max(first), ((sector + 1) * SECTOR).min(end));
                let into = &mut into[part.start + from - first..part.start + to - first];
                match &self.pages[page] {
                    Some(bytes) => {
                        into.copy_from_slice(&bytes[from - page * PAGE..to - page * PAGE])
                    }
                    None => into.fill(0),
                }
            }
        }
    }

    /// Takes from `below` the sectors that are there and are not here.
    fn fill(&mut self, below: &Patch) {
        for sector in (0..SECTORS).filter(|&sector| below.have.has(sector)) {
            if self.have.has(sector) {
                continue;
            }
            let (page, at) = (sector * SECTOR / PAGE, sector * SECTOR % PAGE);
            let within = at..at + SECTOR;
            match (&mut self.pages[page], &below.pages[page]) {
                (_, None) => {}
                (here, Some(bytes)) => {
                    here.get_or_insert_with(zeroes)[within.clone()].copy_from_slice(&bytes[within])
                }
            }
            self.have.set(sector);
        }
    }
}

fn zeroes() -> Box<[u8]> {
    vec![0; PAGE].into()
}

/// The pages that a range of a block lies in; of each its number, the bytes of the page, and the bytes
/// of the range.
fn by_page(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    (range.start / PAGE..range.end.div_ceil(PAGE)).map(move |page| {
        let (from, to) = (range.start.max(page * PAGE), range.end.min((page + 1) * PAGE));
        (page, from - page * PAGE..to - page * PAGE, from - range.start..to - range.start)
    })
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
    /// Memory of the blocks.
    memory: u64,
}

impl Layer {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.zeroed.0.is_empty()
    }

    /// Bytes of memory that the blocks take.
    pub(super) fn memory(&self) -> u64 {
        self.memory
    }

    /// Bytes of memory that a write of so many bytes takes at most.
    pub(super) fn memory_of(bytes: usize) -> u64 {
        let (blocks, pages) = (bytes / BLOCK + 2, bytes / PAGE + 2);
        (blocks * std::mem::size_of::<Patch>() + pages * PAGE) as u64
    }

    /// The block's patch, unless the volume was cut there since.
    pub(super) fn patch(&self, volume: &Volume, block: u64) -> Option<&Patch> {
        self.blocks.get(&block).filter(|patch| !volume.was_cut(block, patch.since))
    }

    /// The first block from `block` on that has a patch, the volume's cuts apart.
    pub(super) fn next_patch(&self, block: u64) -> Option<u64> {
        self.blocks.range(block..).next().map(|(&block, _)| block)
    }

    /// Writes whole sectors of a block.
    pub(super) fn write(
        &mut self,
        volume: &Volume,
        block: u64,
        since: u64,
        at: usize,
        data: &[u8],
    ) {
        let zero = self.zeroed.contains(block);
        let fresh = || Patch::new(zero, since);
        let mut before = 0;
        let patch = self
            .blocks
            .entry(block)
            .and_modify(|patch| {
                before = patch.memory();
                if volume.was_cut(block, patch.since) {
                    *patch = fresh();
                }
            })
            .or_insert_with(fresh);
        patch.write(at, data);
        self.memory = self.memory - before + patch.memory();
    }

    /// Makes whole blocks zero.
    pub(super) fn zero(&mut self, blocks: Range<u64>) {
        let gone: Vec<u64> = self.blocks.range(blocks.clone()).map(|(&block, _)| block).collect();
        gone.iter().for_each(|block| {
            self.memory -= self.blocks.remove(block).map_or(0, |patch| patch.memory());
        });
        self.zeroed.insert(blocks);
    }

    /// Takes in the layer below, which could not be written back, of a volume that may be gone. With
    /// `has_zeroes` its zeroes are durable.
    pub(super) fn absorb(&mut self, below: Layer, has_zeroes: bool, volume: Option<&Volume>) {
        for (block, patch) in below.blocks {
            if self.zeroed.contains(block)
                || volume.is_none_or(|volume| volume.was_cut(block, patch.since))
            {
                continue;
            }
            match self.blocks.get_mut(&block) {
                Some(upper) => upper.fill(&patch),
                None => {
                    self.blocks.insert(block, patch);
                }
            }
        }
        for zeroed in below.zeroed.iter() {
            for (_, patch) in self.blocks.range_mut(zeroed.clone()) {
                patch.fill(&Patch::new(true, 0));
            }
            if !has_zeroes {
                self.zeroed.insert(zeroed);
            }
        }
        self.memory = self.blocks.values().map(Patch::memory).sum();
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
            domain: 0,
            read_only: false,
            cuts: Vec::new(),
            block_index: std::sync::Arc::default(),
        };
        let mut below = Layer::default();
        below.zero(10..20);
        for block in [1, 2, 3] {
            below.write(&volume, block, 0, 0, &[1; 2 * SECTOR]);
        }
        let mut upper = Layer::default();
        upper.zero(2..3);
        upper.write(&volume, 3, 0, SECTOR, &[2; SECTOR]);
        upper.write(&volume, 12, 0, 0, &[3; SECTOR]);
        upper.absorb(below, false, Some(&volume));
        assert!(
            upper.zeroed.contains(2) && upper.zeroed.contains(15) && !upper.blocks.contains_key(&2)
        );
        let of = |block: u64| &upper.blocks[&block];
        let bytes = |block: u64| {
            let mut bytes = vec![9; BLOCK];
            of(block).copy(&(0..BLOCK), &mut bytes, &mut Have::default());
            [bytes[0], bytes[SECTOR], bytes[BLOCK - 1]]
        };
        assert_eq!((bytes(1), bytes(3), bytes(12)), ([1, 1, 9], [1, 2, 9], [3, 0, 0]));
        assert!(of(12).have == Have::ALL && of(3).have.has(1) && !of(3).have.has(2));
        let pages = upper.blocks.values().flat_map(|patch| patch.pages.iter().flatten()).count();
        assert_eq!((pages, upper.memory()), (3, 3 * (PAGE + size_of::<Patch>()) as u64));
    }

    #[test]
    fn a_patch_takes_pages_as_they_are_written() {
        let mut patch = Patch::new(false, 0);
        patch.write(PAGE - SECTOR, &[1; 2 * SECTOR]);
        patch.write(3 * PAGE, &[2; PAGE]);
        patch.write(BLOCK - SECTOR, &[3; SECTOR]);
        assert_eq!(patch.memory(), (4 * PAGE + size_of::<Patch>()) as u64);
        let written = [PAGE - SECTOR..PAGE + SECTOR, 3 * PAGE..4 * PAGE, BLOCK - SECTOR..BLOCK];
        assert_eq!(patch.have.ranges(), written);
        assert_eq!(patch.have.bytes(), 2 * SECTOR + PAGE + SECTOR);
        // A range that begins and ends inside of sectors, of which the first is known already.
        let mut known = Have::default();
        known.set(PAGE / SECTOR - 1);
        let (range, mut into) = (PAGE - 100..PAGE + 700, [9; 800]);
        patch.copy(&range, &mut into, &mut known);
        assert!(into[..100].iter().all(|&byte| byte == 9) && into[100..612] == [1; 512]);
        assert!(into[612..].iter().all(|&byte| byte == 9) && !known.covers(&range));
        // Zeroes that are known take no memory, and are zeroes beside what is written later.
        let mut zero = Patch::new(true, 0);
        assert_eq!(zero.memory(), size_of::<Patch>() as u64);
        zero.write(SECTOR, &[4; SECTOR]);
        let mut into = [9; 3 * SECTOR];
        zero.copy(&(0..3 * SECTOR), &mut into, &mut Have::default());
        assert_eq!([into[0], into[SECTOR], into[2 * SECTOR]], [0, 4, 0]);
        patch.fill(&zero);
        assert!(patch.have == Have::ALL);
        let mut all = vec![9; BLOCK];
        patch.copy(&(0..BLOCK), &mut all, &mut Have::default());
        assert_eq!(
            [all[0], all[SECTOR], all[PAGE], all[PAGE + SECTOR], all[BLOCK - 1]],
            [0, 4, 1, 0, 3]
        );
    }
}
