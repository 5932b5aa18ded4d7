//! What a receive that goes on has behind its cursor.
//!
//! After a crash that may be blocks which a sender named by their fingerprints, and never proved to
//! have. The stream that goes on need not speak of them: it tells what is not as in the base. So they
//! go before its first frame comes, and what lies there is as in the base again, or nothing.
//!
//! | crash | what is found |
//! |---|---|
//! | before the cursor of the stream that goes on rises | the receive as before; all this is done once more |
//! | later | blocks behind the cursor are of that stream, or go when the next one begins |

use std::ops::Range;

use onefold_core::{Block, BlockRead, Error, ExtentKind, Lba, Result, VolumeId};

use super::{Copies, snapshots::now_ms};
use crate::{Content, Frame, Receiving, Transfers, transfer::is_damage};

/// Blocks that are read and written together.
const STEP_BLOCKS: u64 = 256;

/// Extents of the base that are asked for together.
const EXTENTS: usize = 1024;

impl Copies<'_> {
    /// Gives a receive what its base has behind its cursor, or nothing without one.
    ///
    /// # Errors
    /// `Corrupt` when the base can't be read there; else the store's.
    pub(super) fn forget_rest(&self, id: VolumeId, receiving: &Receiving) -> Result<()> {
        let (cursor, end) = (receiving.cursor, self.0.engine.volume(id)?.blocks);
        if cursor >= end {
            return Ok(());
        }
        let Some(base) = receiving.base else {
            return self.become_hole(id, cursor..end);
        };
        // The checkpoint of the cursor carries into the tables what lies behind it, too.
        let asked = self.0.change(|| self.0.acts().cursor(id, cursor, &[], now_ms()))?;
        self.0.perform(asked)?;
        let mut at = cursor;
        while at < end {
            let found = Transfers::of(&self.0.engine).since_base(base, id, at)?;
            for piece in found.pieces {
                self.become_base(id, base, piece.first..piece.first + piece.blocks)?;
            }
            at = found.next;
        }
        Ok(())
    }

    fn become_hole(&self, id: VolumeId, blocks: Range<u64>) -> Result<()> {
        let (first, blocks) = (blocks.start, blocks.end - blocks.start);
        self.apply(id, &Frame { first, blocks, content: Content::Hole })
    }

    /// Writes what the base has.
    fn become_base(&self, id: VolumeId, base: VolumeId, blocks: Range<u64>) -> Result<()> {
        let there = self.0.engine.volume(base)?.blocks.clamp(blocks.start, blocks.end);
        let mut at = blocks.start;
        while at < there {
            for extent in self.0.engine.extents(base, Lba(at), there - at, EXTENTS)? {
                let end = at + extent.bytes / 4096;
                match extent.kind {
                    ExtentKind::Hole => self.become_hole(id, at..end)?,
                    ExtentKind::Zero => {
                        let content = Content::Zeroes;
                        self.apply(id, &Frame { first: at, blocks: end - at, content })?;
                    }
                    ExtentKind::Data => self.copy_from(base, id, at..end)?,
                }
                at = end;
            }
        }
        if there < blocks.end { self.become_hole(id, there..blocks.end) } else { Ok(()) }
    }

    fn copy_from(&self, base: VolumeId, id: VolumeId, blocks: Range<u64>) -> Result<()> {
        for first in blocks.clone().step_by(STEP_BLOCKS as usize) {
            let count = STEP_BLOCKS.min(blocks.end - first);
            let mut content = Block::zeroed_vec(count as usize);
            let mut reads = [BlockRead { first: Lba(first), into: &mut content, result: Ok(()) }];
            self.0.engine.read(base, &mut reads);
            let [BlockRead { result, .. }] = reads;
            result.map_err(lost)?;
            let content = Content::Data(onefold_core::block::bytes(&content).to_vec());
            self.apply(id, &Frame { first, blocks: count, content })?;
        }
        Ok(())
    }
}

fn lost(error: Error) -> Error {
    if is_damage(&error) {
        error.context(
            "the receive can't go on, as its base is damaged: send the snapshot from its beginning",
        )
    } else {
        error
    }
}
