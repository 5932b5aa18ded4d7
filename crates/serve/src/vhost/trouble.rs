//! News of a ring that can't be understood, from the threads that met it to the one that stops its device.

use std::os::fd::OwnedFd;

use parking_lot::Mutex;

use super::bell;

/// How a queue, or its helper, says that it met a ring that it can't understand.
pub(crate) struct Trouble {
    reason: Mutex<Option<&'static str>>,
    /// Rung then.
    pub(crate) bell: OwnedFd,
}

impl Trouble {
    pub(crate) fn new() -> rustix::io::Result<Trouble> {
        Ok(Trouble { reason: Mutex::new(None), bell: bell::new()? })
    }

    /// Tells the device's thread. The first reason counts.
    pub(crate) fn tell(&self, reason: &'static str) {
        self.reason.lock().get_or_insert(reason);
        bell::ring(&self.bell);
    }

    /// What was told, if anything.
    pub(crate) fn take(&self) -> Option<&'static str> {
        bell::quiet(&self.bell);
        self.reason.lock().take()
    }
}
