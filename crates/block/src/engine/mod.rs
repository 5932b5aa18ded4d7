//! The engine: what happens to a write, step by step, without threads.
//!
//! Gather (`gather.rs`) → close → fingerprint, look up, place (`prepare.rs`) → persist,
//! acknowledge, publish (`persist.rs`); checkpoints (`checkpoint/`) carry published records into
//! the tables. Each step is a method, so that the simulator owns the schedule and [`crate::Store`]
//! runs the same steps from threads.
//!
//! Locks, in the order in which they are taken: `compacting`, `checkpointing`, `preparing`,
//! `making_durable`, `soft_updates`, `state`, `index`. `state` is held for memory work and, rarely,
//! for reading a page of the zone table; never for writes and flushes.

mod admission;
mod catalogue;
mod checkpoint;
mod compact;
mod create;
mod gather;
mod idle;
mod leftover;
mod loss;
mod persist;
mod prepare;
mod read;
mod recovery;
mod resolve;
mod tenants;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use onefold_core::{Block, Clock, Disk, Error, Result, Ticket, VolumeId, ZoneId};
use parking_lot::Mutex;

use crate::{
    counters::Counters,
    coverage::{Coverage, Mark},
    fail_stop::FailStop,
    flushes::Flushes,
    format::{
        Identity,
        catalogue::Volume,
        geometry::Geometry,
        page::{Table, ZoneEntry},
        record::WindowNumber,
        superblock::{self, Fixed, Root},
        zone_bitmap::ZoneBitmap,
    },
    index::Index,
    overlay::Overlay,
    scheme::{Scheme, ordermerge::SoftUpdates},
    settings::Settings,
    space::{Allocator, ZoneSource},
    table::Pages,
    window::{PIECE_BLOCKS, Plan, Window, ranges::Ranges},
};

pub use admission::Filled;
pub use catalogue::VolumeState;
pub use checkpoint::CheckpointStep;
pub(crate) use checkpoint::{Build, Checkpointer};
pub use idle::Idleness;
pub(crate) use persist::{list_refs, list_runs};
pub(crate) use recovery::read_superblock;
pub(crate) use resolve::entry_in;

/// The tables as of a checkpoint. Whoever holds it may read every page and every block that it
/// names.
pub(crate) struct Snapshot {
    pub(crate) state: superblock::State,
    pub(crate) volumes: BTreeMap<VolumeId, Volume>,
    pub(crate) discards: Ranges,
}

/// How far a closed window has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Closed,
    Preparing,
    Prepared,
    Writing,
    Written,
    /// With leaves in place: its links are written, too.
    Linked,
}

/// A closed window whose records are not published.
pub(crate) struct ClosedWindow {
    pub(crate) window: Arc<Window>,
    pub(crate) plan: Option<Arc<Plan>>,
    pub(crate) stage: Stage,
    /// With leaves in place: the last flush that began before its data and its counts were
    /// written.
    pub(crate) written_before: Option<u64>,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) open: Window,
    pub(crate) closed_windows: VecDeque<ClosedWindow>,
    pub(crate) active: Overlay,
    pub(crate) frozen: Option<Arc<Overlay>>,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The zone table of the last *released* checkpoint: in that of `snapshot`, blocks may be free
    /// that a reader still needs.
    pub(crate) zone_table: Root,
    pub(crate) volumes: BTreeMap<VolumeId, VolumeState>,
    pub(crate) next_volume: u32,
    pub(crate) allocator: Allocator,
    /// All windows up to this one are published: their records are durable, or a checkpoint has
    /// yet to make them so.
    pub(crate) durable: WindowNumber,
    /// All windows up to this one are durable, whatever comes.
    pub(crate) acknowledged: WindowNumber,
    pub(crate) epoch: u32,
    /// The pages of the frozen overlay are written.
    pub(crate) built: bool,
    /// Blocks gathered but not placed, and changes of the catalogue.
    pub(crate) unplaced: u64,
    /// Blocks that the last checkpoint found free, but newer records name: the next one decides on
    /// them.
    pub(crate) deferred: usize,
    /// Pages set aside for writing the index.
    pub(crate) spilling_pages: u64,
    pub(crate) fail_stop: FailStop,
    /// A checkpoint should run although nothing forces it yet.
    pub(crate) checkpoint_wanted: bool,
    pub(crate) flushes: Flushes,
    /// A checkpoint is durable, and what it does not need is about to be made free.
    pub(crate) releasing: bool,
    /// With leaves in place: a window waits for leaves that do not exist.
    pub(crate) leaves_wanted: bool,
    /// Likewise: a recount has found all counts that were too high after a crash.
    pub(crate) exact: bool,
    /// Likewise: leaves of references and of fingerprints that exist, the first ones.
    pub(crate) block_leaves: [u64; 2],
    /// How often blocks were made free: what was known of blocks before may be wrong after.
    pub(crate) releases: u64,
    pub(crate) pool: Vec<Vec<Block>>,
    /// There when the volumes may be those of several tenants.
    pub(crate) ration: Option<tenants::Ration>,
}

/// The block engine over a disk.
pub struct Engine {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) fixed: Fixed,
    pub(crate) identity: Identity,
    pub(crate) scheme: Box<dyn Scheme>,
    pub(crate) settings: Settings,
    pub(crate) pages: Pages,
    pub(crate) state: Mutex<State>,
    pub(crate) index: Mutex<Index>,
    pub(crate) preparing: Mutex<prepare::Preparer>,
    pub(crate) making_durable: Mutex<()>,
    pub(crate) soft_updates: Mutex<SoftUpdates>,
    pub(crate) checkpointing: Mutex<checkpoint::Checkpointer>,
    pub(crate) compacting: Mutex<compact::Compactor>,
    /// Windows whose loss was accepted at opening.
    pub(crate) lost: Mutex<Vec<loss::Windows>>,
    pub(crate) counters: Counters,
    pub(crate) coverage: Coverage,
    /// The next leaf of fingerprints that the index may not know; `u64::MAX` when it knows all.
    pub(crate) index_cursor: std::sync::atomic::AtomicU64,
    /// The next page of the index on disk that the filter may not know.
    pub(crate) filter_cursor: std::sync::atomic::AtomicU64,
}

impl Engine {
    /// The store's geometry.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.fixed.geometry
    }

    /// What was chosen when the store was created.
    #[must_use]
    pub fn fixed(&self) -> &Fixed {
        &self.fixed
    }

    /// True for a store that a crash would empty (the ideal, for measuring only): it must not be
    /// served.
    #[must_use]
    pub fn loses_everything(&self) -> bool {
        self.scheme.records() == crate::scheme::Records::Nowhere
    }

    /// The settings that it was opened with.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Everything with this ticket or a lower one is durable.
    #[must_use]
    pub fn durable(&self) -> Ticket {
        Ticket(self.state.lock().acknowledged.0)
    }

    /// The ticket of the newest change: when it is durable, everything that completed before is.
    #[must_use]
    pub fn newest(&self) -> Ticket {
        Ticket(self.state.lock().newest().0)
    }

    /// The ticket of the open window, when it holds anything.
    pub(crate) fn newest_open(&self) -> Option<Ticket> {
        let state = self.state.lock();
        (!state.open.is_empty()).then_some(Ticket(state.open.number.0))
    }

    /// True when exactly one closed window is not published.
    pub(crate) fn has_one_closed_window(&self) -> bool {
        self.state.lock().closed_windows.len() == 1
    }

    /// True when a closed window waits to be prepared.
    pub(crate) fn has_closed_windows(&self) -> bool {
        self.state.lock().closed_windows.back().is_some_and(|closed| closed.stage == Stage::Closed)
    }

    /// Blocks in closed windows that are not published.
    pub(crate) fn unflushed_blocks(&self) -> usize {
        self.state.lock().closed_windows.iter().map(|closed| closed.window.slots()).sum()
    }

    /// The reason, after the first failed write or flush.
    #[must_use]
    pub fn stopped(&self) -> Option<Error> {
        self.state.lock().fail_stop.reason().cloned()
    }

    /// Stops all writes for good, keeping the first reason. Reads go on.
    pub(crate) fn stop(&self, error: &Error) -> Error {
        self.state.lock().fail_stop.stop(error)
    }

    /// How often rare branches were reached since the store was opened, those that were.
    #[must_use]
    pub fn reached(&self) -> Vec<(Mark, u64)> {
        self.coverage.counts()
    }

    /// Bytes of memory that grow with the data: index, pages, uncommitted records, zones, windows.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let state = self.state.lock();
        let windows =
            state.closed_windows.iter().map(|closed| closed.window.slots()).sum::<usize>()
                + state.open.slots()
                + state.pool.len() * PIECE_BLOCKS;
        let overlays =
            state.active.memory() + state.frozen.as_ref().map_or(0, |frozen| frozen.memory());
        let zones = state.allocator.memory();
        drop(state);
        self.index.lock().memory() + self.pages.memory() + overlays + zones + windows as u64 * 4096
    }
}

impl State {
    /// The newest window that holds changes.
    pub(crate) fn newest(&self) -> WindowNumber {
        if self.open.is_empty() {
            self.closed_windows.back().map_or(self.durable, |closed| closed.window.number)
        } else {
            self.open.number
        }
    }

    /// Records that no checkpoint holds: gathered, in flight and published.
    pub(crate) fn uncommitted_records(&self) -> u64 {
        let flying: usize = self.closed_windows.iter().map(|closed| closed.window.records()).sum();
        self.active.records
            + self.frozen.as_ref().map_or(0, |frozen| frozen.records)
            + (flying + self.open.records()) as u64
    }

    /// Fails when writes were stopped.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.fail_stop.check()
    }

    /// Memory for more blocks of a window.
    pub(crate) fn piece(pool: &mut Vec<Vec<Block>>) -> Vec<Block> {
        pool.pop().unwrap_or_else(|| Block::zeroed_vec(PIECE_BLOCKS))
    }

    /// Takes back the memory of a window, unless a reader still looks into it.
    pub(crate) fn recycle(&mut self, window: Arc<Window>, pool_blocks: usize) {
        if let Some(window) = Arc::into_inner(window) {
            for piece in window.into_pieces() {
                if self.pool.len() * PIECE_BLOCKS < pool_blocks {
                    self.pool.push(piece);
                }
            }
        }
    }
}

/// The zone table as of the last released checkpoint, for the allocator.
pub(crate) struct Zones<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) root: Root,
}

impl ZoneSource for Zones<'_> {
    fn bitmaps(&self, first: ZoneId, zones: u64) -> Result<Vec<ZoneBitmap>> {
        let per_leaf = Table::Zones.per_leaf();
        let leaves: Vec<u64> = (first.0 / per_leaf..=(first.0 + zones - 1) / per_leaf).collect();
        let pages = self.engine.pages.leaves(Table::Zones, 0, &self.root, &leaves, true)?;
        Ok((first.0..first.0 + zones)
            .map(|zone| {
                let page = &pages[(zone / per_leaf - leaves[0]) as usize];
                page.as_ref().map_or_else(ZoneBitmap::default, |(_, page)| {
                    ZoneEntry::get(page, zone % per_leaf).used
                })
            })
            .collect())
    }

    fn grow(&self, zone: ZoneId) -> Result<()> {
        let geometry = self.engine.fixed.geometry;
        self.engine.disk.allocate(geometry.start_of(zone), geometry.zone_blocks)
    }
}
