//! The accounts of shared pages, beside what the maps say of them.

use std::collections::BTreeMap;

use onefold_core::Pba;

use crate::format::{
    page::{PageId, Pointer},
    share::Share,
};

/// A page that table 8 has.
#[derive(Clone, Copy, Default)]
pub(super) struct Account {
    pub(super) share: Share,
    /// Entries that count for it, as far as they were seen.
    pub(super) named: u32,
    pub(super) borrowers: u32,
    /// How it was named first.
    pub(super) known: Option<(PageId, Pointer)>,
}

/// The accounts, and what the maps say.
#[derive(Default)]
pub(super) struct Accounts {
    pub(super) pages: BTreeMap<Pba, Account>,
}
