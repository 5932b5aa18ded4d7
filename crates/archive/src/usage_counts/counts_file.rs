//! The file of usage counts: blocks, each with its length and checksum, of containers in the order
//! of their numbers.

use std::sync::Arc;

use onefold_core::Result;

use crate::{
    container::Pace,
    format::{
        ContainerId,
        bytes::{Reader as Fields, Writer, corrupt},
        names::fresh,
        sealing::What,
    },
    operations_log::Archive,
};

/// Counts saturate: what reached this is never freed.
pub(crate) const MOST: u16 = u16::MAX;

const COUNTS_MAGIC: &[u8; 8] = b"ONEFCNTS";

pub(crate) fn counts_name(number: u64) -> String {
    format!("counts-{number:010}")
}

/// The number of a file of counts, by its name; `None` for other files.
pub(crate) fn counts_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("counts-")?.parse().ok()?;
    (counts_name(number) == name).then_some(number)
}

/// The highest number that files of counts have.
pub(crate) fn highest_counts(names: &[String]) -> u64 {
    // A name that somebody made has no say in what a record can hold.
    let numbers = names.iter().filter_map(|name| counts_number(name));
    numbers.filter(|&number| number < 1 << 60).max().unwrap_or(0)
}

/// Bytes of counts with one checksum.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes a file of counts: blocks, each with its length and checksum, of containers in the order
/// of their numbers.
pub(crate) struct CountsWriter {
    archive: Arc<Archive>,
    file: Arc<dyn onefold_core::File>,
    number: u64,
    at: u64,
    block: Writer,
}

impl CountsWriter {
    pub(super) fn create(archive: &Arc<Archive>, number: u64) -> Result<CountsWriter> {
        CountsWriter::over(archive, fresh(&*archive.files, &counts_name(number))?, number)
    }

    pub(crate) fn over(
        archive: &Arc<Archive>,
        file: Arc<dyn onefold_core::File>,
        number: u64,
    ) -> Result<CountsWriter> {
        let mut w = Writer::default();
        w.raw(COUNTS_MAGIC).u64(number);
        file.write_at(0, &w.0)?;
        Ok(CountsWriter {
            archive: archive.clone(),
            file,
            at: w.0.len() as u64,
            number,
            block: Writer::default(),
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
        let checksum = identity.seal(What::Counts, (self.number, self.at), &[], &mut block)?;
        let mut w = Writer::default();
        w.u32(block.len() as u32).u64(checksum).raw(&block);
        self.file.write_at(self.at, &w.0)?;
        self.at += w.0.len() as u64;
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<()> {
        if !self.block.0.is_empty() {
            self.write_block()?;
        }
        // An empty block is the end.
        self.write_block()?;
        self.file.sync()?;
        self.archive.files.sync_names()
    }
}

/// Reads a file of counts in order.
pub(crate) struct CountsReader {
    archive: Arc<Archive>,
    file: Arc<dyn onefold_core::File>,
    number: u64,
    at: u64,
    block: Vec<u8>,
    taken: usize,
    ended: bool,
    /// Asked before each block is read.
    pace: Pace,
}

impl CountsReader {
    /// Opens it; all blocks are looked at once, so that damage is known before anything is made of
    /// it.
    pub(crate) fn open(archive: &Arc<Archive>, number: u64, pace: &Pace) -> Result<CountsReader> {
        CountsReader::over(archive, archive.files.open(&counts_name(number))?, number, pace)
    }

    pub(crate) fn over(
        archive: &Arc<Archive>,
        file: Arc<dyn onefold_core::File>,
        number: u64,
        pace: &Pace,
    ) -> Result<CountsReader> {
        let mut header = [0; 16];
        file.read_at(0, &mut header)?;
        if header[..8] != *COUNTS_MAGIC || header[8..] != number.to_le_bytes() {
            return Err(corrupt("the file of usage counts is another one"));
        }
        let reader = |file| CountsReader {
            archive: archive.clone(),
            file,
            number,
            at: 16,
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
        let (identity, place) = (&self.archive.identity, (self.number, self.at));
        if self.file.read_at(self.at + 12, &mut self.block)? < length
            || !identity.open(What::Counts, place, &[], &mut self.block, checksum)
        {
            return Err(damaged());
        }
        self.block.truncate(length - identity.tail());
        self.at += 12 + length as u64;
        self.taken = 0;
        self.ended = self.block.is_empty();
        Ok(!self.ended)
    }

    pub(crate) fn next(&mut self) -> Result<Option<(ContainerId, Vec<u16>)>> {
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

/// A file that no disk has: for counts, when the disk is full.
#[derive(Default)]
pub(crate) struct MemoryFile(parking_lot::Mutex<Vec<u8>>);

impl onefold_core::File for MemoryFile {
    fn bytes(&self) -> Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let bytes = self.0.lock();
        let from = bytes.get(at as usize..).unwrap_or_default();
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn write_at(&self, at: u64, data: &[u8]) -> Result<()> {
        let (mut bytes, at) = (self.0.lock(), at as usize);
        let end = bytes.len().max(at + data.len());
        bytes.resize(end, 0);
        bytes[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn set_bytes(&self, bytes: u64) -> Result<()> {
        self.0.lock().resize(bytes as usize, 0);
        Ok(())
    }

    fn reserve(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}
