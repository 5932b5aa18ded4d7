//! Usage counts as one list: blocks, each with its length and checksum, of containers in the order of
//! their numbers. The form of archives whose label does not have counts in pages.
//!
//! In a sealed archive the tag of each block proves the one before, and the frame keeps a half of the last
//! one's. So no block of another list of the same number is taken.

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{Error, File, Result};

use crate::{
    container::Pace,
    format::{
        ContainerId, Identity,
        bytes::{Reader as Fields, Writer, corrupt},
        sealing::What,
    },
    operations_log::Archive,
    tables::NamedCounts,
};

use super::proof::{Written, expected};

pub(super) const MAGIC: &[u8; 8] = b"ONEFCNTS";

/// Bytes of counts with one checksum.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes a list.
pub(super) struct ListWriter {
    archive: Arc<Archive>,
    file: Arc<dyn File>,
    number: u64,
    at: u64,
    block: Writer,
    /// Of the block before.
    last: u64,
}

/// What a block's tag proves beside its bytes: in a sealed archive the half of the tag of the block
/// before.
fn beside(identity: &Identity, last: u64) -> Vec<u8> {
    identity.sealing().map(|_| last.to_le_bytes().to_vec()).unwrap_or_default()
}

impl ListWriter {
    pub(super) fn over(
        archive: &Arc<Archive>,
        file: Arc<dyn File>,
        number: u64,
    ) -> Result<ListWriter> {
        let mut w = Writer::default();
        w.raw(MAGIC).u64(number);
        file.write_at(0, &w.0)?;
        Ok(ListWriter {
            archive: archive.clone(),
            file,
            number,
            at: w.0.len() as u64,
            block: Writer::default(),
            last: 0,
        })
    }

    pub(super) fn push(&mut self, id: ContainerId, counts: &[u16]) -> Result<()> {
        self.block.u64(id.0).u32(counts.len() as u32);
        counts.iter().for_each(|count| {
            self.block.u16(*count);
        });
        if self.block.0.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    fn write_block(&mut self) -> Result<()> {
        let mut block = std::mem::take(&mut self.block.0);
        let identity = &self.archive.identity;
        block.resize(block.len() + identity.tail(), 0);
        let (place, beside) = ((self.number, self.at), beside(identity, self.last));
        let checksum = identity.seal(What::Counts, place, &beside, &mut block)?;
        self.last = checksum;
        let mut w = Writer::default();
        w.u32(block.len() as u32).u64(checksum).raw(&block);
        self.file.write_at(self.at, &w.0)?;
        self.at += w.0.len() as u64;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Written> {
        if !self.block.0.is_empty() {
            self.write_block()?;
        }
        // An empty block is the end.
        self.write_block()?;
        self.file.sync()?;
        self.archive.files.sync_names()?;
        let proof = self.archive.identity.proof(self.last);
        Ok(Written { files: BTreeSet::from([self.number]), proof })
    }
}

/// The file has its number, and is not the one that a frame names.
pub(super) fn others() -> Error {
    corrupt("the usage counts are not those that the log names: others were put in their place")
}

/// Reads a list in order.
pub(crate) struct ListReader {
    archive: Arc<Archive>,
    file: Arc<dyn File>,
    counts: NamedCounts,
    at: u64,
    /// Of the block before.
    last: u64,
    block: Vec<u8>,
    taken: usize,
    ended: bool,
    /// Asked before each block is read.
    pace: Pace,
}

impl ListReader {
    /// Opens it; all blocks are looked at once, so that damage is known before anything is made of
    /// it.
    pub(super) fn over(
        archive: &Arc<Archive>,
        file: Arc<dyn File>,
        counts: NamedCounts,
        pace: &Pace,
    ) -> Result<ListReader> {
        let mut header = [0; 16];
        file.read_at(0, &mut header)?;
        if header[..8] != *MAGIC || header[8..] != counts.number.to_le_bytes() {
            return Err(corrupt("the file of usage counts is another one"));
        }
        let reader = |file| ListReader {
            archive: archive.clone(),
            file,
            counts,
            at: 16,
            last: 0,
            block: Vec::new(),
            taken: 0,
            ended: false,
            pace: pace.clone(),
        };
        let mut look = reader(file.clone());
        while look.next_block()? {}
        Ok(reader(file))
    }

    fn next_block(&mut self) -> Result<bool> {
        let mut header = [0; 12];
        let damaged = || corrupt("the file of usage counts is damaged");
        if self.ended {
            return Ok(false);
        }
        self.pace.ask(BLOCK_BYTES as u64)?;
        if self.file.read_at(self.at, &mut header)? < header.len() {
            return Err(damaged());
        }
        let mut r = Fields(&header, None);
        let (length, checksum) = (r.u32()? as usize, r.u64()?);
        // A block is one container longer than its limit at most.
        if length > BLOCK_BYTES + 12 + 2 * usize::from(u16::MAX) + 2 {
            return Err(damaged());
        }
        self.block.resize(length, 0);
        let (identity, place) = (&self.archive.identity, (self.counts.number, self.at));
        let beside = beside(identity, self.last);
        if self.file.read_at(self.at + 12, &mut self.block)? < length
            || !identity.open(What::Counts, place, &beside, &mut self.block, checksum)
        {
            return Err(damaged());
        }
        self.block.truncate(length - identity.tail());
        self.at += 12 + length as u64;
        (self.taken, self.last) = (0, checksum);
        self.ended = self.block.is_empty();
        let is_named = expected(&self.archive, self.counts).is_none_or(|proof| proof == checksum);
        if self.ended && !is_named {
            return Err(others());
        }
        Ok(!self.ended)
    }

    pub(super) fn next(&mut self) -> Result<Option<(ContainerId, Vec<u16>)>> {
        while self.taken == self.block.len() {
            if !self.next_block()? {
                return Ok(None);
            }
        }
        let mut r = Fields(&self.block[self.taken..], None);
        let (id, n) = (ContainerId(r.u64()?), r.u32()? as usize);
        let (counts, _) = r.take(2 * n)?.as_chunks::<2>();
        let counts = counts.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
        self.taken = self.block.len() - r.0.len();
        Ok(Some((id, counts)))
    }
}
