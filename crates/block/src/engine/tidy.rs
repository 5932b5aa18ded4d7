//! What is done when there is time: completing the index, learning where free space is, writing down what is durable.

use std::sync::atomic::Ordering::Relaxed;

use onefold_core::Result;

use super::Engine;
use crate::format::page::{PhysicalEntry, Table};

/// Leaves of the physical table that one step looks through.
const INDEX_LEAVES: usize = 64;

impl Engine {
    /// Does a little of what is not urgent; `idle` also allows what costs flushes. Returns whether there may be more.
    ///
    /// # Errors
    /// The first failed write stops all writes.
    pub fn tidy_step(&self, idle: bool) -> Result<bool> {
        if self.complete_index()? || self.load_free_space()? {
            return Ok(true);
        }
        Ok(idle && self.note_durable()?)
    }

    /// Adds blocks of the physical table that the index may not know: after opening it knows none. A page that can't be read is passed
    /// over: the index is a hint.
    fn complete_index(&self) -> Result<bool> {
        let cursor = self.index_cursor.load(Relaxed);
        if cursor == u64::MAX {
            return Ok(false);
        }
        let snapshot = self.state.lock().snapshot.clone();
        let root = snapshot.state.physical;
        let mut leaves = Vec::with_capacity(INDEX_LEAVES);
        let mut next = cursor;
        while leaves.len() < INDEX_LEAVES {
            match self.pages.next_leaf(Table::Physical, 0, &root, next) {
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
        let per_leaf = Table::Physical.per_leaf();
        let pages = self.pages.leaves(Table::Physical, 0, &root, &leaves, false).unwrap_or_default();
        for (leaf, page) in leaves.iter().zip(pages) {
            let Some((_, page)) = page else { continue };
            let mut index = self.index.lock();
            for slot in 0..per_leaf {
                let entry = PhysicalEntry::get(&page, slot);
                if entry.references > 0 {
                    index.insert(&entry.fingerprint, onefold_core::Pba(leaf * per_leaf + slot));
                }
            }
        }
        self.index_cursor.store(next, Relaxed);
        Ok(true)
    }

    /// True when the index was completed after opening.
    #[must_use]
    pub fn index_complete(&self) -> bool {
        self.index_cursor.load(Relaxed) == u64::MAX
    }

    /// Learns where free space is, in zones that were not looked at since opening.
    fn load_free_space(&self) -> Result<bool> {
        let mut state = self.state.lock();
        let zones = self.zones(state.zone_table);
        state.allocator.load_some(&zones)
    }
}
