//! The lock of an audit log, by which several processes write it one line at a time, and what they keep there.
//!
//! The file of the lock begins with the hash of the log's last line, 64 digits. Behind it is one line of JSON: the
//! [`Accounts`] of the clients, or that a server writes the log alone. A file that has the digits alone, or less, is
//! one of a log without accounts.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, Instant},
};

use onefold_core::{Error, Result};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{
    accounts::Accounts,
    lines::{NOTHING, PATIENCE, last_line, not_locked},
};

/// Bytes of accounts that are read at most.
const ACCOUNTS_MAX: u64 = 1 << 20;

/// Stands in the place of the accounts while a server writes the log alone.
const ALONE: &[u8] = b"\nalone\n";

/// The means by which one of several processes that write a log takes its turn.
pub(super) struct Among {
    /// The file that a process locks for each line.
    lock: File,
    /// Length of the log in bytes after the last line of this process. If the length is still the same,
    /// nobody wrote since.
    bytes: Option<u64>,
}

impl Among {
    /// For a log with this lock. Waits for no process that writes a line.
    ///
    /// # Errors
    /// `Busy`: a server writes the log alone, for two seconds still. The errors of the system.
    pub(super) fn new(path: &Path, lock: File) -> Result<Among> {
        let begun = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if !is_alone(&lock) => {
                    return Ok(Among { lock, bytes: None });
                }
                Err(Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(errno) => return Err(not_locked(path, errno)),
            }
        }
        let among = Among { lock, bytes: None };
        // The server that wrote it alone has ended.
        let freed = if is_alone(&among.lock) { among.keep(&Accounts::default()) } else { Ok(()) };
        among.give_back();
        freed.map(|()| among)
    }

    /// Waits for the other processes.
    pub(super) fn take(&self) -> Result<()> {
        let failed = |errno: Errno| Error::from_io("the lock of the log", errno.into());
        flock(&self.lock, FlockOperation::LockExclusive).map_err(failed)
    }

    pub(super) fn give_back(&self) {
        // Closing the file gives the lock back, too.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }

    /// The hash of the last line, whoever wrote that line, and whether the file ends within a line. `own` is
    /// the hash of this process's last line.
    pub(super) fn last(&self, path: &Path, file: &File, own: &str) -> Result<(String, bool)> {
        let bytes = file.metadata().map_err(|e| Error::from_io(path.display(), e))?.len();
        match bytes {
            0 => Ok((self.head().unwrap_or_else(|| NOTHING.to_owned()), false)),
            _ if self.bytes == Some(bytes) => Ok((own.to_owned(), false)),
            _ => last_line(path, file),
        }
    }

    fn head(&self) -> Option<String> {
        let mut text = [0; NOTHING.len()];
        self.lock.read_exact_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text).ok()?;
        text.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| text.to_owned())
    }

    /// Notes that this process wrote a line with this hash.
    pub(super) fn wrote(&mut self, file: &File, hash: &str) {
        self.bytes = file.metadata().ok().map(|metadata| metadata.len());
        // As long as the log is not begun anew, its last line says the same.
        let _ = self.lock.write_all_at(hash.as_bytes(), 0);
    }

    /// Notes that what this process knows of the log's end may be wrong.
    pub(super) fn failed(&mut self) {
        self.bytes = None;
    }

    /// The accounts of the clients. Those that a process left half written count for nothing.
    pub(super) fn accounts(&self) -> Accounts {
        let bytes = self.lock.metadata().map_or(0, |metadata| metadata.len());
        let bytes = bytes.saturating_sub(NOTHING.len() as u64).min(ACCOUNTS_MAX);
        let mut text = vec![0; bytes as usize];
        if self.lock.read_exact_at(&mut text, NOTHING.len() as u64).is_err() {
            return Accounts::default();
        }
        let line = text.split(|byte| *byte == b'\n').nth(1);
        line.map(Accounts::from_text).unwrap_or_default()
    }

    /// Keeps the accounts of the clients for the next line.
    pub(super) fn keep(&self, accounts: &Accounts) -> Result<()> {
        let failed = |e| Error::from_io("the lock of the log", e);
        if self.head().is_none() {
            self.lock.write_all_at(NOTHING.as_bytes(), 0).map_err(failed)?;
        }
        let text = format!("\n{}\n", accounts.to_text());
        // The text ends with its line, whatever longer one stood there.
        self.lock.write_all_at(text.as_bytes(), NOTHING.len() as u64).map_err(failed)
    }
}

/// Notes in the lock of a log, which this process has, that it writes the log alone.
pub(super) fn note_alone(lock: &File) -> std::io::Result<()> {
    lock.write_all_at(ALONE, NOTHING.len() as u64)
}

fn is_alone(lock: &File) -> bool {
    let mut text = [0; ALONE.len()];
    lock.read_exact_at(&mut text, NOTHING.len() as u64).is_ok() && text == ALONE
}
