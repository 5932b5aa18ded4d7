//! Maps and lists whose clones share what they have in common.
//!
//! Each commit makes new tables of the ones before, which sessions and readers still look at. These
//! maps are trees of sorted leaves behind `Arc`: a clone is one pointer, and a change copies one
//! leaf and the nodes above it, unless nobody else has them. A change of a million entries costs
//! what a change of a thousand does.
//!
//! *Invariants:* all leaves are equally deep. A node has at most [`LEAF_MAX`] entries or
//! [`INNER_MAX`] children, and none is empty but a root. The key beside a child is at most its
//! first key, and greater than all keys of the child before. A leaf that knows its place in a file
//! has the entries that lie there: each change of its entries forgets the place.

mod leaves;

use std::{borrow::Borrow, cmp::Ordering, fmt, iter::FusedIterator, mem, slice, sync::Arc};

pub(crate) use self::leaves::SharedLeaf;
use crate::leaf_file::LeafPlace;

/// Entries of a leaf at most. Tests have small nodes, so that they meet deep trees.
pub(crate) const LEAF_MAX: usize = if cfg!(test) { 8 } else { 512 };

/// Children of a node above the leaves at most.
const INNER_MAX: usize = if cfg!(test) { 4 } else { 64 };

/// A sorted map. Its clones share nodes.
pub struct Map<K, V> {
    root: Arc<Node<K, V>>,
    len: usize,
    /// Entries of a leaf at most; fewer than [`LEAF_MAX`] where a simulation wants many leaves.
    most: usize,
}

#[derive(Clone)]
enum Node<K, V> {
    Leaf(Leaf<K, V>),
    Inner(Vec<Child<K, V>>),
}

#[derive(Clone)]
struct Leaf<K, V> {
    entries: Vec<(K, V)>,
    /// The place of these entries in a file, if they lie in one.
    place: Option<LeafPlace>,
}

impl<K, V> Leaf<K, V> {
    fn of(entries: Vec<(K, V)>) -> Leaf<K, V> {
        Leaf { entries, place: None }
    }

    /// The entries, to be changed: they lie in no file from now on.
    fn change(&mut self) -> &mut Vec<(K, V)> {
        self.place = None;
        &mut self.entries
    }
}

impl<K, V> Node<K, V> {
    fn empty() -> Arc<Node<K, V>> {
        Arc::new(Node::Leaf(Leaf::of(Vec::new())))
    }
}

/// A key that is not above those of the node, and the node.
type Child<K, V> = (K, Arc<Node<K, V>>);

/// The effect of putting an entry into a node.
enum Inserted<K, V> {
    /// The entry replaced this value.
    Replaced(V),
    /// The entry is new; with the node's upper half, when the node was full.
    New(Option<Child<K, V>>),
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Map<K, V> {
        Map { root: self.root.clone(), len: self.len, most: self.most }
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Map<K, V> {
        Map { root: Node::empty(), len: 0, most: LEAF_MAX }
    }
}

impl<K, V> Map<K, V> {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entries in the order of their keys.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V> {
        let (front, back) = (Path::to(&self.root, End::First), Path::to(&self.root, End::Last));
        Iter { front, back, left: self.len }
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> Map<K, V> {
    /// The value of a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(Leaf { entries, .. }) => {
                    return find(entries, key).ok().map(|n| &entries[n].1);
                }
                Node::Inner(children) => node = &children[child_of(children, key)].1,
            }
        }
    }

    /// True when the key is there.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The entry with the greatest key that is not above this one.
    pub(crate) fn at_most(&self, key: &K) -> Option<(&K, &V)> {
        self.root.at_most(key)
    }

    /// The entry with the least key above this one.
    pub(crate) fn above(&self, key: &K) -> Option<(&K, &V)> {
        self.root.above(key)
    }
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    /// The value of a key, to be changed. Copies nothing when the key is not there.
    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        let mut node = Arc::make_mut(&mut self.root);
        loop {
            match node {
                Node::Leaf(leaf) => {
                    let entries = leaf.change();
                    return find(entries, key).ok().map(|n| &mut entries[n].1);
                }
                Node::Inner(children) => {
                    let n = child_of(children, key);
                    node = Arc::make_mut(&mut children[n].1);
                }
            }
        }
    }

    /// Puts an entry in; gives the value that the key had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match Arc::make_mut(&mut self.root).insert(key, value, self.most) {
            Inserted::Replaced(before) => return Some(before),
            Inserted::New(upper) => self.grow(upper),
        }
        self.len += 1;
        None
    }

    /// Puts a root above the old one, of which `upper` was split off.
    fn grow(&mut self, upper: Option<Child<K, V>>) {
        let Some(upper) = upper else { return };
        // The lower half of what was split has entries.
        let Some(first) = self.root.first_key().cloned() else { return };
        let lower = mem::replace(&mut self.root, Node::empty());
        self.root = Arc::new(Node::Inner(vec![(first, lower), upper]));
    }

    /// Takes an entry out; gives its value. Copies nothing when the key is not there.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if !self.contains_key(key) {
            return None;
        }
        let gone = Arc::make_mut(&mut self.root).remove(key, self.most)?;
        self.len -= 1;
        self.shrink();
        Some(gone)
    }

    /// Takes out all entries whose keys are less than `key`; whole nodes at once.
    pub(crate) fn remove_before(&mut self, key: &K) {
        if self.iter().next().is_some_and(|(first, _)| first < key) {
            self.len -= Arc::make_mut(&mut self.root).remove_before(key, self.most);
            self.shrink();
        }
    }

    /// Takes roots away that have one child, or none.
    fn shrink(&mut self) {
        while let Node::Inner(children) = &*self.root
            && children.len() < 2
        {
            let only = children.first().map(|(_, only)| only.clone());
            self.root = only.unwrap_or_else(Node::empty);
        }
    }

    /// Changes the value of a key, which is the default one when the key was not there.
    pub(crate) fn change(&mut self, key: K, change: impl FnOnce(&mut V))
    where
        V: Default,
    {
        if let Some(value) = self.get_mut(&key) {
            return change(value);
        }
        let mut value = V::default();
        change(&mut value);
        self.insert(key, value);
    }

    /// Changes all values, in the order of their keys, as long as `change` gives no error.
    pub(crate) fn try_change_all<E>(
        &mut self,
        mut change: impl FnMut(&mut V) -> Result<(), E>,
    ) -> Result<(), E> {
        Arc::make_mut(&mut self.root).try_change_all(&mut change)
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for Map<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, value)| {
            self.insert(key, value);
        });
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for Map<K, V> {
    fn eq(&self, other: &Map<K, V>) -> bool {
        self.len == other.len
            && (Arc::ptr_eq(&self.root, &other.root) || self.iter().eq(other.iter()))
    }
}

impl<K: Eq, V: Eq> Eq for Map<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord, V> Node<K, V> {
    fn at_most(&self, key: &K) -> Option<(&K, &V)> {
        match self {
            Node::Leaf(Leaf { entries, .. }) => {
                let behind = entries.partition_point(|(own, _)| own <= key);
                entries[..behind].last().map(|(key, value)| (key, value))
            }
            // The first keys of a child may be gone: then the child before has it.
            Node::Inner(children) => {
                let upto = children.get(..=child_of(children, key)).unwrap_or_default();
                upto.iter().rev().find_map(|(_, child)| child.at_most(key))
            }
        }
    }

    fn above(&self, key: &K) -> Option<(&K, &V)> {
        match self {
            Node::Leaf(Leaf { entries, .. }) => {
                let behind = entries.partition_point(|(own, _)| own <= key);
                entries.get(behind).map(|(key, value)| (key, value))
            }
            Node::Inner(children) => {
                let from = children.get(child_of(children, key)..).unwrap_or_default();
                from.iter().find_map(|(_, child)| child.above(key))
            }
        }
    }
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    fn first_key(&self) -> Option<&K> {
        match self {
            Node::Leaf(leaf) => leaf.entries.first().map(|(key, _)| key),
            Node::Inner(children) => children.first().map(|(key, _)| key),
        }
    }

    /// Entries, or children.
    fn width(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.entries.len(),
            Node::Inner(children) => children.len(),
        }
    }

    /// Entries of all leaves.
    fn len(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.entries.len(),
            Node::Inner(children) => children.iter().map(|(_, child)| child.len()).sum(),
        }
    }

    fn insert(&mut self, key: K, value: V, most: usize) -> Inserted<K, V> {
        match self {
            Node::Leaf(leaf) => {
                let entries = leaf.change();
                match find(entries, &key) {
                    Ok(n) => Inserted::Replaced(mem::replace(&mut entries[n].1, value)),
                    Err(n) => {
                        let upper = add(entries, n, (key, value), most);
                        Inserted::New(upper.map(|upper| {
                            (upper[0].0.clone(), Arc::new(Node::Leaf(Leaf::of(upper))))
                        }))
                    }
                }
            }
            Node::Inner(children) => {
                let n = child_of(children, &key);
                if key < children[n].0 {
                    children[n].0 = key.clone();
                }
                match Arc::make_mut(&mut children[n].1).insert(key, value, most) {
                    Inserted::New(Some(child)) => {
                        let upper = add(children, n + 1, child, INNER_MAX);
                        Inserted::New(
                            upper.map(|upper| (upper[0].0.clone(), Arc::new(Node::Inner(upper)))),
                        )
                    }
                    done => done,
                }
            }
        }
    }

    fn remove<Q: Ord + ?Sized>(&mut self, key: &Q, most: usize) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match self {
            Node::Leaf(leaf) => {
                let entries = leaf.change();
                find(entries, key).ok().map(|n| entries.remove(n).1)
            }
            Node::Inner(children) => {
                let n = child_of(children, key);
                let gone = Arc::make_mut(&mut children[n].1).remove(key, most);
                join(children, n, most);
                gone
            }
        }
    }

    /// Gives the number of entries that are gone.
    fn remove_before(&mut self, key: &K, most: usize) -> usize {
        match self {
            Node::Leaf(leaf) => match first_not_before(&leaf.entries, key) {
                0 => 0,
                n => leaf.change().drain(..n).count(),
            },
            Node::Inner(children) => {
                let n = child_of(children, key);
                let whole: usize = children.drain(..n).map(|(_, child)| child.len()).sum();
                let part = Arc::make_mut(&mut children[0].1).remove_before(key, most);
                join(children, 0, most);
                whole + part
            }
        }
    }

    fn try_change_all<E>(
        &mut self,
        change: &mut impl FnMut(&mut V) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Node::Leaf(leaf) => leaf.change().iter_mut().try_for_each(|(_, value)| change(value)),
            Node::Inner(children) => children
                .iter_mut()
                .try_for_each(|(_, child)| Arc::make_mut(child).try_change_all(change)),
        }
    }
}

/// The place of a key among entries.
fn find<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized>(
    entries: &[(K, V)],
    key: &Q,
) -> Result<usize, usize> {
    entries.binary_search_by(|(own, _)| own.borrow().cmp(key))
}

fn first_not_before<K: Ord, V>(entries: &[(K, V)], key: &K) -> usize {
    entries.partition_point(|(own, _)| own < key)
}

/// The child that has a key, or would have it.
fn child_of<K: Borrow<Q>, T, Q: Ord + ?Sized>(children: &[(K, T)], key: &Q) -> usize {
    let behind =
        children.partition_point(|(first, _)| first.borrow().cmp(key) != Ordering::Greater);
    behind.saturating_sub(1)
}

/// Puts an item into a node's items; gives the upper ones of a node that was full. A map that grows
/// at its end leaves nodes behind that are nearly full; in any order, none has fewer than an
/// eighth. A leaf from before the archive had leaves of its own may have more items than `max`.
fn add<T>(items: &mut Vec<T>, at: usize, item: T, max: usize) -> Option<Vec<T>> {
    let mut upper = None;
    if items.len() < max {
        into_place(items, at, item, max);
    } else {
        let half = if at == items.len() { items.len() - max / 8 } else { items.len() / 2 };
        let mut above = items.split_off(half);
        if at <= half && half < items.len() + above.len() {
            into_place(items, at, item, max);
        } else {
            into_place(&mut above, at - half, item, max);
        }
        items.shrink_to_fit();
        upper = Some(above);
    }
    upper
}

/// Memory is taken for a quarter more, as most leaves are never filled after they were split.
fn into_place<T>(items: &mut Vec<T>, at: usize, item: T, max: usize) {
    if items.len() == items.capacity() {
        let room = max.saturating_sub(items.len()).max(1);
        items.reserve_exact((items.len() / 4 + 4).min(room));
    }
    items.insert(at, item);
}

/// Takes a child away that is empty, and joins one that is nearly so with the one beside it.
fn join<K: Ord + Clone, V: Clone>(children: &mut Vec<Child<K, V>>, n: usize, most: usize) {
    let width = children[n].1.width();
    let max = if matches!(*children[n].1, Node::Leaf(_)) { most } else { INNER_MAX };
    if width == 0 {
        children.remove(n);
    } else if width < max / 4 && children.len() > 1 {
        let lower = n.min(children.len() - 2);
        // Room is left, so that the next insertion splits nothing.
        if children[lower].1.width() + children[lower + 1].1.width() <= max / 4 * 3 {
            let (_, upper) = children.remove(lower + 1);
            match (Arc::make_mut(&mut children[lower].1), Arc::unwrap_or_clone(upper)) {
                (Node::Leaf(leaf), Node::Leaf(more)) => leaf.change().extend(more.entries),
                (Node::Inner(below), Node::Inner(more)) => below.extend(more),
                // All leaves are equally deep.
                _ => {}
            }
        }
    }
}

/// From which end a tree is walked.
#[derive(Clone, Copy)]
enum End {
    First,
    Last,
}

impl End {
    fn next<T>(self, items: &mut impl DoubleEndedIterator<Item = T>) -> Option<T> {
        match self {
            End::First => items.next(),
            End::Last => items.next_back(),
        }
    }
}

/// The way to an entry: what is left of its leaf, and of the nodes above.
struct Path<'a, K, V> {
    above: Vec<slice::Iter<'a, Child<K, V>>>,
    leaf: slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Path<'a, K, V> {
    fn to(root: &'a Node<K, V>, end: End) -> Path<'a, K, V> {
        let mut path = Path { above: Vec::new(), leaf: [].iter() };
        path.descend(root, end);
        path
    }

    fn descend(&mut self, mut node: &'a Node<K, V>, end: End) {
        loop {
            match node {
                Node::Leaf(leaf) => return self.leaf = leaf.entries.iter(),
                Node::Inner(children) => {
                    let mut children = children.iter();
                    let Some((_, child)) = end.next(&mut children) else { return };
                    self.above.push(children);
                    node = child;
                }
            }
        }
    }

    fn next(&mut self, end: End) -> Option<(&'a K, &'a V)> {
        loop {
            if let Some((key, value)) = end.next(&mut self.leaf) {
                return Some((key, value));
            }
            match end.next(self.above.last_mut()?) {
                Some((_, child)) => self.descend(child, end),
                None => drop(self.above.pop()),
            }
        }
    }
}

/// The entries of a [`Map`] in the order of their keys.
pub struct Iter<'a, K, V> {
    front: Path<'a, K, V>,
    back: Path<'a, K, V>,
    left: usize,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        self.left = self.left.checked_sub(1)?;
        self.front.next(End::First)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<'a, K, V> DoubleEndedIterator for Iter<'a, K, V> {
    fn next_back(&mut self) -> Option<(&'a K, &'a V)> {
        self.left = self.left.checked_sub(1)?;
        self.back.next(End::Last)
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<K, V> FusedIterator for Iter<'_, K, V> {}

impl<'a, K, V> IntoIterator for &'a Map<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// A list to whose end is added. Its clones share nodes.
pub struct List<T> {
    /// Items by increasing numbers, of which only the order counts.
    items: Map<u64, T>,
    next: u64,
}

impl<T> Clone for List<T> {
    fn clone(&self) -> List<T> {
        List { items: self.items.clone(), next: self.next }
    }
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List { items: Map::default(), next: 0 }
    }
}

impl<T> List<T> {
    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The items in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.items.values()
    }
}

impl<T: Clone> List<T> {
    /// Adds an item at the end.
    pub(crate) fn push(&mut self, item: T) {
        self.items.insert(self.next, item);
        self.next += 1;
    }

    /// Drops the first `n` items.
    pub(crate) fn drop_first(&mut self, n: usize) {
        let first_kept = self.items.keys().nth(n).copied();
        self.items.remove_before(&first_kept.unwrap_or(self.next));
    }

    /// Changes all items in their order, as long as `change` gives no error.
    pub(crate) fn try_change_all<E>(
        &mut self,
        change: impl FnMut(&mut T) -> Result<(), E>,
    ) -> Result<(), E> {
        self.items.try_change_all(change)
    }
}

impl<T: Clone> Extend<T> for List<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

impl<T: PartialEq> PartialEq for List<T> {
    fn eq(&self, other: &List<T>) -> bool {
        self.len() == other.len()
            && (Arc::ptr_eq(&self.items.root, &other.items.root) || self.iter().eq(other.iter()))
    }
}

impl<T: Eq> Eq for List<T> {}

impl<T: fmt::Debug> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u16, u32),
        Ascending(u16, u8),
        Remove(u16),
        RemoveRange(u16, u8),
        Set(u16, u32),
        Before(u16),
        Remember,
        Recall,
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let key = || 0..600u16;
        let change = prop_oneof![
            8 => (key(), any::<u32>()).prop_map(|(key, value)| Change::Insert(key, value)),
            3 => (key(), any::<u8>()).prop_map(|(key, n)| Change::Ascending(key, n)),
            6 => key().prop_map(Change::Remove),
            2 => (key(), any::<u8>()).prop_map(|(key, n)| Change::RemoveRange(key, n)),
            4 => (key(), any::<u32>()).prop_map(|(key, value)| Change::Set(key, value)),
            1 => key().prop_map(Change::Before),
            2 => Just(Change::Remember),
            1 => Just(Change::Recall),
        ];
        proptest::collection::vec(change, 0..120)
    }

    type Both = (Map<u16, u32>, BTreeMap<u16, u32>);

    fn apply(both: &mut Both, remembered: &mut Vec<Both>, change: Change) {
        let (map, model) = &mut *both;
        match change {
            Change::Insert(key, value) => {
                assert_eq!(map.insert(key, value), model.insert(key, value))
            }
            Change::Ascending(key, n) => {
                map.extend((key..key + u16::from(n)).map(|key| (key, 7)));
                model.extend((key..key + u16::from(n)).map(|key| (key, 7)));
            }
            Change::Remove(key) => assert_eq!(map.remove(&key), model.remove(&key)),
            Change::RemoveRange(key, n) => {
                for key in key..key + u16::from(n) {
                    assert_eq!(map.remove(&key), model.remove(&key));
                }
            }
            Change::Set(key, value) => {
                map.change(key, |old| *old = old.wrapping_add(value));
                let old = model.entry(key).or_default();
                *old = old.wrapping_add(value);
            }
            Change::Before(key) => {
                map.remove_before(&key);
                *model = model.split_off(&key);
            }
            Change::Remember => remembered.push(both.clone()),
            Change::Recall => {
                if let Some(before) = remembered.pop() {
                    *both = before;
                }
            }
        }
    }

    fn same(both: &Both) {
        let (map, model) = both;
        assert!(map.iter().eq(model.iter()) && map.iter().rev().eq(model.iter().rev()));
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
        assert_eq!(map.iter().size_hint(), (model.len(), Some(model.len())));
        for key in 0..900 {
            assert_eq!(map.get(&key), model.get(&key));
            assert_eq!(map.at_most(&key), model.range(..=key).next_back());
            assert_eq!(map.above(&key), model.range(key + 1..).next());
        }
        let mut meeting = map.iter();
        let first: Vec<_> = meeting.by_ref().take(model.len() / 2).collect();
        let last: Vec<_> = meeting.rev().collect();
        assert!(first.into_iter().chain(last.into_iter().rev()).eq(model.iter()));
        let mut fresh = Map::default();
        fresh.extend(model.iter().map(|(&key, &value)| (key, value)));
        assert!(fresh == *map && format!("{fresh:?}") == format!("{model:?}"));
        keeps_invariants(&map.root, true);
    }

    /// Gives the depth below a node.
    fn keeps_invariants(node: &Node<u16, u32>, is_root: bool) -> usize {
        assert!(node.width() > 0 || is_root);
        match node {
            Node::Leaf(Leaf { entries, .. }) => {
                assert!(entries.len() <= LEAF_MAX && entries.is_sorted_by(|a, b| a.0 < b.0));
                0
            }
            Node::Inner(children) => {
                assert!(children.len() <= INNER_MAX && (children.len() > 1 || !is_root));
                let keys = |child: &Child<u16, u32>| {
                    let all = Map { root: child.1.clone(), len: child.1.len(), most: LEAF_MAX };
                    let ends = (all.keys().next().copied(), all.keys().next_back().copied());
                    (ends.0.unwrap(), ends.1.unwrap())
                };
                assert!(children.iter().all(|child| child.0 <= keys(child).0));
                assert!(children.windows(2).all(|two| keys(&two[0]).1 < two[1].0));
                let depths: BTreeSet<usize> =
                    children.iter().map(|(_, child)| keeps_invariants(child, false)).collect();
                assert_eq!(depths.len(), 1);
                depths.first().unwrap() + 1
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

        #[test]
        fn a_map_is_what_a_plain_map_is_and_clones_keep_what_they_had(all in changes()) {
            let (mut both, mut remembered) = (Both::default(), Vec::new());
            for change in all {
                apply(&mut both, &mut remembered, change);
            }
            same(&both);
            remembered.iter().for_each(same);
        }

        #[test]
        fn a_list_is_what_a_vector_is(
            steps in proptest::collection::vec((0..40u32, 0..30usize), 0..20)
        ) {
            let (mut list, mut model) = (List::default(), Vec::new());
            for (n, first) in steps {
                list.extend(0..n);
                model.extend(0..n);
                let first = first.min(model.len());
                let before = list.clone();
                list.drop_first(first);
                assert_eq!(list == before, first == 0);
                model.drain(..first);
                assert!(list.iter().eq(&model) && list.iter().rev().eq(model.iter().rev()));
                assert_eq!((list.len(), list.is_empty()), (model.len(), model.is_empty()));
                let mut fresh = List::default();
                fresh.extend(model.iter().copied());
                assert_eq!(list, fresh);
            }
        }
    }

    /// The nodes of a map, by their addresses.
    fn nodes<V>(node: &Arc<Node<u32, V>>, into: &mut BTreeSet<*const ()>) {
        into.insert(Arc::as_ptr(node).cast());
        if let Node::Inner(children) = &**node {
            children.iter().for_each(|(_, child)| nodes(child, into));
        }
    }

    #[test]
    fn a_leaf_with_more_entries_than_new_ones_may_have_is_split_in_the_middle() {
        let mut map = Map::default();
        map.extend((0..LEAF_MAX as u32 - 1).map(|n| (n * 10, n)));
        map.most = 2;
        let mut model: BTreeMap<u32, u32> = map.iter().map(|(&key, &value)| (key, value)).collect();
        for n in 0..300 {
            let key = n * 37 % 1000;
            assert_eq!(map.insert(key, n), model.insert(key, n));
        }
        assert!(map.iter().eq(model.iter()));
    }

    #[test]
    fn a_change_of_a_clone_copies_one_way_from_the_root_to_a_leaf() {
        let mut map = Map::default();
        map.extend((0..10_000u32).map(|n| (n, n)));
        let mut before = BTreeSet::new();
        nodes(&map.root, &mut before);
        // A map that only grows at its end nearly fills its leaves.
        let leaves = 10_000usize.div_ceil(LEAF_MAX - LEAF_MAX / 8);
        assert!(before.len() < leaves + leaves / INNER_MAX * 2, "{}", before.len());
        let copied = |changed: &Map<u32, u32>| {
            let mut after = BTreeSet::new();
            nodes(&changed.root, &mut after);
            after.difference(&before).count()
        };
        let mut depth = 0;
        let mut node = &map.root;
        while let Node::Inner(children) = &**node {
            (depth, node) = (depth + 1, &children[0].1);
        }
        let mut clone = map.clone();
        assert_eq!(clone.remove(&20_000), None);
        assert!(clone.get_mut(&20_000).is_none());
        clone.remove_before(&0);
        assert_eq!(copied(&clone), 0);
        *clone.get_mut(&5_000).unwrap() = 1;
        assert_eq!(copied(&clone), depth + 1);
        // Again the same leaf, which is its own now.
        assert_eq!(clone.insert(5_001, 3), Some(5_001));
        assert_eq!(
            (copied(&clone), map.get(&5_000), clone == map),
            (depth + 1, Some(&5_000), false)
        );
        let failed = clone.try_change_all(|value| {
            *value = 77_777;
            if *value == 77_777 { Err("enough") } else { Ok(()) }
        });
        assert_eq!(
            (failed, clone.values().filter(|value| **value == 77_777).count()),
            (Err("enough"), 1)
        );
    }
}
