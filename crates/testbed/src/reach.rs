//! Counters that prove that a run reached what it is there for: each fault, each kind of crash,
//! each branch of recovery.

use std::{collections::BTreeMap, fmt};

/// Branches and faults that were met, and how often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach(BTreeMap<&'static str, u64>);

impl Reach {
    /// Counts one.
    pub fn hit(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    /// Counts `n`.
    pub fn add(&mut self, what: &'static str, n: u64) {
        *self.0.entry(what).or_default() += n;
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Reach) {
        other.0.iter().for_each(|(what, n)| self.add(what, *n));
    }

    /// How often `what` was reached.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, n)| writeln!(f, "{n:>12}  {what}"))
    }
}
