//! First names of files that have several: what each further name has too. Their memory is bounded,
//! whoever sends a walk.

use std::collections::HashMap;

use onefold_core::Result;

use crate::format::{
    bytes::{Reader, Writer},
    tree_node::TreeWhat,
};

/// First names that are remembered at most.
const NAMES_MAX: usize = 1 << 20;

/// Bytes of what they have, at most.
const BYTES_MAX: usize = 128 << 20;

/// What the first names have, encoded, by their link numbers.
#[derive(Default)]
pub(super) struct Links {
    all: HashMap<u64, Box<[u8]>>,
    bytes: usize,
    /// There was no room for one.
    pub(super) is_full: bool,
}

impl Links {
    /// Remembers what a first name has; an earlier one with the same number stays. False when there
    /// is no room: then it is a file of its own.
    pub(super) fn keep(&mut self, link: u64, what: &TreeWhat) -> bool {
        if self.all.contains_key(&link) {
            return true;
        }
        let mut w = Writer::default();
        what.encode(&mut w);
        if self.all.len() >= NAMES_MAX || self.bytes + w.0.len() > BYTES_MAX {
            self.is_full = true;
            return false;
        }
        self.bytes += w.0.len();
        self.all.insert(link, w.0.into());
        true
    }

    /// What the first name of this number has; `None` when it is not remembered.
    pub(super) fn find(&self, link: u64) -> Result<Option<TreeWhat>> {
        self.all.get(&link).map(|what| TreeWhat::decode(&mut Reader(what, None))).transpose()
    }
}
