//! Copies of blocks, and new places of pages, come into all pages of a family that name the old
//! ones.
//!
//! Every page that changes is written once, and a table of old to new pages is applied to the pages
//! above, to the accounts and to the maps. So a new page has the count, the borrowers and the
//! lender of the old one, or what became of that; a page that borrows from one that changed, and
//! did not change itself, has the new one as its lender. Two entries that were equal are equal
//! afterwards, and no others: so the same entries count.
//!
//! A new page keeps the birth of the old one. A range that waits for one of the maps reaches it as it
//! would have reached the old one, and no lender is younger than its borrowers.
//!
//! *Order.* It comes before all other changes of a checkpoint, so that the tables are those by which
//! the blocks were chosen, and a newer change of a client wins.

use std::collections::BTreeMap;

use onefold_core::{Block, Pba, Result};

use super::{
    MapStore, Sharing, counts,
    survey::{Place, Survey, Surveyed, Top},
};
use crate::{
    format::{
        page::{self, FANOUT, MapEntry, PageId, Pointer, Table},
        share::Share,
    },
    moving::{FamilyMoves, Put},
    rules::Rule,
};

/// The outcome of the moves of a family.
#[derive(Default)]
pub(crate) struct Relocated {
    /// The new pages, by the addresses of the old ones.
    pub(crate) pages: BTreeMap<Pba, Pointer>,
    /// Leaves into which something was put.
    pub(crate) leaves: Vec<u64>,
    /// Entries that have a copy now.
    pub(crate) entries: usize,
    /// Pages that did not change, and borrow from one that did.
    pub(crate) lent: usize,
}

impl<S: MapStore> Sharing<'_, S> {
    /// Puts copies into all maps of a family, of which `tops` are the top pages.
    ///
    /// # Errors
    /// `NoSpace`, `Io` or `Corrupt` where the new pages can't be written. Of what can't be read all
    /// stays as it is.
    pub(crate) fn relocate(
        &mut self,
        family: u32,
        tops: Vec<Top>,
        moves: &FamilyMoves,
    ) -> Result<Relocated> {
        let mut done = Relocated::default();
        let leaves = moves.leaves();
        let mut survey = Survey::new(family, tops, leaves.clone());
        if survey.advance(self.store, usize::MAX)? != Surveyed::Complete {
            return Ok(done);
        }
        let id = PageId { table: Table::Map, volume: family, level: 0, index: 0 };
        for leaf in leaves {
            let Some(place) = survey.leaf(self.store, leaf, usize::MAX)? else { continue };
            // What counts there is not known, and nothing of it is written anew.
            let Some(puts) = puts_of(&place, leaf, moves) else { continue };
            for (put, counts) in puts {
                done.entries += 1;
                if counts {
                    self.store.lower(put.from);
                    self.store.raise(put.to);
                }
            }
            self.renew(PageId { index: leaf, ..id }, &place, &mut done, |_, at, page| {
                if let Some(generation) = moves.mark_of(at) {
                    page::set_generation(&mut page.0, generation);
                }
                put_into(page, leaf, moves) || moves.has_page(at)
            })?;
            done.leaves.push(leaf);
        }
        for (&(level, index), place) in survey.inner() {
            self.renew(PageId { level, index, ..id }, place, &mut done, |done, at, page| {
                put_below(page, &done.pages) || moves.has_page(at)
            })?;
        }
        Ok(done)
    }

    /// Writes those pages of a place anew that `change` changes.
    fn renew(
        &mut self,
        id: PageId,
        place: &Place,
        done: &mut Relocated,
        mut change: impl FnMut(&mut Relocated, Pba, &mut Block) -> bool,
    ) -> Result<()> {
        let mut new: BTreeMap<Pba, Pointer> = BTreeMap::new();
        for (&at, seen) in place {
            let mut page = Box::new(Block(*seen.content));
            if change(done, at, &mut page) {
                let birth =
                    Some(seen.page.birth).filter(|_| self.store.keeps(Rule::MovedPagesKeepBirth));
                new.insert(at, self.store.write_of(id, page, birth)?);
            }
        }
        for (at, seen) in place {
            let before = seen.share.lender;
            let lender = before.map(|page| new.get(&page.address).copied().unwrap_or(page));
            if let Some(page) = new.get(at) {
                self.store.release(*at);
                self.accounts.end(*at);
                self.accounts.begin_as(page.address, Share { lender, ..seen.share });
            } else if lender != before {
                done.lent += 1;
                self.accounts.lend(self.store, *at, lender)?;
            }
        }
        done.pages.extend(new);
        Ok(())
    }
}

/// The copies that come into the leaves of a place, and for each whether its entry counts. `None` when a
/// damaged entry of a lender hides that.
fn puts_of(place: &Place, leaf: u64, moves: &FamilyMoves) -> Option<Vec<(Put, bool)>> {
    let mut puts = Vec::new();
    for seen in place.values() {
        let lender = seen.share.lender.and_then(|lender| place.get(&lender.address));
        for (slot, put) in moves.of_leaf(leaf) {
            // A damaged entry is none that was copied.
            if MapEntry::get(&seen.content, slot) != Some(put.from) {
                continue;
            }
            let lent = match lender {
                Some(lender) => Some(MapEntry::get(&lender.content, slot)?),
                None => None,
            };
            puts.push((put, counts(put.from, lent)));
        }
    }
    Some(puts)
}

/// Puts copies into a leaf, where it names what was copied. Returns whether it did.
fn put_into(page: &mut Block, leaf: u64, moves: &FamilyMoves) -> bool {
    let mut changed = false;
    for (slot, put) in moves.of_leaf(leaf) {
        if MapEntry::get(&page.0, slot) == Some(put.from) {
            put.to.set(page, slot);
            changed = true;
        }
    }
    changed
}

/// Puts new pages below an inner page. Returns whether it named one of the old ones.
fn put_below(page: &mut Block, table: &BTreeMap<Pba, Pointer>) -> bool {
    let mut changed = false;
    for slot in 0..FANOUT {
        let child = page::pointer(&page.0, slot);
        if let Some(new) = table.get(&child.address).filter(|_| !child.is_none()) {
            page::set_pointer(page, slot, new);
            changed = true;
        }
    }
    changed
}
