//! Making an empty store.

use onefold_core::{Block, BlockRef, Class, Disk, Pba, Result, Run};

use crate::{
    format::{
        Identity,
        geometry::SUPERBLOCKS,
        superblock::{self, Superblock},
        zone_list::Page,
    },
    scheme::room::reserve,
    settings::Format,
};

/// Makes an empty store on a disk. Durable on return.
pub(crate) fn format(disk: &dyn Disk, format: &Format) -> Result<()> {
    let fixed = format.fixed()?;
    let geometry = fixed.geometry.checked(disk.blocks())?;
    let identity = Identity::new(fixed.id, fixed.secret, fixed.algorithm);
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
    for page in 0..geometry.list_pages {
        for (sequence, at) in (0..).zip(geometry.list_page(page)) {
            write(
                at,
                &Page { sequence, ..Page::empty() }.encode(&identity, page, at.0),
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
        ..superblock::State::default()
    };
    for sequence in [0, 1] {
        let superblock = Superblock {
            fixed: fixed.clone(),
            state: superblock::State { sequence, ..state.clone() },
        };
        let place = (sequence % 2) as u32;
        write(SUPERBLOCKS[place as usize], &superblock.encode(place), Class::Super)?;
    }
    disk.flush()
}
