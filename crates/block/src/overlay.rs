//! The durable changes that no checkpoint holds yet, as the read path sees them.
//!
//! Two overlays exist at most: the *active* one, into which windows are published, and the *frozen* one, which a checkpoint is writing
//! into the tables. A block in an overlay is newer than a range in it exactly when its window is not older.

use std::collections::BTreeMap;

use onefold_core::{Lba, Pba, VolumeId};

use crate::{
    format::{
        catalogue::CatalogueChange,
        page::MapEntry,
        record::{Change, Record, WindowNumber},
    },
    hash::{MixMap, MixSet},
    place::Extent,
    window::ranges::{Ranges, Span},
};

/// The newest change of one address.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) entry: MapEntry,
    pub(crate) window: WindowNumber,
}

/// Changes since a checkpoint.
#[derive(Default)]
pub(crate) struct Overlay {
    pub(crate) entries: MixMap<(VolumeId, Lba), Entry>,
    pub(crate) ranges: Ranges,
    pub(crate) catalogue: Vec<CatalogueChange>,
    /// Blocks that were handed out for windows published here.
    pub(crate) allocated: Vec<Extent>,
    /// Blocks stored before that records published here name.
    pub(crate) pins: MixSet<Pba>,
    /// Table pages that a checkpoint of all this must write: volume, level, number.
    pub(crate) dirty: DirtyPages,
    /// The last window published here.
    pub(crate) last: WindowNumber,
    /// Records published, superseded ones included.
    pub(crate) records: u64,
    /// Carriers of the windows published: what a recovery has to read.
    pub(crate) carriers: u64,
}

impl Overlay {
    /// True when nothing was published.
    pub(crate) fn is_empty(&self) -> bool {
        self.records == 0 && self.allocated.is_empty() && self.catalogue.is_empty()
    }

    /// Publishes one record; records come in the order of their timestamps.
    pub(crate) fn publish(&mut self, record: &Record) {
        let window = WindowNumber::of(record.timestamp);
        self.records += 1;
        match record.change {
            Change::Block { pba, carried, fingerprint } => {
                let entry = MapEntry::Block { pba, carried, prefix: fingerprint.prefix() };
                self.entries.insert((record.volume, record.lba), Entry { entry, window });
            }
            Change::Range { blocks, keep } => {
                self.ranges.insert(record.volume, record.lba.0, Span { end: record.lba.0 + blocks, keep, window });
            }
            Change::Catalogue { .. } => {}
        }
        self.last = self.last.max(window);
    }

    /// Counts the map pages that a record changes.
    pub(crate) fn touch(&mut self, record: &Record) {
        match record.change {
            Change::Block { .. } => self.dirty.touch(record.volume, record.lba),
            Change::Range { blocks, .. } => {
                self.dirty.touch(record.volume, record.lba);
                self.dirty.touch(record.volume, record.lba.plus(blocks - 1));
            }
            Change::Catalogue { .. } => {}
        }
    }

    /// What became of an address, if it changed.
    pub(crate) fn find(&self, volume: VolumeId, lba: Lba) -> Option<MapEntry> {
        let entry = self.entries.get(&(volume, lba));
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
        (self.entries.capacity() * (size_of::<((VolumeId, Lba), Entry)>() + 1)
            + self.pins.capacity() * 9
            + self.dirty.pages.capacity() * 17) as u64
            + self.allocated.capacity() as u64 * 16
            + self.ranges.len() as u64 * 48
    }
}

/// The map entry of a range.
pub(crate) fn zeroes(keep: bool) -> MapEntry {
    if keep { MapEntry::Zero } else { MapEntry::Hole }
}

/// The map pages that a set of changes touches, leaves and the pages above them, each once: the space a checkpoint of them takes at most.
#[derive(Default)]
pub(crate) struct DirtyPages {
    pages: MixSet<(u32, u8, u64)>,
    /// The highest level of each volume.
    tops: BTreeMap<u32, u8>,
}

impl DirtyPages {
    /// Notes a changed address.
    pub(crate) fn touch(&mut self, volume: VolumeId, lba: Lba) {
        use crate::format::page::{FANOUT, Table};
        let mut index = lba.0 / Table::Map.per_leaf();
        let mut level = 0;
        // The root is counted as well: trees grow by it.
        while self.pages.insert((volume.0, level, index)) && (index > 0 || level == 0) {
            let top = self.tops.entry(volume.0).or_default();
            *top = level.max(*top);
            index /= FANOUT;
            level += 1;
        }
    }

    /// How many pages; `height` gives that of a volume's map as it is. A tree that is taller than the path to an address has more pages
    /// above it, and one that grows gets them.
    pub(crate) fn pages(&self, height: impl Fn(VolumeId) -> u8) -> u64 {
        let above = |(&volume, &top): (&u32, &u8)| {
            let levels = 1..=top.max(height(VolumeId(volume)));
            levels.filter(|&level| !self.pages.contains(&(volume, level, 0))).count() as u64
        };
        self.pages.len() as u64 + self.tops.iter().map(above).sum::<u64>()
    }
}
