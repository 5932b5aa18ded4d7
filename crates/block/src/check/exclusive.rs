//! The space that deleting a snapshot would free at least, and what deleted ones still hold.
//!
//! A snapshot holds alone what lies below a top page that counts 1: pages and blocks that count 1, by
//! entries that count and that no borrower has. What it names twice itself is left out, and so is
//! what a page that can't be read would tell.
//!
//! A store at work goes on meanwhile: each piece of the walk takes the newest checkpoint and holds it
//! for a few pages only, so that a checkpoint waits for these at most. What changes during the walk
//! may be counted as before or as after.
//!
//! A page that counts 1 lies below one other only, and borrows from one. So the walk reads no page
//! more than a few times; accounts that say so of pages which many name are damage, and end it.
//!
//! Memory: about 100 bytes for each page that borrows. Threads: the caller's.

use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use onefold_core::{Pba, Result, VolumeId};

use super::{leaves::Leaves, scrub::full_name};
use crate::{
    engine::Engine,
    format::{
        catalogue::MapKind,
        page::{self, FANOUT, MapEntry, Page, PageId, Pointer, ReferenceEntry, Table},
        share::Share,
    },
    kernel::Kernel,
    overlay::Tables,
    scheme::{shadow::share_of, verbs::Scheme},
    sharing::{child_id, counts, counts_for_child},
};

/// Pages that are looked at while one checkpoint is held.
const PAGES: usize = 4;

/// Leaves of table 8 that are read together.
const SHARES: usize = 16;

/// How often a page is read at most, on the average: below the page that names it, as a lender, and
/// as one that borrows.
const TIMES: u64 = 4;

/// The space that snapshots hold alone, and that deleted maps still hold, in blocks of 4096 bytes,
/// pages of maps included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exclusive {
    /// The space that deleting each snapshot, as in `vm1@monday`, would free at least.
    pub snapshots: BTreeMap<String, u64>,
    /// The space of maps that are being taken apart.
    pub leaving: u64,
    /// The space of pages that nothing counts for and that wait to be handed over.
    pub orphans: u64,
    /// Pages that could not be read; one more when the walk ended because accounts are wrong, so
    /// that snapshots are missing.
    pub unread: u64,
    /// True when it was given up before its end.
    pub cancelled: bool,
}

/// The space of volumes, in blocks of 4096 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// The addresses of each volume that have a block, by its name. Ranges that were dropped and that no
    /// checkpoint has applied yet count still.
    pub mapped: BTreeMap<String, u64>,
    /// The space that deleting each volume would free at least, pages of its map included.
    pub exclusive: BTreeMap<String, u64>,
    /// As in [`Exclusive`].
    pub unread: u64,
    /// True when it was given up before its end.
    pub cancelled: bool,
}

/// Finds out what volumes hold, and what alone; `pause` as for [`exclusive`]. Each map is read once for
/// the one, and what no other map shares once more for the other: pages that many clones share are read
/// for each of them, from the page cache as far as it goes.
pub fn volume_space(engine: &Engine, pause: &mut dyn FnMut(Duration) -> bool) -> VolumeSpace {
    let mut walk = Walk::new(engine, pause);
    let mut space = VolumeSpace::default();
    if walk.accounts() {
        let maps: Vec<VolumeId> = walk.kernel.tables().volumes.keys().copied().collect();
        for id in maps {
            let Some((name, blocks)) = walk.mapped(id) else { continue };
            if let Some(alone) = walk.alone(id) {
                space.exclusive.insert(name.clone(), alone);
            }
            space.mapped.insert(name, blocks);
        }
    }
    VolumeSpace { unread: walk.found.unread, cancelled: walk.found.cancelled, ..space }
}

/// Finds out what snapshots hold alone. `pause` is told after each piece of work how long it took;
/// it may wait, so that others have the disk, and ends the walk by returning false.
pub fn exclusive(engine: &Engine, pause: &mut dyn FnMut(Duration) -> bool) -> Exclusive {
    let kernel = &engine.kernel;
    let mut walk = Walk::new(engine, pause);
    if !kernel.tables().state.shares_pages() || !walk.accounts() {
        return walk.found;
    }
    let maps: Vec<VolumeId> = kernel.tables().volumes.keys().copied().collect();
    for id in maps {
        if walk.has_read_too_much() {
            break;
        }
        walk.map(id);
    }
    for at in std::mem::take(&mut walk.orphans) {
        if walk.has_read_too_much() {
            break;
        }
        let Ok((id, pointer)) = kernel.pages.header_at(at) else { continue };
        let is_there = |tables: &Tables| {
            share_of(kernel, &tables.state.shares, at).is_ok_and(|share| share.is_orphan())
        };
        if id.table == Table::Map && pointer.address == at {
            let blocks = walk.below((id, pointer), &is_there);
            walk.found.orphans += blocks.unwrap_or(0);
        }
    }
    walk.found.unread += u64::from(walk.has_read_too_much());
    walk.found
}

struct Walk<'k, 'p> {
    kernel: &'k Kernel,
    scheme: &'k dyn Scheme,
    /// The pages that borrow from a page.
    borrowers: BTreeMap<Pba, Vec<Pba>>,
    orphans: Vec<Pba>,
    /// Pages of maps that were read.
    read: Cell<u64>,
    found: Exclusive,
    pause: &'p mut dyn FnMut(Duration) -> bool,
}

impl<'k, 'p> Walk<'k, 'p> {
    fn new(engine: &'k Engine, pause: &'p mut dyn FnMut(Duration) -> bool) -> Walk<'k, 'p> {
        Walk {
            kernel: &engine.kernel,
            scheme: &*engine.scheme,
            borrowers: BTreeMap::new(),
            orphans: Vec::new(),
            read: Cell::new(0),
            found: Exclusive::default(),
            pause,
        }
    }

    /// The name of a volume, and how many of its addresses have a block; `None` when it is none or is
    /// gone meanwhile, or the walk was given up.
    fn mapped(&mut self, id: VolumeId) -> Option<(String, u64)> {
        let volume = |tables: &Tables| {
            let map = tables.volumes.get(&id).filter(|map| map.sharing.kind == MapKind::Volume)?;
            Some((full_name(&tables.volumes, map), map.map, map.family()))
        };
        let (name, _, family) = volume(&self.kernel.tables())?;
        let (mut leaves, mut blocks) = (Leaves::new(Table::Map, family), 0);
        loop {
            let (begun, mut unread) = (Instant::now(), Vec::new());
            let tables = self.kernel.tables();
            let (_, root, _) = volume(&tables)?;
            let found = leaves.next(self.kernel, &root, PAGES, &mut unread);
            drop(tables);
            self.found.unread += unread.len() as u64;
            let Some(found) = found else { return Some((name, blocks)) };
            for (_, _, page) in found {
                let entries = (0..Table::Map.per_leaf()).map(|slot| MapEntry::get(&page, slot));
                let held = entries.filter(|entry| matches!(entry, Some(MapEntry::Block { .. })));
                blocks += held.count() as u64;
            }
            if !self.goes_on(begun) {
                return None;
            }
        }
    }

    /// The blocks that deleting a volume would free at least.
    fn alone(&mut self, id: VolumeId) -> Option<u64> {
        let map = self.kernel.tables().volumes.get(&id).cloned()?;
        let root = map.map;
        let is_there = |tables: &Tables| tables.volumes.get(&id).is_some_and(|map| map.map == root);
        map.top().map_or(Some(0), |top| self.below(top, &is_there))
    }

    /// Tells of a piece of work. Returns whether to go on.
    fn goes_on(&mut self, begun: Instant) -> bool {
        if !(self.pause)(begun.elapsed()) {
            self.found.cancelled = true;
        }
        !self.found.cancelled
    }

    /// True once more pages were read than a store with good accounts has.
    fn has_read_too_much(&self) -> bool {
        self.read.get() > TIMES * self.kernel.tables().state.used_blocks
    }

    /// Reads table 8.
    fn accounts(&mut self) -> bool {
        let mut leaves = Leaves::new(Table::Shares, 0);
        loop {
            let (begun, mut unread) = (Instant::now(), Vec::new());
            let tables = self.kernel.tables();
            let found = leaves.next(self.kernel, &tables.state.shares, SHARES, &mut unread);
            drop(tables);
            self.found.unread += unread.len() as u64;
            let Some(found) = found else { return true };
            for (leaf, _, page) in found {
                for slot in 0..Table::Shares.per_leaf() {
                    let (at, share) =
                        (Pba(leaf * Table::Shares.per_leaf() + slot), Share::get(&page, slot));
                    if let Some(lender) = share.lender {
                        self.borrowers.entry(lender.address).or_default().push(at);
                    }
                    if share.is_orphan() {
                        self.orphans.push(at);
                    }
                }
            }
            if !self.goes_on(begun) {
                return false;
            }
        }
    }

    fn map(&mut self, id: VolumeId) {
        let tables = self.kernel.tables();
        let Some(map) = tables.volumes.get(&id).cloned() else { return };
        let name = full_name(&tables.volumes, &map);
        drop(tables);
        if !map.is_snapshot() && !map.is_leaving() {
            return;
        }
        let root = map.map;
        let is_there = |tables: &Tables| tables.volumes.get(&id).is_some_and(|map| map.map == root);
        let blocks = map.top().map_or(Some(0), |top| self.below(top, &is_there));
        match blocks {
            Some(blocks) if map.is_leaving() => self.found.leaving += blocks,
            Some(blocks) => _ = self.found.snapshots.insert(name, blocks),
            None => {}
        }
    }

    /// The blocks that are freed with a page which is let go of; `None` when it is gone meanwhile,
    /// or the walk was given up.
    fn below(&mut self, top: (PageId, Pointer), is_there: &dyn Fn(&Tables) -> bool) -> Option<u64> {
        let (mut rest, mut blocks) = (Vec::from([top]), 0);
        while !rest.is_empty() {
            let begun = Instant::now();
            let tables = self.kernel.tables();
            if !is_there(&tables) {
                return None;
            }
            for _ in 0..PAGES {
                let Some((id, pointer)) = rest.pop() else { break };
                match self.page(&tables, id, &pointer, &mut rest) {
                    Ok(more) => blocks += more,
                    Err(_) => self.found.unread += 1,
                }
            }
            drop(tables);
            if !self.goes_on(begun) || self.has_read_too_much() {
                return None;
            }
        }
        Some(blocks)
    }

    /// The blocks that are freed with one page, without those below it, which go to `rest`.
    fn page(
        &self,
        tables: &Tables,
        id: PageId,
        pointer: &Pointer,
        rest: &mut Vec<(PageId, Pointer)>,
    ) -> Result<u64> {
        let kernel = self.kernel;
        let account = share_of(kernel, &tables.state.shares, pointer.address)?;
        if account.count > 1 {
            return Ok(0);
        }
        let page = self.get(id, pointer)?;
        let lender = account.lender.map(|lender| self.get(id, &lender)).transpose()?;
        let lender = lender.as_deref();
        let Some(borrowed) = self.borrowed(tables, id, pointer, &page, account.borrowers)? else {
            // They changed meanwhile.
            return Ok(0);
        };
        let mut blocks = 1;
        if id.level > 0 {
            for (slot, borrowed) in (0..FANOUT).zip(borrowed) {
                let child = page::pointer(&page, slot);
                if counts_for_child(&child, slot, lender) && !borrowed {
                    rest.push((child_id(id, slot), child));
                }
            }
            return Ok(blocks);
        }
        for (slot, borrowed) in (0..Table::Map.per_leaf()).zip(borrowed) {
            let Some(entry @ MapEntry::Block { pba, .. }) = MapEntry::get(&page, slot) else {
                continue;
            };
            let lent = lender.and_then(|lender| MapEntry::get(lender, slot));
            if counts(entry, lent)
                && !borrowed
                && self.scheme.counts().links(references(kernel, tables, pba)?) == 1
            {
                blocks += 1;
            }
        }
        Ok(blocks)
    }

    fn get(&self, id: PageId, pointer: &Pointer) -> Result<Arc<Page>> {
        self.read.set(self.read.get() + 1);
        self.kernel.pages.get(id, pointer)
    }

    /// Which entries of a page its borrowers have too; `None` unless there are so many borrowers.
    fn borrowed(
        &self,
        tables: &Tables,
        id: PageId,
        pointer: &Pointer,
        page: &Page,
        borrowers: u32,
    ) -> Result<Option<Vec<bool>>> {
        let slots = if id.level > 0 { FANOUT } else { Table::Map.per_leaf() };
        let (mut found, mut all) = (vec![false; slots as usize], 0);
        for &at in self.borrowers.get(&pointer.address).into_iter().flatten() {
            let share = share_of(self.kernel, &tables.state.shares, at)?;
            if share.lender != Some(*pointer) {
                continue;
            }
            let (named, borrower) = self.kernel.pages.header_at(at)?;
            if named != id || borrower.address != at {
                continue;
            }
            let borrower = self.get(id, &borrower)?;
            for (slot, found) in (0..slots).zip(&mut found) {
                *found |= if id.level > 0 {
                    page::pointer(&borrower, slot) == page::pointer(page, slot)
                } else {
                    MapEntry::get(&borrower, slot) == MapEntry::get(page, slot)
                };
            }
            all += 1;
        }
        Ok((all == borrowers).then_some(found))
    }
}

/// How many entries count for a block.
fn references(kernel: &Kernel, tables: &Tables, pba: Pba) -> Result<u32> {
    let (per_leaf, root) = (Table::References.per_leaf(), &tables.state.references);
    let leaf = kernel.pages.leaf(Table::References, 0, root, pba.0 / per_leaf)?;
    Ok(leaf.map_or(0, |(_, page)| ReferenceEntry::get(&page, pba.0 % per_leaf).references))
}
