//! Which blocks of a leaf are moved.

use onefold_core::{Lba, Pba};

use crate::format::page::{MapEntry, Page, Table};

/// The addresses of a leaf that name a block, and what they name.
pub(crate) type Found = Vec<(Lba, MapEntry)>;

/// The blocks of a leaf that should lie next to each other: none unless it lies in more runs than
/// one for each `blocks_a_run` blocks. What lies in long runs stays.
pub(crate) fn scattered(leaf: u64, page: &Page, blocks_a_run: usize) -> Found {
    let per_leaf = Table::Map.per_leaf();
    let mut runs: Vec<Vec<(Lba, MapEntry, Pba)>> = Vec::new();
    for slot in 0..per_leaf {
        let Some(entry @ MapEntry::Block { pba, .. }) = MapEntry::get(page, slot) else { continue };
        let lba = Lba(leaf * per_leaf + slot);
        match runs.last_mut() {
            Some(run)
                if run
                    .last()
                    .is_some_and(|&(before, _, at)| lba == before.plus(1) && pba == at.plus(1)) =>
            {
                run.push((lba, entry, pba));
            }
            _ => runs.push(vec![(lba, entry, pba)]),
        }
    }
    let mapped: usize = runs.iter().map(Vec::len).sum();
    if runs.len() * blocks_a_run <= mapped || mapped < blocks_a_run {
        return Vec::new();
    }
    let short = runs.into_iter().filter(|run| run.len() < blocks_a_run);
    short.flatten().map(|(lba, entry, _)| (lba, entry)).collect()
}

#[cfg(test)]
mod tests {
    use onefold_core::Block;

    use super::*;

    /// A leaf whose blocks lie at these places, from its first address on.
    fn leaf(places: impl Iterator<Item = u64>) -> Page {
        let mut page = Block::zeroed();
        for (slot, at) in (0..).zip(places) {
            MapEntry::Block { pba: Pba(at), carried: false, prefix: at }.set(&mut page, slot);
        }
        page.0
    }

    #[test]
    fn a_leaf_in_few_runs_stays_and_one_in_many_leaves_its_long_runs() {
        assert!(scattered(2, &leaf((0..288).map(|n| n * 18 / 17)), 16).is_empty());
        let mixed = leaf((0..64).chain((0..64).map(|n| 1000 + 3 * n)));
        let found = scattered(2, &mixed, 16);
        assert_eq!(found.len(), 64);
        assert_eq!(found[0].0, Lba(2 * 288 + 64));
        assert!(scattered(2, &leaf([5, 9, 1].into_iter()), 16).is_empty(), "too few to matter");
    }
}
