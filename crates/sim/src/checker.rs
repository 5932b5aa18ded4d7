//! Failures, by the invariant that they break.

use std::fmt;

/// The invariant or assertion that a failure belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checker {
    /// Invariant 1: what was flushed survives; an unflushed block is one of its later versions or
    /// the old one.
    DurableSurvives,
    /// Invariant 2: wrong content is never returned.
    NeverWrong,
    /// Invariant 3: a physical block is reused only when nothing needs it.
    SafeReuse,
    /// Invariant 4: a reference count is never lower than the truth; leaks are bounded.
    ReferenceCounts,
    /// Invariant 5: an older version never comes back, also across repeated crashes.
    OldStaysOld,
    /// Invariant 6: a torn block loses nothing that was durable.
    TornWrites,
    /// Invariant 7: recovery reads the open zones, not the disk.
    RecoveryCost,
    /// Invariant 8: nothing is written, flushed or acknowledged after the first failure.
    FailStop,
    /// Invariant 9: space is reserved before a write is acknowledged, and comes back by trimming.
    SpaceReserved,
    /// Invariant 10: whatever the medium holds, the answer is a typed error or right; never a
    /// panic.
    NoPanic,
    /// An error without a fault that explains it.
    Unexplained,
    /// Trimmed and zeroed ranges read as zeroes.
    ZeroesReadZero,
    /// A second recovery gives what the first one gave.
    RecoveryTwice,
    /// Extents agree with the content.
    Extents,
    /// The volumes are those that were made.
    Volumes,
    /// The whole-store verifier finds nothing.
    StoreCheck,
    /// A second reading of the format, which shares no code with the engine, agrees with the model
    /// and with itself.
    SecondReading,
    /// Damage costs what it hit, and nothing else.
    DamageSpreads,
    /// No table and no queue is fuller than its limit says.
    Limits,
    /// A flush makes all durable that came before it; tickets don't go back.
    Tickets,
    /// The engine gets on when it is given steps.
    Progress,
    /// The engine uses the disk as its contract says.
    DiskContract,
    /// A content that is stored already is found.
    DuplicatesFound,
    /// The same seed gives the same run.
    Deterministic,
}

impl fmt::Display for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A broken invariant, and the checker that found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The checker.
    pub checker: Checker,
    /// The finding, as a sentence.
    pub message: String,
}

impl Failure {
    /// A finding of `checker`.
    pub fn new(checker: Checker, message: impl Into<String>) -> Failure {
        Failure { checker, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.message)
    }
}
