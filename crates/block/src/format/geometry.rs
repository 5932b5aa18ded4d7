//! Where things lie on the disk.
//!
//! ```text
//! block 0         superblock, first place
//! block 8         superblock, second place
//! block 16 + 2i   zone list page i, first place; block 17 + 2i its second place
//! after the list  leftover table page i at 2i, its second place behind it (with `leftover = table` only)
//! zone f …        the zones that hold data, carriers and table pages; f is the first zone after all that
//! ```
//!
//! A store that grows until it wants more list pages than it was made with gets its list in zones of
//! the new room: they are fixed from then on, like those below *f*, and the old places stay unused.

use std::ops::Range;

use onefold_core::{Error, Kind, Pba, Result, ZoneId};

use super::choices::Leftover;

/// The two places of the superblock.
pub const SUPERBLOCKS: [Pba; 2] = [Pba(0), Pba(8)];

/// The first blocks of the two copies of a sealed store's key area, of three blocks each.
pub const KEY_AREAS: [Pba; 2] = [Pba(1), Pba(9)];

/// First block of the zone list.
const LIST_AT: u64 = 16;

/// Zones have between 16 and 1024 blocks; 1024 (4 MiB) is ThinDedup's, and small ones let
/// simulations reach every state.
pub const ZONE_BLOCKS_MIN: u32 = 16;
/// See [`ZONE_BLOCKS_MIN`].
pub const ZONE_BLOCKS_MAX: u32 = 1024;

/// Fewest zones of a store besides the fixed ones: data, tables, their shadows and the reserve.
pub const ZONES_MIN: u64 = 8;

/// Largest number of zone list pages: 74 pages list 2,072 zones, so that a recovery scan stays
/// short.
pub const LIST_PAGES_MAX: u32 = 74;

/// Largest number of leftover table pages: they have room for the records that may wait for a
/// checkpoint, and are read at each opening after a crash.
pub const LEFTOVER_PAGES_MAX: u32 = 16384;

/// Blocks of a store for each leftover table page.
const BLOCKS_PER_LEFTOVER_PAGE: u64 = 64;

/// The largest store: addresses of blocks have 40 bits.
const BLOCKS_MAX: u64 = Pba::MAX.0;

/// The sizes that follow from a store's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of a zone; a power of two.
    pub zone_blocks: u64,
    /// All zones, the fixed ones included.
    pub zones: u64,
    /// Pages of the zone list.
    pub list_pages: u32,
    /// Pages that the zone list had when the store was made: there is room for so many before the
    /// leftover table.
    pub first_list_pages: u32,
    /// The first block of a zone list that moved when the store grew; 0 while it is where it was when
    /// the store was made.
    pub moved_list: u64,
    /// Pages of the leftover table; none with `leftover = log`.
    pub leftover_pages: u32,
}

/// Pages of the zone list of a store with so many zones: a quarter of them may wait for a checkpoint
/// at once, at most what the largest list holds.
#[must_use]
pub fn list_pages_for(zones: u64) -> u32 {
    let per_page = super::zone_list::PER_PAGE as u64;
    (zones / 4).div_ceil(per_page).clamp(1, u64::from(LIST_PAGES_MAX)) as u32
}

impl Geometry {
    /// The geometry of a store of `blocks` blocks with zones of `zone_blocks`.
    ///
    /// # Errors
    /// `InvalidInput` when it is too small, too large, or the zone size is not a power of two in
    /// the allowed range.
    pub fn new(blocks: u64, zone_blocks: u32, leftover: Leftover) -> Result<Geometry> {
        if !zone_blocks.is_power_of_two()
            || !(ZONE_BLOCKS_MIN..=ZONE_BLOCKS_MAX).contains(&zone_blocks)
        {
            return Err(Error::new(
                Kind::InvalidInput,
                format!("a zone of {zone_blocks} blocks is not possible"),
            ));
        }
        let zones = blocks / u64::from(zone_blocks);
        let list_pages = list_pages_for(zones);
        let leftover_pages = match leftover {
            Leftover::Log => 0,
            Leftover::Table => {
                (blocks / BLOCKS_PER_LEFTOVER_PAGE).clamp(1, u64::from(LEFTOVER_PAGES_MAX)) as u32
            }
        };
        Geometry {
            zone_blocks: u64::from(zone_blocks),
            zones,
            list_pages,
            first_list_pages: list_pages,
            moved_list: 0,
            leftover_pages,
        }
        .checked(blocks)
    }

    /// The geometry of the same store with `blocks` blocks, rounded down to whole zones. When a
    /// quarter of its zones wants more pages of the zone list than there are, the list moves into
    /// the first of the new zones.
    ///
    /// # Errors
    /// `InvalidInput` when that is less than the store has, too little for the list to move, or more
    /// than 4 PiB.
    pub fn grown(&self, blocks: u64) -> Result<Geometry> {
        let refuse = |what: String| Err(Error::new(Kind::InvalidInput, what));
        if blocks > BLOCKS_MAX {
            return refuse("a store has at most 4 PiB".to_owned());
        }
        let zones = blocks / self.zone_blocks;
        if zones < self.zones {
            let mib = (self.blocks() * 4096) >> 20;
            return refuse(format!(
                "the store has {mib} MiB, and a store is never made smaller: make a smaller one, and copy the volumes into it"
            ));
        }
        let list_pages = list_pages_for(zones);
        let mut grown = Geometry { zones, ..*self };
        if list_pages > self.list_pages {
            (grown.list_pages, grown.moved_list) = (list_pages, self.blocks());
        }
        if zones > self.zones && grown.usable_blocks() <= self.usable_blocks() {
            let least = zones + grown.list_zones().count() as u64;
            let mib = (least * self.zone_blocks * 4096).div_ceil(1 << 20);
            return refuse(format!(
                "a store that grows so little would gain nothing: its zone list needs more room as well; make it {mib} MiB or more"
            ));
        }
        Ok(grown)
    }

    /// The zones that hold a zone list that moved, and nothing else.
    #[must_use]
    pub fn list_zones(&self) -> Range<u64> {
        if self.moved_list == 0 {
            return 0..0;
        }
        let end = self.moved_list.saturating_add(2 * u64::from(self.list_pages));
        self.moved_list / self.zone_blocks..end.div_ceil(self.zone_blocks)
    }

    /// True when a zone list that moved begins a zone, and lies within those that are not fixed.
    #[must_use]
    pub(crate) fn list_is_within(&self) -> bool {
        let zones = self.list_zones();
        self.moved_list.is_multiple_of(self.zone_blocks)
            && zones.start >= self.first_zone().0
            && zones.end <= self.zones
    }

    /// True for zones that hold data, carriers and table pages.
    #[must_use]
    pub fn has_zone(&self, zone: ZoneId) -> bool {
        (self.first_zone().0..self.zones).contains(&zone.0) && !self.list_zones().contains(&zone.0)
    }

    /// Blocks of the zones from `from` up to `end` that hold data, carriers and table pages.
    #[must_use]
    pub fn usable_within(&self, from: u64, end: u64) -> u64 {
        let from = from.max(self.first_zone().0);
        let list = self.list_zones();
        let fixed = list.end.min(end).saturating_sub(list.start.max(from));
        (end.saturating_sub(from) - fixed) * self.zone_blocks
    }

    /// The same geometry, when a disk of `blocks` blocks can hold it.
    ///
    /// # Errors
    /// `InvalidInput` with the least size when it can't.
    pub fn checked(self, blocks: u64) -> Result<Geometry> {
        let least = (self.first_zone().0 + ZONES_MIN) * self.zone_blocks;
        if blocks < least || self.zones < self.first_zone().0 + ZONES_MIN {
            let mib = (least * 4096).div_ceil(1 << 20);
            return Err(Error::new(
                Kind::InvalidInput,
                format!("a store needs at least {mib} MiB"),
            ));
        }
        if self.zones.saturating_mul(self.zone_blocks) > BLOCKS_MAX
            || self.zones * self.zone_blocks > blocks
        {
            return Err(Error::new(
                Kind::InvalidInput,
                "the store is larger than its disk, or than 4 PiB",
            ));
        }
        Ok(self)
    }

    /// Blocks that belong to zones, the fixed ones included.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.zones * self.zone_blocks
    }

    /// The first zone that is not fixed.
    #[must_use]
    pub fn first_zone(&self) -> ZoneId {
        ZoneId((self.leftover_at() + 2 * u64::from(self.leftover_pages)).div_ceil(self.zone_blocks))
    }

    /// Blocks in zones that are not fixed.
    #[must_use]
    pub fn usable_blocks(&self) -> u64 {
        self.usable_within(0, self.zones)
    }

    /// The zone of a block.
    #[must_use]
    pub fn zone_of(&self, pba: Pba) -> ZoneId {
        ZoneId(pba.0 / self.zone_blocks)
    }

    /// The position of a block in its zone.
    #[must_use]
    pub fn offset_of(&self, pba: Pba) -> usize {
        (pba.0 % self.zone_blocks) as usize
    }

    /// The first block of a zone.
    #[must_use]
    pub fn start_of(&self, zone: ZoneId) -> Pba {
        Pba(zone.0 * self.zone_blocks)
    }

    /// True for blocks of zones that are not fixed.
    #[must_use]
    pub fn holds(&self, pba: Pba) -> bool {
        self.has_zone(self.zone_of(pba))
    }

    /// The two places of a zone list page.
    #[must_use]
    pub fn list_page(&self, page: u32) -> [Pba; 2] {
        let list = if self.moved_list == 0 { LIST_AT } else { self.moved_list };
        let first = list + 2 * u64::from(page);
        [Pba(first), Pba(first + 1)]
    }

    fn leftover_at(&self) -> u64 {
        LIST_AT + 2 * u64::from(self.first_list_pages)
    }

    /// The two places of a leftover table page.
    #[must_use]
    pub fn leftover_page(&self, page: u32) -> [Pba; 2] {
        let first = self.leftover_at() + 2 * u64::from(page);
        [Pba(first), Pba(first + 1)]
    }

    /// The leftover table page, and which of its places, that a block is.
    #[must_use]
    pub fn leftover_place(&self, pba: Pba) -> Option<(u32, usize)> {
        let n = pba
            .0
            .checked_sub(self.leftover_at())
            .filter(|&n| n < 2 * u64::from(self.leftover_pages))?;
        Some(((n / 2) as u32, (n % 2) as usize))
    }

    /// Zones that the list has room for.
    #[must_use]
    pub fn list_slots(&self) -> usize {
        self.list_pages as usize * super::zone_list::PER_PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_grows_by_whole_zones_and_its_list_moves_when_it_wants_more_pages() {
        let small = Geometry::new(64 * 100, 64, Leftover::Table).unwrap();
        assert_eq!((small.list_pages, small.moved_list), (1, 0));
        let same = small.grown(64 * 115 + 63).unwrap();
        assert_eq!((same.zones, same.list_pages, same.moved_list), (115, 1, 0));
        let moved = same.grown(64 * 300).unwrap();
        assert_eq!((moved.list_pages, moved.moved_list), (3, 64 * 115));
        assert_eq!(moved.first_zone(), small.first_zone(), "what is fixed stays where it is");
        assert_eq!(moved.leftover_page(0), small.leftover_page(0));
        assert_eq!(moved.list_page(1), [Pba(64 * 115 + 2), Pba(64 * 115 + 3)]);
        assert!(!moved.has_zone(ZoneId(115)) && moved.has_zone(ZoneId(116)));
        assert_eq!(moved.usable_blocks(), small.usable_blocks() + 64 * 199);
        assert_eq!(moved.usable_within(100, 116), 64 * 15);
        let again = moved.grown(64 * 1000).unwrap();
        assert_eq!(again.list_zones(), 300..301, "the zone of the list before is free");
    }

    #[test]
    fn a_store_never_shrinks_nor_grows_in_vain() {
        let small = Geometry::new(64 * 115, 64, Leftover::Log).unwrap();
        for (blocks, says) in [(64 * 114, "never made smaller"), (64 * 116, "gain nothing")] {
            let refused = small.grown(blocks).unwrap_err();
            assert_eq!(refused.kind(), Kind::InvalidInput);
            assert!(refused.to_string().contains(says), "{refused}");
        }
        assert_eq!(small.grown(64 * 115).unwrap(), small);
        assert!(small.grown(64 * 117).unwrap().usable_blocks() > small.usable_blocks());
        assert!(small.grown(1 << 41).is_err());
    }
}
