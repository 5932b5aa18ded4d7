//! Time, as engines may see it.

use std::time::Duration;

/// A monotonic clock. The simulator and the laboratory replace it by virtual time.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Duration;
}

/// How far ahead of the clock a time may be that was written by another machine's.
pub const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);

/// How long ago a time of day was; `None` when it is dated in the future: a clock was wrong once,
/// and nobody knows when it was.
#[must_use]
pub fn age(at: Duration, now: Duration) -> Option<Duration> {
    (at <= now.saturating_add(AHEAD_MAX)).then(|| now.saturating_sub(at))
}

/// A yield that takes longer than this shows that the processor is crowded. A yield takes about a
/// microsecond when no other thread wants to run, and milliseconds when one computes.
const CROWDED: Duration = Duration::from_micros(300);

/// How long a crowded processor is left to others.
const CROWDED_FOR: Duration = Duration::from_secs(1);

/// Detects that a processor is crowded. A thread that stays awake and yields then waits for a whole
/// time slice of another thread, while a sleeping thread is woken at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuContention {
    until: Option<Duration>,
}

impl CpuContention {
    /// True while others need the processor: sleep.
    #[must_use]
    pub fn is_there(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Records when a thread yielded and when it ran again.
    pub fn yielded(&mut self, before: Duration, after: Duration) {
        if after.saturating_sub(before) > CROWDED {
            self.until = Some(after + CROWDED_FOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_far_ahead_has_no_age() {
        let at = Duration::from_secs;
        assert_eq!(age(at(10), at(25)), Some(at(15)));
        assert_eq!(age(at(25) + AHEAD_MAX, at(25)), Some(Duration::ZERO));
        assert_eq!(age(at(26) + AHEAD_MAX, at(25)), None);
    }

    #[test]
    fn a_long_yield_tells_of_a_crowd_for_a_while() {
        let mut crowd = CpuContention::default();
        let at = Duration::from_micros;
        crowd.yielded(at(10), at(20));
        assert!(!crowd.is_there(at(20)));
        crowd.yielded(at(1000), at(3000));
        assert!(
            crowd.is_there(at(3000))
                && crowd.is_there(at(1_002_999))
                && !crowd.is_there(at(1_003_000))
        );
    }
}
