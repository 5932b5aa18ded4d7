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
    /// A volume maps no more than its quota, and is refused nothing before it does.
    Quota,
    /// A domain stores no more than its quota, is refused nothing before it does, and finds what is kept
    /// for it.
    DomainLimits,
    /// A store has the size that it was told to have, or after a crash that from before.
    StoreSize,
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
    /// Nobody without a key reads a sealed archive or store, opens it, or changes it unnoticed.
    Secrecy,
    /// Bucket: a frame counts at one number or never, and stays.
    FramesOnce,
    /// Bucket: the files are those of one commit, and have all that was acknowledged before.
    Committed,
    /// Bucket: what a reader sees stays for a day.
    ReadersServed,
    /// Bucket: a log that went back is refused.
    GoneBack,
    /// Bucket: after a change of keys nothing has keys but what files need.
    KeysGone,
    /// Bucket: in the end nothing is left but what files need.
    NothingLeft,
    /// Cluster: a map names a chunk only while that chunk has its reference.
    NoChunkLost,
    /// Cluster: an object goes only when it names no chunk any more.
    NoReferenceLeaked,
    /// Cluster: once all is clean, chunks have the references of maps and no others.
    ReferencesConverge,
    /// Cluster: once all is clean, a chunk without a reference is not there.
    Collected,
    /// Cluster: a reference that a map had is named by it, or is a pending drop, until it was
    /// dropped.
    DropForgotten,
    /// Cluster: workers find the references that killed sessions left behind.
    LeftBehind,
    /// Cluster: a dirty object is on the dirty list.
    Listed,
    /// Cluster: an object that keeps a clean chunk is on the list for that.
    CacheListed,
    /// Cluster: the chunks of a map do not overlap.
    Overlap,
    /// Cluster: an object has no more keys, and a volume no more long trims, than its limit says.
    Bounds,
    /// Cluster: an entry's mask names every block of its object that has bytes.
    Space,
    /// Cluster: every key and value can be decoded.
    Format,
    /// Cluster: a read gives the last acknowledged write, or one whose end is not known.
    LastWrite,
    /// Cluster: a snapshot holds what its volume held at its moment.
    SnapshotContent,
    /// Cluster: an object that was put is what somebody put last.
    LastPut,
    /// Cluster: a read between writes that wait gives the writes of its own client.
    OwnWrites,
    /// Cluster: every volume and object has exactly one name, and what was deleted has none.
    OneName,
    /// Cluster: in the end no rename is half done.
    Renamed,
    /// Cluster: what changed under a name was asked for.
    Unasked,
    /// Cluster: what somebody was told of a name is true.
    Answer,
    /// Cluster: a listing gives the names that there were.
    Listing,
    /// Cluster: a scrub of a store that is clean finds nothing.
    ScrubQuiet,
    /// Cluster: damage is told where there is some, and nowhere else.
    Damage,
    /// Cluster: an object that is lost is damage, and never zeroes.
    MissingObject,
    /// Cluster: a standby takes the place of a server only when it shut that one out, or that one gave up.
    OneServer,
    /// Cluster: a standby shuts out nobody who lives.
    LivingSpared,
    /// Cluster: a server that was replaced answers nothing any more.
    ReplacedIsSilent,
    /// Cluster: after a takeover that came to nothing those that stand by wait, each time longer.
    PauseKept,
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
