//! Time of the operating system.

use std::time::{Duration, Instant};

use onefold_core::Clock;

/// The monotonic clock of this machine, counted from when the value was made. It stands still while the machine sleeps.
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
