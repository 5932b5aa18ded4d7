//! Who has which volume open.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Changes, Error, Kind, Result, VolumeId};
use parking_lot::{RwLock, RwLockReadGuard};

/// The volumes that are open.
#[derive(Default)]
pub(super) struct Handles(BTreeMap<VolumeId, Open>);

#[derive(Default)]
struct Open {
    count: usize,
    gate: Arc<Gate>,
}

/// Whether what was open was ended. Held for reading during each step of a request, so that none is
/// under way when it changes.
#[derive(Default)]
struct Gate {
    ended: RwLock<bool>,
    /// What changes, for all who have it open.
    changes: Changes,
}

/// Says whether what was open was ended.
pub(super) struct Handle(Arc<Gate>);

/// While it lives, what is open is not ended.
pub(super) struct Inside<'h>(#[allow(dead_code, reason = "held")] RwLockReadGuard<'h, bool>);

impl Handle {
    /// Keeps what is open from being ended for one step that waits for nothing.
    ///
    /// # Errors
    /// `Stopped` once the volume was rolled back, or the snapshot deleted, under who has it open.
    pub(super) fn enter(&self) -> Result<Inside<'_>> {
        let ended = self.0.ended.read();
        if !*ended {
            return Ok(Inside(ended));
        }
        Err(Error::new(
            Kind::Stopped,
            "the volume was rolled back or received anew, or its snapshot deleted, while it was open: \
             open it again",
        ))
    }

    /// Fails once it was ended.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    pub(super) fn check(&self) -> Result<()> {
        self.enter().map(drop)
    }

    /// What changes of what is open.
    pub(super) fn changes(&self) -> &Changes {
        &self.0.changes
    }
}

impl Handles {
    /// Somebody opens a volume.
    pub(super) fn open(&mut self, id: VolumeId) -> Handle {
        let open = self.0.entry(id).or_default();
        open.count += 1;
        Handle(open.gate.clone())
    }

    /// True when somebody has it open.
    pub(super) fn is_open(&self, id: VolumeId) -> bool {
        self.0.contains_key(&id)
    }

    /// Somebody has closed it.
    pub(super) fn close(&mut self, id: VolumeId, handle: &Handle) {
        if let Some(open) = self.0.get_mut(&id)
            && Arc::ptr_eq(&open.gate, &handle.0)
        {
            open.count -= 1;
            if open.count == 0 {
                self.0.remove(&id);
            }
        }
    }

    /// Makes a change after which reads of the volume, by whoever has it open, may return something
    /// else or fail.
    pub(super) fn changing<T>(&self, id: VolumeId, change: impl FnOnce() -> T) -> T {
        let _all = self.0.get(&id).map(|open| open.gate.changes.begin_all());
        change()
    }

    /// Does something to a volume that ends what is open, by `force`. No step of a request is under
    /// way meanwhile; when `change` fails, everything stays open.
    ///
    /// # Errors
    /// Those of `change`.
    pub(super) fn end<T>(
        &mut self,
        id: VolumeId,
        force: bool,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<Ended<T>> {
        let Some(open) = self.0.get(&id) else { return Ok(Ended::Done(change()?)) };
        if !force {
            return Ok(Ended::IsOpen);
        }
        let gate = open.gate.clone();
        let _all = gate.changes.begin_all();
        let mut ended = gate.ended.write();
        let done = change()?;
        *ended = true;
        self.0.remove(&id);
        Ok(Ended::Done(done))
    }
}

/// What became of a change that ends what is open.
pub(super) enum Ended<T> {
    /// It was made.
    Done(T),
    /// Somebody has the volume open, and may not be ended.
    IsOpen,
}

impl<T> Ended<T> {
    /// What was made.
    ///
    /// # Errors
    /// `Busy` when somebody has it open.
    pub(super) fn done(self) -> Result<T> {
        match self {
            Ended::Done(done) => Ok(done),
            Ended::IsOpen => Err(Error::new(
                Kind::Busy,
                "somebody has it open: stop that first, or say --force, which makes their requests fail",
            )),
        }
    }
}
