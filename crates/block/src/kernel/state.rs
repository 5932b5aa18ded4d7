//! What the lock of the kernel protects: windows on their way, what was published, space, volumes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use onefold_core::{Block, Result, VolumeId};

use super::{ration::Ration, volumes::VolumeState};
use crate::{
    fail_stop::FailStop,
    flushes::Flushes,
    format::{
        catalogue::Volume,
        record::WindowNumber,
        superblock::{self, Root},
    },
    overlay::Overlay,
    space::Allocator,
    window::{PIECE_BLOCKS, Plan, Window, ranges::Ranges},
};

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
    pub(crate) ration: Option<Ration>,
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
