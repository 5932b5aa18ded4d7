//! Locks that are kept while long work goes on. Those of volumes that a server has open are kept by the server.

use std::{thread, time::Duration};

use onefold_core::Result;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Volume;
use crate::{kernel::Kernel, names::Names, replies::failed};

/// The lease of what is filled is renewed so many times while it lasts.
const RENEWALS: u32 = 4;

/// Keeps the locks of what is filled.
pub(crate) struct Renewal<'k> {
    kernel: &'k Kernel,
    /// The number of what has a record of this session.
    filled: Option<u64>,
    last: Duration,
}

impl<'k> Renewal<'k> {
    pub(crate) fn of(kernel: &'k Kernel, filled: Option<u64>) -> Renewal<'k> {
        Renewal { kernel, filled, last: kernel.store().monotonic() }
    }

    /// Asks for more time when some of it is over.
    ///
    /// # Errors
    /// `Busy` or `Stopped` when another session has it.
    pub(crate) fn when_due(&mut self, volume: &Volume) -> Result<()> {
        let (settings, now) = (self.kernel.settings(), self.kernel.store().monotonic());
        let lease = settings.volume_lease.min(settings.lease);
        if now.saturating_sub(self.last) * RENEWALS < lease {
            return Ok(());
        }
        self.last = now;
        self.renew(volume)
    }

    /// Asks for more time.
    ///
    /// # Errors
    /// As [`when_due`](Self::when_due).
    fn renew(&self, volume: &Volume) -> Result<()> {
        if let Some(id) = self.filled {
            let kept = Names::of(self.kernel).keep_filling(id);
            kept.map_err(|why| failed("what is being filled", why))?;
        }
        volume.renew()
    }
}

/// Ends the thread that keeps locks, also when the work panics.
struct Kept<'k>(&'k Mutex<bool>, &'k Condvar);

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }
}

/// Does some work, and keeps the lock of a volume meanwhile, also while the work waits for its stream: who finds one that
/// ended shuts this whole session out. The work hears of a lost lock when it goes on. `filled` is the number of what has
/// a record of this session.
pub(crate) fn while_kept<T>(
    kernel: &Kernel,
    filled: Option<u64>,
    volume: &Volume,
    work: impl FnOnce() -> T,
) -> T {
    let settings = kernel.settings();
    if !settings.renews_aside {
        return work();
    }
    let every = settings.volume_lease.min(settings.lease) / RENEWALS;
    let (is_over, over) = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let renewal = Renewal::of(kernel, filled);
            let mut ended = is_over.lock();
            while !*ended {
                over.wait_for(&mut ended, every);
                if !*ended {
                    let _ = MutexGuard::unlocked(&mut ended, || renewal.renew(volume));
                }
            }
        });
        let _kept = Kept(&is_over, &over);
        work()
    })
}
