//! The choices of a store's creation, and of its opening.

use std::{fmt, sync::Arc, time::Duration};

use onefold_core::{Algorithm, Error, Kind, Result};
use onefold_seal::Opener;

use crate::{
    format::{
        Identity,
        catalogue::{DISCARDS_MAX, VOLUMES_MAX},
        geometry::{Geometry, ZONE_BLOCKS_MAX},
        page::ReferenceEntry,
        record::WindowNumber,
        sealing::Sealing,
        superblock::{CUTS_MAX, Fixed, Layout, Leftover, SchemeName},
    },
    rules::Rule,
};

/// Whether, and how, blocks of a volume that lie scattered on the disk are moved together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Tidying {
    /// Nothing: they stay where they are.
    Off,
    /// The engine writes them again, next to each other, as if a client had written them. With leaves in
    /// place this is the only way.
    Records,
    /// The engine copies them in pauses, and checkpoints put the copies into the maps.
    #[default]
    Moves,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Persistence {
    /// When it is in memory; durable after a flush, or within about a second.
    #[default]
    Weak,
    /// When it is durable.
    Strong,
}

/// The choices of a store's creation.
#[derive(Clone, Debug)]
pub struct Format {
    /// Random id.
    pub id: [u8; 16],
    /// Random secret.
    pub secret: [u8; 32],
    /// Blocks of the disk that the store uses.
    pub blocks: u64,
    /// Blocks of a zone; 1024 unless a simulation wants small ones.
    pub zone_blocks: u32,
    /// How fingerprints are made.
    pub algorithm: Algorithm,
    /// True when a duplicate is one only if its bytes agree; required by broken algorithms.
    pub verify_bytes: bool,
    /// True when space is taken from the host zone by zone.
    pub grow: bool,
    /// Where left-over records go.
    pub leftover: Leftover,
    /// How windows lie.
    pub layout: Layout,
    /// How records become durable.
    pub scheme: SchemeName,
    /// The window before the first; 0 unless a simulation wants large numbers.
    pub window_before: WindowNumber,
}

impl Format {
    /// The usual choices for a store of `blocks` blocks.
    #[must_use]
    pub fn new(id: [u8; 16], secret: [u8; 32], blocks: u64) -> Format {
        Format {
            id,
            secret,
            blocks,
            zone_blocks: ZONE_BLOCKS_MAX,
            algorithm: Algorithm::Blake3,
            verify_bytes: false,
            grow: false,
            leftover: Leftover::Log,
            layout: Layout::Run,
            scheme: Default::default(),
            window_before: WindowNumber(0),
        }
    }

    /// The fixed part of the superblock.
    pub(crate) fn fixed(&self) -> Result<Fixed> {
        if self.algorithm.needs_bytes() && !self.verify_bytes {
            let message = format!(
                "whoever chooses blocks can choose two of one {} fingerprint: it needs --verify bytes",
                self.algorithm
            );
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let leftover = self.scheme.leftover(self.leftover);
        Ok(Fixed {
            id: self.id,
            secret: self.secret,
            geometry: Geometry::new(self.blocks, self.zone_blocks, leftover)?,
            algorithm: self.algorithm,
            verify_bytes: self.verify_bytes,
            grow: self.grow,
            leftover,
            layout: self.layout,
            scheme: self.scheme,
        })
    }
}

/// Least memory of an open store.
pub const MEMORY_MIN: u64 = 32 << 20;

/// Leaves of the map that one checkpoint works through for pending discards, besides those that it
/// changes anyway.
const DISCARD_LEAVES: u64 = 4096;

/// Most records that wait for a checkpoint: with a million, the map costs about 12 % of the ideal's
/// writes when they are spread over 120 GB, and recovery stays under a second.
pub(crate) const RECORDS_MAX: u64 = 1 << 20;

/// Most carriers that wait for a checkpoint: a recovery reads and proves each of them, 384 MiB
/// together.
const CARRIERS_MAX: u64 = 3 << 15;

/// Most windows that are closed and not yet published.
const CLOSED_WINDOWS_MAX: usize = 256;

/// Ranges with which a window is closed.
const WINDOW_RANGES_MAX: usize = 1024;

/// Most blocks that are written but not flushed: 32 MiB, what a recovery may have to hash.
pub(crate) const UNFLUSHED_BLOCKS_MAX: usize = 8192;

/// Most blocks of a window: one contiguous write of 1 MiB.
pub(crate) const WINDOW_BLOCKS_MAX: usize = 256;

/// OrderMergeDedup's: so long, changes of tables that nobody waits for wait to be merged into
/// others.
pub(crate) const DELAY: Duration = Duration::from_secs(30);

/// Blocks of a leaf that a run of it should have, as a mean.
const BLOCKS_A_RUN: usize = 16;

/// Clients that write a leaf in pieces come back to it within this time: moving it before would be in
/// vain.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// Most blocks that are copied before a checkpoint puts the copies into the maps: 256 MiB.
const MOVES_MAX: u64 = 1 << 16;

/// Bytes that an uncommitted record takes in memory at most: 62 in the overlay's table just after
/// it has doubled; 42 in the set of changed map pages when changes are scattered over a large
/// volume; 32 for the place of its block when windows are small, and 16 for the fingerprint; and 88
/// while a checkpoint sorts it, which is one record of two, as a checkpoint begins at half of the
/// limit.
const RECORD_MEMORY: u64 = 196;

/// Parts of the memory, in 32nds. One is left for the pages of a checkpoint on their way, and
/// carriers.
const RECORDS: u64 = 11;
const INDEX: u64 = 9;
const PAGES: u64 = 4;
const CONNECTIONS: u64 = 4;
const UNFLUSHED: u64 = 2;
/// For memory of windows that is kept for the next ones.
const POOL: u64 = 1;

const _: () = assert!(RECORDS + INDEX + PAGES + CONNECTIONS + UNFLUSHED + POOL + 1 == 32);

/// How full the tables of a store may get. The format's own bounds are the highest; lower ones are
/// for tests and simulations, so that they come to each of them. A store that holds more is opened
/// all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most ranges that a checkpoint leaves to be applied to the maps later; at least 2.
    pub discards: u64,
    /// Most leaves of the map that a checkpoint works through for them, besides one and those that
    /// it changes anyway.
    pub discard_leaves: u64,
    /// Most volumes, deleted ones included whose blocks are still to be freed; clients get half of
    /// them.
    pub volumes: u64,
    /// The highest number of a volume.
    pub volume_number: u32,
    /// Most recoveries that a superblock remembers.
    pub cuts: usize,
    /// Most carriers that wait for a checkpoint: a recovery reads and proves each of them.
    pub carriers: u64,
    /// Most windows that are closed and not yet published: more would only wait.
    pub closed_windows: usize,
    /// Ranges with which a window is closed.
    pub ranges: usize,
    /// Most snapshots of a volume.
    pub snapshots: u64,
    /// Most moments that wait for their checkpoints.
    pub moments: usize,
    /// Most blocks that one step of moving copies.
    pub moved: usize,
    /// Most blocks that one step of a checkpoint releases.
    pub released: usize,
    /// Most leaves, borrowers and pointers to pages that stay that a checkpoint works through for
    /// maps that were deleted, besides one.
    pub leaving: u64,
    /// References of a block from which on its count stands for "that many or more"; at most
    /// [`ReferenceEntry::SATURATED`].
    pub references: u32,
    /// Pages of the map of a volume with a quota that the quota does not charge, besides a 64th of it.
    pub free_map_pages: u64,
}

impl Limits {
    /// The count of a block with so many references. One that stands for "that many or more" stays,
    /// and the block is never freed.
    pub(crate) fn count_of(&self, references: i64) -> u32 {
        let many = references >= i64::from(self.references);
        if many { ReferenceEntry::SATURATED } else { references.max(0) as u32 }
    }
}

/// Most snapshots of a volume.
const SNAPSHOTS_MAX: u64 = 4_096;

/// Most moments that wait for their checkpoints.
const MOMENTS_MAX: usize = 4;

/// Most blocks that one step of moving copies: as many as a disk with 75,000 reads a second reads in 2 ms,
/// with the time to write them.
const MOVED_A_STEP: usize = 96;

/// Most blocks that one step of a checkpoint releases. Whoever reads or writes waits for it.
const RELEASED_A_STEP: usize = 2048;

/// Pages of the map of a volume with a small quota that the quota does not charge: 256 KiB, in which file
/// systems find room for what they spread over the volume.
const FREE_MAP_PAGES: u64 = 64;

/// Most pieces of deleted maps that a checkpoint works through.
const LEAVING_MAX: u64 = 4_096;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            discards: u64::from(DISCARDS_MAX),
            discard_leaves: DISCARD_LEAVES,
            volumes: u64::from(VOLUMES_MAX),
            volume_number: u32::MAX - 1,
            cuts: CUTS_MAX,
            carriers: CARRIERS_MAX,
            closed_windows: CLOSED_WINDOWS_MAX,
            ranges: WINDOW_RANGES_MAX,
            snapshots: SNAPSHOTS_MAX,
            moments: MOMENTS_MAX,
            moved: MOVED_A_STEP,
            released: RELEASED_A_STEP,
            leaving: LEAVING_MAX,
            references: ReferenceEntry::SATURATED,
            free_map_pages: FREE_MAP_PAGES,
        }
    }
}

/// Who is asked for the key of a sealed store; by default nobody.
#[derive(Clone, Default)]
pub struct KeySource(Option<Arc<dyn Opener>>);

impl KeySource {
    /// This one.
    #[must_use]
    pub fn new(opener: Arc<dyn Opener>) -> KeySource {
        KeySource(Some(opener))
    }

    pub(crate) fn of(&self) -> Option<&dyn Opener> {
        self.0.as_deref()
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_none() { "nobody" } else { "somebody" })
    }
}

/// The choices of a store's opening.
#[derive(Clone, Debug)]
pub struct Settings {
    /// When a write is acknowledged.
    pub persistence: Persistence,
    /// Bytes for the index in memory.
    pub index_memory: u64,
    /// Bytes for cached table pages.
    pub page_memory: u64,
    /// Most records that wait for a checkpoint.
    pub records_max: u64,
    /// Most blocks of a window.
    pub window_blocks: usize,
    /// Most blocks that are gathered or written but not flushed.
    pub unflushed_blocks: usize,
    /// With leaves in place: how long changes that nobody waits for wait for another write of
    /// their leaf.
    pub delay: Duration,
    /// Opens a store whose durable records are missing without them: the windows that they belong
    /// to are void, and older versions of their addresses come back. For repairs only.
    pub accept_loss: bool,
    /// How full tables may get.
    pub limits: Limits,
    /// Who is asked for the key of a sealed store.
    pub keys: KeySource,
    /// Whether, and how, scattered blocks are moved together.
    pub tidying: Tidying,
    /// Blocks of a leaf of the map that lies in more runs than one for each so many of them are moved
    /// together.
    pub blocks_a_run: usize,
    /// A leaf is moved only when no checkpoint changed it for so long.
    pub settled_after: Duration,
    /// Blocks that compress well are packed together when no checkpoint changed their leaf of the map for so
    /// long. `None`: none are. It needs [`Tidying::Moves`] and a store that is not sealed.
    pub pack_after: Option<Duration>,
    /// Bits of the fingerprint that are not zero: forced collisions for the simulator. Only with
    /// comparison of bytes.
    #[cfg(feature = "planted-bugs")]
    pub weak_fingerprint: Option<u32>,
    /// Recovery takes it that no block is left to append to: no simulated store is so full and so
    /// scattered.
    #[cfg(feature = "planted-bugs")]
    pub no_room_to_append: bool,
    /// The rule that the steps break; the simulator must find that out.
    #[cfg(feature = "planted-bugs")]
    pub broken: Option<Rule>,
}

impl Settings {
    /// Settings that keep caches, index share, uncommitted records, windows and buffers within
    /// `memory` bytes together.
    #[must_use]
    pub fn for_memory(memory: u64) -> Settings {
        let memory = memory.max(MEMORY_MIN);
        Settings {
            persistence: Persistence::Weak,
            index_memory: memory / 32 * INDEX,
            page_memory: memory / 32 * PAGES,
            records_max: (memory / 32 * RECORDS / RECORD_MEMORY).min(RECORDS_MAX),
            window_blocks: WINDOW_BLOCKS_MAX,
            unflushed_blocks: ((memory / 32 * UNFLUSHED / 4096) as usize).min(UNFLUSHED_BLOCKS_MAX),
            delay: DELAY,
            accept_loss: false,
            limits: Limits::default(),
            keys: KeySource::default(),
            tidying: Tidying::Moves,
            blocks_a_run: BLOCKS_A_RUN,
            settled_after: SETTLED_AFTER,
            pack_after: None,
            #[cfg(feature = "planted-bugs")]
            weak_fingerprint: None,
            #[cfg(feature = "planted-bugs")]
            no_room_to_append: false,
            #[cfg(feature = "planted-bugs")]
            broken: None,
        }
    }

    /// Bytes of the `memory` given to [`for_memory`](Self::for_memory) that are left to the buffers
    /// of connections.
    #[must_use]
    pub fn for_connections(memory: u64) -> u64 {
        memory.max(MEMORY_MIN) / 32 * CONNECTIONS
    }

    /// Blocks of windows that are kept for the next ones.
    pub(crate) fn pool_blocks(&self) -> usize {
        self.unflushed_blocks * POOL as usize / UNFLUSHED as usize
    }

    /// Most blocks that are copied before a checkpoint. A checkpoint begins at three quarters of the
    /// records, and copies take less memory than those of the last quarter.
    pub(crate) fn moves_max(&self) -> usize {
        (self.records_max / 4).min(MOVES_MAX) as usize
    }

    /// The identity of the store whose fixed part this is.
    pub(crate) fn identity(&self, fixed: &Fixed, sealing: Option<Arc<Sealing>>) -> Identity {
        let identity = fixed.identity(sealing);
        #[cfg(feature = "planted-bugs")]
        if let Some(bits) = self.weak_fingerprint {
            assert!(fixed.compares_bytes(), "a weak fingerprint needs the comparison of bytes");
            return identity.shortened(bits);
        }
        identity
    }

    /// True when recovery is to find no room.
    pub(crate) fn finds_no_room(&self) -> bool {
        #[cfg(feature = "planted-bugs")]
        return self.no_room_to_append;
        #[cfg(not(feature = "planted-bugs"))]
        false
    }

    /// True unless the simulator asked the steps to break this rule.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// A product keeps every rule.
    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self)]
    pub(crate) const fn keeps(&self, _: Rule) -> bool {
        true
    }
}
