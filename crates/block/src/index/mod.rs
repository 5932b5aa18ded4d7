//! The fingerprint index: a hint that leads from a fingerprint to physical blocks that may hold it.
//!
//! The index is never believed: a candidate counts only when the block has references and the
//! fingerprint that the tables hold for it agrees. It can be dropped at any time and is rebuilt
//! from the tables.
//!
//! New entries go into memory (`memory.rs`). When its share is used up, a checkpoint *spills* it:
//! entries are merged into a paged hash table on disk (`paged.rs`), a shadow-paged tree like the
//! others, in front of which a filter (`filter.rs`) tells for most new blocks that no page
//! has to be read. Looking up a window reads the pages of all its blocks together.

mod filter;
mod memory;
pub(crate) mod paged;

use std::sync::Arc;

pub(crate) use filter::Filter;
pub(crate) use memory::MemoryIndex;
use onefold_core::Pba;

pub(crate) use crate::format::page::HASH_BITS;

/// The bits of a fingerprint's prefix that the index keeps.
pub(crate) fn hash_of(prefix: u64) -> u64 {
    prefix >> (64 - HASH_BITS)
}

/// An entry: the hash, and a block that may hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) pba: Pba,
}

/// Freed blocks whose entries are on disk, of which this many wait for the next spill at most.
const GONE_MAX: usize = 1 << 20;

/// The entries that a spill merges into the table on disk.
pub(crate) struct Spill {
    pub(crate) memory: Arc<MemoryIndex>,
    /// Entries to be dropped, sorted.
    pub(crate) gone: Vec<Entry>,
}

/// The index in memory, and what memory knows of the one on disk.
pub(crate) struct Index {
    memory: MemoryIndex,
    share: u64,
    /// Being merged into the table on disk, still looked up.
    spilling: Option<Arc<MemoryIndex>>,
    gone: Vec<Entry>,
    filter: Option<Filter>,
    /// True when the filter contains every entry on disk.
    pub(crate) filter_complete: bool,
}

impl Index {
    /// An empty index within `share` bytes, in front of a table on disk of `on_disk` entries.
    pub(crate) fn new(share: u64, on_disk: u64) -> Index {
        let filter = (on_disk > 0).then(|| Filter::new(on_disk, share / 4));
        let memory =
            MemoryIndex::new(share.saturating_sub(filter.as_ref().map_or(0, Filter::memory)));
        Index {
            memory,
            share,
            spilling: None,
            gone: Vec::new(),
            filter_complete: on_disk == 0,
            filter,
        }
    }

    /// Adds an entry; without room it is counted as refused, until the next spill.
    pub(crate) fn insert(&mut self, hash: u64, pba: Pba) {
        self.memory.insert(hash, pba);
    }

    /// Adds an entry that the table on disk may have, found anew after opening. It is left out when memory has
    /// little room: then a spill comes soon, which would be in vain for what is on disk already.
    pub(crate) fn learn(&mut self, hash: u64, pba: Pba) {
        let may_be_on_disk = self.filter.as_ref().is_some_and(|filter| filter.may_hold(hash));
        let has_room = match may_be_on_disk {
            true => !self.memory.is_half_full(),
            false => !self.memory.is_full(),
        };
        if has_room {
            self.memory.insert(hash, pba);
        }
    }

    /// Drops an entry.
    pub(crate) fn remove(&mut self, hash: u64, pba: Pba) {
        if self.memory.remove(hash, pba) {
            return;
        }
        // Many fragments of a pack that is freed were never written to the table on disk.
        let may_hold = |filter: &Filter| !self.filter_complete || filter.may_hold(hash);
        let may_be_on_disk = self.spilling.is_some() || self.filter.as_ref().is_some_and(may_hold);
        if may_be_on_disk && self.gone.len() < GONE_MAX {
            self.gone.push(Entry { hash, pba });
        }
    }

    /// The blocks that may hold a fingerprint, as far as memory tells. Returns true when the table
    /// on disk may know more.
    pub(crate) fn candidates(&self, hash: u64, into: &mut Vec<Pba>) -> bool {
        self.memory.candidates(hash, into);
        if let Some(spilling) = &self.spilling {
            spilling.candidates(hash, into);
        }
        self.filter.as_ref().is_some_and(|filter| filter.may_hold(hash))
    }

    /// True when the next checkpoint should merge memory into the table on disk.
    pub(crate) fn wants_spill(&self) -> bool {
        self.spilling.is_none() && (self.memory.is_full() || self.gone.len() >= GONE_MAX / 2)
    }

    /// Entries in memory.
    pub(crate) fn len(&self) -> u64 {
        self.memory.len() + self.spilling.as_ref().map_or(0, |spilling| spilling.len())
    }

    /// Entries that found no room since the last spill.
    pub(crate) fn refused(&self) -> u64 {
        self.memory.refused
    }

    /// Sets what is in memory aside for a spill; new entries go into fresh memory beside the filter
    /// for `on_disk` entries.
    pub(crate) fn begin_spill(&mut self, on_disk: u64) -> Spill {
        let room = self.share.saturating_sub(Filter::new_memory(on_disk, self.share / 4));
        let memory = Arc::new(std::mem::replace(&mut self.memory, MemoryIndex::new(room)));
        self.spilling = Some(memory.clone());
        let mut gone = std::mem::take(&mut self.gone);
        gone.sort_unstable();
        Spill { memory, gone }
    }

    /// The table on disk holds what was spilled.
    pub(crate) fn finish_spill(&mut self, filter: Filter) {
        self.spilling = None;
        self.filter = Some(filter);
        self.filter_complete = true;
    }

    /// Adds entries that are on disk to the filter.
    pub(crate) fn note_on_disk(&mut self, hashes: impl Iterator<Item = u64>) {
        if let Some(filter) = &mut self.filter {
            hashes.for_each(|hash| filter.insert(hash));
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.memory()
            + self.spilling.as_ref().map_or(0, |spilling| spilling.memory())
            + self.filter.as_ref().map_or(0, Filter::memory)
            + self.gone.capacity() as u64 * 16
    }
}
