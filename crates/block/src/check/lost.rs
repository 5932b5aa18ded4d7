//! Addresses that are lost: whether the catalogue counts as many for each map as the map has.
//!
//! The count is there so that nobody has to walk a map for it. Programs that do not know of it write
//! zero, and a repair adds what it loses, so a difference is a note and no problem.
//!
//! *Memory:* that of [`PerLeaf`]. Of a store without lost addresses no page is read, and nothing is held.

use onefold_core::Pba;

use super::{
    per_leaf::{PerLeaf, Sums},
    walk::Walker,
};
use crate::format::catalogue::{MapKind, Volume};

/// Lost addresses of leaves.
#[derive(Default)]
pub(super) struct Lost(PerLeaf);

impl Lost {
    /// An address of the leaf at this place is lost.
    pub(super) fn add(&mut self, leaf: Pba) {
        self.0.add(leaf, 1);
    }

    /// Says how many addresses of each map are lost, and, where all maps could be walked, which ones the
    /// catalogue counts otherwise.
    pub(super) fn notes(
        &self,
        walker: &Walker<'_>,
        volumes: &[Volume],
        are_whole: bool,
    ) -> Vec<String> {
        if self.0.is_empty() && volumes.iter().all(|volume| volume.sharing.lost == 0) {
            return Vec::new();
        }
        let mut sums = Sums::new();
        let mut notes = Vec::new();
        for volume in volumes.iter().filter(|volume| !volume.is_leaving()) {
            let counted = volume.sharing.lost;
            let found = if are_whole { self.0.of_map(walker, volume, &mut sums) } else { None };
            if let Some(found) = found.filter(|found| *found != counted) {
                let map = called(volumes, volume);
                notes.push(format!(
                    "of {map} {found} blocks are lost, and the catalogue counts {counted}: a \
                     program that does not know of lost blocks changed it, or a repair lost some"
                ));
            } else if counted > 0 && volume.is_named(MapKind::Volume) {
                let map = called(volumes, volume);
                notes.push(format!("of {map} {counted} blocks were lost before"));
            }
        }
        notes
    }
}

fn called(volumes: &[Volume], volume: &Volume) -> String {
    let name = volume.name.escape_debug();
    if !volume.is_snapshot() {
        return format!("volume '{name}'");
    }
    let parent = volume.sharing.parent;
    let mut origins = volumes.iter().filter(|one| one.is_named(MapKind::Volume));
    match origins.find(|one| one.id.0 == parent) {
        Some(origin) => format!("snapshot '{}@{name}'", origin.name.escape_debug()),
        None => format!("snapshot '{name}' of volume {parent}"),
    }
}
