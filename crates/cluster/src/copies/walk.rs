//! The blocks of a snapshot that are not as in another one, object by object.
//!
//! An object that both read by one object of one layer is skipped: a layer never changes. Of others the entries are
//! compared. Those that name one chunk, and have nothing of their own beside it, hold the same.

use std::{collections::BTreeMap, ops::Range};

use onefold_core::Result;
use onefold_stream::{Piece, PieceKind, Pieces};

use crate::{
    format::{BLOCK, entry::Entry},
    kernel::Kernel,
    rules::Rule,
    volume::{Volume, entries_of, objects_of},
};

/// Objects that one step looks at.
const OBJECTS_A_STEP: usize = 64;

/// A snapshot that is looked through, and perhaps one that it is compared with.
pub(super) struct Walk<'v> {
    kernel: &'v Kernel,
    of: &'v Volume,
    base: Option<&'v Volume>,
    /// The objects that either may have, in their order: those that it has when it is attached. What a layer hands
    /// down later was there before.
    indexes: Vec<u64>,
    object_bytes: u64,
    blocks: u64,
}

impl<'v> Walk<'v> {
    pub(super) fn new(kernel: &'v Kernel, of: &'v Volume, base: Option<&'v Volume>) -> Walk<'v> {
        let object_bytes = u64::from(kernel.format().object_bytes);
        let mut indexes = objects_of(of);
        indexes.extend(base.into_iter().flat_map(objects_of));
        indexes.sort_unstable();
        indexes.dedup();
        let blocks = of.bytes() / u64::from(BLOCK);
        Walk { kernel, of, base, indexes, object_bytes, blocks }
    }

    /// The pieces from a block on that are no holes, or not as in the base. A step of bounded length.
    pub(super) fn pieces(&self, from: u64) -> Result<Pieces> {
        let of_object = self.object_bytes / u64::from(BLOCK);
        let first = self.indexes.partition_point(|index| (index + 1) * of_object <= from);
        let mut found = Pieces { pieces: Vec::new(), next: self.blocks };
        for (looked, index) in self.indexes[first..].iter().enumerate() {
            let begins = index * of_object;
            if begins >= self.blocks {
                break;
            }
            if looked == OBJECTS_A_STEP {
                found.next = begins.max(from);
                break;
            }
            let blocks = from.max(begins)..self.blocks.min(begins + of_object);
            self.object(*index, blocks, &mut found.pieces)?;
        }
        Ok(found)
    }

    /// The same of one object alone, that of the block.
    pub(super) fn one(&self, from: u64) -> Result<Pieces> {
        let mut found = Pieces { pieces: Vec::new(), next: self.end_of_object(from) };
        let index = from / (self.object_bytes / u64::from(BLOCK));
        self.object(index, from..found.next, &mut found.pieces)?;
        Ok(found)
    }

    /// The end of the object that a block is in, or of the snapshot.
    pub(super) fn end_of_object(&self, block: u64) -> u64 {
        let of_object = self.object_bytes / u64::from(BLOCK);
        ((block / of_object + 1) * of_object).min(self.blocks)
    }

    fn object(&self, index: u64, blocks: Range<u64>, pieces: &mut Vec<Piece>) -> Result<()> {
        let now = entries_of(self.of, index)?;
        let before = self.base.map(|base| entries_of(base, index)).transpose()?.flatten();
        if let (Some(now), Some(before)) = (&now, &before)
            && now.holder == before.holder
        {
            return Ok(());
        }
        let (now, before) = (
            now.map(|now| now.entries).unwrap_or_default(),
            before.map(|before| before.entries).unwrap_or_default(),
        );
        let begins = index * self.object_bytes / u64::from(BLOCK);
        for range in self.differing(&now, &before) {
            let range = begins + u64::from(range.start)..begins + u64::from(range.end);
            for block in range.start.max(blocks.start)..range.end.min(blocks.end) {
                add(pieces, block, kind(&now, (block - begins) as u32));
            }
        }
        Ok(())
    }

    /// The blocks of an object that two maps may give differently, in their order.
    fn differing(
        &self,
        now: &BTreeMap<u32, Entry>,
        before: &BTreeMap<u32, Entry>,
    ) -> Vec<Range<u32>> {
        let mut ranges = Vec::new();
        for (offset, entry) in now.iter().chain(before).filter(|(_, entry)| !is_zeroes(entry)) {
            let same = |map: &BTreeMap<u32, Entry>| {
                map.get(offset).filter(|entry| !is_zeroes(entry)).cloned()
            };
            let mask = match (same(now), same(before)) {
                (Some(now), Some(before)) => self.compare(&now, &before),
                _ => u16::MAX,
            };
            let (first, count) = (offset / BLOCK, entry.length.div_ceil(BLOCK));
            ranges.extend(
                (0..count)
                    .filter(|block| mask >> block & 1 == 1)
                    .map(|block| first + block..first + block + 1),
            );
        }
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup();
        ranges
    }

    /// The blocks that two chunks of one place may give differently.
    fn compare(&self, now: &Entry, before: &Entry) -> u16 {
        let chunk = |entry: &Entry| entry.base.map(|base| base.chunk.id);
        if now.length != before.length || chunk(now) != chunk(before) {
            return u16::MAX;
        }
        // What stands in an object of a clean chunk is that chunk.
        let own = |entry: &Entry| if entry.dirty { entry.mask } else { 0 };
        if self.kernel.keeps(Rule::DirtyBlocksSent) { own(now) | own(before) } else { 0 }
    }
}

/// True for an entry that holds zeroes.
fn is_zeroes(entry: &Entry) -> bool {
    entry.base.is_none() && entry.mask == 0
}

/// The kind of what a block of an object holds.
fn kind(entries: &BTreeMap<u32, Entry>, block: u32) -> PieceKind {
    let at = block * BLOCK;
    let covering = entries.range(..=at).next_back();
    let data = covering.is_some_and(|(offset, entry)| {
        let within = at - offset;
        within < entry.length && (entry.base.is_some() || entry.mask >> (within / BLOCK) & 1 == 1)
    });
    if data { PieceKind::Data } else { PieceKind::Hole }
}

fn add(pieces: &mut Vec<Piece>, block: u64, kind: PieceKind) {
    match pieces.last_mut() {
        Some(last) if last.kind == kind && last.first + last.blocks == block => last.blocks += 1,
        _ => pieces.push(Piece { first: block, blocks: 1, kind }),
    }
}
