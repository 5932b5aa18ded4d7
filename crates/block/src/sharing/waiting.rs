//! The order in which orphans are handed over.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use onefold_core::{Error, Kind, Pba, Result};

use super::{MapStore, Orphan, Sharing};
use crate::{
    format::{page::PageId, record::WindowNumber},
    rules::Rule,
};

/// Orphans that wait to be handed over, in their order; and those of one age at one place.
#[derive(Default)]
pub(crate) struct Waiting {
    by_order: BTreeMap<Order, Orphan>,
    alike: BTreeMap<Place, BTreeMap<Pba, Orphan>>,
}

type Order = (Reverse<WindowNumber>, Reverse<u8>, u64);

/// The age and the place of an orphan.
type Place = (WindowNumber, u32, u8, u64);

impl Waiting {
    /// More orphans.
    pub(crate) fn add(&mut self, more: Vec<Orphan>) {
        for orphan in more {
            self.by_order.insert(orphan.order(), orphan);
            let alike = self.alike.entry(like(&orphan)).or_default();
            alike.insert(orphan.page.address, orphan);
        }
    }

    /// One orphan less.
    pub(crate) fn remove(&mut self, orphan: &Orphan) {
        self.by_order.remove(&orphan.order());
        if let Some(alike) = self.alike.get_mut(&like(orphan)) {
            alike.remove(&orphan.page.address);
            if alike.is_empty() {
                self.alike.remove(&like(orphan));
            }
        }
    }

    /// The next one to hand over: the first in the order from which no other one of its age borrows.
    ///
    /// # Errors
    /// Those of the accounts, and `Corrupt` where orphans borrow from each other in a circle.
    pub(crate) fn next(&self, sharing: &mut Sharing<'_, impl MapStore>) -> Result<Option<Orphan>> {
        let mut order = self.by_order.values();
        let youngest = sharing.store.keeps(Rule::YoungestOrphanFirst);
        let first = if youngest { order.next() } else { order.next_back() };
        let Some(mut next) = first.copied() else { return Ok(None) };
        let mut passed = BTreeSet::new();
        while passed.insert(next.page.address) {
            let mut borrower = None;
            for other in self.alike.get(&like(&next)).into_iter().flat_map(BTreeMap::values) {
                let share = sharing.accounts.get(sharing.store, other.page.address)?;
                if share.lender == Some(next.page) {
                    borrower = Some(*other);
                }
            }
            match borrower {
                Some(other) => next = other,
                None => return Ok(Some(next)),
            }
        }
        let message =
            format!("the map page at block {} borrows from itself in the end", next.page.address);
        Err(Error::new(Kind::Corrupt, message))
    }

    /// All that still wait.
    pub(crate) fn into_orphans(self) -> Vec<Orphan> {
        self.by_order.into_values().collect()
    }
}

fn like(orphan: &Orphan) -> Place {
    let PageId { volume, level, index, .. } = orphan.id;
    (orphan.page.birth, volume, level, index)
}
