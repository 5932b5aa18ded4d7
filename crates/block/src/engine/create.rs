//! Making an empty store.

use std::sync::Arc;

use onefold_core::{Block, BlockRef, Class, Disk, Error, Kind, Pba, Result, Run};
use onefold_seal::{Keys, Random};

use super::keys::{sealed_state, write_copies};
use crate::{
    format::{
        geometry::SUPERBLOCKS,
        sealing::{Flaws, Sealing},
        superblock::{self, Fixed, Leftover, Superblock},
        zone_list::Page,
    },
    scheme::room::reserve,
    settings::Format,
};

/// Makes an empty store on a disk. Durable on return.
pub(crate) fn format(disk: &dyn Disk, format: &Format) -> Result<()> {
    make(disk, format, format.fixed()?, None)
}

/// Makes an empty store on a disk that is sealed with `keys`, which have a slot and are those of the id
/// in `format`; its secret is not used. Durable on return.
///
/// # Errors
/// `InvalidInput` for impossible choices, a disk that is too small, or choices that don't go with
/// encryption; `Io`.
pub fn format_sealed(
    disk: &dyn Disk,
    format: &Format,
    keys: &mut Keys,
    random: &dyn Random,
) -> Result<()> {
    let fixed = Fixed { secret: [0; 32], ..format.fixed()? };
    may_be_sealed(&fixed)?;
    if *keys.id() != fixed.id {
        return Err(Error::new(Kind::InvalidInput, "the keys are those of another store"));
    }
    make(disk, format, fixed, Some((keys, random)))
}

/// Errors when the choices do not go with encryption.
fn may_be_sealed(fixed: &Fixed) -> Result<()> {
    let refused = |why: &str| Err(Error::new(Kind::InvalidInput, why));
    if fixed.scheme.writes_sectors() {
        return refused(
            "the schemes ordered and ordermerge write sectors of 512 bytes, which have no room \
             for a proof: an encrypted store needs another scheme",
        );
    }
    if fixed.leftover == Leftover::Table {
        return refused(
            "the leftover table has sectors of 512 bytes, which have no room for a proof: an \
             encrypted store needs leftover = log",
        );
    }
    if fixed.algorithm.needs_bytes() {
        return refused(
            "an encrypted store is proven by its fingerprints, which need a key: blake3 and sha256 \
             have one, sha1 and md5 have none",
        );
    }
    Ok(())
}

fn make(
    disk: &dyn Disk,
    format: &Format,
    fixed: Fixed,
    keys: Option<(&mut Keys, &dyn Random)>,
) -> Result<()> {
    let geometry = fixed.geometry.checked(disk.blocks())?;
    // With the reserve, so that a store whose host is full takes trims.
    disk.allocate(
        Pba(0),
        geometry.start_of(geometry.first_zone()).0
            + reserve(&geometry).next_multiple_of(geometry.zone_blocks),
    )?;
    let write = |at: Pba, block: &Block, class| {
        let refs = [BlockRef { block, class }];
        disk.write(&[Run { at, blocks: &refs }])
    };
    // A store that was here before must not shine through: its superblocks go first.
    for at in SUPERBLOCKS {
        write(at, &Block::zeroed(), Class::Super)?;
    }
    disk.flush()?;
    let (mut state, mut sealing) = (superblock::State::default(), None);
    if let Some((keys, random)) = keys {
        let area = keys.next_area(random)?;
        write_copies(disk, area.bytes(), [true; 2])?;
        state = sealed_state(area.sequence());
        sealing = Some(Arc::new(Sealing::new(keys, Flaws::default())?));
    }
    let identity = fixed.identity(sealing.clone());
    for page in 0..geometry.list_pages {
        for (sequence, at) in (0..).zip(geometry.list_page(page)) {
            write(
                at,
                &*Page { sequence, ..Page::empty() }.encode(&identity, page, at.0)?,
                Class::Table,
            )?;
        }
    }
    disk.flush()?;
    let state = superblock::State {
        sequence: 1,
        epoch: 1,
        clean: true,
        next_volume: 1,
        high_water: geometry.first_zone().0,
        next_generation: 1,
        committed: format.window_before,
        durable: format.window_before,
        last_window: format.window_before,
        ..state
    };
    for sequence in [0, 1] {
        let superblock = Superblock {
            fixed: fixed.clone(),
            state: superblock::State { sequence, ..state.clone() },
        };
        let place = (sequence % 2) as u32;
        let block = superblock.written(place, sealing.as_deref())?;
        write(SUPERBLOCKS[place as usize], &block, Class::Super)?;
    }
    disk.flush()
}
