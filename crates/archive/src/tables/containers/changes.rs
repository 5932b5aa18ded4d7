//! Containers put into the table, changed, and taken out of it.

use std::sync::Arc;

use onefold_core::Result;

use super::{
    cache::Entries,
    table::{Containers, Leaf},
};
use crate::{
    format::{ContainerId, bytes::corrupt, damage::is_damage},
    tables::container::Container,
};

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
            super::broken::let_go(leaf, place, self.source.as_ref());
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
            match self.join(first, left) {
                // Its neighbour is lost, which is none of its business.
                Err(error) if is_damage(&error) => {}
                joined => joined?,
            }
        }
        Ok(gone)
    }

    /// Changes all containers, in the order of their numbers, as long as `change` gives no error.
    pub(in crate::tables) fn change_all(
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
    /// room for both. An error leaves both as they are.
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
