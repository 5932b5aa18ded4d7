//! The file of `redb` for who only looks: what `redb` writes to open a database, and to repair one
//! that was not closed, stays in memory.

use std::{collections::BTreeMap, fs::File, io, os::unix::fs::FileExt, sync::Arc};

use onefold_core::BLOCK_BYTES;
use parking_lot::Mutex;
use redb::StorageBackend;

use super::trees::{LONGEST, Trees};

/// The file, and the blocks that would have been written.
#[derive(Debug)]
pub(super) struct Look {
    file: File,
    trees: Arc<Trees>,
    changed: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    bytes: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
}

impl Look {
    pub(super) fn at(file: File, trees: Arc<Trees>) -> io::Result<Look> {
        let bytes = file.metadata()?.len();
        Ok(Look { file, trees, changed: Mutex::new(Changed { bytes, blocks: BTreeMap::new() }) })
    }

    /// A block as it is in the file; zeroes behind its end.
    fn block(&self, number: u64) -> io::Result<Box<[u8; BLOCK_BYTES]>> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        let mut done = 0;
        while done < BLOCK_BYTES {
            match self.file.read_at(&mut block[done..], number * BLOCK_BYTES as u64 + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(block)
    }

    fn fill(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let changed = self.changed.lock();
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > changed.bytes) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if changed.blocks.is_empty() {
            return self.file.read_exact_at(bytes, offset);
        }
        for (number, from, to, n) in parts(offset, bytes.len()) {
            let block = changed
                .blocks
                .get(&number)
                .map_or_else(|| self.block(number), |block| Ok(block.clone()))?;
            bytes[to..to + n].copy_from_slice(&block[from..from + n]);
        }
        Ok(())
    }
}

/// The blocks that a range touches: each with its number, where the part in the range begins in the
/// block, and where in the range, and how long it is.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES as u64) as usize;
        let n = (BLOCK_BYTES - within).min(len - done);
        let part = (n > 0).then_some((at / BLOCK_BYTES as u64, within, done, n));
        done += n;
        part
    })
}

impl StorageBackend for Look {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changed.lock().bytes)
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if len > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len];
        self.fill(offset, &mut bytes)?;
        let file_bytes = self.changed.lock().bytes;
        self.trees.read(offset, &bytes, file_bytes, &|at, into| self.fill(at, into))?;
        Ok(bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changed.lock().bytes = len;
        Ok(())
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.trees.write(offset, data.len());
        let mut changed = self.changed.lock();
        for (number, to, from, n) in parts(offset, data.len()) {
            let mut block =
                changed.blocks.remove(&number).map_or_else(|| self.block(number), Ok)?;
            block[to..to + n].copy_from_slice(&data[from..from + n]);
            changed.blocks.insert(number, block);
        }
        changed.bytes = changed.bytes.max(offset + data.len() as u64);
        Ok(())
    }
}
