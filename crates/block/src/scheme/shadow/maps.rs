//! The maps of a checkpoint: records and pending discards go into their leaves, and give the
//! changes of reference counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use onefold_core::{Block, Error, Kind, Lba, Result, VolumeId};

use super::deltas::{Delta, Slot, Touch};
use crate::{
    counters::add,
    coverage::Mark,
    format::{
        catalogue::Volume,
        page::{self, Form, MapEntry, Pointer, Table},
        record::WindowNumber,
    },
    kernel::Kernel,
    moving::Moves,
    overlay::{Entry, Overlay, zeroes},
    rules::Rule,
    scheme::{
        room::{discard_leaves, discard_room},
        verbs::Scheme,
    },
    settings::Tidying,
    table_build::TableBuild,
    window::ranges::{Ranges, Span},
};

impl TableBuild<'_> {
    /// Rewrites the map pages that records changed, and as many as it may of those that pending
    /// discards cover. Returns the discards that are left.
    pub(super) fn maps(
        &mut self,
        changes: &Changes<'_>,
        volumes: &mut BTreeMap<VolumeId, Volume>,
        scheme: &dyn Scheme,
        deltas: &mut Vec<Delta>,
    ) -> Result<Ranges> {
        let mut choice = Choice::new(changes, volumes, scheme)?;
        let lowered = if self.kernel.keeps(Rule::OverwriteLowersOnce) { 1 } else { 2 };
        for (&id, volume) in volumes.iter_mut() {
            let (mine, leaves) = choice.leaves(volume)?;
            if leaves.is_empty() {
                continue;
            }
            let (mut mapped, mut fragments) = (self.mapped, self.fragments);
            let mut note = |old: MapEntry, new: MapEntry| {
                if let MapEntry::Block { pba, form, prefix } = old {
                    let lower = Delta::new(pba, Touch::lower(form, Slot::NONE), prefix);
                    deltas.extend(std::iter::repeat_n(lower, lowered));
                    mapped = mapped.saturating_sub(1);
                    fragments = fragments.saturating_sub(u64::from(form.is_packed()));
                }
                if let MapEntry::Block { pba, form, prefix } = new {
                    deltas.push(Delta::new(pba, Touch::raise(form, Slot::NONE), prefix));
                    mapped += 1;
                    fragments += u64::from(form.is_packed());
                }
            };
            let root = volume.map;
            let of = Changed::of(self.kernel, volume);
            volume.map =
                self.rebuild(Table::Map, id.0, &root, &leaves, &mut |leaf, pointer, page| {
                    changes.apply(of, &mine, leaf, pointer, page, &mut note)
                })?;
            (self.mapped, self.fragments) = (mapped, fragments);
        }
        self.changed = choice.changed;
        Ok(choice.left)
    }
}

/// Chooses the leaves of maps that a checkpoint rewrites: those that records changed, and as many as
/// may be of those that pending discards cover.
pub(super) struct Choice<'a> {
    kernel: &'a Kernel,
    frozen: &'a Overlay,
    discards: &'a Ranges,
    moves: &'a Moves,
    /// When there are many discards: the leaves in which they are applied.
    chosen: Option<Chosen>,
    /// Else: how many more leaves may be changed for them.
    budget: usize,
    /// The discards that are left.
    pub(super) left: Ranges,
    /// The leaves that clients changed.
    pub(super) changed: Vec<(VolumeId, u64)>,
}

impl<'a> Choice<'a> {
    pub(super) fn new(
        changes: &Changes<'a>,
        volumes: &BTreeMap<VolumeId, Volume>,
        scheme: &dyn Scheme,
    ) -> Result<Choice<'a>> {
        let Changes { kernel, frozen, discards, moves } = *changes;
        let mut left = Ranges::default();
        let budget = discard_leaves(kernel, scheme);
        let limits = kernel.settings.limits;
        let many =
            2 * discards.len() as u64 >= limits.discards && kernel.keeps(Rule::DiscardsLimited);
        let doomed = doomed(kernel, volumes);
        let chosen = if many || !doomed.is_empty() {
            Some(shortest_first(kernel, volumes, discards, &doomed, scheme, &mut left)?)
        } else {
            None
        };
        let changed = Vec::new();
        Ok(Choice { kernel, frozen, discards, moves, chosen, budget, left, changed })
    }

    /// The addresses of a volume that records changed, and the leaves to rewrite. Volumes come in
    /// their order.
    pub(super) fn leaves(&mut self, volume: &Volume) -> Result<(Vec<Lba>, Vec<u64>)> {
        let id = volume.id;
        let mine = self.frozen.addresses(id);
        let mut leaves: BTreeSet<u64> =
            mine.iter().map(|lba| lba.0 / Table::Map.per_leaf()).collect();
        if let Some(chosen) = &mut self.chosen {
            leaves.extend(chosen.remove(&id).unwrap_or_default());
            return Ok((mine, self.with_moves(id, leaves)));
        }
        for (start, span) in self.discards.meeting(id, 0, u64::MAX) {
            let budget = &mut self.budget;
            let mut wanted = |_, new| {
                let has_room = *budget > 0;
                *budget -= usize::from(has_room && new);
                has_room
            };
            let range = start..span.end;
            if let Some(from) = take_leaves(self.kernel, volume, range, &mut leaves, &mut wanted)? {
                self.left.insert(id, from, span);
            }
        }
        Ok((mine, self.with_moves(id, leaves)))
    }

    /// The leaves that clients changed, and those in which copies are put.
    fn with_moves(&mut self, id: VolumeId, mut leaves: BTreeSet<u64>) -> Vec<u64> {
        if self.kernel.settings.tidying == Tidying::Moves {
            self.changed.extend(leaves.iter().map(|&leaf| (id, leaf)));
        }
        // Ranges that wait keep their budget: copies in such leaves are given up.
        let per_leaf = Table::Map.per_leaf();
        let waits = |leaf: u64| {
            let (first, end) = (leaf.saturating_mul(per_leaf), (leaf + 1).saturating_mul(per_leaf));
            self.discards.meeting(id, first, end).next().is_some()
        };
        leaves.extend(self.moves.leaves(id).filter(|&leaf| !waits(leaf)));
        leaves.into_iter().collect()
    }
}

/// Told of an entry that changes: what it was, and what it is now.
pub(super) type Note<'n> = &'n mut dyn FnMut(MapEntry, MapEntry);

/// A map that changes.
#[derive(Clone, Copy)]
pub(super) struct Changed {
    id: VolumeId,
    /// The generation of the newest data key of its domain.
    generation: u32,
}

impl Changed {
    pub(super) fn of(kernel: &Kernel, volume: &Volume) -> Changed {
        Changed { id: volume.id, generation: kernel.identity.generation_of(volume.domain) }
    }
}

/// The changes of leaves that a checkpoint carries.
pub(super) struct Changes<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) frozen: &'a Overlay,
    pub(super) discards: &'a Ranges,
    pub(super) moves: &'a Moves,
}

impl Changes<'_> {
    /// Changes a leaf of a map, of which the addresses `mine` changed. Returns whether it still holds
    /// anything.
    pub(super) fn apply(
        &self,
        Changed { id, generation }: Changed,
        mine: &[Lba],
        leaf: u64,
        pointer: Option<&Pointer>,
        page: &mut Block,
        note: Note<'_>,
    ) -> Result<bool> {
        let Changes { kernel, frozen, discards, moves } = *self;
        let per_leaf = Table::Map.per_leaf();
        let first = leaf * per_leaf;
        let mut set = |page: &mut Block, slot: u64, new: MapEntry| {
            let old = MapEntry::get(page, slot)
                .ok_or_else(|| Error::new(Kind::Corrupt, "a map entry is damaged"))?;
            if old != new {
                note(old, new);
                new.set(page, slot);
            }
            Ok::<(), Error>(())
        };
        // The discards that were pending when the leaf was written last come first, then the
        // records.
        let birth = pointer.map_or(WindowNumber(0), |pointer| pointer.birth);
        let mut applied = false;
        for (start, span) in discards.meeting(id, first, first + per_leaf) {
            applied |= span.window > birth && pointer.is_some();
            if span.window > birth && pointer.is_some() {
                for lba in start.max(first)..span.end.min(first + per_leaf) {
                    set(page, lba - first, zeroes(span.keep))?;
                }
            }
        }
        add(&kernel.counters.discard_leaves, u64::from(applied));
        let from = mine.partition_point(|lba| lba.0 < first);
        for &lba in mine[from..].iter().take_while(|lba| lba.0 < first + per_leaf) {
            let Some(Entry { entry, window }) = frozen.block(id, lba) else { continue };
            let covered = discards.get(id, lba.0).is_some_and(|span| {
                span.window > window || !kernel.keeps(Rule::LaterWriteOverRange)
            });
            if !covered {
                set(page, lba.0 - first, entry)?;
            }
        }
        // Copies come last, where nothing else came.
        for (lba, put) in moves.of_leaf(id, leaf) {
            let slot = lba.0 - first;
            let stays = MapEntry::get(page, slot) == Some(put.from);
            let is_pack = matches!(put.to, MapEntry::Block { form: Form::Packed(_), .. });
            if stays
                || !kernel.keeps(Rule::MovedIfUnchanged)
                || is_pack && !kernel.keeps(Rule::PackedIfUnchanged)
            {
                set(page, slot, put.to)?;
            }
            kernel.coverage.add(Mark::MovePut, usize::from(stays));
            kernel.coverage.add(Mark::MoveOvertaken, usize::from(!stays));
        }
        // What clients changed is under the newest data key; in a new leaf that is all.
        let marked = match pointer {
            Some(pointer) => moves.mark_of(pointer.address),
            None => Some(generation),
        };
        marked.into_iter().for_each(|marked| page::set_generation(&mut page.0, marked));
        Ok(holds(kernel, page))
    }
}

/// Whether a leaf is needed: zeroes alone keep none, and are holes without it. Otherwise a client that writes
/// a block and then zeroes, address after address, would fill the store with leaves that say nothing.
fn holds(kernel: &Kernel, page: &Block) -> bool {
    if !kernel.keeps(Rule::ZeroesKeepNoLeaf) {
        return crate::format::page::body(page).iter().any(|&byte| byte != 0);
    }
    let says = |entry: Option<MapEntry>| !matches!(entry, Some(MapEntry::Hole | MapEntry::Zero));
    (0..Table::Map.per_leaf()).any(|slot| says(MapEntry::get(page, slot)))
}

/// The deleted volumes for which the catalogue has no room: their discards end now. Only a
/// store of a program that did not let new volumes wait has such.
fn doomed(kernel: &Kernel, volumes: &BTreeMap<VolumeId, Volume>) -> BTreeSet<VolumeId> {
    let surplus = (volumes.len() as u64).saturating_sub(kernel.settings.limits.volumes) as usize;
    let limited = kernel.keeps(Rule::VolumesLimited);
    let deleted = volumes.values().filter(|volume| volume.name.is_empty() && limited);
    deleted.map(|volume| volume.id).take(surplus).collect()
}

/// Chooses the leaves in which discards are applied when there are many of them: the shortest
/// ones come first, so that as many as possible end. Discards that the table would have no
/// room for end in any case: only a store of a program that did not make them wait has such.
fn shortest_first(
    kernel: &Kernel,
    volumes: &BTreeMap<VolumeId, Volume>,
    discards: &Ranges,
    doomed: &BTreeSet<VolumeId>,
    scheme: &dyn Scheme,
    left: &mut Ranges,
) -> Result<Chosen> {
    kernel.coverage.hit(Mark::DiscardsMany);
    let mut room = discard_room(kernel, scheme);
    let mut order: Vec<(VolumeId, u64, Span)> =
        discards.iter().map(|(volume, start, span)| (volume, start, *span)).collect();
    order.sort_by_key(|(_, start, span)| span.end - start);
    let too_many = (order.len() as u64).saturating_sub(kernel.settings.limits.discards) as usize;
    let mut chosen = Chosen::new();
    for (n, (id, start, span)) in order.into_iter().enumerate() {
        let Some(volume) = volumes.get(&id) else { continue };
        let mine = chosen.entry(id).or_default();
        let mut wanted = |leaf, new: bool| {
            !new || n < too_many || doomed.contains(&id) || room.take(covered(discards, id, leaf))
        };
        if let Some(from) = take_leaves(kernel, volume, start..span.end, mine, &mut wanted)? {
            left.insert(id, from, span);
        }
    }
    Ok(chosen)
}

/// Adds the leaves of a map that exist and meet a range, as long as they are `wanted`, which is
/// told whether they are new among `mine`. Returns where the first one begins that is not.
fn take_leaves(
    kernel: &Kernel,
    volume: &Volume,
    range: Range<u64>,
    mine: &mut BTreeSet<u64>,
    wanted: &mut dyn FnMut(u64, bool) -> bool,
) -> Result<Option<u64>> {
    let per_leaf = Table::Map.per_leaf();
    let mut at = range.start / per_leaf;
    while let Some(leaf) = kernel.pages.next_leaf(Table::Map, volume.family(), &volume.map, at)? {
        if leaf * per_leaf >= range.end {
            break;
        }
        if !wanted(leaf, !mine.contains(&leaf)) {
            return Ok(Some((leaf * per_leaf).max(range.start)));
        }
        mine.insert(leaf);
        at = leaf + 1;
    }
    Ok(None)
}

/// Leaves of the maps of volumes.
type Chosen = BTreeMap<VolumeId, BTreeSet<u64>>;

/// How many addresses of a leaf discards cover.
fn covered(discards: &Ranges, volume: VolumeId, leaf: u64) -> u64 {
    let (first, end) = (leaf * Table::Map.per_leaf(), (leaf + 1) * Table::Map.per_leaf());
    discards
        .meeting(volume, first, end)
        .map(|(start, span)| span.end.min(end) - start.max(first))
        .sum()
}
