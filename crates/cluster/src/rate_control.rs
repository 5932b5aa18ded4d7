//! Rate control (the paper's 4.4.2). Below the low mark there is no limit. Between the marks one
//! operation of deduplication may follow 100 of clients, above the high mark 500. The marks are for
//! the whole store: servers publish their load, and workers add it up.

use std::time::Duration;

use crate::presence::Growth;

/// Client operations for one of deduplication, between the marks and above the high one.
const BETWEEN: u64 = 100;
const ABOVE: u64 = 500;

/// Most operations that may be saved up, as the time in which they accrue.
const SAVED: Duration = Duration::from_secs(1);

/// Watermarks on operations and on bytes a second; `u64::MAX` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Operations a second, low and high.
    pub operations: (u64, u64),
    /// Bytes a second, low and high.
    pub bytes: (u64, u64),
}

impl Default for Watermarks {
    fn default() -> Watermarks {
        Watermarks { operations: (500, 5_000), bytes: (16 << 20, 256 << 20) }
    }
}

impl Watermarks {
    /// No limit at any load.
    pub const NONE: Watermarks =
        Watermarks { operations: (u64::MAX, u64::MAX), bytes: (u64::MAX, u64::MAX) };

    /// Client operations for one of deduplication; `None` for no limit.
    #[must_use]
    pub fn ratio(&self, operations: u64, bytes: u64) -> Option<u64> {
        if operations > self.operations.1 || bytes > self.bytes.1 {
            Some(ABOVE)
        } else if operations > self.operations.0 || bytes > self.bytes.0 {
            Some(BETWEEN)
        } else {
            None
        }
    }
}

/// How fast a worker may go.
pub struct Rate {
    marks: Watermarks,
    looked: Option<Duration>,
    ratio: Option<u64>,
    /// Operations that may be done, in thousandths; negative after more were done than allowed.
    tokens: i64,
    /// The most that may be saved up.
    most: i64,
    /// Living workers, this one among them.
    workers: u64,
}

impl Rate {
    /// Without a look at the load there is no limit.
    #[must_use]
    pub fn new(marks: Watermarks) -> Rate {
        Rate { marks, looked: None, ratio: None, tokens: 0, most: 0, workers: 1 }
    }

    /// Updates the rate from the changes since the last look; returns how many operations may be
    /// done now.
    pub(crate) fn allowance(&mut self, now: Duration, did: &Growth) -> u64 {
        self.workers = did.workers.max(1);
        if let Some(looked) = self.looked {
            let passed = now.saturating_sub(looked).max(Duration::from_millis(1));
            let a_second = |count: u64| (count as f64 / passed.as_secs_f64()) as u64;
            self.ratio = self.marks.ratio(a_second(did.operations), a_second(did.bytes));
            if let Some(ratio) = self.ratio {
                let given = did.operations.saturating_mul(1000) / ratio / self.workers;
                let given = i64::try_from(given).unwrap_or(i64::MAX);
                self.most =
                    (given as f64 * (SAVED.as_secs_f64() / passed.as_secs_f64()).max(1.0)) as i64;
                self.tokens = self.tokens.saturating_add(given).min(self.most.max(1000));
            }
        }
        self.looked = Some(now);
        match self.ratio {
            None => {
                self.tokens = self.tokens.max(0);
                u64::MAX
            }
            Some(_) => (self.tokens.max(0) / 1000) as u64,
        }
    }

    /// Workers that are alive, according to the last look.
    #[must_use]
    pub fn workers(&self) -> u64 {
        self.workers
    }

    /// True while there is a limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.ratio.is_some()
    }

    /// Counts operations that were done.
    pub fn spent(&mut self, operations: u64) {
        if self.ratio.is_some() {
            let spent = i64::try_from(operations).unwrap_or(i64::MAX).saturating_mul(1000);
            self.tokens = self.tokens.saturating_sub(spent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marks_decide_the_ratio() {
        let marks = Watermarks { operations: (100, 1000), bytes: (10_000, u64::MAX) };
        assert_eq!(marks.ratio(100, 10_000), None);
        assert_eq!(marks.ratio(101, 0), Some(100));
        assert_eq!(marks.ratio(0, 10_001), Some(100));
        assert_eq!(marks.ratio(1001, 0), Some(500));
        assert_eq!(Watermarks::NONE.ratio(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn rule_09_a_load_that_somebody_else_published_is_no_panic() {
        let mut rate = Rate::new(Watermarks { operations: (1_000, 10_000), ..Watermarks::NONE });
        let load = Growth { operations: u64::MAX, bytes: u64::MAX, ..Growth::default() };
        for second in 0..3 {
            rate.allowance(Duration::from_secs(second), &load);
            rate.spent(1000);
        }
        assert!(rate.is_limited());
    }

    #[test]
    fn workers_share_what_the_load_gives() {
        for (operations, expected) in [(2_000, 10), (20_000, 20)] {
            let marks = Watermarks { operations: (1_000, 10_000), ..Watermarks::NONE };
            let load = |operations| Growth { operations, workers: 2, ..Growth::default() };
            let mut total = 0;
            for _ in 0..2 {
                let mut rate = Rate::new(marks);
                let second = Duration::from_secs;
                assert_eq!(rate.allowance(second(0), &load(0)), u64::MAX);
                total += rate.allowance(second(1), &load(operations));
                rate.spent(1000);
                assert_eq!(rate.allowance(second(2), &load(operations)), 0);
                assert_eq!(rate.allowance(second(3), &load(0)), u64::MAX);
            }
            assert_eq!(total, 2 * expected);
        }
    }
}
