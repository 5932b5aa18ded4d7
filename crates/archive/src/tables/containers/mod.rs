//! The container table: a directory of leaves in memory, and leaves that are read when they are
//! looked at.
//!
//! The directory is a [persistent map](super::persistent) of leaves by the first number of each, so
//! that a clone is one pointer. A leaf that lies on the disk has its place; a leaf that changed has
//! its entries, until a checkpoint gives it a place. One that was written ahead of a checkpoint has
//! both, since others may write over its pages until a snapshot names them. In archives whose leaves
//! are not read on demand, and in those without leaves, all entries are in memory.
//!
//! *Invariant:* a leaf without entries in memory has a place. Each change of its entries takes the
//! place away, so that no change is only in the cache of leaves.
//!
//! *Invariant:* the number beside a leaf is not above its first one, and above all numbers of the leaf
//! before.

#[cfg(feature = "planted-bugs")]
mod broken;
mod cache;
mod store;

use std::{fmt, ops::Deref, sync::Arc};

use onefold_core::Result;

use self::store::Named;
pub(crate) use self::{cache::Entries, store::LeafStore};
use super::{
    container::Container,
    persistent::{LEAF_MAX, Map},
};
use crate::{
    format::{ContainerId, bytes::corrupt},
    leaf_file::LeafPlace,
};

/// The container table.
#[derive(Clone)]
pub struct Containers {
    leaves: Map<ContainerId, Leaf>,
    len: usize,
    /// Leaves whose entries are here, and not only in the cache: where leaves are read on demand, those
    /// that the last snapshot does not name.
    held: usize,
    /// Entries of a leaf at most.
    most: usize,
    /// Where leaves come from, and the snapshot that names them; nothing when all are in memory.
    source: Option<(Arc<LeafStore>, u64)>,
}

#[derive(Clone)]
struct Leaf {
    place: Option<LeafPlace>,
    entries: Option<Arc<Entries>>,
    count: usize,
}

impl Leaf {
    fn changed(entries: Entries) -> Leaf {
        Leaf { place: None, count: entries.len(), entries: Some(Arc::new(entries)) }
    }
}

/// A leaf as a directory names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedLeaf {
    pub(crate) place: LeafPlace,
    /// Not above its first number, and above all of the leaf before.
    pub(crate) first: ContainerId,
    /// How many entries it has.
    pub(crate) count: usize,
}

/// An entry of the table, with the leaf that has it.
#[derive(Clone, Debug)]
pub struct Found {
    leaf: Arc<Entries>,
    at: usize,
}

impl Deref for Found {
    type Target = Container;

    fn deref(&self) -> &Container {
        &self.leaf[self.at].1
    }
}

impl Default for Containers {
    fn default() -> Containers {
        Containers { leaves: Map::default(), len: 0, held: 0, most: LEAF_MAX, source: None }
    }
}

impl Containers {
    /// How many containers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The container with this number of its own.
    ///
    /// # Errors
    /// When the leaf has to be read: `Corrupt` when both copies are lost, `Busy` when these tables
    /// are so old that its pages were written again, `Memory`, and errors of the system.
    pub fn get(&self, id: &ContainerId) -> Result<Option<Found>> {
        let Some((&first, leaf)) = self.leaves.at_most(id) else { return Ok(None) };
        let leaf = self.entries(first, leaf)?;
        let at = leaf.binary_search_by(|(own, _)| own.cmp(id)).ok();
        Ok(at.map(|at| Found { leaf, at }))
    }

    /// True when there is one with this number.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains_key(&self, id: &ContainerId) -> Result<bool> {
        self.get(id).map(|found| found.is_some())
    }

    /// All containers in the order of their numbers. An error, as [`get`](Self::get) has it, stands
    /// for all of a leaf.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        let next = self.leaves.keys().next().copied();
        Iter { containers: self, next, leaf: Arc::default(), at: 0 }
    }

    /// The same from this number on.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn iter_from(&self, id: ContainerId) -> Result<Iter<'_>> {
        let Some((&first, leaf)) = self.leaves.at_most(&id) else { return Ok(self.iter()) };
        let leaf = self.entries(first, leaf)?;
        let at = leaf.partition_point(|(own, _)| *own < id);
        let next = self.leaves.above(&first).map(|(first, _)| *first);
        Ok(Iter { containers: self, next, leaf, at })
    }

    /// The greatest number; `None` when there is no container.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn last_id(&self) -> Result<Option<ContainerId>> {
        let Some((&first, leaf)) = self.leaves.iter().next_back() else { return Ok(None) };
        Ok(self.entries(first, leaf)?.last().map(|(id, _)| *id))
    }

    fn entries(&self, first: ContainerId, leaf: &Leaf) -> Result<Arc<Entries>> {
        match (&leaf.entries, leaf.place, &self.source) {
            (Some(entries), ..) => Ok(entries.clone()),
            (None, Some(place), Some((source, snapshot))) => source.load(&Named {
                place,
                first,
                end: self.leaves.above(&first).map(|(end, _)| *end),
                count: leaf.count,
                snapshot: *snapshot,
            }),
            _ => Err(corrupt("a leaf of the tables lies nowhere")),
        }
    }
}

impl Containers {
    /// Changes the entries of a leaf, which lies in no file from now on.
    fn edit<T>(&mut self, first: ContainerId, edit: impl FnOnce(&mut Entries) -> T) -> Result<T> {
        let nowhere = || corrupt("a leaf of the tables is not there");
        let leaf = self.leaves.get(&first).ok_or_else(nowhere)?;
        let loaded = if leaf.entries.is_none() { Some(self.entries(first, leaf)?) } else { None };
        #[cfg(feature = "planted-bugs")]
        let place = leaf.place;
        let leaf = self.leaves.get_mut(&first).ok_or_else(nowhere)?;
        leaf.place = None;
        if let Some(loaded) = loaded {
            leaf.entries = Some(loaded);
            self.held += 1;
        }
        let entries = Arc::make_mut(leaf.entries.get_or_insert_default());
        let edited = edit(entries);
        leaf.count = entries.len();
        #[cfg(feature = "planted-bugs")]
        {
            broken::let_go(leaf, place, self.source.as_ref());
            self.held -= usize::from(leaf.entries.is_none());
        }
        Ok(edited)
    }

    /// Changes a container; gives what `change` gives, or `None` when it is not there.
    pub(crate) fn change<T>(
        &mut self,
        id: &ContainerId,
        change: impl FnOnce(&mut Container) -> T,
    ) -> Result<Option<T>> {
        let Some(found) = self.get(id)? else { return Ok(None) };
        let at = found.at;
        // Otherwise the leaf would be copied although nobody else has it.
        drop(found);
        let Some((&first, _)) = self.leaves.at_most(id) else { return Ok(None) };
        self.edit(first, |entries| entries.get_mut(at).map(|(_, container)| change(container)))
    }

    /// Puts a container in; gives the one that had the number.
    pub(crate) fn insert(
        &mut self,
        id: ContainerId,
        container: Container,
    ) -> Result<Option<Container>> {
        let before = self.leaves.at_most(&id).map(|(first, _)| *first);
        let Some(mut first) = before.or_else(|| self.leaves.keys().next().copied()) else {
            self.leaves.insert(id, Leaf::changed(vec![(id, container)]));
            (self.len, self.held) = (1, 1);
            return Ok(None);
        };
        if id < first
            && let Some(leaf) = self.leaves.remove(&first)
        {
            self.leaves.insert(id, leaf);
            first = id;
        }
        let most = self.most;
        let (old, upper) = self.edit(first, |entries| {
            match entries.binary_search_by(|(own, _)| own.cmp(&id)) {
                Ok(at) => (Some(std::mem::replace(&mut entries[at].1, container)), None),
                Err(at) => {
                    let is_last = at == entries.len();
                    // Memory is taken for a quarter more, as most leaves are never filled again.
                    if entries.len() == entries.capacity() {
                        entries.reserve_exact((entries.len() / 4 + 4).min(most));
                    }
                    entries.insert(at, (id, container));
                    (None, split(entries, most, is_last))
                }
            }
        })?;
        self.len += usize::from(old.is_none());
        if let Some(upper) = upper
            && let Some((first, _)) = upper.first()
        {
            self.leaves.insert(*first, Leaf::changed(upper));
            self.held += 1;
        }
        Ok(old)
    }

    /// Takes a container out. Changes nothing when it is not there.
    pub(crate) fn remove(&mut self, id: &ContainerId) -> Result<Option<Container>> {
        let Some(found) = self.get(id)? else { return Ok(None) };
        let at = found.at;
        drop(found);
        let Some((&first, _)) = self.leaves.at_most(id) else { return Ok(None) };
        let (gone, left) = self.edit(first, |entries| {
            let gone = (at < entries.len()).then(|| entries.remove(at).1);
            (gone, entries.len())
        })?;
        self.len -= usize::from(gone.is_some());
        if left == 0 {
            self.drop_leaf(first);
        } else if left < self.most / 4 {
            self.join(first, left)?;
        }
        Ok(gone)
    }

    /// Changes all containers, in the order of their numbers, as long as `change` gives no error.
    pub(super) fn change_all(
        &mut self,
        mut change: impl FnMut(&mut Container) -> Result<()>,
    ) -> Result<()> {
        let all: Vec<ContainerId> = self.leaves.keys().copied().collect();
        all.into_iter().try_for_each(|first| {
            self.edit(first, |entries| {
                entries.iter_mut().try_for_each(|(_, container)| change(container))
            })?
        })
    }

    /// Joins a leaf that is nearly empty with the one behind it, or the one before, where there is
    /// room for both.
    fn join(&mut self, first: ContainerId, count: usize) -> Result<()> {
        let room = (self.most / 4 * 3).saturating_sub(count);
        let fits = |(other, leaf): (&ContainerId, &Leaf)| (leaf.count <= room).then_some(*other);
        let behind = self.leaves.above(&first).and_then(fits).map(|other| (first, other));
        let before = first.0.checked_sub(1).map(ContainerId);
        let before = || fits(self.leaves.at_most(&before?)?).map(|other| (other, first));
        let Some((lower, upper)) = behind.or_else(before) else { return Ok(()) };
        let Some(leaf) = self.leaves.get(&upper) else { return Ok(()) };
        let more = self.entries(upper, leaf)?;
        self.edit(lower, |entries| entries.extend(more.iter().cloned()))?;
        self.drop_leaf(upper);
        Ok(())
    }

    fn drop_leaf(&mut self, first: ContainerId) {
        if let Some(Leaf { entries: Some(_), .. }) = self.leaves.remove(&first) {
            self.held = self.held.saturating_sub(1);
        }
    }
}

/// The upper entries of a leaf that has too many.
fn split(entries: &mut Entries, most: usize, at_end: bool) -> Option<Entries> {
    if entries.len() <= most {
        return None;
    }
    // A table that grows at its end leaves leaves behind that are nearly full.
    let kept = if at_end { most - most / 8 } else { most / 2 };
    let upper = entries.split_off(kept.max(1));
    entries.shrink_to_fit();
    Some(upper)
}

/// What checkpoints need.
impl Containers {
    /// Leaves have so many entries at most from now on.
    pub(super) fn limit_leaves(&mut self, most: usize) {
        self.most = most.clamp(2, LEAF_MAX);
    }

    /// The table whose leaves are read from `source` when they are looked at; snapshot `number`
    /// names them. `None` unless their numbers ascend.
    pub(super) fn on_demand(
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
    pub(super) fn in_memory(leaves: Vec<(Option<LeafPlace>, Arc<Entries>)>) -> Option<Containers> {
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
    /// memory.
    pub(super) fn place_changed(
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
            let entries = self.entries(first, leaf)?;
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
    pub(super) fn place_ahead(
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
    pub(super) fn forget_ahead(&mut self, is_such: impl Fn(LeafPlace) -> bool) {
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
    pub(super) fn named(&self) -> Vec<NamedLeaf> {
        let named = |(first, leaf): (&ContainerId, &Leaf)| {
            Some(NamedLeaf { place: leaf.place?, first: *first, count: leaf.count })
        };
        self.leaves.iter().filter_map(named).collect()
    }

    /// The leaves that lie in a file and are in memory all the same.
    pub(super) fn placed(&self) -> impl Iterator<Item = (LeafPlace, &Arc<Entries>)> {
        self.leaves.values().filter_map(|leaf| leaf.place.zip(leaf.entries.as_ref()))
    }

    /// Snapshot `number` names all leaves that have a place: where they are read on demand, they need
    /// not stay in memory.
    pub(super) fn let_go(&mut self, number: u64) {
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

    /// The containers whose leaves are in memory: all, unless leaves are read on demand.
    pub(super) fn loaded(&self) -> impl Iterator<Item = &Container> {
        let leaves = self.leaves.values().filter_map(|leaf| leaf.entries.as_deref());
        leaves.flatten().map(|(_, container)| container)
    }

    /// How many leaves there are.
    #[cfg(test)]
    pub(super) fn leaf_count(&self) -> usize {
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

/// The containers of a table, in the order of their numbers.
pub struct Iter<'a> {
    containers: &'a Containers,
    /// The leaf behind this one.
    next: Option<ContainerId>,
    leaf: Arc<Entries>,
    at: usize,
}

impl Iterator for Iter<'_> {
    type Item = Result<Found>;

    fn next(&mut self) -> Option<Result<Found>> {
        while self.at == self.leaf.len() {
            let first = self.next.take()?;
            let leaves = &self.containers.leaves;
            self.next = leaves.above(&first).map(|(first, _)| *first);
            match self.containers.entries(first, leaves.get(&first)?) {
                Ok(leaf) => (self.leaf, self.at) = (leaf, 0),
                Err(error) => return Some(Err(error)),
            }
        }
        let at = self.at;
        self.at += 1;
        Some(Ok(Found { leaf: self.leaf.clone(), at }))
    }
}

impl<'a> IntoIterator for &'a Containers {
    type Item = Result<Found>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl PartialEq for Containers {
    /// Tables whose leaves can't be read are equal to none.
    fn eq(&self, other: &Containers) -> bool {
        let mut both = self.iter().zip(other);
        self.len == other.len && both.all(|both| matches!(both, (Ok(a), Ok(b)) if *a == *b))
    }
}

impl Eq for Containers {}

impl fmt::Debug for Containers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.loaded().map(|container| container.stored.id).collect();
        f.debug_struct("Containers").field("len", &self.len).field("in memory", &ids).finish()
    }
}
