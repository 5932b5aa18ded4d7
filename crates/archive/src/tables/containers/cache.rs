//! Leaves of the container table in memory that lie on the disk too: so many bytes of them at most,
//! those that were looked at last.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    format::ContainerId, leaf_file::LeafPlace, memory::Drawn, tables::container::Container,
};

/// The entries of a leaf.
pub(crate) type Entries = Vec<(ContainerId, Container)>;

/// Memory of a leaf besides its entries.
const LEAF_MEMORY: u64 = 256;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Cache {
    most: u64,
    bytes: u64,
    /// Grows with each look.
    looks: u64,
    leaves: HashMap<LeafPlace, Kept>,
    by_look: BTreeMap<u64, LeafPlace>,
}

#[derive(Debug)]
struct Kept {
    entries: Arc<Entries>,
    bytes: u64,
    /// The last look at it.
    look: u64,
    /// What it takes of the budget for a stranger's tables.
    _drawn: Drawn,
}

/// Bytes of memory that a leaf with these entries takes.
pub(super) fn memory(entries: &Entries) -> u64 {
    let merged: usize = entries.iter().map(|(_, container)| container.merged.capacity()).sum();
    let own = entries.capacity() * size_of::<(ContainerId, Container)>();
    (own + merged * size_of::<ContainerId>()) as u64 + LEAF_MEMORY
}

impl Cache {
    /// An empty one for so many bytes.
    pub(super) fn new(most: u64) -> Cache {
        Cache { most, bytes: 0, looks: 0, leaves: HashMap::new(), by_look: BTreeMap::new() }
    }

    /// Bytes of the leaves that are here.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entries of the leaf that lies at this place.
    pub(super) fn get(&mut self, place: &LeafPlace) -> Option<Arc<Entries>> {
        let kept = self.leaves.get_mut(place)?;
        self.by_look.remove(&kept.look);
        self.looks += 1;
        kept.look = self.looks;
        self.by_look.insert(kept.look, *place);
        Some(kept.entries.clone())
    }

    /// Keeps a leaf, and lets those go that nobody looked at for the longest time. One that is
    /// larger than all may be is not kept.
    pub(super) fn put(&mut self, place: LeafPlace, entries: Arc<Entries>, drawn: Drawn) {
        self.drop_one(&place);
        let bytes = memory(&entries);
        while self.bytes.saturating_add(bytes) > self.most
            && let Some((_, oldest)) = self.by_look.first_key_value()
        {
            let oldest = *oldest;
            self.drop_one(&oldest);
        }
        if bytes <= self.most {
            self.looks += 1;
            self.bytes += bytes;
            self.by_look.insert(self.looks, place);
            self.leaves.insert(place, Kept { entries, bytes, look: self.looks, _drawn: drawn });
        }
    }

    fn drop_one(&mut self, place: &LeafPlace) {
        if let Some(gone) = self.leaves.remove(place) {
            self.by_look.remove(&gone.look);
            self.bytes -= gone.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(page: u32) -> LeafPlace {
        LeafPlace { page, pages: 1, checksum: 7 }
    }

    #[test]
    fn the_leaf_that_nobody_looked_at_for_longest_goes_first() {
        let one = memory(&Vec::new());
        let mut cache = Cache::new(3 * one);
        for page in 0..3 {
            cache.put(place(page), Arc::default(), Drawn::default());
        }
        assert!(cache.get(&place(0)).is_some());
        cache.put(place(3), Arc::default(), Drawn::default());
        let there = (0..4).map(|page| cache.get(&place(page)).is_some());
        assert_eq!(there.collect::<Vec<_>>(), [true, false, true, true]);
        // The same place again takes nothing more, and what is too large is not kept.
        cache.put(place(3), Arc::default(), Drawn::default());
        assert_eq!(cache.bytes(), 3 * one);
        cache.put(place(4), Arc::new(Vec::with_capacity(1000)), Drawn::default());
        assert!(cache.get(&place(4)).is_none() && cache.bytes() <= 3 * one);
    }
}
