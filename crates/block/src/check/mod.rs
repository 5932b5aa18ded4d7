//! Looking at a store from outside: verifying its metadata, mending it, verifying its data, and
//! decoding any block of it for a person.
//!
//! * [`check`] reads everything but raw data and writes nothing. Each block of metadata is compared
//!   with its checksum and with whoever names it, and the tables are compared with each other: one
//!   flipped bit in any record makes it fail.
//! * [`Engine::scrub`](crate::Engine::scrub) reads the data itself, of a store at work as well.
//! * [`repair`] writes what follows with certainty from what is left, and nothing else.
//! * [`inspect`] shows what a block says.
//!
//! A difference that a crash could have left is a note and not a problem; with a store
//! that was shut down cleanly nothing is.
//!
//! *Invariant:* nothing here writes to a store but `repair`, which the caller gives the store for
//! itself alone.
//!
//! Threads: none; each function runs in its caller's.

mod accounts;
mod batch;
mod compare;
mod counts;
mod exclusive;
mod inspect;
mod leaves;
mod leftover;
mod look;
mod lost;
mod overlay_disk;
mod packs;
mod per_leaf;
mod places;
mod recovered;
mod repair;
mod report;
mod rot;
mod scrub;
mod scrub_map;
mod sharing;
mod tables;
mod usage;
mod volumes;
mod walk;

use std::sync::Arc;

pub use exclusive::{Exclusive, VolumeSpace, exclusive, volume_space};
pub use inspect::{What, inspect, inspect_with};
pub use look::{look, look_with};
use onefold_core::{Disk, Result};
pub use repair::{LOST_MAX, Repaired, repair, repair_within};
pub use report::{PROBLEMS_MAX, Phase, Place, Problem, Progress, Report};
pub use scrub::{BAD_BLOCKS_MAX, BadBlock, NAMES_MAX, ScrubReport, scrub, scrub_open, scrub_with};
pub use scrub_map::{Lost, MapScrub, scrub_map, scrub_only, scrub_only_with};
use tables::Checker;

use crate::block_set::BlockSet;
use crate::{engine::keys::unlock_to_look, format::sealing::Sealing, settings::KeySource};

/// Memory that a check takes to compare blocks: enough for 64 GiB of data in one pass over the
/// maps; larger stores take several.
pub const MEMORY: u64 = 256 << 20;

/// Verifies all metadata of a store that nobody serves. Only reads.
///
/// A store that was not shut down cleanly is verified as of its last checkpoint, then opened over
/// memory, so that recovery runs and a checkpoint of what it found is made, and verified again;
/// nothing of that reaches the disk.
///
/// Memory: [`MEMORY`] for what is compared, one bit for each block of a zone with table pages, at
/// most 16 MiB for reads; for an unclean store also what recovery and one checkpoint write, up to 1
/// GiB.
///
/// # Errors
/// When there is no store to look at: `InvalidInput` (not a store, or its disk is too small),
/// `Unsupported` (too new), `Corrupt` (both superblocks are damaged, or the disk is cut off).
/// Everything else is a problem in the report.
pub fn check(disk: &Arc<dyn Disk>, progress: &mut dyn FnMut(Progress)) -> Result<Report> {
    check_within(disk, MEMORY, progress)
}

/// As [`check_within`], of a store that may be sealed: `keys` is asked for its key. Blocks of a sealed
/// store say nothing of themselves, so a damaged carrier in a zone that takes more of them is told by
/// the window that misses it.
///
/// # Errors
/// As [`check`]; those of asking for the key.
pub fn check_with(
    disk: &Arc<dyn Disk>,
    keys: &KeySource,
    memory: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let sealing = unlock_to_look(&**disk, keys)?;
    check_by(disk, keys, sealing, memory, progress)
}

/// As [`check`], with `memory` bytes instead of [`MEMORY`].
///
/// # Errors
/// As [`check`].
pub fn check_within(
    disk: &Arc<dyn Disk>,
    memory: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    check_with(disk, &KeySource::default(), memory, progress)
}

fn check_by(
    disk: &Arc<dyn Disk>,
    keys: &KeySource,
    sealing: Option<Arc<Sealing>>,
    memory: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    let mut report = Report::default();
    let superblock = places::superblocks(&**disk, sealing.as_deref(), &mut report)?;
    places::whole(&**disk, &superblock)?;
    let identity = superblock.fixed.identity(sealing);
    places::zone_list(&**disk, &identity, &superblock, &mut report);
    let mut proven = BlockSet::new(superblock.fixed.geometry);
    Checker::new(&**disk, &identity, &superblock, &mut report, progress)
        .run(memory, &mut |pba| !proven.insert(pba));
    if !superblock.state.clean {
        let of = recovered::Of { keys, superblock: &superblock, identity: &identity };
        recovered::check(disk, &of, memory, &proven, &mut report, progress);
    }
    Ok(report)
}
