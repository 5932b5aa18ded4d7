//! Which blocks become fragments of packs: those of leaves that lie still, and that compress well.
//!
//! A pack is a copy of several blocks. It is written to a free block, and the next checkpoint puts the
//! mappings to its fragments where the map still names what was packed.
//!
//! A block that some pack holds already becomes a mapping to that fragment. So what clients write again is stored
//! as it is until it lies still, and then no more than once.

use std::collections::{BTreeMap, BTreeSet};

use onefold_core::{
    Block, BlockRef, Class, Fingerprint, Lba, Pba, Result, Run, VolumeId, compress::Lz4,
};

#[cfg(feature = "planted-bugs")]
use super::broken;
use super::{
    handing::Copied,
    learning,
    looking::{Look, has_room_for_both, is_alone, is_movable, movable, part_of},
    neighbours::{Next, is_worth_pages, next_settled},
    placing::place,
    resealing::is_named_there,
    sharers::{self, OfLeaf, has_shared_room},
};
use crate::{
    counters::add,
    coverage::Mark,
    engine::{
        lookup::fragments,
        read::{Wanted, read_stored},
    },
    format::{
        pack::Packing,
        page::{FRAGMENTS_MAX, Form, MapEntry, Table},
    },
    kernel::{Kernel, Mover, Plan},
    moving::{Found, Leaves, Moves, Put, Why},
    overlay::Tables,
    rules::Rule,
    scheme::verbs::Scheme,
    sharing::Orphan,
};

/// Leaves that one step looks at.
const LEAVES_A_STEP: usize = 16;

/// A block that takes more bytes than this stays as it is: beside it there is room for few others.
const FRAGMENT_BYTES_MAX: usize = 3000;

/// Of the blocks that a step packs one in so many must become free, or they stay.
const SAVED_SHARE: usize = 4;

/// Blocks of a leaf that are compressed to find out whether any do.
const SAMPLED: usize = 8;

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
    // Else what is in packs would be packed once more.
    if learning::step(kernel, tables, mover) {
        return Look::More;
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

/// A leaf is looked at again, whoever changed it.
fn look_again(mover: &mut Mover, leaf: (VolumeId, u64)) {
    if let Some(leaves) = &mut mover.packing {
        leaves.look_again(leaf);
    }
}

/// The blocks that are about to be packed wait for the next pause: their leaf is looked at again then.
pub(super) fn put_off(mover: &mut Mover) {
    let Some((lba, _)) = mover.plan.blocks.first() else { return };
    let leaf = (mover.plan.volume, lba.0 / Table::Map.per_leaf());
    mover.plan.blocks.clear();
    mover.packing_goes_on = None;
    look_again(mover, leaf);
}

/// The fewest packs that hold so many blocks.
pub(super) fn packs_of(blocks: usize) -> usize {
    blocks.div_ceil(FRAGMENTS_MAX)
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
    // Of the other maps of the family too: what they share here is their block as well.
    let family = tables.volumes.values().filter(|one| one.family() == volume.family());
    let critical: Vec<_> =
        family.map(|one| &one.no_dedup).filter(|ranges| !ranges.ranges().is_empty()).collect();
    let is_critical = |lba| critical.iter().any(|ranges| ranges.holds(lba));
    let mut blocks: Found = (0..Table::Map.per_leaf())
        .filter_map(|slot| Some((Lba(first + slot), MapEntry::get(&page, slot)?)))
        .filter(|&(lba, entry)| entry.is_block() && !is_critical(lba))
        .collect();
    let goes_on_before = mover.packing_goes_on.take();
    if blocks.len() < 2 || !may_gain(&blocks) {
        return Ok(Planned::Stays);
    }
    let goes_on = part_of(goes_on_before, id, &mut blocks);
    let sharers = if is_alone(kernel, tables, volume, leaf)? {
        None
    } else {
        match sharers::of_leaf(kernel, tables, (&mut *mover, orphans), volume, leaf)? {
            OfLeaf::More => {
                mover.packing_goes_on = goes_on_before;
                return Ok(Planned::Later);
            }
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
    if blocks.len() < 2 || !some_shrink(kernel, volume.domain, &blocks) {
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

/// True when packing blocks of a leaf may free any: some are in no pack yet, or are alone in theirs, as far as the
/// leaf tells.
fn may_gain(blocks: &Found) -> bool {
    let mut named: BTreeMap<Pba, usize> = BTreeMap::new();
    for (_, entry) in blocks {
        match *entry {
            MapEntry::Block { pba, form: Form::Packed(_), .. } => {
                *named.entry(pba).or_default() += 1
            }
            MapEntry::Block { .. } => return true,
            _ => {}
        }
    }
    named.values().filter(|&&fragments| fragments == 1).count() > 1
}

/// True when one of a few blocks that are in no pack compresses, or there are few. A leaf of a store whose blocks
/// don't would be read as a whole, and compressed, each time that the store is opened.
fn some_shrink(kernel: &Kernel, domain: u32, blocks: &Found) -> bool {
    let new: Vec<Wanted> = blocks
        .iter()
        .filter_map(|&(_, entry)| match entry {
            MapEntry::Block { pba, form, prefix } if !form.is_packed() => {
                Some(Wanted { pba, form, prefix })
            }
            _ => None,
        })
        .collect();
    if new.len() < blocks.len() || new.len() < SAMPLED * 4 {
        return true;
    }
    let some: Vec<Option<Wanted>> =
        (0..SAMPLED).map(|n| Some(new[n * new.len() / SAMPLED])).collect();
    let (mut lz4, found) = (Lz4::default(), read_stored(kernel, domain, &some));
    let shrinks = found.iter().flatten().any(|b| lz4.compress(b, FRAGMENT_BYTES_MAX).is_some());
    kernel.coverage.add(Mark::LeafDoesNotShrink, usize::from(!shrinks));
    shrinks
}

/// Packs blocks that were read and proved, if that frees enough of them. False when there is no room for a pack.
pub(super) fn pack(
    (kernel, scheme): (&Kernel, &dyn Scheme),
    tables: &Tables,
    plan: &Plan,
    copied: &[Copied],
    moves: &mut Moves,
) -> Result<bool> {
    let known = known(kernel, tables, plan, copied, moves)?;
    let is_known = |copy: &&Copied| known.iter().any(|(lba, _)| *lba == copy.lba);
    let mut packs = filled(copied.iter().filter(|copy| !is_known(copy)));
    let fragments = |packs: &[Filling]| packs.iter().map(|pack| pack.members.len()).sum::<usize>();
    if (fragments(&packs) - packs.len()) * SAVED_SHARE < fragments(&packs).max(1) {
        packs.clear();
    }
    let freed = fragments(&packs) - packs.len() + known.len();
    if freed == 0
        || plan.shared.as_ref().is_some_and(|shared| !is_worth_pages(freed, moves, shared))
    {
        return Ok(true);
    }
    let fits = |packs: &[Filling], moves: &Moves| {
        let both = (fragments(packs) + known.len(), packs.len());
        match &plan.shared {
            Some(shared) => has_shared_room(kernel, scheme, moves, both, shared),
            None => has_room_for_both(kernel, scheme, moves, both, 0),
        }
    };
    let all = packs.len();
    while !fits(&packs, moves) {
        if packs.is_empty() {
            return Ok(false);
        }
        packs.truncate(packs.len() / 2);
    }
    let has_room = packs.len() == all;
    note_known(kernel, plan, known, moves);
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
    Ok(all_placed && has_room)
}

/// The blocks that are in packs already, which maps name: what their addresses are to name. A fragment is one
/// only if it has the fingerprint and the bytes.
fn known(
    kernel: &Kernel,
    tables: &Tables,
    plan: &Plan,
    copied: &[Copied],
    moves: &Moves,
) -> Result<Vec<(Lba, Put)>> {
    let shares = |copy: &Copied| !copy.is_critical && !copy.is_older;
    let wanted: Vec<Option<Fingerprint>> =
        copied.iter().map(|copy| shares(copy).then_some(copy.fingerprint)).collect();
    let pack_of = |entry: MapEntry| match entry {
        MapEntry::Block { pba, form: Form::Packed(_), .. } => Some(pba),
        _ => None,
    };
    // Of two that are packed again neither comes to the other.
    let again: BTreeSet<Pba> = copied.iter().filter_map(|copy| pack_of(copy.from)).collect();
    let mut known = Vec::new();
    for (copy, found) in copied.iter().zip(fragments(kernel, tables, &wanted)?) {
        let believes = !kernel.keeps(Rule::FragmentHasFingerprint);
        let to = found
            .into_iter()
            .filter(|one| !again.contains(&one.pack) && (believes || one.content.0 == copy.block.0))
            .map(|one| MapEntry::Block {
                pba: one.pack,
                form: Form::Packed(one.number),
                prefix: copy.fingerprint.prefix(),
            })
            .find(|&to| !is_named_there(plan, copy.lba, to, moves));
        known.extend(to.map(|to| (copy.lba, Put { from: copy.from, to })));
    }
    Ok(known)
}

/// The next checkpoint puts mappings to fragments that are there into the map.
fn note_known(kernel: &Kernel, plan: &Plan, known: Vec<(Lba, Put)>, moves: &mut Moves) {
    if known.is_empty() {
        return;
    }
    kernel.coverage.add(Mark::FragmentsKnown, known.len());
    add(&kernel.counters.packed_blocks, known.len() as u64);
    if let Some(shared) = &plan.shared {
        sharers::count(kernel, moves, shared);
    }
    let mut state = kernel.state.lock();
    for (lba, put) in known {
        match &plan.shared {
            Some(shared) => {
                moves.note_known_shared(shared.family, lba, put);
                state.moving.count_shared_move();
            }
            None => {
                moves.note_known(plan.volume, lba, put);
                state.moving.count_move(plan.volume, lba);
            }
        }
    }
}

/// Fills packs with blocks in their order: neighbours are read together. What does not compress stays out, and so do
/// blocks of critical ranges, and a block that would be alone.
fn filled<'a>(copied: impl Iterator<Item = &'a Copied>) -> Vec<Filling> {
    let (mut lz4, mut packs) = (Lz4::default(), Vec::<Filling>::new());
    for copy in copied.filter(|copy| !copy.is_critical && !copy.is_older) {
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
    if packs.is_empty() {
        return;
    }
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
