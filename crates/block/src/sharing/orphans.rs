//! Pages that nothing counts for are handed over to those that borrow from them.

use std::{cmp::Reverse, sync::Arc};

use onefold_core::{Block, Error, Kind, Result};

use super::{
    Budget, Leaving, MapStore, Sharing, child_id, counts, counts_for_child, entry, is_unread,
};
use crate::format::{
    page::{self, FANOUT, MapEntry, Page, PageId, Pointer, Table},
    record::WindowNumber,
};
use crate::rules::Rule;

/// A page that nothing counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    /// Its place in the family.
    pub(crate) id: PageId,
    /// Where it is.
    pub(crate) page: Pointer,
}

impl Orphan {
    /// Orphans are handed over in this order: the youngest first, of one age those of the upper
    /// level. So the borrowers of one are found in the maps: none hangs below another orphan, or is
    /// one.
    pub(crate) fn order(&self) -> (Reverse<WindowNumber>, Reverse<u8>, u64) {
        (Reverse(self.page.birth), Reverse(self.id.level), self.page.address.0)
    }
}

/// What became of an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// It is free.
    Over,
    /// It is free; these of the pages below it were its alone, and are leaving.
    Leaves(Leaving),
    /// It has more borrowers than the budget allows: the next checkpoint goes on.
    Partly,
    /// Pages that can't be read hide its borrowers, or neither it nor one of them can be read: it
    /// waits for a repair.
    Waits,
}

/// The content of an orphan, and of its borrowers.
type Known = (Arc<Page>, Vec<Arc<Page>>);

/// Pages that can't be read.
type Unread = Vec<Pointer>;

impl<S: MapStore> Sharing<'_, S> {
    /// Hands an orphan over to its borrowers: pages among `there`, which are those of its family at
    /// its place.
    ///
    /// # Errors
    /// Those of the pages, and `Corrupt` where accounts can't be true.
    pub(crate) fn hand_over(
        &mut self,
        orphan: Orphan,
        there: &[Pointer],
        budget: &mut Budget,
    ) -> Result<Handed> {
        let account = self.accounts.get(self.store, orphan.page.address)?;
        if account.borrowers == 0 || !self.store.keeps(Rule::OrphanWaitsForBorrowers) {
            return self.let_orphan_go(orphan, account.lender, budget);
        }
        let mut borrowers = Vec::new();
        for page in there {
            if self.accounts.get(self.store, page.address)?.lender == Some(orphan.page) {
                borrowers.push(*page);
            }
        }
        borrowers.sort_by_key(|page| (page.birth, page.address));
        if borrowers.len() != account.borrowers as usize && self.store.is_inexact() {
            return Ok(Handed::Waits);
        }
        if borrowers.len() != account.borrowers as usize {
            let message = format!(
                "the map page at block {} has {} borrowers, of which {} are found",
                orphan.page.address,
                account.borrowers,
                borrowers.len()
            );
            return Err(Error::new(Kind::Corrupt, message));
        }
        // As many as are handed over now.
        let now = &borrowers[..borrowers.len().min(budget.0.max(2))];
        let (old, pages) = match self.read_all(&orphan, now)? {
            Ok(known) => known,
            Err(unread) => return self.hand_over_unread(orphan, borrowers, &unread, budget),
        };
        let mut known = borrowers.iter().zip(&pages);
        let Some(heir) = known.next() else { return Ok(Handed::Partly) };
        let others = borrowers.len() - 1;
        let whole = others < budget.0;
        let others = others.min(budget.0.saturating_sub(1).max(1));
        budget.spend(1 + others);
        for other in known.take(others) {
            if !self.store.keeps(Rule::HeirLends) {
                continue;
            }
            self.pass_on(orphan.id, other, &old, heir)?;
            self.accounts.borrow(self.store, heir.0.address)?;
            self.accounts.give_back(self.store, orphan.page.address)?;
        }
        if !whole {
            return Ok(Handed::Partly);
        }
        // The last borrower takes the orphan's place: what the orphan's entries counted for is
        // the heir's to count.
        self.inherit((orphan, &old), account.lender, heir)?;
        Ok(Handed::Over)
    }

    /// An orphan and borrowers of it, each read once; or those of them that can't be read.
    fn read_all(
        &mut self,
        orphan: &Orphan,
        borrowers: &[Pointer],
    ) -> Result<Result<Known, Unread>> {
        let old = match self.read_each(orphan.id, &[orphan.page])? {
            Ok(mut read) => read.pop(),
            Err(unread) => return Ok(Err(unread)),
        };
        let old = old.ok_or_else(|| Error::new(Kind::Io, "a page of a map vanished"))?;
        Ok(self.read_each(orphan.id, borrowers)?.map(|pages| (old, pages)))
    }

    /// The pages at these addresses, or those that can't be read.
    fn read_each(
        &mut self,
        id: PageId,
        pages: &[Pointer],
    ) -> Result<Result<Vec<Arc<Page>>, Unread>> {
        let wanted: Vec<(PageId, Pointer)> = pages.iter().map(|page| (id, *page)).collect();
        let (mut known, mut unread) = (Vec::with_capacity(pages.len()), Vec::new());
        for (page, read) in pages.iter().zip(self.store.read(&wanted)) {
            match read {
                Ok(content) => known.push(content),
                Err(e) if is_unread(&e) => unread.push(*page),
                Err(e) => return Err(e),
            }
        }
        Ok(if unread.is_empty() { Ok(known) } else { Err(unread) })
    }

    /// Hands over an orphan that can't be read, or takes it from the borrowers that can't be: they
    /// have no lender from now on. All entries of the page of each such pair that can be read
    /// count once more, which is what the other one may name.
    fn hand_over_unread(
        &mut self,
        orphan: Orphan,
        borrowers: Vec<Pointer>,
        unread: &[Pointer],
        budget: &mut Budget,
    ) -> Result<Handed> {
        let Orphan { id, page } = orphan;
        self.store.inexact();
        let is_lost = unread.contains(&page);
        let lost = borrowers.into_iter().filter(|one| is_lost || unread.contains(one));
        for borrower in lost {
            let known = if is_lost { borrower } else { page };
            let content = match self.read(id, &known) {
                Ok(content) => content,
                Err(e) if is_unread(&e) => return Ok(Handed::Waits),
                Err(e) => return Err(e),
            };
            if budget.is_spent() {
                return Ok(Handed::Partly);
            }
            budget.spend(1);
            self.raise_all(id, &content)?;
            self.accounts.lend(self.store, borrower.address, None)?;
            self.accounts.give_back(self.store, page.address)?;
        }
        if !is_lost {
            return Ok(Handed::Partly);
        }
        let account = self.accounts.get(self.store, page.address)?;
        self.let_orphan_go(orphan, account.lender, budget)
    }

    /// One more page has the entries of this one, and they count.
    fn raise_all(&mut self, id: PageId, page: &Arc<Page>) -> Result<()> {
        self.difference(id, &[], &[Counted { page, lender: None }])
    }

    /// A borrower gets another lender than the orphan: its entries count where they differ from
    /// that one.
    fn pass_on(
        &mut self,
        id: PageId,
        (borrower, page): (&Pointer, &Arc<Page>),
        orphan: &Page,
        (heir, to): (&Pointer, &Arc<Page>),
    ) -> Result<()> {
        let before = Counted { page, lender: Some(orphan) };
        self.difference(id, &[before], &[Counted { page, lender: Some(to) }])?;
        self.accounts.lend(self.store, borrower.address, Some(*heir)).map(drop)
    }

    /// The heir borrows from the orphan's lender from now on, and the orphan is free.
    fn inherit(
        &mut self,
        (orphan, old): (Orphan, &Arc<Page>),
        lender: Option<Pointer>,
        (heir, new): (&Pointer, &Arc<Page>),
    ) -> Result<()> {
        let above = self.read_lender(orphan.id, lender)?;
        if above.is_unread() {
            // The orphan's entries stay counted, and all of the heir's count.
            let before = [Counted { page: new, lender: Some(old) }];
            self.difference(orphan.id, &before, &[Counted { page: new, lender: None }])?;
            self.accounts.lend(self.store, heir.address, None)?;
            return self.let_go(&orphan.page, lender);
        }
        let above = above.page();
        let before =
            [Counted { page: old, lender: above }, Counted { page: new, lender: Some(old) }];
        self.difference(orphan.id, &before, &[Counted { page: new, lender: above }])?;
        self.accounts.lend(self.store, heir.address, lender)?;
        self.let_go(&orphan.page, None)
    }

    /// Nobody borrows from an orphan: its entries count no more.
    fn let_orphan_go(
        &mut self,
        orphan: Orphan,
        lender: Option<Pointer>,
        budget: &mut Budget,
    ) -> Result<Handed> {
        budget.spend(1);
        let Orphan { id, page } = orphan;
        let (content, above) = match self.read_with_lender(id, &page, lender) {
            Ok((content, above)) if !above.is_unread() => (content, above),
            Err(e) if !is_unread(&e) => return Err(e),
            Ok(_) | Err(_) => {
                // What it names stays counted.
                self.store.inexact();
                self.let_go(&page, lender)?;
                return Ok(Handed::Over);
            }
        };
        let above = above.page();
        if id.level == 0 {
            self.lower_all(&content, above)?;
            self.let_go(&page, lender)?;
            return Ok(Handed::Over);
        }
        // Pages below it that are its alone hang below one new page, which is leaving.
        let mut alone = Block::zeroed();
        for slot in 0..FANOUT {
            let child = page::pointer(&content, slot);
            if !counts_for_child(&child, slot, above) {
                continue;
            }
            if self.is_alone(&child)? {
                page::set_pointer(&mut alone, slot, &child);
            } else {
                budget.spend(1);
                self.unname(child_id(id, slot), &child)?;
            }
        }
        self.let_go(&page, lender)?;
        if page::body(&alone.0).iter().all(|&byte| byte == 0) {
            return Ok(Handed::Over);
        }
        let page = self.store.write(id, alone)?;
        self.accounts.begin(page.address, None);
        Ok(Handed::Leaves(Leaving { id, page }))
    }

    /// Applies the difference between what pages counted for and what they count for now.
    fn difference(
        &mut self,
        id: PageId,
        before: &[Counted<'_>],
        after: &[Counted<'_>],
    ) -> Result<()> {
        if id.level == 0 {
            for slot in 0..Table::Map.per_leaf() {
                let mut lost = counted_entries(before, slot)?;
                for new in counted_entries(after, slot)? {
                    match lost.iter().position(|old| *old == new) {
                        Some(same) => drop(lost.swap_remove(same)),
                        None => self.store.raise(new),
                    }
                }
                lost.into_iter().for_each(|old| self.store.lower(old));
            }
            return Ok(());
        }
        for slot in 0..FANOUT {
            let mut lost = counted_children(before, slot);
            for new in counted_children(after, slot) {
                match lost.iter().position(|old| *old == new) {
                    Some(same) => drop(lost.swap_remove(same)),
                    None => self.name(&new)?,
                }
            }
            for old in lost {
                self.unname(child_id(id, slot), &old)?;
            }
        }
        Ok(())
    }
}

/// A page whose entries count where they differ from those of its lender.
struct Counted<'p> {
    page: &'p Arc<Page>,
    lender: Option<&'p Page>,
}

fn counted_entries(pages: &[Counted<'_>], slot: u64) -> Result<Vec<MapEntry>> {
    let mut all = Vec::new();
    for Counted { page, lender } in pages {
        let one = entry(page, slot)?;
        if counts(one, lender.map(|lender| entry(lender, slot)).transpose()?) {
            all.push(one);
        }
    }
    Ok(all)
}

fn counted_children(pages: &[Counted<'_>], slot: u64) -> Vec<Pointer> {
    let child = |page: &Page| page::pointer(page, slot);
    pages
        .iter()
        .filter(|one| counts_for_child(&child(one.page), slot, one.lender))
        .map(|one| child(one.page))
        .collect()
}
