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

/// Gives a receive what its base has behind its cursor, or nothing without one.
///
/// # Errors
/// `Corrupt` when the base can't be read there; else the store's.
pub(super) fn forget_rest(copies: &Copies<'_>, id: VolumeId, receiving: &Receiving) -> Result<()> {
    let (cursor, end) = (receiving.cursor, copies.0.engine.volume(id)?.blocks);
    if cursor >= end {
        return Ok(());
    }
    let Some(base) = receiving.base else {
        return become_hole(copies, id, cursor..end);
    };
    // The checkpoint of the cursor carries into the tables what lies behind it, too.
    let asked = copies.0.changes().make(|| copies.0.acts().cursor(id, cursor, &[], now_ms()))?;
    copies.0.perform(asked)?;
    let mut at = cursor;
    while at < end {
        let found = Transfers::of(&copies.0.engine).since_base(base, id, at)?;
        for piece in found.pieces {
            become_base(copies, id, base, piece.first..piece.first + piece.blocks)?;
        }
        at = found.next;
    }
    Ok(())
}

fn become_hole(copies: &Copies<'_>, id: VolumeId, blocks: Range<u64>) -> Result<()> {
    let (first, blocks) = (blocks.start, blocks.end - blocks.start);
    copies.apply(id, &Frame { first, blocks, content: Content::Hole })
}

/// Writes what the base has.
fn become_base(
    copies: &Copies<'_>,
    id: VolumeId,
    base: VolumeId,
    blocks: Range<u64>,
) -> Result<()> {
    let there = copies.0.engine.volume(base)?.blocks.clamp(blocks.start, blocks.end);
    let mut at = blocks.start;
    while at < there {
        for extent in copies.0.engine.extents(base, Lba(at), there - at, EXTENTS)? {
            let end = at + extent.bytes / 4096;
            match extent.kind {
                ExtentKind::Hole => become_hole(copies, id, at..end)?,
                ExtentKind::Zero => {
                    let content = Content::Zeroes;
                    copies.apply(id, &Frame { first: at, blocks: end - at, content })?;
                }
                ExtentKind::Data => copy_from(copies, base, id, at..end)?,
            }
            at = end;
        }
    }
    if there < blocks.end { become_hole(copies, id, there..blocks.end) } else { Ok(()) }
}

fn copy_from(copies: &Copies<'_>, base: VolumeId, id: VolumeId, blocks: Range<u64>) -> Result<()> {
    for first in blocks.clone().step_by(STEP_BLOCKS as usize) {
        let count = STEP_BLOCKS.min(blocks.end - first);
        let mut content = Block::zeroed_vec(count as usize);
        let mut reads = [BlockRead { first: Lba(first), into: &mut content, result: Ok(()) }];
        copies.0.engine.read(base, &mut reads);
        let [BlockRead { result, .. }] = reads;
        result.map_err(lost)?;
        let content = Content::Data(onefold_core::block::bytes(&content).to_vec());
        copies.apply(id, &Frame { first, blocks: count, content })?;
    }
    Ok(())
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
