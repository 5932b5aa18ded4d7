//! A file in memory.

use onefold_core::{File, Result};

/// A file that no disk has: for counts, when the disk is full.
#[derive(Default)]
pub(super) struct MemoryFile(parking_lot::Mutex<Vec<u8>>);

impl File for MemoryFile {
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
