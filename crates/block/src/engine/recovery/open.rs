//! A store is opened: its newer superblock, and the kernel as of its last checkpoint.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Block, Clock, Disk, Error, Kind, Read, Result};
use parking_lot::Mutex;

use crate::{
    counters::Counters,
    coverage::{Coverage, Mark},
    engine::{catalogue::visible, checkpoint::write_superblock, recovery::recover},
    fail_stop::FailStop,
    flushes::Flushes,
    format::{
        catalogue::{Discard, Volume},
        geometry::SUPERBLOCKS,
        page::Table,
        superblock::{self, Leftover, Superblock},
    },
    index::Index,
    kernel::{Checkpointer, Kernel, Preparer, Snapshot, State},
    overlay::Overlay,
    scheme::Records,
    settings::{PlantedBug, Settings},
    space::{Allocator, zone_list::ZoneList},
    table::Pages,
    window::{
        Window,
        ranges::{Ranges, Span},
    },
};

/// Reads the newer of the two superblocks of a disk. One is enough: until both places hold a
/// version, nothing of the one before is released.
pub(crate) fn read_superblock(disk: &dyn Disk) -> Result<Superblock> {
    choose_superblock(disk).map(|(superblock, _)| superblock)
}

/// As [`read_superblock`]; and whether the other one is damaged.
fn choose_superblock(disk: &dyn Disk) -> Result<(Superblock, bool)> {
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
            Ok(()) => Superblock::decode(&buffer[0], place),
            Err(e) => {
                failed = Some(e);
                superblock::Found::Damaged
            }
        });
    }
    let second = found.pop().unwrap_or(superblock::Found::Foreign);
    let first = found.pop().unwrap_or(superblock::Found::Foreign);
    let unread = failed.clone();
    let damaged =
        !matches!((&first, &second), (superblock::Found::Good(_), superblock::Found::Good(_)));
    let chosen = superblock::choose(first, second).map_err(|e| match failed {
        Some(cause) if e.kind() == Kind::Corrupt => e.caused_by(cause),
        _ => e,
    })?;
    // With copy-on-write trees it may be the only one that holds the newest windows.
    if let Some(cause) = unread
        .filter(|_| crate::scheme::scheme(chosen.fixed.scheme).records() == Records::ByCheckpoint)
    {
        return Err(cause.context("a superblock"));
    }
    Ok((chosen, damaged))
}

/// Opens the store on a disk, recovering what a crash left. Everything that was acknowledged as
/// durable is there.
///
/// # Errors
/// `InvalidInput` (not a store), `Unsupported` (too new), `Corrupt` (damaged; `check --repair`
/// may help), `Io`.
pub(crate) fn open(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: Settings,
) -> Result<Kernel> {
    if !settings.has(PlantedBug::RecoveryUnflushed) {
        disk.flush()?;
    }
    let (superblock, damaged) = choose_superblock(&*disk)?;
    superblock.fixed.geometry.checked(disk.blocks()).map_err(|_| {
        let (has, needs) = (disk.blocks(), superblock.fixed.geometry.blocks());
        Error::new(
            Kind::Corrupt,
            format!("the store is cut off: it needs {needs} blocks, but the disk has only {has}"),
        )
    })?;
    let kernel = unrecovered(disk, clock, settings, superblock)?;
    kernel.coverage.add(Mark::SuperblockDamaged, usize::from(damaged));
    if damaged {
        replace_damaged_superblock(&kernel)?;
    }
    recover(&kernel)?;
    Ok(kernel)
}

/// Writes what was chosen over the superblock that is damaged, before anything else is written.
/// That one may be the newer: a later write over it that is torn could leave it whole again, and
/// what it names would be overwritten by then.
fn replace_damaged_superblock(kernel: &Kernel) -> Result<()> {
    let snapshot = kernel.state.lock().snapshot.clone();
    if snapshot.state.sequence > 0 {
        write_superblock(kernel, &snapshot, 1)?;
        kernel.disk.flush()?;
    }
    Ok(())
}

/// The kernel as of its last checkpoint, with nothing recovered.
fn unrecovered(
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    superblock: Superblock,
) -> Result<Kernel> {
    let Superblock { fixed, state } = superblock;
    // The leftover table keeps its records in memory as well.
    let records_max = if fixed.leftover == Leftover::Table {
        settings.records_max * 3 / 4
    } else {
        settings.records_max
    };
    let scheme = crate::scheme::scheme(fixed.scheme);
    let records_max = if scheme.records() == Records::Nowhere { u64::MAX } else { records_max };
    let settings = Settings { records_max, ..settings };
    let index_entries = state.index_entries;
    let identity = settings.identity(&fixed);
    let compare = !settings.has(PlantedBug::ChecksumIgnored);
    let pages = Pages::new(disk.clone(), identity.clone(), settings.page_memory, compare);
    let snapshot = load_snapshot(&pages, state)?;
    let volumes = visible(&snapshot.volumes);
    let list = ZoneList::new(fixed.geometry, Vec::new(), snapshot.state.next_generation, true);
    let allocator = Allocator::new(fixed.geometry, &snapshot.state, fixed.grow, list);
    let state = State {
        open: Window::new(snapshot.state.last_window.next()),
        closed_windows: Default::default(),
        active: Overlay::default(),
        frozen: None,
        next_volume: snapshot.state.next_volume,
        durable: snapshot.state.durable,
        acknowledged: snapshot.state.durable,
        epoch: snapshot.state.epoch,
        zone_table: snapshot.state.zones,
        snapshot: Arc::new(snapshot),
        volumes,
        allocator,
        built: false,
        unplaced: 0,
        deferred: 0,
        spilling_pages: 0,
        fail_stop: FailStop::default(),
        checkpoint_wanted: false,
        flushes: Flushes::default(),
        releasing: false,
        releases: 0,
        leaves_wanted: false,
        ration: None,
        exact: false,
        block_leaves: [0; 2],
        pool: Vec::new(),
    };
    Ok(Kernel {
        scheme,
        index: Mutex::new(Index::new(settings.index_memory, index_entries)),
        disk,
        clock,
        fixed,
        identity,
        settings,
        pages,
        state: Mutex::new(state),
        preparing: Mutex::new(Preparer::default()),
        making_durable: Mutex::new(()),
        soft_updates: Mutex::default(),
        checkpointing: Mutex::new(Checkpointer::default()),
        compacting: Mutex::default(),
        counters: Counters::default(),
        coverage: Coverage::default(),
        lost: Mutex::default(),
        index_cursor: std::sync::atomic::AtomicU64::new(0),
        filter_cursor: std::sync::atomic::AtomicU64::new(0),
    })
}

/// Reads the catalogue and the pending discards of a checkpoint.
pub(crate) fn load_snapshot(pages: &Pages, state: superblock::State) -> Result<Snapshot> {
    let damaged = |what: &str| Error::new(Kind::Corrupt, format!("the {what} is damaged"));
    let mut volumes = BTreeMap::new();
    let per_leaf = Table::Catalogue.per_leaf();
    for n in 0..u64::from(state.volumes) {
        let (_, page) = pages
            .leaf(Table::Catalogue, 0, &state.catalogue, n / per_leaf)?
            .ok_or_else(|| damaged("catalogue"))?;
        let volume = Volume::get(&page, n % per_leaf).ok_or_else(|| damaged("catalogue"))?;
        volumes.insert(volume.id, volume);
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
    Ok(Snapshot { state, volumes, discards })
}
