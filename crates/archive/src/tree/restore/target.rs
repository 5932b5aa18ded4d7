//! The files that are restored, as the engine asks for them.

use onefold_core::{Error, Result};

/// Files by their numbers, which grow from 0 on. Several threads call at once, for one file too.
pub trait RestoreTarget: Sync {
    /// Reads what a file has already from byte `at` on; gives how many bytes that were. Only asked
    /// in place, before the first write.
    ///
    /// # Errors
    /// Those of the system; they end the restore.
    fn read(&self, file: usize, at: u64, into: &mut [u8]) -> Result<usize>;

    /// A range of so many bytes is in the file already.
    fn stays(&self, file: usize, bytes: u64);

    /// In place, before anything of a window is written: the file will be written to or not.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn begin(&self, file: usize, is_written: bool) -> Result<()>;

    /// In place: all files of a window were begun.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn begun(&self) -> Result<()>;

    /// Writes a range. Ranges come in any order.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn write(&self, file: usize, at: u64, bytes: &[u8]) -> Result<()>;

    /// All ranges of a file are there, or some are lost, for this reason. Asked once for each file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn finish(&self, file: usize, lost: Option<Error>) -> Result<()>;
}
