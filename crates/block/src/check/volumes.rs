//! The catalogue and the pending discards.

use std::collections::BTreeSet;

use onefold_core::VolumeId;

use super::{report::Place, tables::Checker};
use crate::{
    format::{
        FIRST_DOMAIN,
        catalogue::{Discard, MapKind, VOLUME_BLOCKS_MAX, Volume, check_name},
        page::{Table, body},
    },
    window::ranges::Span,
};

impl Checker<'_> {
    /// Reads the catalogue, whole, and judges the volumes.
    pub(crate) fn catalogue(&mut self) {
        if self.state.shares_pages() {
            return self.catalogue_of_maps();
        }
        let expected = u64::from(self.state.volumes);
        let mut unread = false;
        self.walk(
            Table::Catalogue,
            0,
            &self.state.catalogue,
            None,
            &mut |checker, id, pointer, page| {
                for slot in 0..Table::Catalogue.per_leaf() {
                    let entry = id.index * Table::Catalogue.per_leaf() + slot;
                    let bytes = &body(page)[slot as usize * Table::Catalogue.entry_bytes()..]
                        [..Table::Catalogue.entry_bytes()];
                    match Volume::get(page, slot) {
                        _ if entry >= expected && bytes.iter().all(|&byte| byte == 0) => {}
                        Some(volume) if entry < expected => checker.volumes.push(volume),
                        _ => {
                            unread |= entry < expected;
                            checker.report.problem(
                                Place::Page(id, pointer.address),
                                format!("its entry {slot} is no volume"),
                            );
                        }
                    }
                }
            },
        );
        let found = self.volumes.len() as u64;
        if unread {
            (self.maps_dark, self.pages_dark, self.catalogue_dark) = (true, true, true);
        } else if found != expected && !self.maps_dark {
            let what = format!("it counts {expected} volumes, but the catalogue has {found}");
            self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
        }
    }

    /// The same, of a store that shares pages.
    fn catalogue_of_maps(&mut self) {
        let places = u64::from(self.state.volumes);
        let mut unread = false;
        let root = self.state.catalogue;
        self.walk(Table::Maps, 0, &root, None, &mut |checker, id, pointer, page| {
            for slot in 0..Table::Maps.per_leaf() {
                let place = id.index * Table::Maps.per_leaf() + slot;
                match Volume::get_shared(page, slot) {
                    Some(None) => {}
                    Some(Some(volume)) if place < places => checker.volumes.push(volume),
                    _ => {
                        unread |= place < places;
                        checker.report.problem(
                            Place::Page(id, pointer.address),
                            format!("its entry {slot} is no map"),
                        );
                    }
                }
            }
        });
        if unread {
            (self.maps_dark, self.pages_dark, self.catalogue_dark) = (true, true, true);
        }
    }

    fn judge_volumes(&mut self) {
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        let mut snapshots = BTreeSet::new();
        let origins: BTreeSet<u32> = self
            .volumes
            .iter()
            .filter(|volume| volume.is_named(MapKind::Volume))
            .map(|volume| volume.id.0)
            .collect();
        let mut blocks = 0u128;
        for volume in &self.volumes.clone() {
            let place = Place::Volume(volume.id);
            if !ids.insert(volume.id) {
                self.report.problem(place.clone(), "it is in the catalogue twice");
            }
            if volume.id.0 >= self.state.next_volume || volume.id.0 == 0 {
                self.report.problem(place.clone(), "its number was never given");
            }
            if volume.is_leaving() {
                if self.discards.meeting(volume.id, 0, u64::MAX).next().is_some() {
                    self.report.problem(place, "it was deleted, but has ranges that wait");
                }
                continue;
            }
            if volume.domain != FIRST_DOMAIN && volume.domain >= self.state.next_domain {
                let what = format!("it belongs to domain {}, which was never made", volume.domain);
                self.report.problem(place.clone(), what);
            }
            if volume.sharing.kind == MapKind::Receiving {
                self.judge_receiving(volume, &place);
                continue;
            }
            if volume.is_snapshot() {
                if !self.maps_dark && !origins.contains(&volume.sharing.parent) {
                    let what = format!(
                        "it is a snapshot of volume {}, which there is not",
                        volume.sharing.parent
                    );
                    self.report.problem(place.clone(), what);
                }
                if !snapshots.insert((volume.sharing.parent, volume.name.clone())) {
                    let what = format!("another snapshot has the name '{}' as well", volume.name);
                    self.report.problem(place, what);
                }
                continue;
            }
            if volume.name.is_empty() {
                // Deleted: it stays until its blocks are free.
                if self.discards.meeting(volume.id, 0, u64::MAX).next().is_none() {
                    self.report.problem(place, "it was deleted, but nothing frees its blocks");
                }
                continue;
            }
            if let Err(e) = check_name(&volume.name) {
                self.report.problem(place.clone(), format!("its name is impossible: {e}"));
            }
            if !names.insert(volume.name.clone()) {
                self.report.problem(
                    place.clone(),
                    format!("another volume has the name '{}' as well", volume.name),
                );
            }
            if volume.blocks == 0 {
                self.report.problem(place, "it has no blocks");
            }
            blocks += u128::from(volume.blocks);
        }
        if blocks > u128::from(VOLUME_BLOCKS_MAX) {
            self.report.problem(Place::Store, "the volumes together are larger than 1 EiB");
        }
    }

    /// A snapshot that is being received: how far it is, and what it is based on.
    fn judge_receiving(&mut self, receive: &Volume, place: &Place) {
        if receive.sharing.cursor > receive.blocks {
            self.report.problem(place.clone(), "it has been received beyond its end");
        }
        let base = receive.sharing.parent;
        let has_base = self.volumes.iter().any(|other| other.id.0 == base && other.is_snapshot());
        if base != 0 && !has_base && !self.maps_dark {
            let what = format!("it is to be applied to snapshot {base}, which there is not");
            self.report.problem(place.clone(), what);
        }
    }

    /// Reads the pending discards, whole.
    pub(crate) fn pending(&mut self) {
        let expected = u64::from(self.state.discards);
        let mut found = 0;
        let before = self.report.problems_found;
        let ids: BTreeSet<VolumeId> = self.volumes.iter().map(|volume| volume.id).collect();
        self.walk(
            Table::Discards,
            0,
            &self.state.pending,
            None,
            &mut |checker, id, pointer, page| {
                for slot in 0..Table::Discards.per_leaf() {
                    let entry = id.index * Table::Discards.per_leaf() + slot;
                    let bytes = &body(page)[slot as usize * Table::Discards.entry_bytes()..]
                        [..Table::Discards.entry_bytes()];
                    let place = Place::Page(id, pointer.address);
                    match Discard::get(page, slot) {
                        _ if entry >= expected && bytes.iter().all(|&byte| byte == 0) => {}
                        Some(discard) if entry < expected => {
                            found += 1;
                            if !checker.maps_dark && !ids.contains(&discard.volume) {
                                let what = format!(
                                    "its entry {slot} is of volume {}, which there is not",
                                    discard.volume
                                );
                                checker.report.problem(place.clone(), what);
                            }
                            checker.discard(&place, slot, discard);
                        }
                        _ => {
                            checker.catalogue_dark = true;
                            checker
                                .report
                                .problem(place, format!("its entry {slot} is no discard"));
                        }
                    }
                }
            },
        );
        if found != expected && self.report.problems_found == before {
            let what = format!("it counts {expected} pending discards, but the table has {found}");
            self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
        }
        self.judge_volumes();
    }

    fn discard(&mut self, place: &Place, slot: u64, discard: Discard) {
        let Discard { volume, keep, start, end, window } = discard;
        if window > self.state.committed {
            self.report.problem(
                place.clone(),
                format!("its entry {slot} is of window {window}, which is not committed"),
            );
        }
        if self.discards.meeting(volume, start, end).next().is_some() {
            self.report.problem(place.clone(), format!("its entry {slot} overlaps another one"));
        }
        self.discards.insert(volume, start, Span { end, keep, window });
    }
}
