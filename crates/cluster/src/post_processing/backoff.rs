//! Backing off: a worker whose operations take much longer than they use to, or whose cluster
//! recovers, does less for a while.

use std::{collections::VecDeque, time::Duration};

/// Steps whose times are remembered.
const STEPS: usize = 64;

/// Fewer than this have no median yet.
const STEPS_MIN: usize = 8;

/// So many times the median is slow.
const SLOW: u32 = 4;

/// A step faster than this never counts as slow: clocks and schedulers vary by as much.
const NOISE: Duration = Duration::from_millis(2);

/// Each slow step in a row doubles the pause, up to so many times the first one.
const PAUSES_MAX: u32 = 8;

/// How long operations took, and until when the worker pauses.
pub(super) struct Backoff {
    /// Of an operation, on average over a step; the last steps.
    times: VecDeque<Duration>,
    until: Duration,
    pause: Duration,
    first: Duration,
}

impl Backoff {
    /// The first pause is `first`.
    pub(super) fn new(first: Duration) -> Backoff {
        Backoff { times: VecDeque::new(), until: Duration::ZERO, pause: Duration::ZERO, first }
    }

    /// True while nothing is to be done.
    pub(super) fn waits(&self, now: Duration) -> bool {
        // A clock that was set back does not stop a worker for longer than a pause.
        now < self.until && self.until <= now + self.first * PAUSES_MAX
    }

    /// Records how long a step took.
    pub(super) fn record_step(
        &mut self,
        from: Duration,
        to: Duration,
        operations: u64,
        recovers: bool,
    ) {
        let each = to.saturating_sub(from) / u32::try_from(operations.max(1)).unwrap_or(u32::MAX);
        let slow = self.median().is_some_and(|median| each > NOISE && each >= median * SLOW);
        self.times.push_back(each);
        if self.times.len() > STEPS {
            self.times.pop_front();
        }
        if slow || recovers {
            self.pause = (self.pause * 2).clamp(self.first, self.first * PAUSES_MAX);
            self.until = to + self.pause;
        } else {
            self.pause = Duration::ZERO;
        }
    }

    fn median(&self) -> Option<Duration> {
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        times.sort_unstable();
        (times.len() >= STEPS_MIN).then(|| times[times.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn slow_operations_make_pauses_that_double_and_end() {
        let mut backoff = Backoff::new(ms(1000));
        (0..10).for_each(|n| backoff.record_step(ms(n * 100), ms(n * 100 + 50), 10, false));
        assert!(!backoff.waits(ms(1000)));
        // Four times the median of 5 ms.
        backoff.record_step(ms(1000), ms(1020), 1, false);
        assert!(backoff.waits(ms(1020)) && backoff.waits(ms(2019)) && !backoff.waits(ms(2020)));
        backoff.record_step(ms(3000), ms(3100), 1, false);
        assert!(backoff.waits(ms(5099)) && !backoff.waits(ms(5100)));
        backoff.record_step(ms(6000), ms(6005), 1, false);
        backoff.record_step(ms(6100), ms(6200), 1, false);
        assert!(!backoff.waits(ms(7200)), "a step as usual ends it");
    }

    #[test]
    fn a_recovering_cluster_is_left_alone_for_a_while_and_not_for_ever() {
        let mut backoff = Backoff::new(ms(1000));
        backoff.record_step(ms(0), ms(1), 1, true);
        assert!(backoff.waits(ms(1000)) && !backoff.waits(ms(1001)));
        backoff.record_step(ms(1001), ms(1002), 1, true);
        assert!(backoff.waits(ms(3001)) && !backoff.waits(ms(3002)));
        assert!(
            Backoff { until: Duration::from_secs(100), ..Backoff::new(ms(1000)) }
                .waits(Duration::from_secs(99))
        );
        assert!(
            !Backoff { until: Duration::from_secs(100), ..Backoff::new(ms(1000)) }
                .waits(Duration::from_secs(10)),
            "the clock was set back"
        );
    }
}
