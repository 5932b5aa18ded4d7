//! The window: what clients changed since the last one closed (ThinDedup II-A).
//!
//! An open window gathers; overwrites of an address coalesce in it, and ranges drop the blocks that
//! they cover, so that every block of a window is newer than any range that covers it. A closed
//! window never changes; readers look into it until its records are published.

mod charges;
mod prepared;
pub(crate) mod ranges;
mod windows;

use std::collections::BTreeMap;

pub(crate) use charges::{Charge, Charged, Charges};
use onefold_core::{Block, Lba, Pba, VolumeId};
pub(crate) use prepared::{Plan, RawBlocks, SealedBy, Source};
use ranges::{Ranges, Span};
pub(crate) use windows::{Windows, charge_way};

use crate::{
    format::{catalogue::CatalogueChange, page::Table, record::WindowNumber},
    hash::MixMap,
};

/// Blocks of a piece of window memory: pieces are reused from window to window.
const PIECE_BLOCKS: usize = 64;

/// Where a block turned out to be before its window closed, because the store was nearly full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) pba: Pba,
    pub(crate) carried: bool,
}

/// How a block is stored, as its volume said when it was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The domain of its volume.
    pub(crate) domain: u32,
    /// True when it lay in a critical range: it shares nothing.
    pub(crate) no_dedup: bool,
}

/// A block in a window.
pub(crate) struct WindowBlock {
    pub(crate) volume: VolumeId,
    pub(crate) lba: Lba,
    /// False when a later range covers it.
    pub(crate) live: bool,
    /// True when it is moved by compaction: it gets a new place, whatever is stored already.
    pub(crate) moved: bool,
    /// How it is stored.
    pub(crate) kept: Kept,
    /// Known duplicate.
    pub(crate) placed: Option<Placed>,
}

/// The change of an address in a window.
pub(crate) enum Found<'a> {
    Block(&'a Block),
    Zero { keep: bool },
}

/// The changes of one window.
pub(crate) struct Window {
    pub(crate) number: WindowNumber,
    pub(crate) blocks: Vec<WindowBlock>,
    index: MixMap<(VolumeId, Lba), u32>,
    pub(crate) ranges: Ranges,
    pub(crate) catalogue: Vec<CatalogueChange>,
    pieces: Vec<Vec<Block>>,
    /// Blocks that are live.
    live: usize,
    /// Charges for the blocks that this window adds to volumes and domains with a quota.
    charges: Charges,
}

impl Window {
    /// True when the window has blocks or ranges of a volume.
    pub(crate) fn changes(&self, volume: VolumeId) -> bool {
        self.blocks.iter().any(|block| block.live && block.volume == volume)
            || self.ranges.iter().any(|(of, _, _)| of == volume)
    }

    /// The leaves of maps in which the window has blocks.
    pub(crate) fn map_leaves(&self) -> BTreeMap<VolumeId, Vec<u64>> {
        let mut leaves: BTreeMap<VolumeId, Vec<u64>> = BTreeMap::new();
        for block in self.blocks.iter().filter(|block| block.live) {
            leaves.entry(block.volume).or_default().push(block.lba.0 / Table::Map.per_leaf());
        }
        for leaves in leaves.values_mut() {
            leaves.sort_unstable();
            leaves.dedup();
        }
        leaves
    }

    pub(crate) fn new(number: WindowNumber) -> Window {
        Window {
            number,
            blocks: Vec::new(),
            index: MixMap::default(),
            ranges: Ranges::default(),
            catalogue: Vec::new(),
            pieces: Vec::new(),
            live: 0,
            charges: Charges::default(),
        }
    }

    /// Charges for the blocks that this window adds to volumes and domains with a quota.
    pub(crate) fn charges(&self) -> &Charges {
        &self.charges
    }

    /// How many blocks of a volume it has.
    pub(crate) fn blocks_of(&self, volume: VolumeId) -> u64 {
        self.blocks.iter().filter(|block| block.live && block.volume == volume).count() as u64
    }

    /// True when nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.ranges.is_empty() && self.catalogue.is_empty()
    }

    /// Records that the window will have.
    pub(crate) fn records(&self) -> usize {
        self.live + self.ranges.len() + self.catalogue.len()
    }

    /// Memory slots in use, dead blocks included.
    pub(crate) fn slots(&self) -> usize {
        self.blocks.len()
    }

    /// The block number `slot`.
    pub(crate) fn data(&self, slot: usize) -> &Block {
        &self.pieces[slot / PIECE_BLOCKS][slot % PIECE_BLOCKS]
    }

    /// True when an address has a block here.
    pub(crate) fn holds(&self, volume: VolumeId, lba: Lba) -> bool {
        self.index.contains_key(&(volume, lba))
    }

    /// The memory for a new version of an address; `piece` makes more memory. Its old content is
    /// not cleared.
    fn put(
        &mut self,
        volume: VolumeId,
        lba: Lba,
        moved: bool,
        kept: Kept,
        piece: impl FnOnce() -> Vec<Block>,
    ) -> &mut Block {
        let next = self.blocks.len();
        let slot = *self.index.entry((volume, lba)).or_insert(next as u32) as usize;
        if slot == next {
            self.blocks.push(WindowBlock { volume, lba, live: true, moved, kept, placed: None });
            self.live += 1;
            if slot / PIECE_BLOCKS == self.pieces.len() {
                self.pieces.push(piece());
            }
        } else {
            self.blocks[slot].moved = moved;
            self.blocks[slot].kept = kept;
            self.blocks[slot].placed = None;
        }
        &mut self.pieces[slot / PIECE_BLOCKS][slot % PIECE_BLOCKS]
    }

    /// Says that the block of an address is a duplicate of a physical one.
    fn set_placed(&mut self, volume: VolumeId, lba: Lba, placed: Placed) {
        if let Some(&slot) = self.index.get(&(volume, lba)) {
            self.blocks[slot as usize].placed = Some(placed);
        }
    }

    /// Changes a block that is in the window already, in place.
    fn get_mut(&mut self, volume: VolumeId, lba: Lba) -> Option<&mut Block> {
        let slot = *self.index.get(&(volume, lba))? as usize;
        self.blocks[slot].moved = false;
        self.blocks[slot].placed = None;
        Some(&mut self.pieces[slot / PIECE_BLOCKS][slot % PIECE_BLOCKS])
    }

    /// Makes `start..end` read as zeroes. Returns how many blocks that drops.
    fn punch(&mut self, volume: VolumeId, start: u64, end: u64, keep: bool) -> usize {
        let before = self.live;
        if end - start > self.blocks.len() as u64 {
            for block in &mut self.blocks {
                if block.live && block.volume == volume && (start..end).contains(&block.lba.0) {
                    block.live = false;
                    self.live -= 1;
                    self.index.remove(&(volume, block.lba));
                }
            }
        } else {
            for lba in start..end {
                if let Some(slot) = self.index.remove(&(volume, Lba(lba))) {
                    self.blocks[slot as usize].live = false;
                    self.live -= 1;
                }
            }
        }
        self.ranges.insert(volume, start, Span { end, keep, window: self.number });
        before - self.live
    }

    /// The change of an address in the window, if there is one.
    pub(crate) fn find(&self, volume: VolumeId, lba: Lba) -> Option<Found<'_>> {
        if let Some(&slot) = self.index.get(&(volume, lba)) {
            return Some(Found::Block(self.data(slot as usize)));
        }
        self.ranges.get(volume, lba.0).map(|span| Found::Zero { keep: span.keep })
    }

    /// Its memory, to be used again. `None` for each piece that a reader could still see is
    /// impossible here: the window is owned.
    fn into_pieces(self) -> Vec<Vec<Block>> {
        self.pieces
    }
}
