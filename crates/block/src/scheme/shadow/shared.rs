//! The maps of a checkpoint when they share pages: what deleted maps leave behind comes first, then
//! the changes of maps, then the acts of the moment.
//!
//! [`sharing`](crate::sharing) has the rules; here it gets the pages and accounts of a checkpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Block, Kind, Pba, Result, VolumeId, VolumeLimits, checksum};

use super::{
    deltas::{Delta, Slot, Touch},
    domain_counts::{DomainCounts, families, forget_families},
    maps::{Changed, Changes, Choice},
    pages::LEFTOVER_COUNTS,
};
use crate::{
    coverage::Mark,
    engine::quota,
    format::{
        FIRST_DOMAIN,
        catalogue::{MapKind, Sharing as Place, VOLUME_BLOCKS_MAX, Volume},
        page::{Form, MapEntry, Page, PageId, Pointer, Table, body, seal},
        record::WindowNumber,
        share::Share,
        superblock::Root,
    },
    kernel::Kernel,
    moments::{Act, Moment, Receive},
    moving::Moves,
    overlay::Overlay,
    rules::Rule,
    scheme::{
        room::spare,
        verbs::{NewSharing, Scheme},
    },
    sharing::{
        Accounts, Budget, Handed, Leaving, MapPages, MapStore, Orphan, Sharing, Top, Waiting,
    },
    table::PageSpace,
    table_build::TableBuild,
    window::ranges::Ranges,
};

/// The maps of a checkpoint.
pub(super) struct Maps<'a> {
    pub(super) frozen: &'a Overlay,
    pub(super) volumes: &'a mut BTreeMap<VolumeId, Volume>,
    /// Ranges that wait to be applied, those of `frozen` among them.
    pub(super) discards: Ranges,
    pub(super) orphans: Vec<Orphan>,
    /// Copies of blocks to be put into them.
    pub(super) moves: &'a Moves,
}

impl TableBuild<'_> {
    /// Rewrites the maps, performs the acts of the moment, and goes on with what deleted maps left
    /// behind. Returns the discards that are left, and the new accounts.
    pub(super) fn shared_maps(
        &mut self,
        maps: Maps<'_>,
        scheme: &dyn Scheme,
        deltas: &mut Vec<Delta>,
    ) -> Result<(Ranges, NewSharing)> {
        let Maps { frozen, volumes, mut discards, orphans, moves } = maps;
        let (kernel, shares) = (self.kernel, self.old.state.shares);
        let named = self.domains.are_named();
        deleted_leave(volumes, &mut discards, &self.domains);
        let mut budget = leftover_budget(kernel, scheme);
        let begun = budget.0;
        let mut pages = SharedPages { build: self, deltas, slot: Slot::NONE };
        let mut sharing = Sharing::new(&mut pages);
        relocate(kernel, &mut sharing, volumes, &discards, moves)?;
        let (orphans, stuck) = leftovers(kernel, &mut sharing, volumes, orphans, &mut budget)?;
        kernel.state.lock().pieces = (begun - budget.0) as u64;
        let changes = Changes { kernel, frozen, discards: &discards, moves };
        #[cfg(feature = "planted-bugs")]
        if !kernel.keeps(Rule::RollbackAfterChanges) {
            super::broken::roll_back(frozen.moment(), volumes);
        }
        let mut choice = Choice::new(&changes, volumes, scheme)?;
        for volume in volumes.values_mut().filter(|volume| !volume.is_leaving()) {
            let (mine, leaves) = choice.leaves(volume)?;
            quota::count(kernel, volume, sharing.store.build.domains.quota(volume.domain));
            let (family, root) = (volume.family(), volume.map);
            sharing.store.work_for(volume.domain);
            let of = Changed::of(kernel, volume);
            let rewritten =
                sharing.rewrite(family, &root, &leaves, &mut |leaf, pointer, page| {
                    changes.apply(of, &mine, leaf, pointer, page, &mut |_, _| {})
                })?;
            volume.map = rewritten.root;
            let mapped = volume.sharing.mapped.as_mut();
            mapped.filter(|_| kernel.keeps(Rule::MappedFollows)).into_iter().for_each(|mapped| {
                *mapped = mapped.saturating_add_signed(rewritten.mapped);
            });
            let Place { lost, pages, .. } = &mut volume.sharing;
            *lost = lost.saturating_add_signed(rewritten.lost);
            *pages = pages.map(|pages| pages.saturating_add_signed(rewritten.pages));
        }
        let (mut left, changed) = (choice.left, choice.changed);
        if let Some(moment) = frozen.moment() {
            kernel.coverage.hit(Mark::ActsPerformed);
            for act in &moment.acts {
                perform(kernel, &mut sharing, act, moment, volumes, &mut left)?;
            }
        }
        let Sharing { accounts, mut orphaned, .. } = sharing;
        orphaned.extend(orphans);
        // A page that nothing counted for may have been named again, or may have gone.
        orphaned.sort_by_key(|orphan| orphan.page.address);
        orphaned.dedup();
        let mut waiting = Vec::with_capacity(orphaned.len());
        for orphan in orphaned {
            if accounts.get(&mut pages, orphan.page.address)?.is_orphan() {
                waiting.push(orphan);
            }
        }
        if named {
            forget_families(volumes, &waiting);
        }
        self.changed = changed;
        let root = self.accounts(&shares, &accounts)?;
        Ok((left, NewSharing { shares: root, orphans: waiting, stuck }))
    }

    /// Writes the accounts that changed.
    fn accounts(&mut self, root: &Root, accounts: &Accounts) -> Result<Root> {
        let per_leaf = Table::Shares.per_leaf();
        let has_entries = self.kernel.keeps(Rule::OrphansHaveEntries);
        let changed = accounts.changed();
        let lending = changed.values().filter(|share| share.borrowers > 0).count();
        self.kernel.coverage.add(Mark::PageShared, lending);
        let leaves: BTreeSet<u64> = changed.keys().map(|page| page.0 / per_leaf).collect();
        let leaves: Vec<u64> = leaves.into_iter().collect();
        self.rebuild(Table::Shares, 0, root, &leaves, &mut |leaf, _, page| {
            let of_leaf = changed.range(Pba(leaf * per_leaf)..Pba((leaf + 1) * per_leaf));
            for (at, share) in of_leaf {
                let entry = if share.is_free() && !has_entries { &Share::default() } else { share };
                entry.set(page, at.0 % per_leaf);
            }
            Ok(body(page).iter().any(|&byte| byte != 0))
        })
    }
}

/// What was deleted begins to leave: no change reaches it any more, and its ranges are void.
fn deleted_leave(
    volumes: &mut BTreeMap<VolumeId, Volume>,
    discards: &mut Ranges,
    domains: &DomainCounts,
) {
    for volume in volumes.values_mut().filter(|volume| volume.name.is_empty()) {
        if !volume.is_leaving() {
            let domain = domains.of_leaving(volume.domain);
            *volume = Volume::leaving(volume.id, volume.family(), 0, volume.map).of_domain(domain);
        }
        discards.cut(volume.id, 0, VOLUME_BLOCKS_MAX);
    }
    if !domains.are_named() {
        volumes.retain(|_, volume| !volume.is_leaving() || volume.map.height > 0);
    }
}

/// Puts copies into all maps of the families that share pages.
fn relocate(
    kernel: &Kernel,
    sharing: &mut Sharing<'_, SharedPages<'_, '_>>,
    volumes: &mut BTreeMap<VolumeId, Volume>,
    discards: &Ranges,
    moves: &Moves,
) -> Result<()> {
    for (family, moves) in moves.families() {
        let mine = |volume: &&Volume| volume.family() == family;
        let Some(domain) = volumes.values().find(mine).map(|volume| volume.domain) else {
            continue;
        };
        sharing.store.work_for(domain);
        let done = sharing.relocate(family, tops(volumes, family), moves)?;
        let per_leaf = Table::Map.per_leaf();
        for volume in volumes.values_mut().filter(|volume| volume.family() == family) {
            let Some(new) = done.pages.get(&volume.map.page.address) else { continue };
            volume.map.page = *new;
            let (leaving, mut leaves) = (volume.is_leaving(), done.leaves.iter());
            let waits = |leaf: &u64| {
                let range = discards.meeting(volume.id, leaf * per_leaf, (leaf + 1) * per_leaf);
                range.into_iter().next().is_some()
            };
            kernel.coverage.add(Mark::LeavingMoved, usize::from(leaving));
            kernel.coverage.add(Mark::MovedBesideRange, usize::from(leaves.any(waits)));
        }
        kernel.coverage.add(Mark::SharedMoved, done.entries);
        kernel.coverage.add(Mark::LenderMoved, done.lent);
    }
    // The next steps read what was written just now.
    sharing.store.build.writer.finish()
}

/// The top pages of the maps of a family, of those that are leaving, too.
pub(crate) fn tops(volumes: &BTreeMap<VolumeId, Volume>, family: u32) -> Vec<Top> {
    let mine = volumes.values().filter(|volume| volume.family() == family);
    mine.filter_map(|volume| volume.top().map(|(id, page)| Top { map: volume.id, id, page }))
        .collect()
}

/// How much a checkpoint may do for what deleted maps left behind: one piece always has room.
fn leftover_budget(kernel: &Kernel, scheme: &dyn Scheme) -> Budget {
    let spare = spare(kernel, scheme, &kernel.state.lock());
    let references = kernel.geometry().blocks().div_ceil(Table::References.per_leaf());
    let each = 16 + 2 * references.min(LEFTOVER_COUNTS);
    if !kernel.keeps(Rule::LeftoversLimited) {
        return Budget(usize::MAX);
    }
    Budget(1 + (spare / 2 / each).min(kernel.settings.limits.leaving) as usize)
}

/// Takes deleted maps apart; when none is left, hands over pages that nothing counts for. Returns
/// the pages that wait, and how many of them wait for a repair: what hides their borrowers can't be
/// read.
fn leftovers(
    kernel: &Kernel,
    sharing: &mut Sharing<'_, SharedPages<'_, '_>>,
    volumes: &mut BTreeMap<VolumeId, Volume>,
    orphans: Vec<Orphan>,
    budget: &mut Budget,
) -> Result<(Vec<Orphan>, usize)> {
    let leaving = volumes.values().filter(|volume| volume.has_pages_to_leave());
    let leaving: Vec<VolumeId> = leaving.map(|volume| volume.id).collect();
    let named = sharing.store.build.domains.are_named();
    let mut any_left = false;
    for id in leaving {
        let Some(volume) = volumes.get_mut(&id) else { continue };
        kernel.coverage.hit(Mark::MapTakenApart);
        let before = Leaving { id: top_of(volume), page: volume.map.page };
        let keeps_domain = kernel.keeps(Rule::LeavingKeepsDomain);
        sharing.store.work_for(if keeps_domain { volume.domain } else { FIRST_DOMAIN });
        match sharing.take_apart(before, budget)? {
            // Its entry tells whose the pages are that are left of its family.
            None if named => volume.map = Root::default(),
            None => drop(volumes.remove(&id)),
            Some(rest) => {
                volume.map.page = rest.page;
                any_left = true;
                break;
            }
        }
    }
    let families = if named { families(volumes) } else { BTreeMap::new() };
    let (mut waiting, mut stuck) = (Waiting::default(), Vec::new());
    waiting.add(orphans);
    waiting.add(std::mem::take(&mut sharing.orphaned));
    while !any_left && budget.0 > 0 {
        let Some(orphan) = waiting.next(sharing)? else { break };
        waiting.remove(&orphan);
        let domain = families.get(&orphan.id.volume).copied().unwrap_or(FIRST_DOMAIN);
        sharing.store.work_for(domain);
        kernel.coverage.hit(Mark::OrphanHandedOver);
        let there = match there(kernel, volumes, orphan.id) {
            Ok(there) => there,
            Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Io) => {
                // Who borrows is hidden until a repair.
                sharing.store.inexact();
                stuck.push(orphan);
                continue;
            }
            Err(e) => return Err(e),
        };
        match sharing.hand_over(orphan, &there, budget)? {
            Handed::Waits => stuck.push(orphan),
            Handed::Over => {}
            Handed::Partly => waiting.add(vec![orphan]),
            Handed::Leaves(rest) => {
                let volume = leaving_entry(kernel, rest).of_domain(named.then_some(domain));
                volumes.insert(volume.id, volume);
                any_left = true;
            }
        }
        waiting.add(std::mem::take(&mut sharing.orphaned));
    }
    let waits_for_repair = stuck.len();
    stuck.extend(waiting.into_orphans());
    Ok((stuck, waits_for_repair))
}

/// The place of the top page of a map.
fn top_of(volume: &Volume) -> PageId {
    PageId {
        table: Table::Map,
        volume: volume.family(),
        level: volume.map.height.saturating_sub(1),
        index: volume.top_index(),
    }
}

/// An entry of the catalogue for pages that an orphan leaves behind.
fn leaving_entry(kernel: &Kernel, rest: Leaving) -> Volume {
    let id = kernel.state.lock().volumes.give_number();
    let map = Root { page: rest.page, height: rest.id.level + 1 };
    Volume::leaving(id, rest.id.volume, rest.id.index, map)
}

/// The pages of a family at one place, each once: those that may borrow from a page there.
fn there(
    kernel: &Kernel,
    volumes: &BTreeMap<VolumeId, Volume>,
    id: PageId,
) -> Result<Vec<Pointer>> {
    let mut found: BTreeMap<Pba, Pointer> = BTreeMap::new();
    let family = volumes.values().filter(|volume| {
        !volume.is_leaving() && volume.family() == id.volume && volume.map.height > 0
    });
    for volume in family {
        let PageId { table, volume: number, level, index } = id;
        let page = kernel.pages.inner_pointer(table, number, &volume.map, level, index)?;
        found.extend(page.map(|page| (page.address, page)));
    }
    Ok(found.into_values().collect())
}

/// Performs an act of a moment, whose changes the maps contain.
fn perform(
    kernel: &Kernel,
    sharing: &mut Sharing<'_, SharedPages<'_, '_>>,
    act: &Act,
    moment: &Moment,
    volumes: &mut BTreeMap<VolumeId, Volume>,
    left: &mut Ranges,
) -> Result<()> {
    let mut place =
        Place { moment: moment.window, mapped: Some(0), pages: Some(0), ..Place::default() };
    let origin = match act.origin() {
        None => None,
        Some(origin) => {
            let Some(origin) = volumes.get(&origin).cloned() else { return Ok(()) };
            share(kernel, sharing, &origin)?;
            place.family = origin.family();
            place.parent = origin.id.0;
            (place.mapped, place.lost) = (origin.sharing.mapped, origin.sharing.lost);
            place.pages = origin.sharing.pages;
            Some(origin)
        }
    };
    let made = match (act, &origin) {
        (
            Act::Snapshot { id, name, made_ms, .. } | Act::Clone { id, name, made_ms, .. },
            Some(origin),
        ) => {
            if matches!(act, Act::Snapshot { .. }) {
                place.kind = MapKind::Snapshot;
            }
            place.made_ms = *made_ms;
            place.guid = guid(kernel, origin, &place, left, None);
            let taken = |other: &Volume| other.is_snapshot() && other.sharing.guid == place.guid;
            if place.kind == MapKind::Snapshot && volumes.values().any(taken) {
                place.guid = guid(kernel, origin, &place, left, Some(*id));
            }
            place.replica = matches!(act, Act::Clone { replica: true, .. });
            Volume { id: *id, name: name.clone(), sharing: place, ..origin.clone() }
        }
        (Act::Rollback { id, volume, replica, .. }, Some(origin)) => {
            let Some(old) = volumes.get(volume).cloned() else { return Ok(()) };
            left.cut(*volume, 0, VOLUME_BLOCKS_MAX);
            let parent = if *replica { origin.id.0 } else { old.sharing.parent };
            let rolled_back = Volume {
                id: old.id,
                name: old.name.clone(),
                limits: old.limits,
                quota: old.quota,
                sharing: Place { parent, replica: *replica, ..place },
                ..origin.clone()
            };
            let domains = &sharing.store.build.domains;
            if old.map.height > 0 || domains.are_named() {
                let leaving = Volume::leaving(*id, old.family(), 0, old.map);
                volumes.insert(*id, leaving.of_domain(domains.of_leaving(old.domain)));
            }
            rolled_back
        }
        (Act::Receive { id, what }, origin) => received_entry(*id, what, origin.as_ref(), place),
        (act, _) => {
            change_entry(act, moment, volumes);
            return Ok(());
        }
    };
    let ranges: Vec<_> =
        origin.iter().flat_map(|origin| left.meeting(origin.id, 0, u64::MAX)).collect();
    kernel.coverage.add(Mark::RangesCopied, ranges.len());
    let copied = ranges.into_iter().filter(|_| kernel.keeps(Rule::RangesCopied));
    copied.for_each(|(start, span)| left.insert(made.id, start, span));
    volumes.insert(made.id, made);
    Ok(())
}

/// One more map has the pages of `origin`.
fn share(
    kernel: &Kernel,
    sharing: &mut Sharing<'_, SharedPages<'_, '_>>,
    origin: &Volume,
) -> Result<()> {
    if origin.map.height == 0 {
        return Ok(());
    }
    sharing.name(&origin.map.page)?;
    if !kernel.keeps(Rule::PagesCountApart) {
        let (pba, prefix) = (origin.map.page.address, origin.map.page.checksum);
        sharing.store.raise(MapEntry::Block { pba, form: Form::Raw, prefix });
    }
    Ok(())
}

/// The entry of a snapshot that begins to be received.
fn received_entry(id: VolumeId, what: &Receive, base: Option<&Volume>, place: Place) -> Volume {
    let sharing = Place {
        kind: MapKind::Receiving,
        guid: what.guid,
        made_ms: what.now_ms,
        family: if base.is_some() { place.family } else { 0 },
        ..place
    };
    Volume {
        id,
        name: what.name(),
        blocks: base.map_or(0, |base| base.blocks).max(what.blocks),
        map: base.map_or(Root::default(), |base| base.map),
        no_dedup: what.no_dedup.clone(),
        limits: VolumeLimits::default(),
        quota: 0,
        domain: base.map_or(what.domain, |base| base.domain),
        sharing,
    }
}

/// Performs an act that changes one entry and shares no page.
fn change_entry(act: &Act, moment: &Moment, volumes: &mut BTreeMap<VolumeId, Volume>) {
    let Some(entry) = volumes.get_mut(&act.id()) else { return };
    match act {
        Act::Cursor { cursor, now_ms, .. } => {
            (entry.sharing.cursor, entry.sharing.made_ms) = (*cursor, *now_ms);
        }
        Act::Received { volume, name, blocks, made_ms, .. } => {
            (entry.name, entry.blocks) = (name.clone(), *blocks);
            let before = entry.sharing;
            entry.sharing = Place {
                kind: MapKind::Snapshot,
                parent: volume.0,
                moment: moment.window,
                made_ms: *made_ms,
                cursor: 0,
                ..before
            };
        }
        Act::Promote { .. } => entry.sharing.replica = false,
        // The changes of the moment have what is lost.
        Act::Lose { .. } => {}
        Act::Snapshot { .. } | Act::Clone { .. } | Act::Rollback { .. } | Act::Receive { .. } => {}
    }
}

/// A number that no other snapshot has, also of a store that went back to an older image: it is made
/// from all that the snapshot is. Two that a user takes in one millisecond, or by one request, with
/// no write between them are the same in all that; the later one's `id` tells it from the earlier.
fn guid(
    kernel: &Kernel,
    origin: &Volume,
    place: &Place,
    left: &Ranges,
    id: Option<VolumeId>,
) -> [u8; 16] {
    let mut all = Vec::new();
    all.extend_from_slice(&origin.id.0.to_le_bytes());
    all.extend_from_slice(&place.moment.0.to_le_bytes());
    all.extend_from_slice(&place.made_ms.to_le_bytes());
    all.extend_from_slice(&origin.map.page.encode());
    all.push(origin.map.height);
    for (start, span) in left.meeting(origin.id, 0, u64::MAX) {
        for number in [start, span.end, span.window.0, u64::from(span.keep)] {
            all.extend_from_slice(&number.to_le_bytes());
        }
    }
    if let Some(id) = id {
        all.extend_from_slice(&id.0.to_le_bytes());
    }
    checksum::forgery_proof(&kernel.identity.secret, &all)
}

/// The pages and accounts of a checkpoint that is being built.
struct SharedPages<'b, 'k> {
    build: &'b mut TableBuild<'k>,
    deltas: &'b mut Vec<Delta>,
    /// The domain of what is worked on.
    slot: Slot,
}

impl SharedPages<'_, '_> {
    /// Maps of this domain are worked on from now on.
    fn work_for(&mut self, domain: u32) {
        self.slot = self.build.domains.slot(domain);
    }
}

impl MapPages for SharedPages<'_, '_> {
    fn read(&mut self, pages: &[(PageId, Pointer)]) -> Vec<Result<Arc<Page>>> {
        let cache = &self.build.kernel.pages;
        let mut wanted: Vec<_> = pages.iter().map(|&(id, page)| (id, page, None)).collect();
        // Inner pages are few, and lead to more than one of the leaves of a step.
        let keep = pages.iter().all(|(id, _)| id.level > 0);
        if cache.load(&mut wanted, keep).is_ok() {
            return wanted.into_iter().filter_map(|(.., page)| page.map(Ok)).collect();
        }
        pages.iter().map(|(id, page)| cache.get(*id, page)).collect()
    }

    fn share(&mut self, page: Pba) -> Result<Share> {
        share_of(self.build.kernel, &self.build.old.state.shares, page)
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.build.kernel.keeps(rule)
    }
}

impl MapStore for SharedPages<'_, '_> {
    fn write_of(
        &mut self,
        id: PageId,
        mut page: Box<Block>,
        birth: Option<WindowNumber>,
    ) -> Result<Pointer> {
        let TableBuild { kernel, space, writer, birth: now, .. } = &mut *self.build;
        let address = space.allocate()?;
        // Memory keeps it as it is before it is sealed.
        let kept = (id.level > 0).then(|| Arc::new(page.0));
        let pointer = seal(&kernel.identity, id, address, birth.unwrap_or(*now), &mut page)?;
        if let Some(kept) = kept {
            kernel.pages.insert(&pointer, kept);
        }
        writer.push(address, page)?;
        Ok(pointer)
    }

    fn release(&mut self, page: Pba) {
        self.build.space.release(page);
    }

    fn raise(&mut self, entry: MapEntry) {
        if let MapEntry::Block { pba, form, prefix } = entry {
            self.deltas.push(Delta::new(pba, Touch::raise(form, self.slot), prefix));
            self.build.maps_one_more(form);
        }
    }

    fn inexact(&mut self) {
        self.build.kernel.coverage.hit(Mark::SharedPageUnread);
        self.build.inexact = true;
    }

    fn is_inexact(&self) -> bool {
        self.build.inexact
    }

    fn lower(&mut self, entry: MapEntry) {
        if let MapEntry::Block { pba, form, prefix } = entry {
            self.deltas.push(Delta::new(pba, Touch::lower(form, self.slot), prefix));
            self.build.maps_one_less(form);
        }
    }
}

/// The account of a page in table 8.
pub(crate) fn share_of(kernel: &Kernel, shares: &Root, page: Pba) -> Result<Share> {
    let per_leaf = Table::Shares.per_leaf();
    let leaf = kernel.pages.leaf(Table::Shares, 0, shares, page.0 / per_leaf)?;
    Ok(leaf.map_or_else(Share::default, |(_, leaf)| Share::get(&leaf, page.0 % per_leaf)))
}

/// Finds the pages of table 8 that nothing counts for. One that can't be read waits until it is
/// repaired.
pub(crate) fn load_orphans(kernel: &Kernel, shares: &Root) -> Result<Vec<Orphan>> {
    let per_leaf = Table::Shares.per_leaf();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(leaf) = kernel.pages.next_leaf(Table::Shares, 0, shares, at)? {
        at = leaf + 1;
        let Some((_, page)) = kernel.pages.leaf(Table::Shares, 0, shares, leaf)? else { continue };
        let orphans = (0..per_leaf).filter(|&slot| Share::get(&page, slot).is_orphan());
        for slot in orphans {
            let address = Pba(leaf * per_leaf + slot);
            let named = kernel.pages.header_at(address);
            if let Ok((id, pointer)) = named
                && id.table == Table::Map
                && pointer.address == address
            {
                found.push(Orphan { id, page: pointer });
            }
        }
    }
    Ok(found)
}
