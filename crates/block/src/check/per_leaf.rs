//! Numbers of the leaves of maps, and their sums over whole maps.
//!
//! Maps share pages, so each page is read once, whatever names it.
//!
//! *Memory:* some 50 bytes for each leaf that has a number, and for each inner page of a map.

use std::collections::BTreeMap;

use onefold_core::{Block, Pba};

use super::walk::{Walker, children};
use crate::format::{
    catalogue::Volume,
    page::{PageId, Pointer, Table},
};

/// Pages that are read together.
const BATCH: usize = 64;

/// The sums below inner pages, by their places.
pub(super) type Sums = BTreeMap<Pba, u64>;

/// A number for each leaf, by the place of the leaf.
#[derive(Default)]
pub(super) struct PerLeaf(BTreeMap<Pba, u64>);

impl PerLeaf {
    pub(super) fn add(&mut self, leaf: Pba, more: u64) {
        *self.0.entry(leaf).or_default() += more;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sum over a map; `None` when a page of it can't be read.
    pub(super) fn of_map(
        &self,
        walker: &Walker<'_>,
        volume: &Volume,
        sums: &mut Sums,
    ) -> Option<u64> {
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
        let (mut all, mut unread) = (0u64, Vec::new());
        for &(id, pointer) in pages {
            let known = match id.level {
                0 => Some(self.0.get(&pointer.address).copied().unwrap_or(0)),
                _ => sums.get(&pointer.address).copied(),
            };
            match known {
                Some(known) => all = all.saturating_add(known),
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
                all = all.saturating_add(sum);
            }
        }
        Some(all)
    }
}
