//! Which blocks become fragments of packs: those of leaves that lie still, and that compress well.
//!
//! A pack is a copy of several blocks. It is written to a free block, and the next checkpoint puts the
//! mappings to its fragments where the map still names what was packed.

use onefold_core::{
    Block, BlockRef, Class, Fingerprint, Lba, Pba, Result, Run, VolumeId, compress::Lz4,
};

#[cfg(feature = "planted-bugs")]
use super::broken;
use super::{
    handing::Copied,
    looking::{Look, is_alone, is_movable, movable, part_of},
    neighbours::{Next, is_worth_pages, next_settled},
    placing::place,
    sharers::{self, OfLeaf},
};
use crate::{
    counters::add,
    coverage::Mark,
    format::{
        pack::Packing,
        page::{Form, MapEntry, Table},
    },
    kernel::{Kernel, Mover, Plan},
    moving::{Found, Leaves, Moves, Why},
    overlay::Tables,
    rules::Rule,
    sharing::Orphan,
};

/// Leaves that one step looks at.
const LEAVES_A_STEP: usize = 16;

/// A block that takes more bytes than this stays as it is: beside it there is room for few others.
const FRAGMENT_BYTES_MAX: usize = 3000;

/// Of the blocks that a step packs one in so many must become free, or they stay.
const SAVED_SHARE: usize = 4;

/// A mapping to a fragment: its address, what it was, the number in the pack, and the prefix.
type Member = (Lba, MapEntry, u8, u64);

/// A pack that is being filled, and who is in it.
#[derive(Default)]
struct Filling {
    packing: Packing,
    members: Vec<(Member, Fingerprint)>,
}

/// Looks at a few leaves for one with blocks to pack.
pub(super) fn look(
    kernel: &Kernel,
    tables: &Tables,
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Look {
    let Some(settled) = kernel.settings.pack_after else { return Look::Nothing };
    if kernel.identity.sealing.is_some() {
        return Look::Nothing;
    }
    for _ in 0..LEAVES_A_STEP {
        let leaves = mover.packing.get_or_insert_with(|| Leaves::from_now(kernel.clock.now()));
        let (volume, leaf) = match next_settled(kernel, tables, leaves, settled) {
            Next::Leaf(volume, leaf) => (volume, leaf),
            Next::EndOfMap => continue,
            Next::Nothing => return Look::Nothing,
        };
        // A walk comes to leaves that were changed lately, too: their time is later.
        if !leaves.take((volume, leaf), kernel.clock.now(), settled) {
            continue;
        }
        // A page that can't be read is left to `check`.
        let Ok(planned) = plan(kernel, tables, (volume, leaf), (&mut *mover, orphans), moves)
        else {
            return Look::More;
        };
        match planned {
            Planned::Stays => {}
            Planned::More => return Look::More,
            Planned::Waits => {
                // Without a time it would be looked at without an end.
                if !settled.is_zero()
                    && let Some(leaves) = &mut mover.packing
                {
                    leaves.look_later((volume, leaf), kernel.clock.now());
                }
                return Look::More;
            }
            Planned::Later => {
                look_again(mover, (volume, leaf));
                return Look::More;
            }
            Planned::These(plan) => return Look::Chosen(plan),
        }
    }
    Look::More
}

fn look_again(mover: &mut Mover, leaf: (VolumeId, u64)) {
    if let Some(leaves) = &mut mover.packing {
        leaves.look_again(leaf);
    }
}

/// The verdict on a leaf.
enum Planned {
    Stays,
    /// The same, and looking at it was enough for a step.
    More,
    /// The same, until what deleted maps left is taken apart.
    Waits,
    /// Not all maps that share it are found yet.
    Later,
    These(Plan),
}

/// The blocks of a leaf, or of a part of it, that may be packed.
fn plan(
    kernel: &Kernel,
    tables: &Tables,
    (id, leaf): (VolumeId, u64),
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Result<Planned> {
    let Some(volume) = tables.volumes.get(&id).filter(|volume| is_movable(kernel, volume)) else {
        return Ok(Planned::Stays);
    };
    let found = kernel.pages.leaf(Table::Map, volume.family(), &volume.map, leaf)?;
    let Some((pointer, page)) = found else { return Ok(Planned::Stays) };
    let first = leaf * Table::Map.per_leaf();
    let mut blocks: Found = (0..Table::Map.per_leaf())
        .filter_map(|slot| Some((Lba(first + slot), MapEntry::get(&page, slot)?)))
        .filter(|&(lba, entry)| entry.is_block() && !volume.no_dedup.holds(lba))
        .collect();
    let is_new = |(_, entry): &(Lba, MapEntry)| {
        matches!(entry, MapEntry::Block { form: Form::Raw | Form::Carried, .. })
    };
    if blocks.len() < 2 || !blocks.iter().any(is_new) {
        return Ok(Planned::Stays);
    }
    let goes_on = part_of(mover.packing_goes_on, id, &mut blocks);
    let sharers = if is_alone(kernel, tables, volume, leaf)? {
        None
    } else {
        match sharers::of_leaf(kernel, tables, (&mut *mover, orphans), volume, leaf)? {
            OfLeaf::More => return Ok(Planned::Later),
            OfLeaf::Stays(why) if why.by_leftovers => return Ok(Planned::Waits),
            OfLeaf::Stays(_) => return Ok(Planned::More),
            OfLeaf::Found(place, shared) => Some((place, shared)),
        }
    };
    mover.packing_goes_on = goes_on;
    if goes_on.is_some() {
        look_again(mover, (id, leaf));
    }
    let mut blocks = match &sharers {
        None => movable(kernel, tables, volume, blocks, moves)?,
        Some((place, shared)) => {
            let mine = (volume, pointer.address, Why::Packing);
            let blocks = sharers::movable(kernel, tables, mine, blocks, (place, moves))?;
            if is_worth_pages(blocks.len(), moves, shared) { blocks } else { Found::new() }
        }
    };
    if blocks.len() < 2 {
        return Ok(Planned::More);
    }
    blocks.reverse();
    let (sequence, shared) = (tables.state.sequence, sharers.map(|(_, shared)| shared));
    Ok(Planned::These(Plan {
        volume: id,
        sequence,
        why: Why::Packing,
        blocks,
        shared,
        ..Plan::default()
    }))
}

/// Packs blocks that were read and proved, if that frees enough of them. False when there is no place for a pack.
pub(super) fn pack(
    kernel: &Kernel,
    tables: &Tables,
    plan: &Plan,
    copied: &[Copied],
    moves: &mut Moves,
) -> Result<bool> {
    let packs = filled(copied);
    let fragments: usize = packs.iter().map(|pack| pack.members.len()).sum();
    if (fragments - packs.len()) * SAVED_SHARE < fragments.max(1) {
        return Ok(true);
    }
    let wanted = packs.len() as u64;
    let (placed, all_placed) = place(kernel, tables, (Why::Packing, wanted), packs)?;
    let mut written: Vec<(Pba, Box<Block>)> = Vec::new();
    let mut noted: Vec<(Pba, Fingerprint, Vec<Member>)> = Vec::new();
    for (extent, packs) in placed {
        for (n, pack) in (0..).zip(packs) {
            let at = extent.at.plus(n);
            let (block, mut checksum) = pack.packing.finish(&kernel.identity, at);
            if let Some((_, of)) = pack.members.first()
                && !kernel.keeps(Rule::PacksAreNoDuplicates)
            {
                checksum = *of;
            }
            written.push((at, block));
            noted.push((at, checksum, pack.members.iter().map(|(member, _)| *member).collect()));
        }
    }
    #[cfg(feature = "planted-bugs")]
    let is_late = broken::packs_late(kernel, &written, moves);
    #[cfg(not(feature = "planted-bugs"))]
    let is_late = false;
    if !is_late {
        write(kernel, &written)?;
    }
    note(kernel, plan, noted, moves);
    Ok(all_placed)
}

/// Fills packs with blocks in their order: neighbours are read together. What does not compress stays out, and so do
/// blocks of critical ranges, and a block that would be alone.
fn filled(copied: &[Copied]) -> Vec<Filling> {
    let (mut lz4, mut packs) = (Lz4::default(), Vec::<Filling>::new());
    for copy in copied.iter().filter(|copy| !copy.is_critical && !copy.is_older) {
        let Some(bytes) = lz4.compress(&copy.block, FRAGMENT_BYTES_MAX) else { continue };
        let last = packs.last_mut().and_then(|pack| pack.packing.add(&copy.fingerprint, bytes));
        let number = last.or_else(|| {
            packs.push(Filling::default());
            packs.last_mut().and_then(|pack| pack.packing.add(&copy.fingerprint, bytes))
        });
        if let (Some(number), Some(pack)) = (number, packs.last_mut()) {
            let member = (copy.lba, copy.from, number, copy.fingerprint.prefix());
            pack.members.push((member, copy.fingerprint));
        }
    }
    packs.retain(|pack| pack.members.len() > 1);
    packs
}

/// Writes packs to their places, all together. They are durable with the flush of the checkpoint.
fn write(kernel: &Kernel, packs: &[(Pba, Box<Block>)]) -> Result<()> {
    let blocks: Vec<[BlockRef<'_>; 1]> =
        packs.iter().map(|(_, block)| [BlockRef { block, class: Class::Data }]).collect();
    let runs: Vec<Run<'_>> =
        packs.iter().zip(&blocks).map(|(&(at, _), blocks)| Run { at, blocks }).collect();
    if runs.is_empty() { Ok(()) } else { kernel.disk.write(&runs).map_err(|e| kernel.stop(&e)) }
}

/// The next checkpoint puts mappings to these fragments into the map.
fn note(
    kernel: &Kernel,
    plan: &Plan,
    packs: Vec<(Pba, Fingerprint, Vec<Member>)>,
    moves: &mut Moves,
) {
    let members = || packs.iter().flat_map(|(.., members)| members);
    let fragments = members().count();
    let again =
        |(_, from, ..): &&Member| matches!(from, MapEntry::Block { form: Form::Packed(_), .. });
    add(&kernel.counters.data_blocks, packs.len() as u64);
    add(&kernel.counters.packed_blocks, fragments as u64);
    kernel.coverage.add(Mark::BlocksPacked, fragments);
    kernel.coverage.add(Mark::PacksMade, packs.len());
    kernel.coverage.add(Mark::PackedAgain, members().filter(again).count());
    if let Some(shared) = &plan.shared {
        sharers::count(kernel, moves, shared);
    }
    let family = plan.shared.as_ref().map(|shared| shared.family);
    let mut state = kernel.state.lock();
    for (at, checksum, members) in &packs {
        moves.note_pack(plan.volume, family, (*at, *checksum), members);
        for &(lba, ..) in members {
            match family {
                Some(_) => state.moving.count_shared_move(),
                None => state.moving.count_move(plan.volume, lba),
            }
        }
    }
}
