//! Time of the operating system.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onefold_core::Clock;
use rustix::time::{ClockId, clock_gettime};

/// The monotonic clock of this machine, counted from when the value was made. The clock stops while
/// the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// A clock that starts at zero now.
    #[must_use]
    pub fn new() -> MonotonicClock {
        MonotonicClock { start: Instant::now() }
    }
}

impl Default for MonotonicClock {
    fn default() -> MonotonicClock {
        MonotonicClock::new()
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Time since this machine was started (`CLOCK_BOOTTIME`), including the time that it slept.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        )
    }
}

/// The time of this host since 1970.
pub(crate) fn wall_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_on_and_never_back() {
        let clock = MonotonicClock::new();
        let times: Vec<_> = (0..1000).map(|_| clock.now()).collect();
        assert!(times.is_sorted());
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() >= times[999] + Duration::from_millis(2));
    }
}
