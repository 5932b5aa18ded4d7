//! [`MetadataDisk`]: keeps the blocks that an engine writes for itself, and drops the clients'
//! data.
//!
//! The disk answers one question: how much memory does an engine need beside a store of 64 GiB of
//! unique blocks, on a machine that does not have 64 GiB? Blocks of [`Class::Data`] are counted and
//! dropped, and read as zeroes; all other classes are kept. The kept blocks lie in an anonymous
//! file of the kernel that is never mapped. So they use memory of the machine, but do not count as
//! resident memory of this process, which is the measured quantity.
//!
//! *Invariant:* a block that was last written as data reads as zeroes, also where metadata was
//! before.
//!
//! Threads: the kernel serialises what overlaps; the only shared state is the descriptor and the
//! counters.

use std::os::fd::{AsFd, OwnedFd};

use onefold_core::{BLOCK_BYTES, BlockRef, Class, Error, Pba, Read, Result, Run, block};
use rustix::{
    fs::{FallocateFlags, MemfdFlags},
    io::Errno,
};

use crate::{
    counted::{Counted, Place},
    file_disk::transfer,
};

/// A disk that forgets data and keeps the rest.
pub type MetadataDisk = Counted<Kept>;

/// An anonymous file.
#[derive(Debug)]
pub struct Kept(OwnedFd);

impl MetadataDisk {
    /// A disk of `blocks` blocks of zeroes, which takes no memory yet.
    ///
    /// # Errors
    /// When the kernel gives no anonymous file of that size.
    pub fn new(blocks: u64) -> Result<MetadataDisk> {
        let failed = |errno: Errno| {
            Error::from_io(
                format!("cannot make an anonymous file of {blocks} blocks"),
                errno.into(),
            )
        };
        let kept =
            rustix::fs::memfd_create("onefold-metadata", MemfdFlags::CLOEXEC).map_err(failed)?;
        let bytes = blocks.checked_mul(BLOCK_BYTES as u64).ok_or_else(|| failed(Errno::FBIG))?;
        rustix::fs::ftruncate(&kept, bytes).map_err(failed)?;
        Ok(Counted::over(Kept(kept), blocks))
    }

    /// Bytes of the machine's memory that hold what was kept.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn kept_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.place.0)
            .map_err(|errno| Error::from_io("metadata disk", errno.into()))?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
    }
}

impl Place for Kept {
    const NAME: &str = "metadata disk";

    fn load(&self, read: &mut Read<'_>) -> Result<()> {
        transfer::read(self.0.as_fd(), offset(read.at), block::bytes_mut(read.into), 0)
            .map_err(failed)
    }

    fn store(&self, run: &Run<'_>) -> Result<()> {
        let mut offset = offset(run.at);
        for same in run.blocks.chunk_by(|a, b| is_data(a) == is_data(b)) {
            let bytes = (same.len() * BLOCK_BYTES) as u64;
            if is_data(&same[0]) {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.0, hole, offset, bytes)
                    .map_err(|errno| failed(transfer::Failure::System(errno)))?;
            } else {
                let slices = crate::file_disk::gather(same);
                transfer::write(self.0.as_fd(), offset, &slices, 0).map_err(failed)?;
            }
            offset += bytes;
        }
        Ok(())
    }
}

/// Where a block that is in range lies.
fn offset(at: Pba) -> u64 {
    at.0 * BLOCK_BYTES as u64
}

fn is_data(block: &BlockRef<'_>) -> bool {
    block.class == Class::Data
}

fn failed(failure: transfer::Failure) -> Error {
    match failure {
        transfer::Failure::System(errno) => crate::file_disk::explain_errno("metadata disk", errno),
        transfer::Failure::Ended | transfer::Failure::Stalled => {
            crate::file_disk::explain_errno("metadata disk", Errno::IO)
        }
    }
}
