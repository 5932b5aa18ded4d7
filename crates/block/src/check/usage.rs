//! The accounts of physical blocks while tables are compared: by the tables, and as
//! counted.
//!
//! Memory: 16 bytes for each block of a zone in use, for one stretch of zones at a time, so that
//! the whole stays within a bound.

use std::{collections::BTreeMap, ops::Range};

use onefold_core::{Fingerprint, Pba, ZoneId};

use crate::format::{
    geometry::Geometry,
    page::{Form, MapEntry, ReferenceEntry},
    zone_bitmap::ZoneBitmap,
};

/// Bytes for each block of a zone in use.
pub(crate) const FACT_BYTES: u64 = size_of::<Fact>() as u64;

/// The account of one block.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fact {
    pub(crate) prefix: u64,
    table: u32,
    /// Map entries that name it, with [`Fact::PACK`] if they name fragments of it.
    counted: u32,
}

impl Fact {
    /// The count in the table of references.
    pub(crate) fn references(&self) -> u32 {
        self.table & ReferenceEntry::SATURATED
    }

    pub(crate) fn carried(&self) -> bool {
        self.table >> 31 != 0
    }

    /// Set in the count of map entries: they name fragments.
    const PACK: u32 = 1 << 31;

    /// Map entries that name it.
    pub(crate) fn counted(&self) -> u32 {
        self.counted & !Fact::PACK
    }

    /// True when the first map entry that named it named a fragment.
    pub(crate) fn is_pack(&self) -> bool {
        self.counted & Fact::PACK != 0
    }

    /// One more map entry names it. Returns whether it is the first one.
    fn count(&mut self, form: Form) -> bool {
        let before = self.counted();
        if before == 0 && form.is_packed() {
            self.counted |= Fact::PACK;
        }
        self.counted += u32::from(before < ReferenceEntry::SATURATED);
        before == 0
    }

    fn set(&mut self, references: u32, carried: bool) {
        self.table = references | u32::from(carried) << 31;
    }
}

/// The blocks of one zone.
pub(crate) struct ZoneFacts {
    /// Its bitmap; `None` when the zone table can't tell.
    pub(crate) used: Option<ZoneBitmap>,
    pub(crate) blocks: Box<[Fact]>,
}

impl ZoneFacts {
    fn new(geometry: Geometry, used: Option<ZoneBitmap>) -> ZoneFacts {
        let blocks = vec![Fact::default(); geometry.zone_blocks as usize].into_boxed_slice();
        ZoneFacts { used, blocks }
    }
}

/// The verdict about a map entry.
pub(crate) enum Named {
    /// As the tables have it, as far as that can be told.
    Agrees,
    /// Its block is in another stretch.
    Elsewhere,
    /// Its block is free.
    Free,
    /// The tables say otherwise.
    Differs(&'static str),
}

/// The blocks of a stretch of zones.
pub(crate) struct Usage {
    geometry: Geometry,
    pub(crate) stretch: Range<u64>,
    pub(crate) zones: BTreeMap<u64, ZoneFacts>,
    dark: Dark,
}

/// The parts that can't be judged because pages are damaged: disjoint ranges, which rise.
#[derive(Clone, Default)]
pub(crate) struct Dark {
    /// Zones whose bitmap can't be read.
    pub(crate) zones: Vec<Range<u64>>,
    /// Blocks whose count can't be read.
    pub(crate) references: Vec<Range<u64>>,
    /// Blocks whose fingerprint can't be read.
    pub(crate) fingerprints: Vec<Range<u64>>,
    /// Any fingerprint may be missing, which reads as zeroes.
    pub(crate) may_lack: bool,
}

impl Dark {
    /// Adds a range that begins where the last one does, or later: part of it may be in that one.
    pub(crate) fn add(ranges: &mut Vec<Range<u64>>, more: Range<u64>) {
        let start = ranges.last().map_or(more.start, |last| more.start.max(last.end));
        if start < more.end {
            ranges.push(start..more.end);
        }
    }

    /// True when the zone table can't tell of a zone.
    pub(crate) fn has_zone(&self, zone: u64) -> bool {
        within(&self.zones, zone)
    }

    /// The same, and the zone table tells of no zone.
    pub(crate) fn of_all_zones(dark: &Dark) -> Dark {
        let everything = 0..u64::MAX;
        Dark { zones: Vec::from([everything]), ..dark.clone() }
    }
}

fn within(ranges: &[Range<u64>], n: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= n);
    after > 0 && ranges[after - 1].contains(&n)
}

impl Usage {
    pub(crate) fn new(geometry: Geometry, stretch: Range<u64>, dark: Dark) -> Usage {
        Usage { geometry, stretch, zones: BTreeMap::new(), dark }
    }

    /// For counting alone: no zone is taken for free.
    pub(crate) fn counting(geometry: Geometry, stretch: Range<u64>, dark: &Dark) -> Usage {
        Usage::new(geometry, stretch, Dark::of_all_zones(dark))
    }

    /// True when the table of references can't tell of a block.
    pub(crate) fn is_dark(&self, pba: Pba) -> bool {
        within(&self.dark.references, pba.0)
    }

    /// True when the table of fingerprints can't tell of a block.
    pub(crate) fn is_unknown(&self, pba: Pba) -> bool {
        within(&self.dark.fingerprints, pba.0)
    }

    /// Packs that map entries name.
    pub(crate) fn packs(&self) -> u64 {
        let facts = self.zones.values().flat_map(|zone| zone.blocks.iter());
        facts.filter(|fact| fact.is_pack()).count() as u64
    }

    /// True when the accounts of a block are these.
    pub(crate) fn has(&self, pba: Pba) -> bool {
        self.stretch.contains(&self.geometry.zone_of(pba).0)
    }

    /// True when the zone table can't tell of a zone.
    pub(crate) fn is_dark_zone(&self, zone: u64) -> bool {
        self.dark.has_zone(zone)
    }

    /// Notes the bitmap of a zone.
    pub(crate) fn zone(&mut self, zone: ZoneId, used: ZoneBitmap) {
        if self.stretch.contains(&zone.0) && used.count() > 0 {
            self.zones.insert(zone.0, ZoneFacts::new(self.geometry, Some(used)));
        }
    }

    /// The account of the zone of a block; `None` when it is free as a whole.
    fn facts(&mut self, pba: Pba) -> Option<&mut ZoneFacts> {
        let zone = self.geometry.zone_of(pba).0;
        if !self.zones.contains_key(&zone) {
            if !self.is_dark_zone(zone) {
                return None;
            }
            self.zones.insert(zone, ZoneFacts::new(self.geometry, None));
        }
        self.zones.get_mut(&zone)
    }

    /// The entry of a block in the table of references, as it was noted; 0 outside the stretch.
    pub(crate) fn known_references(&self, pba: Pba) -> u32 {
        let zone = self.zones.get(&self.geometry.zone_of(pba).0);
        zone.map_or(0, |zone| zone.blocks[self.geometry.offset_of(pba)].references())
    }

    /// Notes what the table of references says of a block; false when its zone is free as a whole.
    pub(crate) fn references(&mut self, pba: Pba, entry: &ReferenceEntry) -> bool {
        let offset = self.geometry.offset_of(pba);
        let Some(zone) = self.facts(pba) else { return false };
        zone.blocks[offset].set(entry.references, entry.carried);
        true
    }

    /// Notes the fingerprint of a block; references come first, as without them it means nothing.
    pub(crate) fn fingerprint(&mut self, pba: Pba, fingerprint: &Fingerprint) {
        let offset = self.geometry.offset_of(pba);
        let fact =
            self.zones.get_mut(&self.geometry.zone_of(pba).0).map(|zone| &mut zone.blocks[offset]);
        fact.into_iter()
            .filter(|fact| fact.references() > 0)
            .for_each(|fact| fact.prefix = fingerprint.prefix());
    }

    /// Counts a map entry, and compares it.
    pub(crate) fn count(&mut self, entry: &MapEntry) -> Named {
        let MapEntry::Block { pba, form, prefix } = *entry else { return Named::Elsewhere };
        if !self.has(pba) {
            return Named::Elsewhere;
        }
        let (offset, unknown, may_lack) =
            (self.geometry.offset_of(pba), self.is_unknown(pba), self.dark.may_lack);
        let Some(zone) = self.facts(pba) else { return Named::Free };
        let fact = &mut zone.blocks[offset];
        let is_first = fact.count(form);
        if zone.used.is_some_and(|used| !used.get(offset)) {
            return Named::Free;
        }
        // Of a block that nobody can tell of, the first map entry is believed.
        if is_first && fact.references() == 0 {
            fact.set(0, form.is_compressed());
            fact.prefix = if form.is_packed() { 0 } else { prefix };
        } else if form.is_packed() {
            // The prefix is that of a fragment, and the table has the pack's: who has read the pack compares them.
        } else if is_first && unknown {
            fact.prefix = prefix;
        }
        if fact.prefix == 0 && may_lack {
            fact.prefix = prefix;
        }
        if fact.prefix != prefix && !form.is_packed() {
            return Named::Differs("another fingerprint");
        }
        if fact.carried() != form.is_compressed() || fact.is_pack() != form.is_packed() {
            return Named::Differs("another kind of block (raw, in a carrier or in a pack)");
        }
        Named::Agrees
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dark_as_a_whole_stays_dark_beside_its_damaged_pages() {
        let mut dark = Dark::default();
        for range in [0..u64::MAX, 3..4, 7..9] {
            Dark::add(&mut dark.zones, range);
        }
        assert!([0, 3, 5, 8, 100].iter().all(|&zone| dark.has_zone(zone)));
        let mut parts = Vec::new();
        for range in [0..4, 2..6, 8..9] {
            Dark::add(&mut parts, range);
        }
        assert_eq!(parts, [0..4, 4..6, 8..9]);
    }
}
