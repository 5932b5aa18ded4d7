//! Maps that were deleted are taken apart, from the left: the rest is a tree.

use onefold_core::{Block, Result};

use super::{Budget, MapStore, Sharing, child_id, counts_for_child, is_unread};
use crate::format::page::{self, FANOUT, PageId, Pointer};
use crate::rules::Rule;

/// The top page of what is leaving: the catalogue counts for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// Its place in the family.
    pub(crate) id: PageId,
    /// Where it is.
    pub(crate) page: Pointer,
}

impl<S: MapStore> Sharing<'_, S> {
    /// Takes apart as much as the budget allows. Returns what is left.
    ///
    /// # Errors
    /// Those of the pages, and `Corrupt` where accounts can't be true.
    pub(crate) fn take_apart(
        &mut self,
        leaving: Leaving,
        budget: &mut Budget,
    ) -> Result<Option<Leaving>> {
        let Leaving { id, page } = leaving;
        Ok(self.take(id, &page, budget)?.map(|page| Leaving { id, page }))
    }

    /// Takes a page apart whose name does not count any more, or names the rest from now on. A page
    /// that others need is not entered.
    fn take(&mut self, id: PageId, page: &Pointer, budget: &mut Budget) -> Result<Option<Pointer>> {
        if budget.is_spent() {
            return Ok(Some(*page));
        }
        let account = self.accounts.get(self.store, page.address)?;
        if !account.is_alone() && self.store.keeps(Rule::SharedPagesNotEntered) {
            budget.spend(1);
            self.unname(id, page)?;
            return Ok(None);
        }
        let (content, lender) = match self.read_with_lender(id, page, account.lender) {
            Ok((content, lender)) if !lender.is_unread() => (content, lender),
            Ok(_) => return self.give_up(page, account.lender, budget),
            Err(e) if is_unread(&e) => return self.give_up(page, account.lender, budget),
            Err(e) => return Err(e),
        };
        let lender = lender.page();
        if id.level == 0 {
            budget.spend(1);
            self.lower_all(&content, lender)?;
            self.let_go(page, account.lender)?;
            return Ok(None);
        }
        let mut rest = Box::new(Block(*content));
        for slot in 0..FANOUT {
            let child = page::pointer(&content, slot);
            if child.is_none() {
                continue;
            }
            let left = if counts_for_child(&child, slot, lender) {
                self.take(child_id(id, slot), &child, budget)?
            } else if budget.is_spent() {
                Some(child)
            } else {
                None
            };
            page::set_pointer(&mut rest, slot, &left.unwrap_or_default());
            if budget.is_spent() {
                break;
            }
        }
        if page::body(&rest.0).iter().all(|&byte| byte == 0) {
            self.let_go(page, account.lender)?;
            return Ok(None);
        }
        let new = self.store.write(id, rest)?;
        self.let_go(page, None)?;
        self.accounts.begin(new.address, account.lender);
        Ok(Some(new))
    }

    /// A page of a map that leaves can't be read, or what it borrows from: it is free, and what it
    /// names stays counted.
    fn give_up(
        &mut self,
        page: &Pointer,
        lender: Option<Pointer>,
        budget: &mut Budget,
    ) -> Result<Option<Pointer>> {
        budget.spend(1);
        self.store.inexact();
        self.let_go(page, lender)?;
        Ok(None)
    }
}
