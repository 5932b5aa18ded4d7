//! Containers that were listed since the last import into the chunk index.
//!
//! *Invariant:* what is known are all of them. It is not known after an older index came in the place
//! of a newer one; then all containers are looked at.

use super::persistent::Map;
use crate::format::ContainerId;

/// By which frame they were listed, and their numbers.
pub(super) type Listed = Map<(u64, ContainerId), ()>;

/// Containers that were listed since the last import.
#[derive(Clone, Debug)]
pub(super) struct NotImported(Option<Listed>);

impl Default for NotImported {
    fn default() -> NotImported {
        NotImported(Some(Map::default()))
    }
}

impl NotImported {
    /// These are all of them.
    pub(super) fn all(listed: Listed) -> NotImported {
        NotImported(Some(listed))
    }

    /// All of them, where they are known.
    pub(super) fn known(&self) -> Option<&Listed> {
        self.0.as_ref()
    }

    /// A container was listed by this frame.
    pub(super) fn listed(&mut self, logged: u64, id: ContainerId) {
        if let Some(known) = &mut self.0 {
            known.insert((logged, id), ());
        }
    }

    /// A container is gone that was listed by this frame.
    pub(super) fn removed(&mut self, logged: u64, id: ContainerId) {
        if let Some(known) = &mut self.0 {
            known.remove(&(logged, id));
        }
    }

    /// The index has all that were listed up to the frame `upto`; `is_older` than the one before.
    pub(super) fn imported(&mut self, upto: u64, is_older: bool) {
        if is_older {
            self.0 = None;
        } else if let Some(known) = &mut self.0 {
            known.remove_before(&(upto.saturating_add(1), ContainerId(0)));
        }
    }
}
