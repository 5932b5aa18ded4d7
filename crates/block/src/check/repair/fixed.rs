//! Superblocks and the zone list: one good copy restores the other.
//!
//! The copy is written as the next version with the same content, to the place where the next
//! version belongs: the good copy is never touched, and whoever opens the store after a crash finds
//! it.

use onefold_core::{Disk, Error, Kind, Result};

use super::{outcome::Repaired, restore};
use crate::{
    check::{
        batch::read_one,
        places::{self, is_superblock, read_blocks},
        report::{Place, Report},
        rot,
    },
    format::{
        Identity,
        geometry::SUPERBLOCKS,
        sealing::Sealing,
        superblock::{Found, Superblock},
        zone_list::Page,
    },
};

/// Makes both superblocks whole. Returns the newest.
pub(super) fn superblocks(
    disk: &dyn Disk,
    sealing: Option<&Sealing>,
    repaired: &mut Repaired,
) -> Result<Superblock> {
    for (place, at) in (0..).zip(SUPERBLOCKS) {
        let Ok(mut block) = read_one(disk, at) else { continue };
        if !is_superblock(&block, place, sealing)
            && let Some(bit) =
                rot::restore_copy(&mut block, |block| is_superblock(block, place, sealing))
        {
            restore::write(disk, at, &block)?;
            disk.flush()?;
            repaired
                .restored
                .push(format!("{}: bit {bit} was flipped back", Place::Superblock(place)));
        }
    }
    let mut best = places::superblocks(disk, sealing, &mut Report::default())?;
    let blocks = read_blocks(disk, &SUPERBLOCKS);
    let found = |place: u32| match Superblock::open(&blocks[place as usize].0, place, sealing) {
        Found::Good(superblock) if blocks[place as usize].1.is_ok() => Some(*superblock),
        _ => None,
    };
    let own = (best.state.sequence % 2) as u32;
    if found(own).as_ref() != Some(&best) {
        return Err(Error::new(
            Kind::Corrupt,
            "the superblock lies at the wrong place; nothing can be known for certain",
        ));
    }
    let other = 1 - own;
    let follows = |other: &Superblock| {
        let next = other.state.sequence.wrapping_add(1) == best.state.sequence
            && other.fixed == best.fixed;
        next && (!best.state.clean
            || other.is_twin_of(&best)
            || other.is_before_shutdown(&best)
            || other.has_keys_before(&best))
    };
    if !found(other).as_ref().is_some_and(follows) {
        best.state.sequence += 1;
        restore::write(disk, SUPERBLOCKS[other as usize], &*best.written(other, sealing)?)?;
        disk.flush()?;
        repaired
            .restored
            .push(format!("{}: written anew from the other one", Place::Superblock(other)));
    }
    Ok(best)
}

/// Makes both copies of every page of the zone list whole.
pub(super) fn zone_list(
    disk: &dyn Disk,
    identity: &Identity,
    superblock: &Superblock,
    repaired: &mut Repaired,
) -> Result<()> {
    let geometry = superblock.fixed.geometry;
    let mut tries = rot::Tries::default();
    for number in 0..geometry.list_pages {
        let places = geometry.list_page(number);
        let mut copies: Vec<Option<Page>> = Vec::new();
        for at in places {
            let decode = |block: &onefold_core::Block| Page::decode(identity, block, number, at.0);
            let mut copy = None;
            if let Ok(mut block) = read_one(disk, at) {
                copy = decode(&block);
                if copy.is_none()
                    && let Some(bit) =
                        tries.restore_copy(&mut block, |block| decode(block).is_some())
                {
                    restore::write(disk, at, &block)?;
                    copy = decode(&block);
                    repaired.restored.push(format!(
                        "{}: bit {bit} was flipped back",
                        Place::ZoneList(number, at)
                    ));
                }
            }
            copies.push(copy);
        }
        disk.flush()?;
        let sequences: Vec<u64> = copies.iter().flatten().map(|page| page.sequence).collect();
        if let [first, second] = sequences[..]
            && first.abs_diff(second) == 1
        {
            continue;
        }
        let written = match copies.into_iter().flatten().max_by_key(|page| page.sequence) {
            Some(mut page) => {
                page.sequence = page.sequence.wrapping_add(1);
                let place = (page.sequence % 2) as usize;
                restore::write(
                    disk,
                    places[place],
                    &*page.encode(identity, number, places[place].0)?,
                )?;
                place
            }
            // After a clean shutdown no zone needs to be listed.
            None if superblock.state.clean => {
                for (sequence, at) in (0..).zip(places) {
                    restore::write(
                        disk,
                        at,
                        &*Page { sequence, ..Page::empty() }.encode(identity, number, at.0)?,
                    )?;
                }
                0
            }
            None => {
                repaired.left.push(format!("zone list page {number}: both copies are damaged, and the store was not shut down cleanly"));
                continue;
            }
        };
        disk.flush()?;
        repaired
            .restored
            .push(format!("{}: written anew", Place::ZoneList(number, places[written])));
    }
    Ok(())
}
