//! Leaves of the table at a checkpoint: they get places, and leave memory when a snapshot names them.

use std::sync::Arc;

use onefold_core::Result;

use super::{
    cache::Entries,
    store::LeafStore,
    table::{Containers, Leaf},
};
use crate::{
    format::{ContainerId, damage::is_damage},
    leaf_file::LeafPlace,
    tables::persistent::LEAF_MAX,
};

/// A leaf as a directory names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedLeaf {
    pub(crate) place: LeafPlace,
    /// Not above its first number, and above all of the leaf before.
    pub(crate) first: ContainerId,
    /// How many entries it has.
    pub(crate) count: usize,
}

impl Containers {
    /// Leaves have so many entries at most from now on.
    pub(in crate::tables) fn limit_leaves(&mut self, most: usize) {
        self.most = most.clamp(2, LEAF_MAX);
    }

    /// The table whose leaves are read from `source` when they are looked at; snapshot `number`
    /// names them. `None` unless their numbers ascend.
    pub(in crate::tables) fn on_demand(
        named: &[NamedLeaf],
        source: &Arc<LeafStore>,
        number: u64,
    ) -> Option<Containers> {
        let mut containers =
            Containers { source: Some((source.clone(), number)), ..Containers::default() };
        if !named.windows(2).all(|two| two[0].first < two[1].first) {
            return None;
        }
        for &NamedLeaf { place, first, count } in named {
            if !(1..=LEAF_MAX).contains(&count) {
                return None;
            }
            containers.len += count;
            containers.leaves.insert(first, Leaf { place: Some(place), entries: None, count });
        }
        Some(containers)
    }

    /// The table of these leaves, all in memory, each with its place if it lies in a file. `None`
    /// unless the numbers of all of them ascend.
    pub(in crate::tables) fn in_memory(
        leaves: Vec<(Option<LeafPlace>, Arc<Entries>)>,
    ) -> Option<Containers> {
        let (mut containers, mut last) = (Containers::default(), None);
        for (place, entries) in leaves {
            let ascend = entries.windows(2).all(|two| two[0].0 < two[1].0);
            let (first, end) = (entries.first()?.0, entries.last()?.0);
            if !ascend || entries.len() > LEAF_MAX || last.is_some_and(|last| last >= first) {
                return None;
            }
            last = Some(end);
            let count = entries.len();
            containers.len += count;
            containers.held += 1;
            containers.leaves.insert(first, Leaf { place, entries: Some(entries), count });
        }
        Some(containers)
    }

    /// Gives a place to each leaf that has none, or whose first copy is damaged. The entries stay in
    /// memory. A leaf that has lost both copies keeps its place: all others go on.
    pub(in crate::tables) fn place_changed(
        &mut self,
        mut place: impl FnMut(&Entries) -> Result<Option<LeafPlace>>,
    ) -> Result<()> {
        let is_damaged = |place: &LeafPlace| {
            self.source.as_ref().is_some_and(|(source, _)| source.is_damaged(place))
        };
        let changed =
            self.leaves.iter().filter(|(_, leaf)| leaf.place.is_none_or(|at| is_damaged(&at)));
        let changed: Vec<ContainerId> = changed.map(|(first, _)| *first).collect();
        for first in changed {
            let Some(leaf) = self.leaves.get(&first) else { continue };
            let entries = match self.entries(first, leaf) {
                Err(error) if is_damage(&error) && leaf.place.is_some() => continue,
                entries => entries?,
            };
            let place = place(&entries)?;
            if let Some(leaf) = self.leaves.get_mut(&first) {
                self.held += usize::from(leaf.entries.is_none());
                (leaf.place, leaf.entries) = (place, Some(entries));
            }
        }
        Ok(())
    }

    /// Gives a place to leaves that have none, `left` of them at most, which are less then. No snapshot
    /// names these places, so the entries stay in memory.
    pub(in crate::tables) fn place_ahead(
        &mut self,
        left: &mut usize,
        mut place: impl FnMut(&Entries) -> Result<LeafPlace>,
    ) -> Result<()> {
        let changed = self.leaves.iter().filter(|(_, leaf)| leaf.place.is_none());
        let changed: Vec<ContainerId> = changed.map(|(first, _)| *first).take(*left).collect();
        for first in changed {
            if let Some(leaf) = self.leaves.get_mut(&first)
                && let Some(entries) = &leaf.entries
            {
                leaf.place = Some(place(entries)?);
                *left -= 1;
            }
        }
        Ok(())
    }

    /// Leaves at such places count as changed, if their entries are here: one that a snapshot names
    /// and that is read on demand keeps its place.
    pub(in crate::tables) fn forget_ahead(&mut self, is_such: impl Fn(LeafPlace) -> bool) {
        let ahead = self.leaves.iter().filter(|(_, leaf)| leaf.entries.is_some());
        let such = ahead.filter(|(_, leaf)| leaf.place.is_some_and(&is_such));
        let such: Vec<ContainerId> = such.map(|(first, _)| *first).collect();
        for first in such {
            if let Some(leaf) = self.leaves.get_mut(&first) {
                leaf.place = None;
            }
        }
    }

    /// The leaves that lie in a file, in their order.
    pub(in crate::tables) fn named(&self) -> Vec<NamedLeaf> {
        let named = |(first, leaf): (&ContainerId, &Leaf)| {
            Some(NamedLeaf { place: leaf.place?, first: *first, count: leaf.count })
        };
        self.leaves.iter().filter_map(named).collect()
    }

    /// The leaves that lie in a file and are in memory all the same.
    pub(in crate::tables) fn placed(&self) -> impl Iterator<Item = (LeafPlace, &Arc<Entries>)> {
        self.leaves.values().filter_map(|leaf| leaf.place.zip(leaf.entries.as_ref()))
    }

    /// Snapshot `number` names all leaves that have a place: where they are read on demand, they need
    /// not stay in memory.
    pub(in crate::tables) fn let_go(&mut self, number: u64) {
        let Some((source, snapshot)) = &mut self.source else { return };
        *snapshot = number;
        let loaded = self.leaves.iter();
        let loaded = loaded.filter(|(_, leaf)| leaf.place.is_some() && leaf.entries.is_some());
        let loaded: Vec<ContainerId> = loaded.map(|(first, _)| *first).collect();
        for first in loaded {
            let Some(leaf) = self.leaves.get_mut(&first) else { continue };
            if let Some((place, entries)) = leaf.place.zip(leaf.entries.take()) {
                source.keep(place, entries);
                self.held -= 1;
            }
        }
    }

    /// How many leaves there are.
    #[cfg(test)]
    pub(in crate::tables) fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// Leaves without a place: they changed since the last snapshot, and were not written ahead of
    /// the next one.
    pub(crate) fn changed(&self) -> usize {
        self.leaves.values().filter(|leaf| leaf.place.is_none()).count()
    }

    /// Leaves that are in memory until a snapshot names them, where leaves are read on demand: those
    /// that changed, written ahead or not.
    pub(crate) fn held_leaves(&self) -> usize {
        self.held
    }
}
