//! The data file of an embedded store, in blocks of 4 KiB: which are free, writing, and giving back
//! to the host.

use std::{fs::File, os::unix::fs::FileExt};

use onefold_core::{BLOCK_BYTES, Error, Kind, Result, object::Refusal};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};

/// Runs of free blocks that are worth a system call to give back to the host.
const PUNCH: u32 = 8;

/// Blocks that a file grows by at least: 4 MiB.
const GROW: usize = 1024;

/// The file, and which of its blocks are in use.
pub(super) struct Blocks {
    file: File,
    /// A bit for each block: in use, or let go by a commit that is not durable.
    used: Vec<u64>,
    taken: u64,
    /// Where the search goes on.
    cursor: usize,
    /// Let go by the transaction at work.
    leaving: Vec<u32>,
    /// Something was written since the last sync.
    dirty: bool,
}

impl Blocks {
    /// The blocks of a data file, of which these are in use. Without `writes` no memory is needed
    /// for the other blocks.
    ///
    /// # Errors
    /// `Corrupt` when the file does not have them, and those of the system.
    pub(super) fn of(file: File, used: &[u32], writes: bool) -> Result<Blocks> {
        // The blocks that a folder names were written before they were named. A number beyond the
        // end of the file would need memory for all blocks before it.
        let end = file
            .metadata()
            .map_err(|e| Error::from_io("the data file of the store", e))?
            .len()
            .div_ceil(BLOCK_BYTES as u64);
        if let Some(block) = used.iter().find(|block| u64::from(**block) >= end) {
            return Err(Error::new(
                Kind::Corrupt,
                format!("the tables of the store name block {block}, and its data file has {end}"),
            ));
        }
        let mut blocks = Blocks {
            file,
            used: Vec::new(),
            taken: 0,
            cursor: 0,
            leaving: Vec::new(),
            dirty: false,
        };
        if writes {
            used.iter().for_each(|block| blocks.take(*block));
        } else {
            blocks.taken = used.len() as u64;
        }
        Ok(blocks)
    }

    fn take(&mut self, block: u32) {
        let at = block as usize / 64;
        if self.used.len() <= at {
            self.used.resize((at + 1).next_multiple_of(GROW / 64), 0);
        }
        self.taken += u64::from(self.used[at] >> (block % 64) & 1 == 0);
        self.used[at] |= 1 << (block % 64);
    }

    fn is_free(&self, block: usize) -> bool {
        self.used.get(block / 64).is_none_or(|word| word >> (block % 64) & 1 == 0)
    }

    /// A free block, near the last one that was given.
    fn find(&mut self) -> u32 {
        let end = self.used.len() * 64;
        for start in [self.cursor, 0] {
            let mut block = start;
            while block < end {
                if block.is_multiple_of(64) && self.used[block / 64] == u64::MAX {
                    block += 64;
                } else if self.is_free(block) {
                    self.cursor = block + 1;
                    return block as u32;
                } else {
                    block += 1;
                }
            }
        }
        self.cursor = end + 1;
        end as u32
    }

    /// Writes blocks into free places; all of them or none.
    ///
    /// # Errors
    /// `Full` when the host has no room.
    pub(super) fn write(&mut self, contents: &[&[u8]]) -> Result<Vec<u32>, Refusal> {
        let places: Vec<u32> = contents
            .iter()
            .map(|_| {
                let block = self.find();
                self.take(block);
                block
            })
            .collect();
        let mut from = 0;
        while from < places.len() {
            // Neighbours go out together.
            let mut to = from + 1;
            while to < places.len() && places[to] == places[to - 1] + 1 {
                to += 1;
            }
            let run = contents[from..to].concat();
            if let Err(e) =
                self.file.write_all_at(&run, u64::from(places[from]) * BLOCK_BYTES as u64)
            {
                places.iter().for_each(|block| self.free(*block));
                let error = Error::from_io("the data file of the store", e);
                return Err(if error.kind() == Kind::NoSpace {
                    Refusal::Full
                } else {
                    Refusal::Failed(error)
                });
            }
            from = to;
        }
        self.dirty |= !places.is_empty();
        Ok(places)
    }

    fn free(&mut self, block: u32) {
        // A damaged folder may name a block twice.
        if !self.is_free(block as usize) {
            self.used[block as usize / 64] &= !(1 << (block % 64));
            self.taken -= 1;
        }
    }

    /// Notes that a block is let go by the transaction at work.
    pub(super) fn let_go(&mut self, block: u32) {
        self.leaving.push(block);
    }

    /// Makes what was written durable.
    pub(super) fn sync(&mut self) -> Result<()> {
        if self.dirty {
            self.file.sync_data().map_err(|e| Error::from_io("the data file of the store", e))?;
            self.dirty = false;
        }
        Ok(())
    }

    /// After the commit: what was let go may be used again, and long runs go back to the host.
    pub(super) fn release(&mut self) -> Result<()> {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.sort_unstable();
        leaving.iter().for_each(|block| self.free(*block));
        for run in leaving.chunk_by(|one, next| *next == *one + 1) {
            if run.len() >= PUNCH as usize {
                let (at, bytes) =
                    (u64::from(run[0]) * BLOCK_BYTES as u64, (run.len() * BLOCK_BYTES) as u64);
                // A file system that can't keeps the space for later blocks.
                let _ = fallocate(
                    &self.file,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    at,
                    bytes,
                );
            }
        }
        Ok(())
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.taken * BLOCK_BYTES as u64
    }

    /// Bytes that the host has left.
    pub(super) fn host_free(&self) -> Result<u64> {
        let there = fstatvfs(&self.file)
            .map_err(|e| Error::from_io("the file system of the store", e.into()))?;
        Ok(there.f_bavail * there.f_frsize)
    }
}
