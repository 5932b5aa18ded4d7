//! Writing superblocks.

use onefold_core::{Block, BlockRef, Class, Error, Kind, Result, Run};

use super::Kernel;
use crate::{
    counters::add,
    format::{
        geometry::{Geometry, SUPERBLOCKS},
        superblock::{self, Cut, Fixed, Superblock},
    },
    overlay::Tables,
};

/// Writes the superblock of a version: as the one `before` its number, which is the number of
/// its twin. Versions go to the two places by turns, so that none is written over the only
/// good one.
pub(crate) fn write_superblock(kernel: &Kernel, tables: &Tables, before: u64) -> Result<()> {
    write_superblock_of(kernel, kernel.geometry(), tables, before)
}

/// As [`write_superblock`], of a store with these sizes.
pub(crate) fn write_superblock_of(
    kernel: &Kernel,
    geometry: Geometry,
    tables: &Tables,
    before: u64,
) -> Result<()> {
    let (superblock, block) = named_superblock(kernel, geometry, tables, before)?;
    let refs = [BlockRef { block: &block, class: Class::Super }];
    let at = SUPERBLOCKS[place_of(&superblock) as usize];
    kernel.disk.write(&[Run { at, blocks: &refs }])?;
    add(&kernel.counters.super_blocks, 1);
    Ok(())
}

/// The superblock that [`write_superblock_of`] writes, and its block: always the same one.
pub(crate) fn named_superblock(
    kernel: &Kernel,
    geometry: Geometry,
    tables: &Tables,
    before: u64,
) -> Result<(Superblock, Box<Block>)> {
    let sequence = tables.state.sequence - before;
    let superblock = Superblock {
        fixed: Fixed { geometry, ..kernel.fixed.clone() },
        state: superblock::State { sequence, ..tables.state.clone() },
    };
    let block = superblock.written(place_of(&superblock), kernel.identity.sealing.as_deref())?;
    Ok((superblock, block))
}

fn place_of(superblock: &Superblock) -> u32 {
    (superblock.state.sequence % 2) as u32
}

/// Writes the superblock of the next epoch, and its twin, each with a flush.
pub(crate) fn write_next_epoch(kernel: &Kernel, tables: &Tables, cuts: Vec<Cut>) -> Result<()> {
    if cuts.len() > kernel.settings.limits.cuts {
        return Err(Error::new(Kind::Corrupt, "too many recoveries to remember"));
    }
    let (durable, last) = {
        let state = kernel.state.lock();
        (state.windows.durable(), state.windows.last_closed())
    };
    let risen = Tables {
        state: superblock::State {
            sequence: tables.state.sequence + 2,
            epoch: tables.state.epoch + 1,
            clean: false,
            durable,
            last_window: last,
            cuts,
            ..tables.state.clone()
        },
        volumes: tables.volumes.clone(),
        discards: tables.discards.clone(),
        places: tables.places.clone(),
        before: None,
    };
    for before in [1, 0] {
        write_superblock(kernel, &risen, before)?;
        kernel.disk.flush()?;
    }
    let mut state = kernel.state.lock();
    state.epoch = risen.state.epoch;
    state.overlays.named_anew(risen);
    Ok(())
}

/// Writes what was chosen over the other superblock, before anything else is written. That one may
/// be damaged and the newer: a later write over it that is torn could leave it whole again, and what
/// it names would be overwritten by then. Or it is whole, and from before the store grew: then it
/// names a zone list that nobody writes any more.
pub(crate) fn replace_superblock(kernel: &Kernel) -> Result<()> {
    let tables = kernel.tables();
    if tables.state.sequence > 0 {
        write_superblock(kernel, &tables, 1)?;
        kernel.disk.flush()?;
    }
    Ok(())
}
