//! The overlays of a store, and the tables below them.
//!
//! *Invariants*, which only this file can break: windows are published into the active overlay
//! alone; a frozen one never changes, and is there until newer tables hold what is in it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use onefold_core::{Lba, Pba, VolumeId};

use super::Overlay;
use crate::{
    format::{
        catalogue::{CatalogueChange, Volume},
        page::MapEntry,
        superblock,
    },
    moments::{Act, Moment},
    window::{Windows, ranges::Ranges},
};

/// The tables as of a checkpoint. A reader that holds it may read every page and every block that
/// it names.
pub(crate) struct Tables {
    pub(crate) state: superblock::State,
    pub(crate) volumes: BTreeMap<VolumeId, Volume>,
    pub(crate) discards: Ranges,
    /// Of a store that shares pages: the places of its maps in the catalogue.
    pub(crate) places: BTreeMap<VolumeId, u32>,
    /// The same tables as they were named before the store grew.
    pub(crate) before: Option<Arc<Tables>>,
}

impl Tables {
    /// True while somebody reads them, besides who holds this.
    pub(crate) fn has_readers(tables: &Arc<Tables>) -> bool {
        Arc::strong_count(tables) > 1 || tables.before.as_ref().is_some_and(Tables::has_readers)
    }
}

/// All that was published, from the newest to the oldest: the active overlay, those that moments
/// sealed, the one that a checkpoint carries into the tables, and the tables.
pub(crate) struct Overlays {
    active: Overlay,
    /// The oldest first.
    sealed: VecDeque<Overlay>,
    frozen: Option<Arc<Overlay>>,
    /// The pages of the frozen overlay are written.
    built: bool,
    tables: Arc<Tables>,
}

impl Overlays {
    /// Nothing is published beyond a checkpoint.
    pub(crate) fn new(tables: Tables) -> Overlays {
        Overlays {
            active: Overlay::default(),
            sealed: VecDeque::new(),
            frozen: None,
            built: false,
            tables: Arc::new(tables),
        }
    }

    /// Recovery found these changes since the checkpoint.
    pub(crate) fn recovered(&mut self, active: Overlay) {
        self.active = active;
    }

    /// The tables are as before, in another superblock: of the next epoch, or of a larger store.
    pub(crate) fn named_anew(&mut self, tables: Tables) {
        self.tables = Arc::new(tables);
    }

    /// The tables as of the last checkpoint.
    pub(crate) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// The overlay into which windows are published.
    pub(crate) fn active(&self) -> &Overlay {
        &self.active
    }

    /// The overlay into which windows are published, to publish one.
    pub(crate) fn active_mut(&mut self) -> &mut Overlay {
        &mut self.active
    }

    /// The change of an address that no checkpoint holds, if there is one.
    pub(crate) fn find(&self, volume: VolumeId, lba: Lba) -> Option<MapEntry> {
        let sealed = || self.sealed.iter().rev().find_map(|overlay| overlay.find(volume, lba));
        let frozen = || self.frozen.as_ref()?.find(volume, lba);
        self.active.find(volume, lba).or_else(sealed).or_else(frozen)
    }

    /// True when the tables hold all that was published.
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty() && self.sealed.is_empty() && self.frozen.is_none()
    }

    /// True when the next checkpoint has nothing to carry.
    pub(crate) fn nothing_to_freeze(&self) -> bool {
        self.active.is_empty() && self.sealed.is_empty()
    }

    /// The overlays of moments that no checkpoint carries yet.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = &Overlay> {
        self.sealed.iter()
    }

    /// The acts that no checkpoint has made durable, and whose overlays are sealed.
    pub(crate) fn moments(&self) -> impl Iterator<Item = &Moment> {
        self.all().filter_map(Overlay::moment)
    }

    /// True when records that no checkpoint holds name a block that was stored before.
    pub(crate) fn pins(&self, block: Pba, sees_sealed: bool) -> bool {
        self.active.pins(block)
            || sees_sealed && self.sealed.iter().any(|overlay| overlay.pins(block))
    }

    /// Windows are published into another overlay from now on: those up to a moment are published,
    /// and no later one. The pages that windows on their way change are counted to the new one.
    pub(crate) fn seal(&mut self, windows: &Windows, moment: Moment) {
        let mut sealed = std::mem::take(&mut self.active);
        sealed.last = sealed.last.max(windows.durable());
        for act in &moment.acts {
            let Act::Lose { id, ranges } = act else { continue };
            // Its windows are published: nothing older comes after this.
            ranges.iter().for_each(|range| sealed.lose(*id, range.clone(), moment.window));
        }
        sealed.moment = Some(moment);
        windows.all().for_each(|window| self.active.touch_window(window));
        self.sealed.push_back(sealed);
    }

    /// True when a checkpoint is carrying changes into the tables.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Sets aside what was published, for a checkpoint: up to the oldest moment, or all of it. The
    /// pages that windows on their way change are counted to the overlay that they will be published
    /// into.
    pub(crate) fn freeze(&mut self, windows: &Windows) -> Arc<Overlay> {
        let frozen = self.sealed.pop_front().unwrap_or_else(|| {
            let mut frozen = std::mem::take(&mut self.active);
            frozen.last = frozen.last.max(windows.durable());
            windows.all().for_each(|window| self.active.touch_window(window));
            frozen
        });
        let frozen = Arc::new(frozen);
        self.frozen = Some(frozen.clone());
        frozen
    }

    /// The frozen overlay, as long as its pages are not written.
    pub(crate) fn unbuilt(&self) -> Option<&Overlay> {
        self.frozen.as_deref().filter(|_| !self.built)
    }

    /// The pages of the frozen overlay are written.
    pub(crate) fn mark_built(&mut self) {
        self.built = true;
    }

    /// Reads go to new tables, which hold the frozen overlay. Returns the old ones, and that overlay: its
    /// memory takes long to give back.
    pub(crate) fn make_current(
        &mut self,
        tables: Arc<Tables>,
    ) -> (Arc<Tables>, Option<Arc<Overlay>>) {
        self.built = false;
        (std::mem::replace(&mut self.tables, tables), self.frozen.take())
    }

    /// Changes of the catalogue that no checkpoint holds, oldest first.
    pub(crate) fn catalogue(&self) -> impl Iterator<Item = &CatalogueChange> {
        self.all().flat_map(|overlay| overlay.catalogue())
    }

    /// Records published, superseded ones included.
    pub(crate) fn records(&self) -> u64 {
        self.all().map(|overlay| overlay.records).sum()
    }

    /// Ranges among them.
    pub(crate) fn range_records(&self) -> u64 {
        self.all().map(|overlay| overlay.range_records).sum()
    }

    /// Volumes that they make.
    pub(crate) fn created(&self) -> u64 {
        self.all().map(|overlay| overlay.created).sum()
    }

    /// Published carriers that no checkpoint holds.
    pub(crate) fn carriers(&self) -> u64 {
        self.all().map(|overlay| overlay.carriers).sum()
    }

    /// Bytes of memory, roughly.
    pub(crate) fn memory(&self) -> u64 {
        self.all().map(Overlay::memory).sum()
    }

    /// The overlays, the oldest first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Overlay> {
        self.frozen.as_deref().into_iter().chain(&self.sealed).chain([&self.active])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::record::{Change, Record, WindowNumber};

    fn trimmed(lba: u64, window: u64) -> Record {
        let change = Change::Range { blocks: 1, keep: false };
        let timestamp = WindowNumber(window).timestamp(0);
        Record { volume: VolumeId(1), lba: Lba(lba), change, timestamp }
    }

    #[test]
    fn what_was_published_is_found_until_a_checkpoint_holds_it() {
        let tables = || Tables {
            state: superblock::State::default(),
            volumes: BTreeMap::new(),
            discards: Ranges::default(),
            places: BTreeMap::new(),
            before: None,
        };
        let mut overlays = Overlays::new(tables());
        let mut windows = Windows::after(WindowNumber(2), WindowNumber(2));
        windows.put(VolumeId(1), Lba(9), false, crate::window::Kept::default());
        overlays.active_mut().publish(&trimmed(1, 1));
        assert_eq!((overlays.is_empty(), overlays.records()), (false, 1));
        let frozen = overlays.freeze(&windows);
        assert_eq!((frozen.last(), overlays.unbuilt().is_some()), (WindowNumber(2), true));
        assert!(overlays.active().map_pages(|_| 0) > 0, "the open window's pages are counted");
        overlays.active_mut().publish(&trimmed(2, 3));
        overlays.active_mut().pin([Pba(5)]);
        overlays.mark_built();
        assert!(overlays.unbuilt().is_none() && overlays.is_frozen());
        assert_eq!((overlays.records(), overlays.range_records()), (2, 2));
        let found = |overlays: &Overlays| [1, 2].map(|n| overlays.find(VolumeId(1), Lba(n)));
        assert_eq!(found(&overlays), [Some(MapEntry::Hole); 2]);
        overlays.make_current(Arc::new(tables()));
        assert_eq!(found(&overlays), [None, Some(MapEntry::Hole)]);
        assert!(overlays.pins(Pba(5), true) && !overlays.is_frozen());
    }
}
