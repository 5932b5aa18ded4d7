//! Numbers that a session leaves when its volumes get others, and those of volumes without a name that it fills.

use std::collections::BTreeSet;

use onefold_core::object::{Change, Guard, Refusal, Write};
use parking_lot::Mutex;

use super::header::{LOCK, name};
use crate::kernel::Kernel;

/// A session's memory of numbers that it leaves, or fills.
#[derive(Default)]
pub(crate) struct Leaving {
    /// Volumes whose names may still be given to other numbers, by operations of this session that had no answer.
    may_be_left: Mutex<BTreeSet<u64>>,
    /// Layers of which the store says that this session owns them.
    owned: Mutex<Vec<Owned>>,
    /// Volumes without a name that it receives, imports or gives up at this moment.
    filling: Mutex<BTreeSet<u64>>,
}

/// A layer that its owner has left, and the store does not say so yet.
struct Owned {
    volume: u64,
    guards: Vec<Guard>,
    /// Keys of its header that tell of the owner.
    keys: Vec<Vec<u8>>,
}

impl Leaving {
    /// Volumes whose names may still be given to other numbers: what is written to them would be lost.
    pub(crate) fn may_be_left(&self) -> &Mutex<BTreeSet<u64>> {
        &self.may_be_left
    }

    /// Says that the session fills a volume without a name, or gives it up, as long as the result lives. Nothing
    /// when it does already.
    pub(crate) fn fill(&self, id: u64) -> Option<Filled<'_>> {
        self.filling.lock().insert(id).then_some(Filled(self, id))
    }

    /// Says that nobody owns a layer, whose owner was known by these comparisons, so that nobody shuts this session
    /// out who deletes it. `keys` of its header tell of the owner. False where the store does not answer: then it is
    /// tried again.
    pub(super) fn leave(
        &self,
        kernel: &Kernel,
        volume: u64,
        (guards, keys): (Vec<Guard>, Vec<Vec<u8>>),
    ) -> bool {
        let owned = Owned { volume, guards, keys };
        let left = owned.leave(kernel);
        if !left {
            self.owned.lock().push(owned);
        }
        left
    }

    /// Tries again what had no answer.
    pub(crate) fn again(&self, kernel: &Kernel) {
        let mut owned = std::mem::take(&mut *self.owned.lock());
        owned.retain(|owned| !owned.leave(kernel));
        self.owned.lock().extend(owned);
    }
}

/// A volume without a name that the session has.
pub(crate) struct Filled<'s>(&'s Leaving, u64);

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        self.0.filling.lock().remove(&self.1);
    }
}

impl Owned {
    /// The owner goes before the lock: whoever gets that finds nobody to shut out.
    fn leave(&self, kernel: &Kernel) -> bool {
        let header = name(self.volume);
        let op = Write {
            object: header.clone(),
            guards: self.guards.clone(),
            changes: vec![Change::DropOmap(self.keys.clone())],
        };
        match kernel.until_answered(&op) {
            // An earlier copy was applied, or the layer is gone.
            Ok(_) | Err(Refusal::Mismatch | Refusal::Missing) => {
                // If this fails, the lock ends with its lease.
                let _ = kernel.store().unlock(&header, LOCK, &kernel.cookie());
                true
            }
            Err(_) => false,
        }
    }
}
