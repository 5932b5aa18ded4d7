//! What is free is overwritten, so that a key that was erased opens nothing of what lay there.
//!
//! A block that is released keeps what it held until something else is written to it. After a change of a data
//! key that is nearly all that was stored before: moving copies it elsewhere. Whoever had the older key and the store
//! key would open it. So the end of a change overwrites what is free, and clears the fingerprints of blocks that
//! nobody names, before it erases the key.
//!
//! *Invariant:* only what neither superblock needs is overwritten. The store was closed in order, and both
//! superblocks have the same tables. A crash leaves some free blocks overwritten and the others as they were; the
//! same is done again.

use onefold_core::{
    Block, BlockRef, Class, Error, Kind, Lba, Pba, Read, Result, Run, VolumeId, ZoneId,
};

use super::{checkpoint::checkpoint_to_end, moving::has_room};
use crate::{
    format::{
        page::{self, ReferenceEntry, Table},
        zone_bitmap::ZoneBitmap,
    },
    kernel::{Checkpointer, Kernel, Phase, Reason},
    moving::{Home, Most},
    overlay::Tables,
    scheme::{shadow::unused, verbs::Scheme},
    space::ZoneSource,
};

/// Zones whose bitmaps are read together: those of eight pages.
const ZONES_TOGETHER: u64 = 8 * 31;

/// Blocks behind the zones that the tables know to have been used: 16 GiB. A crash leaves copies and pages in
/// zones that no checkpoint came to know. These are the next ones, and one checkpoint's work fills fewer.
const BEHIND: u64 = 1 << 22;

/// Leaves of fingerprints that one checkpoint writes anew: 16 MiB.
const LEAVES_TOGETHER: usize = 4096;

/// Overwrites with zeroes what is free in a store that was closed in order, and holds something. Durable on
/// return.
///
/// # Errors
/// `Corrupt`: a page can't be read, or blocks have references that are free by the zone table; nothing was
/// overwritten. `Io`, `NoSpace`: those of the disk.
pub(super) fn overwrite(kernel: &Kernel) -> Result<()> {
    let (tables, geometry) = (kernel.tables(), kernel.geometry());
    let source = kernel.zones(tables.state.zones);
    let end = tables.state.high_water.saturating_add(BEHIND / geometry.zone_blocks);
    let end = end.min(geometry.zones);
    // Nothing is overwritten before all zones are judged.
    for act in [judge_zone, overwrite_zone] {
        let mut at = geometry.first_zone().0;
        while at < end {
            let count = ZONES_TOGETHER.min(end - at);
            let bitmaps = source.bitmaps(ZoneId(at), count)?;
            for (zone, used) in (at..).map(ZoneId).zip(bitmaps) {
                if geometry.has_zone(zone) {
                    act(kernel, &tables, zone, &used)?;
                }
            }
            at += count;
        }
    }
    kernel.disk.flush()
}

/// Fails for a zone in which a block is free that has references.
fn judge_zone(kernel: &Kernel, tables: &Tables, zone: ZoneId, used: &ZoneBitmap) -> Result<()> {
    let (start, blocks) = (kernel.geometry().start_of(zone), kernel.geometry().zone_blocks);
    let all = start.0..start.0 + blocks;
    let references =
        kernel.pages.holding(Table::References, 0, &tables.state.references, all.clone())?;
    for at in all.filter(|at| !used.get((at - start.0) as usize)) {
        let entry = references.get(at).map(|((_, page), slot)| ReferenceEntry::get(page, slot));
        if entry.is_some_and(|entry| entry.references > 0) {
            let why = format!(
                "block {at} has references and is free by the zone table: `onefold check` tells more"
            );
            return Err(Error::new(Kind::Corrupt, why));
        }
    }
    Ok(())
}

fn overwrite_zone(kernel: &Kernel, _: &Tables, zone: ZoneId, used: &ZoneBitmap) -> Result<()> {
    let (start, blocks) = (kernel.geometry().start_of(zone), kernel.geometry().zone_blocks);
    let mut from = 0;
    while let Some((first, length)) = used.clear_run(from, blocks as usize, blocks as usize) {
        from = first + length;
        overwrite_run(kernel, start.plus(first as u64), length)?;
    }
    Ok(())
}

/// Overwrites those blocks of a run that hold something, or can't be read. Others would take space on the host.
fn overwrite_run(kernel: &Kernel, at: Pba, blocks: usize) -> Result<()> {
    let mut content = Block::zeroed_vec(blocks);
    let mut read = [Read::new(at, &mut content)];
    kernel.disk.read(&mut read);
    let [read] = read;
    let is_read = read.result.is_ok();
    let holds: Vec<bool> = content.iter().map(|block| !is_read || !block.is_zero()).collect();
    let zero = Block::zeroed();
    let zeroes = vec![BlockRef { block: &zero, class: Class::Data }; blocks];
    let mut runs = Vec::new();
    let mut first = 0;
    for same in holds.chunk_by(|one, other| one == other) {
        if same[0] {
            runs.push(Run { at: at.plus(first), blocks: &zeroes[..same.len()] });
        }
        first += same.len() as u64;
    }
    if runs.is_empty() { Ok(()) } else { kernel.disk.write(&runs) }
}

/// Clears the fingerprints of blocks without references in an open store that nobody works on. False when there
/// is no room for the pages.
///
/// # Errors
/// Those of checkpoints; `Corrupt`, `Io`: a page can't be read.
pub(super) fn clear_fingerprints(kernel: &Kernel, scheme: &dyn Scheme) -> Result<bool> {
    let mut next = 0;
    loop {
        {
            let mut checkpointer = kernel.checkpointing.lock();
            let Checkpointer { phase: Phase::Idle, moves, mover, .. } = &mut *checkpointer else {
                return Err(Error::new(Kind::Busy, "a checkpoint is under way"));
            };
            let most = kernel.settings.moves_max().min(LEAVES_TOGETHER);
            moves.most = Most { moves: most, shared_pages: 0, own: mover.reseals_alone };
            moves.clears_fingerprints = true;
            let tables = kernel.tables();
            let is_full = loop {
                let root = &tables.state.fingerprints;
                let Some(leaf) = kernel.pages.next_leaf(Table::Fingerprints, 0, root, next)? else {
                    break false;
                };
                if has_unused(kernel, &tables, leaf)? {
                    if !has_room(kernel, scheme, moves, 1, 0) {
                        break true;
                    }
                    moves.note_page(Home::Fingerprints, leaf);
                    // The count of pages covers one of fingerprints for a record.
                    kernel.state.lock().moving.count_move(VolumeId(0), Lba(0));
                }
                next = leaf + 1;
            };
            if moves.is_empty() {
                moves.clears_fingerprints = false;
                return Ok(!is_full);
            }
        }
        checkpoint_to_end(kernel, scheme, Reason::Changes)?;
    }
}

/// True when a leaf has fingerprints of blocks without references.
fn has_unused(kernel: &Kernel, tables: &Tables, leaf: u64) -> Result<bool> {
    let root = &tables.state.fingerprints;
    let Some((_, page)) = kernel.pages.leaf(Table::Fingerprints, 0, root, leaf)? else {
        return Ok(false);
    };
    let per_leaf = Table::Fingerprints.per_leaf();
    let unused = unused(kernel, &tables.state.references, leaf)?;
    Ok(unused.iter().any(|pba| page::fingerprint(&page, pba.0 % per_leaf).0 != [0; 16]))
}
