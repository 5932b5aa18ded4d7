//! The trait by which an engine that opens a store asks for the key, and for what was seen of the store
//! earlier.

use std::sync::Arc;

use onefold_core::Result;

use crate::{area::KeyArea, head::Head, random::Random, role::RoleKey, secret::Secret};

/// A durable state of a block store, in a form that can be kept outside the store: nothing in it is secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableState {
    /// The number of the state. Numbers rise, so somebody put back a store that has a lower one.
    pub sequence: u64,
    /// A hash of the superblock with this number: two histories of one store may have states of one number.
    pub tag: [u8; 16],
}

/// The newest durable state of a store, as somebody knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSeen {
    /// The one who knows it, as errors say it: "the witness".
    pub by: &'static str,
    /// The state's number.
    pub sequence: u64,
    /// The state's tag, where it is known.
    pub tag: Option<[u8; 16]>,
}

/// Gives the key of a store that is being opened, and chance for what is sealed.
pub trait Opener: Send + Sync {
    /// The root key of the store that has this key area, by the secret of one of its slots.
    ///
    /// # Errors
    /// `Denied`: no slot opens. The errors of asking for the secret.
    fn root(&self, area: &KeyArea) -> Result<Secret>;

    /// The role key that the operator gave for the store with this id; `None` when the store is opened by
    /// one of its slots.
    ///
    /// # Errors
    /// Those of reading it. `Denied`: it is the role key of another store.
    fn role(&self, _id: &[u8; 16]) -> Result<Option<RoleKey>> {
        Ok(None)
    }

    /// True when the operator said that an older key area, and a store that somebody put back, may be opened.
    fn accepts_older(&self) -> bool {
        false
    }

    /// The newest durable state of the store with this id, as each one knows it who knows of any. The engine
    /// opens no store that is older.
    ///
    /// # Errors
    /// A witness that has to be asked does not answer: the engine does not open the store then.
    fn states_seen(&self, _id: &[u8; 16]) -> Result<Vec<StateSeen>> {
        Ok(Vec::new())
    }

    /// Notes that the store with this id is in this durable state, which
    /// [`states_seen`](Self::states_seen) returns from now on. Engines call this where they change a
    /// store without serving it: for changes of keys and for repair.
    fn saw_state(&self, _id: &[u8; 16], _state: &DurableState) {}

    /// The newest head that is known here of the archive with this id; `None` when none is. If an archive
    /// does not descend from this head, somebody put it back, or shows others another history.
    fn head_seen(&self, _id: &[u8; 16]) -> Option<Head> {
        None
    }

    /// Notes that the archive with this id has come to this head, which [`head_seen`](Self::head_seen)
    /// returns from now on. All changes up to the head are durable. The engine calls this at each change
    /// that it sees or makes.
    fn saw_head(&self, _id: &[u8; 16], _head: &Head) {}

    /// Warns that the archive with this id had so many changes since the head that was seen that the engine
    /// can't tell whether the archive descends from it, and opens the archive by its number.
    fn cannot_compare(&self, _id: &[u8; 16], _changes: u64) {}

    /// True when only a sealed store may be opened: the operator named a key, or gave one, and a plain
    /// store in its place is a forgery.
    fn refuses_plain(&self) -> bool {
        false
    }

    /// The source of chance.
    fn random(&self) -> Arc<dyn Random>;
}
