//! Time that passes only when a test, a simulation or the laboratory says so.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::Clock;

/// A clock that stands still until it is told otherwise. It counts nanoseconds, for 584 years.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Lets `time` pass.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(nanoseconds(time), Relaxed);
    }

    /// Lets time pass until `then`; does nothing when that is over.
    pub fn advance_to(&self, then: Duration) {
        self.0.fetch_max(nanoseconds(then), Relaxed);
    }

    /// Jumps to `time` after the arbitrary start, forward or back.
    pub fn set(&self, time: Duration) {
        self.0.store(nanoseconds(time), Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// `time` in nanoseconds, at most 584 years.
#[must_use]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
