//! The accounts of map pages that several maps share, as a checkpoint changes them.

use std::collections::BTreeMap;

use onefold_core::{Error, Kind, Pba, Result};

use super::MapStore;
use crate::format::{page::Pointer, share::Share};

/// The accounts that changed since the last checkpoint, over those of its tables.
#[derive(Default)]
pub(crate) struct Accounts {
    changed: BTreeMap<Pba, Share>,
}

impl Accounts {
    /// The account of a page.
    pub(crate) fn get(&self, store: &mut impl MapStore, page: Pba) -> Result<Share> {
        match self.changed.get(&page) {
            Some(share) => Ok(*share),
            None => store.share(page),
        }
    }

    /// The accounts that changed, by page.
    pub(crate) fn changed(&self) -> &BTreeMap<Pba, Share> {
        &self.changed
    }

    /// A page is new, and named once.
    pub(super) fn begin(&mut self, page: Pba, lender: Option<Pointer>) {
        self.changed.insert(page, Share { lender, ..Share::default() });
    }

    /// A page is new, and has the account of the page whose place it takes.
    pub(super) fn begin_as(&mut self, page: Pba, share: Share) {
        self.changed.insert(page, share);
    }

    /// A page is free: its account is as if there were none.
    pub(super) fn end(&mut self, page: Pba) {
        self.changed.insert(page, Share::default());
    }

    /// One more entry counts for a page.
    pub(super) fn name(&mut self, store: &mut impl MapStore, page: Pba) -> Result<Share> {
        self.change(store, page, |share| share.count = share.count.saturating_add(1))
    }

    /// One entry less counts for a page.
    pub(super) fn unname(&mut self, store: &mut impl MapStore, page: Pba) -> Result<Share> {
        let before = self.get(store, page)?;
        if before.count == 0 {
            return Err(wrong(page, "counts 0 and loses a name"));
        }
        self.change(store, page, |share| share.count -= 1)
    }

    /// One more page borrows from a page.
    pub(super) fn borrow(&mut self, store: &mut impl MapStore, page: Pba) -> Result<Share> {
        self.change(store, page, |share| share.borrowers = share.borrowers.saturating_add(1))
    }

    /// One page less borrows from a page.
    pub(super) fn give_back(&mut self, store: &mut impl MapStore, page: Pba) -> Result<Share> {
        let before = self.get(store, page)?;
        if before.borrowers == 0 {
            return Err(wrong(page, "has no borrower and loses one"));
        }
        self.change(store, page, |share| share.borrowers -= 1)
    }

    /// A page has another lender.
    pub(super) fn lend(
        &mut self,
        store: &mut impl MapStore,
        page: Pba,
        lender: Option<Pointer>,
    ) -> Result<Share> {
        self.change(store, page, |share| share.lender = lender)
    }

    fn change(
        &mut self,
        store: &mut impl MapStore,
        page: Pba,
        change: impl FnOnce(&mut Share),
    ) -> Result<Share> {
        let mut share = self.get(store, page)?;
        change(&mut share);
        self.changed.insert(page, share);
        Ok(share)
    }
}

fn wrong(page: Pba, what: &str) -> Error {
    Error::new(Kind::Corrupt, format!("the map page at block {page} {what}"))
}
