//! Random histories of maps that share pages, in memory: after each checkpoint all counts are
//! compared with the rule, and at the end nothing may be left.

mod moving;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use onefold_core::{Block, Error, Kind, Pba, Result};

use super::{Budget, Leaving, MapPages, MapStore, Orphan, Sharing, Waiting, orphans::Handed};
use crate::format::{
    Identity,
    page::{self, FANOUT, Form, MapEntry, Page, PageId, Pointer, Root, Table},
    record::WindowNumber,
    share::Share,
};
use crate::rules::Rule;

/// Pages, accounts and counts in memory.
struct Memory {
    identity: Identity,
    pages: BTreeMap<Pba, (PageId, Arc<Page>)>,
    shares: BTreeMap<Pba, Share>,
    blocks: BTreeMap<Pba, i64>,
    birth: WindowNumber,
    next: u64,
    released: Vec<Pba>,
    /// Pages that were asked for since an orphan was begun.
    asked: Vec<Pba>,
    /// Pages that can't be read.
    rotten: BTreeSet<Pba>,
    inexact: bool,
    broken: Option<Rule>,
}

impl Memory {
    fn new() -> Memory {
        Memory {
            identity: Identity::new([7; 16], [9; 32], onefold_core::Algorithm::Blake3),
            pages: BTreeMap::new(),
            shares: BTreeMap::new(),
            blocks: BTreeMap::new(),
            birth: WindowNumber(1),
            next: 1000,
            released: Vec::new(),
            asked: Vec::new(),
            rotten: BTreeSet::new(),
            inexact: false,
            broken: None,
        }
    }

    /// No page was read twice for one orphan; those beside what can't be read may be.
    fn each_was_asked_for_once(&self) {
        let once: BTreeSet<&Pba> = self.asked.iter().collect();
        assert!(once.len() == self.asked.len() || !self.rotten.is_empty(), "{:?}", self.asked);
    }

    /// The accounts that a step changed.
    fn keep(&mut self, changed: Vec<(Pba, Share)>) {
        for (page, share) in changed {
            if share == Share::default() {
                self.shares.remove(&page);
            } else {
                self.shares.insert(page, share);
            }
        }
    }
}

impl MapPages for Memory {
    fn read(&mut self, pages: &[(PageId, Pointer)]) -> Vec<Result<Arc<Page>>> {
        self.asked.extend(pages.iter().map(|(_, page)| page.address));
        let missing = || Error::new(Kind::Corrupt, "a page is read that is free");
        let read = |(id, pointer): &(PageId, Pointer)| {
            let (found, page) = self.pages.get(&pointer.address).ok_or_else(missing)?;
            assert_eq!(found, id);
            if self.rotten.contains(&pointer.address) {
                return Err(Error::new(Kind::Corrupt, "it is rotten"));
            }
            Ok(page.clone())
        };
        pages.iter().map(read).collect()
    }

    fn share(&mut self, page: Pba) -> Result<Share> {
        Ok(self.shares.get(&page).copied().unwrap_or_default())
    }

    fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }
}

impl MapStore for Memory {
    fn write_of(
        &mut self,
        id: PageId,
        mut page: Box<Block>,
        birth: Option<WindowNumber>,
    ) -> Result<Pointer> {
        let address = Pba(self.next);
        self.next += 1;
        let birth = birth.unwrap_or(self.birth);
        let pointer = page::seal(&self.identity, id, address, birth, &mut page)?;
        self.pages.insert(address, (id, Arc::new(page.0)));
        Ok(pointer)
    }

    fn inexact(&mut self) {
        self.inexact = true;
    }

    fn is_inexact(&self) -> bool {
        self.inexact
    }

    fn release(&mut self, page: Pba) {
        self.released.push(page);
    }

    fn raise(&mut self, entry: MapEntry) {
        if let MapEntry::Block { pba, .. } = entry {
            *self.blocks.entry(pba).or_default() += 1;
        }
    }

    fn lower(&mut self, entry: MapEntry) {
        if let MapEntry::Block { pba, .. } = entry {
            *self.blocks.entry(pba).or_default() -= 1;
        }
    }
}

/// A map, and what it must hold.
#[derive(Clone, Default)]
struct Map {
    root: Root,
    cells: BTreeMap<u64, MapEntry>,
}

/// A family of maps over its memory.
struct World {
    memory: Memory,
    /// Volumes and clones.
    volumes: Vec<Map>,
    snapshots: Vec<Map>,
    leaving: Vec<Leaving>,
    orphans: Vec<Orphan>,
    dice: Dice,
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Histories that the test makes. Three thousand were run when this was written.
const HISTORIES: u64 = 100;

const FAMILY: u32 = 5;

/// Leaves that histories touch: neighbours, and others below pages of their own.
const LEAVES: [u64; 8] = [0, 1, 2, FANOUT - 1, FANOUT, FANOUT + 1, 5 * FANOUT, FANOUT * FANOUT + 3];

fn block(n: u64) -> MapEntry {
    MapEntry::Block { pba: Pba(10 + n), form: Form::of(n.is_multiple_of(3)), prefix: n }
}

impl World {
    fn new(seed: u64) -> World {
        World {
            memory: Memory::new(),
            volumes: vec![Map::default()],
            snapshots: Vec::new(),
            leaving: Vec::new(),
            orphans: Vec::new(),
            dice: Dice(seed),
        }
    }

    /// One checkpoint: what nobody waits for, changes of some maps, then acts.
    fn checkpoint(&mut self) -> Result<()> {
        if self.dice.roll(4) > 0 {
            self.memory.birth = WindowNumber(self.memory.birth.0 + 1);
        }
        let mut budget = Budget(1 + self.dice.roll(6) as usize);
        self.background(&mut budget)?;
        for n in 0..self.volumes.len() {
            if self.dice.roll(2) == 0 {
                self.write(n)?;
            }
        }
        for _ in 0..self.dice.roll(3) {
            self.act()?;
        }
        self.end();
        Ok(())
    }

    fn background(&mut self, budget: &mut Budget) -> Result<()> {
        let mut roots = self.roots();
        let mut sharing = Sharing::new(&mut self.memory);
        let mut leaving = std::mem::take(&mut self.leaving);
        while let Some(one) = leaving.pop() {
            if let Some(rest) = sharing.take_apart(one, budget)? {
                leaving.push(rest);
                break;
            }
        }
        roots.extend(leaving.iter().map(|one| Top { id: one.id, page: one.page }));
        let (mut waiting, mut stuck) = (Waiting::default(), Vec::new());
        waiting.add(std::mem::take(&mut self.orphans));
        waiting.add(std::mem::take(&mut sharing.orphaned));
        while leaving.is_empty() && budget.0 > 0 {
            let Some(orphan) = waiting.next(&mut sharing)? else { break };
            waiting.remove(&orphan);
            let Some(there) = there(&roots, orphan.id, sharing.store) else {
                sharing.store.inexact();
                stuck.push(orphan);
                continue;
            };
            sharing.store.asked.clear();
            let handed = sharing.hand_over(orphan, &there, budget)?;
            sharing.store.each_was_asked_for_once();
            match handed {
                Handed::Waits => stuck.push(orphan),
                Handed::Over => {}
                Handed::Leaves(one) => leaving.push(one),
                Handed::Partly => waiting.add(vec![orphan]),
            }
            waiting.add(std::mem::take(&mut sharing.orphaned));
        }
        let mut orphans = waiting.into_orphans();
        let changed = sharing_accounts(sharing);
        orphans.append(&mut stuck);
        (self.orphans, self.leaving) = (orphans, leaving);
        self.memory.keep(changed);
        Ok(())
    }

    /// Random changes of a map.
    fn write(&mut self, n: usize) -> Result<()> {
        let mut cells: BTreeMap<u64, MapEntry> = BTreeMap::new();
        let per_leaf = Table::Map.per_leaf();
        for _ in 0..1 + self.dice.roll(6) {
            let leaf = LEAVES[self.dice.roll(LEAVES.len() as u64) as usize];
            if self.dice.roll(6) == 0 {
                for slot in 0..per_leaf {
                    cells.insert(leaf * per_leaf + slot, MapEntry::Hole);
                }
                continue;
            }
            let new = match self.dice.roll(8) {
                0 => MapEntry::Hole,
                1 => MapEntry::Zero,
                _ => block(self.dice.roll(9)),
            };
            cells.insert(leaf * per_leaf + self.dice.roll(4), new);
        }
        let leaves: BTreeSet<u64> = cells.keys().map(|cell| cell / per_leaf).collect();
        let leaves: Vec<u64> = leaves.into_iter().collect();
        let map = &mut self.volumes[n];
        let mut sharing = Sharing::new(&mut self.memory);
        let rewritten = sharing.rewrite(FAMILY, &map.root, &leaves, &mut |leaf, _, page| {
            for (cell, new) in cells.range(leaf * per_leaf..(leaf + 1) * per_leaf) {
                new.set(page, cell % per_leaf);
            }
            Ok(page::body(page).iter().any(|&byte| byte != 0))
        })?;
        let mapped = |map: &Map| {
            map.cells.values().filter(|cell| matches!(cell, MapEntry::Block { .. })).count() as i64
        };
        let before = mapped(map);
        map.root = rewritten.root;
        for (cell, new) in cells {
            map.cells.insert(cell, new);
            if new == MapEntry::Hole {
                map.cells.remove(&cell);
            }
        }
        assert_eq!(mapped(map) - before, rewritten.mapped);
        self.orphans.append(&mut sharing.orphaned);
        let changed = sharing_accounts(sharing);
        self.memory.keep(changed);
        Ok(())
    }

    /// A snapshot, a clone, a rollback or a deletion.
    fn act(&mut self) -> Result<()> {
        let what = self.dice.roll(10);
        let volume = (!self.volumes.is_empty())
            .then(|| self.dice.roll(self.volumes.len().max(1) as u64) as usize);
        let snapshot = (!self.snapshots.is_empty())
            .then(|| self.dice.roll(self.snapshots.len().max(1) as u64) as usize);
        match (what, volume, snapshot) {
            (0..4, Some(volume), _) if self.snapshots.len() < 6 => {
                let map = self.volumes[volume].clone();
                self.name(&map)?;
                self.snapshots.push(map);
            }
            // Whoever writes to what is rotten waits for a repair, as in any store.
            (4 | 5, ..) if !self.memory.rotten.is_empty() => {}
            (4, _, Some(snapshot)) if self.volumes.len() < 4 => {
                let map = self.snapshots[snapshot].clone();
                self.name(&map)?;
                self.volumes.push(map);
            }
            (5, Some(volume), Some(snapshot)) => {
                let map = self.snapshots[snapshot].clone();
                self.name(&map)?;
                let old = std::mem::replace(&mut self.volumes[volume], map);
                self.leave(&old);
            }
            (6 | 7, _, Some(snapshot)) => {
                let old = self.snapshots.remove(snapshot);
                self.leave(&old);
            }
            (8, Some(volume), _) if self.volumes.len() > 1 => {
                let old = self.volumes.remove(volume);
                self.leave(&old);
            }
            _ => {}
        }
        Ok(())
    }

    fn name(&mut self, map: &Map) -> Result<()> {
        if map.root.height > 0 {
            let mut sharing = Sharing::new(&mut self.memory);
            sharing.name(&map.root.page)?;
            let changed = sharing_accounts(sharing);
            self.memory.keep(changed);
        }
        Ok(())
    }

    fn leave(&mut self, map: &Map) {
        if map.root.height > 0 {
            let id =
                PageId { table: Table::Map, volume: FAMILY, level: map.root.height - 1, index: 0 };
            self.leaving.push(Leaving { id, page: map.root.page });
        }
    }

    /// The checkpoint is durable.
    fn end(&mut self) {
        for page in std::mem::take(&mut self.memory.released) {
            assert!(self.memory.pages.remove(&page).is_some(), "page {page} is freed twice");
            self.memory.rotten.remove(&page);
        }
    }

    fn roots(&self) -> Vec<Top> {
        let maps = self.volumes.iter().chain(&self.snapshots).filter(|map| map.root.height > 0);
        maps.map(|map| Top {
            id: PageId { table: Table::Map, volume: FAMILY, level: map.root.height - 1, index: 0 },
            page: map.root.page,
        })
        .collect()
    }

    /// All counts are as the rule says, and every map holds what it must.
    fn check(&mut self) {
        let mut tops = self.roots();
        tops.extend(self.leaving.iter().map(|one| Top { id: one.id, page: one.page }));
        let mut pages: BTreeMap<Pba, (PageId, Pointer)> = BTreeMap::new();
        let mut names: BTreeMap<Pba, u32> = BTreeMap::new();
        let mut blocks: BTreeMap<Pba, i64> = BTreeMap::new();
        let mut rest: Vec<(PageId, Pointer)> = tops.iter().map(|top| (top.id, top.page)).collect();
        rest.iter().for_each(|(_, page)| *names.entry(page.address).or_default() += 1);
        rest.extend(self.orphans.iter().map(|orphan| (orphan.id, orphan.page)));
        while let Some((id, pointer)) = rest.pop() {
            if pages.insert(pointer.address, (id, pointer)).is_some() {
                continue;
            }
            let (_, page) = self.memory.pages.get(&pointer.address).expect("a live page is there");
            let share = self.memory.shares.get(&pointer.address).copied().unwrap_or_default();
            let lender = share.lender.map(|lender| {
                assert!(lender.birth <= pointer.birth);
                let (of, page) = self.memory.pages.get(&lender.address).expect("a lender is there");
                assert_eq!(*of, id);
                page.clone()
            });
            if id.level == 0 {
                for slot in 0..Table::Map.per_leaf() {
                    let entry = MapEntry::get(page, slot).expect("an entry");
                    let lent =
                        lender.as_ref().map(|lender| MapEntry::get(lender, slot).expect("one"));
                    if let MapEntry::Block { pba, .. } = entry
                        && lent != Some(entry)
                    {
                        *blocks.entry(pba).or_default() += 1;
                    }
                }
                continue;
            }
            for slot in 0..FANOUT {
                let child = page::pointer(page, slot);
                if child.is_none() {
                    continue;
                }
                let index = id.index * FANOUT + slot;
                rest.push((PageId { level: id.level - 1, index, ..id }, child));
                if lender.as_ref().is_none_or(|lender| page::pointer(lender, slot) != child) {
                    *names.entry(child.address).or_default() += 1;
                }
            }
        }
        let mut borrowers: BTreeMap<Pba, u32> = BTreeMap::new();
        for page in pages.keys() {
            if let Some(lender) = self.memory.shares.get(page).and_then(|share| share.lender) {
                // One that only a rotten page names stays for ever.
                let is_live = pages.contains_key(&lender.address) || self.memory.inexact;
                assert!(is_live, "a lender is live");
                *borrowers.entry(lender.address).or_default() += 1;
            }
        }
        for page in pages.keys() {
            let share = self.memory.shares.get(page).copied().unwrap_or_default();
            let named = names.get(page).copied().unwrap_or_default();
            let lent = borrowers.get(page).copied().unwrap_or_default();
            assert!(share.count >= named && share.borrowers >= lent, "too low: {page}");
            if !self.memory.inexact {
                assert_eq!((share.count, share.borrowers), (named, lent), "count of {page}");
            }
        }
        for (block, named) in &blocks {
            let count = self.memory.blocks.get(block).copied().unwrap_or_default();
            assert!(count >= *named, "block {block} counts {count}, and has {named}");
        }
        for map in self.volumes.iter().chain(&self.snapshots) {
            assert_eq!(self.content(&map.root), map.cells);
        }
        if self.memory.inexact {
            return;
        }
        assert_eq!(self.memory.pages.len(), pages.len(), "a page that nobody names is not free");
        assert!(self.memory.shares.keys().all(|page| pages.contains_key(page)));
        self.memory.blocks.retain(|_, count| *count != 0);
        assert_eq!(self.memory.blocks, blocks);
    }

    /// A page rots that no volume has: one of a snapshot, of what leaves, or one that lends.
    fn rot(&mut self) {
        let mut live = BTreeSet::new();
        for map in self.volumes.iter().filter(|map| map.root.height > 0) {
            let mut rest = vec![(map.root.height - 1, map.root.page)];
            while let Some((level, pointer)) = rest.pop() {
                if live.insert(pointer.address) && level > 0 {
                    let (_, page) = &self.memory.pages[&pointer.address];
                    let children = (0..FANOUT).map(|slot| page::pointer(page, slot));
                    rest.extend(
                        children.filter(|child| !child.is_none()).map(|child| (level - 1, child)),
                    );
                }
            }
        }
        let old: Vec<Pba> =
            self.memory.pages.keys().filter(|page| !live.contains(page)).copied().collect();
        if !old.is_empty() {
            let n = self.dice.roll(old.len() as u64) as usize;
            self.memory.rotten.insert(old[n]);
        }
    }

    /// The entries of a map.
    fn content(&self, root: &Root) -> BTreeMap<u64, MapEntry> {
        let mut cells = BTreeMap::new();
        if root.height == 0 {
            return cells;
        }
        let mut rest = vec![(root.height - 1, 0, root.page)];
        while let Some((level, index, pointer)) = rest.pop() {
            let (_, page) = &self.memory.pages[&pointer.address];
            if level == 0 {
                let per_leaf = Table::Map.per_leaf();
                for slot in 0..per_leaf {
                    match MapEntry::get(page, slot) {
                        Some(MapEntry::Hole) => {}
                        entry => drop(cells.insert(index * per_leaf + slot, entry.expect("one"))),
                    }
                }
            } else {
                let children = (0..FANOUT).map(|slot| (slot, page::pointer(page, slot)));
                rest.extend(
                    children
                        .filter(|(_, child)| !child.is_none())
                        .map(|(slot, child)| (level - 1, index * FANOUT + slot, child)),
                );
            }
        }
        cells
    }
}

/// A top page of a map.
struct Top {
    id: PageId,
    page: Pointer,
}

/// The pages of all maps at one place; `None` when one that can't be read hides some.
fn there(roots: &[Top], id: PageId, memory: &Memory) -> Option<Vec<Pointer>> {
    let mut found: BTreeMap<Pba, Pointer> = BTreeMap::new();
    for Top { id: top, page } in roots {
        let (mut at, mut level) = (*page, top.level);
        if level < id.level || top.index != id.index / FANOUT.pow(u32::from(level - id.level)) {
            continue;
        }
        while level > id.level && !at.is_none() {
            if memory.rotten.contains(&at.address) {
                return None;
            }
            let (_, page) = &memory.pages[&at.address];
            level -= 1;
            at = page::pointer(page, id.index / FANOUT.pow(u32::from(level - id.level)) % FANOUT);
        }
        if !at.is_none() {
            found.insert(at.address, at);
        }
    }
    Some(found.into_values().collect())
}

fn sharing_accounts(sharing: Sharing<'_, Memory>) -> Vec<(Pba, Share)> {
    sharing.accounts.changed().iter().map(|(&page, &share)| (page, share)).collect()
}

#[test]
fn all_counts_are_as_the_rule_says_whatever_is_copied_and_deleted() {
    for seed in 0..HISTORIES {
        let mut world = World::new(seed);
        for _ in 0..30 {
            world.checkpoint().unwrap_or_else(|e| panic!("history {seed}: {e}"));
            world.check();
        }
        for map in
            std::mem::take(&mut world.volumes).iter().chain(&std::mem::take(&mut world.snapshots))
        {
            world.leave(map);
        }
        for _ in 0..10_000 {
            if world.leaving.is_empty() && world.orphans.is_empty() {
                break;
            }
            world.background(&mut Budget(3)).unwrap_or_else(|e| panic!("history {seed}: {e}"));
            world.end();
            world.check();
        }
        assert!(world.memory.pages.is_empty() && world.memory.shares.is_empty(), "history {seed}");
        assert!(world.memory.blocks.is_empty());
    }
}

/// A leaf that nothing counts for, with one block in it.
fn orphaned_leaf(memory: &mut Memory, index: u64) -> Orphan {
    let id = PageId { table: Table::Map, volume: FAMILY, level: 0, index };
    let mut leaf = Block::zeroed();
    block(index).set(&mut leaf, 0);
    memory.raise(block(index));
    let page = memory.write(id, leaf).unwrap();
    memory.shares.insert(page.address, Share { count: 0, ..Share::default() });
    Orphan { id, page }
}

#[test]
fn rule_00_orphans_that_nobody_borrows_from_go_within_the_budget_of_a_checkpoint() {
    let mut world = World::new(1);
    world.orphans = (0..100).map(|n| orphaned_leaf(&mut world.memory, n)).collect();
    for left in (0..10).rev() {
        world.background(&mut Budget(10)).unwrap();
        world.end();
        assert_eq!(world.orphans.len(), left * 10, "a checkpoint has room for its budget only");
    }
    world.check();
}

#[test]
fn rule_09_orphans_that_borrow_from_each_other_are_damage() {
    for size in 1..4 {
        let mut world = World::new(1);
        let ring: Vec<Orphan> = (0..size).map(|_| orphaned_leaf(&mut world.memory, 0)).collect();
        for (n, orphan) in ring.iter().enumerate() {
            let lender = Some(ring[(n + 1) % size].page);
            let share = Share { count: 0, borrowers: 1, lender };
            world.memory.shares.insert(orphan.page.address, share);
        }
        world.orphans = ring;
        let damage = world.background(&mut Budget(10)).unwrap_err();
        assert_eq!(damage.kind(), Kind::Corrupt, "{damage}");
    }
}

/// A history in which pages rot that no volume has.
fn rotten_history(seed: u64, broken: Option<Rule>) {
    let mut world = World::new(seed);
    world.memory.broken = broken;
    for round in 0..40 {
        world.checkpoint().unwrap_or_else(|e| panic!("history {seed}: {e}"));
        world.check();
        if round > 5 && world.dice.roll(3) == 0 {
            world.rot();
        }
    }
}

#[test]
fn pages_that_rot_stop_no_volume_and_make_no_count_too_low() {
    for seed in 0..HISTORIES {
        rotten_history(seed, None);
    }
}

#[test]
fn an_unread_lender_that_goes_on_lending_is_found() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let broken = Some(Rule::UnreadLenderLendsNoMore);
    let found = (0..HISTORIES)
        .any(|seed| std::panic::catch_unwind(|| rotten_history(seed, broken)).is_err());
    std::panic::set_hook(quiet);
    assert!(found);
}
