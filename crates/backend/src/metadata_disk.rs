//! [`MetadataDisk`]: keeps what an engine writes for itself and drops what clients gave it.
//!
//! It answers one question: how much memory does an engine need beside a store of 64 GiB of unique blocks, on a machine that
//! does not have 64 GiB? Blocks of [`Class::Data`] are counted and dropped, and read as zeroes; all other classes are kept.
//! What is kept lies in an anonymous file of the kernel that is never mapped, so it does not count as resident memory of this
//! process, which is what is being measured. It does take memory of the machine.
//!
//! *Invariant:* a block that was last written as data reads as zeroes, also where metadata was before.
//!
//! Threads: the kernel serialises what overlaps; the only shared state is the descriptor and the counters.

use std::os::fd::{AsFd, OwnedFd};

use onefold_core::{BLOCK_BYTES, BlockRef, Class, Disk, Error, Pba, Read, Result, Run, block};
use rustix::{
    fs::{FallocateFlags, MemfdFlags},
    io::{Errno, ReadWriteFlags},
};

use crate::{Counters, file_disk::transfer, range};

/// A disk that forgets data and keeps the rest.
#[derive(Debug)]
pub struct MetadataDisk {
    kept: OwnedFd,
    blocks: u64,
    counters: Counters,
}

impl MetadataDisk {
    /// A disk of `blocks` blocks of zeroes, which takes no memory yet.
    ///
    /// # Errors
    /// When the kernel gives no anonymous file of that size.
    pub fn new(blocks: u64) -> Result<MetadataDisk> {
        let failed = |errno: Errno| Error::from_io(format!("cannot make an anonymous file of {blocks} blocks"), errno.into());
        let kept = rustix::fs::memfd_create("onefold-metadata", MemfdFlags::CLOEXEC).map_err(failed)?;
        let bytes = blocks.checked_mul(BLOCK_BYTES as u64).ok_or_else(|| failed(Errno::FBIG))?;
        rustix::fs::ftruncate(&kept, bytes).map_err(failed)?;
        Ok(MetadataDisk { kept, blocks, counters: Counters::default() })
    }

    /// Bytes of the machine's memory that hold what was kept.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn kept_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.kept).map_err(|errno| Error::from_io("metadata disk", errno.into()))?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
    }

    /// What was asked of it so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn offset(&self, at: Pba, blocks: usize) -> Result<u64> {
        range::offset("metadata disk", self.blocks, at, blocks as u64)
    }

    fn load(&self, read: &mut Read<'_>) -> Result<()> {
        let offset = self.offset(read.at, read.into.len())?;
        self.counters.read(read.into.len());
        transfer::read(self.kept.as_fd(), offset, block::bytes_mut(read.into), 0).map_err(failed)
    }

    fn store(&self, run: &Run<'_>) -> Result<()> {
        let mut offset = self.offset(run.at, run.blocks.len())?;
        for same in run.blocks.chunk_by(|a, b| is_data(a) == is_data(b)) {
            let bytes = (same.len() * BLOCK_BYTES) as u64;
            if is_data(&same[0]) {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.kept, hole, offset, bytes).map_err(|errno| failed(transfer::Failure::System(errno)))?;
            } else {
                let slices = crate::file_disk::gather(same);
                transfer::write(self.kept.as_fd(), offset, &slices, 0, ReadWriteFlags::empty()).map_err(failed)?;
            }
            offset += bytes;
        }
        Ok(())
    }
}

fn is_data(block: &BlockRef<'_>) -> bool {
    block.class == Class::Data
}

fn failed(failure: transfer::Failure) -> Error {
    match failure {
        transfer::Failure::System(errno) => crate::file_disk::explain_errno("metadata disk", errno),
        transfer::Failure::Ended | transfer::Failure::Stalled => crate::file_disk::explain_errno("metadata disk", Errno::IO),
    }
}

impl Disk for MetadataDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, reads: &mut [Read<'_>]) {
        for read in reads {
            read.result = self.load(read);
        }
    }

    fn write(&self, runs: &[Run<'_>]) -> Result<()> {
        runs.iter().try_for_each(|run| {
            self.counters.write(run.blocks);
            self.store(run)
        })
    }

    fn write_durable(&self, run: &Run<'_>) -> Result<()> {
        self.counters.durable_write(run.blocks);
        self.store(run)
    }

    fn flush(&self) -> Result<()> {
        self.counters.flush();
        Ok(())
    }

    fn allocate(&self, at: Pba, blocks: u64) -> Result<()> {
        range::offset("metadata disk", self.blocks, at, blocks).map(|_| ())
    }
}
