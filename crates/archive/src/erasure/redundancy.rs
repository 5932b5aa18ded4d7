//! Redundancy below an archive's files: copies, stripes, and nodes that come and go.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Hold, Lock, Result};

/// Files with redundancy below them. One directory has none, and answers as if all were there.
pub(crate) trait Redundancy: Files {
    /// Makes an empty file whose stripes have `data` columns of data, where files have stripes.
    ///
    /// # Errors
    /// As [`create`](Files::create).
    fn create_wide(&self, name: &str, data: u8) -> Result<Arc<dyn File>>;

    /// Nodes, and columns of data and of parity in a stripe; one directory is `[1, 1, 0]`.
    fn spread(&self) -> [u8; 3];

    /// True when writes to this file have full redundancy: none of its nodes is absent.
    ///
    /// # Errors
    /// `Stopped`: not even a new file would have full redundancy.
    fn is_whole(&self, name: &str) -> Result<bool>;

    /// Finds out which nodes are current, and at first which copy is farthest. Called whenever the
    /// files are locked for a change (`alone`) or for reading. Later calls with `alone` bring the
    /// copies level with the one that is read, so the caller reads it first.
    ///
    /// # Errors
    /// `Stopped`: too few nodes are there. Otherwise the errors of the system.
    fn begin(&self, alone: bool) -> Result<()>;

    /// Makes sure that a node that missed a write no longer counts as current. Called before a
    /// change is acknowledged, under the same lock.
    ///
    /// # Errors
    /// `Stopped`: too few nodes are left. Otherwise the errors of the system.
    fn confirm(&self) -> Result<()>;

    /// Makes these bytes of a file durable without writing. A reader calls this with the bytes that
    /// it read at byte `at`. Their writer may have been killed before its sync, or its sync may
    /// have failed, so memory may have bytes that the medium lacks. True when as many copies have
    /// them as a change needs; otherwise they may vanish with the copies that have them.
    ///
    /// # Errors
    /// The errors of the system.
    fn keeps(&self, name: &str, at: u64, bytes: &[u8]) -> Result<bool>;

    /// True when these bytes, which were just written to the file `log` with this name, are read
    /// where they were. Copies that lack them count as failed, if enough others have them.
    ///
    /// # Errors
    /// The errors of the system.
    fn reads_back(&self, log: &dyn File, name: &str, at: u64, bytes: &[u8]) -> Result<bool>;

    /// The copy that is read is damaged: reads from another one from now on; false when there is
    /// none.
    fn another_copy(&self) -> bool;

    /// The copy that is read turned out to be damaged after it had been read whole: it is left out,
    /// and another one read from now on; false when there is none.
    fn leave_damaged_copy(&self) -> bool;

    /// The first failure of another directory that the chunk index is in.
    fn index_failure(&self) -> Option<Error> {
        None
    }

    /// True when a file of the chunk index is where the data is.
    fn is_beside(&self, _name: &str) -> bool {
        true
    }
}

/// One directory, without redundancy.
pub(crate) struct OneDirectory(pub(crate) Arc<dyn Files>);

/// Nodes, columns of data and columns of parity of one directory.
pub(crate) const ONE_DIRECTORY: [u8; 3] = [1, 1, 0];

impl Files for OneDirectory {
    fn names(&self) -> Result<Vec<String>> {
        self.0.names()
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.0.create(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        self.0.open(name)
    }

    fn open_large(&self, name: &str) -> Result<Arc<dyn File>> {
        self.0.open_large(name)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }

    fn sync_names(&self) -> Result<()> {
        self.0.sync_names()
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        self.0.lock(name, hold, wait)
    }
}

impl Redundancy for OneDirectory {
    fn create_wide(&self, name: &str, _data: u8) -> Result<Arc<dyn File>> {
        self.0.create(name)?;
        self.0.open_large(name)
    }

    fn spread(&self) -> [u8; 3] {
        ONE_DIRECTORY
    }

    fn is_whole(&self, _name: &str) -> Result<bool> {
        Ok(true)
    }

    fn begin(&self, _alone: bool) -> Result<()> {
        Ok(())
    }

    fn confirm(&self) -> Result<()> {
        Ok(())
    }

    fn keeps(&self, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
        self.0.open(name)?.keeps(at, bytes)
    }

    fn reads_back(&self, log: &dyn File, _: &str, at: u64, bytes: &[u8]) -> Result<bool> {
        has(log, at, bytes)
    }

    fn another_copy(&self) -> bool {
        false
    }

    fn leave_damaged_copy(&self) -> bool {
        false
    }
}

/// True when a file has these bytes at a place.
pub(super) fn has(file: &dyn File, at: u64, bytes: &[u8]) -> Result<bool> {
    let mut found = vec![0; bytes.len()];
    let n = file.read_at(at, &mut found)?;
    Ok(n == bytes.len() && found == bytes)
}
