//! Index pages above pages of one kind, as these are written one after the other.

use onefold_core::Result;

use super::borders;
use crate::format::{
    bytes::Writer,
    tree_node::{IndexEntry, Key, Top, TreeNode, TreeNodeRef},
};

/// Stores a node; gives its place.
pub(super) type Store<'a> = dyn FnMut(Vec<u8>) -> Result<TreeNodeRef> + 'a;

/// Pages below one index page that is being filled.
#[derive(Clone, Default)]
struct Open {
    entries: Vec<IndexEntry>,
    bytes: usize,
    /// The hash of what comes first.
    hash: u64,
}

/// Gathers pages into index pages, and these into higher ones.
#[derive(Clone, Default)]
pub(super) struct Levels {
    /// The lowest first.
    open: Vec<Open>,
}

impl Levels {
    /// A page is written; `hash` is that of what comes first in it.
    pub(super) fn push(
        &mut self,
        node: TreeNodeRef,
        key: Key,
        hash: u64,
        store: &mut Store<'_>,
    ) -> Result<()> {
        self.push_at(0, IndexEntry { node, key }, hash, store)
    }

    fn push_at(
        &mut self,
        level: usize,
        entry: IndexEntry,
        hash: u64,
        store: &mut Store<'_>,
    ) -> Result<()> {
        if self.open.len() <= level {
            self.open.push(Open::default());
        }
        let mut w = Writer::default();
        entry.encode(&mut w);
        if borders::is_full(self.open[level].bytes + 2, w.0.len()) {
            self.close(level, store)?;
        }
        let open = &mut self.open[level];
        if open.entries.is_empty() {
            open.hash = hash;
        }
        open.bytes += w.0.len();
        open.entries.push(entry);
        if borders::ends(hash, level as u8 + 1) { self.close(level, store) } else { Ok(()) }
    }

    /// Writes the index page of a level.
    fn close(&mut self, level: usize, store: &mut Store<'_>) -> Result<()> {
        let Open { entries, hash, .. } = std::mem::take(&mut self.open[level]);
        let sum = |key: &Key| if let Key::Sum(sum) = key { *sum } else { 0 };
        let key = match entries.first() {
            Some(IndexEntry { key: Key::Name(name), .. }) => Key::Name(name.clone()),
            Some(_) => Key::Sum(
                entries.iter().fold(0, |all: u64, entry| all.saturating_add(sum(&entry.key))),
            ),
            None => return Ok(()),
        };
        let node = store(TreeNode::Index(level as u8 + 1, entries).encode())?;
        self.push_at(level + 1, IndexEntry { node, key }, hash, store)
    }

    /// Writes what is open; gives the top, unless there was no page.
    pub(super) fn end(mut self, store: &mut Store<'_>) -> Result<Option<Top>> {
        let mut level = 0;
        while level < self.open.len() {
            let is_last = self.open[level + 1..].iter().all(|open| open.entries.is_empty());
            match &self.open[level].entries[..] {
                [only] if is_last => {
                    return Ok(Some(Top { levels: level as u8, node: only.node }));
                }
                _ => self.close(level, store)?,
            }
            level += 1;
        }
        Ok(None)
    }
}
