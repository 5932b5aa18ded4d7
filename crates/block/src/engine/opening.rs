//! A store is opened: its newer superblock, and the kernel as of its last checkpoint.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Block, Clock, Disk, Error, Kind, Read, Result};
use parking_lot::Mutex;

use super::{
    keys::{Access, unlock},
    zone_list::{newest_entries, recover_zone_list},
};
use crate::{
    counters::Counters,
    coverage::{Coverage, Mark},
    engine::{checkpoint::checkpoint_to_end, quota::charge_recovered},
    fail_stop::FailStop,
    flushes::Flushes,
    format::{
        catalogue::{Discard, Volume},
        geometry::SUPERBLOCKS,
        page::Table,
        sealing::Sealing,
        superblock::{self, Superblock},
        zone_list::Entry,
    },
    index::Index,
    kernel::{
        ActTurn, Checkpointer, Domains, Kernel, Leftovers, Reason, State, Volumes,
        replace_superblock,
    },
    overlay::{Overlay, Overlays, Tables},
    rules::Rule,
    scheme::{
        accept_unread_superblock, scheme,
        verbs::{FoundAtOpening, Progress, Scheme},
    },
    settings::{Settings, Tidying},
    space::{Allocator, Releases, zone_list::ZoneList},
    table::Pages,
    window::{
        Windows,
        ranges::{Ranges, Span},
    },
};

/// Reads the newer of the two superblocks of a disk. One is enough: until both places hold a
/// version, nothing of the one before is released.
pub(crate) fn read_superblock(disk: &dyn Disk, sealing: Option<&Sealing>) -> Result<Superblock> {
    choose_superblock(disk, sealing).map(|(superblock, _)| superblock)
}

/// How it stands with the superblock that was not chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Whole,
    Damaged,
    /// It is from before the store grew.
    Smaller,
}

/// As [`read_superblock`]; and how it stands with the other one.
fn choose_superblock(disk: &dyn Disk, sealing: Option<&Sealing>) -> Result<(Superblock, Other)> {
    let mut found = Vec::new();
    let mut failed = None;
    for (place, at) in (0..).zip(SUPERBLOCKS) {
        let mut buffer = Block::zeroed_vec(1);
        let mut read = [Read::new(at, &mut buffer)];
        if at.0 >= disk.blocks() {
            found.push(superblock::Found::Foreign);
            continue;
        }
        disk.read(&mut read);
        let [read] = read;
        found.push(match read.result {
            Ok(()) => Superblock::open(&buffer[0], place, sealing),
            Err(e) => {
                failed = Some(e);
                superblock::Found::Damaged
            }
        });
    }
    let second = found.pop().unwrap_or(superblock::Found::Foreign);
    let first = found.pop().unwrap_or(superblock::Found::Foreign);
    let unread = failed.clone();
    let other = match (&first, &second) {
        (superblock::Found::Good(first), superblock::Found::Good(second))
            if first.fixed.grew_into(&second.fixed) || second.fixed.grew_into(&first.fixed) =>
        {
            Other::Smaller
        }
        (superblock::Found::Good(_), superblock::Found::Good(_)) => Other::Whole,
        _ => Other::Damaged,
    };
    let chosen = superblock::choose(first, second).map_err(|e| match failed {
        Some(cause) if e.kind() == Kind::Corrupt => e.caused_by(cause),
        _ => e,
    })?;
    if let Some(cause) = unread {
        accept_unread_superblock(chosen.fixed.scheme, cause)?;
    }
    Ok((chosen, other))
}

/// Opens the store on a disk, recovering what a crash left. Everything that was acknowledged as
/// durable is there.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: Settings,
) -> Result<(Kernel, Box<dyn Scheme>)> {
    if settings.keeps(Rule::FlushBeforeRecovery) {
        disk.flush()?;
    }
    let sealing = unlock(&*disk, Access::Writes, &settings)?;
    let (mut superblock, other) = choose_superblock(&*disk, sealing.as_deref())?;
    superblock.fixed.geometry.checked(disk.blocks()).map_err(|_| {
        let (has, needs) = (disk.blocks(), superblock.fixed.geometry.blocks());
        Error::new(
            Kind::Corrupt,
            format!("the store is cut off: it needs {needs} blocks, but the disk has only {has}"),
        )
    })?;
    if let Some(sealing) = &sealing {
        // Both copies of the key area are durable.
        superblock.state.keys = superblock.state.keys.max(sealing.area());
        superblock.state.saw_domains(sealing.next_domain());
        superblock.state.saw_data_keys(sealing.highest_generation());
    }
    let scheme = scheme(superblock.fixed.scheme);
    may_pack(&*scheme, &settings, sealing.is_some())?;
    let kernel = unrecovered(disk, clock, settings, superblock, sealing)?;
    kernel.coverage.add(Mark::SuperblockDamaged, usize::from(other == Other::Damaged));
    kernel.coverage.add(Mark::GrownInOneSuperblock, usize::from(other == Other::Smaller));
    if other != Other::Whole {
        replace_superblock(&kernel)?;
    }
    let found = find(&kernel)?;
    // As long as it is held, the checkpoint releases nothing: that is a step for later.
    let _old = found.tables.clone();
    if scheme.recover(&kernel, found)? == Progress::Commit {
        checkpoint_to_end(&kernel, &*scheme, Reason::Forced)?;
    }
    charge_recovered(&kernel);
    Ok((kernel, scheme))
}

/// Refuses to pack where nobody can.
fn may_pack(scheme: &dyn Scheme, settings: &Settings, is_sealed: bool) -> Result<()> {
    let why = match (settings.pack_after, scheme.begin_moment()) {
        (None, _) => return Ok(()),
        (Some(_), _) if is_sealed => "blocks of an encrypted store can't be packed yet",
        (Some(_), Err(_)) => {
            "this store changes its tables in place, or is a laboratory's: its blocks can't be packed"
        }
        (Some(_), Ok(())) if settings.tidying != Tidying::Moves => {
            "blocks are packed by moving them, which is turned off"
        }
        (Some(_), Ok(())) => return Ok(()),
    };
    Err(Error::new(Kind::Unsupported, why))
}

/// Steps 1 and 2: the zone list, and its zones that no checkpoint holds.
fn find(kernel: &Kernel) -> Result<FoundAtOpening> {
    let tables = kernel.tables();
    let pages = recover_zone_list(kernel)?;
    let oldest = tables.state.oldest_generation;
    let entries: Vec<Entry> = newest_entries(kernel.geometry(), &pages)?
        .into_iter()
        .filter(|entry| entry.generation >= oldest)
        .collect();
    Ok(FoundAtOpening { tables, pages, entries })
}

/// The kernel as of its last checkpoint, with nothing recovered.
fn unrecovered(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    superblock: Superblock,
    sealing: Option<Arc<Sealing>>,
) -> Result<Kernel> {
    let Superblock { fixed, state } = superblock;
    let settings = crate::scheme::settings(&fixed, settings);
    let index_entries = state.index_entries;
    let identity = settings.identity(&fixed, sealing);
    let compare = settings.keeps(Rule::PageChecksumsCompared);
    let pages = Pages::new(disk.clone(), identity.clone(), settings.page_memory, compare);
    let tables = load_tables(&pages, state)?;
    let volumes =
        Volumes::of(&tables.volumes, tables.state.next_volume, identity.domains().collect())?;
    let domains = Domains::of(&tables.state.domains, volumes.living());
    let list = ZoneList::new(fixed.geometry, Vec::new(), tables.state.next_generation, true);
    let allocator = Allocator::new(fixed.geometry, &tables.state, fixed.grow, list);
    let packs = tables.state.packs;
    let leftovers = if tables.state.shares_pages() { Leftovers::Unknown } else { Leftovers::None };
    let state = State {
        windows: Windows::after(tables.state.last_window, tables.state.durable),
        epoch: tables.state.epoch,
        releases: Releases::after(tables.state.zones),
        overlays: Overlays::new(tables),
        volumes,
        domains,
        allocator,
        spilling_pages: 0,
        fail_stop: FailStop::default(),
        checkpoint_wanted: false,
        flushes: Flushes::default(),
        checkpoint_awaited: false,
        ration: None,
        moment: None,
        act_turn: ActTurn::default(),
        pieces: 0,
        copied: 0,
        released: 0,
        moments: (0, 0),
        leftovers,
        orphans: 0,
        moving: Overlay::default(),
        growth: None,
        growths: (0, 0),
    };
    Ok(Kernel {
        index: Mutex::new(Index::new(settings.index_memory, index_entries)),
        disk,
        clock,
        sizes: Mutex::new(fixed.geometry),
        fixed,
        identity,
        settings,
        pages,
        state: Mutex::new(state),
        preparing: Mutex::default(),
        making_durable: Mutex::new(()),
        checkpointing: Mutex::new(Checkpointer::default()),
        compacting: Mutex::default(),
        handed: Mutex::default(),
        completing: Mutex::default(),
        counters: Counters::default(),
        coverage: Coverage::default(),
        lost: Mutex::default(),
        sealed: Mutex::default(),
        index_cursor: std::sync::atomic::AtomicU64::new(0),
        filter_cursor: std::sync::atomic::AtomicU64::new(0),
        fragments_known: std::sync::atomic::AtomicBool::new(packs == 0),
    })
}

/// Reads the catalogue and the pending discards of a checkpoint.
///
/// # Errors
/// `Corrupt`, also when two volumes have one number, or one has a number that was never given.
pub(crate) fn load_tables(pages: &Pages, state: superblock::State) -> Result<Tables> {
    let damaged = |what: &str| Error::new(Kind::Corrupt, format!("the {what} is damaged"));
    let mut volumes = BTreeMap::new();
    let mut places = BTreeMap::new();
    let mut add = |volume: Volume| {
        let is_given = volume.id.0 != 0 && volume.id.0 < state.next_volume;
        let is_new = volumes.insert(volume.id, volume).is_none();
        if is_given && is_new { Ok(()) } else { Err(damaged("catalogue")) }
    };
    let shared = state.shares_pages();
    let per_leaf = Table::Maps.per_leaf();
    for n in (0..state.volumes).filter(|_| shared) {
        let Some((_, page)) =
            pages.leaf(Table::Maps, 0, &state.catalogue, u64::from(n) / per_leaf)?
        else {
            continue;
        };
        let entry = Volume::get_shared(&page, u64::from(n) % per_leaf);
        if let Some(volume) = entry.ok_or_else(|| damaged("catalogue"))? {
            places.insert(volume.id, n);
            add(volume)?;
        }
    }
    let per_leaf = Table::Catalogue.per_leaf();
    for n in (0..u64::from(state.volumes)).filter(|_| !shared) {
        let (_, page) = pages
            .leaf(Table::Catalogue, 0, &state.catalogue, n / per_leaf)?
            .ok_or_else(|| damaged("catalogue"))?;
        add(Volume::get(&page, n % per_leaf).ok_or_else(|| damaged("catalogue"))?)?;
    }
    let mut discards = Ranges::default();
    let per_leaf = Table::Discards.per_leaf();
    for n in 0..u64::from(state.discards) {
        let (_, page) = pages
            .leaf(Table::Discards, 0, &state.pending, n / per_leaf)?
            .ok_or_else(|| damaged("table of discards"))?;
        let Discard { volume, keep, start, end, window } =
            Discard::get(&page, n % per_leaf).ok_or_else(|| damaged("table of discards"))?;
        discards.insert(volume, start, Span { end, keep, window });
    }
    Ok(Tables { state, volumes, discards, places, before: None })
}
