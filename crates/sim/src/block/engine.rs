//! The block engine under simulation.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io::Cursor,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use onefold_block::{
    Acts, Begin, CheckpointStep, Content, DomainLimits, DomainStatus, Engine, Format, Frame,
    Growth, Limits, Mark, NewVolume, NoDedup, Persistence, PieceKind, Place as ActPlace, Receive,
    Rule, Setting, Settings, StreamReader, StreamWriter, Tidying, Times, Transfers, change_keys,
    check::{MEMORY, Place, check_with},
    create_domain, domain_limits_durable, domains, erase_domain, erase_keys, finish_data_key,
    format::{
        Identity,
        carrier::{Header, Payload, encode},
        catalogue::VOLUME_BLOCKS_MAX,
        geometry::{Geometry, KEY_AREAS, SUPERBLOCKS},
        record::{Change, Record, WindowNumber},
        superblock::{self, Fixed, Layout, Leftover, SchemeName, Superblock},
        zone_list,
    },
    rotate_data_key,
    schedule::{Facts, Next, Unflushed},
    set_domain_limits,
};
use onefold_core::{
    BLOCK_BYTES, Block, BlockRead, Clock, Disk, Error, Extent, Kind, Lba, Pba, Result, Ticket,
    VolumeId, VolumeInfo, ZoneId, checksum,
};
use onefold_seal::{DurableState, Keys, Random};
use onefold_testbed::{Rng, VirtualDisk, disk::Image};

use crate::block::{
    checks::verifier::{self, Forgotten, Reading},
    keys, live,
    subject::{Ack, LimitedDomain, Report, Schedules, Skips, Step, StoreOptions, Subject},
};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bits of a weak fingerprint: so many that a run of some hundred blocks has a few collisions, and
/// that a block which a crash has lost does not collide with what lay in its place before, which
/// recovery can't tell from it.
const WEAK_BITS: u32 = 18;

/// Blocks that are gathered or written but not flushed, in windows.
const UNFLUSHED_WINDOWS: usize = 4;

/// Windows before the largest number of one at which a store near the ends begins.
const WINDOWS_LEFT: u64 = 1 << 24;

/// The first block of a volume that clients see, near the ends: sixteen volumes of this size may be
/// all that a store takes.
pub(crate) const FAR: u64 = VOLUME_BLOCKS_MAX / 16 - (1 << 24);

/// The block engine, the critical blocks of each volume, the first block of a volume that clients see,
/// and the place of who asks for acts.
pub struct Thin(Engine, (u64, u64), u64, Cell<Option<ActPlace>>);

impl Thin {
    fn settings(options: &StoreOptions) -> Settings {
        let window_blocks = options.window_blocks as usize;
        Settings {
            persistence: if options.strong { Persistence::Strong } else { Persistence::Weak },
            index_memory: options.memory / 4,
            // Few pages, so that they are read again and again.
            page_memory: 0,
            records_max: u64::from(options.record_limit),
            window_blocks,
            unflushed_blocks: window_blocks * UNFLUSHED_WINDOWS,
            delay: Duration::from_millis(options.delay_ms),
            accept_loss: false,
            limits: Thin::limits(options),
            weak_fingerprint: options.weak_fingerprint.then_some(WEAK_BITS),
            no_room_to_append: options.no_room,
            broken: options.bug.map(|bug| Rule::BUGS[bug].1),
            keys: keys::source(options),
            tidying: options.moves.map_or(Tidying::Records, |_| Tidying::Moves),
            blocks_a_run: options.moves.map_or(16, |moves| moves.blocks_a_run),
            settled_after: Duration::from_millis(options.moves.map_or(0, |moves| moves.settled_ms)),
            pack_after: options.moves.and_then(|moves| moves.pack_ms).map(Duration::from_millis),
        }
    }

    /// The first block of a volume that clients see.
    fn first_block(options: &StoreOptions) -> u64 {
        if options.near_ends { FAR } else { 0 }
    }

    /// An offset of a client as one of the volume.
    fn offset(&self, offset: u64) -> u64 {
        (self.2 * BLOCK).saturating_add(offset)
    }

    /// The domain of a new volume: its name decides.
    fn domain_for(&self, name: &str) -> u32 {
        let all = domains(&self.0).into_iter().filter(|domain| domain.name.is_some());
        let living: Vec<u32> = all.map(|domain| domain.number).collect();
        let at = checksum::fast(3, name.as_bytes()) % living.len().max(1) as u64;
        living.get(at as usize).copied().unwrap_or_default()
    }

    fn acts(&self) -> Acts<'_> {
        self.3.get().map_or_else(|| Acts::of(&self.0), |place| Acts::at(&self.0, place))
    }

    fn limits(options: &StoreOptions) -> Limits {
        let [discards, cuts] = options.limits;
        let slow = options.snapshots.is_some_and(|sharing| sharing.slow_ranges);
        let usual = Limits::default();
        Limits {
            discards: discards.unwrap_or(usual.discards),
            // And as few of them as can be are worked through.
            discard_leaves: if discards.is_some() || slow { 0 } else { usual.discard_leaves },
            cuts: cuts.map_or(usual.cuts, |cuts| cuts as usize),
            volumes: options.tight.volumes.unwrap_or(usual.volumes),
            carriers: options.tight.carriers.unwrap_or(usual.carriers),
            closed_windows: options.tight.flights.unwrap_or(usual.closed_windows),
            ranges: options.tight.ranges.unwrap_or(usual.ranges),
            snapshots: options.snapshots.map_or(usual.snapshots, |sharing| sharing.snapshots),
            moments: options.snapshots.map_or(usual.moments, |sharing| sharing.moments),
            released: options.released.unwrap_or(usual.released),
            moved: options.moves.and_then(|moves| moves.step).unwrap_or(usual.moved),
            leaving: options.snapshots.map_or(usual.leaving, |sharing| sharing.leaving),
            references: options.references.unwrap_or(usual.references),
            free_map_pages: options.free_map_pages.unwrap_or(usual.free_map_pages),
            ..usual
        }
    }

    fn format_of(options: &StoreOptions) -> Format {
        Format {
            zone_blocks: options.zone_blocks,
            algorithm: options.fingerprint,
            verify_bytes: options.verify_bytes,
            grow: options.grow,
            scheme: [
                SchemeName::Thin,
                SchemeName::Ordered,
                SchemeName::Cow,
                SchemeName::OrderMerge,
            ][options.scheme],
            leftover: if options.leftover_table { Leftover::Table } else { Leftover::Log },
            layout: if options.layout_split { Layout::Split } else { Layout::Run },
            window_before: if options.near_ends {
                WindowNumber(WindowNumber::MAX.0 - WINDOWS_LEFT)
            } else {
                WindowNumber(0)
            },
            ..Format::new(options.id, options.secret, options.disk_blocks)
        }
    }

    fn geometry(options: &StoreOptions) -> Option<Geometry> {
        let leftover =
            if options.scheme == 1 { Leftover::Table } else { Thin::format_of(options).leftover };
        Geometry::new(options.disk_blocks, options.zone_blocks, leftover).ok()
    }
}

/// The superblocks at both places.
fn found(view: &Image, options: &StoreOptions) -> [superblock::Found; 2] {
    let identity = keys::identity(options);
    [0, 1].map(|place| match view.get(SUPERBLOCKS[place].0) {
        Some(bytes) => Superblock::opened(&Block(**bytes), place as u32, &identity),
        None => superblock::Found::Foreign,
    })
}

/// The superblock that counts.
fn superblock_of(view: &Image, options: &StoreOptions) -> Option<Superblock> {
    let [first, second] = found(view, options);
    superblock::choose(first, second).ok()
}

/// Both copies of every page of the zone list, those that are whole, with their places.
fn list_copies(
    view: &Image,
    fixed: &Fixed,
    options: &StoreOptions,
) -> Vec<[Option<(Pba, Box<zone_list::Page>)>; 2]> {
    let identity = keys::identity(options);
    let copy = |page: u32, at: Pba| {
        let block = Block(**view.get(at.0)?);
        Some((at, Box::new(zone_list::Page::decode(&identity, &block, page, at.0)?)))
    };
    (0..fixed.geometry.list_pages)
        .map(|page| fixed.geometry.list_page(page).map(|at| copy(page, at)))
        .collect()
}

/// The names of the planted bugs.
const fn bug_names() -> [&'static str; Rule::BUGS.len()] {
    let mut names = [""; Rule::BUGS.len()];
    let mut n = 0;
    while n < names.len() {
        names[n] = Rule::BUGS[n].0;
        n += 1;
    }
    names
}

/// The rules that only some schemes keep, or whose breach 2,000 seeds show in some schemes only, by
/// these schemes: with records in carriers, with records in the leftover table, copy-on-write, or
/// with leaves in place.
const OF_SCHEMES: [(&[Rule], &[&str]); 12] = {
    use Rule::{
        AcknowledgedByCheckpoint, ActsHaveTurns, ActsSeenWhenTold, ActsToldWhenDurable,
        BaseCompared, BlocksSealed, BorrowersKeepPage, BothKeyAreasWritten, CarriersLimited,
        CarriersProven, CodeBeforeCopying, CommittedWhenDurable, CompressedHasNoCounter,
        CopiesBeforeSuperblock, CountBeforeLink, CountersHaveAddress, CountersHavePrefix,
        CursorBehindData, CutsLimited, DataBeforeLink, DataByDomain, DiscardsLimited,
        DomainCharged, DomainCountedAtLimits, DomainCountedFirst, DomainFallsOnFree,
        DomainRecovered, DroppedRecordsVoid, DuplicatesHaveReferences, DuplicatesWithinDomain,
        ErasureEnded, FailedFlushStopsWrites, FingerprintGoesWithBlock, FingerprintsByDomain,
        FlushBeforeRecovery, FramesInOrder, HandedBlocksProven, HeirLends, HigherKeyAreaCounts,
        InnerPagesCount, KeyAreaNumberCompared, KeyAreaProven, LaterWriteOverRange,
        LeavingKeepsDomain, LeftoverOfVoidIgnored, LeftoverVersionsAlternate,
        LeftoverWaitsForFlush, LeftoversLimited, LenderInherited, LentEntriesNotLowered,
        ListNamedWhereItIs, ListPagesFollowMove, ListZonesKept, ListedInBothCopies, LostIsAnError,
        LostWithCursor, LostWithEnd, ManyStays, MapPagesCharged, MappedFollows,
        MomentCommitsNoMore, MomentSealsOverlay, MomentsLimited, MoveStepsLimited, MovedBlocksKept,
        MovedIfUnchanged, MovedPagesKeepBirth, MovesWaitForOrphans, MovesWaitForRoom,
        NewerRecordsVerified, OlderStateRefused, OrphanWaitsForBorrowers, OrphansHaveEntries,
        OverwriteLowersOnce, OverwritesAreFree, PageChecksumsCompared, PagesCountApart,
        PayloadsByDomain, PinnedNotReclaimed, PlansOutliveCheckpoints, QuotaCharged,
        QuotaCountedFirst, QuotaCountsBefore, QuotaRecorded, QuotaRecovered, RangesCompared,
        RangesCopied, ReceivedAfterData, RecountSeesPendingLinks, RecoveryByDomain, ReserveKept,
        ReuseAfterRelease, RollbackAfterChanges, SealedCarriersProven, SealedPagesProven,
        SealedRecordsPin, SharedPagesNotEntered, SharersMoveTogether, SnapshotsLimited,
        StatesToldWhenDurable, StayingPageLends, TurnsEnd, UnlinkBeforeDecrement, VolumesLimited,
        WholeFingerprintStored, WindowsInOrder, YoungestOrphanFirst, ZeroesKeepNoLeaf,
        ZoneListedBeforeUse,
    };
    [
        // Few seeds change data keys, and only those of this scheme find all of them.
        (
            &[
                Rule::WritesByNewestKey,
                Rule::PayloadsByNewestKey,
                Rule::CopiesByNewestKey,
                Rule::DuplicatesByNewestKey,
                Rule::LeafMarkedWhenResealed,
                Rule::OlderKeyKeptWhileNeeded,
                Rule::ClosedBeforeNewKey,
                Rule::OverwrittenBeforeErased,
            ],
            &["thin"],
        ),
        // Elsewhere data is durable before a record that names it, so nothing is believed in vain,
        // and windows end one by one.
        (&[NewerRecordsVerified, WindowsInOrder], &["thin"]),
        (
            &[
                LeftoverVersionsAlternate,
                LeftoverWaitsForFlush,
                LeftoverOfVoidIgnored,
                CarriersProven,
                CommittedWhenDurable,
                CutsLimited,
                CarriersLimited,
                VolumesLimited,
                FlushBeforeRecovery,
                SealedRecordsPin,
                // A window of cow is a checkpoint, and no moment waits for another one.
                MomentsLimited,
                // Nor does a recovery bring anything back.
                QuotaRecovered,
            ],
            &["thin", "ordered"],
        ),
        (
            &[
                ReuseAfterRelease,
                ZoneListedBeforeUse,
                ListedInBothCopies,
                ListPagesFollowMove,
                ListNamedWhereItIs,
                ListZonesKept,
            ],
            &["thin", "ordered", "ordermerge"],
        ),
        (
            &[
                DroppedRecordsVoid,
                DuplicatesHaveReferences,
                PageChecksumsCompared,
                OverwriteLowersOnce,
                ManyStays,
                LaterWriteOverRange,
                DiscardsLimited,
                WholeFingerprintStored,
                FailedFlushStopsWrites,
            ],
            &["thin", "ordered", "cow"],
        ),
        // Leaves that change in place are not shared.
        (
            &[
                StayingPageLends,
                BorrowersKeepPage,
                InnerPagesCount,
                LentEntriesNotLowered,
                LenderInherited,
                OrphanWaitsForBorrowers,
                HeirLends,
                MomentSealsOverlay,
                SnapshotsLimited,
                ActsToldWhenDurable,
                RangesCopied,
                ActsHaveTurns,
                TurnsEnd,
                LeftoversLimited,
                SharedPagesNotEntered,
                RollbackAfterChanges,
                ActsSeenWhenTold,
                PagesCountApart,
                MomentCommitsNoMore,
                YoungestOrphanFirst,
                OrphansHaveEntries,
                CursorBehindData,
                ReceivedAfterData,
                BaseCompared,
                FramesInOrder,
                LostWithCursor,
                LostWithEnd,
                LostIsAnError,
                QuotaCharged,
                MapPagesCharged,
                ZeroesKeepNoLeaf,
                QuotaCountedFirst,
                QuotaRecorded,
                QuotaCountsBefore,
                OverwritesAreFree,
                MappedFollows,
                MovedIfUnchanged,
                CopiesBeforeSuperblock,
                SharersMoveTogether,
                MovedPagesKeepBirth,
                HandedBlocksProven,
                MoveStepsLimited,
                PlansOutliveCheckpoints,
                MovesWaitForRoom,
                Rule::PackKeptByEach,
                Rule::PackCountsEach,
                Rule::PacksBeforeSuperblock,
                Rule::PackedIfUnchanged,
                Rule::PacksAreNoDuplicates,
                Rule::PackReadForItsOwn,
                Rule::FragmentHasFingerprint,
            ],
            &["thin", "ordered", "cow"],
        ),
        // Of the seeds with cow none of 2,000 finds it.
        (&[MovedBlocksKept, MovesWaitForOrphans], &["thin", "ordered"]),
        // Of the seeds with cow one in 2,500 finds it, and 2,000 are tried.
        (&[RangesCompared], &["thin", "ordered"]),
        // A window is durable by what comes after its own blocks.
        (&[AcknowledgedByCheckpoint], &["cow", "ordermerge"]),
        (
            &[
                DataBeforeLink,
                CountBeforeLink,
                UnlinkBeforeDecrement,
                FingerprintGoesWithBlock,
                PinnedNotReclaimed,
                RecountSeesPendingLinks,
            ],
            &["ordermerge"],
        ),
        // Only these are sealed.
        (
            &[
                CountersHavePrefix,
                CountersHaveAddress,
                BlocksSealed,
                SealedPagesProven,
                KeyAreaProven,
                HigherKeyAreaCounts,
                BothKeyAreasWritten,
                KeyAreaNumberCompared,
                OlderStateRefused,
                StatesToldWhenDurable,
                CodeBeforeCopying,
                ErasureEnded,
                FingerprintsByDomain,
                DataByDomain,
                DuplicatesWithinDomain,
                DomainCharged,
                DomainCountedFirst,
                DomainCountedAtLimits,
                DomainFallsOnFree,
                LeavingKeepsDomain,
                ReserveKept,
            ],
            &["thin", "cow"],
        ),
        (
            &[
                SealedCarriersProven,
                CompressedHasNoCounter,
                PayloadsByDomain,
                RecoveryByDomain,
                DomainRecovered,
            ],
            &["thin"],
        ),
    ]
};

impl Subject for Thin {
    const BUGS: &'static [&'static str] = &bug_names();

    const SCHEMES: &'static [&'static str] = &["thin", "ordered", "cow", "ordermerge"];

    const TRIMS_EDGES: bool = false;

    const COPIES_MAPS: bool = true;

    const GROWS: bool = true;

    const SEALS: bool = true;

    const HAS_QUOTAS: bool = true;

    fn applies(bug: usize, scheme: usize) -> bool {
        let rule = Rule::BUGS[bug].1;
        OF_SCHEMES
            .iter()
            .find(|(rules, _)| rules.contains(&rule))
            .is_none_or(|(_, schemes)| schemes.contains(&Thin::SCHEMES[scheme]))
    }

    fn format(disk: &dyn Disk, options: &StoreOptions) -> Result<()> {
        let format = Thin::format_of(options);
        if !options.sealed {
            return Engine::format(disk, &format);
        }
        let mut keys = keys::of(options)?;
        onefold_block::format_sealed(disk, &format, &mut keys, &*keys::repeated())
    }

    fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, options: &StoreOptions) -> Result<Thin> {
        Engine::open(disk, clock, Thin::settings(options)).map(|engine| {
            Thin(engine, options.critical, Thin::first_block(options), Cell::default())
        })
    }

    fn volumes(&self) -> Result<Vec<(VolumeId, VolumeInfo)>> {
        let mut all = Vec::new();
        for (id, volume) in self.0.volumes() {
            let size = |blocks: u64| (blocks - self.2) * BLOCK;
            all.extend(Acts::of(&self.0).snapshots(id).into_iter().map(|(id, snapshot)| {
                let name = format!("{}@{}", volume.name, snapshot.name);
                (id, VolumeInfo { name, size: size(snapshot.blocks) })
            }));
            all.push((id, VolumeInfo { size: size(volume.blocks), name: volume.name }));
        }
        Ok(all)
    }

    fn snapshot(&self, wanted: &[(VolumeId, String)]) -> Result<(Vec<VolumeId>, u64)> {
        self.acts().snapshot(wanted, 1).map(|(ids, asked)| (ids, asked.number))
    }

    fn clone_volume(&self, of: VolumeId, name: &str) -> Result<(VolumeId, u64)> {
        self.acts().clone_volume(of, name, 1).map(|(id, asked)| (id, asked.number))
    }

    fn rollback(
        &self,
        volume: VolumeId,
        to: VolumeId,
        keep: Option<&str>,
    ) -> Result<(Option<VolumeId>, u64)> {
        self.acts().rollback(volume, to, keep, 1).map(|(kept, asked)| (kept, asked.number))
    }

    fn take_place(&self) {
        self.3.set(Some(Acts::of(&self.0).take_place()));
    }

    fn give_place_back(&self) {
        let acts = Acts::of(&self.0);
        self.3.take().into_iter().for_each(|place| acts.give_back(place));
    }

    fn acts_done(&self) -> u64 {
        Acts::of(&self.0).done()
    }

    fn stream(
        &self,
        of: VolumeId,
        base: Option<VolumeId>,
        start: u64,
        skips: Option<Skips>,
    ) -> Result<Vec<u8>> {
        let guid = |id: VolumeId| -> Result<[u8; 16]> {
            Ok(self.0.volume(id)?.snapshot.map_or([0; 16], |origin| origin.guid))
        };
        let volume = self.0.volume(of)?;
        let begin = Begin {
            guid: guid(of)?,
            base: base.map_or(Ok([0; 16]), guid)?,
            blocks: volume.blocks,
            start,
            no_dedup: volume.no_dedup,
            ..Begin::default()
        };
        let mut bytes = Vec::new();
        let mut writer = StreamWriter::begin_as(&mut bytes, skips.is_some(), &begin, false)?;
        let (mut sent, mut at, mut told) = (BTreeMap::new(), start, start);
        while at < begin.blocks {
            let transfers = Transfers::of(&self.0);
            let found = match skips {
                Some(_) => transfers.pieces_past_damage(base, of, at)?,
                None => transfers.pieces(base, of, at)?,
            };
            for piece in found.pieces {
                for lba in piece.first..piece.first + piece.blocks {
                    if lba < told {
                        continue;
                    }
                    // What else a page hides that can't be read is lost with it.
                    let group = skips.and_then(|skips| skips.group(lba));
                    let hidden = piece.kind == PieceKind::Hidden;
                    let lost = group.or_else(|| hidden.then(|| lba..lba + 1));
                    if let Some(lost) = lost {
                        let (first, end) = (lost.start.max(told), lost.end.min(begin.blocks));
                        writer.lost(first, end - first)?;
                        told = end;
                        continue;
                    }
                    told = lba + 1;
                    if piece.kind != PieceKind::Data {
                        writer.empty(lba, 1, piece.kind == PieceKind::Zeroes)?;
                        continue;
                    }
                    let mut blocks = Block::zeroed_vec(1);
                    let mut reads =
                        [BlockRead { first: Lba(lba), into: &mut blocks, result: Ok(()) }];
                    self.0.read(of, &mut reads);
                    let [read] = reads;
                    match read.result {
                        Err(error)
                            if skips.is_some()
                                && matches!(error.kind(), Kind::Corrupt | Kind::Io) =>
                        {
                            writer.lost(lba, 1)?;
                            continue;
                        }
                        result => result?,
                    }
                    match sent.get(&blocks[0].0) {
                        Some(&as_at) => writer.repeat(lba, 1, as_at)?,
                        None => {
                            writer.data(lba, &blocks)?;
                            sent.insert(blocks[0].0, lba);
                        }
                    }
                }
            }
            at = found.next.max(at + 1);
        }
        writer.end(begin.blocks)?;
        Ok(bytes)
    }

    fn read_stream(&self, bytes: Vec<u8>) -> Result<StreamReader<Cursor<Vec<u8>>>> {
        let mut reader = StreamReader::begin(Cursor::new(bytes))?;
        if self.0.settings().broken == Some(Rule::FramesInOrder) {
            reader.in_any_order();
        }
        Ok(reader)
    }

    fn receive(
        &self,
        about: &Begin,
        base: Option<VolumeId>,
        volume: &str,
        name: &str,
    ) -> Result<(VolumeId, u64)> {
        let what = Receive {
            volume: volume.to_owned(),
            snapshot: name.to_owned(),
            guid: about.guid,
            base,
            base_guid: about.base,
            blocks: about.blocks,
            no_dedup: about.no_dedup.clone(),
            domain: self.domain_for(volume),
            now_ms: 1,
            rollback: false,
        };
        self.acts().receive(what).map(|(id, asked)| (id, asked.number))
    }

    fn receiving(&self) -> Vec<(VolumeId, u64)> {
        let all = Acts::of(&self.0).receiving().into_iter();
        all.map(|(id, one)| (id, one.receiving.map_or(0, |receiving| receiving.cursor))).collect()
    }

    fn apply(&self, id: VolumeId, frame: &Frame, taken: &mut u64) -> Result<()> {
        let (offset, bytes) = (frame.first * BLOCK, frame.blocks * BLOCK);
        match &frame.content {
            Content::Hole => self.0.trim(id, offset, bytes),
            Content::Zeroes => self.0.write_zeroes(id, offset, bytes, true, taken),
            Content::Data(data) => self.0.write_from(id, offset, data, taken),
            Content::Held(_) => Err(Error::new(Kind::Corrupt, "nobody negotiates")),
            Content::Lost => Err(Error::new(Kind::InvalidInput, "nobody writes what is lost")),
            Content::Repeat(as_at) => {
                let mut blocks = Block::zeroed_vec(frame.blocks as usize);
                let mut reads =
                    [BlockRead { first: Lba(*as_at), into: &mut blocks, result: Ok(()) }];
                self.0.read(id, &mut reads);
                let [read] = reads;
                read.result?;
                self.0.write_from(id, offset, onefold_core::block::bytes(&blocks), taken)
            }
        }
        .map(drop)
    }

    fn note_cursor(&self, id: VolumeId, cursor: u64, lost: &[Range<u64>]) -> Result<()> {
        Acts::of(&self.0).cursor(id, cursor, lost, 1).map(drop)
    }

    fn cut_received(&self, id: VolumeId, blocks: u64) -> Result<()> {
        let before = self.0.volume(id)?.blocks;
        if before > blocks {
            self.0.trim(id, blocks * BLOCK, (before - blocks) * BLOCK)?;
        }
        Ok(())
    }

    fn received(&self, id: VolumeId, blocks: u64, lost: &[Range<u64>]) -> Result<(VolumeId, u64)> {
        let times = Times { now_ms: 1, made_ms: 1 };
        let asked = self.acts().received(id, blocks, lost, false, times)?;
        Ok((asked.0, asked.1.number))
    }

    fn grow(&self, blocks: u64) -> Result<u64> {
        Growth::of(&self.0).ask(Some(blocks))
    }

    fn grown(&self) -> u64 {
        Growth::of(&self.0).done()
    }

    fn size(&self, _: &StoreOptions) -> u64 {
        Growth::of(&self.0).blocks()
    }

    fn left(&self) -> (u64, u64, bool) {
        let status = self.0.status();
        (status.live_blocks, status.mapped_blocks, self.0.checkpoint_useful())
    }

    fn create_volume(&self, name: &str, size: u64) -> Result<(VolumeId, Ack)> {
        let (start, blocks) = (self.2 + self.1.0, self.1.1);
        let critical = NoDedup::new(Vec::from_iter((blocks > 0).then_some(start..start + blocks)))?;
        let domain = self.domain_for(name);
        let new = NewVolume { no_dedup: critical, domain, ..NewVolume::default() };
        let (id, ticket) = self.0.create_volume_with(name, self.2 + size / BLOCK, new)?;
        Ok((id, Ack::Later(ticket)))
    }

    fn resize_volume(&self, volume: VolumeId, size: u64) -> Result<Ack> {
        self.0.resize_volume(volume, self.2 + size / BLOCK).map(Ack::Later)
    }

    fn rename_volume(&self, volume: VolumeId, name: &str) -> Result<Ack> {
        self.0.rename_volume(volume, name).map(Ack::Later)
    }

    fn delete_volume(&self, volume: VolumeId) -> Result<Ack> {
        self.0.delete_volume(volume).map(Ack::Later)
    }

    fn set_quota(&self, volume: VolumeId, blocks: u64) -> Result<Ack> {
        self.0.set(volume, Setting::Quota(blocks)).map(Ack::Later)
    }

    fn quota(&self, volume: VolumeId) -> (u64, Option<u64>) {
        let all = self.0.status().volumes;
        let found = all.iter().find(|one| one.id == volume);
        found.map_or((0, None), |one| (one.quota_blocks, one.mapped_blocks))
    }

    fn map_pages(&self, volume: VolumeId) -> Option<u64> {
        self.0.status().volumes.iter().find(|one| one.id == volume)?.map_pages
    }

    fn write(&self, volume: VolumeId, offset: u64, data: &[u8], taken: &mut u64) -> Result<Ticket> {
        self.0.write_from(volume, self.offset(offset), data, taken)
    }

    fn trim(&self, volume: VolumeId, offset: u64, bytes: u64) -> Result<Ticket> {
        self.0.trim(volume, self.offset(offset), bytes)
    }

    fn write_zeroes(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        keep: bool,
        taken: &mut u64,
    ) -> Result<Ticket> {
        self.0.write_zeroes(volume, self.offset(offset), bytes, keep, taken)
    }

    fn read(&self, volume: VolumeId, reads: &mut [BlockRead<'_>]) {
        reads.iter_mut().for_each(|read| read.first.0 += self.2);
        // A server reads ahead for clients that read in order.
        match reads {
            [read] if read.into.len() > 1 => self.0.read_in_order(volume, reads),
            _ => self.0.read(volume, reads),
        }
        reads.iter_mut().for_each(|read| read.first.0 -= self.2);
    }

    fn extents(
        &self,
        volume: VolumeId,
        offset: u64,
        bytes: u64,
        limit: usize,
    ) -> Result<Vec<Extent>> {
        self.0.extents(volume, Lba(self.2 + offset / BLOCK), bytes / BLOCK, limit)
    }

    /// One change may exceed a limit by what it adds: a window, the ranges of a write, the carriers
    /// of windows on their way.
    fn overfull(&self, options: &StoreOptions) -> Option<String> {
        let (filled, limits) = (self.0.filled(), Thin::limits(options));
        let on_its_way = (options.window_blocks as usize * (UNFLUSHED_WINDOWS + 1) + 16) as u64;
        let tables = [
            (
                "windows on their way",
                filled.closed_windows as u64,
                limits.closed_windows as u64 + 64 / u64::from(options.window_blocks) + 6,
            ),
            ("ranges of a window", filled.ranges as u64, limits.ranges as u64 + 8),
            ("carriers without a checkpoint", filled.carriers, limits.carriers + on_its_way),
            ("snapshots of a volume", filled.snapshots as u64, limits.snapshots),
            ("moments that wait", filled.moments as u64, limits.moments as u64),
            ("pieces of deleted maps in a checkpoint", filled.pieces, limits.leaving + 1),
            ("blocks of a step of moving", filled.copied as u64, limits.moved as u64),
            ("blocks that a step releases", filled.released as u64, limits.released as u64),
        ];
        let over = tables.into_iter().find(|(_, is, most)| is > most);
        over.map(|(what, is, most)| format!("{is} {what}; {most} is the most"))
    }

    fn step(&self, step: Step) -> Result<bool> {
        match step {
            Step::Close => Ok(self.0.close_window()),
            Step::Prepare => self.0.prepare_window(),
            Step::Write => self.0.write_window(),
            Step::WriteDurably => self.0.write_window_durably(),
            Step::Settle => self.0.make_durable(),
            Step::Checkpoint => Ok(matches!(self.0.checkpoint_step()?, CheckpointStep::Advanced)),
            Step::Tidy => self.0.idle_step(onefold_block::Idleness::Long),
        }
    }

    fn scheduled_step(
        &self,
        schedules: &mut Schedules,
        now: Duration,
        pressure: bool,
    ) -> Result<bool> {
        let engine = &self.0;
        while engine.prepare_window()? {
            engine.write_window()?;
        }
        let unflushed = Unflushed::of(engine, pressure);
        if schedules.write_back.next(now, &unflushed).is_some_and(|at| at <= now) {
            engine.flush()?;
        }
        let facts = Facts::of(engine, pressure);
        let Next::Run(step) = schedules.background.next(now, &facts) else { return Ok(false) };
        let event = step.run(engine)?;
        schedules.background.happened(now, event);
        Ok(true)
    }

    fn durable(&self) -> Ticket {
        self.0.durable()
    }

    fn flush(&self, _: VolumeId) -> Result<()> {
        self.0.flush()
    }

    fn close(self) -> Result<()> {
        self.0.close()
    }

    fn tables_hold_at_any_time(options: &StoreOptions) -> bool {
        options.scheme == 3
    }

    /// No count may be lower than the links, plus one. Superblocks and zone list are always on
    /// their way.
    fn truth(disk: &Arc<VirtualDisk>, options: &StoreOptions) -> Result<Report> {
        if options.weak_fingerprint {
            return Ok(Report::default());
        }
        let disk: Arc<dyn Disk> = Arc::clone(disk) as Arc<dyn Disk>;
        let found = check_with(&disk, &keys::source(options), MEMORY, &mut |_| {})?;
        let of_tables = found
            .problems
            .iter()
            .filter(|problem| !matches!(problem.place, Place::Superblock(_) | Place::ZoneList(..)));
        Ok(Report { problems: of_tables.map(ToString::to_string).collect(), leaked: 0 })
    }

    fn check(disk: &Arc<VirtualDisk>, options: &StoreOptions) -> Result<Report> {
        // The product's verifier knows whole fingerprints only.
        if options.weak_fingerprint {
            return Ok(Report::default());
        }
        let disk: Arc<dyn Disk> = Arc::clone(disk) as Arc<dyn Disk>;
        let found = check_with(&disk, &keys::source(options), MEMORY, &mut |_| {})?;
        let mut problems: Vec<String> = found.problems.iter().map(ToString::to_string).collect();
        // Every volume has its critical blocks from its making on.
        if found.shared_critical > 0 {
            problems.push(format!("{} critical blocks are shared", found.shared_critical));
        }
        Ok(Report { problems, leaked: found.leaked_blocks })
    }

    /// A carrier with everything right but the secret: epoch and windows of now, for a place in a
    /// listed zone where blocks still go.
    fn forge(
        disk: &Arc<VirtualDisk>,
        options: &StoreOptions,
        volume: VolumeId,
        lba: Lba,
        rng: &mut Rng,
    ) -> Option<Box<Block>> {
        let view = disk.view();
        let block = |at: Pba| view.get(at.0).map(|bytes| Block(**bytes));
        let Superblock { fixed, state } = superblock_of(&view, options)?;
        let identity = keys::identity(options);
        let mut open: Vec<(ZoneId, u64)> = Vec::new();
        for (_, page) in list_copies(&view, &fixed, options).into_iter().flatten().flatten() {
            open.extend(
                page.entries
                    .iter()
                    .flatten()
                    .filter(|entry| entry.carriers.is_none())
                    .map(|e| (e.zone, e.generation)),
            );
        }
        let &(zone, generation) = rng.pick(&open)?;
        let start = fixed.geometry.start_of(zone);
        let next = (0..fixed.geometry.zone_blocks)
            .filter(|&n| view.get(start.0 + n).is_some())
            .max()
            .map_or(0, |n| n + 1);
        let address = start.plus((next + rng.below(4)).min(fixed.geometry.zone_blocks - 1));

        let window = WindowNumber(state.last_window.0 + rng.within(1, 30));
        let data: Vec<u64> = view.written().filter(|&at| fixed.geometry.holds(Pba(at))).collect();
        let change = match rng.pick(&data).copied().filter(|_| rng.percent(50)) {
            Some(at) => {
                let mut fingerprinter = identity.fingerprinter.clone();
                if options.weak_fingerprint {
                    fingerprinter = fingerprinter.shortened(WEAK_BITS);
                }
                Change::Block {
                    pba: Pba(at),
                    carried: false,
                    fingerprint: fingerprinter.one(&block(Pba(at))?),
                }
            }
            None => Change::Range { blocks: 1, keep: false },
        };
        let lba = Lba(Thin::first_block(options) + lba.0);
        let record = Record { volume, lba, change, timestamp: window.timestamp(0) };
        let mut payload = [0; 3900];
        rng.fill(&mut payload);
        let mut secret = fixed.secret;
        rng.fill(&mut secret);
        // Who has no key of a sealed store can't do better than one of a plain one.
        let guessed = Identity::new(fixed.id, secret, fixed.algorithm);
        let header = Header {
            epoch: state.epoch,
            generation,
            address,
            window,
            before: state.durable,
            position: 0,
            carriers: 1,
            durable: state.durable,
        };
        let mut forged = Block::zeroed();
        let payload = Payload { bytes: &payload, ..Payload::NONE };
        encode(&guessed, &header, &[record], payload, &mut forged).ok()?;
        Some(forged)
    }

    fn copies(disk: &Arc<VirtualDisk>, options: &StoreOptions) -> Vec<(Pba, &'static str)> {
        let view = disk.view();
        let Some(Superblock { fixed, .. }) = superblock_of(&view, options) else {
            return Vec::new();
        };
        let mut copies = Vec::new();
        let both = found(&view, options).map(|found| match found {
            superblock::Found::Good(superblock) => Some(superblock.state.clone()),
            _ => None,
        });
        let limits = |state: &superblock::State| -> Vec<_> {
            state.domains.iter().map(|one| (one.number, one.limits)).collect()
        };
        // With copy-on-write trees the newest superblock may be the only one of its version until
        // the next window. New limits of a domain are in it alone until the next checkpoint.
        if let [Some(one), Some(other)] = &both
            && (options.scheme != 2 || one.committed == other.committed)
            && limits(one) == limits(other)
        {
            copies.extend(SUPERBLOCKS.map(|at| (at, "rot: one of two superblocks")));
        }
        for page in list_copies(&view, &fixed, options) {
            if let [Some((one, first)), Some((other, second))] = page {
                let (newer, older) =
                    if first.sequence > second.sequence { (one, other) } else { (other, one) };
                copies.push((newer, "rot: newer copy of a list page"));
                copies.push((older, "rot: older copy of a list page"));
            }
        }
        copies
    }

    fn shared_pages(disk: &VirtualDisk, options: &StoreOptions) -> Vec<(Pba, &'static str)> {
        let view = disk.view();
        let identity = keys::identity(options);
        superblock_of(&view, options)
            .map_or_else(Vec::new, |found| live::shared_pages(&view, &found, &identity))
    }

    fn opens(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        (byte, seen): (u8, Option<DurableState>),
    ) -> Result<bool> {
        let settings = Settings { keys: keys::by(byte, seen), ..Thin::settings(options) };
        match Engine::open(disk, clock, settings) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), Kind::Denied | Kind::Corrupt) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn durable_state(&self) -> Result<DurableState> {
        onefold_block::durable_state(&self.0)
    }

    fn change_keys(
        disk: &dyn Disk,
        options: &StoreOptions,
        change: &mut dyn FnMut(&mut Keys, &dyn Random) -> Result<()>,
    ) -> Result<()> {
        change_keys(disk, &Thin::settings(options), |keys, random| change(keys, random))
    }

    fn erase_keys(disk: &dyn Disk, options: &StoreOptions) -> Result<()> {
        erase_keys(disk, &Thin::settings(options), &*keys::repeated())
    }

    fn create_domain(disk: &dyn Disk, options: &StoreOptions, name: &str) -> Result<u32> {
        create_domain(disk, &Thin::settings(options), name)
    }

    fn erase_domain(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        number: u32,
    ) -> Result<()> {
        erase_domain(&disk, clock, &Thin::settings(options), number)
    }

    fn rotate_data_key(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        number: u32,
    ) -> Result<()> {
        rotate_data_key(&disk, clock, &Thin::settings(options), number).map(drop)
    }

    fn finish_data_key(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        options: &StoreOptions,
        number: u32,
    ) -> Result<u64> {
        let left = finish_data_key(&disk, clock, &Thin::settings(options), number)?;
        Ok(left.map_or(0, |left| (left.leaves + left.leaving).max(1)))
    }

    fn erased_domains(&self) -> BTreeSet<u32> {
        let all = domains(&self.0).into_iter().filter(|one| one.name.is_none());
        all.map(|one| one.number).collect()
    }

    fn set_domain_limits(&self, domain: u32, quota: u64, reserve: u64) -> Result<u64> {
        set_domain_limits(&self.0, domain, DomainLimits { quota, reserve })
    }

    fn domain_limits_durable(&self) -> u64 {
        domain_limits_durable(&self.0)
    }

    fn limited_domains(&self) -> Vec<LimitedDomain> {
        let of = |domain: DomainStatus| LimitedDomain {
            number: domain.number,
            quota: domain.limits.quota,
            reserve: domain.limits.reserve,
            stored: domain.stored_blocks,
        };
        self.0.status().domains.into_iter().map(of).collect()
    }

    fn unused_blocks(&self) -> u64 {
        self.0.status().unused_blocks
    }

    fn domain_of(&self, volume: VolumeId) -> u32 {
        self.0.volume(volume).map_or(0, |volume| volume.domain)
    }

    fn read_again(disk: &VirtualDisk, options: &StoreOptions) -> Option<Reading> {
        let mut image = disk.view();
        // Nobody can tell what these hold.
        disk.unreadable().into_iter().for_each(|at| image.set(at, Arc::new([0xff; 4096])));
        let sealed = keys::sealed(options);
        let reading =
            verifier::read(&image, &disk.damaged(), options.weak_fingerprint, sealed.as_ref());
        Some(reading.from(Thin::first_block(options)))
    }

    fn forgotten(
        disk: &VirtualDisk,
        options: &StoreOptions,
    ) -> std::result::Result<Forgotten, String> {
        verifier::forgotten(&disk.view(), keys::sealed(options).as_ref())
    }

    fn has_copy(disk: &VirtualDisk, options: &StoreOptions, at: u64) -> bool {
        let (view, unreadable) = (disk.view(), disk.unreadable());
        let whole = |other: u64| !unreadable.contains(&other);
        if let Some(place) = SUPERBLOCKS.iter().position(|place| place.0 == at) {
            let other = 1 - place;
            return whole(SUPERBLOCKS[other].0)
                && matches!(found(&view, options)[other], superblock::Found::Good(_));
        }
        if let Some(copy) = KEY_AREAS.iter().position(|first| (first.0..first.0 + 3).contains(&at))
        {
            return options.sealed && keys::area_is_whole(&view, KEY_AREAS[1 - copy]);
        }
        let Some(Superblock { fixed, .. }) = superblock_of(&view, options) else { return false };
        let first = fixed.geometry.list_page(0)[0].0;
        let pages = first..first + 2 * u64::from(fixed.geometry.list_pages);
        let copies = list_copies(&view, &fixed, options).into_iter().flatten().flatten();
        pages.contains(&at)
            && copies.into_iter().any(|(other, _)| other.0 == at ^ 1 && whole(other.0))
    }

    fn branches() -> Vec<&'static str> {
        Mark::ALL.iter().map(|branch| branch.name()).collect()
    }

    fn reached(&self) -> Vec<(&'static str, u64)> {
        self.0.reached().into_iter().map(|(branch, n)| (branch.name(), n)).collect()
    }

    /// With leaves in place, blocks without links are found by a recount after a crash, which may
    /// not be at its end; the verifier itself says when there should be none.
    fn leak_bound(options: &StoreOptions) -> u64 {
        if options.scheme == 3 { options.disk_blocks } else { 0 }
    }

    /// Superblocks, zone list and all that the list has room for, twice over for what is read
    /// again, and the pages on the way.
    fn recovery_bound(options: &StoreOptions) -> u64 {
        let Some(geometry) = Thin::geometry(options) else { return u64::MAX };
        let zones = (geometry.list_slots() as u64).min(geometry.zones);
        // Of a sealed store both superblocks are read before its keys, too, and both key areas.
        let keys = if options.sealed { 2 * 2 + 2 * 3 } else { 0 };
        keys + 2
            + 2 * u64::from(geometry.list_pages)
            + 2 * u64::from(geometry.leftover_pages)
            + 3 * zones * geometry.zone_blocks
    }
}
