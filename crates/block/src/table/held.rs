//! Leaves in place that memory must hold: their newest content is not durable, or not written at
//! all.
//!
//! One thread at a time changes leaves, and no leaf is written while a flush is under way.

use std::{sync::Arc, time::Duration};

use onefold_core::{Block, Pba};

use crate::{
    format::{
        Identity, in_place,
        page::{Page, PageId, Pointer},
    },
    hash::MixMap,
};

/// The key that tells leaves apart, and the lives of one.
pub(crate) type Key = (u64, u64);

/// The key of the page that a pointer names.
pub(crate) fn key(pointer: &Pointer) -> Key {
    (pointer.address.0, pointer.checksum)
}

/// A leaf, changed or about to be.
struct Held {
    id: PageId,
    pointer: Pointer,
    /// With its version.
    page: Arc<Page>,
    /// It was written, and a flush that begins after this number makes it durable.
    written: Option<u64>,
    /// Since when it has changes that are not written.
    changed: Option<Duration>,
}

/// The leaves in place that memory holds.
#[derive(Default)]
pub(crate) struct HeldLeaves {
    leaves: MixMap<Key, Held>,
    /// Leaves with changes that are not written; and since when the oldest of them is, or one that
    /// was written since.
    changes: usize,
    oldest: Option<Duration>,
    /// How often a leaf was let go of: a thread that read one from the disk meanwhile may have an
    /// older version.
    pub(crate) let_go: u64,
}

/// A version on its way to the disk.
pub(crate) struct Written {
    pub(crate) at: Pba,
    pub(crate) block: Box<Block>,
}

impl HeldLeaves {
    /// The newest content of a leaf, if it is held.
    pub(crate) fn get(&self, pointer: &Pointer) -> Option<Arc<Page>> {
        self.leaves.get(&key(pointer)).map(|held| held.page.clone())
    }

    /// Holds a leaf as it was read.
    pub(crate) fn hold(&mut self, id: PageId, pointer: Pointer, page: Arc<Page>) {
        self.leaves.entry(key(&pointer)).or_insert(Held {
            id,
            pointer,
            page,
            written: None,
            changed: None,
        });
    }

    /// Changes a leaf that is held. `change` returns whether it did.
    pub(crate) fn change(
        &mut self,
        pointer: &Pointer,
        now: Duration,
        change: impl FnOnce(&mut Page) -> bool,
    ) {
        let held = self.leaves.get_mut(&key(pointer));
        assert!(held.is_some(), "a leaf is held while it is changed");
        let Some(held) = held else { return };
        if change(Arc::make_mut(&mut held.page)) && held.changed.is_none() {
            held.changed = Some(now);
            self.changes += 1;
            self.oldest.get_or_insert(now);
        }
    }

    /// The leaves with changes that are not written, oldest first, with the time of the first
    /// change.
    pub(crate) fn changed(&mut self) -> Vec<(Duration, Pointer)> {
        let mut changed: Vec<(Duration, Pointer)> = self
            .leaves
            .values()
            .filter_map(|held| held.changed.map(|since| (since, held.pointer)))
            .collect();
        changed.sort_unstable_by_key(|(since, pointer)| (*since, pointer.address));
        self.oldest = changed.first().map(|(since, _)| *since);
        changed
    }

    /// How many have changes that are not written.
    pub(crate) fn changes(&self) -> usize {
        self.changes
    }

    /// A time from which on all of them have changes, if any has.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.oldest
    }

    /// The next versions of those of `leaves` that changed, which the caller writes before a flush
    /// with a number above `flush` begins.
    pub(crate) fn write(
        &mut self,
        identity: &Identity,
        leaves: &[Pointer],
        flush: u64,
    ) -> Vec<Written> {
        let mut written = Vec::with_capacity(leaves.len());
        for pointer in leaves {
            let Some(held) =
                self.leaves.get_mut(&key(pointer)).filter(|held| held.changed.is_some())
            else {
                continue;
            };
            let version = in_place::version(&held.page).next();
            in_place::set_version(Arc::make_mut(&mut held.page), version);
            (held.written, held.changed) = (Some(flush), None);
            self.changes -= 1;
            written.push(Written {
                at: pointer.address,
                block: in_place::encode(identity, held.id, pointer, version, &held.page),
            });
        }
        written.sort_unstable_by_key(|version: &Written| version.at);
        written
    }

    /// A flush succeeded, and `flush` is its number. Gives the leaves that need not be held any
    /// more.
    pub(crate) fn flushed(&mut self, flush: u64) -> Vec<(Pointer, Arc<Page>)> {
        let mut done = Vec::new();
        self.leaves.retain(|_, held| {
            held.written = held.written.filter(|&written| written >= flush);
            let needed = held.written.is_some() || held.changed.is_some();
            if !needed {
                done.push((held.pointer, held.page.clone()));
            }
            needed
        });
        self.let_go += 1;
        done
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.leaves.len() as u64 * (4096 + 160)
    }
}
