//! The data file of an embedded store, in blocks of 4 KiB: which are free, writing, and giving back
//! to the host.

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt, sync::Arc};

use onefold_core::{BLOCK_BYTES, Error, Kind, Result, object::Refusal};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};

use crate::file_disk::standing::Standing;

/// Runs of free blocks that are worth a system call to give back to the host.
const PUNCH: u32 = 8;

/// Words of 64 blocks whose bits are kept together: 4 MiB.
const TOGETHER: usize = 16;

/// Blocks of these.
const STRETCH: u32 = 64 * TOGETHER as u32;

/// Blocks that a folder can name: an entry says one more, in 32 bits.
const BLOCKS_MAX: u32 = u32::MAX;

/// A bit for each block: in use, or let go by a commit that is not durable. A folder may name
/// blocks far apart in a file of holes, so memory is taken for the stretches in which something is
/// used.
#[derive(Default)]
struct Used(BTreeMap<u32, Box<[u64; TOGETHER]>>);

impl Used {
    fn has(&self, block: u32) -> bool {
        self.word(block) >> (block % 64) & 1 != 0
    }

    /// The bits of a block and those beside it.
    fn word(&self, block: u32) -> u64 {
        let stretch = self.0.get(&(block / STRETCH));
        stretch.map_or(0, |words| words[(block % STRETCH / 64) as usize])
    }

    /// True when it was not in use.
    fn take(&mut self, block: u32) -> bool {
        let words = self.0.entry(block / STRETCH).or_default();
        let word = &mut words[(block % STRETCH / 64) as usize];
        let before = std::mem::replace(word, *word | 1 << (block % 64));
        before != *word
    }

    fn free(&mut self, block: u32) {
        let Some(words) = self.0.get_mut(&(block / STRETCH)) else { return };
        words[(block % STRETCH / 64) as usize] &= !(1 << (block % 64));
        if words.iter().all(|word| *word == 0) {
            self.0.remove(&(block / STRETCH));
        }
    }

    /// The first free block from `from` on, below `end`.
    fn first_free(&self, from: u32, end: u32) -> Option<u32> {
        let mut block = from;
        while block < end {
            let free = (!self.word(block) >> (block % 64)).trailing_zeros();
            if free < 64 - block % 64 {
                return Some(block + free).filter(|&block| block < end);
            }
            block = (block - block % 64).checked_add(64)?;
        }
        None
    }

    /// Behind the last stretch in which something is used.
    fn end(&self) -> u32 {
        let last = self.0.last_key_value().map(|(stretch, _)| *stretch);
        last.map_or(0, |last| (last + 1).saturating_mul(STRETCH))
    }
}

/// The file, and which of its blocks are in use.
pub(super) struct Blocks {
    file: File,
    /// Knows how long the file is, unless it is only looked at.
    owner: Option<Arc<Standing>>,
    used: Used,
    taken: u64,
    /// Where the search goes on.
    cursor: u32,
    /// Let go by the transaction at work.
    leaving: Vec<u32>,
    /// The same, to be overwritten first.
    erasing: Vec<u32>,
    /// Something was written since the last sync.
    dirty: bool,
}

impl Blocks {
    /// The blocks of a data file, of which these are in use. Without an owner, who
    /// writes and knows how long it must be, nothing is remembered but how many they are.
    ///
    /// # Errors
    /// `Corrupt` when the file does not have them, and those of the system.
    pub(super) fn of(file: File, used: &[u32], owner: Option<Arc<Standing>>) -> Result<Blocks> {
        let writes = owner.is_some();
        // The blocks that a folder names were written before they were named.
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
            owner,
            used: Used::default(),
            taken: 0,
            cursor: 0,
            leaving: Vec::new(),
            erasing: Vec::new(),
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
        self.taken += u64::from(self.used.take(block));
    }

    /// A free block, near the last one that was given; `None` when no entry can name one more.
    fn find(&mut self) -> Option<u32> {
        let end = self.used.end();
        let found = self.used.first_free(self.cursor, end);
        let found = found.or_else(|| self.used.first_free(0, end.min(self.cursor)));
        let found = found.unwrap_or(end);
        self.cursor = found.saturating_add(1);
        (found < BLOCKS_MAX).then_some(found)
    }

    /// Writes blocks into free places; all of them or none.
    ///
    /// # Errors
    /// `Full` when the host has no room.
    pub(super) fn write(&mut self, contents: &[&[u8]]) -> Result<Vec<u32>, Refusal> {
        let mut places: Vec<u32> = Vec::with_capacity(contents.len());
        while places.len() < contents.len() {
            let Some(block) = self.find() else {
                places.iter().for_each(|block| self.free(*block));
                return Err(Refusal::Full);
            };
            self.take(block);
            places.push(block);
        }
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
            if let Some(owner) = &self.owner {
                owner.rise((u64::from(places[to - 1]) + 1) * BLOCK_BYTES as u64);
            }
            from = to;
        }
        self.dirty |= !places.is_empty();
        Ok(places)
    }

    fn free(&mut self, block: u32) {
        // A damaged folder may name a block twice.
        if self.used.has(block) {
            self.used.free(block);
            self.taken -= 1;
        }
    }

    /// Notes that a block is let go by the transaction at work.
    pub(super) fn let_go(&mut self, block: u32) {
        self.leaving.push(block);
    }

    /// The same, and it is overwritten before it may be used again.
    pub(super) fn let_go_erased(&mut self, block: u32) {
        self.erasing.push(block);
    }

    /// Blocks to be overwritten when the transaction at work is durable.
    pub(super) fn to_erase(&self) -> &[u32] {
        &self.erasing
    }

    /// Takes over what an earlier process let go and may not have overwritten: what the file has, and nobody uses.
    pub(super) fn erase_later(&mut self, blocks: Vec<u32>) -> Result<()> {
        let there =
            self.file.metadata().map_err(|e| Error::from_io("the data file of the store", e))?;
        let end = there.len().div_ceil(BLOCK_BYTES as u64);
        self.erasing = blocks;
        self.erasing.retain(|block| u64::from(*block) < end && !self.used.has(*block));
        Ok(())
    }

    /// After the commit: overwrites what is to be, and makes that durable. It may be used again then.
    pub(super) fn erase(&mut self) -> Result<()> {
        let lost = |e| Error::from_io("the data file of the store", e);
        for &block in &self.erasing {
            let at = u64::from(block) * BLOCK_BYTES as u64;
            self.file.write_all_at(&[0; BLOCK_BYTES], at).map_err(lost)?;
        }
        self.file.sync_data().map_err(lost)?;
        std::mem::take(&mut self.erasing).into_iter().for_each(|block| self.free(block));
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_far_apart_are_found_and_take_little_memory() {
        let mut used = Used::default();
        let last = BLOCKS_MAX - 1;
        assert_eq!((used.end(), used.first_free(0, 0)), (0, None));
        assert!(used.take(last) && !used.take(last) && used.take(0) && used.has(last));
        assert_eq!((used.0.len(), used.end()), (2, BLOCKS_MAX));
        assert_eq!(used.first_free(last, used.end()), None);
        assert_eq!(used.first_free(0, used.end()), Some(1));
        (1..200).for_each(|block| assert!(used.take(block)));
        assert_eq!(used.first_free(0, used.end()), Some(200));
        assert_eq!((used.first_free(0, 200), used.first_free(130, 300)), (None, Some(200)));
        used.free(last);
        assert_eq!((used.has(last), used.end()), (false, STRETCH));
        (0..200).for_each(|block| used.free(block));
        assert!(used.0.is_empty());
    }
}
