//! Receives that were cut off: what is kept of them, and when it goes.
//!
//! A sender that died must not keep a store from its other work. What was received for a volume goes
//! when another snapshot begins to be received for it, when somebody gives it up, or when nobody has
//! sent for as long as an operator says.

use onefold_core::{Error, Kind, Result, VolumeId};

use super::{Copies, handles::Ended, send::guid, snapshots::now_ms};
use crate::{Acts, Engine, Token, VolumeState};

/// A receive that is under way, or was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveState {
    /// The snapshot as it will be called, like `vm1@monday`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes from the beginning that are there.
    pub received_bytes: u64,
    /// When it began, or more of these bytes came last, in milliseconds since 1970. An older program
    /// that began it has noted when the sender made the snapshot.
    pub heard_ms: u64,
    /// Somebody sends it right now.
    pub at_work: bool,
    /// By which the sender goes on.
    pub token: Token,
}

/// The receives of an engine that nobody works on.
#[must_use]
pub fn receives(engine: &Engine) -> Vec<ReceiveState> {
    let all = Acts::of(engine).receiving().into_iter();
    all.filter_map(|(_, receive)| state(engine, &receive)).collect()
}

fn state(engine: &Engine, receive: &VolumeState) -> Option<ReceiveState> {
    let receiving = receive.receiving?;
    let base = receiving.base.and_then(|base| engine.volume(base).ok());
    Some(ReceiveState {
        name: format!("{}@{}", volume_of(engine, receive), receive.received_name().1),
        bytes: receive.blocks * 4096,
        received_bytes: receiving.cursor * 4096,
        heard_ms: receiving.heard_ms,
        at_work: false,
        token: Token {
            guid: receiving.guid,
            base: base.as_ref().map_or([0; 16], guid),
            cursor: receiving.cursor,
        },
    })
}

/// The name of the volume that gets what is being received.
pub(super) fn volume_of(engine: &Engine, receive: &VolumeState) -> String {
    let base = receive.receiving.and_then(|receiving| receiving.base);
    let there = || {
        let origin = engine.volume(base?).ok()?.snapshot?;
        Some(engine.volume(origin.volume).ok()?.name)
    };
    there().unwrap_or_else(|| receive.received_name().0.to_owned())
}

impl Copies<'_> {
    /// The receives that are under way or were cut off.
    #[must_use]
    pub fn receives(&self) -> Vec<ReceiveState> {
        let all = self.0.acts().receiving().into_iter();
        let told = all.filter_map(|(id, receive)| {
            let at_work = self.0.handles.lock().is_open(id);
            Some(ReceiveState { at_work, ..state(&self.0.engine, &receive)? })
        });
        told.collect()
    }

    /// Gives up what is being received for a volume. Durable on return. A sender that is at work gets
    /// an error.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn abort_receive(&self, volume: &str) -> Result<()> {
        let mut found = false;
        for (id, receive) in self.0.acts().receiving() {
            if volume_of(&self.0.engine, &receive) == volume {
                self.give_up(id, true)?;
                found = true;
            }
        }
        if found {
            return Ok(());
        }
        let message = format!("nothing is being received for a volume '{volume}'");
        Err(Error::new(Kind::NotFound, message))
    }

    /// Gives up all receives for which nothing has come for so many days, and that nobody sends right
    /// now. Durable on return; gives the names of their snapshots.
    ///
    /// # Errors
    /// `Stopped`.
    pub fn expire_receives(&self, days: u32) -> Result<Vec<String>> {
        let most_ms = u64::from(days) * 24 * 3600 * 1000;
        let mut gone = Vec::new();
        for (id, receive) in self.0.acts().receiving() {
            let Some(found) = state(&self.0.engine, &receive) else { continue };
            if now_ms().saturating_sub(found.heard_ms) >= most_ms && self.give_up(id, false)? {
                gone.push(found.name);
            }
        }
        Ok(gone)
    }

    /// What was being received for a volume goes, as another snapshot begins to be.
    ///
    /// # Errors
    /// `Busy` while somebody sends it.
    pub(super) fn replace_receive(&self, volume: &str, base: Option<VolumeId>) -> Result<()> {
        if base.is_none() && self.0.engine.find_volume(volume).is_ok() {
            // It will be refused.
            return Ok(());
        }
        for (id, receive) in self.0.acts().receiving() {
            if volume_of(&self.0.engine, &receive) == volume && !self.give_up(id, false)? {
                let message =
                    format!("somebody sends another snapshot for volume '{volume}' already");
                return Err(Error::new(Kind::Busy, message));
            }
        }
        Ok(())
    }

    /// Drops what was received; without `force` not while somebody sends it. True when it is gone.
    fn give_up(&self, id: VolumeId, force: bool) -> Result<bool> {
        let deleted = self
            .0
            .changes()
            .make(|| self.0.handles.lock().end(id, force, || self.0.engine.delete_volume(id)));
        match deleted {
            Ok(Ended::Done(ticket)) => self.0.commit.wait(ticket).map(|()| true),
            Ok(Ended::IsOpen) => Ok(false),
            // Somebody else was faster.
            Err(gone) if gone.kind() == Kind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}
