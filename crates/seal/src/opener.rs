//! Who is asked for the key when a store is opened.

use std::sync::Arc;

use onefold_core::Result;

use crate::{area::KeyArea, head::Head, random::Random, role::RoleKey, secret::Secret};

/// A durable state of a block store, as it can be kept outside the store: nothing in it is secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableState {
    /// Its number. Numbers of states rise, so a store with a lower one was put back.
    pub sequence: u64,
    /// A hash of the superblock that bears this number: two histories of one store may have one number.
    pub tag: [u8; 16],
}

/// What somebody knows of the newest durable state of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSeen {
    /// Who it is, as in "the witness".
    pub by: &'static str,
    /// The state's number.
    pub sequence: u64,
    /// Its tag, where that is known.
    pub tag: Option<[u8; 16]>,
}

/// Gives the key of a store that is being opened, and chance for what is sealed.
pub trait Opener: Send + Sync {
    /// The root key of the store that has this key area, by the secret of one of its slots.
    ///
    /// # Errors
    /// `Denied`: no slot opens; those of asking for the secret.
    fn root(&self, area: &KeyArea) -> Result<Secret>;

    /// The role key that the operator gave for the store with this id; `None` when the store is opened by
    /// one of its slots.
    ///
    /// # Errors
    /// Those of reading it. `Denied`: it is the role key of another store.
    fn role(&self, _id: &[u8; 16]) -> Result<Option<RoleKey>> {
        Ok(None)
    }

    /// The operator's word that an older key area, or one of a store that was put back, may count.
    fn accepts_older(&self) -> bool {
        false
    }

    /// What is known of the newest durable state of the store with this id, by each who knows of one. A
    /// store that is older is not opened.
    ///
    /// # Errors
    /// Somebody who has to be asked does not answer: the store is not opened then.
    fn states_seen(&self, _id: &[u8; 16]) -> Result<Vec<StateSeen>> {
        Ok(Vec::new())
    }

    /// The store with this id is in this durable state from now on: [`states_seen`](Self::states_seen) is to
    /// know it. Called by what changes a store without working on it: changes of keys, and repair.
    fn saw_state(&self, _id: &[u8; 16], _state: &DurableState) {}

    /// The newest head that is known here of the archive with this id; `None` when none is. An archive that
    /// does not descend from it was put back, or others were shown another history.
    fn head_seen(&self, _id: &[u8; 16]) -> Option<Head> {
        None
    }

    /// The archive with this id has come to this head, and what led there is durable:
    /// [`head_seen`](Self::head_seen) is to know it. Called at each change that is seen or made.
    fn saw_head(&self, _id: &[u8; 16], _head: &Head) {}

    /// The archive with this id had so many changes since the head that was seen that nobody can tell
    /// whether they descend from it.
    fn cannot_compare(&self, _id: &[u8; 16], _changes: u64) {}

    /// True when only a sealed store may be opened: the operator named a key, or gave one, and a plain
    /// store in its place is a forgery.
    fn refuses_plain(&self) -> bool {
        false
    }

    /// The source of chance.
    fn random(&self) -> Arc<dyn Random>;
}
