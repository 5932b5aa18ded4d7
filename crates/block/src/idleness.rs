//! How long no client asked for anything.

/// How long no client asked for anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idleness {
    /// Clients are at work: nothing that costs writes.
    None,
    /// Clients are at work, and idle work has its small share of the time now.
    Share,
    /// A pause between two requests: what takes a few ms does not disturb.
    Pause,
    /// A moment: a flush does not disturb.
    Short,
    /// Long enough to rewrite data.
    Long,
}
