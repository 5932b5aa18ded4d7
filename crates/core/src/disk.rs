//! The disk, as engines see it: blocks, batches, one flush, and nothing durable without it.

use crate::{Block, Error, Kind, Pba, Result};

/// The kind of content of a written block, so that write volume can be counted and device models
/// can price it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A client's block as it is.
    Data,
    /// A block that holds records: with a client's block compressed beside them, or records alone.
    Carrier,
    /// A page of a structured table, of the index, or of the zone list.
    Table,
    /// A superblock.
    Super,
}

/// One block to be written, and what it is.
#[derive(Clone, Copy, Debug)]
pub struct BlockRef<'a> {
    /// The bytes.
    pub block: &'a Block,
    /// The kind of their content.
    pub class: Class,
}

/// Blocks to be written one after the other from `at` on.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Where the first block goes.
    pub at: Pba,
    /// The blocks, gathered from wherever they lie in memory.
    pub blocks: &'a [BlockRef<'a>],
}

/// A read of consecutive blocks; each read of a batch has its own result.
#[derive(Debug)]
pub struct Read<'a> {
    /// The first block.
    pub at: Pba,
    /// Where the blocks go; unspecified after an error.
    pub into: &'a mut [Block],
    /// Set by [`Disk::read`].
    pub result: Result<()>,
}

impl<'a> Read<'a> {
    /// A read of `into.len()` blocks from `at`.
    pub fn new(at: Pba, into: &'a mut [Block]) -> Read<'a> {
        Read { at, into, result: Ok(()) }
    }
}

/// A disk of 4 KiB blocks with a volatile cache.
///
/// Atomicity: 512 bytes. Order: none between writes that are not durable. A write that fails leaves
/// any of its blocks old, new or torn. After a failed [`flush`](Disk::flush) the unflushed writes
/// are lost, and a later flush does not bring them back. All methods may be called from many
/// threads at once.
pub trait Disk: Send + Sync {
    /// Capacity in blocks. While the disk is open it rises by [`extend`](Disk::extend) alone, and
    /// never falls.
    fn blocks(&self) -> u64;

    /// Reads a batch; returns when all of it is done, each read with its own `result`.
    fn read(&self, reads: &mut [Read<'_>]);

    /// Writes a batch, in any order; returns when all of it is done. Not durable before the next
    /// [`flush`](Disk::flush) that starts after the return.
    ///
    /// # Errors
    /// The first failure; [`Kind::NoSpace`](crate::Kind::NoSpace) when the host has no room for it.
    fn write(&self, runs: &[Run<'_>]) -> Result<()>;

    /// Writes one run, which is durable on return. Other writes do not become durable by this.
    ///
    /// # Errors
    /// As [`write`](Disk::write).
    fn write_durable(&self, run: &Run<'_>) -> Result<()>;

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// The failure; it must not be retried.
    fn flush(&self) -> Result<()>;

    /// Reserves space of the host for `blocks` blocks from `at` on, so that later writes there do
    /// not fail for lack of it. Does nothing where space was reserved before.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::Kind::NoSpace) when the host has none.
    fn allocate(&self, at: Pba, blocks: u64) -> Result<()>;

    /// Lets the capacity rise to `blocks`; without, to what the host gives by now: a device is asked
    /// for its size again, a file for its length. Gives the capacity, which is durable. With
    /// `reserve`, writes to the blocks from `from` on do not fail for lack of the host's space
    /// afterwards.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::Kind::NoSpace) when the host has none, and nothing has changed;
    /// [`Kind::InvalidInput`](crate::Kind::InvalidInput) beyond the end of a device;
    /// [`Kind::Unsupported`](crate::Kind::Unsupported) for a disk that has one size for ever.
    fn extend(&self, from: Pba, blocks: Option<u64>, reserve: bool) -> Result<u64> {
        let _ = (from, reserve);
        match blocks {
            Some(blocks) if blocks > self.blocks() => {
                Err(Error::new(Kind::Unsupported, "the disk can't be made larger while it is open"))
            }
            _ => Ok(self.blocks()),
        }
    }
}
