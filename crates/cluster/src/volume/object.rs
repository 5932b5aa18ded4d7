//! The objects of a volume, as their owner remembers them, and the content of a write.

use std::collections::BTreeMap;

use crate::{
    chunk_map::{ChunkMap, covering},
    format::{Stamp, entry::Entry, recut::Recut},
};

/// Most decisions about one write; each after the first follows another session's change.
pub(super) const TURNS: u32 = 100;

/// The new content of a range of an object.
#[derive(Clone, Copy)]
pub(super) enum Fill<'a> {
    Bytes(&'a [u8]),
    Zeroes,
}

/// The owner's memory of an object. The memory may be out of date, so every operation that changes
/// something compares it.
#[derive(Default)]
pub(super) struct Object {
    pub(super) known: Option<Known>,
    /// Incremented with every change of `known`.
    pub(super) revision: u64,
    /// List stamps that may be in the object and are not known to be on the list.
    pub(super) not_yet_listed: Vec<Stamp>,
    /// The object may be there, and its bit may not be set.
    pub(super) bit_not_yet_set: bool,
}

/// The map of an object, or that there is none.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) exists: bool,
    pub(super) entries: BTreeMap<u32, Entry>,
    pub(super) listed: Option<Stamp>,
    pub(super) discarded: Stamp,
    pub(super) recut: Option<Recut>,
}

impl Known {
    pub(super) fn of(map: Option<ChunkMap>) -> Known {
        map.map_or_else(Known::default, |map| Known {
            exists: true,
            entries: map.entries,
            listed: map.listed,
            discarded: map.discarded,
            recut: map.recut,
        })
    }

    /// The chunk that a byte is in: its offset and length. Places without an entry are cut at
    /// multiples of `chunk_bytes`.
    pub(super) fn place(&self, at: u32, chunk_bytes: u32) -> (u32, u32) {
        covering(&self.entries, at)
            .map_or((at / chunk_bytes * chunk_bytes, chunk_bytes), |(offset, entry)| {
                (offset, entry.length)
            })
    }
}

impl Object {
    /// True while the header or the dirty list may lack something about it.
    pub(super) fn is_not_yet_recorded(&self) -> bool {
        self.bit_not_yet_set || !self.not_yet_listed.is_empty()
    }

    pub(super) fn learn(&mut self, known: Option<Known>) {
        self.known = known;
        self.revision += 1;
    }
}
