//! Changes go into a map: changed leaves, and the pages above them, each at a new place.
//!
//! From the top down it is found out which old pages go. A page *goes* when nothing counts for it
//! after its parent's change and no page borrows from it: the new version takes its place, and
//! inherits its lender. A page that *stays* becomes the lender of the new version.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Block, Result};

use super::{Lender, MapStore, Sharing, counts, counts_for_child, entry};
use crate::{
    format::page::{self, FANOUT, MapEntry, Page, PageId, Pointer, Root, Table},
    rules::Rule,
    table::rebuild::{Change, LEAF_BATCH, height_for},
};

/// An old page that is written anew.
#[derive(Clone, Copy)]
struct Old {
    page: Pointer,
    /// Nobody needs it any more.
    goes: bool,
    /// The page that it borrows from.
    lender: Option<Pointer>,
    /// That page can't be read: all entries of the new version count.
    is_lender_lost: bool,
}

/// The inner page on the way to the leaf that is looked for: it stays in memory for its neighbours.
struct OnTheWay {
    index: u64,
    old: Old,
    page: Arc<Page>,
    lender: Lender<Arc<Page>>,
}

/// The old pages of one map.
struct Ways {
    id: PageId,
    root: Root,
    /// Inner pages, by level and number.
    inner: BTreeMap<(u8, u64), Option<Old>>,
    /// By level.
    current: Vec<Option<OnTheWay>>,
}

/// What changed in a map: how many more addresses have a block, or are lost, and how many more pages it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewritten {
    /// The new root.
    pub(crate) root: Root,
    /// Addresses that have a block now, less those that had one.
    pub(crate) mapped: i64,
    /// Addresses that are lost now, less those that were.
    pub(crate) lost: i64,
    /// Pages that it has now, less those that it had.
    pub(crate) pages: i64,
}

/// How many more pages a map has when `new` is where one was, or was not.
fn more_pages(was: bool, new: &Pointer) -> i64 {
    i64::from(!new.is_none()) - i64::from(was)
}

impl<S: MapStore> Sharing<'_, S> {
    /// Rewrites the leaves numbered `leaves` (rising, distinct) of a map, as `change` says, which
    /// gets the number of a leaf, its old pointer if it exists, and the page to change; it returns
    /// whether the leaf still holds anything.
    ///
    /// # Errors
    /// Those of the pages, of `change`, and `Corrupt` where accounts can't be true.
    pub(crate) fn rewrite(
        &mut self,
        map: u32,
        root: &Root,
        leaves: &[u64],
        change: Change<'_>,
    ) -> Result<Rewritten> {
        let mut rewritten = Rewritten { root: *root, mapped: 0, lost: 0, pages: 0 };
        let Some(&last) = leaves.last() else { return Ok(rewritten) };
        let id = PageId { table: Table::Map, volume: map, level: 0, index: 0 };
        let current = (0..root.height).map(|_| None).collect();
        let mut ways = Ways { id, root: *root, inner: BTreeMap::new(), current };
        let mut pointers: Vec<(u64, Pointer)> = Vec::with_capacity(leaves.len());
        for batch in leaves.chunks(LEAF_BATCH) {
            let olds: Vec<Option<Old>> =
                batch.iter().map(|&leaf| self.old(&mut ways, 0, leaf)).collect::<Result<_>>()?;
            let wanted: Vec<(PageId, Pointer)> = batch
                .iter()
                .zip(&olds)
                .filter_map(|(&index, old)| Some((PageId { index, ..id }, (*old)?)))
                .flat_map(|(id, old)| {
                    let lender = old.lender.filter(|_| old.goes);
                    [Some(old.page), lender].into_iter().flatten().map(move |page| (id, page))
                })
                .collect();
            let mut pages = self.store.read(&wanted).into_iter();
            for (&index, mut old) in batch.iter().zip(olds) {
                let (before, lender) = match &mut old {
                    Some(old) => {
                        let page = pages.next().transpose()?;
                        let borrows = old.goes && old.lender.is_some();
                        let lender = match if borrows { pages.next() } else { None } {
                            Some(read) => self.lender(read)?,
                            None => Lender::None,
                        };
                        old.is_lender_lost = lender.is_unread();
                        (page, lender)
                    }
                    None => (None, Lender::None),
                };
                let mut page = match &before {
                    Some(page) => Box::new(Block(**page)),
                    None => Block::zeroed(),
                };
                let holds = change(index, old.as_ref().map(|old| &old.page), &mut page)?;
                let after = holds.then_some(page);
                let stays = old.is_some_and(|old| !old.goes);
                let (mapped, lost) = self.count_leaf(
                    before.as_deref(),
                    after.as_deref().map(|page| &page.0),
                    &lender,
                    stays,
                )?;
                rewritten.mapped += mapped;
                rewritten.lost += lost;
                let new = self.replace(PageId { index, ..id }, old, after)?;
                rewritten.pages += more_pages(old.is_some(), &new);
                pointers.push((index, new));
            }
        }
        for level in 1..height_for(root, last) {
            if level == root.height && pointers.first().is_none_or(|&(child, _)| child != 0) {
                // The old root, unchanged, becomes the first child of the first new level: a
                // pointer counts for it in place of the catalogue.
                pointers.insert(0, (0, root.page));
            }
            let mut above: Vec<(u64, Pointer)> = Vec::new();
            for children in pointers.chunk_by(|one, other| one.0 / FANOUT == other.0 / FANOUT) {
                let index = children[0].0 / FANOUT;
                let old = ways.inner.get(&(level, index)).copied().flatten();
                let id = PageId { level, index, ..id };
                let new = self.replace_inner(id, old, children)?;
                rewritten.pages += more_pages(old.is_some(), &new);
                above.push((index, new));
            }
            pointers = above;
        }
        let page = pointers.first().map(|&(_, pointer)| pointer).unwrap_or_default();
        let height = height_for(root, last);
        rewritten.root = if page.is_none() { Root::default() } else { Root { page, height } };
        Ok(rewritten)
    }

    /// The old page at a place of the map, and whether it goes: the entry that named it does not
    /// count any more.
    fn old(&mut self, ways: &mut Ways, level: u8, index: u64) -> Result<Option<Old>> {
        if let Some(known) = ways.inner.get(&(level, index)) {
            return Ok(*known);
        }
        let Some(top) = ways.root.height.checked_sub(1).filter(|&top| level <= top) else {
            return Ok(None);
        };
        let id = PageId { level, index, ..ways.id };
        let found = if level == top {
            let root = (index == 0).then_some(ways.root.page);
            root.map(|page| self.leave(id, page, true)).transpose()?
        } else {
            match self.old(ways, level + 1, index / FANOUT)? {
                Some(parent) => self.child(ways, parent, id)?,
                None => None,
            }
        };
        if level > 0 {
            ways.inner.insert((level, index), found);
        }
        Ok(found)
    }

    /// The old page below a parent that is written anew.
    fn child(&mut self, ways: &mut Ways, parent: Old, id: PageId) -> Result<Option<Old>> {
        let above = PageId { level: id.level + 1, index: id.index / FANOUT, ..id };
        let place = usize::from(above.level);
        if ways.current[place].as_ref().is_none_or(|way| way.index != above.index) {
            let lender = parent.lender.filter(|_| parent.goes);
            let (page, lender) = self.read_with_lender(above, &parent.page, lender)?;
            if lender.is_unread() {
                let lost = Old { is_lender_lost: true, ..parent };
                ways.inner.insert((above.level, above.index), Some(lost));
            }
            ways.current[place] = Some(OnTheWay { index: above.index, old: parent, page, lender });
        }
        let Some(way) = &ways.current[place] else { return Ok(None) };
        let slot = id.index % FANOUT;
        let child = page::pointer(&way.page, slot);
        if child.is_none() {
            return Ok(None);
        }
        let differs = match &way.lender {
            Lender::Unread => false,
            lender => counts_for_child(&child, slot, lender.page()),
        };
        let counted = way.old.goes && differs || !self.store.keeps(Rule::InnerPagesCount);
        self.leave(id, child, counted).map(Some)
    }

    /// A new version takes the place of a page. If an entry `counted` for it, that is over.
    fn leave(&mut self, id: PageId, page: Pointer, counted: bool) -> Result<Old> {
        let before = self.accounts.get(self.store, page.address)?;
        let goes = counted && self.may_go(&before);
        if counted && !goes {
            self.unname(id, &page)?;
        }
        Ok(Old { page, goes, lender: before.lender, is_lender_lost: false })
    }

    /// Counts the changes of a leaf. Gives how many more of its addresses have a block, and are lost.
    fn count_leaf(
        &mut self,
        before: Option<&Page>,
        after: Option<&Page>,
        lender: &Lender<Arc<Page>>,
        stays: bool,
    ) -> Result<(i64, i64)> {
        let at =
            |page: Option<&Page>, slot| page.map_or(Ok(MapEntry::Hole), |page| entry(page, slot));
        let (mut mapped, mut lost) = (0, 0);
        for slot in 0..Table::Map.per_leaf() {
            let (old, new) = (at(before, slot)?, at(after, slot)?);
            let is_block = |entry| i64::from(matches!(entry, MapEntry::Block { .. }));
            let is_lost = |entry| i64::from(entry == MapEntry::Lost);
            mapped += is_block(new) - is_block(old);
            lost += is_lost(new) - is_lost(old);
            if lender.is_unread() && self.store.keeps(Rule::UnreadLenderLendsNoMore) {
                // Nothing was known to count, and all of the new version does.
                if counts(new, None) {
                    self.store.raise(new);
                }
                continue;
            }
            if old == new {
                continue;
            }
            let lent = lender.page().map(|lender| entry(lender, slot)).transpose()?;
            let lent_as_well = self.store.keeps(Rule::LentEntriesNotLowered);
            if !stays && counts(old, lent.filter(|_| lent_as_well)) {
                self.store.lower(old);
            }
            if counts(new, lent) {
                self.store.raise(new);
            }
        }
        Ok((mapped, lost))
    }

    /// Writes the new version of an inner page, in which `children` changed.
    fn replace_inner(
        &mut self,
        id: PageId,
        old: Option<Old>,
        children: &[(u64, Pointer)],
    ) -> Result<Pointer> {
        let mut page = match &old {
            Some(old) => Box::new(Block(*self.read(id, &old.page)?)),
            None => Block::zeroed(),
        };
        if old.is_some_and(|old| old.is_lender_lost) {
            let changed = |slot: u64| children.iter().any(|(child, _)| child % FANOUT == slot);
            for slot in (0..FANOUT).filter(|&slot| !changed(slot)) {
                let child = page::pointer(&page.0, slot);
                if !child.is_none() {
                    self.name(&child)?;
                }
            }
        }
        for (child, pointer) in children {
            page::set_pointer(&mut page, child % FANOUT, pointer);
        }
        let empty = page::body(&page.0).iter().all(|&byte| byte == 0);
        self.replace(id, old, (!empty).then_some(page))
    }

    /// Writes the new version of a page. An old one that goes is let go, and leaves its lender to
    /// the new one; one that stays is the new one's lender.
    fn replace(
        &mut self,
        id: PageId,
        old: Option<Old>,
        new: Option<Box<Block>>,
    ) -> Result<Pointer> {
        let written = new.map(|page| self.store.write(id, page)).transpose()?;
        match (old, written) {
            (None, None) => {}
            (None, Some(new)) => self.accounts.begin(new.address, None),
            (Some(old), None) if old.goes => self.let_go(&old.page, old.lender)?,
            (Some(_), None) => {}
            (Some(old), Some(new)) if old.goes && old.is_lender_lost => {
                self.let_go(&old.page, old.lender)?;
                self.accounts.begin(new.address, None);
            }
            (Some(old), Some(new)) if old.goes => {
                self.let_go(&old.page, None)?;
                let inherits = self.store.keeps(Rule::LenderInherited);
                self.accounts.begin(new.address, old.lender.filter(|_| inherits));
            }
            (Some(old), Some(new)) => {
                if !self.store.keeps(Rule::StayingPageLends) {
                    self.accounts.begin(new.address, None);
                    return Ok(new);
                }
                self.accounts.borrow(self.store, old.page.address)?;
                self.accounts.begin(new.address, Some(old.page));
            }
        }
        Ok(written.unwrap_or_default())
    }
}
