//! Sets of physical blocks.

use std::{collections::BTreeMap, ops::Range};

use onefold_core::{Pba, ZoneId};

use crate::format::{geometry::Geometry, zone_bitmap::ZoneBitmap};

/// Blocks, one bit each, in zones that hold any.
pub(crate) struct BlockSet {
    geometry: Geometry,
    zones: BTreeMap<u64, ZoneBitmap>,
}

impl BlockSet {
    pub(crate) fn new(geometry: Geometry) -> BlockSet {
        BlockSet { geometry, zones: BTreeMap::new() }
    }

    /// Adds a block; true when it is new.
    pub(crate) fn insert(&mut self, pba: Pba) -> bool {
        self.zones
            .entry(self.geometry.zone_of(pba).0)
            .or_default()
            .set(self.geometry.offset_of(pba))
    }

    /// Adds blocks of one zone.
    pub(crate) fn add(&mut self, zone: ZoneId, blocks: &ZoneBitmap) {
        if blocks.count() > 0 {
            self.zones.entry(zone.0).or_default().add(blocks);
        }
    }

    /// Adds all blocks of another set.
    pub(crate) fn add_all(&mut self, other: &BlockSet) {
        other.zones.iter().for_each(|(&zone, blocks)| self.add(ZoneId(zone), blocks));
    }

    pub(crate) fn contains(&self, pba: Pba) -> bool {
        self.zones
            .get(&self.geometry.zone_of(pba).0)
            .is_some_and(|zone| zone.get(self.geometry.offset_of(pba)))
    }

    /// How many blocks there are.
    pub(crate) fn len(&self) -> u64 {
        self.zones.values().map(ZoneBitmap::count).sum()
    }

    /// The blocks of one zone.
    pub(crate) fn zone(&self, zone: u64) -> ZoneBitmap {
        self.zones.get(&zone).copied().unwrap_or_default()
    }

    /// Zones that hold any, within a range.
    pub(crate) fn zones(&self, zones: Range<u64>) -> impl Iterator<Item = (u64, &ZoneBitmap)> {
        self.zones.range(zones).map(|(&zone, bitmap)| (zone, bitmap))
    }
}
