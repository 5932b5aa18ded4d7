//! When a commit round closes its window.

use std::{fmt, str::FromStr, time::Duration};

use onefold_core::{Error, Kind, Result};

/// A round waits for returning clients this long at most.
const RETURNING_MAX: Duration = Duration::from_millis(1);

/// A round waits this long after the last client that joined it: the others are busy elsewhere.
const PATIENCE: Duration = Duration::from_micros(30);

/// How long a round waits for further changes before it closes its window (OrderMergeDedup, 2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anticipation {
    /// Not at all.
    None,
    /// The product's: for as many clients as were answered together last time, at most a
    /// millisecond, and 30 µs after the last one that joined.
    #[default]
    Returning,
    /// OrderMergeDedup's: always this long, when requests come so often that one more is likely in
    /// that time.
    Idle(Duration),
}

impl fmt::Display for Anticipation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Anticipation::None => f.write_str("none"),
            Anticipation::Returning => f.write_str("returning"),
            Anticipation::Idle(idle) => write!(f, "{}us", idle.as_micros()),
        }
    }
}

impl FromStr for Anticipation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Anticipation> {
        let micros = |text: &str| {
            text.parse::<u64>().ok().filter(|&us| us <= 1_000_000).map(Duration::from_micros)
        };
        match text {
            "none" | "0" => Ok(Anticipation::None),
            "returning" => Ok(Anticipation::Returning),
            "1ms" => Ok(Anticipation::Idle(Duration::from_millis(1))),
            _ => {
                text.strip_suffix("us").and_then(micros).map(Anticipation::Idle).ok_or_else(|| {
                    Error::new(
                        Kind::InvalidInput,
                        "anticipation is none, returning, 1ms, or a time of up to a second in \
                     microseconds, like 1000us",
                    )
                })
            }
        }
    }
}

/// Decides when each round of group commit closes its window.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    anticipation: Anticipation,
    /// Clients that the last round answered.
    answered: usize,
    /// When somebody began to want the present round.
    wanted: Duration,
    /// Mean time between requests lately.
    interval: Duration,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds::new(Anticipation::default())
    }
}

impl Rounds {
    /// No round yet.
    #[must_use]
    pub fn new(anticipation: Anticipation) -> Rounds {
        Rounds {
            anticipation,
            answered: 0,
            wanted: Duration::ZERO,
            interval: Duration::from_secs(1),
        }
    }

    /// A request came so long after the one before. Only [`Anticipation::Idle`] needs to know.
    pub fn requested(&mut self, gap: Duration) {
        self.interval = (self.interval * 7 + gap.min(Duration::from_secs(1))) / 8;
    }

    /// A round is wanted by `waiting` clients. Returns when its window closes.
    pub fn wanted(&mut self, now: Duration, waiting: usize) -> Duration {
        self.wanted = now;
        // Waiting for a single client costs the others more than it saves.
        self.closes(now, self.answered > waiting + 1)
    }

    /// Now `waiting` clients want the present round. Returns when its window closes.
    #[must_use]
    pub fn joined(&self, now: Duration, waiting: usize) -> Duration {
        self.closes(now, self.answered > waiting)
    }

    fn closes(&self, now: Duration, company: bool) -> Duration {
        match self.anticipation {
            Anticipation::Returning if company => {
                (now + PATIENCE).min(self.wanted + RETURNING_MAX).max(now)
            }
            Anticipation::Idle(idle) if self.interval < idle => (self.wanted + idle).max(now),
            Anticipation::None | Anticipation::Returning | Anticipation::Idle(_) => now,
        }
    }

    /// The present round is over, and answered so many clients.
    pub fn ended(&mut self, answered: usize) {
        self.answered = answered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn a_round_waits_for_as_many_as_were_answered_together() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.wanted(us(5), 1), us(5));
        rounds.ended(4);
        assert_eq!(rounds.wanted(us(100), 1), us(130));
        assert_eq!(rounds.joined(us(120), 3), us(150));
        assert_eq!(rounds.joined(us(140), 4), us(140));
    }

    #[test]
    fn a_round_never_waits_longer_than_a_millisecond() {
        let mut rounds = Rounds::default();
        rounds.ended(100);
        assert_eq!(rounds.wanted(us(0), 1), us(30));
        assert_eq!(rounds.joined(us(990), 2), us(1000));
        assert_eq!(rounds.joined(us(1200), 3), us(1200));
    }

    #[test]
    fn idle_anticipation_waits_only_while_requests_come_often() {
        let mut rounds = Rounds::new(Anticipation::Idle(us(1000)));
        assert_eq!(rounds.wanted(us(0), 1), us(0));
        (0..200).for_each(|_| rounds.requested(us(10)));
        assert_eq!(rounds.wanted(us(2000), 1), us(3000));
    }
}
