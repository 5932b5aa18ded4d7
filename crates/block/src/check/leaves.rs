//! Leaves of a tree in rising order, a few at a time, passing over what can't be read.

use std::sync::Arc;

use super::report::Named;
use crate::{
    format::{
        page::{FANOUT, PageId, Pointer, Table},
        superblock::Root,
    },
    kernel::Kernel,
};

/// Pages that can't be read and are named; a wrecked tree has more.
const UNREAD_MAX: usize = 1000;

/// A leaf: its number, the pointer to it, and its page.
pub(crate) type Leaf = (u64, Pointer, Arc<crate::format::page::Page>);

/// Looks for the next leaves of one tree, from batch to batch.
pub(crate) struct Leaves {
    table: Table,
    volume: u32,
    /// Where to look next; `None` at the end.
    next: Option<u64>,
    /// Inner pages that could not be read, one after the other.
    failures: u64,
}

impl Leaves {
    pub(crate) fn new(table: Table, volume: u32) -> Leaves {
        Leaves { table, volume, next: Some(0), failures: 0 }
    }

    /// The next leaves, up to `most` of them, of the tree at `root`, which may be another version
    /// each time. `None` at the end.
    pub(crate) fn next(
        &mut self,
        kernel: &Kernel,
        root: &Root,
        most: usize,
        unread: &mut Vec<String>,
    ) -> Option<Vec<Leaf>> {
        let mut wanted = Vec::with_capacity(most);
        while wanted.len() < most
            && let Some(from) = self.next
        {
            match kernel.pages.next_leaf(self.table, self.volume, root, from) {
                Ok(Some(leaf)) => {
                    wanted.push(leaf);
                    (self.next, self.failures) = (Some(leaf + 1), 0);
                }
                Ok(None) => self.next = None,
                Err(e) => {
                    if self.failures == 0 && unread.len() < UNREAD_MAX {
                        unread.push(e.to_string());
                    }
                    // Behind the lowest page first, then in steps of higher ones.
                    let level = 1 + (self.failures / FANOUT) as u32;
                    self.failures += 1;
                    let step = FANOUT.checked_pow(level).filter(|_| level < u32::from(root.height));
                    self.next = step.and_then(|step| (from / step + 1).checked_mul(step));
                }
            }
        }
        if wanted.is_empty() {
            return None;
        }
        Some(read(kernel, self.table, self.volume, root, &wanted, unread))
    }
}

/// The leaves among `wanted` (rising) that can be read.
pub(crate) fn read(
    kernel: &Kernel,
    table: Table,
    volume: u32,
    root: &Root,
    wanted: &[u64],
    unread: &mut Vec<String>,
) -> Vec<Leaf> {
    if let Ok(found) = kernel.pages.leaves(table, volume, root, wanted, false) {
        let found = wanted.iter().zip(found);
        return found
            .filter_map(|(&leaf, found)| found.map(|(pointer, page)| (leaf, pointer, page)))
            .collect();
    }
    let mut found = Vec::new();
    for &index in wanted {
        match kernel.pages.leaf(table, volume, root, index) {
            Ok(Some((pointer, page))) => found.push((index, pointer, page)),
            Ok(None) => {}
            Err(e) if unread.len() < UNREAD_MAX => {
                unread.push(format!("{}: {e}", Named(PageId { table, volume, level: 0, index })))
            }
            Err(_) => {}
        }
    }
    found
}
