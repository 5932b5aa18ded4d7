//! Pages of maps, as quotas charge them.
//!
//! A map in which blocks lie together needs one page for 288 of them, and a few above these. A volume with
//! a quota has so many pages free, and some more. Each further page is charged like a block: a client that
//! writes single blocks far apart, each of which needs a page of its own, takes no more than the quota.
//!
//! Checkpoints keep the number of pages of a map in memory. The catalogue does not have it: the first
//! checkpoint after a store was opened counts them where they may pass what is free.

use onefold_core::{Lba, Result, VolumeId};

use crate::{
    coverage::Mark,
    format::{
        catalogue::{MapKind, Volume},
        page::{FANOUT, PageId, Pointer, Table, pointer},
    },
    kernel::{Kernel, State},
    rules::Rule,
    sharing::child_id,
    window::{Charge, Charged},
};

/// The part of a quota that the pages of the map have free, as a divisor: more than four times what blocks that lie
/// together need.
const FREE_SHARE: u64 = 64;

/// Pages of a map that a quota of so many blocks does not charge.
pub(crate) fn free(kernel: &Kernel, quota: u64) -> u64 {
    if !kernel.keeps(Rule::MapPagesCharged) {
        return u64::MAX;
    }
    kernel.settings.limits.free_map_pages.saturating_add(quota / FREE_SHARE)
}

/// Pages of a map that a quota of so many blocks charges.
pub(crate) fn charged(kernel: &Kernel, quota: u64, pages: u64) -> u64 {
    pages.saturating_sub(free(kernel, quota))
}

/// The pages of a full map of so many blocks, level by level.
fn levels(blocks: u64) -> impl Iterator<Item = u64> {
    let leaves = blocks.div_ceil(Table::Map.per_leaf()).max(1);
    let above = |pages: &u64| (*pages > 1).then(|| pages.div_ceil(FANOUT));
    std::iter::successors(Some(leaves), above)
}

/// The levels of a map that may have so many blocks.
pub(crate) fn depth(blocks: u64) -> u8 {
    levels(blocks).count() as u8
}

/// Most pages of a map that may have so many blocks.
pub(crate) fn most(blocks: u64) -> u64 {
    levels(blocks).sum()
}

/// The leaf of a map that has an address.
pub(super) fn leaf_of(lba: Lba) -> u64 {
    lba.0 / Table::Map.per_leaf()
}

/// The pages of the map of a volume with `depth` levels that blocks at these addresses, rising, may add,
/// besides those that the open window charges to a volume or a domain.
pub(super) fn added(
    state: &State,
    charged: impl Into<Charged>,
    volume: VolumeId,
    depth: u8,
    lbas: impl Iterator<Item = Lba>,
) -> u64 {
    let (charges, charged) = (state.windows.open().charges(), charged.into());
    let mut last = None;
    let leaves = lbas.map(leaf_of).filter(|&leaf| last.replace(leaf) != Some(leaf));
    leaves.map(|leaf| charges.new_on_way(charged, volume, leaf, depth)).sum()
}

/// The charge for all blocks that were written to a volume since the last checkpoint.
pub(super) fn charge_of_changes(state: &State, volume: VolumeId) -> Charge {
    let changed = state.changed_blocks(volume);
    let depth = state.volumes.get(volume).map_or(0, |volume| depth(volume.blocks));
    Charge::at_most(changed).with_pages(changed.saturating_mul(u64::from(depth)))
}

/// True when a quota of a volume, or of its domain, may come to charge pages that nobody has counted.
pub(super) fn wants_counting(kernel: &Kernel, volume: &Volume, of_domain: u64) -> bool {
    let may_charge = volume.quota > 0 && most(volume.blocks) > free(kernel, volume.quota);
    volume.pages().is_none() && (may_charge || of_domain > 0)
}

/// The pages of the maps of a domain's volumes as of the last checkpoint; none where a quota of so many blocks
/// would not even charge those of full maps. `None` when nobody has counted those of one of them.
pub(super) fn of_domain(kernel: &Kernel, state: &State, domain: u32, quota: u64) -> Option<u64> {
    let all = state.overlays.tables().volumes.values();
    let mine = all.filter(|one| one.domain == domain && one.sharing.kind == MapKind::Volume);
    let counted: Option<u64> = mine.clone().map(Volume::pages).sum();
    let are_free = || mine.map(|one| most(one.blocks)).sum::<u64>() <= free(kernel, quota);
    counted.or_else(|| are_free().then_some(0))
}

/// Counts the pages of a map. One with a page that can't be read counts as a full one.
pub(crate) fn count(kernel: &Kernel, volume: &Volume) -> u64 {
    kernel.coverage.hit(Mark::MapPagesCounted);
    let all = |(id, page)| below(kernel, id, &page);
    volume.top().map_or(Ok(0), all).unwrap_or_else(|_| most(volume.blocks))
}

/// The pages from this one on. Leaves are not read.
fn below(kernel: &Kernel, id: PageId, at: &Pointer) -> Result<u64> {
    if id.level == 0 {
        return Ok(1);
    }
    let page = kernel.pages.get(id, at)?;
    let children = (0..FANOUT).map(|slot| (slot, pointer(&page, slot)));
    let children = children.filter(|(_, child)| !child.is_none());
    children
        .map(|(slot, child)| below(kernel, child_id(id, slot), &child))
        .try_fold(1, |all, one| Ok(all + one?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_as_many_levels_as_their_leaves_need() {
        let leaf = Table::Map.per_leaf();
        assert_eq!((depth(1), most(1)), (1, 1));
        assert_eq!((depth(leaf), most(leaf)), (1, 1));
        assert_eq!((depth(leaf + 1), most(leaf + 1)), (2, 3));
        assert_eq!((depth(leaf * FANOUT), most(leaf * FANOUT)), (2, FANOUT + 1));
        assert_eq!(most(leaf * FANOUT + 1), FANOUT + 1 + 2 + 1);
        assert_eq!(depth(1 << 44), 6);
    }
}
