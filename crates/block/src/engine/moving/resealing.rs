//! What is under the older data key of a domain comes under the newest one.
//!
//! A domain whose data key was changed has two keys until nothing is under the older one. All that is written
//! is under the newest, copies too; so what is left under the older one only becomes less. A walk looks at all
//! leaves of maps that do not say yet that it is gone from them. It reads the blocks of a leaf, and the
//! fingerprint of each tells by which key it is known. A block that has the older one is copied and sealed
//! again, and so has another fingerprint; if its content is stored under the newest key already, the entry
//! names that. Once all of a leaf has that, its next version says so: the leaf is *marked* with the generation
//! of the key.
//!
//! *Invariant:* no block that a marked leaf names is under an older key than the mark says. The mark belongs
//! to the page that was looked through, and is written when exactly this page is replaced, with what was to
//! take the place of its entries; what clients put beside that is under the newest key.
//!
//! *Invariant:* entries of a place that were equal are equal afterwards, and no others. So what a page's
//! lender has counts as before: an entry gets a block that is stored already only where no page at its place
//! names that block there.

use std::collections::BTreeSet;

use onefold_core::{Lba, Pba, Result, VolumeId};

use super::{
    handing::Copied,
    looking::{Look, is_alone, is_movable, next_movable, want_checkpoint},
    sharers::{self, OfLeaf},
};
use crate::{
    counters::add,
    coverage::Mark,
    engine::lookup::{Sought, look_up},
    format::{
        catalogue::{MapKind, Volume},
        page::{self, Form, MapEntry, Page, Table},
    },
    kernel::{Kernel, Leftovers, Mover, Plan, Resealing},
    moving::{Found, Hindered, Home, Moves, Put, Why},
    overlay::Tables,
    rules::Rule,
    sharing::Orphan,
    window::Placed,
};

/// Leaves of maps that one step looks at.
const LEAVES_A_STEP: usize = 16;

/// After a walk that found nothing more to do, clients write this share of the store before the next one.
const REST_SHARE: u64 = 64;

/// Goes on with the walk, or begins one, while a domain has two data keys.
pub(super) fn look(
    kernel: &Kernel,
    tables: &Tables,
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Look {
    let (resealing, sequence) = (&mover.resealing, tables.state.sequence);
    if !kernel.identity.has_older()
        || resealing.is_done
        || sequence < resealing.after
        || kernel.counters.counts().client_blocks < resealing.rests_until
    {
        return Look::Nothing;
    }
    if tables.state.shares_pages() && orphans.is_none() {
        // The first checkpoint finds out what deleted maps left behind.
        kernel.state.lock().checkpoint_wanted |= !mover.beside_requests;
        return Look::Nothing;
    }
    for _ in 0..LEAVES_A_STEP {
        let (at, from) = mover.resealing.at;
        let Some((&id, volume)) = tables.volumes.range(at..).next() else {
            end(kernel, tables, mover, moves);
            return Look::More;
        };
        let from = if id == at { from } else { 0 };
        let next = (VolumeId(id.0.saturating_add(1)), 0);
        let wanted = mover.reseals_alone.is_none_or(|alone| alone == volume.domain);
        if !wanted || kernel.identity.older_fingerprinter_of(volume.domain).is_none() {
            mover.resealing.at = next;
            continue;
        }
        // What is being received gets a name later.
        mover.resealing.passed_older |= volume.map.height > 0 && !is_movable(kernel, volume);
        let leaf = match next_movable(kernel, volume, from) {
            Ok(Some(leaf)) => leaf,
            Ok(None) => {
                mover.resealing.at = next;
                continue;
            }
            // A page that can't be read is left to `check`, and the older key stays.
            Err(_) => {
                mover.resealing.hindered.by_damage = true;
                mover.resealing.at = next;
                continue;
            }
        };
        mover.resealing.at = (id, leaf + 1);
        match plan(kernel, tables, (volume, leaf), (&mut *mover, orphans), moves) {
            Ok(Planned::Nothing) => {}
            Ok(Planned::Later) => {
                mover.resealing.at = (id, leaf);
                return Look::More;
            }
            Ok(Planned::These(plan)) => {
                mover.resealing.passed_older = true;
                return Look::Chosen(plan);
            }
            Ok(Planned::Stays(by)) => {
                mover.resealing.hindered = mover.resealing.hindered.and(by);
                // Finding that out may have read all leaves there.
                return Look::More;
            }
            Err(_) => mover.resealing.hindered.by_damage = true,
        }
    }
    Look::More
}

/// The walk is at its end. When it found nothing under an older key there is no other one. Else the next one
/// begins when a checkpoint has put what this one found, or has taken away what hindered it; or, when none does,
/// when clients have written much.
fn end(kernel: &Kernel, tables: &Tables, mover: &mut Mover, moves: &Moves) {
    let Resealing { worked, hindered, passed_older, .. } = std::mem::take(&mut mover.resealing);
    let written = kernel.counters.counts().client_blocks;
    let rest = written + 1 + kernel.geometry().usable_blocks() / REST_SHARE;
    let goes_away = kernel.state.lock().leftovers == Leftovers::Some;
    let waits = hindered.by_trims || hindered.by_leftovers && goes_away;
    mover.resealing = Resealing {
        after: if waits || !moves.is_empty() { tables.state.sequence + 1 } else { 0 },
        rests_until: if worked || waits { 0 } else { rest },
        is_done: !worked && !passed_older && hindered == Hindered::default(),
        hindered_before: hindered,
        ..Resealing::default()
    };
    want_checkpoint(kernel, mover.beside_requests, moves);
}

/// Copies of a leaf got no place, from this address on. The walk comes to it again, once a checkpoint has put those that there are.
pub(super) fn lacks_room(tables: &Tables, mover: &mut Mover, first: Option<Lba>, moves: &Moves) {
    let (plan, resealing) = (&mover.plan, &mut mover.resealing);
    resealing.lacks_room = first.map(|lba| (plan.volume, lba));
    if moves.is_empty() {
        resealing.hindered.by_room = true;
    } else {
        (resealing.at, resealing.after) = ((plan.volume, plan.leaf), tables.state.sequence + 1);
        resealing.seen.1.clear();
    }
}

/// The verdict on a leaf.
enum Planned {
    /// Nothing of it is under an older key, or what is has a copy.
    Nothing,
    /// It stays as it is, for this reason.
    Stays(Hindered),
    /// Not all maps that share it are found yet.
    Later,
    /// These blocks are read, and copied where it is necessary.
    These(Plan),
}

/// The blocks that a leaf names and that nobody has looked at since the key was changed.
fn plan(
    kernel: &Kernel,
    tables: &Tables,
    (volume, leaf): (&Volume, u64),
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Result<Planned> {
    let (family, sequence) = (volume.family(), tables.state.sequence);
    let pointers = kernel.pages.leaf_pointers(Table::Map, family, &volume.map, &[leaf])?;
    let Some(pointer) = pointers.into_iter().flatten().next() else { return Ok(Planned::Nothing) };
    if mover.resealing.has_seen(sequence, pointer.address) {
        return Ok(Planned::Nothing);
    }
    let verdict = plan_page(kernel, tables, (volume, leaf), (&mut *mover, orphans), moves);
    if !matches!(verdict, Ok(Planned::Later)) {
        mover.resealing.saw(sequence, pointer.address);
    }
    verdict
}

/// The same of a leaf whose page was not seen in this walk.
fn plan_page(
    kernel: &Kernel,
    tables: &Tables,
    (volume, leaf): (&Volume, u64),
    (mover, orphans): (&mut Mover, Option<&[Orphan]>),
    moves: &Moves,
) -> Result<Planned> {
    let found = kernel.pages.leaf(Table::Map, volume.family(), &volume.map, leaf)?;
    let Some((pointer, page)) = found else { return Ok(Planned::Nothing) };
    let family = volume.family();
    let is_marked = page::generation(&page) >= kernel.identity.generation_of(volume.domain);
    if is_marked || moves.is_marked(family, pointer.address) {
        return Ok(Planned::Nothing);
    }
    let damaged = Planned::Stays(Hindered { by_damage: true, ..Hindered::default() });
    // An entry that nobody understands hides what it names, and no new version can be written.
    if !is_whole(&page) {
        return Ok(damaged);
    }
    let first = leaf * Table::Map.per_leaf();
    let entries = (0..Table::Map.per_leaf()).map(|slot| (slot, MapEntry::get(&page, slot)));
    let mut blocks: Found = entries
        .filter_map(|(slot, entry)| Some((Lba(first + slot), entry?)))
        .filter(|(_, entry)| entry.is_block())
        .collect();
    if blocks.is_empty() {
        return Ok(Planned::Nothing);
    }
    let of_leaf =
        |at: &mut (VolumeId, Lba)| (at.0, at.1.0 / Table::Map.per_leaf()) == (volume.id, leaf);
    if let Some((_, lba)) = mover.resealing.lacks_room.take_if(of_leaf) {
        let before = blocks.partition_point(|&(at, _)| at < lba);
        blocks.rotate_left(before);
    }
    let shared = if is_alone(kernel, tables, volume, leaf)? {
        let end = first + Table::Map.per_leaf();
        if tables.discards.meeting(volume.id, first, end).next().is_some() {
            // The next checkpoint would put no copies into it.
            return Ok(Planned::Stays(Hindered { by_trims: true, ..Hindered::default() }));
        }
        // What was copied for another reason is under the newest key.
        blocks.retain(|&(lba, _)| !moves.has(volume.id, lba));
        None
    } else {
        match sharers::of_leaf(kernel, tables, (mover, orphans), volume, leaf)? {
            OfLeaf::More => return Ok(Planned::Later),
            OfLeaf::Stays(by) => return Ok(Planned::Stays(by)),
            // An entry that nobody understands hides what else counts there.
            OfLeaf::Found(_, shared) if !shared.leaves.iter().all(|page| is_whole(page)) => {
                return Ok(damaged);
            }
            OfLeaf::Found(_, shared) => {
                let has_put =
                    |lba, entry| moves.shared_puts(family, lba).iter().any(|put| put.from == entry);
                blocks.retain(|&(lba, entry)| !has_put(lba, entry));
                Some(shared)
            }
        }
    };
    if !kernel.keeps(Rule::LeafMarkedWhenResealed) {
        blocks.truncate(blocks.len() / 2);
    }
    blocks.reverse();
    let (sequence, why) = (tables.state.sequence, Why::Resealing);
    let mark = Some(pointer.address);
    Ok(Planned::These(Plan { volume: volume.id, sequence, why, blocks, shared, leaf, mark }))
}

fn is_whole(page: &Page) -> bool {
    (0..Table::Map.per_leaf()).all(|slot| MapEntry::get(page, slot).is_some())
}

/// Of blocks of a plan that were read, out of `asked`: those that are to be copied. What is under the newest
/// key stays where it is; what is stored under it already is named from now on.
pub(super) fn to_copy(
    kernel: &Kernel,
    tables: &Tables,
    domain: u32,
    (plan, asked): (&mut Plan, usize),
    (copied, moves): (Vec<Copied>, &mut Moves),
    hindered: &mut Hindered,
) -> Result<Vec<Copied>> {
    if copied.len() < asked {
        // What can't be read stays under the older key, and so the key stays.
        plan.mark = None;
        hindered.by_damage = true;
    }
    let older: Vec<Copied> = copied.into_iter().filter(|copied| copied.is_older).collect();
    let wanted: Vec<Option<Sought<'_>>> =
        older.iter().map(|copied| sought(domain, copied)).collect();
    let mut stored = look_up(kernel, tables, &wanted)?;
    {
        // Windows that are on their way may come to nothing.
        let state = kernel.state.lock();
        let is_old = |placed: &Placed| state.allocator.data.fresh(placed.pba).is_none();
        stored.iter_mut().for_each(|placed| *placed = placed.filter(is_old));
    }
    let mut left = Vec::with_capacity(older.len());
    for (copied, placed) in older.into_iter().zip(stored) {
        let known = placed.map(|Placed { pba, carried }| MapEntry::Block {
            pba,
            form: Form::of(carried),
            prefix: copied.fingerprint.prefix(),
        });
        match known.filter(|&to| !is_named_there(plan, copied.lba, to, moves)) {
            Some(to) => note_known(kernel, plan, &copied, to, moves),
            None => left.push(copied),
        }
    }
    Ok(left)
}

/// What is looked for; nothing for a block of a critical range, which shares with nobody.
fn sought(domain: u32, copied: &Copied) -> Option<Sought<'_>> {
    let (fingerprint, block) = (&copied.fingerprint, Some(&copied.block));
    (!copied.is_critical).then_some(Sought { domain, fingerprint, block })
}

/// True when a page at the place of a shared leaf has this entry at the address, or gets it.
pub(super) fn is_named_there(plan: &Plan, lba: Lba, entry: MapEntry, moves: &Moves) -> bool {
    let Some(shared) = &plan.shared else { return false };
    let slot = lba.0 % Table::Map.per_leaf();
    let mut pages = shared.leaves.iter();
    pages.any(|page| MapEntry::get(page, slot) == Some(entry))
        || moves.shared_puts(shared.family, lba).iter().any(|put| put.to == entry)
}

/// Takes those blocks out whose copy was made for another address, or is about to be, and gives the others.
pub(super) fn once_each(
    kernel: &Kernel,
    plan: &Plan,
    copied: Vec<Copied>,
    moves: &mut Moves,
    again: &mut Vec<Copied>,
) -> Vec<Copied> {
    let mut first = Vec::with_capacity(copied.len());
    let mut begun = BTreeSet::new();
    for copied in copied {
        match pba_of(copied.from).and_then(|pba| moves.resealed(pba)) {
            Some(to) => note_known(kernel, plan, &copied, to, moves),
            None if pba_of(copied.from).is_some_and(|pba| begun.insert(pba)) => first.push(copied),
            None => again.push(copied),
        }
    }
    first
}

fn pba_of(entry: MapEntry) -> Option<Pba> {
    match entry {
        MapEntry::Block { pba, .. } => Some(pba),
        _ => None,
    }
}

/// The address of a block is to name one that has its content under the newest key.
fn note_known(kernel: &Kernel, plan: &Plan, copied: &Copied, to: MapEntry, moves: &mut Moves) {
    kernel.coverage.hit(Mark::ResealedKnown);
    add(&kernel.counters.resealed_blocks, 1);
    let put = Put { from: copied.from, to };
    if let Some(shared) = &plan.shared {
        sharers::count(kernel, moves, shared);
    }
    let mut state = kernel.state.lock();
    match &plan.shared {
        Some(shared) => {
            moves.note_known_shared(shared.family, copied.lba, put);
            state.moving.count_shared_move();
        }
        None => {
            moves.note_known(plan.volume, copied.lba, put);
            state.moving.count_move(plan.volume, copied.lba);
        }
    }
}

/// All blocks of a plan were looked at: the next version of the leaf says so.
pub(super) fn mark(kernel: &Kernel, domain: u32, plan: &Plan, moves: &mut Moves) {
    let (leaf, Some(page)) = (plan.leaf, plan.mark) else { return };
    kernel.coverage.hit(Mark::LeafResealed);
    let generation = kernel.identity.generation_of(domain);
    match &plan.shared {
        Some(shared) => {
            moves.mark_shared(shared.family, page, generation);
            moves.note_shared_page(shared.family, page, leaf);
            sharers::count(kernel, moves, shared);
        }
        None => {
            moves.mark(page, generation);
            moves.note_page(Home::Map(plan.volume), leaf);
            let lba = Lba(leaf * Table::Map.per_leaf());
            kernel.state.lock().moving.count_move(plan.volume, lba);
        }
    }
}

/// What may name something that is under the older data key of a domain.
pub(in crate::engine) struct UnderOlder {
    /// Leaves of its maps.
    pub(in crate::engine) leaves: u64,
    /// Those among them that maps have which are being received.
    pub(in crate::engine) receiving: u64,
    /// Maps and pages that are being taken apart, and hide what they name.
    pub(in crate::engine) leaving: u64,
}

/// Looks for what may name something that is under the older data key of a domain.
///
/// # Errors
/// `Corrupt`, `Io`: a page can't be read, so that nobody knows.
pub(in crate::engine) fn under_older(
    kernel: &Kernel,
    tables: &Tables,
    orphans: &[Orphan],
    domain: u32,
) -> Result<UnderOlder> {
    let generation = kernel.identity.generation_of(domain);
    let mut found = UnderOlder { leaves: 0, receiving: 0, leaving: 0 };
    let of_others = |family: u32| {
        let mut volumes = tables.volumes.values();
        volumes.any(|volume| volume.family() == family && volume.domain != domain)
    };
    // One of a family without maps may be of any domain.
    found.leaving += orphans.iter().filter(|one| !of_others(one.id.volume)).count() as u64;
    let mut seen = BTreeSet::new();
    for volume in tables.volumes.values().filter(|volume| volume.domain == domain) {
        if volume.is_leaving() {
            found.leaving += u64::from(volume.map.height > 0);
            continue;
        }
        let (family, mut from) = (volume.family(), 0);
        while let Some(leaf) = kernel.pages.next_leaf(Table::Map, family, &volume.map, from)? {
            from = leaf + 1;
            let pointers = kernel.pages.leaf_pointers(Table::Map, family, &volume.map, &[leaf])?;
            let Some(pointer) = pointers.into_iter().flatten().next() else { continue };
            if !seen.insert(pointer.address) {
                continue;
            }
            let leaf = kernel.pages.leaf(Table::Map, family, &volume.map, leaf)?;
            let Some((_, page)) = leaf else { continue };
            let mut entries = (0..Table::Map.per_leaf()).map(|slot| MapEntry::get(&page, slot));
            if page::generation(&page) < generation
                && entries.any(|entry| entry.is_none_or(|entry| entry.is_block()))
            {
                found.leaves += 1;
                found.receiving += u64::from(volume.sharing.kind == MapKind::Receiving);
            }
        }
    }
    Ok(found)
}
