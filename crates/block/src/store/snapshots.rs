//! Snapshots, clones and rollbacks of a served store.

use std::time::{SystemTime, UNIX_EPOCH};

use onefold_core::{Error, Kind, Result, VolumeId};

use super::Store;
use crate::{Acts, Asked, Place};

impl Store {
    /// Takes snapshots, named like `vm1@monday`: all hold exactly what was written to their volumes
    /// before one moment. `begun` is called when the moment has begun, so that writers may go on.
    /// The snapshots are durable on return.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidInput` for bad names, `NoSpace`, `Unsupported` with leaves in
    /// place, `Stopped`.
    pub fn snapshot(&self, names: &[String], begun: &mut dyn FnMut()) -> Result<()> {
        let mut wanted = Vec::with_capacity(names.len());
        for name in names {
            let (volume, snapshot) = name.rsplit_once('@').ok_or_else(|| {
                Error::new(
                    Kind::InvalidInput,
                    format!("'{name}' names no snapshot: write the volume, @ and a name, as in vm1@monday"),
                )
            })?;
            wanted.push((self.engine.find_volume(volume)?, snapshot.to_owned()));
        }
        let (_, asked) = self.act(|acts| acts.snapshot(&wanted, now_ms()))?;
        begun();
        self.perform(asked)
    }

    /// Makes a volume that holds what a volume, or a snapshot like `vm1@monday`, holds now. Durable
    /// on return.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn clone_volume(&self, of: &str, name: &str) -> Result<()> {
        let of = self.engine.find_volume(of)?;
        let (_, asked) = self.act(|acts| acts.clone_volume(of, name, now_ms()))?;
        self.perform(asked)
    }

    /// Gives a volume what its snapshot, named like `vm1@monday`, holds, with its size. With `keep`,
    /// a snapshot of this name takes what the volume held before. Durable on return.
    ///
    /// Nobody may have the volume open, unless `force` is true: then all that have it open get
    /// errors from now on.
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot), and `Busy` when somebody has the volume open.
    pub fn rollback(&self, snapshot: &str, keep: Option<&str>, force: bool) -> Result<()> {
        let to = self.find_snapshot(snapshot)?;
        let volume = self.engine.volume(to)?.snapshot.map_or(to, |origin| origin.volume);
        let asked = self.act(|acts| {
            let ask = || acts.rollback(volume, to, keep, now_ms());
            self.handles.lock().end(volume, force, ask)
        });
        let (_, asked) = asked?.done()?;
        self.perform(asked)
    }

    /// Deletes a snapshot, named like `vm1@monday`. Durable on return; what only it held is freed in
    /// the background.
    ///
    /// # Errors
    /// `NotFound`; `Busy` when somebody has it open, unless `force` is true: then they get errors.
    pub fn delete_snapshot(&self, name: &str, force: bool) -> Result<()> {
        let id = self.find_snapshot(name)?;
        let deleted = self
            .changes()
            .make(|| self.handles.lock().end(id, force, || self.engine.delete_volume(id)));
        self.commit.wait(deleted?.done()?)
    }

    /// Gives a snapshot, named like `vm1@monday`, another name; `new_name` is the part behind the
    /// `@`. Durable on return.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidInput`.
    pub fn rename_snapshot(&self, name: &str, new_name: &str) -> Result<()> {
        let id = self.find_snapshot(name)?;
        self.catalogue_change(|| Ok(((), self.engine.rename_volume(id, new_name)?)))
    }

    pub(super) fn acts(&self) -> Acts<'_> {
        Acts::of(&self.engine)
    }

    /// Asks for an act until it is admitted, and has its turn for the room that it waits for.
    pub(super) fn act<T>(&self, mut ask: impl FnMut(&Acts<'_>) -> Result<T>) -> Result<T> {
        let held = HeldPlace { store: self, place: self.acts().take_place() };
        self.changes().make(|| ask(&Acts::at(&self.engine, held.place)))
    }

    pub(super) fn find_snapshot(&self, name: &str) -> Result<VolumeId> {
        let id = self.engine.find_volume(name)?;
        if self.engine.volume(id)?.snapshot.is_some() {
            return Ok(id);
        }
        Err(Error::new(
            Kind::InvalidInput,
            format!("'{name}' is a volume: a snapshot's name is like {name}@monday"),
        ))
    }

    /// Runs checkpoints until acts are durable. The background thread may run them as well.
    pub(super) fn perform(&self, asked: Asked) -> Result<()> {
        self.commit.wait(asked.moment)?;
        while self.acts().done() < asked.number {
            let seen = self.commit.progress();
            self.engine.checkpoint()?;
            self.commit.advance();
            if self.acts().done() < asked.number {
                // A reader of the version before is at work.
                self.commit.wait_for_progress(seen + 1, super::ROOM_WAIT);
            }
        }
        Ok(())
    }
}

/// A place of who asks for an act, which is given back however the asking ends.
struct HeldPlace<'s> {
    store: &'s Store,
    place: Place,
}

impl Drop for HeldPlace<'_> {
    fn drop(&mut self) {
        self.store.acts().give_back(self.place);
        // Whoever waited for the act looks again.
        self.store.commit.advance();
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
