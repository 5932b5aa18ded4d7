//! The budget of a client: how many lines of an audit log may be about it, so that no client fills a disk.

use std::time::Instant;

use onefold_backend::audit::{LINES, LINES_A_SECOND};

/// The lines that one client has left.
pub(super) struct Budget {
    /// Lines left at `since`.
    lines: f64,
    since: Instant,
    /// Lines that were not written, and that no line has told of yet.
    unsaid: u64,
    /// Since when there are such lines.
    pub(super) silent: Option<Instant>,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Budget {
        Budget { lines: LINES, since: now, unsaid: 0, silent: None }
    }

    /// Takes a line. `Some` if it may be written, with the number of lines since the last one that were not;
    /// `None`, and counts the line, if none is left.
    pub(super) fn takes(&mut self, now: Instant) -> Option<u64> {
        let came = now.saturating_duration_since(self.since).as_secs_f64() * LINES_A_SECOND;
        (self.lines, self.since) = ((self.lines + came).min(LINES), now);
        if self.lines < 1.0 {
            self.unsaid += 1;
            self.silent.get_or_insert(now);
            return None;
        }
        self.lines -= 1.0;
        Some(self.counted())
    }

    /// The number of lines that were not written. The caller tells it, and counting begins anew.
    pub(super) fn counted(&mut self) -> u64 {
        self.silent = None;
        std::mem::take(&mut self.unsaid)
    }

    /// True when the client has all of its lines again, and nothing is left to tell: its budget can be
    /// forgotten.
    pub(super) fn is_rested(&self, now: Instant) -> bool {
        let came = now.saturating_duration_since(self.since).as_secs_f64() * LINES_A_SECOND;
        self.unsaid == 0 && self.lines + came >= LINES
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_budget_tells_what_was_not_said() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let said = (0..100).filter(|_| budget.takes(begin).is_some()).count();
        assert_eq!(said, 64);
        assert_eq!(budget.takes(begin + Duration::from_secs(2)), Some(36));
        assert!(!budget.is_rested(begin + Duration::from_secs(60)));
        assert!(budget.is_rested(begin + Duration::from_secs(70)));
    }
}
