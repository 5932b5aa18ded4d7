//! The counts that a checkpoint keeps of what maps name: the mapped addresses of each map, and the stored
//! blocks of each domain with limits.
//!
//! *Memory:* that of [`PerLeaf`], and a bit for each block of each domain with limits.

use std::collections::BTreeMap;

use onefold_core::{Block, Pba, VolumeId};

use super::{
    per_leaf::{PerLeaf, Sums},
    report::Place,
    tables::Checker,
    usage::BlockSet,
};
use crate::format::{
    catalogue::Volume,
    domain_entry::DomainEntry,
    geometry::Geometry,
    page::{MapEntry, Pointer, Table},
    superblock::State,
};

/// What was found in the maps.
#[derive(Default)]
pub(crate) struct Counts {
    mapped: PerLeaf,
    /// Blocks of each domain with limits.
    stored: BTreeMap<u32, BlockSet>,
    /// The maps of which the catalogue counts other addresses, and how many they have.
    pub(super) wrong: BTreeMap<VolumeId, u64>,
}

impl Counts {
    pub(super) fn of(state: &State, geometry: Geometry) -> Counts {
        let numbers = state.domains.iter().map(|entry| entry.number);
        let stored = numbers.map(|number| (number, BlockSet::new(geometry))).collect();
        Counts { stored, ..Counts::default() }
    }

    /// Notes what a leaf of a map of a domain names; of blocks those that are `held`.
    pub(super) fn leaf(&mut self, domain: u32, at: Pba, page: &Block, held: impl Fn(Pba) -> bool) {
        let entries = (0..Table::Map.per_leaf()).filter_map(|slot| MapEntry::get(page, slot));
        let mut stored = self.stored.get_mut(&domain);
        let mut mapped = 0;
        for entry in entries {
            let MapEntry::Block { pba, .. } = entry else { continue };
            mapped += 1;
            if let Some(blocks) = stored.as_mut().filter(|_| held(pba)) {
                blocks.insert(pba);
            }
        }
        self.mapped.add(at, mapped);
    }

    /// Blocks that a domain with limits stores.
    pub(super) fn stored(&self, domain: u32) -> u64 {
        self.stored.get(&domain).map_or(0, BlockSet::len)
    }
}

impl Checker<'_> {
    /// Notes what a leaf of a map of a domain names.
    pub(super) fn count_leaf(&mut self, domain: u32, at: &Pointer, page: &Block) {
        let mut counts = std::mem::take(&mut self.counts);
        counts.leaf(domain, at.address, page, |pba| self.may_hold(pba));
        self.counts = counts;
    }

    /// Compares the counts with what the maps name, all of which could be walked.
    pub(super) fn judge_counts(&mut self) {
        let mut sums = Sums::new();
        let mut wrong = BTreeMap::new();
        for volume in self.volumes.iter().filter(|volume| !volume.is_leaving()) {
            let Some(counted) = volume.mapped() else { continue };
            let found = self.counts.mapped.of_map(&self.walker, volume, &mut sums);
            if let Some(found) = found.filter(|found| *found != counted) {
                wrong.insert(volume.id, (found, counted));
            }
        }
        for (id, (found, counted)) in wrong {
            let what = format!(
                "the catalogue counts {counted} addresses that have a block, but there are {found}"
            );
            self.report.problem(Place::Volume(id), what);
            self.counts.wrong.insert(id, found);
        }
        for DomainEntry { number, stored, .. } in self.state.domains.clone() {
            let found = self.counts.stored(number);
            let what = match stored {
                None => format!(
                    "nobody knows how many blocks domain {number} stores, since a page could not be read: \
                     onefold repair counts them"
                ),
                Some(stored) if stored == found => continue,
                Some(stored) if stored > found && self.counts_too_high() => continue,
                Some(stored) => format!(
                    "it counts {stored} blocks that domain {number} stores, but there are {found}"
                ),
            };
            self.report.problem(Place::Superblock((self.state.sequence % 2) as u32), what);
        }
    }
}

/// The counts of maps of a mended store: `mapped` of a map that is as before.
pub(super) fn mended(counts: &Counts, volume: &Volume) -> Option<u64> {
    counts.wrong.get(&volume.id).copied().or(volume.sharing.mapped)
}
