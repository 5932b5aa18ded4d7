//! The durable changes that no checkpoint holds yet, as the read path sees them.
//!
//! Windows are published into the *active* overlay; the *frozen* one is that which a checkpoint is
//! writing into the tables. Between them are the *sealed* ones, each of a moment whose snapshots
//! must hold nothing newer: few, and mostly none. A block in an overlay is newer than a range in it
//! exactly when its window is not older.

mod overlays;

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    ops::Range,
};

use onefold_core::{Lba, Pba, VolumeId};
pub(crate) use overlays::{Overlays, Tables};

use crate::moments::Moment;

use crate::{
    format::{
        catalogue::CatalogueChange,
        page::{Form, MapEntry},
        record::{Change, Record, WindowNumber, from_low_bytes, low_bytes},
    },
    hash::{MixMap, MixSet},
    space::Extent,
    window::{
        Charge, Charged, Charges, Plan, Window,
        ranges::{Ranges, Span},
    },
};

/// The newest change of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) entry: MapEntry,
    pub(crate) window: WindowNumber,
}

/// An address in its volume's table; of the 48 bits that an address has, none is wasted on
/// alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key([u8; 6]);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(from_low_bytes(&self.0));
    }
}

/// As much of an [`Entry`] as is not the same for all.
#[derive(Clone, Copy)]
struct Packed {
    pba: [u8; 5],
    how: How,
    window: [u8; 6],
    prefix: [u8; 8],
}

/// Where the content of an address is.
#[derive(Clone, Copy)]
enum How {
    /// Stored as it is.
    Raw,
    /// In a carrier.
    Carried,
    /// Nowhere: it is lost.
    Lost,
}

/// The blocks that changed: a table for each volume, since there are a million of them.
#[derive(Default)]
struct Entries(BTreeMap<VolumeId, MixMap<Key, Packed>>);

impl Entries {
    fn insert(&mut self, volume: VolumeId, lba: Lba, entry: MapEntry, window: WindowNumber) {
        let (pba, how, prefix) = match entry {
            MapEntry::Block { pba, form: Form::Raw, prefix } => (pba, How::Raw, prefix),
            MapEntry::Block { pba, form: Form::Carried, prefix } => (pba, How::Carried, prefix),
            // No record names a fragment.
            MapEntry::Block { form: Form::Packed(_), .. } => {
                debug_assert!(false, "a record names a fragment");
                return;
            }
            MapEntry::Lost => (Pba(0), How::Lost, 0),
            MapEntry::Hole | MapEntry::Zero => return,
        };
        let packed = Packed {
            pba: low_bytes(pba.0),
            how,
            window: low_bytes(window.0),
            prefix: prefix.to_le_bytes(),
        };
        self.0.entry(volume).or_default().insert(Key(low_bytes(lba.0)), packed);
    }

    fn reserve(&mut self, records: &[Record]) {
        let mut counts: BTreeMap<VolumeId, usize> = BTreeMap::new();
        for record in records.iter().filter(|record| matches!(record.change, Change::Block { .. }))
        {
            *counts.entry(record.volume).or_default() += 1;
        }
        counts.into_iter().for_each(|(volume, n)| self.0.entry(volume).or_default().reserve(n));
    }

    fn get(&self, volume: VolumeId, lba: Lba) -> Option<Entry> {
        let Packed { pba, how, window, prefix } =
            *self.0.get(&volume)?.get(&Key(low_bytes(lba.0)))?;
        let block = |form| MapEntry::Block {
            pba: Pba(from_low_bytes(&pba)),
            form,
            prefix: u64::from_le_bytes(prefix),
        };
        let entry = match how {
            How::Raw => block(Form::Raw),
            How::Carried => block(Form::Carried),
            How::Lost => MapEntry::Lost,
        };
        Some(Entry { entry, window: WindowNumber(from_low_bytes(&window)) })
    }

    fn addresses(&self, volume: VolumeId) -> Vec<Lba> {
        let mut all: Vec<Lba> = self
            .0
            .get(&volume)
            .into_iter()
            .flatten()
            .map(|(key, _)| Lba(from_low_bytes(&key.0)))
            .collect();
        all.sort_unstable();
        all
    }

    fn len(&self) -> usize {
        self.0.values().map(MixMap::len).sum()
    }

    fn memory(&self) -> u64 {
        self.0.values().map(|table| table.capacity() as u64 * 8 / 7 * SLOT_BYTES + 64).sum()
    }
}

/// Bytes of an entry in a table: key, entry, and a byte of the table's own.
const SLOT_BYTES: u64 = size_of::<(Key, Packed)>() as u64 + 1;

const _: () = assert!(SLOT_BYTES == 27);

/// Changes since a checkpoint.
#[derive(Default)]
pub(crate) struct Overlay {
    entries: Entries,
    ranges: Ranges,
    catalogue: Vec<CatalogueChange>,
    /// Blocks that were handed out for windows published here.
    allocated: Vec<Extent>,
    /// Blocks stored before that records published here name.
    pins: MixSet<Pba>,
    /// With leaves in place: blocks that lost their last link.
    unlinked: Vec<Pba>,
    /// Links that were made, less links that were removed; and the same of blocks with
    /// links.
    mapped: i64,
    live: i64,
    /// Table pages that a checkpoint of all this must write: volume, level, number.
    dirty: DirtyPages,
    /// And those of maps that share pages, because blocks below them moved.
    shared_pages: u64,
    /// The last window published here.
    last: WindowNumber,
    /// Records published, superseded ones included.
    records: u64,
    /// Ranges among them: each may cut an older one in two.
    range_records: u64,
    /// Volumes that they make.
    created: u64,
    /// Carriers of the windows published: what a recovery has to read.
    carriers: u64,
    /// Charges for the blocks that this overlay adds to volumes and domains with a quota.
    charges: Charges,
    /// The moment at which nothing more is published here, and the acts that belong to it.
    moment: Option<Moment>,
}

impl Overlay {
    /// True when nothing was published.
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0
            && self.allocated.is_empty()
            && self.catalogue.is_empty()
            && self.unlinked.is_empty()
            && self.moment.is_none()
    }

    /// The moment of this overlay, when it is sealed.
    pub(crate) fn moment(&self) -> Option<&Moment> {
        self.moment.as_ref()
    }

    /// Publishes a window: its records are durable.
    pub(crate) fn publish_window(&mut self, window: &Window, plan: &Plan) {
        plan.records.iter().for_each(|record| self.publish(record));
        self.publish_own(window.number, plan.carriers.len(), plan.allocated());
        self.change(window.catalogue.iter().cloned());
        self.pin(plan.pins.iter().copied());
        self.charges.add_all(window.charges());
    }

    /// Charges what blocks published here add to a volume or a domain with a quota.
    pub(crate) fn charge(&mut self, charged: impl Into<Charged>, charge: Charge) {
        self.charges.add(charged.into(), charge);
    }

    /// The charge for blocks that are published here.
    pub(crate) fn charge_of(&self, charged: Charged) -> Charge {
        self.charges.of(charged)
    }

    /// How many addresses of a volume changed.
    pub(crate) fn changed_in(&self, volume: VolumeId) -> u64 {
        self.entries.0.get(&volume).map_or(0, |table| table.len() as u64)
    }

    /// Publishes what a window holds besides its records: a window of a recovery has only this.
    pub(crate) fn publish_own(
        &mut self,
        number: WindowNumber,
        carriers: usize,
        allocated: &[Extent],
    ) {
        self.carriers += carriers as u64;
        self.allocated.extend_from_slice(allocated);
        self.last = self.last.max(number);
    }

    /// Publishes one record; records come in the order of their timestamps.
    pub(crate) fn publish(&mut self, record: &Record) {
        let window = WindowNumber::of(record.timestamp);
        self.records += 1;
        match record.change {
            Change::Block { pba, carried, fingerprint } => {
                let form = Form::of(carried);
                let entry = MapEntry::Block { pba, form, prefix: fingerprint.prefix() };
                self.entries.insert(record.volume, record.lba, entry, window);
            }
            Change::Range { blocks, keep } => {
                self.range_records += 1;
                self.ranges.insert(
                    record.volume,
                    record.lba.0,
                    Span { end: record.lba.0 + blocks, keep, window },
                );
            }
            Change::Catalogue { .. } => {}
        }
        self.last = self.last.max(window);
    }

    /// Blocks of a volume are lost from `window` on. No record tells of them: they belong to an act.
    pub(crate) fn lose(&mut self, volume: VolumeId, blocks: Range<u64>, window: WindowNumber) {
        for lba in blocks.map(Lba) {
            self.entries.insert(volume, lba, MapEntry::Lost, window);
            self.records += 1;
            self.touch_block(volume, lba);
        }
    }

    /// Counts what a moved block changes in a checkpoint: as much as a record. It is no change of its
    /// address.
    pub(crate) fn count_move(&mut self, volume: VolumeId, lba: Lba) {
        self.records += 1;
        self.touch_block(volume, lba);
    }

    /// Counts pages of maps that a checkpoint writes, or whose accounts it changes, because blocks below
    /// them moved. Returns how many were counted before.
    pub(crate) fn count_shared_pages(&mut self, pages: u64) -> u64 {
        let before = self.shared_pages;
        self.shared_pages += pages;
        before
    }

    /// So many were counted before.
    pub(crate) fn set_shared_pages(&mut self, pages: u64) {
        self.shared_pages = pages;
    }

    /// Counts what a moved block of maps that share pages changes in a checkpoint, but for the pages of
    /// maps.
    pub(crate) fn count_shared_move(&mut self) {
        self.records += 1;
    }

    /// Pages of maps that change because blocks below them moved.
    pub(crate) fn shared_pages(&self) -> u64 {
        self.shared_pages
    }

    /// Publishes changes of the catalogue, in their order.
    pub(crate) fn change(&mut self, changes: impl IntoIterator<Item = CatalogueChange>) {
        let before = self.catalogue.len();
        self.catalogue.extend(changes);
        self.created += created(&self.catalogue[before..]);
    }

    /// Records published here name these blocks, which were stored before.
    pub(crate) fn pin(&mut self, blocks: impl IntoIterator<Item = Pba>) {
        self.pins.extend(blocks);
    }

    /// Counts the map pages that a record changes.
    pub(crate) fn touch(&mut self, record: &Record) {
        match record.change {
            Change::Block { .. } => self.touch_block(record.volume, record.lba),
            Change::Range { blocks, .. } => {
                self.touch_range(record.volume, record.lba.0, record.lba.0 + blocks);
            }
            Change::Catalogue { .. } => {}
        }
    }

    /// Counts the map pages that a changed block changes.
    pub(crate) fn touch_block(&mut self, volume: VolumeId, lba: Lba) {
        self.dirty.touch(volume, lba);
    }

    /// Counts the map pages that a range changes.
    pub(crate) fn touch_range(&mut self, volume: VolumeId, start: u64, end: u64) {
        self.dirty.touch(volume, Lba(start));
        self.dirty.touch(volume, Lba(end - 1));
    }

    /// Counts the map pages that a window changes.
    fn touch_window(&mut self, window: &Window) {
        for block in window.blocks.iter().filter(|block| block.live) {
            self.touch_block(block.volume, block.lba);
        }
        for (volume, start, span) in window.ranges.iter() {
            self.touch_range(volume, start, span.end);
        }
    }

    /// Makes room for many records at once.
    pub(crate) fn reserve(&mut self, records: &[Record]) {
        self.entries.reserve(records);
    }

    /// With leaves in place: blocks lost their last link.
    pub(crate) fn unlink(&mut self, blocks: impl IntoIterator<Item = Pba>) {
        self.unlinked.extend(blocks);
    }

    /// With leaves in place: as many more addresses are mapped, and as many more blocks have links.
    pub(crate) fn count_links(&mut self, mapped: i64, live: i64) {
        self.mapped += mapped;
        self.live += live;
    }

    /// With leaves in place: blocks that lost their last link.
    pub(crate) fn unlinked(&self) -> &[Pba] {
        &self.unlinked
    }

    /// With leaves in place: how many more addresses are mapped, and blocks have links.
    pub(crate) fn links(&self) -> (i64, i64) {
        (self.mapped, self.live)
    }

    /// The ranges that were published.
    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// The changes of the catalogue, in their order.
    pub(crate) fn catalogue(&self) -> &[CatalogueChange] {
        &self.catalogue
    }

    /// Blocks that were handed out for windows published here.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = Pba> {
        self.allocated.iter().flat_map(|extent| (0..extent.blocks).map(|n| extent.at.plus(n)))
    }

    /// True when records published here name a block that was stored before.
    pub(crate) fn pins(&self, block: Pba) -> bool {
        self.pins.contains(&block)
    }

    /// The last window published here.
    pub(crate) fn last(&self) -> WindowNumber {
        self.last
    }

    /// Records published, superseded ones included.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Carriers of the windows published: a recovery has to read them.
    pub(crate) fn carriers(&self) -> u64 {
        self.carriers
    }

    /// Map pages that a checkpoint of all this writes at most; `height` gives that of a volume's
    /// map as it is.
    pub(crate) fn map_pages(&self, height: impl Fn(VolumeId) -> u8) -> u64 {
        self.dirty.pages(height)
    }

    /// How many addresses changed.
    pub(crate) fn changed(&self) -> usize {
        self.entries.len()
    }

    /// The changed addresses of a volume, in their order.
    pub(crate) fn addresses(&self, volume: VolumeId) -> Vec<Lba> {
        self.entries.addresses(volume)
    }

    /// The newest block of an address, or that it is lost, whether a newer range covers it or not.
    pub(crate) fn block(&self, volume: VolumeId, lba: Lba) -> Option<Entry> {
        self.entries.get(volume, lba)
    }

    /// The change of an address in this overlay, if there is one.
    pub(crate) fn find(&self, volume: VolumeId, lba: Lba) -> Option<MapEntry> {
        let entry = self.entries.get(volume, lba);
        let span = self.ranges.get(volume, lba.0);
        match (entry, span) {
            (Some(entry), Some(span)) if span.window > entry.window => Some(zeroes(span.keep)),
            (Some(entry), _) => Some(entry.entry),
            (None, Some(span)) => Some(zeroes(span.keep)),
            (None, None) => None,
        }
    }

    /// Bytes of memory, roughly.
    pub(crate) fn memory(&self) -> u64 {
        self.entries.memory()
            + self.dirty.memory()
            + self.pins.capacity() as u64 * 8 / 7 * 9
            + self.allocated.capacity() as u64 * 16
            + self.unlinked.capacity() as u64 * 8
            + self.ranges.len() as u64 * 48
    }
}

/// How many volumes changes of the catalogue make.
pub(crate) fn created(changes: &[CatalogueChange]) -> u64 {
    changes.iter().filter(|change| matches!(change, CatalogueChange::Create { .. })).count() as u64
}

/// The map entry of a range.
pub(crate) fn zeroes(keep: bool) -> MapEntry {
    if keep { MapEntry::Zero } else { MapEntry::Hole }
}

/// The map pages that a set of changes touches, leaves and the pages above them, each once: the
/// space a checkpoint of them takes at most.
#[derive(Default)]
struct DirtyPages(BTreeMap<VolumeId, DirtyMap>);

/// The changed pages of one map.
#[derive(Default)]
struct DirtyMap {
    /// Level and number, as [`page`] makes one of them.
    pages: MixSet<u64>,
    /// The highest level.
    top: u8,
}

/// A page by its level and number: of leaves there are less than 2^40.
fn page(level: u8, index: u64) -> u64 {
    u64::from(level) << 56 | index
}

impl DirtyPages {
    /// Notes a changed address.
    fn touch(&mut self, volume: VolumeId, lba: Lba) {
        use crate::format::page::{FANOUT, Table};
        let mut index = lba.0 / Table::Map.per_leaf();
        let mut level = 0;
        let map = self.0.entry(volume).or_default();
        // The root is counted as well: trees grow by it.
        while map.pages.insert(page(level, index)) && (index > 0 || level == 0) {
            map.top = level.max(map.top);
            index /= FANOUT;
            level += 1;
        }
    }

    /// How many pages; `height` gives that of a volume's map as it is. A tree that is taller than
    /// the path to an address has more pages above it, and one that grows gets them.
    fn pages(&self, height: impl Fn(VolumeId) -> u8) -> u64 {
        let of_map = |(&volume, map): (&VolumeId, &DirtyMap)| {
            let levels = 1..=map.top.max(height(volume));
            (map.pages.len() + levels.filter(|&level| !map.pages.contains(&page(level, 0))).count())
                as u64
        };
        self.0.iter().map(of_map).sum()
    }

    fn memory(&self) -> u64 {
        self.0.values().map(|map| map.pages.capacity() as u64 * 8 / 7 * 9 + 64).sum()
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::Fingerprint;

    use super::*;

    #[test]
    fn the_largest_entry_survives_its_packing() {
        let mut overlay = Overlay::default();
        let (volume, lba) = (VolumeId(u32::MAX), Lba((1 << 48) - 1));
        let change =
            Change::Block { pba: Pba::MAX, carried: true, fingerprint: Fingerprint([0xff; 16]) };
        overlay.publish(&Record { volume, lba, change, timestamp: WindowNumber::MAX.timestamp(3) });
        let entry = MapEntry::Block { pba: Pba::MAX, form: Form::Carried, prefix: u64::MAX };
        assert_eq!(
            overlay.entries.get(volume, lba),
            Some(Entry { entry, window: WindowNumber::MAX })
        );
        assert_eq!(overlay.entries.addresses(volume), [lba]);
        assert_eq!((overlay.find(volume, Lba(0)), overlay.find(VolumeId(1), lba)), (None, None));
        overlay.lose(volume, lba.0 - 1..lba.0 + 1, WindowNumber::MAX);
        assert_eq!(overlay.find(volume, lba), Some(MapEntry::Lost));
        assert_eq!(overlay.addresses(volume), [Lba(lba.0 - 1), lba]);
    }

    #[test]
    fn scattered_records_take_no_more_than_the_settings_count_for_them() {
        // One more than a table of 2^14 places takes: it has just doubled.
        let records = (1 << 14) / 8 * 7 + 1;
        let mut overlay = Overlay::default();
        for n in 0..records {
            let lba = Lba(n * 7919 * 288);
            let change =
                Change::Block { pba: Pba(n), carried: false, fingerprint: Fingerprint([1; 16]) };
            overlay.publish(&Record {
                volume: VolumeId(1),
                lba,
                change,
                timestamp: WindowNumber(n).timestamp(0),
            });
            overlay.dirty.touch(VolumeId(1), lba);
            overlay.allocated.push(Extent { at: Pba(n), blocks: 1 });
        }
        assert_eq!(overlay.records, records);
        assert!(
            overlay.memory() <= records * (62 + 42 + 32),
            "{} bytes a record",
            overlay.memory() / records
        );
    }
}
