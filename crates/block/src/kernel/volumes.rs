//! The volumes as clients see them.

use std::collections::BTreeMap;

use onefold_core::{VolumeId, VolumeLimits};

use crate::format::{
    catalogue::{CatalogueChange, NoDedup, Volume},
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
pub(crate) fn visible(volumes: &BTreeMap<VolumeId, Volume>) -> BTreeMap<VolumeId, VolumeState> {
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
