//! Histories in which blocks and pages move, beside all else that happens to maps that share them.

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{Fingerprint, Lba, Pba, Result, VolumeId};

use super::{FAMILY, HISTORIES, LEAVES, Memory, World, sharing_accounts};
use crate::{
    format::page::{MapEntry, Pointer, Table, body_mut},
    moving::Moves,
    rules::Rule,
    sharing::{Place, Sharing, Survey, Surveyed, Top, counts, relocate::Relocated},
};

/// Copies lie from here on.
const COPIES: u64 = 1_000_000;

impl World {
    /// The top pages of all maps, of those that are leaving, too.
    fn tops(&self) -> Vec<Top> {
        let roots = self.roots().into_iter().map(|top| (top.id, top.page));
        let all = roots.chain(self.leaving.iter().map(|one| (one.id, one.page)));
        all.zip(1..).map(|((id, page), n)| Top { map: VolumeId(n), id, page }).collect()
    }

    /// The leaves at a place, if none is hidden.
    fn place(&mut self, leaf: u64) -> Result<Option<Place>> {
        let mut survey = Survey::new(FAMILY, self.tops(), vec![leaf]);
        // In steps, as pauses have them.
        let mut found = Surveyed::More;
        while found == Surveyed::More {
            found = survey.advance(&mut self.memory, 2)?;
        }
        match found {
            Surveyed::Complete => survey.leaf(&mut self.memory, leaf, usize::MAX),
            _ => Ok(None),
        }
    }

    /// Copies those blocks of some leaves that only these name, and moves some pages.
    pub(super) fn move_some(&mut self) -> Result<Relocated> {
        let (mut moves, mut seen) = (Moves::default(), BTreeSet::new());
        for _ in 0..1 + self.dice.roll(3) {
            let leaf = LEAVES[self.dice.roll(LEAVES.len() as u64) as usize];
            // A block that has a copy gets no other one.
            if !seen.insert(leaf) {
                continue;
            }
            let Some(place) = self.place(leaf)? else { continue };
            for slot in 0..4 {
                self.copy(&place, leaf, slot, &mut moves);
            }
            for page in place.keys() {
                if self.dice.roll(4) == 0 {
                    moves.note_shared_page(FAMILY, *page, leaf);
                }
            }
        }
        let tops = self.tops();
        let mut sharing = Sharing::new(&mut self.memory);
        let mut done = Relocated::default();
        for (family, moves) in moves.families() {
            done = sharing.relocate(family, tops.clone(), moves)?;
        }
        let changed = sharing_accounts(sharing);
        self.memory.keep(changed);
        for map in self.volumes.iter_mut().chain(&mut self.snapshots) {
            renew(&mut map.root.page, &done);
            for (_, moves) in moves.families() {
                let puts = done.leaves.iter().flat_map(|&leaf| {
                    let first = leaf * Table::Map.per_leaf();
                    moves.of_leaf(leaf).map(move |(slot, put)| (first + slot, put))
                });
                for (cell, put) in puts {
                    if map.cells.get(&cell) == Some(&put.from) {
                        map.cells.insert(cell, put.to);
                    }
                }
            }
        }
        self.leaving.iter_mut().for_each(|one| renew(&mut one.page, &done));
        Ok(done)
    }

    /// Copies a block that only entries at this place name.
    fn copy(&mut self, place: &Place, leaf: u64, slot: u64, moves: &mut Moves) {
        let at = |page| MapEntry::get(page, slot).expect("an entry");
        let entries: Vec<(MapEntry, bool)> = place
            .values()
            .map(|seen| {
                let lender = seen.share.lender.and_then(|lender| place.get(&lender.address));
                let entry = at(&seen.content);
                (entry, counts(entry, lender.map(|lender| at(&lender.content))))
            })
            .collect();
        let Some(&(entry, _)) = entries.first() else { return };
        let MapEntry::Block { pba, .. } = entry else { return };
        let counted = entries.iter().filter(|&&one| one == (entry, true)).count() as i64;
        if self.memory.blocks.get(&pba) == Some(&counted) {
            self.memory.next += 1;
            let copy = Pba(COPIES + self.memory.next);
            let lba = Lba(leaf * Table::Map.per_leaf() + slot);
            moves.note_shared(FAMILY, lba, entry, (copy, Fingerprint([7; 16])));
        }
    }
}

/// A top page may have moved.
fn renew(page: &mut Pointer, done: &Relocated) {
    if let Some(new) = done.pages.get(&page.address) {
        *page = *new;
    }
}

/// Damages an entry of a page.
fn damage(world: &mut World, page: Pba, slot: u64) {
    let (_, content) = world.memory.pages.get_mut(&page).expect("a page");
    let entry = slot as usize * MapEntry::BYTES;
    body_mut(Arc::make_mut(content))[entry] = 0xff;
}

/// Moves the first block of a leaf of which some page has a damaged entry in its place: of a lender, or of
/// another page. Returns the entries that have a copy; `None` when there are no such pages.
fn move_beside_damage(seed: u64, of_lender: bool) -> Option<usize> {
    let mut world = World::new(seed);
    for _ in 0..20 {
        world.checkpoint().expect("a checkpoint");
    }
    for leaf in LEAVES {
        let Some(place) = world.place(leaf).expect("pages") else { continue };
        let lent: BTreeSet<Pba> =
            place.values().filter_map(|seen| Some(seen.share.lender?.address)).collect();
        let entry_of = |page: &Pba| MapEntry::get(&place[page].content, 0).expect("an entry");
        let is_block = |page: &Pba| matches!(entry_of(page), MapEntry::Block { .. });
        let mut pairs = place.iter().flat_map(|(page, seen)| {
            let lender = seen.share.lender.map(|lender| lender.address);
            place.keys().map(move |other| (*page, *other, lender))
        });
        let found = pairs.find(|(page, other, lender)| {
            let lends = if of_lender { *lender == Some(*other) } else { !lent.contains(other) };
            page != other && is_block(page) && lends
        });
        let Some((page, other, _)) = found else { continue };
        let from = entry_of(&page);
        damage(&mut world, other, 0);
        let mut moves = Moves::default();
        let lba = Lba(leaf * Table::Map.per_leaf());
        moves.note_shared(FAMILY, lba, from, (Pba(COPIES), Fingerprint([7; 16])));
        let (tops, before) = (world.tops(), world.memory.pages.len());
        let mut sharing = Sharing::new(&mut world.memory);
        let (_, moves) = moves.families().next().expect("a move");
        let done = sharing.relocate(FAMILY, tops, moves).expect("damage stops no checkpoint");
        let written = world.memory.pages.len() - before;
        assert_eq!(written > 0, done.entries > 0, "nothing is written in vain");
        return Some(done.entries);
    }
    None
}

#[test]
fn a_damaged_entry_of_a_shared_leaf_stops_no_checkpoint() {
    let beside: Vec<usize> = (0..HISTORIES).filter_map(|n| move_beside_damage(n, false)).collect();
    assert!(beside.len() > 10 && beside.iter().all(|&entries| entries > 0), "{beside:?}");
    // Whether an entry counts is not known without that of its lender.
    let lent: Vec<usize> = (0..HISTORIES).filter_map(|n| move_beside_damage(n, true)).collect();
    assert!(lent.len() > 10 && lent.iter().all(|&entries| entries == 0), "{lent:?}");
}

/// The outcome of a history with moves.
#[derive(Default)]
struct Reached {
    entries: usize,
    lent: usize,
    beside_orphans: usize,
    leaving: usize,
}

fn moving_history(seed: u64, broken: Option<Rule>) -> Reached {
    let mut world = World::new(seed);
    world.memory.broken = broken;
    let mut reached = Reached::default();
    for _ in 0..40 {
        reached.beside_orphans += usize::from(!world.orphans.is_empty());
        let leaving = !world.leaving.is_empty();
        let done = world.move_some().unwrap_or_else(|e| panic!("history {seed}: {e}"));
        reached.entries += done.entries;
        reached.lent += done.lent;
        reached.leaving += usize::from(leaving && !done.pages.is_empty());
        world.check_before_end();
        world.checkpoint().unwrap_or_else(|e| panic!("history {seed}: {e}"));
        world.check();
    }
    reached
}

impl World {
    /// The pages that moves replaced are free; all counts are as the rule says.
    fn check_before_end(&mut self) {
        self.end();
        self.check();
    }
}

#[test]
fn moved_blocks_and_pages_keep_all_counts_whatever_is_copied_and_deleted() {
    let mut all = Reached::default();
    for seed in 0..HISTORIES {
        let one = moving_history(seed, None);
        all.entries += one.entries;
        all.lent += one.lent;
        all.beside_orphans += one.beside_orphans;
        all.leaving += one.leaving;
    }
    assert!(all.entries > 1000 && all.lent > 100, "{} {}", all.entries, all.lent);
    assert!(all.beside_orphans > 100 && all.leaving > 10);
}

#[test]
fn nothing_moves_that_pages_hide_which_cannot_be_read() {
    for seed in 0..HISTORIES {
        let mut world = World::new(seed);
        for round in 0..40 {
            world.move_some().unwrap_or_else(|e| panic!("history {seed}: {e}"));
            world.check_before_end();
            world.checkpoint().unwrap_or_else(|e| panic!("history {seed}: {e}"));
            world.check();
            if round > 5 && world.dice.roll(6) == 0 {
                world.rot();
            }
        }
    }
}

/// True when some history goes wrong without a rule.
fn is_found(rule: Rule) -> bool {
    (0..HISTORIES)
        .any(|seed| std::panic::catch_unwind(|| moving_history(seed, Some(rule)).entries).is_err())
}

#[test]
fn breaches_of_the_rules_of_moved_pages_are_found() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let rules = [Rule::SharersMoveTogether, Rule::MovedPagesKeepBirth, Rule::MovesWaitForOrphans];
    let missed: Vec<Rule> = rules.into_iter().filter(|&rule| !is_found(rule)).collect();
    std::panic::set_hook(quiet);
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn a_survey_of_many_maps_is_made_in_steps_and_finds_each_page_once() {
    let mut world = World::new(3);
    for _ in 0..12 {
        world.checkpoint().expect("a checkpoint");
    }
    let tops = world.tops();
    let mut memory = std::mem::replace(&mut world.memory, Memory::new());
    memory.asked.clear();
    let mut survey = Survey::new(FAMILY, tops, LEAVES.to_vec());
    let mut steps = 0;
    while survey.advance(&mut memory, 1).expect("no page is damaged") == Surveyed::More {
        steps += 1;
        assert!(memory.asked.len() <= steps, "a step reads one page");
    }
    let once: BTreeSet<&Pba> = memory.asked.iter().collect();
    assert_eq!(once.len(), memory.asked.len());
    let found: usize = survey.inner().values().map(|place| place.len()).sum();
    assert!(found == memory.asked.len() && found > 0);
    assert!(survey.inner().keys().all(|&(level, _)| level > 0));
}
