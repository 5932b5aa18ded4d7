//! The rules that keep what is in a bucket, each asked for at the step that keeps it.
//!
//! A product keeps all of them: there `keeps` is the constant `true`. With the feature `planted-bugs` the
//! simulator names one rule that the steps break, and must find the loss.

/// A rule that a step keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code))]
pub enum Rule {
    /// A creation whose end is not known is sent again, the same bytes to the same name. Taken for a failure,
    /// it leads to the same change twice.
    UnknownIsSentAgain,
    /// A creation whose end is not known is no success. Otherwise a commit is acknowledged that never was.
    UnknownIsNoSuccess,
    /// A writer that finds another's frame under its next number reads it. Otherwise a fenced writer goes on behind
    /// it, and writes over what its successor stored.
    OthersFramesRead,
    /// Names of packs begin with the number of their writer's own joining. Otherwise two that race for a
    /// frame write one name.
    OwnNames,
    /// Packs are there before the frame that names them. Otherwise a crash leaves a frame without its bytes.
    PacksBeforeFrame,
    /// The table is there before the frame that names it. Otherwise nobody can read the log.
    TableBeforeFrame,
    /// A frame of the log stays for ever. Otherwise one that was asleep creates it again, and the log has two
    /// histories.
    FramesStay,
    /// An object that a frame dropped stays for a day. Otherwise readers of older states find holes.
    TrashWaits,
    /// This day is counted by the store's clock. Otherwise one whose clock is wrong deletes at once.
    TrashByStoreClock,
    /// An object that no frame names is deleted when its writer has ended. By its age, it would go before the frame of a
    /// slow writer that names it.
    OrphansByOwner,
    /// A body shorter than the object is no whole one. Otherwise zeroes are read where bytes were.
    BodiesWhole,
    /// The bytes of a frame and a table have their hash. Otherwise a store that mixes up objects is believed.
    BodiesHashed,
    /// A pack that is read whole has the hash that its record says. Otherwise a store that mixes up objects is
    /// believed.
    PacksHashed,
    /// Bytes that a host kept of an object have their hash. Otherwise a disk that rotted is believed against the store.
    KeptHashed,
    /// The rest of a sparse pack is written again only when the pack has its hash. Otherwise rotten bytes get
    /// a record that calls them sound.
    CopiesVerified,
    /// A writer is fenced when its lease stood still while one watched. By the dates in it, one with another clock
    /// would be fenced although it works.
    LeaseWatched,
    /// A process that waits for a writer at work does not join meanwhile. Otherwise it shuts that writer out.
    WaitersDoNotJoin,
    /// A log that lacks what this host saw is refused. Otherwise somebody puts an older archive back.
    GoneBackRefused,
    /// A change of keys deletes what a killed writer stored of keys without a frame. Otherwise a key that is removed
    /// stays in the bucket.
    KeyOrphansGo,
    /// A writer counts what it stored as durable when its frame is there. Otherwise syncs end early.
    SyncWaitsForFrame,
}

#[cfg(feature = "planted-bugs")]
impl Rule {
    /// The planted bugs: the simulator's name of each, and the rule that it breaks.
    pub const BUGS: [(&'static str, Rule); 20] = [
        ("unknown-is-failure", Rule::UnknownIsSentAgain),
        ("unknown-is-success", Rule::UnknownIsNoSuccess),
        ("fenced-appends", Rule::OthersFramesRead),
        ("packs-by-frame-number", Rule::OwnNames),
        ("frame-before-packs", Rule::PacksBeforeFrame),
        ("frame-before-table", Rule::TableBeforeFrame),
        ("log-frame-deleted", Rule::FramesStay),
        ("deleted-at-once", Rule::TrashWaits),
        ("trash-by-own-clock", Rule::TrashByStoreClock),
        ("orphans-by-age", Rule::OrphansByOwner),
        ("short-body-believed", Rule::BodiesWhole),
        ("other-body-believed", Rule::BodiesHashed),
        ("lease-by-its-date", Rule::LeaseWatched),
        ("older-log-believed", Rule::GoneBackRefused),
        ("sync-before-frame", Rule::SyncWaitsForFrame),
        ("other-pack-believed", Rule::PacksHashed),
        ("copied-unverified", Rule::CopiesVerified),
        ("key-orphans-stay", Rule::KeyOrphansGo),
        ("waiter-joins", Rule::WaitersDoNotJoin),
        ("kept-believed", Rule::KeptHashed),
    ];
}
