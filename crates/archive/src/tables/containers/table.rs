//! The container table, and look-ups in it.

use std::{fmt, ops::Deref, sync::Arc};

use onefold_core::Result;

use super::{
    cache::Entries,
    store::{LeafStore, Named},
};
use crate::{
    format::{ContainerId, bytes::corrupt},
    leaf_file::LeafPlace,
    tables::{
        container::Container,
        persistent::{LEAF_MAX, Map},
    },
};

/// The container table.
#[derive(Clone)]
pub struct Containers {
    pub(super) leaves: Map<ContainerId, Leaf>,
    pub(super) len: usize,
    /// Leaves whose entries are here, and not only in the cache: where leaves are read on demand, those
    /// that the last snapshot does not name.
    pub(super) held: usize,
    /// Entries of a leaf at most.
    pub(super) most: usize,
    /// Where leaves come from, and the snapshot that names them; nothing when all are in memory.
    pub(super) source: Option<(Arc<LeafStore>, u64)>,
}

#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) place: Option<LeafPlace>,
    pub(super) entries: Option<Arc<Entries>>,
    pub(super) count: usize,
}

impl Leaf {
    pub(super) fn changed(entries: Entries) -> Leaf {
        Leaf { place: None, count: entries.len(), entries: Some(Arc::new(entries)) }
    }
}

/// An entry of the table, with the leaf that has it.
#[derive(Clone, Debug)]
pub struct Found {
    leaf: Arc<Entries>,
    pub(super) at: usize,
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
        self.iter_from(ContainerId(0))
    }

    /// The same from this number on.
    #[must_use]
    pub fn iter_from(&self, id: ContainerId) -> Iter<'_> {
        let at_most = self.leaves.at_most(&id).map(|(first, _)| *first);
        let next = at_most.or_else(|| self.leaves.keys().next().copied());
        Iter { containers: self, next, from: id, leaf: Arc::default(), at: 0 }
    }

    /// The greatest number; `None` when there is no container.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn last_id(&self) -> Result<Option<ContainerId>> {
        let Some((&first, leaf)) = self.leaves.iter().next_back() else { return Ok(None) };
        Ok(self.entries(first, leaf)?.last().map(|(id, _)| *id))
    }

    /// The containers whose leaves are in memory: all, unless leaves are read on demand.
    pub(in crate::tables) fn loaded(&self) -> impl Iterator<Item = &Container> {
        let leaves = self.leaves.values().filter_map(|leaf| leaf.entries.as_deref());
        leaves.flatten().map(|(_, container)| container)
    }

    /// The entries of a leaf, from memory or from the disk.
    pub(super) fn entries(&self, first: ContainerId, leaf: &Leaf) -> Result<Arc<Entries>> {
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

/// The containers of a table, in the order of their numbers.
pub struct Iter<'a> {
    containers: &'a Containers,
    /// The leaf behind this one.
    next: Option<ContainerId>,
    /// Where it begins.
    from: ContainerId,
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
                Ok(leaf) => {
                    self.at = leaf.partition_point(|(own, _)| *own < self.from);
                    self.leaf = leaf;
                }
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
