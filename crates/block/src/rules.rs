//! The rules that keep data whole, each asked for at the step that keeps it.
//!
//! A product keeps all of them: there `keeps` is the constant `true`. With the feature
//! `planted-bugs` the simulator names one rule that the steps break, and must find the loss. The
//! code that runs only then is in files named `broken.rs`, but for single lines.

/// A rule that a step of the engine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum Rule {
    /// A flush comes between the writes of a window and its acknowledgement. Without it a power
    /// cut loses acknowledged windows.
    FlushBeforePublish,
    /// An overwritten block is handed out again only after a checkpoint released it. Otherwise a
    /// crash restores a mapping to a block that holds other data.
    ReuseAfterRelease,
    /// Recovery compares the block of a record that may not be durable with the record's
    /// fingerprint. Otherwise a volume shows a block that was never written.
    NewerRecordsVerified,
    /// Recovery makes the windows void whose records it dropped. Otherwise the next recovery
    /// brings these records back over later writes.
    DroppedRecordsVoid,
    /// A window becomes durable after all windows before it. Otherwise a crash keeps a later write
    /// and loses an earlier one that was acknowledged.
    WindowsInOrder,
    /// A block counts as a duplicate only while it has references. One without references may be
    /// handed out, and then the new mapping shows other data.
    DuplicatesHaveReferences,
    /// A block counts as a carrier only when its proof holds and its generation is that of the
    /// zone's entry. Otherwise data that a client wrote, or an old carrier, changes mappings.
    CarriersProven,
    /// Carriers go into a zone only when its entry in the zone list is durable. Recovery does not
    /// look for carriers in other zones.
    ZoneListedBeforeUse,
    /// Windows are published, and count in a checkpoint as committed, only when they are durable.
    /// Otherwise tables name blocks that a power cut loses.
    CommittedWhenDurable,
    /// Blocks are released only when the superblock that does not need them is durable. Otherwise a
    /// crash restores an older superblock whose blocks were written over.
    ReleaseAfterSuperblock,
    /// Recovery flushes before it reads. Otherwise recovery believes blocks in the disk's cache
    /// which a second power cut loses.
    FlushBeforeRecovery,
    /// The checksum of a page of a table is compared when the page is read. Otherwise a damaged
    /// page gives wrong mappings instead of an error.
    PageChecksumsCompared,
    /// An entry that is written over gives back one reference. With two, a block that others still
    /// map becomes free.
    OverwriteLowersOnce,
    /// A checkpoint lets a trim clear only the writes before it. Otherwise a later write is lost.
    LaterWriteOverRange,
    /// A new version of a page of the leftover table goes beside the durable one. Otherwise a torn
    /// write loses the records of both.
    LeftoverVersionsAlternate,
    /// A zone has carriers only when both copies of the zone list name it. Otherwise recovery
    /// misses carriers when the copy that names their zone rots.
    ListedInBothCopies,
    /// A page of the leftover table is written again only when its last version is durable.
    /// Otherwise no version may be whole after a crash.
    LeftoverWaitsForFlush,
    /// Recovery ignores the records that the leftover table has of void windows. Otherwise records
    /// return that an earlier recovery dropped.
    LeftoverOfVoidIgnored,
    /// The pages of a checkpoint are durable before its superblock is written. Otherwise the
    /// superblock may name pages that a power cut lost.
    PagesBeforeSuperblock,
    /// Changes that only a checkpoint makes durable are acknowledged after it. Such are all changes
    /// with copy-on-write trees, and those of the catalogue with leaves in place.
    AcknowledgedByCheckpoint,
    /// With leaves in place, a block is linked only when its data is durable. Otherwise an address
    /// maps to a block without its data.
    DataBeforeLink,
    /// With leaves in place, the count of a block is raised before the block is linked. Otherwise a
    /// crash leaves a count below the number of links, and the block becomes free too early.
    CountBeforeLink,
    /// With leaves in place, a count is lowered only when the unlink is durable. Otherwise a crash
    /// restores a link to a block that became free.
    UnlinkBeforeDecrement,
    /// The fingerprint of a reclaimed block is cleared. Otherwise a later write finds a duplicate in
    /// a block that holds other data.
    FingerprintGoesWithBlock,
    /// A block that a closed window is about to link is not reclaimed. Otherwise the window links a
    /// free block.
    PinnedNotReclaimed,
    /// A recount counts the links of windows that are not durable yet, and unlinks that are not.
    /// Otherwise it lowers a count below the number of links.
    RecountSeesPendingLinks,
    /// Blocks of ranges without deduplication are never shared. Otherwise the damage of one block
    /// reaches data that the owner wanted stored apart.
    NoDedupNotShared,
    /// A trim waits for a checkpoint when the table of discards has no room for it. Otherwise the
    /// table outgrows the format's bound.
    DiscardsLimited,
    /// A recovery ends with a checkpoint when the superblock has no room for another cut.
    /// Otherwise cuts outgrow the superblock.
    CutsLimited,
    /// A new volume waits for a checkpoint when the catalogue has no room for it. Otherwise the
    /// catalogue outgrows the format's bound.
    VolumesLimited,
    /// Changes wait when as many carriers wait for a checkpoint as may. Otherwise a recovery reads
    /// and proves carriers without a bound.
    CarriersLimited,
    /// Changes wait when as many closed windows are not published as may be. Otherwise windows fill
    /// the memory without a bound.
    ClosedWindowsLimited,
    /// A window closes when it has as many ranges as may be. Otherwise its records outgrow its
    /// timestamps and its carriers.
    RangesLimited,
    /// The table of fingerprints gets the whole fingerprint. Otherwise two blocks whose stored half
    /// agrees count as duplicates.
    WholeFingerprintStored,
    /// A damaged page of a map fails the reads that need it, and no other reads of the batch.
    /// Otherwise a client gets errors for data that is whole.
    DamageFailsItsReadsAlone,
    /// A block that was read is compared with its fingerprint. Otherwise a client gets damaged data
    /// without an error.
    ReadsVerified,
    /// A failed flush stops all writes. A second flush succeeds without the data that the first one
    /// lost.
    FailedFlushStopsWrites,
    /// A failed read fails alone, and a later read asks the disk again. Otherwise one error of the
    /// disk costs all later writes.
    FailedReadFailsAlone,
    /// A page that others need becomes the lender of its copy. Otherwise what the copy repeats counts
    /// for nothing, and becomes free while the copy names it.
    StayingPageLends,
    /// A page from which others borrow is neither freed nor written over. Otherwise nobody can tell
    /// which entries of the borrowers count.
    BorrowersKeepPage,
    /// Pointers of a copied inner page count for their children by the same rule as entries of
    /// leaves. Otherwise a page becomes free that a new version names.
    InnerPagesCount,
    /// The end of an entry takes no reference from its block if the page's lender has the same entry.
    /// Otherwise a block becomes free that a snapshot names.
    LentEntriesNotLowered,
    /// The new version of a page that goes inherits its lender. Otherwise the lender waits for ever,
    /// and the copy's entries count twice.
    LenderInherited,
    /// A page that nothing counts for waits for those that borrow from it. Otherwise its borrowers
    /// are left without what they repeat.
    OrphanWaitsForBorrowers,
    /// The oldest borrower of a page that goes becomes the lender of the others. Otherwise each of
    /// them would have to count all that it repeats.
    HeirLends,
    /// Windows after a moment are published into another overlay. Otherwise a snapshot holds what
    /// was written after it.
    MomentSealsOverlay,
    /// An act is told when both superblocks have it. Otherwise a crash takes a snapshot that its
    /// caller was promised.
    ActsToldWhenDurable,
    /// While an act waits for room, clients leave it alone. Otherwise clients that trim all the time keep
    /// snapshots from ever beginning.
    ActsHaveTurns,
    /// Clients wait for no act that nobody asks for any more, nor for ever for one that finds no room.
    /// Otherwise an act that was given up stops all trims.
    TurnsEnd,
    /// A checkpoint takes apart as much of deleted maps as it has room for. Otherwise one after a large
    /// deletion takes long, and may have no room for its pages.
    LeftoversLimited,
    /// Ranges that wait to be applied are copied for a snapshot. Otherwise trimmed data comes back
    /// in it.
    RangesCopied,
    /// A map that leaves does not enter pages that others need. Otherwise the blocks of a snapshot
    /// become free with another one.
    SharedPagesNotEntered,
    /// A rollback comes after the changes of its moment. Otherwise writes from before it reach the
    /// volume that was rolled back.
    RollbackAfterChanges,
    /// Blocks that records of a sealed overlay name are not released. Otherwise a checkpoint hands
    /// out what the next one maps.
    SealedRecordsPin,
    /// A clone or snapshot can be seen only when its act is told of. Otherwise a client sees a clone that
    /// a crash takes away.
    ActsSeenWhenTold,
    /// Counts of pages are not in the table of references. Otherwise a client's write becomes a
    /// duplicate of a page.
    PagesCountApart,
    /// The checkpoint of a moment commits the windows up to it, though later ones are durable.
    /// Otherwise a crash loses these.
    MomentCommitsNoMore,
    /// Of the pages that nothing counts for the youngest is handed over first. Otherwise one that
    /// borrows, and hangs below another one, is overlooked.
    YoungestOrphanFirst,
    /// A page that nothing counts for has an entry in table 8 though nobody borrows from it.
    /// Otherwise it is held for ever.
    OrphansHaveEntries,
    /// A page whose lender can't be read has none any more, and all its entries count. Otherwise
    /// blocks become free that it names.
    UnreadLenderLendsNoMore,
    /// The cursor of a receive rises with the checkpoint that carries all blocks before it. Otherwise
    /// a receive that goes on after a crash leaves out blocks that were lost.
    CursorBehindData,
    /// Received blocks become a snapshot after the windows of its last frames. Otherwise the
    /// snapshot lacks them.
    ReceivedAfterData,
    /// A stream of changes is applied to the snapshot that it was made from. Otherwise what did not
    /// change is that of another snapshot.
    BaseCompared,
    /// Frames of a stream are applied as they were sent: none is missing, none comes before its
    /// turn. Otherwise a snapshot lacks blocks, or a cursor passes some.
    FramesInOrder,
    /// A page that two snapshots share is compared entry by entry while a range waits for either of
    /// them. Otherwise a trim is not sent.
    RangesCompared,
    /// The checkpoint of a cursor has the lost blocks that it passes. Otherwise a receive that goes on
    /// shows, in their place, zeroes or what its base has.
    LostWithCursor,
    /// The checkpoint that ends a receive has the blocks that were lost since the last cursor.
    /// Otherwise the snapshot shows zeroes, or what its base has, in their place.
    LostWithEnd,
    /// A lost block reads as an error. Otherwise a client takes for data what nobody wrote.
    LostIsAnError,
    /// When the zone list has moved, its pages are written at their new places. Otherwise recovery
    /// misses zones that have carriers.
    ListPagesFollowMove,
    /// The superblock of a store that grew names the place to which the zone list moved. Otherwise
    /// recovery reads an old list.
    ListNamedWhereItIs,
    /// The zones of a zone list that moved hold nothing else. Otherwise data is written over the
    /// list.
    ListZonesKept,
    /// A count that stands for "that many or more" stays. Otherwise a block is freed that is still
    /// named.
    ManyStays,
    /// A volume has no more snapshots than its limit.
    SnapshotsLimited,
    /// No more moments wait for their checkpoints than their limit.
    MomentsLimited,
    /// The counters of a sealed raw block begin with the prefix of its fingerprint. Otherwise two
    /// contents of one address have one key stream, and whoever has both images reads both.
    CountersHavePrefix,
    /// The counters of a sealed raw block have its address. Otherwise the disk shows which blocks are
    /// equal.
    CountersHaveAddress,
    /// Nothing is written to a sealed store that was not sealed. Otherwise whoever has its disk reads
    /// it.
    BlocksSealed,
    /// Compressed blocks are sealed with GCM-SIV. Otherwise two compressed forms of a content, or it
    /// and the content itself, have one key stream.
    CompressedHasNoCounter,
    /// The tag of a sealed page is compared when the page is read. Otherwise a changed page gives wrong
    /// mappings.
    SealedPagesProven,
    /// The tag of a sealed carrier is compared. Otherwise a block that looks like one changes mappings.
    SealedCarriersProven,
    /// The key area of a sealed store counts only when its code agrees. Otherwise whoever holds the
    /// disk brings a removed slot back.
    KeyAreaProven,
    /// The higher whole copy of the key area counts. Otherwise a removed slot opens the store again.
    HigherKeyAreaCounts,
    /// A change of keys writes both copies of the key area. Otherwise a removed slot opens the other.
    BothKeyAreasWritten,
    /// A key area counts only when no superblock bears a higher number. Otherwise an old one that was
    /// put back brings a removed slot back.
    KeyAreaNumberCompared,
    /// A store opens only in a state that is not older than the newest one that its opener saw.
    /// Otherwise an older image that somebody put back passes for the store.
    OlderStateRefused,
    /// A state is told to a witness, or noted, only when it is durable. Otherwise the store is refused
    /// after a crash, as if somebody had put back an older image.
    StatesToldWhenDurable,
    /// A copy of the key area is written like the other one only after the code of that one agreed.
    /// Otherwise a forged copy replaces the good one.
    CodeBeforeCopying,
    /// Opening a sealed store to write ends an erasure of its keys that a crash cut off. Otherwise
    /// a copy of the keys stays on the disk that was told to be erased.
    ErasureEnded,
    /// Fingerprints are made by the key of the volume's domain. Otherwise equal data of two domains is one
    /// block, and a client learns what another domain has.
    FingerprintsByDomain,
    /// Data is sealed by the keys of the volume's domain. Otherwise what was told to be erased is
    /// readable.
    DataByDomain,
    /// Compressed blocks are sealed by the keys of a domain, and not by the store's. Otherwise what was told
    /// to be erased is readable.
    PayloadsByDomain,
    /// A duplicate is looked for in the volume's own domain. Otherwise a block names what its domain's key
    /// does not open.
    DuplicatesWithinDomain,
    /// Recovery judges a block by the key of its volume's domain. Otherwise good records look torn, and what
    /// was acknowledged is lost.
    RecoveryByDomain,
    /// A block that is written where none was counts against its volume's quota at once. Otherwise a
    /// volume takes what others were to have.
    QuotaCharged,
    /// Pages of a map count against a quota. Otherwise a client that writes
    /// single blocks far apart takes what others were to have.
    MapPagesCharged,
    /// Zeroes alone keep no leaf of a map. Otherwise a client fills the store with leaves.
    ZeroesKeepNoLeaf,
    /// A write is refused by a quota only when a checkpoint has counted what was trimmed, and what was
    /// charged too high. Otherwise a volume with room refuses writes.
    QuotaCountedFirst,
    /// Changes that a recovery brought back count against quotas. Otherwise a volume passes its quota
    /// after each crash.
    QuotaRecovered,
    /// Blocks that were written before a volume had a quota count. Otherwise the volume passes its quota at
    /// once.
    QuotaCountsBefore,
    /// The change of the catalogue has the quota. Otherwise a crash takes it.
    QuotaRecorded,
    /// A block that is mapped is written again whatever the quota. Otherwise a volume that has reached it
    /// refuses all writes.
    OverwritesAreFree,
    /// A block that is written counts against the quota of its domain at once. Otherwise the domain stores
    /// what others were to have.
    DomainCharged,
    /// A write is refused by a domain's quota only when a checkpoint has counted. Otherwise a domain with
    /// room refuses writes.
    DomainCountedFirst,
    /// Changes that a recovery brought back count against the quotas of domains. Otherwise a domain passes its
    /// quota after each crash.
    DomainRecovered,
    /// A domain that gets its first limits is counted. Otherwise it passes its quota at once.
    DomainCountedAtLimits,
    /// A block that becomes free counts for its domain no more. Otherwise a domain is full of what is gone.
    DomainFallsOnFree,
    /// A map that is leaving keeps its domain. Otherwise what was deleted counts for ever.
    LeavingKeepsDomain,
    /// The addresses that a checkpoint maps and unmaps go into the map's count. Otherwise a volume with room refuses
    /// writes, or passes its quota.
    MappedFollows,
    /// Others leave alone what is missing from a domain's reserve. Otherwise the domain finds no space.
    ReserveKept,
    /// A copy of a moved block is put only where the map still names what was copied. Otherwise it takes
    /// the place of what a client wrote since.
    MovedIfUnchanged,
    /// Copies of moved blocks are durable before the superblock that names them is written. Otherwise a
    /// power cut loses what was acknowledged long ago.
    CopiesBeforeSuperblock,
    /// Blocks that were moved are released when both superblocks name their copies. Otherwise a crash
    /// restores a superblock whose blocks were written over.
    MovedBlocksKept,
    /// A copy is put into the leaves of all maps that share them, and new pages take the place of old ones
    /// wherever these are named. Otherwise a map names what is free.
    SharersMoveTogether,
    /// A page that maps share keeps its birth when it moves. Otherwise ranges that wait for one of the maps
    /// count as applied, and trimmed data comes back.
    MovedPagesKeepBirth,
    /// Pages of a family move when all that name them are found: not beside an orphan. Otherwise what hangs
    /// below the orphan is counted wrong.
    MovesWaitForOrphans,
    /// What a reader handed over is moved only when it is what the map names. Otherwise older data takes the
    /// place of what was written since.
    HandedBlocksProven,
    /// A step of moving copies few blocks. Otherwise who asks for something meanwhile waits for it.
    MoveStepsLimited,
    /// What a checkpoint leaves of a plan is moved on, and not planned anew. Otherwise a leaf is moved again
    /// and again, where few copies fit into a checkpoint.
    PlansOutliveCheckpoints,
    /// Without room for copies moving waits, and asks for no other step. Otherwise its thread never rests.
    MovesWaitForRoom,
    /// A step of a checkpoint releases few blocks. Otherwise who asks for something meanwhile waits for it.
    ReleasesLimited,
    /// Blocks that are about to be released are not handed out before. Otherwise they are released while
    /// somebody has them.
    ReleasingKept,
    /// After a change of a domain's data key all that is written is under the new one. Otherwise whoever had
    /// the older key reads what came later.
    WritesByNewestKey,
    /// A compressed block is under the newest data key, too.
    PayloadsByNewestKey,
    /// Copies of moved blocks are under the newest data key. Otherwise the older one is erased while they need
    /// it.
    CopiesByNewestKey,
    /// A duplicate is looked for by the newest data key alone. Otherwise what is new names what is under the
    /// older key.
    DuplicatesByNewestKey,
    /// A leaf says that it names nothing under an older key when all its blocks were looked at. Otherwise the
    /// key is erased that opens them.
    LeafMarkedWhenResealed,
    /// An older data key is erased when no leaf may name what is under it. Otherwise that is lost.
    OlderKeyKeptWhileNeeded,
    /// Nothing waits for recovery when a data key is changed. Otherwise records name what is under the older
    /// key, and recovery takes it for torn.
    ClosedBeforeNewKey,
    /// An older data key is erased when what is free was overwritten. Otherwise whoever copied that key reads
    /// there what moved.
    OverwrittenBeforeErased,
    /// A pack is in use as long as anybody names a fragment of it. Otherwise its block is handed out, and the
    /// others are lost.
    PackKeptByEach,
    /// A pack counts each mapping to a fragment of it. Otherwise it is free while some are left.
    PackCountsEach,
    /// A pack is written before the superblock whose maps name it. Otherwise a power cut leaves mappings to what
    /// lay there before.
    PacksBeforeSuperblock,
    /// Fragments are put where the map still names the blocks that were packed. Otherwise a client's newer write
    /// is lost.
    PackedIfUnchanged,
    /// Who looks for duplicates finds no pack. Otherwise a client's block names a pack as if it were a carrier, or
    /// raw.
    PacksAreNoDuplicates,
    /// Neighbours are expanded from one read of the disk if they are in one pack. Otherwise a block is looked for in
    /// the pack of the one before it.
    PackReadForItsOwn,
    /// What is packed comes to a fragment that is there only if that has its fingerprint and its bytes. Otherwise
    /// the index, a hint, decides what an address reads.
    FragmentHasFingerprint,
}

#[cfg(feature = "planted-bugs")]
impl Rule {
    /// The planted bugs: the simulator's name of each, and the rule that it breaks.
    pub const BUGS: [(&'static str, Rule); 135] = [
        ("skipped-flush", Rule::FlushBeforePublish),
        ("early-reuse", Rule::ReuseAfterRelease),
        ("believed-unseen", Rule::NewerRecordsVerified),
        ("dropped-returns", Rule::DroppedRecordsVoid),
        ("out-of-order", Rule::WindowsInOrder),
        ("duplicate-onto-free", Rule::DuplicatesHaveReferences),
        ("forged-carrier", Rule::CarriersProven),
        ("unlisted-zone", Rule::ZoneListedBeforeUse),
        ("commit-past-durable", Rule::CommittedWhenDurable),
        ("released-early", Rule::ReleaseAfterSuperblock),
        ("recovery-unflushed", Rule::FlushBeforeRecovery),
        ("checksum-ignored", Rule::PageChecksumsCompared),
        ("double-decrement", Rule::OverwriteLowersOnce),
        ("range-over-write", Rule::LaterWriteOverRange),
        ("leftover-in-place", Rule::LeftoverVersionsAlternate),
        ("listed-once", Rule::ListedInBothCopies),
        ("leftover-busy", Rule::LeftoverWaitsForFlush),
        ("leftover-void", Rule::LeftoverOfVoidIgnored),
        ("superblock-before-pages", Rule::PagesBeforeSuperblock),
        ("acknowledged-early", Rule::AcknowledgedByCheckpoint),
        ("link-before-data", Rule::DataBeforeLink),
        ("link-before-count", Rule::CountBeforeLink),
        ("unlinked-early", Rule::UnlinkBeforeDecrement),
        ("fingerprint-stays", Rule::FingerprintGoesWithBlock),
        ("reclaimed-in-use", Rule::PinnedNotReclaimed),
        ("recount-blind", Rule::RecountSeesPendingLinks),
        ("critical-shared", Rule::NoDedupNotShared),
        ("discards-unlimited", Rule::DiscardsLimited),
        ("cuts-unlimited", Rule::CutsLimited),
        ("volumes-unlimited", Rule::VolumesLimited),
        ("carriers-unlimited", Rule::CarriersLimited),
        ("closed-windows-unlimited", Rule::ClosedWindowsLimited),
        ("ranges-unlimited", Rule::RangesLimited),
        ("fingerprint-halved", Rule::WholeFingerprintStored),
        ("damage-spreads", Rule::DamageFailsItsReadsAlone),
        ("read-unverified", Rule::ReadsVerified),
        ("flush-retried", Rule::FailedFlushStopsWrites),
        ("read-error-stays", Rule::FailedReadFailsAlone),
        ("stay-is-no-lender", Rule::StayingPageLends),
        ("borrowers-forgotten", Rule::BorrowersKeepPage),
        ("inner-pages-uncounted", Rule::InnerPagesCount),
        ("lent-entry-lowered", Rule::LentEntriesNotLowered),
        ("lender-forgotten", Rule::LenderInherited),
        ("orphan-dropped", Rule::OrphanWaitsForBorrowers),
        ("heir-lends-not", Rule::HeirLends),
        ("moment-unsealed", Rule::MomentSealsOverlay),
        ("act-told-early", Rule::ActsToldWhenDurable),
        ("act-overtaken", Rule::ActsHaveTurns),
        ("turn-without-end", Rule::TurnsEnd),
        ("leftovers-unlimited", Rule::LeftoversLimited),
        ("ranges-not-copied", Rule::RangesCopied),
        ("shared-page-entered", Rule::SharedPagesNotEntered),
        ("rollback-first", Rule::RollbackAfterChanges),
        ("sealed-not-pinned", Rule::SealedRecordsPin),
        ("clone-seen-early", Rule::ActsSeenWhenTold),
        ("pages-in-references", Rule::PagesCountApart),
        ("moment-commits-all", Rule::MomentCommitsNoMore),
        ("oldest-orphan-first", Rule::YoungestOrphanFirst),
        ("orphan-without-entry", Rule::OrphansHaveEntries),
        ("cursor-ahead", Rule::CursorBehindData),
        ("received-early", Rule::ReceivedAfterData),
        ("base-not-compared", Rule::BaseCompared),
        ("frames-out-of-order", Rule::FramesInOrder),
        ("ranges-not-compared", Rule::RangesCompared),
        ("lost-behind-cursor", Rule::LostWithCursor),
        ("lost-at-the-end", Rule::LostWithEnd),
        ("lost-reads-as-data", Rule::LostIsAnError),
        ("list-at-old-place", Rule::ListPagesFollowMove),
        ("old-list-named", Rule::ListNamedWhereItIs),
        ("list-zones-used", Rule::ListZonesKept),
        ("many-falls", Rule::ManyStays),
        ("snapshots-unlimited", Rule::SnapshotsLimited),
        ("moments-unlimited", Rule::MomentsLimited),
        ("counters-without-prefix", Rule::CountersHavePrefix),
        ("counters-without-address", Rule::CountersHaveAddress),
        ("plaintext-written", Rule::BlocksSealed),
        ("compressed-under-counters", Rule::CompressedHasNoCounter),
        ("page-tag-ignored", Rule::SealedPagesProven),
        ("carrier-tag-ignored", Rule::SealedCarriersProven),
        ("key-area-unproven", Rule::KeyAreaProven),
        ("lower-key-area", Rule::HigherKeyAreaCounts),
        ("one-key-area", Rule::BothKeyAreasWritten),
        ("older-keys-taken", Rule::KeyAreaNumberCompared),
        ("older-state-taken", Rule::OlderStateRefused),
        ("state-told-early", Rule::StatesToldWhenDurable),
        ("keys-copied-unproven", Rule::CodeBeforeCopying),
        ("erasure-not-ended", Rule::ErasureEnded),
        ("fingerprint-of-other-domain", Rule::FingerprintsByDomain),
        ("payload-of-other-domain", Rule::DataByDomain),
        ("payload-of-store-key", Rule::PayloadsByDomain),
        ("duplicate-of-other-domain", Rule::DuplicatesWithinDomain),
        ("recovery-by-other-domain", Rule::RecoveryByDomain),
        ("quota-not-charged", Rule::QuotaCharged),
        ("quota-without-map-pages", Rule::MapPagesCharged),
        ("leaf-of-zeroes", Rule::ZeroesKeepNoLeaf),
        ("quota-leaks-on-trim", Rule::QuotaCountedFirst),
        ("quota-forgotten-at-recovery", Rule::QuotaRecovered),
        ("quota-from-now-on", Rule::QuotaCountsBefore),
        ("quota-not-recorded", Rule::QuotaRecorded),
        ("overwrite-charged", Rule::OverwritesAreFree),
        ("domain-not-charged", Rule::DomainCharged),
        ("domain-refused-early", Rule::DomainCountedFirst),
        ("domain-forgotten-at-recovery", Rule::DomainRecovered),
        ("domain-counted-from-now-on", Rule::DomainCountedAtLimits),
        ("domain-never-falls", Rule::DomainFallsOnFree),
        ("leaving-without-domain", Rule::LeavingKeepsDomain),
        ("reserve-given-away", Rule::ReserveKept),
        ("mapped-not-counted", Rule::MappedFollows),
        ("moved-over-write", Rule::MovedIfUnchanged),
        ("copy-unflushed", Rule::CopiesBeforeSuperblock),
        ("moved-released-early", Rule::MovedBlocksKept),
        ("sharer-left-out", Rule::SharersMoveTogether),
        ("moved-page-young", Rule::MovedPagesKeepBirth),
        ("moved-beside-orphan", Rule::MovesWaitForOrphans),
        ("handed-unproven", Rule::HandedBlocksProven),
        ("move-steps-unlimited", Rule::MoveStepsLimited),
        ("planned-anew", Rule::PlansOutliveCheckpoints),
        ("moving-never-rests", Rule::MovesWaitForRoom),
        ("releases-unlimited", Rule::ReleasesLimited),
        ("releasing-handed-out", Rule::ReleasingKept),
        ("written-by-older-key", Rule::WritesByNewestKey),
        ("payload-by-older-key", Rule::PayloadsByNewestKey),
        ("copy-by-older-key", Rule::CopiesByNewestKey),
        ("duplicate-by-older-key", Rule::DuplicatesByNewestKey),
        ("leaf-marked-early", Rule::LeafMarkedWhenResealed),
        ("older-key-erased-early", Rule::OlderKeyKeptWhileNeeded),
        ("key-changed-unclosed", Rule::ClosedBeforeNewKey),
        ("free-not-overwritten", Rule::OverwrittenBeforeErased),
        ("pack-freed-early", Rule::PackKeptByEach),
        ("pack-counted-once", Rule::PackCountsEach),
        ("pack-unflushed", Rule::PacksBeforeSuperblock),
        ("packed-over-write", Rule::PackedIfUnchanged),
        ("pack-found", Rule::PacksAreNoDuplicates),
        ("pack-of-neighbour", Rule::PackReadForItsOwn),
        ("fragment-believed", Rule::FragmentHasFingerprint),
    ];
}
