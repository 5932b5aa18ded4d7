//! The volumes as clients see them.
//!
//! *Invariants*, which only this file can break, since all fields of [`Volumes`] are private: no
//! two volumes have one name, and no number is given twice.

use std::collections::BTreeMap;

use onefold_core::{Error, Kind, Lba, Result, VolumeId, VolumeLimits};

use crate::format::{
    catalogue::{CatalogueChange, NoDedup, VOLUME_BLOCKS_MAX, Volume, check_name},
    superblock::Root,
};

/// A volume as clients see it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeState {
    /// Its name.
    pub name: String,
    /// Its size in blocks.
    pub blocks: u64,
    /// Its blocks that are not deduplicated.
    pub no_dedup: NoDedup,
    /// How fast clients may use it; servers see to that.
    pub limits: VolumeLimits,
}

/// The volumes that clients see, and the number of the next one.
pub(crate) struct Volumes {
    volumes: BTreeMap<VolumeId, VolumeState>,
    next: u32,
}

impl Volumes {
    /// Those of a catalogue; the next one gets the number `next`, or a higher one.
    pub(crate) fn of(catalogue: &BTreeMap<VolumeId, Volume>, next: u32) -> Volumes {
        let next = catalogue.keys().map(|id| id.0 + 1).chain([next]).max().unwrap_or(1);
        Volumes { volumes: visible(catalogue), next }
    }

    /// The number of the next volume.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.volumes.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&VolumeId, &VolumeState)> {
        self.volumes.iter()
    }

    /// The volume, if it exists.
    pub(crate) fn get(&self, id: VolumeId) -> Result<&VolumeState> {
        self.volumes
            .get(&id)
            .ok_or_else(|| Error::new(Kind::NotFound, "the volume does not exist any more"))
    }

    /// The number of a volume.
    pub(crate) fn named(&self, name: &str) -> Option<VolumeId> {
        self.volumes.iter().find(|(_, volume)| volume.name == name).map(|(&id, _)| id)
    }

    /// True when a block of an address is not deduplicated.
    pub(crate) fn is_critical(&self, id: VolumeId, lba: Lba) -> bool {
        self.volumes.get(&id).is_some_and(|volume| volume.no_dedup.holds(lba))
    }

    /// Fails unless a volume may have this name.
    pub(crate) fn check_new_name(&self, name: &str) -> Result<()> {
        check_name(name)?;
        match self.named(name) {
            Some(_) => Err(Error::new(Kind::Exists, format!("there is a volume '{name}' already"))),
            None => Ok(()),
        }
    }

    /// Fails unless a volume may have this size, in the place of another or beside all: all sizes
    /// together stay within 1 EiB.
    pub(crate) fn check_size(&self, blocks: u64, replacing: Option<VolumeId>) -> Result<()> {
        if blocks == 0 {
            return Err(Error::new(
                Kind::InvalidInput,
                "a volume needs at least one block of 4096 bytes",
            ));
        }
        let others = self.volumes.iter().filter(|(id, _)| Some(**id) != replacing);
        let sum = others.map(|(_, volume)| volume.blocks).sum::<u64>().checked_add(blocks);
        if sum.is_none_or(|sum| sum > VOLUME_BLOCKS_MAX) {
            return Err(Error::new(
                Kind::InvalidInput,
                "all volumes together can't be larger than 1 EiB",
            ));
        }
        Ok(())
    }

    /// Adds a volume whose name and size were checked.
    pub(crate) fn create(&mut self, volume: VolumeState) -> VolumeId {
        let id = VolumeId(self.next);
        self.next += 1;
        self.volumes.insert(id, volume);
        id
    }

    /// Changes a volume, if it exists.
    pub(crate) fn change(&mut self, id: VolumeId, change: impl FnOnce(&mut VolumeState)) {
        if let Some(volume) = self.volumes.get_mut(&id) {
            change(volume);
        }
    }

    /// Removes a volume.
    pub(crate) fn remove(&mut self, id: VolumeId) {
        self.volumes.remove(&id);
    }
}

/// Applies changes of the catalogue in their order. A deleted volume keeps its map, without a name,
/// until its blocks are free.
pub(crate) fn apply_catalogue(
    volumes: &mut BTreeMap<VolumeId, Volume>,
    changes: &[CatalogueChange],
) {
    for change in changes {
        match change {
            CatalogueChange::Create { id, name, blocks, no_dedup, limits } => {
                let (name, no_dedup) = (name.clone(), no_dedup.clone());
                volumes.insert(
                    *id,
                    Volume {
                        id: *id,
                        name,
                        blocks: *blocks,
                        map: Root::default(),
                        no_dedup,
                        limits: *limits,
                    },
                );
            }
            CatalogueChange::Resize { id, blocks } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.blocks = *blocks;
                }
            }
            CatalogueChange::Rename { id, name } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.name.clone_from(name);
                }
            }
            CatalogueChange::Settings { id, no_dedup, limits } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.no_dedup.clone_from(no_dedup);
                    volume.limits = *limits;
                }
            }
            CatalogueChange::Delete { id } => {
                if let Some(volume) = volumes.get_mut(id) {
                    volume.name.clear();
                }
            }
        }
    }
}

/// Volumes that clients see.
fn visible(volumes: &BTreeMap<VolumeId, Volume>) -> BTreeMap<VolumeId, VolumeState> {
    volumes
        .values()
        .filter(|volume| !volume.name.is_empty())
        .map(|volume| {
            let (name, no_dedup) = (volume.name.clone(), volume.no_dedup.clone());
            (
                volume.id,
                VolumeState { name, blocks: volume.blocks, no_dedup, limits: volume.limits },
            )
        })
        .collect()
}
