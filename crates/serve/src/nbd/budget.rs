//! Memory that all connections share for reads that must be held whole.
//!
//! *Threads:* a holder gives its share back within the send timeout at the latest, so that waiting for a share ends.

use parking_lot::{Condvar, Mutex};

/// A number of bytes, lent in shares.
#[derive(Debug)]
pub(crate) struct Budget {
    total: u64,
    left: Mutex<u64>,
    returned: Condvar,
}

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(crate) struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(total: u64) -> Budget {
        Budget { total, left: Mutex::new(total), returned: Condvar::new() }
    }

    /// Waits until `bytes` are left, and takes them. Who wants more than there is gets it all, alone.
    pub(crate) fn take(&self, bytes: u64) -> Share<'_> {
        let bytes = bytes.min(self.total);
        let mut left = self.left.lock();
        self.returned.wait_while(&mut left, |left| *left < bytes);
        *left -= bytes;
        Share { budget: self, bytes }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.budget.left.lock() += self.bytes;
        self.budget.returned.notify_all();
    }
}
