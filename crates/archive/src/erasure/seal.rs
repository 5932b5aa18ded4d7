//! The seal of a list of nodes.
//!
//! A list names directories, and anybody can write one that names directories of somebody else's.
//! So the list of an archive has a seal, made with the secret that stands in the labels of its
//! nodes, and the labels say that the archive's lists have one ([`View::listed`]). Whoever wants to
//! change the archive shows the list and its seal to the nodes that it leads to.
//!
//! The labels of older archives say nothing. The first change by way of a list with a seal makes
//! them say so, by the same two steps as any new view, and only while all members are there: a
//! member that is absent would count as one that missed something.
//!
//! [`View::listed`]: super::View::listed

use onefold_core::{Error, Kind, Result};

use super::{nodes::Nodes, shared::Shared};
use crate::rules::Rule;

/// Keeps what is sealed apart from all else that the secret keys.
const CONTEXT: &str = "onefold archive 2026-11-25 seal of a list of nodes";

/// The seal of `list`, the bytes that name the nodes of the archive with this id and secret.
#[must_use]
pub fn seal(archive: &[u8; 16], secret: &[u8; 32], list: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(secret).update(archive).update(list);
    *hasher.finalize().as_bytes()
}

impl Nodes {
    /// The seal of `list` for the archive that these nodes hold.
    #[must_use]
    pub fn seal(&self, list: &[u8]) -> [u8; 32] {
        seal(&self.shared().identity.id, &self.shared().secret, list)
    }

    /// Judges the list by which the nodes were found, before anything of the archive is changed.
    /// True when its seal is the archive's; false when it has none, and the archive, which an older
    /// program made, asks for none.
    ///
    /// # Errors
    /// `Denied` when somebody else wrote the list.
    pub fn may_change(&self, list: &[u8], shown: Option<&[u8; 32]>) -> Result<bool> {
        let shared = self.shared();
        match shown {
            Some(shown) if blake3::Hash::from(*shown) == self.seal(list) => {
                shared.state.lock().sealed = true;
                Ok(true)
            }
            None if !shared.is_listed() => Ok(false),
            _ if !shared.settings.keeps(Rule::ListHasItsSeal) => Ok(false),
            _ => Err(Error::new(Kind::Denied, "the nodes do not know the list that names them")),
        }
    }
}

impl Shared {
    /// True when the label of any directory that was found says so, current or not.
    fn is_listed(&self) -> bool {
        self.state.lock().listed
    }
}
