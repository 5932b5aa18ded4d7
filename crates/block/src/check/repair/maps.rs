//! New versions of the maps, where they are damaged or wrong.
//!
//! Pages that are whole and right stay where they are. A leaf that is gone gives way to one whose
//! addresses are lost; it keeps the birth that its parent knows, so that ranges which are still to
//! be applied to it make zeroes of it, as they would have. A leaf whose parent is gone as
//! well is taken for newer than any of them: it may have been written after, and errors are never
//! wrong.
//!
//! A page that several maps share is mended once, for the first of them. So all of them name the new
//! version, and what is lost in it is told of each.

use std::{collections::BTreeMap, ops::Range};

use onefold_core::{Block, Error, Kind, Lba, Pba, Result};

use super::{
    build::Builder,
    named::Named,
    once::is_whole,
    outcome::Repaired,
    salvage::{Child, Salvage, slots},
};
use crate::{
    check::{report::Place, tables::Checker, walk::leaves_below},
    format::{
        catalogue::Volume,
        page::{self, FANOUT, MapEntry, PageId, Pointer, Table},
        record::WindowNumber,
        superblock::Root,
    },
};

/// Leaves that are written to say that their addresses are lost: 256 MiB of them, for 72 GiB of
/// addresses.
const LOST_LEAVES_MAX: u64 = 65_536;

/// Lost ranges that are kept in memory to tell them of each map that shares them; more are counted.
const LOST_LOG_MAX: usize = 1 << 20;

/// Pages that are read together.
const BATCH: usize = 64;

/// Mends the maps of all volumes.
pub(super) struct Mend<'x, 'a, 'b> {
    pub(super) checker: &'x mut Checker<'a>,
    pub(super) builder: &'x mut Builder<'b>,
    pub(super) named: &'x Named,
    pub(super) repaired: &'x mut Repaired,
    pub(super) salvage: Salvage,
    pub(super) lost_leaves: u64,
    /// Pages of shared maps that have a new version, so that each is mended once.
    pub(super) mended: BTreeMap<Pba, Mended>,
    /// What was lost, in the order of the work; only where maps share pages.
    pub(super) lost_log: Vec<(Lba, u64)>,
}

/// A page of a shared map that has a new version.
pub(super) struct Mended {
    id: PageId,
    old: Pointer,
    new: Pointer,
    /// Its part of the log of what was lost.
    lost: Range<usize>,
    addresses: u64,
}

impl Mend<'_, '_, '_> {
    /// The new root of a volume's map.
    pub(super) fn map(&mut self, volume: &Volume) -> Result<Root> {
        let root = volume.map;
        let Some(top) = volume.top() else { return Ok(root) };
        let new = self.pages(volume, &[top])?;
        Ok(match new[..] {
            [Some(page)] if page.is_none() => Root::default(),
            [Some(page)] => Root { page, ..root },
            _ => root,
        })
    }

    /// New versions of pages; `None` for those that stay.
    fn pages(
        &mut self,
        volume: &Volume,
        pages: &[(PageId, Pointer)],
    ) -> Result<Vec<Option<Pointer>>> {
        let mut new = Vec::with_capacity(pages.len());
        for batch in pages.chunks(BATCH) {
            let known: Vec<Option<Option<Pointer>>> =
                batch.iter().map(|(id, pointer)| self.known(volume, *id, pointer)).collect();
            let unknown = batch.iter().zip(&known).filter(|(_, known)| known.is_none());
            let unknown: Vec<(PageId, Pointer)> = unknown.map(|(&page, _)| page).collect();
            let mut blocks = Block::zeroed_vec(unknown.len());
            let results = self.checker.walker.read(&unknown, &mut blocks);
            let mut read = unknown.into_iter().zip(&blocks).zip(results);
            for known in known {
                let page = match known {
                    Some(known) => known,
                    None => match read.next() {
                        Some(((page, block), result)) => {
                            self.mend(volume, page, block, result.is_ok())?
                        }
                        None => None,
                    },
                };
                new.push(page);
            }
        }
        Ok(new)
    }

    /// The outcome for a page that another map named before, or another page: `Some(None)` when it
    /// stays. One that lies across the end of a volume is looked at for each.
    fn known(&mut self, volume: &Volume, id: PageId, pointer: &Pointer) -> Option<Option<Pointer>> {
        if !self.checker.state.shares_pages() || !is_whole(volume, id) {
            return None;
        }
        if let Some(mended) = self.mended.get(&pointer.address)
            && (mended.id, mended.old) == (id, *pointer)
        {
            let (new, lost, addresses) = (mended.new, mended.lost.clone(), mended.addresses);
            let before = self.repaired.lost_addresses;
            for n in lost {
                let (lba, count) = self.lost_log[n];
                self.lose(volume, lba, count);
            }
            self.repaired.lost_addresses = before + addresses;
            return Some(Some(new));
        }
        let kept = self.checker.geometry.holds(pointer.address)
            && self.builder.live.contains(pointer.address);
        kept.then_some(None)
    }

    /// The new version of a page that was read; `None` when it stays.
    fn mend(
        &mut self,
        volume: &Volume,
        (id, pointer): (PageId, Pointer),
        block: &Block,
        is_whole_page: bool,
    ) -> Result<Option<Pointer>> {
        let (shared, geometry) = (self.checker.state.shares_pages(), self.checker.geometry);
        let free = |at: Pba| geometry.holds(at) && (shared || !self.builder.live.contains(at));
        let (logged, before) = (self.lost_log.len(), self.repaired.lost_addresses);
        let new = if is_whole_page && free(pointer.address) {
            self.page(volume, id, pointer, block)?
        } else {
            Some(self.gone(volume, id, pointer)?)
        };
        if let Some(new) = new
            && shared
            && is_whole(volume, id)
        {
            let lost = logged..self.lost_log.len();
            let addresses = self.repaired.lost_addresses - before;
            self.mended.insert(pointer.address, Mended { id, old: pointer, new, lost, addresses });
        }
        Ok(new)
    }

    /// Addresses of a volume are lost.
    fn lose(&mut self, volume: &Volume, lba: Lba, count: u64) {
        self.repaired.lose(volume.id, lba, count);
        if self.checker.state.shares_pages() && self.lost_log.len() < LOST_LOG_MAX {
            self.lost_log.push((lba, count));
        }
    }

    /// The new version of a page that is whole.
    fn page(
        &mut self,
        volume: &Volume,
        id: PageId,
        pointer: Pointer,
        block: &Block,
    ) -> Result<Option<Pointer>> {
        if id.level == 0 {
            let first = id.index * Table::Map.per_leaf();
            let at = pointer.address;
            let wrong = self.named.wrong.range((at, 0)..(at, Table::Map.per_leaf()));
            // An entry beyond the end of another volume may be right here.
            let is_wrong = |&(&(_, slot), entry): &(&(Pba, u64), &MapEntry)| {
                *entry != MapEntry::Hole || first + slot >= volume.blocks
            };
            let wrong: Vec<(u64, MapEntry)> =
                wrong.filter(is_wrong).map(|(&(_, slot), &entry)| (slot, entry)).collect();
            if wrong.is_empty() {
                self.builder.keep(&pointer);
                return Ok(None);
            }
            let mut page = Box::new(block.clone());
            for (slot, entry) in wrong {
                entry.set(&mut page, slot);
                if entry == MapEntry::Lost {
                    self.lose(volume, Lba(first + slot), 1);
                }
            }
            return self.builder.page(id, pointer.birth, page).map(Some);
        }
        let children = slots(id, block);
        let named: Vec<(PageId, Pointer)> =
            children.iter().map(|&(_, child, pointer)| (child, pointer)).collect();
        let new = self.pages(volume, &named)?;
        if new.iter().all(Option::is_none) {
            self.builder.keep(&pointer);
            return Ok(None);
        }
        let mut page = Box::new(block.clone());
        for ((slot, ..), new) in children.iter().zip(&new) {
            if let Some(new) = new {
                page::set_pointer(&mut page, *slot, new);
            }
        }
        self.builder.page(id, self.checker.state.committed, page).map(Some)
    }

    /// The page that takes the place of one that is gone.
    fn gone(&mut self, volume: &Volume, id: PageId, pointer: Pointer) -> Result<Pointer> {
        let committed = self.checker.state.committed;
        if id.level == 0 {
            let pointer = self.lost(volume, id, pointer.birth.min(committed))?;
            self.repaired.left.push(format!(
                "{}: it is gone, and with it what its addresses hold",
                Place::Page(id, pointer.address)
            ));
            return Ok(pointer);
        }
        let mut page = Block::zeroed();
        let mut found = 0;
        for slot in 0..FANOUT {
            let child = PageId {
                level: id.level - 1,
                index: id.index.saturating_mul(FANOUT).saturating_add(slot),
                ..id
            };
            if leaves_below(child).start.saturating_mul(Table::Map.per_leaf()) > Lba::MAX.0 {
                break;
            }
            let new = match self.salvage.child(self.checker, self.named, (id, pointer), slot) {
                Child::Found(pointer) => {
                    found += 1;
                    self.pages(volume, &[(child, pointer)])?.pop().flatten().unwrap_or(pointer)
                }
                Child::None => Pointer::default(),
                Child::Unknown => self.lost(volume, child, committed)?,
            };
            page::set_pointer(&mut page, slot, &new);
        }
        self.repaired.restored.push(format!(
            "{}: put together again from {found} pages below it",
            Place::Page(id, pointer.address)
        ));
        self.builder.page(id, committed, page)
    }

    /// Pages that say that everything below `id` is lost.
    fn lost(&mut self, volume: &Volume, id: PageId, birth: WindowNumber) -> Result<Pointer> {
        let per_leaf = Table::Map.per_leaf();
        let first = leaves_below(id).start.saturating_mul(per_leaf);
        // Nobody can read a deleted volume any more, nor beyond a volume's end.
        if volume.name.is_empty() || first >= volume.blocks {
            return Ok(Pointer::default());
        }
        let mut page = Block::zeroed();
        if id.level == 0 {
            self.lost_leaves += 1;
            if self.lost_leaves > LOST_LEAVES_MAX {
                let message = format!(
                    "so much of the map of volume '{}' is lost that it can't be repaired",
                    volume.name
                );
                return Err(Error::new(Kind::Corrupt, message));
            }
            let count = per_leaf.min(volume.blocks - first);
            (0..count).for_each(|slot| MapEntry::Lost.set(&mut page, slot));
            self.lose(volume, Lba(first), count);
        } else {
            for slot in 0..FANOUT {
                let child = PageId {
                    level: id.level - 1,
                    index: id.index.saturating_mul(FANOUT).saturating_add(slot),
                    ..id
                };
                let pointer = self.lost(volume, child, birth)?;
                page::set_pointer(&mut page, slot, &pointer);
            }
        }
        self.builder.page(id, birth, page)
    }
}
