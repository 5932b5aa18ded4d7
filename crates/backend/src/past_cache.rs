//! Large writes past the system's cache.
//!
//! The cache would copy what is written, and drop other pages for what nobody reads soon. The
//! system wants such writes at multiples of the disk's blocks, from memory that is aligned like
//! them: 4 KiB is enough everywhere. So what is written is gathered here, and filled up with zeroes.
//! A file system that does not take it is written to as usual.
//!
//! *Crash argument:* none of its own. A write past the cache is durable after `fdatasync` of the
//! file, as all others are: the disk has a cache too, and the place of the bytes is metadata.

use std::{
    fs::File,
    io::{Error, ErrorKind, Result},
    os::{fd::AsRawFd, unix::fs::FileExt},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use onefold_core::{BLOCK_BYTES, Block};
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};
use zerocopy::IntoBytes;

/// Blocks that are gathered for one write: a container of the usual size.
const BLOCKS_MAX: usize = 2048;

/// Shorter ones are written as usual: a put of a few bytes is soon read again.
const LEAST: usize = 128 << 10;

/// The kind of a file system in memory: its cache is all there is.
const IN_MEMORY: u64 = 0x0102_1994;

/// A second descriptor of a file, past the cache.
pub(crate) struct PastCache {
    file: File,
    /// The file system has not refused a write so far.
    works: AtomicBool,
    gathered: Mutex<Vec<Block>>,
}

impl PastCache {
    /// Opens a file that is open for writing once more; `None` where that is not possible.
    pub(crate) fn of(file: &File) -> Option<PastCache> {
        let stat = rustix::fs::fstatfs(file).ok()?;
        if stat.f_type as u64 == IN_MEMORY {
            return None;
        }
        let way = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let again = rustix::fs::openat(CWD, way, flags, Mode::empty()).ok()?;
        let (works, gathered) = (AtomicBool::new(true), Mutex::default());
        Some(PastCache { file: File::from(again), works, gathered })
    }

    /// Writes parts one behind the other, and zeroes up to a multiple of 4 KiB. False when they
    /// have to be written as usual, all of them.
    ///
    /// # Errors
    /// The errors of the system.
    pub(crate) fn write(&self, at: u64, parts: &[&[u8]]) -> Result<bool> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if !at.is_multiple_of(BLOCK_BYTES as u64) || total < LEAST || !self.works.load(Relaxed) {
            return Ok(false);
        }
        match self.write_gathered(at, total, parts) {
            // Some file systems open a file so, and take no write.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                self.works.store(false, Relaxed);
                Ok(false)
            }
            written => written.map(|()| true),
        }
    }

    fn write_gathered(&self, mut at: u64, total: usize, parts: &[&[u8]]) -> Result<()> {
        let mut gathered = self.gathered.lock();
        let blocks = total.div_ceil(BLOCK_BYTES).min(BLOCKS_MAX);
        if gathered.len() < blocks {
            *gathered = Block::zeroed_vec(blocks);
        }
        let room = gathered.as_mut_bytes();
        let mut filled = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let n = rest.len().min(room.len() - filled);
                room[filled..filled + n].copy_from_slice(&rest[..n]);
                (rest, filled) = (&rest[n..], filled + n);
                if filled == room.len() {
                    self.write_all(at, room)?;
                    (at, filled) = (at + filled as u64, 0);
                }
            }
        }
        let end = filled.next_multiple_of(BLOCK_BYTES);
        room[filled..end].fill(0);
        self.write_all(at, &room[..end])
    }

    fn write_all(&self, mut at: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match self.file.write_at(bytes, at) {
                Ok(0) => return Err(Error::from(ErrorKind::WriteZero)),
                Ok(n) if n < bytes.len() && !n.is_multiple_of(BLOCK_BYTES) => {
                    // The rest does not begin a block.
                    return Err(Error::from(ErrorKind::InvalidInput));
                }
                Ok(n) => (at, bytes) = (at + n as u64, &bytes[n..]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
