//! The blocks at fixed places: two superblocks, and two copies of every page of the zone list.
//!
//! Both copies are written by turns, so their sequences follow each other; the two superblocks of a
//! store that was shut down cleanly say the same, unless the shutdown was cut off between the two: then
//! the older one is that of the checkpoint before. After a clean shutdown every copy must be whole:
//! opening a store writes the torn copy of a superblock anew, and those of the zone list as well.
//! After a crash one of two may be torn, because the crash may have met the very write of it: that
//! is a note. A block that no tear explains (a foreign one, or one flipped bit) is a problem at any
//! time.

use onefold_core::{Block, Disk, Error, Pba, Result};

use super::{
    batch::read_one,
    report::{Place, Report},
    rot,
};
use crate::format::{
    Identity,
    geometry::SUPERBLOCKS,
    sealing::Sealing,
    superblock::{Found, Superblock},
    zone_list::{Entry, Page},
};

/// Reads single blocks, each with its own result.
pub(crate) fn read_blocks(disk: &dyn Disk, places: &[Pba]) -> Vec<(Block, Result<()>)> {
    let read = places.iter().map(|&at| match read_one(disk, at) {
        Ok(block) => (*block, Ok(())),
        Err(e) => (*Block::zeroed(), Err(e)),
    });
    read.collect()
}

/// The superblock that counts; judges both.
///
/// # Errors
/// As opening the store: there is none, or it is not ours.
pub(crate) fn superblocks(
    disk: &dyn Disk,
    sealing: Option<&Sealing>,
    report: &mut Report,
) -> Result<Superblock> {
    let blocks = read_blocks(disk, &SUPERBLOCKS);
    let found: Vec<Found> = (0..)
        .zip(&blocks)
        .map(|(place, (block, _))| Superblock::open(block, place, sealing))
        .collect();
    let best = found.iter().filter_map(|found| {
        if let Found::Good(superblock) = found { Some(superblock) } else { None }
    });
    let Some(best) =
        best.max_by_key(|superblock| superblock.state.sequence).map(|best| Superblock::clone(best))
    else {
        return crate::engine::opening::read_superblock(disk, sealing);
    };
    report.clean = best.state.clean;
    for ((place, found), (block, read)) in (0..).zip(&found).zip(&blocks) {
        if let Found::Good(found) = found {
            judge_whole(report, place, found, &best);
        } else {
            judge_damaged(report, place, (found, sealing), block, read, &best);
        }
    }
    let state = &best.state;
    if state.committed > state.durable || state.durable > state.last_window {
        report.problem(
            Place::Superblock((state.sequence % 2) as u32),
            "its windows are in no possible order",
        );
    }
    if state.clean && state.committed != state.durable {
        report.problem(
            Place::Superblock((state.sequence % 2) as u32),
            "it is clean, but its tables do not hold all durable windows",
        );
    }
    Ok(best)
}

fn judge_whole(report: &mut Report, place: u32, found: &Superblock, best: &Superblock) {
    let (sequence, newest) = (found.state.sequence, best.state.sequence);
    if sequence % 2 != u64::from(place) {
        report.problem(
            Place::Superblock(place),
            format!("number {sequence} does not belong at this place"),
        );
    } else if sequence != newest && sequence.wrapping_add(1) != newest {
        let what = format!(
            "it is number {sequence}, but the other one is number {newest}: a write between them was lost"
        );
        report.problem(Place::Superblock(place), what);
    }
    if found.has_keys_before(best) {
        report.note(format!(
            "{}: it is from before the last change of keys, which was cut off; the next opening writes it anew",
            Place::Superblock(place)
        ));
    } else if found.is_before_shutdown(best) {
        report.note(format!(
            "{}: a shutdown was cut off before it was written; the next opening writes it anew",
            Place::Superblock(place)
        ));
    } else if best.state.clean && !found.is_twin_of(best) && found.fixed == best.fixed {
        report.problem(
            Place::Superblock(place),
            "it is of another checkpoint than the other one: a write was lost",
        );
    }
    // A crash may have met a growth between the two.
    let grew = !best.state.clean && found.fixed.grew_into(&best.fixed);
    if found.fixed != best.fixed && !grew {
        report.problem(
            Place::Superblock(place),
            "it disagrees with the other one about what never changes",
        );
    }
}

fn judge_damaged(
    report: &mut Report,
    place: u32,
    (found, sealing): (&Found, Option<&Sealing>),
    block: &Block,
    read: &Result<()>,
    best: &Superblock,
) {
    let at = Place::Superblock(place);
    if let Err(e) = read {
        return report.problem(at, format!("it can't be read: {e}"));
    }
    if let Some(bit) = rot::rotten_bit(block, |block| is_superblock(block, place, sealing)) {
        return report.problem(at, format!("it is damaged: bit {bit} is flipped"));
    }
    match found {
        Found::Damaged if !best.state.clean && best.explains_tear(block, place) => {
            report.note(format!(
                "{at}: it is torn, as a crash leaves it; the next opening writes it anew"
            ));
        }
        Found::OtherVersion(version) => report.problem(
            at,
            format!("it says that it has format version {version}, unlike the other one"),
        ),
        Found::OtherFeatures(features) => report.problem(
            at,
            format!("it says that it has features {features:#x}, unlike the other one"),
        ),
        Found::Foreign => report.problem(at, "it is no superblock, unlike the other one"),
        Found::Damaged | Found::Good(_) | Found::Sealed(_) => report.problem(at, "it is damaged"),
    }
}

/// True for a whole superblock of the given place.
pub(crate) fn is_superblock(block: &Block, place: u32, sealing: Option<&Sealing>) -> bool {
    matches!(Superblock::open(block, place, sealing), Found::Good(_))
}

/// Judges both copies of every page of the zone list.
pub(crate) fn zone_list(
    disk: &dyn Disk,
    identity: &Identity,
    superblock: &Superblock,
    report: &mut Report,
) {
    let geometry = superblock.fixed.geometry;
    let mut tries = rot::Tries::default();
    for page in 0..geometry.list_pages {
        let places = geometry.list_page(page);
        let blocks = read_blocks(disk, &places);
        let decode = |n: usize| {
            blocks[n]
                .1
                .as_ref()
                .ok()
                .and_then(|()| Page::decode(identity, &blocks[n].0, page, places[n].0))
        };
        let copies = [decode(0), decode(1)];
        for n in 0..2 {
            let at = Place::ZoneList(page, places[n]);
            let other = copies[1 - n].as_ref();
            match (&copies[n], &blocks[n].1) {
                (Some(copy), _) => judge_copy(report, &at, n, copy, other, superblock),
                (None, Err(e)) => report.problem(at, format!("it can't be read: {e}")),
                (None, Ok(())) => {
                    let rot = tries.restore_copy(&mut blocks[n].0.clone(), |block| {
                        Page::decode(identity, block, page, places[n].0).is_some()
                    });
                    match (rot, other) {
                        (Some(bit), _) => {
                            report.problem(at, format!("it is damaged: bit {bit} is flipped"))
                        }
                        (None, Some(_)) if !superblock.state.clean => {
                            report.note(format!("{at}: it is torn, as a crash leaves it; the next opening writes it anew"));
                        }
                        (None, Some(_)) => report.problem(at, "it is damaged"),
                        (None, None) => {
                            report.problem(at, "it is damaged, and so is the other copy")
                        }
                    }
                }
            }
        }
    }
}

fn judge_copy(
    report: &mut Report,
    at: &Place,
    place: usize,
    copy: &Page,
    other: Option<&Page>,
    superblock: &Superblock,
) {
    let (geometry, state) = (superblock.fixed.geometry, &superblock.state);
    if copy.sequence % 2 != place as u64 {
        report.problem(
            at.clone(),
            format!("version {} does not belong at this place", copy.sequence),
        );
    } else if let Some(other) = other.filter(|other| {
        copy.sequence.abs_diff(other.sequence) != 1 && other.sequence > copy.sequence
    }) {
        let what = format!(
            "it is version {}, but the other copy is version {}: a write between them was lost",
            copy.sequence, other.sequence
        );
        report.problem(at.clone(), what);
    }
    let newest = other.is_none_or(|other| other.sequence < copy.sequence);
    if state.clean && newest && copy.durable > state.durable {
        let what = format!(
            "it knows of window {}, but the superblock, which is clean, only of {}",
            copy.durable, state.durable
        );
        report.problem(at.clone(), what);
    }
    for Entry { zone, generation, carriers } in copy.entries.iter().flatten() {
        if !geometry.has_zone(*zone) {
            report.problem(at.clone(), format!("it names zone {zone}, which there is not"));
        }
        if *generation == 0 || state.clean && *generation >= state.next_generation {
            report.problem(
                at.clone(),
                format!("it gives zone {zone} the generation {generation}, which was never given"),
            );
        }
        if carriers
            .is_some_and(|carriers| carriers.iter().any(|n| n as u64 >= geometry.zone_blocks))
        {
            report
                .problem(at.clone(), format!("it knows of carriers beyond the end of zone {zone}"));
        }
    }
}

/// The newest whole version of every page of the zone list, as far as there is one.
pub(crate) fn listed(disk: &dyn Disk, identity: &Identity, superblock: &Superblock) -> Vec<Entry> {
    let geometry = superblock.fixed.geometry;
    let newest = (0..geometry.list_pages).filter_map(|page| {
        let places = geometry.list_page(page);
        let blocks = read_blocks(disk, &places);
        let whole = blocks.iter().zip(places).filter(|((_, read), _)| read.is_ok());
        whole
            .filter_map(|((block, _), at)| Page::decode(identity, block, page, at.0))
            .max_by_key(|page| page.sequence)
    });
    newest
        .flat_map(|page| page.entries.into_iter().flatten())
        .filter(|entry| geometry.has_zone(entry.zone))
        .collect()
}

/// The error of a store that is larger than its disk.
pub(crate) fn whole(disk: &dyn Disk, superblock: &Superblock) -> Result<()> {
    let (has, needs) = (disk.blocks(), superblock.fixed.geometry.blocks());
    superblock.fixed.geometry.checked(has).map(|_| ()).map_err(|_| {
        Error::new(
            onefold_core::Kind::Corrupt,
            format!("the store is cut off: it needs {needs} blocks, but the disk has only {has}"),
        )
    })
}
