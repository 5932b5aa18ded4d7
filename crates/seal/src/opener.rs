//! Who is asked for the key when a store is opened.

use std::sync::Arc;

use onefold_core::Result;

use crate::{area::KeyArea, random::Random, secret::Secret};

/// Gives the key of a store that is being opened, and chance for what is sealed.
pub trait Opener: Send + Sync {
    /// The root key of the store that has this key area, by the secret of one of its slots.
    ///
    /// # Errors
    /// `Denied`: no slot opens; those of asking for the secret.
    fn root(&self, area: &KeyArea) -> Result<Secret>;

    /// The operator's word that an older key area, or one of a store that was put back, may count.
    fn accepts_older(&self) -> bool {
        false
    }

    /// True when only a sealed store may be opened: the operator named a key, or gave one, and a plain
    /// store in its place is a forgery.
    fn refuses_plain(&self) -> bool {
        false
    }

    /// The source of chance.
    fn random(&self) -> Arc<dyn Random>;
}
