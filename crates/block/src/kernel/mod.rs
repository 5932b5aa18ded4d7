//! The kernel: all that an open store owns, behind its locks. It has no steps; those of the engine
//! and of the schemes are functions over it.
//!
//! Locks, in the order in which they are taken: `compacting`, `completing`, `checkpointing`, `preparing`,
//! `making_durable`, a scheme's own, `state`, `index`, `sizes`. `state` is held for memory work and,
//! rarely, for reading a page of the zone table; never for writes and flushes.

mod act_turn;
mod checkpointer;
mod compactor;
mod domains;
mod mover;
mod ration;
mod state;
mod superblocks;
mod volumes;

use std::sync::{Arc, atomic::Ordering::Relaxed};

pub use act_turn::Place;
pub(crate) use act_turn::{ActTurn, Progress, Room};
pub(crate) use checkpointer::{Checkpointer, NextCheckpoint, Phase, Reason, Reclaimed};
pub(crate) use compactor::Compactor;
pub(crate) use domains::{Domains, kept_for};
pub(crate) use mover::{
    Emptying, Learning, Mover, Plan, Resealing, SEEN_MAX, SharedPlan, Sharers, Stage,
};
use onefold_core::{Block, Clock, Disk, Error, Result, Ticket, ZoneId};
use parking_lot::Mutex;
pub(crate) use ration::Ration;
pub(crate) use state::{Leftovers, State, Where};
pub(crate) use superblocks::{
    named_superblock, replace_superblock, write_next_epoch, write_superblock, write_superblock_of,
};
pub use volumes::{Receiving, SnapshotOf, VolumeState};
pub(crate) use volumes::{Volumes, apply_catalogue};

use crate::{
    counters::Counters,
    coverage::Coverage,
    format::{
        FIRST_DOMAIN, Identity,
        geometry::Geometry,
        page::{Table, ZoneEntry},
        record::WindowNumber,
        superblock::{Fixed, Root},
        zone_bitmap::ZoneBitmap,
    },
    index::Index,
    moving::Handed,
    overlay::Tables,
    rules::Rule,
    settings::Settings,
    space::ZoneSource,
    table::Pages,
};

/// Windows from the first to the last.
pub(crate) type WindowRange = (WindowNumber, WindowNumber);

/// The owners of an open store, each behind its lock.
pub(crate) struct Kernel {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    /// As the store was opened; [`geometry`](Kernel::geometry) has its sizes as they are now.
    pub(crate) fixed: Fixed,
    pub(crate) sizes: Mutex<Geometry>,
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) pages: Pages,
    pub(crate) state: Mutex<State>,
    pub(crate) index: Mutex<Index>,
    pub(crate) preparing: Mutex<()>,
    pub(crate) making_durable: Mutex<()>,
    pub(crate) checkpointing: Mutex<Checkpointer>,
    pub(crate) compacting: Mutex<Compactor>,
    /// Blocks that readers in order found scattered. The lock is a leaf.
    pub(crate) handed: Mutex<Handed>,
    /// Held by who completes the index.
    pub(crate) completing: Mutex<()>,
    /// Windows whose loss was accepted at opening.
    pub(crate) lost: Mutex<Vec<WindowRange>>,
    /// Memory in which blocks are sealed on their way to the disk.
    pub(crate) sealed: Mutex<Vec<Block>>,
    pub(crate) counters: Counters,
    pub(crate) coverage: Coverage,
    /// The next leaf of fingerprints that the index may not know; `u64::MAX` when it knows all.
    pub(crate) index_cursor: std::sync::atomic::AtomicU64,
    /// The next page of the index on disk that the filter may not know.
    pub(crate) filter_cursor: std::sync::atomic::AtomicU64,
    /// The index knows which fragments packs have, as far as it has room for them.
    pub(crate) fragments_known: std::sync::atomic::AtomicBool,
}

impl Kernel {
    /// The name of a domain, which is empty for the first one; `None` when it was erased.
    pub(crate) fn domain_name(&self, domain: u32) -> Option<String> {
        match &self.identity.sealing {
            Some(sealing) => sealing.domain_name(domain).map(str::to_owned),
            None => (domain == FIRST_DOMAIN).then(String::new),
        }
    }

    /// True when the steps keep this rule; the constant `true` in a product.
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.settings.keeps(rule)
    }

    /// The sizes of the store, which rise when it grows.
    pub(crate) fn geometry(&self) -> Geometry {
        *self.sizes.lock()
    }

    /// The progress by which turns of acts are measured.
    pub(crate) fn progress(&self) -> Progress {
        let counts = &self.counters;
        let (checkpoints, leaves) = (&counts.checkpoints, &counts.discard_leaves);
        Progress { checkpoints: checkpoints.load(Relaxed), leaves: leaves.load(Relaxed) }
    }

    /// Everything with this ticket or a lower one is durable.
    pub(crate) fn durable(&self) -> Ticket {
        Ticket(self.state.lock().windows.acknowledged().0)
    }

    /// The ticket of the newest change.
    pub(crate) fn newest(&self) -> Ticket {
        Ticket(self.state.lock().windows.newest().0)
    }

    /// The ticket of the open window, when it holds anything.
    pub(crate) fn newest_open(&self) -> Option<Ticket> {
        let state = self.state.lock();
        let open = state.windows.open();
        (!open.is_empty()).then_some(Ticket(open.number.0))
    }

    /// True when exactly one closed window is not published.
    pub(crate) fn has_one_closed_window(&self) -> bool {
        self.state.lock().windows.closed() == 1
    }

    /// True when a closed window waits to be prepared.
    pub(crate) fn has_closed_windows(&self) -> bool {
        self.state.lock().windows.wants_preparing()
    }

    /// Blocks in closed windows that are not published.
    pub(crate) fn unflushed_blocks(&self) -> usize {
        self.state.lock().windows.closed_slots()
    }

    /// Stops all writes for good, keeping the first reason. Reads go on.
    pub(crate) fn stop(&self, error: &Error) -> Error {
        self.state.lock().fail_stop.stop(error)
    }

    /// The tables as of the last checkpoint: as long as it is held, no block that they name is
    /// handed out again.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        self.state.lock().overlays.tables().clone()
    }

    /// Zones as of the released checkpoint, whose zone table is `root`, for the allocator.
    pub(crate) fn zones(&self, root: Root) -> Zones<'_> {
        Zones { kernel: self, root }
    }

    /// True when the index was completed after opening.
    pub(crate) fn index_complete(&self) -> bool {
        self.index_cursor.load(Relaxed) == u64::MAX && self.index.lock().filter_complete
    }

    /// Bytes of memory that grow with the data: index, pages, uncommitted records, zones, windows.
    pub(crate) fn memory(&self) -> u64 {
        let state = self.state.lock();
        let windows = state.windows.memory_blocks();
        let overlays = state.overlays.memory() + state.moving.memory();
        let zones = state.allocator.memory();
        drop(state);
        let handed = self.handed.lock().memory();
        let caches = self.index.lock().memory() + self.pages.memory();
        caches + handed + overlays + zones + windows as u64 * 4096
    }
}

/// The zone table as of the last released checkpoint, for the allocator.
pub(crate) struct Zones<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) root: Root,
}

impl ZoneSource for Zones<'_> {
    fn bitmaps(&self, first: ZoneId, zones: u64) -> Result<Vec<ZoneBitmap>> {
        let per_leaf = Table::Zones.per_leaf();
        let leaves: Vec<u64> = (first.0 / per_leaf..=(first.0 + zones - 1) / per_leaf).collect();
        let pages = self.kernel.pages.leaves(Table::Zones, 0, &self.root, &leaves, true)?;
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
        let geometry = self.kernel.geometry();
        self.kernel.disk.allocate(geometry.start_of(zone), geometry.zone_blocks)
    }
}
