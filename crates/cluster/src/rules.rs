//! The rules that keep data whole, each asked for at the step that keeps it.
//!
//! A product keeps all of them: there `keeps` is the constant `true`. With the feature
//! `planted-bugs` the simulator names one rule that the steps break, and must find the loss. The
//! code that runs only then is in files named `broken.rs`, but for single lines.

/// A rule that a step of the engine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum Rule {
    /// The reference of the old chunk is dropped only after the entry names the new one. Otherwise
    /// an entry names a chunk that a scrub may collect.
    FlipBeforeDrop,
    /// The reference of the new chunk is added before the entry names it. Otherwise an entry names a
    /// chunk that nobody keeps.
    ReferenceBeforeFlip,
    /// A foreground write compares the entries that it was decided from. Otherwise it overwrites
    /// the change of another session.
    EntryCompared,
    /// The key of a reference has the stamp of the change that adds it. Otherwise a late copy of a
    /// drop removes a newer reference.
    ReferenceHasStamp,
    /// After a flip that came too late, only references without a use are dropped. Otherwise the
    /// winner's entry names a chunk without a reference.
    UsedReferencesKept,
    /// A chunk object without references is removed only in the version in which it was seen so.
    /// Otherwise a reference that came meanwhile goes with it.
    RemovalComparesVersion,
    /// A scrub drops a reference because of what its entry says, whatever its age. Otherwise it
    /// drops the reference of a flip under way.
    ScrubJudgesByEntry,
    /// The key of an object in the dirty list has the stamp of its listing. Otherwise a late removal
    /// takes away a newer listing.
    ListKeyHasStamp,
    /// A foreground write compares the list stamp of its object. Otherwise the object may be on the
    /// list under no key that its map names.
    ListStampCompared,
    /// A write is acknowledged only after its object is on the dirty list. Otherwise no worker finds
    /// the object when the session ends.
    ListedBeforeAcknowledged,
    /// Every stamp is used once. Otherwise an entry value comes back, and a late copy of an
    /// operation counts.
    StampsUnique,
    /// A session that takes a volume over fences the owner before it. Otherwise late writes of
    /// that owner overwrite newer ones.
    TakeoverFences,
    /// A standby shuts out the server before it takes over. Otherwise two servers are at work.
    StandbyFences,
    /// A standby counts by its own monotonic clock how long the server at work was still. Otherwise a clock
    /// that is set ends a server that lives.
    StillByOwnClock,
    /// A takeover compares that no beat came since the server before was seen still. Otherwise one whose beats
    /// reach a part of the store that has not heard of the fence answers beside its successor.
    TakeoverComparesBeat,
    /// After takeovers that failed those that stand by wait, each time longer. Otherwise servers that can't
    /// serve shut out, or take over from, each other without a pause.
    FailedTakeoversPause,
    /// The owner of a volume counts each change of it. Otherwise a client gets what was read ahead before the
    /// change.
    ChangesCounted,
    /// A volume of which a snapshot was taken keeps the results of the writes before. Otherwise a client learns
    /// nothing of one that failed.
    TicketsGoOn,
    /// No snapshot is taken while a change of a client that failed may still come. Otherwise it changes what the
    /// snapshot holds.
    StepsAreSure,
    /// A server that others stand by for answers nothing without a young proof that it was not shut
    /// out. Otherwise one that was stopped gives from its memory what another one has overwritten.
    AnswersProven,
    /// The operation that flips entries also punches their data out of the object. Otherwise a
    /// write between the two is lost.
    PunchWithFlip,
    /// A read gets entries and data of an object in one operation. Otherwise a flip between two
    /// operations gives zeroes.
    EntriesReadWithData,
    /// A reference to a chunk that is being removed makes the chunk anew. Otherwise the reference
    /// names a chunk without data.
    RemovedChunkMadeAnew,
    /// An object is removed only after the references of its entries are dropped. Otherwise nothing
    /// names them any more.
    DropsBeforeRemoval,
    /// A write whose reply is lost is looked for by its stamp before it is decided anew. Otherwise
    /// it counts twice, over what another session wrote in between.
    RetryKeepsStamp,
    /// A promotion leaves dirty chunks dirty. Otherwise workers never deduplicate them.
    PromotionKeepsDirty,
    /// An object that should exist and is missing gives an error. Otherwise its data reads as
    /// zeroes.
    MissingObjectFails,
    /// A partial write keeps the mask of the blocks that were written before. Otherwise these
    /// blocks come from the base again.
    MaskKept,
    /// A long trim reaches an object before the next write into it. Otherwise the trim clears that
    /// write later.
    DiscardBeforeWrite,
    /// A scrub spares the references of an inline session at work, whose entries may come. Otherwise
    /// the entry names a chunk without a reference.
    InlineReferencesSpared,
    /// A reference of a re-cut under way counts as used. Otherwise the new entries name chunks
    /// without references.
    RecutReferencesSpared,
    /// A reference of a copy under way, of an object from a layer below, counts as used. Otherwise the
    /// copy names chunks without references.
    CopyReferencesSpared,
    /// The entries of such a copy have references of their own. Otherwise the chunks go with the layer.
    CopyHasReferences,
    /// Who writes to an object without a bit, over a layer that has it, puts it on the dirty list: its copy
    /// may have been cut off there. Otherwise a write is acknowledged that no worker knows of.
    CopyListedByWriter,
    /// An object that is inherited becomes the volume's own before it is changed. Otherwise the rest of
    /// it reads as zeroes.
    InheritedBeforeChanged,
    /// The session that takes a snapshot owns the volume. Otherwise a server goes on writing into what is
    /// the snapshot by then.
    SnapshotByOwner,
    /// A volume that is cloned goes on under another number. Otherwise the clone has what is written to the
    /// volume later.
    ClonedVolumeLeft,
    /// A layer hands its objects down before it goes. Otherwise snapshots and clones over it read
    /// zeroes.
    LayerHandedDown,
    /// A layer that goes gives the parents of its children that read another layer a new stamp. Otherwise an
    /// operation on its way lets one of them read the layer when that is gone.
    OtherParentsStamped,
    /// The flip of a re-cut compares all entries that it replaces. Otherwise it overwrites a
    /// foreground write.
    RecutEntriesCompared,
    /// A foreground write compares the re-cut key. Otherwise an entry that a re-cut removed comes
    /// back.
    RecutKeyCompared,
    /// The flip leaves the drop of the old reference as a pending drop. Otherwise the reference of a
    /// worker that is killed stays for ever.
    PendingDropInFlip,
    /// The owner of a volume is fenced before the volume is deleted. Otherwise its late writes make
    /// objects that nothing names.
    DeletedVolumeFenced,
    /// A change of a name compares the value that it replaces. Otherwise it overwrites the change of
    /// another session.
    NameCompared,
    /// A chunk is recorded in the list of kept chunks before it is kept in its object. Otherwise no
    /// session gives the space back after a crash.
    KeptChunkListed,
    /// A long trim waits while as many are open as may be. Otherwise each write looks through
    /// trims without a bound.
    DiscardsLimited,
    /// A change that leaves pending drops waits while its object has as many as may be. Otherwise a
    /// map has more keys than those who read it expect.
    PendingDropsLimited,
    /// A write waits while as many bytes of writes wait as may be. Otherwise a client takes all of a
    /// server's memory.
    WaitingBytesLimited,
    /// A session takes back the attempts that are over when it records the next ones. Otherwise they
    /// are as many as its changes.
    AttemptsTakenBack,
    /// An attempt is recorded before its reference is added. Otherwise nobody finds the reference of
    /// a session that was killed.
    AttemptNotedFirst,
    /// An attempt stays recorded while the entry of its reference waits for its flip. Otherwise
    /// nobody finds the reference when the flip never comes.
    AttemptKeptWhileOpen,
    /// A write whose base chunk is gone reads the map again. Otherwise a flip between the two makes
    /// the write fail.
    GoneBaseReadAgain,
    /// A chunk that was read is compared with its name. Otherwise rotten data passes for good.
    ChunkComparedBeforeTrusted,
    /// A chunk that can't be read gives an error. Otherwise its data reads as zeroes.
    UnreadableChunkFails,
    /// The age of an attempt counts anew when the clock was set back. Otherwise attempts wait until
    /// the clock is where it was.
    ClockMayGoBack,
    /// A rename compares that the new name is free. Otherwise it takes the name of something else.
    NewNameCompared,
    /// The first step of a rename compares how many steps of renames the shard saw. Otherwise a late
    /// copy arrives at a name that is free again.
    RenameStepsCompared,
    /// The operation that leaves the old name records the departure. Otherwise the arrival never
    /// counts, and the thing has no name.
    DepartureRecorded,
    /// The last step of a rename compares the arrival that it replaces. Otherwise a late copy brings
    /// a name back.
    ArrivalCompared,
    /// A rename that was overtaken is withdrawn. Otherwise something that was deleted or renamed
    /// elsewhere gets a name again.
    OvertakenWithdrawn,
    /// An arrival counts only when the departure shows that the old name was left. Otherwise the
    /// thing has two names.
    ArrivalNeedsDeparture,
    /// A listing of names is repeated while renames go on. Otherwise something that is renamed is
    /// missing from it.
    NamesListedUntilStable,
    /// A scrub that goes on does so in the stage where the one before ended. Otherwise nobody looks at the
    /// rest of that stage.
    ScrubGoesOnInItsStage,
    /// A trim, or a write of what is there already, changes the entry of a chunk that a failed write
    /// may still change. Otherwise a late copy of the failed write comes after it.
    FailedWriteOvertaken,
    /// Workers finish renames that were begun. Otherwise the new name stays reserved when the
    /// session that began was killed.
    HalfRenamesFinished,
    /// In a sealed store the nonce and the tag of a value have its object and key. Otherwise who holds
    /// the store sees equal values, and exchanges them.
    ValuesSealedForTheirPlace,
    /// Names are sealed in the keys of their shards. Otherwise who holds the store reads them.
    NamesSealed,
    /// Blocks that stand in a metadata object are sealed. Otherwise who holds the store reads them.
    BlocksSealed,
    /// The counters of a block have its sum. Otherwise two contents of one place have one key stream.
    CountersHaveSum,
    /// A block that stands in a metadata object is compared with its sum. Otherwise changed bytes pass
    /// for good.
    StandingBlocksCompared,
    /// A trimmed block of a sealed store reads as zeroes, whatever is stored in its place. Otherwise the
    /// host writes there what it likes.
    TrimmedBlocksZeroed,
    /// The operation that writes blocks sets their sums. Otherwise a crash between the two leaves blocks
    /// that nobody can read.
    SumsSetWithTheirBlocks,
    /// The place up to which a receive is durable is set after the answers to all writes before it. Otherwise a
    /// sender that goes on leaves out what was lost.
    CursorBehindData,
    /// Blocks of a chunk that stand in an object are sent although both snapshots name one chunk for the rest.
    /// Otherwise the copy has older ones.
    DirtyBlocksSent,
    /// What is received is applied to the snapshot alone from which the stream was made. Otherwise the rest of it is
    /// another one's.
    BaseCompared,
    /// What was received becomes a snapshot after the answers to all its writes. Otherwise the snapshot lacks what
    /// comes too late, or never.
    SnapshotAfterItsData,
    /// No client writes to a replica. Otherwise the next receive gives up what it wrote.
    ReplicasRefused,
    /// Chunk objects are filled up to 4 KiB. Otherwise their sizes show how long chunks are.
    ChunksFilledUp,
}

#[cfg(feature = "planted-bugs")]
impl Rule {
    /// The planted bugs: the simulator's name of each, and the rule that it breaks.
    pub const BUGS: [(&'static str, Rule); 77] = [
        ("drop-before-flip", Rule::FlipBeforeDrop),
        ("flip-before-reference", Rule::ReferenceBeforeFlip),
        ("blind-foreground-entry", Rule::EntryCompared),
        ("reference-without-stamp", Rule::ReferenceHasStamp),
        ("losers-drop", Rule::UsedReferencesKept),
        ("removal-without-version", Rule::RemovalComparesVersion),
        ("scrub-by-age", Rule::ScrubJudgesByEntry),
        ("list-key-without-stamp", Rule::ListKeyHasStamp),
        ("listed-key-not-compared", Rule::ListStampCompared),
        ("insert-not-awaited", Rule::ListedBeforeAcknowledged),
        ("stamp-reused", Rule::StampsUnique),
        ("takeover-without-fence", Rule::TakeoverFences),
        ("punch-outside-flip", Rule::PunchWithFlip),
        ("entries-and-data-read-apart", Rule::EntriesReadWithData),
        ("removing-trusted", Rule::RemovedChunkMadeAnew),
        ("object-removed-before-its-drops", Rule::DropsBeforeRemoval),
        ("new-stamp-on-retry", Rule::RetryKeepsStamp),
        ("promotion-clears-dirty", Rule::PromotionKeepsDirty),
        ("missing-object-as-zeroes", Rule::MissingObjectFails),
        ("mask-bit-lost", Rule::MaskKept),
        ("old-discard-over-newer-write", Rule::DiscardBeforeWrite),
        ("inline-reference-judged-by-its-entry", Rule::InlineReferencesSpared),
        ("recut-reference-judged-by-its-entry", Rule::RecutReferencesSpared),
        ("copy-judged-by-its-entry", Rule::CopyReferencesSpared),
        ("snapshots-references-not-its-own", Rule::CopyHasReferences),
        ("cut-off-copy-on-no-list", Rule::CopyListedByWriter),
        ("inherited-object-written-over", Rule::InheritedBeforeChanged),
        ("write-changes-snapshot", Rule::SnapshotByOwner),
        ("clone-sees-later-writes", Rule::ClonedVolumeLeft),
        ("layer-goes-with-its-objects", Rule::LayerHandedDown),
        ("other-parents-without-new-stamp", Rule::OtherParentsStamped),
        ("recut-entries-not-compared", Rule::RecutEntriesCompared),
        ("recut-key-not-compared", Rule::RecutKeyCompared),
        ("pending-drop-not-in-flip", Rule::PendingDropInFlip),
        ("deleted-volume-not-fenced", Rule::DeletedVolumeFenced),
        ("name-not-compared", Rule::NameCompared),
        ("kept-chunk-not-listed", Rule::KeptChunkListed),
        ("long-discards-without-bound", Rule::DiscardsLimited),
        ("waiting-bytes-without-bound", Rule::WaitingBytesLimited),
        ("attempt-not-noted", Rule::AttemptNotedFirst),
        ("attempt-forgotten-while-its-entry-waits", Rule::AttemptKeptWhileOpen),
        ("gone-base-fails-a-write", Rule::GoneBaseReadAgain),
        ("chunk-not-compared-with-its-name", Rule::ChunkComparedBeforeTrusted),
        ("unreadable-chunk-as-zeroes", Rule::UnreadableChunkFails),
        ("clock-never-goes-back", Rule::ClockMayGoBack),
        ("new-name-not-compared", Rule::NewNameCompared),
        ("steps-of-renames-not-compared", Rule::RenameStepsCompared),
        ("departure-forgotten", Rule::DepartureRecorded),
        ("arrival-not-compared", Rule::ArrivalCompared),
        ("overtaken-rename-finished", Rule::OvertakenWithdrawn),
        ("arrival-counts-before-its-departure", Rule::ArrivalNeedsDeparture),
        ("names-listed-once", Rule::NamesListedUntilStable),
        ("half-renames-left", Rule::HalfRenamesFinished),
        ("value-sealed-without-its-place", Rule::ValuesSealedForTheirPlace),
        ("name-not-sealed", Rule::NamesSealed),
        ("plain-block-written", Rule::BlocksSealed),
        ("counter-without-sum", Rule::CountersHaveSum),
        ("standing-block-not-compared", Rule::StandingBlocksCompared),
        ("trimmed-block-not-zeroed", Rule::TrimmedBlocksZeroed),
        ("sum-in-another-operation", Rule::SumsSetWithTheirBlocks),
        ("chunk-not-filled-up", Rule::ChunksFilledUp),
        ("pending-drops-without-bound", Rule::PendingDropsLimited),
        ("attempts-not-taken-back", Rule::AttemptsTakenBack),
        ("scrub-goes-on-behind-its-stage", Rule::ScrubGoesOnInItsStage),
        ("standby-takes-over-without-fence", Rule::StandbyFences),
        ("lease-judged-by-a-clock-that-is-set", Rule::StillByOwnClock),
        ("shut-out-server-answers", Rule::AnswersProven),
        ("takeover-ignores-the-beat", Rule::TakeoverComparesBeat),
        ("failed-takeovers-without-pause", Rule::FailedTakeoversPause),
        ("change-not-counted", Rule::ChangesCounted),
        ("tickets-begin-anew", Rule::TicketsGoOn),
        ("snapshot-before-a-late-write", Rule::StepsAreSure),
        ("cursor-ahead-of-data", Rule::CursorBehindData),
        ("dirty-blocks-not-sent", Rule::DirtyBlocksSent),
        ("base-not-compared", Rule::BaseCompared),
        ("received-before-its-data", Rule::SnapshotAfterItsData),
        ("replica-written", Rule::ReplicasRefused),
    ];
}
