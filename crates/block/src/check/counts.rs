//! The counts that a checkpoint keeps of what maps name: the mapped addresses of each map, and the stored
//! blocks of each domain with limits.
//!
//! *Memory:* that of [`PerLeaf`], and a bit for each block of each domain with limits.

use std::collections::BTreeMap;

use onefold_core::{Block, Pba, VolumeId};

use super::per_leaf::PerLeaf;
use crate::block_set::BlockSet;
use crate::format::{
    catalogue::Volume,
    geometry::Geometry,
    page::{MapEntry, Table},
    superblock::State,
};

/// What was found in the maps.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) mapped: PerLeaf,
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

/// The counts of maps of a mended store: `mapped` of a map that is as before.
pub(super) fn mended(counts: &Counts, volume: &Volume) -> Option<u64> {
    counts.wrong.get(&volume.id).copied().or(volume.sharing.mapped)
}
