//! Accounts of map pages that several maps share: table 8.

use onefold_core::Block;

use super::{
    page::{Page, Pointer, SHARE_BYTES, body, body_mut},
    record::from_low_bytes,
};

/// The account of a map page: how many entries count for it, how many pages borrow from it, and
/// from which one it borrows itself.
///
/// An entry of a page counts for what it names unless the page's lender has the same entry in the
/// same place. Roots in the catalogue always count. A page is free when nothing counts for it and
/// no page borrows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Entries that count for the page, less than 2^31.
    pub count: u32,
    /// Pages whose lender it is.
    pub borrowers: u32,
    /// The page that it was copied from, which others still need.
    pub lender: Option<Pointer>,
}

impl Default for Share {
    /// A page that is one map's alone.
    fn default() -> Share {
        Share { count: 1, borrowers: 0, lender: None }
    }
}

/// Set in the count of every entry: a page that nothing counts for, and that neither borrows nor
/// lends, has an entry as well.
const THERE: u32 = 1 << 31;

impl Share {
    /// Bytes of an entry.
    pub const BYTES: usize = SHARE_BYTES;

    /// True for a page that nothing counts for.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.count == 0
    }

    /// True when the page is needed by nobody.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.count == 0 && self.borrowers == 0
    }

    /// True when one entry counts for the page and no page borrows from it.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.count == 1 && self.borrowers == 0
    }

    /// Entry number `slot` of a leaf.
    #[must_use]
    pub fn get(page: &Page, slot: u64) -> Share {
        let bytes = &body(page)[slot as usize * Self::BYTES..][..Self::BYTES];
        let count = from_low_bytes(&bytes[..4]) as u32;
        if count & THERE == 0 {
            return Share::default();
        }
        let lender = Pointer::decode(&bytes[8..]);
        Share {
            count: count & !THERE,
            borrowers: from_low_bytes(&bytes[4..8]) as u32,
            lender: (!lender.is_none()).then_some(lender),
        }
    }

    /// Sets entry number `slot` of a leaf.
    pub fn set(&self, page: &mut Block, slot: u64) {
        let bytes = &mut body_mut(page)[slot as usize * Self::BYTES..][..Self::BYTES];
        bytes.fill(0);
        if *self != Share::default() {
            bytes[..4].copy_from_slice(&(self.count.min(THERE - 1) | THERE).to_le_bytes());
            bytes[4..8].copy_from_slice(&self.borrowers.to_le_bytes());
            bytes[8..].copy_from_slice(&self.lender.unwrap_or_default().encode());
        }
    }
}
