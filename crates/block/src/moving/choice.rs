//! Which blocks of a leaf are moved.

use std::collections::BTreeMap;

use onefold_core::{Lba, Pba};

use crate::format::page::{MapEntry, Page, Table};

/// The addresses of a leaf that name a block, and what they name.
pub(crate) type Found = Vec<(Lba, MapEntry)>;

/// The blocks of a leaf that should lie next to each other: none unless it lies in more runs than
/// one for each `blocks_a_run` blocks. What lies in long runs stays.
pub(crate) fn scattered(leaf: u64, page: &Page, blocks_a_run: usize) -> Found {
    let runs = runs_of(leaf, page);
    let mapped: usize = runs.iter().map(Vec::len).sum();
    if runs.len() * blocks_a_run <= mapped || mapped < blocks_a_run {
        return Vec::new();
    }
    let short = runs.into_iter().filter(|run| run.len() < blocks_a_run);
    short.flatten().map(|(lba, entry, _)| (lba, entry)).collect()
}

/// True when a part of a leaf, from the address `first` to the address `last`, lies in a third fewer runs
/// once these blocks of it are neighbours.
///
/// Where it is not true, moving them would find the same leaf scattered again, and so for ever. Copies of a
/// leaf may come to lie in a few runs instead of one. So fewer runs alone are not enough, however few.
pub(crate) fn comes_together(
    (leaf, page): (u64, &Page),
    (first, last): (Lba, Lba),
    moved: &Found,
) -> bool {
    let within = |lba: &Lba| (first..=last).contains(lba);
    let places: Vec<(Lba, Pba)> =
        blocks(leaf, page).map(|(lba, _, pba)| (lba, pba)).filter(|(lba, _)| within(lba)).collect();
    // Copies lie from the first place on that no entry can name.
    let copies: BTreeMap<Lba, Pba> =
        moved.iter().zip(1 << 40..).map(|(&(lba, _), at)| (lba, Pba(at))).collect();
    let moved_to = |&(lba, pba): &(Lba, Pba)| (lba, copies.get(&lba).copied().unwrap_or(pba));
    let after: Vec<(Lba, Pba)> = places.iter().map(moved_to).collect();
    let count = |places: &[(Lba, Pba)]| places.chunk_by(|&one, &next| is_next(one, next)).count();
    count(&after) * 3 <= count(&places) * 2
}

/// The blocks that a leaf names: their addresses, the entries and where they lie. Fragments of a pack lie together,
/// and no copy would bring them nearer to their neighbours.
fn blocks(leaf: u64, page: &Page) -> impl Iterator<Item = (Lba, MapEntry, Pba)> {
    let first = leaf * Table::Map.per_leaf();
    (0..Table::Map.per_leaf()).filter_map(move |slot| match MapEntry::get(page, slot)? {
        entry @ MapEntry::Block { pba, form, .. } if !form.is_packed() => {
            Some((Lba(first + slot), entry, pba))
        }
        _ => None,
    })
}

/// True for two blocks of a volume, each with its place, that are neighbours on the disk as well.
fn is_next((lba, pba): (Lba, Pba), (next, at): (Lba, Pba)) -> bool {
    next == lba.plus(1) && at == pba.plus(1)
}

/// The runs in which the blocks of a leaf lie.
fn runs_of(leaf: u64, page: &Page) -> Vec<Vec<(Lba, MapEntry, Pba)>> {
    let mut runs: Vec<Vec<(Lba, MapEntry, Pba)>> = Vec::new();
    for (lba, entry, pba) in blocks(leaf, page) {
        match runs.last_mut() {
            Some(run)
                if run.last().is_some_and(|&(before, _, at)| is_next((before, at), (lba, pba))) =>
            {
                run.push((lba, entry, pba));
            }
            _ => runs.push(vec![(lba, entry, pba)]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use onefold_core::Block;

    use super::*;
    use crate::format::page::Form;

    /// A leaf whose blocks lie at these places, from its first address on.
    fn leaf(places: impl Iterator<Item = u64>) -> Page {
        let mut page = Block::zeroed();
        for (slot, at) in (0..).zip(places) {
            MapEntry::Block { pba: Pba(at), form: Form::Raw, prefix: at }.set(&mut page, slot);
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

    #[test]
    fn a_leaf_comes_together_when_most_of_its_runs_go() {
        let page = leaf((0..288).map(|n| 3 * n));
        let all = scattered(2, &page, 16);
        let whole = (all[0].0, all[287].0);
        let without = |every: usize, stay: usize| -> Found {
            let stays = |n: &usize| n % every < stay;
            (0..288).filter(|n| !stays(n)).map(|n| all[n]).collect()
        };
        assert!(comes_together((2, &page), whole, &all));
        // One of twelve stays: 48 runs are left.
        assert!(comes_together((2, &page), whole, &without(12, 1)));
        // Each third one stays, and two of three runs are left.
        assert!(comes_together((2, &page), whole, &without(3, 1)));
        // Of three in five neighbours two are next to each other, and four of five runs are left.
        let pairs = |n: &usize| [0, 1, 3].contains(&(n % 5));
        let some: Found = (0..288).filter(pairs).map(|n| all[n]).collect();
        assert!(!comes_together((2, &page), whole, &some));
        // Long runs stay between nine short ones, of which two are cut: 18 runs are left of 20, and may
        // become 20 again when two of them find no place in one piece.
        let cut = |n: u64| if n / 32 < 2 && n % 32 >= 26 { 100 } else { 0 };
        let between = leaf(
            (0..288).map(|n| n / 32 * 1000 + n % 32 + if n % 32 < 20 { 0 } else { 500 + cut(n) }),
        );
        let short = scattered(2, &between, 16);
        assert!(short.len() == 108 && !comes_together((2, &between), whole, &short));
        // A part of the leaf counts alone.
        assert!(comes_together((2, &page), (all[0].0, all[39].0), &all[..40].to_vec()));
        assert!(!comes_together((2, &page), whole, &all[..40].to_vec()));
    }
}
