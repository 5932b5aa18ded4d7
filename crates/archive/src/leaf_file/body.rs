//! The bytes of a leaf: its head, which says where it lies and what it is, its entries, and zeroes to
//! the end of its pages.

use super::place::{Extent, LeafPlace, PAGE_BYTES};
use crate::format::bytes::{Reader, Writer};

const MAGIC: &[u8; 8] = b"ONEFROWS";

const HEADER_BYTES: usize = 32;

/// Which leaf it is, and its entries.
pub(crate) struct LeafBody<'a> {
    /// The table.
    pub(crate) table: u8,
    /// How many entries.
    pub(crate) count: usize,
    /// The bytes of the entries.
    pub(crate) entries: &'a [u8],
}

impl LeafBody<'_> {
    /// Pages of one copy, with so many free bytes at the end.
    pub(super) fn pages(&self, tail: usize) -> usize {
        (HEADER_BYTES + self.entries.len() + tail).div_ceil(PAGE_BYTES)
    }

    /// The bytes of a copy at this place, written for snapshot `number`.
    pub(super) fn encode(&self, number: u64, place: LeafPlace) -> Vec<u8> {
        let bytes = place.pages as usize * PAGE_BYTES;
        let mut w = Writer(Vec::with_capacity(bytes));
        w.raw(MAGIC).u64(number).u32(place.page).u32(place.pages);
        w.u32(u32::from(self.table)).u32(self.count as u32).raw(self.entries);
        w.0.resize(bytes, 0);
        w.0
    }
}

/// The pages that a leaf says it lies on, its table, how many entries it has, and their bytes.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Extent, u8, usize, &[u8])> {
    let r = &mut Reader(bytes, None);
    let is_leaf = r.take(8).ok()? == MAGIC;
    let (_, pages, table, count) =
        (r.u64().ok()?, (r.u32().ok()?, r.u32().ok()?), r.u32().ok()?, r.u32().ok()?);
    let table = u8::try_from(table).ok().filter(|_| is_leaf)?;
    Some((pages, table, count as usize, r.0))
}
