//! Maps that share pages: what snapshots and clones are made of.
//!
//! A *map* is the tree of a volume, of a snapshot, or of what was deleted and is *leaving*. A
//! *family* is the maps whose pages bear one map number. A snapshot is one name more for its
//! volume's top page. A changed page is copied, and the page that others still need becomes the
//! *lender* of the copy: an entry of the copy counts for what it names only where it differs. So a
//! change after a snapshot touches the counts of what changed, and of nothing beside it.
//!
//! A page that nothing counts for, but others borrow from, is an *orphan*. Its own entries count
//! until it is handed over: its oldest borrower becomes the lender of the others, and inherits the
//! orphan's lender.
//!
//! *Invariants.* Whatever a live page names counts at least 1: one follows the lenders to the
//! oldest that has the entry. A page with borrowers is neither freed nor written over. Entries that
//! did not change touch no count.
//!
//! | step of a checkpoint | what it does |
//! |---|---|
//! | [`relocate`] | puts copies of blocks into all pages that name them, before all else |
//! | [`orphans`] | hands orphans over, youngest first, when nothing is leaving |
//! | [`leaving`] | takes leaving maps apart, from the left |
//! | [`rewrite`] | carries changes into the maps of volumes |
//!
//! A page of an old snapshot that can't be read makes counts too high, never too low, and stops
//! nothing: see [`Lender`], and [`MapStore::inexact`]. A repair counts anew.
//!
//! Nothing here does I/O: a [`MapStore`] has the pages and the accounts of the last checkpoint. All
//! work is bounded by a [`Budget`].

pub(crate) mod accounts;
mod leaving;
mod orphans;
mod relocate;
mod rewrite;
mod survey;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::Arc;

use onefold_core::{Block, Pba, Result};

pub(crate) use self::{
    accounts::Accounts,
    leaving::Leaving,
    orphans::{Handed, Orphan},
    survey::{Place, Seen, Survey, Surveyed, Top},
    waiting::Waiting,
};
use crate::{
    format::{
        page::{self, FANOUT, MapEntry, Page, PageId, Pointer, Table},
        record::WindowNumber,
        share::Share,
    },
    rules::Rule,
};

/// The pages of maps and their accounts, as of the last checkpoint.
pub(crate) trait MapPages {
    /// Reads pages of maps together, each with its own result.
    fn read(&mut self, pages: &[(PageId, Pointer)]) -> Vec<Result<Arc<Page>>>;

    /// The account of a page as of the last checkpoint.
    ///
    /// # Errors
    /// `Io` or `Corrupt`.
    fn share(&mut self, page: Pba) -> Result<Share>;

    /// True when the steps keep this rule.
    fn keeps(&self, rule: Rule) -> bool {
        let _ = rule;
        true
    }
}

/// The pages of maps, and the counts of what they name, as a checkpoint changes them.
pub(crate) trait MapStore: MapPages {
    /// Writes a new page. It is of the checkpoint's age, or was born earlier.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    fn write_of(
        &mut self,
        id: PageId,
        page: Box<Block>,
        birth: Option<WindowNumber>,
    ) -> Result<Pointer>;

    /// Writes a new page of the checkpoint's age.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    fn write(&mut self, id: PageId, page: Box<Block>) -> Result<Pointer> {
        self.write_of(id, page, None)
    }

    /// A page is free when the checkpoint is durable.
    fn release(&mut self, page: Pba);

    /// One more entry counts for a block.
    fn raise(&mut self, entry: MapEntry);

    /// One entry less counts for a block.
    fn lower(&mut self, entry: MapEntry);
    /// A page can't be read, so that counts may be too high from now on.
    fn inexact(&mut self);
    /// True when counts may be too high, because pages could not be read.
    fn is_inexact(&self) -> bool;
}

/// How much a checkpoint may do for what nobody waits for: leaves, borrowers, and pointers to pages
/// that stay, one each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget(pub(crate) usize);

impl Budget {
    fn is_spent(self) -> bool {
        self.0 == 0
    }

    fn spend(&mut self, pieces: usize) {
        self.0 = self.0.saturating_sub(pieces);
    }
}

/// The sharing of pages, as a checkpoint changes it.
pub(crate) struct Sharing<'s, S> {
    pub(super) store: &'s mut S,
    pub(super) accounts: Accounts,
    /// Pages that nothing counts for, since this checkpoint.
    pub(super) orphaned: Vec<Orphan>,
}

impl<'s, S: MapStore> Sharing<'s, S> {
    /// Of a checkpoint that begins.
    pub(crate) fn new(store: &'s mut S) -> Sharing<'s, S> {
        Sharing { store, accounts: Accounts::default(), orphaned: Vec::new() }
    }

    /// One more map has this top page: a snapshot or a clone.
    pub(crate) fn name(&mut self, page: &Pointer) -> Result<()> {
        self.accounts.name(self.store, page.address).map(drop)
    }

    /// Whether a page is one map's alone, so that its entries may be let go of with it.
    fn is_alone(&mut self, page: &Pointer) -> Result<bool> {
        Ok(self.accounts.get(self.store, page.address)?.is_alone())
    }

    /// One entry less counts for a page that somebody still needs, or may.
    fn unname(&mut self, id: PageId, page: &Pointer) -> Result<()> {
        if self.accounts.unname(self.store, page.address)?.is_orphan() {
            self.orphaned.push(Orphan { id, page: *page });
        }
        Ok(())
    }

    fn read(&mut self, id: PageId, page: &Pointer) -> Result<Arc<Page>> {
        let mut read = self.store.read(&[(id, *page)]);
        read.pop().unwrap_or_else(|| {
            Err(onefold_core::Error::new(onefold_core::Kind::Io, "a page of a map vanished"))
        })
    }

    /// A page, and that of its lender.
    fn read_with_lender(
        &mut self,
        id: PageId,
        page: &Pointer,
        lender: Option<Pointer>,
    ) -> Result<(Arc<Page>, Lender<Arc<Page>>)> {
        let lender = self.read_lender(id, lender)?;
        Ok((self.read(id, page)?, lender))
    }

    /// The page that a page at this place borrows from.
    fn read_lender(&mut self, id: PageId, lender: Option<Pointer>) -> Result<Lender<Arc<Page>>> {
        let Some(lender) = lender else { return Ok(Lender::None) };
        let read = self.read(id, &lender);
        self.lender(read)
    }

    /// The lender of a page as it was read.
    fn lender<P>(&mut self, read: Result<P>) -> Result<Lender<P>> {
        match read {
            Ok(page) => Ok(Lender::Known(page)),
            Err(e) if is_unread(&e) => {
                self.store.inexact();
                Ok(Lender::Unread)
            }
            Err(e) => Err(e),
        }
    }

    /// True when what happens to a page that is one map's alone may happen to this one.
    fn may_go(&self, account: &Share) -> bool {
        let borrowed = account.borrowers > 0 && self.store.keeps(Rule::BorrowersKeepPage);
        account.count == 1 && !borrowed
    }

    /// Lets a page go: it is free, and borrows no more.
    fn let_go(&mut self, page: &Pointer, lender: Option<Pointer>) -> Result<()> {
        self.store.release(page.address);
        self.accounts.end(page.address);
        if let Some(lender) = lender {
            self.accounts.give_back(self.store, lender.address)?;
        }
        Ok(())
    }

    /// The entries of a leaf do not count any more.
    fn lower_all(&mut self, page: &Page, lender: Option<&Page>) -> Result<()> {
        for slot in 0..Table::Map.per_leaf() {
            let entry = entry(page, slot)?;
            if counts(entry, lender.map(|lender| self::entry(lender, slot)).transpose()?) {
                self.store.lower(entry);
            }
        }
        Ok(())
    }
}

/// The page that a page borrows from.
///
/// *A lender that can't be read* counts as equal everywhere before a change, and as different
/// everywhere after it, and lends no more. So counts become too high at most.
#[derive(Clone, Copy)]
enum Lender<P> {
    /// There is none: all entries count.
    None,
    /// Entries count where they differ from its own.
    Known(P),
    /// No entry is known to count.
    Unread,
}

impl<P: std::ops::Deref<Target = Page>> Lender<P> {
    fn page(&self) -> Option<&Page> {
        match self {
            Lender::Known(page) => Some(page),
            Lender::None | Lender::Unread => None,
        }
    }

    fn is_unread(&self) -> bool {
        matches!(self, Lender::Unread)
    }
}

/// True when an error means that a page can't be read, and not that there is no room or time.
fn is_unread(error: &onefold_core::Error) -> bool {
    matches!(error.kind(), onefold_core::Kind::Corrupt | onefold_core::Kind::Io)
}

/// An entry of a leaf.
fn entry(page: &Page, slot: u64) -> Result<MapEntry> {
    MapEntry::get(page, slot).ok_or_else(|| {
        onefold_core::Error::new(onefold_core::Kind::Corrupt, "a map entry is damaged")
    })
}

/// Whether an entry of a leaf counts for its block, whose lender has another in its place.
pub(crate) fn counts(entry: MapEntry, lender: Option<MapEntry>) -> bool {
    matches!(entry, MapEntry::Block { .. }) && lender != Some(entry)
}

/// Whether pointer number `slot` counts for its child.
pub(crate) fn counts_for_child(child: &Pointer, slot: u64, lender: Option<&Page>) -> bool {
    !child.is_none() && lender.is_none_or(|lender| page::pointer(lender, slot) != *child)
}

/// The child number `slot` of an inner page.
pub(crate) fn child_id(id: PageId, slot: u64) -> PageId {
    PageId {
        level: id.level - 1,
        index: id.index.saturating_mul(FANOUT).saturating_add(slot),
        ..id
    }
}
