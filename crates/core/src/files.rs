//! Named files in one flat directory, as the archive engine sees a node: nothing durable without a
//! sync, and no name either.

use std::sync::Arc;

use crate::Result;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// With others that share it.
    Shared,
    /// Alone.
    Alone,
}

/// A lock that ends when it is dropped, or with its process.
pub trait Lock: Send + Sync {}

/// The files of a node. Creating or removing a name is durable only after
/// [`sync_names`](Files::sync_names).
pub trait Files: Send + Sync {
    /// All names, sorted.
    ///
    /// # Errors
    /// The errors of the system.
    fn names(&self) -> Result<Vec<String>>;

    /// Makes an empty file.
    ///
    /// # Errors
    /// `Exists`, `NoSpace`, and those of the system.
    fn create(&self, name: &str) -> Result<Arc<dyn File>>;

    /// Opens a file, for reading only where nothing else is allowed.
    ///
    /// # Errors
    /// `NotFound`, and those of the system.
    fn open(&self, name: &str) -> Result<Arc<dyn File>>;

    /// Opens a file for large writes that begin at multiples of 4 KiB, which may go past the
    /// system's cache. Zeroes may follow each, up to the next such multiple.
    ///
    /// # Errors
    /// As [`open`](Files::open).
    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        self.open(name)
    }

    /// Removes a name; a process that has the file open can still use it.
    ///
    /// # Errors
    /// `NotFound`, and those of the system.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes created and removed names durable.
    ///
    /// # Errors
    /// The errors of the system.
    fn sync_names(&self) -> Result<()>;

    /// Locks the existing file `name`; with `wait`, waits until the lock is free.
    ///
    /// # Errors
    /// `Busy`: another holder conflicts and `wait` is not set, or the wait took too long where a
    /// stranger could hold the lock.
    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>>;
}

/// A sync that was begun. Dropping the value gives up what it would have told.
pub trait PendingSync: Send {
    /// True when [`wait`](PendingSync::wait) returns at once.
    fn is_over(&self) -> bool;

    /// Waits for the end: what was written before the sync began is durable then.
    ///
    /// # Errors
    /// As [`File::sync`].
    fn wait(self: Box<Self>) -> Result<()>;
}

/// A sync that was over when it had begun.
struct Synced(Result<()>);

impl PendingSync for Synced {
    fn is_over(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<()> {
        self.0
    }
}

/// A file. Reads see writes at once; a write is durable after a later [`sync`](File::sync), and
/// torn at any 512 bytes until then.
pub trait File: Send + Sync {
    /// The length in bytes.
    ///
    /// # Errors
    /// The errors of the system.
    fn bytes(&self) -> Result<u64>;

    /// Bytes of the file that use space on the medium, as far as that is known; holes do not count.
    ///
    /// # Errors
    /// The errors of the system.
    fn occupied(&self) -> Result<u64> {
        self.bytes()
    }

    /// Fills `into` from byte `at` on; returns how much there was before the end.
    ///
    /// # Errors
    /// The errors of the system.
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize>;

    /// Writes `data` at byte `at`; the file grows as needed.
    ///
    /// # Errors
    /// `NoSpace`, and those of the system; any part may have been written.
    fn write_at(&self, at: u64, data: &[u8]) -> Result<()>;

    /// Writes parts one behind the other, as one piece where that matters.
    ///
    /// # Errors
    /// As [`write_at`](File::write_at).
    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> Result<()> {
        let mut at = at;
        for part in parts {
            self.write_at(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// As [`read_at`](File::read_at), but from the medium as far as the system allows it: first
    /// drops written pages of the file from memory.
    ///
    /// # Errors
    /// The errors of the system.
    fn read_from_medium(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        self.read_at(at, into)
    }

    /// Syncs, and checks that the medium has these bytes afterwards. A sync that follows a failed
    /// sync of another process succeeds without them.
    ///
    /// # Errors
    /// The errors of the system.
    fn keeps(&self, at: u64, bytes: &[u8]) -> Result<bool> {
        self.sync()?;
        let mut found = vec![0; bytes.len()];
        let n = self.read_from_medium(at, &mut found)?;
        Ok(n == bytes.len() && found == bytes)
    }

    /// Makes all earlier writes durable, and the length with them.
    ///
    /// # Errors
    /// The errors of the system. Data that were not durable may be gone, and a second sync does not
    /// bring them back.
    fn sync(&self) -> Result<()>;

    /// Begins to make all earlier writes durable, and returns at once where the system allows it.
    /// Nothing is known to be durable before [`PendingSync::wait`] returns without an error. The
    /// caller begins no other sync of the file before that: of two at once only one would be told
    /// that data were lost.
    fn begin_sync(self: Arc<Self>) -> Box<dyn PendingSync> {
        Box::new(Synced(self.sync()))
    }

    /// Cuts the file, or lengthens it with zeroes.
    ///
    /// # Errors
    /// The errors of the system.
    fn set_bytes(&self, bytes: u64) -> Result<()>;

    /// Reserves space for a range, for later writes to it; the length stays.
    ///
    /// # Errors
    /// `NoSpace`.
    fn reserve(&self, at: u64, bytes: u64) -> Result<()>;

    /// Frees the space of a range, which then reads as zeroes.
    ///
    /// # Errors
    /// The errors of the system.
    fn punch(&self, at: u64, bytes: u64) -> Result<()>;
}
