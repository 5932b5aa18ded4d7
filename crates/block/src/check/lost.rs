//! Addresses that are lost: whether the catalogue counts as many for each map as the map has.
//!
//! The count is there so that nobody has to walk a map for it. Programs that do not know of it write
//! zero, and a repair adds what it loses, so a difference is a note and no problem.
//!
//! *Memory:* some 50 bytes for each leaf that has lost addresses, and for each inner page of a map. Of a
//! store without lost addresses no page is read, and nothing is held.

use std::collections::BTreeMap;

use onefold_core::{Block, Pba};

use super::walk::{Walker, children};
use crate::format::{
    catalogue::{MapKind, Volume},
    page::{PageId, Pointer, Table},
};

/// Pages that are read together.
const BATCH: usize = 64;

/// The lost addresses below inner pages, by their places: maps share pages.
type Sums = BTreeMap<Pba, u64>;

/// Lost addresses of leaves, by the place of the leaf.
#[derive(Default)]
pub(super) struct Lost(BTreeMap<Pba, u64>);

impl Lost {
    /// An address of the leaf at this place is lost.
    pub(super) fn add(&mut self, leaf: Pba) {
        *self.0.entry(leaf).or_default() += 1;
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
            let found = if are_whole { self.of_map(walker, volume, &mut sums) } else { None };
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

    /// Lost addresses of a map; `None` when a page of it can't be read.
    fn of_map(&self, walker: &Walker<'_>, volume: &Volume, sums: &mut Sums) -> Option<u64> {
        let Some(level) = volume.map.height.checked_sub(1) else { return Some(0) };
        let (volume, index, top) = (volume.family(), volume.top_index(), volume.map.page);
        self.below(walker, &[(PageId { table: Table::Map, volume, level, index }, top)], sums)
    }

    fn below(
        &self,
        walker: &Walker<'_>,
        pages: &[(PageId, Pointer)],
        sums: &mut Sums,
    ) -> Option<u64> {
        let (mut lost, mut unread) = (0u64, Vec::new());
        for &(id, pointer) in pages {
            let known = match id.level {
                0 => Some(self.0.get(&pointer.address).copied().unwrap_or(0)),
                _ => sums.get(&pointer.address).copied(),
            };
            match known {
                Some(known) => lost = lost.saturating_add(known),
                None => unread.push((id, pointer)),
            }
        }
        for batch in unread.chunks(BATCH) {
            let mut blocks = Block::zeroed_vec(batch.len());
            let read = walker.read(batch, &mut blocks);
            read.into_iter().collect::<Result<Vec<()>, _>>().ok()?;
            for ((id, pointer), block) in batch.iter().zip(&blocks) {
                let sum = self.below(walker, &children(*id, block), sums)?;
                sums.insert(pointer.address, sum);
                lost = lost.saturating_add(sum);
            }
        }
        Some(lost)
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
