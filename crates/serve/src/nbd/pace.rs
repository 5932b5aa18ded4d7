//! Limits of a volume: requests and bytes a second, for all its connections together.
//!
//! The generic cell rate algorithm: each request is paid for at the volume's rate, and a request
//! that comes before the earlier ones are paid for waits. *Invariant:* a pure decision: the caller
//! gives the times.

use std::time::Duration;

use onefold_core::VolumeLimits;

/// The burst that is allowed after a rest: as much as the rate allows in this time.
const BURST: Duration = Duration::from_millis(100);

/// The times at which all requests so far are paid for.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    limits: VolumeLimits,
    requests_paid: Duration,
    bytes_paid: Duration,
}

impl Pace {
    /// Sets the limits from now on.
    pub(crate) fn set(&mut self, limits: VolumeLimits) {
        if self.limits != limits {
            *self = Pace { limits, ..Pace::default() };
        }
    }

    /// True when all that was asked for is paid for, and the whole burst is allowed again.
    pub(crate) fn is_rested(&self, now: Duration) -> bool {
        self.requests_paid.max(self.bytes_paid) <= now.saturating_sub(BURST)
    }

    /// Counts so many requests and bytes; returns how long they have to wait.
    pub(crate) fn take(&mut self, now: Duration, requests: u64, bytes: u64) -> Duration {
        let wait = pay(&mut self.requests_paid, now, requests, u64::from(self.limits.iops));
        wait.max(pay(&mut self.bytes_paid, now, bytes, self.limits.bytes))
    }

    /// Counts one request of so many bytes if it need not wait; else counts nothing.
    pub(crate) fn take_at_once(&mut self, now: Duration, bytes: u64) -> bool {
        let before = (self.requests_paid, self.bytes_paid);
        let at_once = self.take(now, 1, bytes).is_zero();
        if !at_once {
            (self.requests_paid, self.bytes_paid) = before;
        }
        at_once
    }
}

/// Adds the time that `amount` costs at a rate; returns how long the request has to wait.
fn pay(paid: &mut Duration, now: Duration, amount: u64, per_second: u64) -> Duration {
    if per_second == 0 {
        return Duration::ZERO;
    }
    let nanoseconds = u128::from(amount) * 1_000_000_000 / u128::from(per_second);
    let begin = (*paid).max(now.saturating_sub(BURST));
    *paid =
        begin.saturating_add(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)));
    paid.saturating_sub(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a client is done that asks for so much `times` times, and for the next as soon as it
    /// has had the last.
    fn done(limits: VolumeLimits, times: u64, bytes: u64) -> Duration {
        let mut pace = Pace::default();
        pace.set(limits);
        let mut now = Duration::from_secs(5);
        for _ in 0..times {
            now += pace.take(now, 1, bytes);
        }
        now - Duration::from_secs(5)
    }

    #[test]
    fn rule_12_clients_are_as_fast_as_the_limits_say() {
        let none = VolumeLimits::default();
        assert_eq!(done(none, 1000, 1 << 30), Duration::ZERO);
        assert_eq!(
            done(VolumeLimits { iops: 100, ..none }, 110, 1 << 30),
            Duration::from_secs(1),
            "ten of them at once"
        );
        assert_eq!(
            done(VolumeLimits { bytes: 1 << 20, ..none }, 256, 4096),
            Duration::from_millis(900)
        );
        assert_eq!(
            done(VolumeLimits { iops: 1000, bytes: 1 << 20 }, 1, 32 << 20),
            Duration::from_millis(31_900),
            "the slower one counts"
        );
        assert!(
            done(VolumeLimits { bytes: 1, ..none }, 3, u64::MAX) > Duration::from_secs(1 << 30)
        );
    }
}
