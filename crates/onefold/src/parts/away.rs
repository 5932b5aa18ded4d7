//! Archives whose files are elsewhere: on another host, or in an object store.

use std::{path::Path, sync::Arc};

use onefold_core::{Error, Files, Kind, Result};
use onefold_remote::Greeting;

use super::{
    address::is_bucket,
    bucket::{self, Place},
    far::{self, Far},
};

/// Where the files are.
#[derive(Clone)]
pub(super) enum Away {
    /// On another host.
    Host(Arc<Far>),
    /// In an object store.
    Bucket(Arc<Place>),
}

/// Ends what this process has with other hosts and object stores; what still uses one fails.
pub fn end() {
    far::end();
    bucket::end();
}

impl Away {
    /// The archive at an address; `None` for a path of this host.
    ///
    /// # Errors
    /// `InvalidInput` for what is no address, and those of reaching it.
    pub(super) fn reach(path: &Path) -> Result<Option<Away>> {
        Ok(if far::is_address(path) {
            Some(Away::Host(far::reach(path)?))
        } else if is_bucket(path) {
            Some(Away::Bucket(bucket::reach(path)?))
        } else {
            None
        })
    }

    /// Files for an archive that is to be created at an address; `None` for a path of this host.
    ///
    /// # Errors
    /// As [`reach`](Self::reach), and `Exists` when something is there.
    pub(super) fn make(path: &Path) -> Result<Option<Arc<dyn Files>>> {
        Ok(if far::is_address(path) {
            Some(Arc::new(far::make(path)?.files().clone()))
        } else if is_bucket(path) {
            Some(bucket::make(path)?)
        } else {
            None
        })
    }

    /// Files for reading.
    ///
    /// # Errors
    /// The errors of reaching them.
    pub(super) fn files(&self) -> Result<Arc<dyn Files>> {
        Ok(match self {
            Away::Host(far) => Arc::new(far.files().clone()),
            Away::Bucket(place) => Arc::new(place.files()?),
        })
    }

    /// Files for changes.
    ///
    /// # Errors
    /// `Busy` while another process changes a bucket, and those of reaching them.
    pub(super) fn files_to_change(&self) -> Result<Arc<dyn Files>> {
        Ok(match self {
            Away::Host(far) => Arc::new(far.files().clone()),
            Away::Bucket(place) => Arc::new(place.files_to_change()?),
        })
    }

    /// The greeting of the other host; a bucket says nothing.
    pub(super) fn greeting(&self) -> Option<&Greeting> {
        match self {
            Away::Host(far) => Some(far.greeting()),
            Away::Bucket(_) => None,
        }
    }

    /// Free bytes there.
    ///
    /// # Errors
    /// The other host's.
    pub(super) fn free_bytes(&self) -> Result<u64> {
        match self {
            Away::Host(far) => far.files().free_bytes(),
            // Nobody knows of an end.
            Away::Bucket(_) => Ok(u64::MAX / 2),
        }
    }

    /// Why something is not possible there; `what` is how it is on another host.
    pub(super) fn refusal(&self, path: &Path, what: &str) -> Error {
        let shown = path.display();
        let why = match self {
            Away::Host(_) => format!("{shown} is on another host: {what}"),
            Away::Bucket(_) => format!("{shown} is in an object store, where this is not possible"),
        };
        Error::new(Kind::Unsupported, why)
    }
}
