//! A zone from which blocks are handed out, and the runs of blocks that it gives.

use onefold_core::Pba;

use crate::format::zone_bitmap::ZoneBitmap;

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) at: Pba,
    pub(crate) blocks: u64,
}

/// A zone from which blocks are handed out, or were since the last checkpoint.
pub(super) struct ActiveZone {
    /// Its first block.
    start: Pba,
    /// How many blocks it has.
    blocks: usize,
    /// Blocks that may not be handed out.
    used: ZoneBitmap,
    /// Blocks below were offered already.
    cursor: usize,
}

impl ActiveZone {
    pub(super) fn new(start: Pba, blocks: u64, used: ZoneBitmap) -> ActiveZone {
        ActiveZone { start, blocks: blocks as usize, used, cursor: 0 }
    }

    /// Blocks that may not be handed out.
    pub(super) fn used(&self) -> &ZoneBitmap {
        &self.used
    }

    /// Blocks that can still be handed out.
    pub(super) fn left(&self) -> u64 {
        self.used.clear_from(self.cursor, self.blocks) as u64
    }

    /// Free blocks, those before the cursor among them.
    pub(super) fn clear(&self) -> u64 {
        // A hostile bitmap may have bits behind the end of a small zone.
        self.used.clear_from(0, self.blocks) as u64
    }

    /// True when no block is free.
    pub(super) fn is_full(&self) -> bool {
        self.used.count() >= self.blocks as u64
    }

    /// Offers the blocks that became free behind the cursor, too.
    pub(super) fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// Takes up to `most` blocks, the first that are free.
    pub(super) fn take(&mut self, most: u64) -> Option<Extent> {
        let (start, length) = self.used.clear_run(self.cursor, self.blocks, most as usize)?;
        Some(self.hand_out(start, length))
    }

    /// Takes up to `most` blocks of the first run that has `least`.
    pub(super) fn take_run(&mut self, most: u64, least: u64) -> Option<Extent> {
        loop {
            let (start, length) = self.used.clear_run(self.cursor, self.blocks, self.blocks)?;
            if length as u64 >= least {
                return Some(self.hand_out(start, length.min(most as usize)));
            }
            self.cursor = start + length;
        }
    }

    /// True when a run that has `least` blocks can be handed out.
    pub(super) fn has_run(&self, least: u64) -> bool {
        let mut at = self.cursor;
        while let Some((start, length)) = self.used.clear_run(at, self.blocks, self.blocks) {
            if length as u64 >= least {
                return true;
            }
            at = start + length;
        }
        false
    }

    fn hand_out(&mut self, start: usize, length: usize) -> Extent {
        for n in start..start + length {
            self.used.set(n);
        }
        self.cursor = start + length;
        Extent { at: self.start.plus(start as u64), blocks: length as u64 }
    }

    /// Marks a block as in use; true when it was free.
    pub(super) fn mark(&mut self, offset: usize) -> bool {
        self.used.set(offset)
    }

    /// Makes a block free, behind the cursor until [`rewind`](Self::rewind); true when it was in use.
    pub(super) fn release(&mut self, offset: usize) -> bool {
        self.used.clear(offset)
    }

    /// Breaks `ReuseAfterRelease`: offers a block again. Returns false when it was free.
    #[cfg(feature = "planted-bugs")]
    pub(super) fn reuse_early(&mut self, offset: usize) -> bool {
        let was_used = self.used.clear(offset);
        if was_used {
            self.cursor = self.cursor.min(offset);
        }
        was_used
    }
}
