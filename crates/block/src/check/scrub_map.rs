//! Verifying what one volume, or one snapshot, holds: all of it is read as a client reads it, which
//! compares each block with its fingerprint. A store at work goes on meanwhile, and what clients
//! wrote last counts.

use std::sync::Arc;

use onefold_core::{BLOCK_BYTES, Block, BlockRead, Disk, Error, ExtentKind, Lba, Result, VolumeId};

use super::{
    report::{Phase, Progress},
    scrub::{BAD_BLOCKS_MAX, over_a_copy},
};
use crate::{
    engine::{Engine, read::is_lost},
    format::page::Table,
    settings::KeySource,
};

/// Blocks that are read at once.
const READ_BLOCKS: usize = 256;

/// Extents that are asked for at once.
const EXTENTS: usize = 1024;

/// The result of a scrub of one map.
#[derive(Clone, Debug, Default)]
pub struct MapScrub {
    /// Blocks that were read, lost ones included.
    pub blocks: u64,
    /// Addresses whose data can't be read, as ranges in order: the first [`BAD_BLOCKS_MAX`].
    pub lost: Vec<Lost>,
    /// How many addresses that are.
    pub lost_blocks: u64,
    /// Addresses that were lost before, as a repair found, or a sender that skipped damage. Nothing is
    /// wrong with them but that they read as errors until they are written or trimmed.
    pub known_lost_blocks: u64,
    /// True when it was cancelled before its end.
    pub cancelled: bool,
}

/// A range whose data is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its first address.
    pub first: Lba,
    /// How many blocks.
    pub blocks: u64,
    /// The reason.
    pub what: String,
}

impl MapScrub {
    /// True when all data was read and is whole, but for what was lost before.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.lost_blocks == 0 && !self.cancelled
    }

    fn lose(&mut self, first: u64, blocks: u64, error: &Error) {
        self.lost_blocks += blocks;
        let (what, has_room) = (error.to_string(), self.lost.len() < BAD_BLOCKS_MAX);
        match self.lost.last_mut() {
            Some(last) if last.first.0 + last.blocks == first && last.what == what => {
                last.blocks += blocks;
            }
            _ if has_room => {
                self.lost.push(Lost { first: Lba(first), blocks, what });
            }
            _ => {}
        }
    }
}

/// Verifies all that a volume, or a snapshot as in `vm1@monday`, holds. `cancel` is asked now and
/// then; when it is true the report says how far it came.
///
/// # Errors
/// `NotFound`, also when it is deleted meanwhile; `Corrupt`: its domain was erased.
pub fn scrub_map(
    engine: &Engine,
    name: &str,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) -> Result<MapScrub> {
    let map = engine.find_volume(name)?;
    engine.kernel.state.lock().volumes.alive(map)?;
    let mut report = MapScrub::default();
    let mut at = 0;
    loop {
        let total = engine.volume(map)?.blocks;
        progress(Progress { what: Phase::Data, done: at, total });
        if at >= total {
            return Ok(report);
        }
        let extents = match engine.extents(map, Lba(at), total - at, EXTENTS) {
            Ok(extents) => extents,
            Err(error) => {
                // It may have been made smaller, or deleted.
                let total = engine.volume(map)?.blocks;
                let per_leaf = Table::Map.per_leaf();
                let next = ((at / per_leaf + 1) * per_leaf).min(total);
                if next > at {
                    report.lose(at, next - at, &error);
                }
                at = next;
                continue;
            }
        };
        for extent in extents {
            let end = at + extent.bytes / BLOCK_BYTES as u64;
            while extent.kind == ExtentKind::Data && at < end {
                if cancel() {
                    report.cancelled = true;
                    return Ok(report);
                }
                let blocks = (end - at).min(READ_BLOCKS as u64);
                read(engine, map, at, blocks as usize, &mut report);
                at += blocks;
                progress(Progress { what: Phase::Data, done: at, total });
            }
            at = end;
        }
    }
}

/// Reads some blocks together, and each by itself when that fails.
fn read(engine: &Engine, map: VolumeId, first: u64, blocks: usize, report: &mut MapScrub) {
    let mut into = Block::zeroed_vec(blocks);
    report.blocks += blocks as u64;
    let mut all = [BlockRead { first: Lba(first), into: &mut into, result: Ok(()) }];
    engine.read(map, &mut all);
    if all[0].result.is_ok() {
        return;
    }
    let places = (first..).map(Lba);
    let mut each: Vec<BlockRead<'_>> = places
        .zip(into.chunks_mut(1))
        .map(|(first, into)| BlockRead { first, into, result: Ok(()) })
        .collect();
    engine.read(map, &mut each);
    for one in each {
        let Err(error) = one.result else { continue };
        if is_lost(&engine.kernel, map, one.first) {
            report.known_lost_blocks += 1;
        } else {
            report.lose(one.first.0, 1, &error);
        }
    }
}

/// The same of a store that nobody serves; nothing is written.
///
/// # Errors
/// As opening the store, and `NotFound`.
pub fn scrub_only(
    disk: &Arc<dyn Disk>,
    name: &str,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) -> Result<MapScrub> {
    scrub_only_with(disk, &KeySource::default(), name, progress, cancel)
}

/// As [`scrub_only`], of a store that may be sealed: `keys` is asked for its key.
///
/// # Errors
/// As [`scrub_only`].
pub fn scrub_only_with(
    disk: &Arc<dyn Disk>,
    keys: &KeySource,
    name: &str,
    progress: &mut dyn FnMut(Progress),
    cancel: &mut dyn FnMut() -> bool,
) -> Result<MapScrub> {
    scrub_map(&over_a_copy(disk, keys)?, name, progress, cancel)
}
