//! What is done when there is time: completing the index, learning where free space is, writing
//! down what is durable.

use std::sync::atomic::Ordering::Relaxed;

use onefold_core::{Fingerprint, Pba, Result};

use super::{Engine, checkpoint::Reason};
use crate::{
    format::page::{self, Pointer, ReferenceEntry, Table},
    index::{hash_of, paged},
};

/// Leaves, of fingerprints or of the index on disk, that one step looks through.
const INDEX_LEAVES: usize = 64;

/// How long no client asked for anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idleness {
    /// Clients are at work: nothing that costs writes.
    None,
    /// A moment: a flush does not disturb.
    Short,
    /// Long enough to rewrite data.
    Long,
}

impl Engine {
    /// Does a little of what is not urgent. Returns whether there may be more.
    ///
    /// # Errors
    /// The first failed write stops all writes.
    pub fn idle_step(&self, idleness: Idleness) -> Result<bool> {
        if self.complete_filter()
            || self.complete_index()?
            || self.load_free_space()?
            || self.write_delayed()?
            || self.recount_step()?
        {
            return Ok(true);
        }
        Ok(idleness == Idleness::Long && self.compact_step()?
            || idleness >= Idleness::Short && self.note_durable()?)
    }

    /// Adds entries of the index on disk to the filter in front of it: after opening it knows none.
    fn complete_filter(&self) -> bool {
        if self.index.lock().filter_complete {
            return false;
        }
        let cursor = self.filter_cursor.load(Relaxed);
        let snapshot = self.state.lock().snapshot.clone();
        let end = 1u64 << snapshot.state.index_bits;
        let numbers: Vec<u64> = (cursor..end.min(cursor + INDEX_LEAVES as u64)).collect();
        let pages = self
            .pages
            .leaves(Table::Index, 0, &snapshot.state.index, &numbers, false)
            .unwrap_or_default();
        let mut index = self.index.lock();
        for (_, page) in pages.iter().flatten() {
            index.note_on_disk(paged::entries(page).map(|entry| entry.hash));
        }
        let next = cursor + numbers.len() as u64;
        index.filter_complete |= next >= end;
        self.filter_cursor.store(next, Relaxed);
        true
    }

    /// Adds blocks that the index may not know: after opening it knows none. A page that can't be
    /// read is passed over: the index is a hint.
    fn complete_index(&self) -> Result<bool> {
        let cursor = self.index_cursor.load(Relaxed);
        if cursor == u64::MAX {
            return Ok(false);
        }
        if self.index.lock().wants_spill() {
            // Memory is full: what was found so far goes to disk first. Without space for it the
            // index stays as it is.
            let room = self.spill(&self.state.lock()).is_some();
            if room {
                let running = self.checkpoint_running();
                let ended = self.checkpoint_to_end(Reason::Forced)?;
                if running || !ended || !self.index.lock().wants_spill() {
                    return Ok(ended);
                }
                // Its own pages took the space.
            }
            self.index_cursor.store(u64::MAX, Relaxed);
            return Ok(true);
        }
        let snapshot = self.state.lock().snapshot.clone();
        let root = snapshot.state.fingerprints;
        let mut leaves = Vec::with_capacity(INDEX_LEAVES);
        let mut next = cursor;
        while leaves.len() < INDEX_LEAVES {
            match self.pages.next_leaf(Table::Fingerprints, 0, &root, next) {
                Ok(Some(leaf)) => {
                    leaves.push(leaf);
                    next = leaf + 1;
                }
                Ok(None) | Err(_) => {
                    next = u64::MAX;
                    break;
                }
            }
        }
        let per_leaf = Table::Fingerprints.per_leaf();
        // Pages that did not change since the index was written to disk are in it.
        let pointers =
            self.pages.leaf_pointers(Table::Fingerprints, 0, &root, &leaves).unwrap_or_default();
        let younger = |pointer: &Option<Pointer>| {
            pointer.is_some_and(|pointer| {
                pointer.in_place || pointer.birth > snapshot.state.index_birth
            })
        };
        let mut pointers = pointers.iter().map(younger).chain(std::iter::repeat(true));
        leaves.retain(|_| pointers.next() == Some(true));
        let pages =
            self.pages.leaves(Table::Fingerprints, 0, &root, &leaves, false).unwrap_or_default();
        // One of references covers four of fingerprints.
        let blocks = leaves.iter().map(|leaf| leaf * per_leaf);
        let references =
            self.pages.holding_if_whole(Table::References, 0, &snapshot.state.references, blocks);
        for (leaf, page) in leaves.iter().zip(pages) {
            let Some((_, page)) = page else { continue };
            let mut index = self.index.lock();
            if index.wants_spill() {
                next = *leaf;
                break;
            }
            for slot in 0..per_leaf {
                let pba = Pba(leaf * per_leaf + slot);
                let fingerprint = page::fingerprint(&page, slot);
                let known = !self.in_place() || fingerprint != Fingerprint::default();
                if known
                    && references.get(pba.0).is_some_and(|((_, page), slot)| {
                        ReferenceEntry::get(page, slot).references > 0
                    })
                {
                    index.insert(hash_of(fingerprint.prefix()), pba);
                }
            }
        }
        self.index_cursor.store(next, Relaxed);
        Ok(true)
    }

    /// True when the index was completed after opening.
    #[must_use]
    pub fn index_complete(&self) -> bool {
        self.index_cursor.load(Relaxed) == u64::MAX && self.index.lock().filter_complete
    }

    /// Learns where free space is, in zones that were not looked at since opening.
    fn load_free_space(&self) -> Result<bool> {
        let mut state = self.state.lock();
        let zones = self.zones(state.zone_table);
        state.allocator.load_some(&zones)
    }
}
