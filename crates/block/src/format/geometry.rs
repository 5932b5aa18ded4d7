//! Where things lie on the disk.
//!
//! ```text
//! block 0         superblock, first place
//! block 8         superblock, second place
//! block 16 + 2i   zone list page i, first place; block 17 + 2i its second place
//! after the list  leftover table page i at 2i, its second place behind it (with `leftover = table` only)
//! zone f …        the zones that hold data, carriers and table pages; f is the first zone after all that
//! ```

use onefold_core::{Error, Kind, Pba, Result, ZoneId};

use super::choices::Leftover;

/// The two places of the superblock.
pub const SUPERBLOCKS: [Pba; 2] = [Pba(0), Pba(8)];

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

/// The sizes that follow from a store's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of a zone; a power of two.
    pub zone_blocks: u64,
    /// All zones, the fixed ones included.
    pub zones: u64,
    /// Pages of the zone list.
    pub list_pages: u32,
    /// Pages of the leftover table; none with `leftover = log`.
    pub leftover_pages: u32,
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
        // A quarter of the zones may wait for a checkpoint at once, at most what the largest list
        // holds.
        let per_page = super::zone_list::PER_PAGE as u64;
        let list_pages = (zones / 4).div_ceil(per_page).clamp(1, u64::from(LIST_PAGES_MAX)) as u32;
        let leftover_pages = match leftover {
            Leftover::Log => 0,
            Leftover::Table => {
                (blocks / BLOCKS_PER_LEFTOVER_PAGE).clamp(1, u64::from(LEFTOVER_PAGES_MAX)) as u32
            }
        };
        Geometry { zone_blocks: u64::from(zone_blocks), zones, list_pages, leftover_pages }
            .checked(blocks)
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
        if self.zones.saturating_mul(self.zone_blocks) > Pba::MAX.0
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
        (self.zones - self.first_zone().0) * self.zone_blocks
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
        (self.first_zone().0 * self.zone_blocks..self.blocks()).contains(&pba.0)
    }

    /// The two places of a zone list page.
    #[must_use]
    pub fn list_page(&self, page: u32) -> [Pba; 2] {
        let first = LIST_AT + 2 * u64::from(page);
        [Pba(first), Pba(first + 1)]
    }

    fn leftover_at(&self) -> u64 {
        LIST_AT + 2 * u64::from(self.list_pages)
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
