//! The leaves of a map as a file has them: which ones changed since, and maps made of leaves that
//! were read.

use std::{iter, sync::Arc};

use super::{Child, INNER_MAX, LEAF_MAX, Leaf, Map, Node};
use crate::leaf_file::LeafPlace;

/// A leaf of a map, which other maps may have too.
pub(crate) struct SharedLeaf<K, V>(Arc<Node<K, V>>);

impl<K, V> Clone for SharedLeaf<K, V> {
    fn clone(&self) -> SharedLeaf<K, V> {
        SharedLeaf(self.0.clone())
    }
}

impl<K, V> SharedLeaf<K, V> {
    /// A leaf of entries that were read. `None` unless there are as many as a leaf can have, at
    /// least one, and their keys ascend.
    pub(crate) fn of(entries: Vec<(K, V)>, place: Option<LeafPlace>) -> Option<SharedLeaf<K, V>>
    where
        K: Ord,
    {
        let is_one = (1..=LEAF_MAX).contains(&entries.len())
            && entries.windows(2).all(|two| two[0].0 < two[1].0);
        is_one.then(|| SharedLeaf(Arc::new(Node::Leaf(Leaf { entries, place }))))
    }

    /// Its entries.
    pub(crate) fn entries(&self) -> &[(K, V)] {
        match &*self.0 {
            Node::Leaf(leaf) => &leaf.entries,
            Node::Inner(_) => &[],
        }
    }
}

impl<K, V> Node<K, V> {
    /// Tells of all leaves, in order.
    fn each_leaf<'a>(self: &'a Arc<Self>, each: &mut impl FnMut(&'a Arc<Self>, &'a Leaf<K, V>)) {
        match &**self {
            Node::Leaf(leaf) => each(self, leaf),
            Node::Inner(children) => children.iter().for_each(|(_, child)| child.each_leaf(each)),
        }
    }

    /// True when a leaf below has entries that lie in no file.
    fn has_changed(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.place.is_none() && !leaf.entries.is_empty(),
            Node::Inner(children) => children.iter().any(|(_, child)| child.has_changed()),
        }
    }
}

impl<K: Clone, V: Clone> Node<K, V> {
    fn place_changed<E>(
        self: &mut Arc<Self>,
        place: &mut impl FnMut(&[(K, V)]) -> Result<Option<LeafPlace>, E>,
    ) -> Result<(), E> {
        if !self.has_changed() {
            return Ok(());
        }
        match Arc::make_mut(self) {
            Node::Leaf(leaf) => {
                leaf.place = place(&leaf.entries)?;
                Ok(())
            }
            Node::Inner(children) => {
                children.iter_mut().try_for_each(|(_, child)| child.place_changed(place))
            }
        }
    }
}

impl<K: Clone, V: Clone> Node<K, V> {
    /// True when a leaf below lies at such a place.
    fn lies(&self, is_such: &impl Fn(LeafPlace) -> bool) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.place.is_some_and(is_such),
            Node::Inner(children) => children.iter().any(|(_, child)| child.lies(is_such)),
        }
    }

    fn forget_places(self: &mut Arc<Self>, is_lost: &impl Fn(LeafPlace) -> bool) {
        if !self.lies(is_lost) {
            return;
        }
        match Arc::make_mut(self) {
            Node::Leaf(leaf) => leaf.place = None,
            Node::Inner(children) => {
                children.iter_mut().for_each(|(_, child)| child.forget_places(is_lost));
            }
        }
    }
}

impl<K, V> Map<K, V> {
    /// How many leaves changed since they lay in a file.
    pub(crate) fn changed_leaves(&self) -> usize {
        let mut changed = 0;
        self.root.each_leaf(&mut |_, leaf| {
            changed += usize::from(leaf.place.is_none() && !leaf.entries.is_empty());
        });
        changed
    }

    /// Leaves have so many entries at most from now on.
    pub(crate) fn limit_leaves(&mut self, most: usize) {
        self.most = most.clamp(2, LEAF_MAX);
    }

    /// The leaves that lie in a file, in order, each with its place.
    pub(crate) fn placed(&self) -> Vec<(LeafPlace, SharedLeaf<K, V>)> {
        let mut all = Vec::new();
        self.root.each_leaf(&mut |node, leaf| {
            all.extend(leaf.place.map(|place| (place, SharedLeaf(node.clone()))));
        });
        all
    }
}

impl<K: Ord + Clone, V: Clone> Map<K, V> {
    /// Gives a place to each leaf whose entries changed since they lay in a file.
    pub(crate) fn place_changed<E>(
        &mut self,
        mut place: impl FnMut(&[(K, V)]) -> Result<Option<LeafPlace>, E>,
    ) -> Result<(), E> {
        self.root.place_changed(&mut place)
    }

    /// Leaves at such places count as changed.
    pub(crate) fn forget_places(&mut self, is_lost: impl Fn(LeafPlace) -> bool) {
        self.root.forget_places(&is_lost);
    }

    /// The map of such leaves. `None` unless the keys of all of them ascend.
    pub(crate) fn of_leaves(leaves: Vec<SharedLeaf<K, V>>) -> Option<Map<K, V>> {
        let (mut len, mut last) = (0, None);
        let mut level: Vec<Child<K, V>> = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            let entries = leaf.entries();
            let (first, end) = entries.first().zip(entries.last())?;
            if last.as_ref().is_some_and(|last| *last >= first.0) {
                return None;
            }
            (len, last) = (len + entries.len(), Some(end.0.clone()));
            level.push((first.0.clone(), leaf.0));
        }
        // Nodes have room, so that the next insertion splits none.
        while level.len() > 1 {
            let mut children = level.into_iter();
            level = iter::from_fn(|| {
                let some: Vec<_> = children.by_ref().take(INNER_MAX - INNER_MAX / 8 - 1).collect();
                Some((some.first()?.0.clone(), Arc::new(Node::Inner(some))))
            })
            .collect();
        }
        let root = level.pop().map_or_else(Node::empty, |(_, root)| root);
        Some(Map { root, len, most: LEAF_MAX })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn place_of(page: u32) -> LeafPlace {
        LeafPlace { page, pages: 1, checksum: u64::from(page) }
    }

    /// A file of leaves: what was written to each page.
    type Written = BTreeMap<u32, Vec<(u16, u32)>>;

    /// Writes the changed leaves of a map to new pages; gives how many.
    fn write(map: &mut Map<u16, u32>, to: &mut Written) -> usize {
        let before = to.len();
        map.place_changed(|entries| {
            let page = to.len() as u32;
            to.insert(page, entries.to_vec());
            Ok::<_, ()>(Some(place_of(page)))
        })
        .unwrap();
        to.len() - before
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn a_map_is_read_from_its_leaves_whatever_changed(
            most in 2..9usize,
            rounds in proptest::collection::vec(
                proptest::collection::vec((0..300u16, 0..4u8, any::<u32>()), 0..40), 1..8)
        ) {
            let (mut map, mut written) = (Map::<u16, u32>::default(), Written::new());
            map.limit_leaves(most);
            for changes in rounds {
                for (key, how, value) in changes {
                    match how {
                        0 => drop(map.remove(&key)),
                        1 => drop(map.get_mut(&key).map(|old| *old = value)),
                        2 if key % 16 == 0 => map.remove_before(&key),
                        _ => drop(map.insert(key, value)),
                    }
                }
                write(&mut map, &mut written);
                let read = map.placed().into_iter().map(|(place, _)| {
                    SharedLeaf::of(written[&place.page].clone(), Some(place)).unwrap()
                });
                let mut read = Map::of_leaves(read.collect()).unwrap();
                assert!(read == map);
                assert_eq!(write(&mut read, &mut written), 0);
                // What was read goes on like any other map.
                read.limit_leaves(most);
                map = read;
            }
        }
    }

    #[test]
    fn a_change_writes_one_leaf_and_a_look_none() {
        let (mut map, mut written) = (Map::default(), Written::new());
        map.extend((0..10_000u16).map(|n| (n, 0)));
        assert!(write(&mut map, &mut written) > 100);
        let before = map.clone();
        assert!(map.get(&77) == Some(&0) && map.remove(&20_000).is_none());
        assert!(map.get_mut(&20_000).is_none());
        map.remove_before(&0);
        assert_eq!(write(&mut map, &mut written), 0);
        *map.get_mut(&77).unwrap() = 1;
        assert_eq!(write(&mut map, &mut written), 1);
        assert_eq!((before.get(&77), map.get(&77)), (Some(&0), Some(&1)));
        map.insert(10_000, 1);
        assert_eq!(write(&mut map, &mut written), 1);
    }

    #[test]
    fn leaves_out_of_order_are_no_map() {
        let leaf = |keys: &[u16]| {
            SharedLeaf::of(keys.iter().map(|&key| (key, 0u32)).collect(), Some(place_of(0)))
        };
        assert!(leaf(&[]).is_none() && leaf(&[2, 1]).is_none() && leaf(&[1, 1]).is_none());
        assert!(leaf(&(0..=LEAF_MAX as u16).collect::<Vec<_>>()).is_none());
        let map = |leaves: &[&[u16]]| {
            Map::of_leaves(leaves.iter().map(|keys| leaf(keys).unwrap()).collect())
        };
        assert!(map(&[&[1, 2], &[2, 3]]).is_none() && map(&[&[4], &[1]]).is_none());
        assert_eq!(map(&[&[1, 2], &[3]]).unwrap().len(), 3);
        assert!(map(&[]).unwrap().is_empty());
    }
}
