//! How the engine works; nothing here is part of the format.

use std::time::Duration;

/// When the data written to volumes are deduplicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedup {
    /// Later, by workers (the paper's way).
    #[default]
    PostProcessing,
    /// By the server, after the write is durable and before it is acknowledged.
    FlushThrough,
    /// By the server, as part of the write: whole chunks are read, changed, named and stored.
    Inline,
}

/// The limits and waiting times of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Times that an operation without a reply is sent or looked for, until it is an error.
    pub tries: u32,
    /// When writes of this session are deduplicated.
    pub dedup: Dedup,
    /// Objects that changed within this time are not deduplicated.
    pub cold: Duration,
    /// How long a lock lasts when it is not renewed.
    pub lease: Duration,
    /// How long a worker waits at first while the cluster is slow or recovers; eight times that at
    /// most.
    pub pause: Duration,
    /// References at which a chunk gets twice as many copies.
    pub spread_at: usize,
    /// One add in so many counts the references.
    pub count_one_in: u64,
    /// Objects that a trim clears by itself; longer ones leave a record.
    pub direct_objects: u64,
    /// Objects of a volume that are looked for one by one when it is deleted or cut; more are
    /// looked up in the pool's listing.
    pub looked_for_max: u64,
    /// Long trims that have not reached all their objects, at most: each write looks through them.
    /// One more waits.
    pub discards_max: usize,
    /// Reads of a chunk within a minute that make it hot; 0 for never.
    pub hit_count: u32,
    /// Bytes of clean chunks kept in metadata objects by this server.
    pub cache_bytes: u64,
    /// Objects of a volume whose maps are remembered.
    pub known_objects: usize,
    /// Most objects that a worker processes in one step.
    pub objects_per_step: usize,
    /// Most bytes of chunks that a worker holds in memory and processes in one step, unless one
    /// object has more. Between steps the worker looks at the load.
    pub batch_bytes: u64,
    /// The planted bug.
    #[cfg(feature = "planted-bugs")]
    pub bug: Option<PlantedBug>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tries: 5,
            dedup: Dedup::PostProcessing,
            cold: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            spread_at: 8192,
            count_one_in: 256,
            direct_objects: 16,
            looked_for_max: 16_384,
            discards_max: 64,
            hit_count: 8,
            cache_bytes: 64 << 20,
            known_objects: 4096,
            objects_per_step: 16,
            batch_bytes: 8 << 20,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }
}

impl Settings {
    /// True when `bug` is planted.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn planted(&self, bug: PlantedBug) -> bool {
        self.bug == Some(bug)
    }

    /// Never, in a product.
    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self)]
    pub(crate) const fn planted(&self, _: PlantedBug) -> bool {
        false
    }
}

macro_rules! bugs {
    ($($bug:ident $name:literal,)*) => {
        /// A deliberate defect, each at the place where the rule is kept that it breaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(feature = "planted-bugs"), allow(unreachable_pub))]
        pub enum PlantedBug {
            $(#[doc = $name] $bug,)*
        }

        #[cfg(feature = "planted-bugs")]
        impl PlantedBug {
            /// All planted bugs.
            pub const ALL: &'static [PlantedBug] = &[$(PlantedBug::$bug,)*];

            /// The name of the bug.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(PlantedBug::$bug => $name,)*
                }
            }
        }
    };
}

bugs! {
    DropBeforeFlip "drop-before-flip",
    FlipBeforeReference "flip-before-reference",
    BlindEntry "blind-foreground-entry",
    ReferenceWithoutStamp "reference-without-stamp",
    LosersDrop "losers-drop",
    RemovalWithoutVersion "removal-without-version",
    ScrubByAge "scrub-by-age",
    ListKeyWithoutStamp "list-key-without-stamp",
    ListedNotCompared "listed-key-not-compared",
    InsertNotAwaited "insert-not-awaited",
    StampReused "stamp-reused",
    TakeoverWithoutFence "takeover-without-fence",
    PunchOutsideFlip "punch-outside-flip",
    ReadApart "entries-and-data-read-apart",
    RemovingTrusted "removing-trusted",
    RemovedBeforeDrops "object-removed-before-its-drops",
    NewStampOnRetry "new-stamp-on-retry",
    PromotionClearsDirty "promotion-clears-dirty",
    MissingAsZeroes "missing-object-as-zeroes",
    MaskBitLost "mask-bit-lost",
    OldDiscard "old-discard-over-newer-write",
    InlineJudged "inline-reference-judged-by-its-entry",
    RecutJudged "recut-reference-judged-by-its-entry",
    RecutBlind "recut-entries-not-compared",
    RecutNotCompared "recut-key-not-compared",
    PendingForgotten "pending-drop-not-in-flip",
    DeletedUnfenced "deleted-volume-not-fenced",
    NameNotCompared "name-not-compared",
    KeptUnlisted "kept-chunk-not-listed",
    DiscardsUnbounded "long-discards-without-bound",
    AttemptNotNoted "attempt-not-noted",
    AttemptForgotten "attempt-forgotten-while-its-entry-waits",
    GoneBaseFails "gone-base-fails-a-write",
    ChunkNotCompared "chunk-not-compared-with-its-name",
    UnreadableAsZeroes "unreadable-chunk-as-zeroes",
    ClockTrusted "clock-never-goes-back",
    TargetNotCompared "new-name-not-compared",
    StepsNotCompared "steps-of-renames-not-compared",
    DepartureForgotten "departure-forgotten",
    ArrivalNotCompared "arrival-not-compared",
    OvertakenArrives "overtaken-rename-finished",
    ArrivalTrusted "arrival-counts-before-its-departure",
    NamesListedOnce "names-listed-once",
    RenamesLeft "half-renames-left",
}
