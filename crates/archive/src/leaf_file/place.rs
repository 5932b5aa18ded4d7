//! Where a leaf lies in the file.

use onefold_core::Result;

use crate::format::bytes::{Reader, Writer, corrupt};

/// The file.
pub(crate) const LEAVES: &str = "tables";

pub(super) const PAGE_BYTES: usize = 4096;

/// Pages of the file at most: 8 TiB.
pub(super) const PAGES_MAX: u32 = 1 << 31;

/// Bytes of a place in a directory.
const PLACE_BYTES: usize = 16;

/// Memory of a leaf besides its entries, and of its place.
const LEAF_MEMORY: usize = 256;

/// Where a leaf lies in the file, and what its bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeafPlace {
    /// The first page.
    pub page: u32,
    /// Pages of one copy.
    pub pages: u32,
    /// The checksum of these pages.
    pub checksum: u64,
}

/// Pages that lie one behind the other: the first, and how many.
pub(super) type Extent = (u32, u32);

impl LeafPlace {
    /// The pages of both copies.
    pub(super) fn extent(self) -> Extent {
        (self.page, 2 * self.pages)
    }

    /// The first byte of a copy: 0 or 1.
    pub(super) fn at(self, copy: u32) -> u64 {
        u64::from(self.page + copy * self.pages) * PAGE_BYTES as u64
    }
}

/// Writes the places of a table's leaves.
pub(crate) fn encode_places(w: &mut Writer, places: &[LeafPlace]) {
    w.u32(places.len() as u32);
    for place in places {
        w.u32(place.page).u32(place.pages).u64(place.checksum);
    }
}

/// Reads the places of a table's leaves.
pub(crate) fn decode_places(r: &mut Reader<'_>) -> Result<Vec<LeafPlace>> {
    let count = r.count(PLACE_BYTES, LEAF_MEMORY)?;
    let place = |_| {
        let place = LeafPlace { page: r.u32()?, pages: r.u32()?, checksum: r.u64()? };
        in_file(place.page, place.pages.saturating_mul(2))?;
        Ok(place)
    };
    (0..count).map(place).collect()
}

/// Errors unless the file can have these pages.
pub(super) fn in_file(page: u32, pages: u32) -> Result<()> {
    match page.checked_add(pages).filter(|&end| pages > 0 && end <= PAGES_MAX) {
        Some(_) => Ok(()),
        None => Err(corrupt("a leaf of the tables can't lie there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_can_not_be_true_are_refused() {
        for (page, pages) in [(0, 0), (u32::MAX, 1), (0, u32::MAX), (PAGES_MAX, 1), (1, 1 << 31)] {
            let mut w = Writer::default();
            encode_places(&mut w, &[LeafPlace { page, pages, checksum: 7 }]);
            assert!(decode_places(&mut Reader(&w.0, None)).is_err(), "{page} {pages}");
        }
        assert!(decode_places(&mut Reader(&[255; 64], None)).is_err());
    }
}
