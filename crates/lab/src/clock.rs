//! Time that passes only when the laboratory says so.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use onefold_core::Clock;

/// Virtual time in nanoseconds, which never goes back.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Lets time pass until `then`; does nothing when that is over.
    pub fn advance_to(&self, then: Duration) {
        self.0.fetch_max(nanoseconds(then), Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// A time in nanoseconds, at most 584 years.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
