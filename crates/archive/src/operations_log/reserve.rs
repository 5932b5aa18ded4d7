//! The reserve: a file of bytes that are given up on a full disk, so that what gives space back can be
//! written.

use std::sync::Arc;

use onefold_core::{File, Files, Kind, Result};

use crate::{
    erasure::Redundancy,
    format::names::{RESERVE, fresh},
};

/// Bytes of the reserve that are given up at once.
const STEP: u64 = 4 << 20;

/// The reserve of an archive.
pub struct Reserve {
    files: Arc<dyn Redundancy>,
}

impl Reserve {
    /// Makes a reserve of so many bytes, durable on return but for its name.
    pub(super) fn create(files: &dyn Files, bytes: u64) -> Result<()> {
        let file = fresh(files, RESERVE)?;
        fill(&*file, bytes)?;
        file.sync()
    }

    /// The reserve among these files.
    pub(super) fn among(files: &Arc<dyn Redundancy>) -> Reserve {
        Reserve { files: files.clone() }
    }

    /// Bytes held back for deletion on a full disk.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn bytes(&self) -> Result<u64> {
        self.files.open(RESERVE)?.bytes()
    }

    /// Gives a part of the reserve back to the file system; false when nothing is left of it.
    pub(crate) fn spend(&self) -> Result<bool> {
        let reserve = self.files.open(RESERVE)?;
        let bytes = reserve.bytes()?;
        if bytes == 0 {
            return Ok(false);
        }
        // Holes give no room: a file of holes that somebody else made would be given up in steps
        // without end.
        let there = bytes.min(reserve.occupied()?);
        reserve.set_bytes(there.saturating_sub(STEP))?;
        reserve.sync()?;
        Ok(true)
    }

    /// Fills the reserve again after collection, as far as a disk that is still full has room.
    pub(crate) fn restore(&self, bytes: u64) -> Result<()> {
        match fill(&*self.files.open(RESERVE)?, bytes) {
            Err(error) if error.kind() != Kind::NoSpace => Err(error),
            _ => Ok(()),
        }
    }
}

/// Writes `bytes` bytes that take space.
fn fill(file: &dyn File, bytes: u64) -> Result<()> {
    const PIECE: usize = 64 << 10;
    let noise: Vec<u8> =
        (0..PIECE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut at = file.bytes()?;
    while at < bytes {
        let n = PIECE.min((bytes - at) as usize);
        file.write_at(at, &noise[..n])?;
        at += n as u64;
    }
    Ok(())
}
