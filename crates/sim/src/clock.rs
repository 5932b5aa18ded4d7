//! Time that moves only when the simulation says so.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use onefold_core::Clock;

/// A clock that stands still until it is [advanced](VirtualClock::advance) or
/// [set](VirtualClock::set), back too.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// Lets `time` pass.
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(nanoseconds(time), Ordering::Relaxed);
    }

    /// Jumps to `time` after the arbitrary start, forward or back.
    pub fn set(&self, time: Duration) {
        self.0.store(nanoseconds(time), Ordering::Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// `time` in nanoseconds, at most 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
