//! The thing that is compared: a store of some scheme on a device, behind one narrow seam.
//!
//! A subject has no threads and knows no clients: the [replay](crate::replay) decides when a window
//! is committed and when there is time for background work, and gives every scheme the same
//! chances.

mod engine;
mod original;

pub(crate) use self::engine::{Recovered, Store};

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use onefold_block::{
    NoDedup, Persistence,
    format::{
        geometry::ZONE_BLOCKS_MAX,
        superblock::{Layout, Leftover},
    },
};
use onefold_core::{Block, Error, Kind, Lba, Result};
use onefold_testbed::VirtualClock;
use serde::{Deserialize, Serialize};

use crate::device::Device;

/// How metadata is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// No deduplication: every block goes to its own place.
    Original,
    /// No metadata is written (not crash-safe).
    Ideal,
    /// Data, flush, metadata in place, flush.
    Ordered,
    /// Dmdedup's: copy-on-write B-trees.
    Cow,
    /// OrderMergeDedup's soft updates.
    OrderMerge,
    /// ThinDedup's records, hidden in the data.
    Thin,
}

impl Scheme {
    /// All of them, from the baseline to the product's default.
    pub const ALL: [Scheme; 6] = [
        Scheme::Original,
        Scheme::Ideal,
        Scheme::Ordered,
        Scheme::Cow,
        Scheme::OrderMerge,
        Scheme::Thin,
    ];

    fn name(self) -> &'static str {
        match self {
            Scheme::Original => "original",
            Scheme::Ideal => "ideal",
            Scheme::Ordered => "ordered",
            Scheme::Cow => "cow",
            Scheme::OrderMerge => "ordermerge",
            Scheme::Thin => "thin",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Scheme> {
        let names: Vec<&str> = Scheme::ALL.iter().map(|scheme| scheme.name()).collect();
        Scheme::ALL.into_iter().find(|scheme| scheme.name() == text).ok_or_else(|| {
            Error::new(
                Kind::InvalidInput,
                format!("no scheme '{text}': one of {}", names.join(", ")),
            )
        })
    }
}

/// How a store is made and opened.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Its scheme.
    pub scheme: Scheme,
    /// Where records go that found no room.
    pub leftover: Leftover,
    /// How the blocks of a window lie.
    pub layout: Layout,
    /// When a write is answered.
    pub persistence: Persistence,
    /// Blocks of a window; none for the product's.
    pub window_blocks: Option<usize>,
    /// Memory for caches, index and uncommitted records.
    pub memory_bytes: u64,
    /// How long OrderMergeDedup delays updates that nobody waits for.
    pub delay: Duration,
    /// Blocks of a zone.
    pub zone_blocks: u32,
    /// Addresses that are not deduplicated.
    pub no_dedup: NoDedup,
}

/// OrderMergeDedup's.
const DELAY: Duration = Duration::from_secs(30);

impl Choice {
    /// The product's choices, for a scheme.
    #[must_use]
    pub fn new(scheme: Scheme, persistence: Persistence) -> Choice {
        let (leftover, layout) = (Leftover::Log, Layout::Run);
        Choice {
            scheme,
            leftover,
            layout,
            persistence,
            window_blocks: None,
            memory_bytes: 512 << 20,
            delay: DELAY,
            zone_blocks: ZONE_BLOCKS_MAX,
            no_dedup: NoDedup::default(),
        }
    }
}

/// The counts that a subject keeps itself, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Windows that became durable.
    pub windows: u64,
    /// Records in them.
    pub records: u64,
    /// Records that found room beside a compressed block.
    pub hidden_records: u64,
    /// Carriers that hold only records.
    pub record_blocks: u64,
    /// Records that were written explicitly, in place.
    pub leftover_records: u64,
    /// Blocks written for them.
    pub leftover_blocks: u64,
    /// Blocks that were stored already.
    pub duplicate_blocks: u64,
    /// Leaves of tables written in place.
    #[serde(default)]
    pub in_place_blocks: u64,
    /// Leaves among them that were written only for changes that nobody waited for.
    #[serde(default)]
    pub delayed_blocks: u64,
    /// Blocks of zeroes, which are stored nowhere.
    pub zero_blocks: u64,
    /// Blocks written to carry records into the tables.
    pub checkpoint_blocks: u64,
    /// Times that this was done.
    pub checkpoints: u64,
}

impl Tally {
    /// The counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Tally) -> Tally {
        between!(
            earlier,
            self,
            Tally {
                windows,
                records,
                hidden_records,
                record_blocks,
                leftover_records,
                leftover_blocks,
                duplicate_blocks,
                in_place_blocks,
                delayed_blocks,
                zero_blocks,
                checkpoint_blocks,
                checkpoints
            }
        )
    }
}

/// A store under comparison. Calls do their work on the device and return; nobody waits for the
/// device inside.
pub trait Subject {
    /// Writes blocks: they are gathered. `taken` counts those that were taken, also by a call that
    /// fails.
    ///
    /// # Errors
    /// `Busy` when [`make_room`](Subject::make_room) must be called first.
    fn write(&self, first: Lba, blocks: &[Block], taken: &mut usize) -> Result<()>;

    /// Forgets blocks, or makes them zeroes that are kept.
    ///
    /// # Errors
    /// As [`write`](Subject::write).
    fn drop_blocks(&self, first: Lba, blocks: u64, keep_zeroes: bool) -> Result<()>;

    /// Reads blocks.
    ///
    /// # Errors
    /// The device's, and damage.
    fn read(&self, first: Lba, into: &mut [Block]) -> Result<()>;

    /// Writes what was gathered into full windows to the device, which need not be durable.
    ///
    /// # Errors
    /// The device's.
    fn write_out(&self) -> Result<()>;

    /// Makes everything so far durable.
    ///
    /// # Errors
    /// The device's.
    fn commit(&self) -> Result<()>;

    /// After `Busy`: does what is needed for the next change to have room.
    ///
    /// # Errors
    /// The device's.
    fn make_room(&self) -> Result<()>;

    /// A client asks for something now.
    fn requested(&self);

    /// Does what the product's background thread would do now: called after each commit, and at
    /// the moment that the call before returned. Returns none when nothing is left to do before a
    /// client asks for something.
    ///
    /// # Errors
    /// The device's.
    fn background(&self) -> Result<Option<Duration>>;

    /// Makes everything durable, until the last record is in the tables.
    ///
    /// # Errors
    /// The device's.
    fn finish(&self) -> Result<()>;

    /// Its own counts.
    fn tally(&self) -> Tally;

    /// Blocks in use by contents and tables, as of what is in the tables; none for a subject that
    /// keeps no account.
    fn stored_blocks(&self) -> Option<u64>;

    /// Most blocks that may be answered and not durable.
    fn unflushed_blocks(&self) -> usize;

    /// Blocks at which a window is full.
    fn window_blocks(&self) -> usize;
}

/// Blocks that a device needs for a volume, so that a store of any scheme never is short of space.
#[must_use]
pub fn device_blocks(volume_blocks: u64) -> u64 {
    volume_blocks + volume_blocks / 8 + (1 << 17)
}

/// Makes a store with one volume of `volume_blocks` blocks, and opens it.
///
/// # Errors
/// `Unsupported` for a choice that the engine does not have; the device's.
pub fn open(
    choice: &Choice,
    volume_blocks: u64,
    device: Arc<Device>,
    clock: Arc<VirtualClock>,
) -> Result<Box<dyn Subject>> {
    Ok(match choice.scheme {
        Scheme::Original => Box::new(original::Original::new(choice, volume_blocks, device)),
        _ => Box::new(Store::make(
            choice,
            volume_blocks,
            device_blocks(volume_blocks),
            device,
            clock,
        )?),
    })
}
