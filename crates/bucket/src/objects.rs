//! Requests that an object store answers.

use onefold_core::{Error, Result};

/// A range of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The bytes from where the range began, at most as many as were asked for.
    pub bytes: Vec<u8>,
    /// Bytes of the whole object.
    pub total: u64,
    /// When it was written, by the store's clock: seconds since 1970.
    pub modified: u64,
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its whole name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// How a creation ended.
#[derive(Clone, Debug)]
pub enum Created {
    /// The object was not there, and is now, durable.
    New,
    /// There is an object of that name: another one, or this one if it was sent before.
    Exists,
    /// Nobody knows: the object may be there, may come later, or never.
    Unknown(Error),
}

/// An object store. Names are ASCII, in folders by `/`.
///
/// A creation is decided by the store: of any number at once for one name, one succeeds. All read the new object
/// from then on.
pub trait Objects: Send + Sync {
    /// The bytes from `at` on, at most `bytes` of them.
    ///
    /// # Errors
    /// `NotFound` when there is no such object, and those of the store: then nothing is known.
    fn get(&self, name: &str, at: u64, bytes: u64) -> Result<Body>;

    /// Creates an object that is not there.
    fn create(&self, name: &str, bytes: &[u8]) -> Created;

    /// Creates or replaces an object. Only leases are replaced: it ends, done or not, in less time than passes
    /// until the next one.
    ///
    /// # Errors
    /// The store's: then nothing is known.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Deletes an object; succeeds too when there is none.
    ///
    /// # Errors
    /// The store's: then nothing is known.
    fn delete(&self, name: &str) -> Result<()>;

    /// Some objects of a folder, or also of folders in it, behind the name `after`, sorted; none when there are no more. The folder is
    /// a name that ends in `/`.
    ///
    /// # Errors
    /// The store's.
    fn list(&self, folder: &str, after: &str) -> Result<Vec<Listed>>;

    /// Removes what creations of objects with keys left and that is no object, when `is_due` says so of the object's
    /// name. When it returns, that is durable, as deletions of objects with keys are. A store that leaves nothing has
    /// nothing to do.
    ///
    /// # Errors
    /// The store's.
    fn drop_unfinished(&self, is_due: &dyn Fn(&str) -> bool) -> Result<()> {
        let _ = is_due;
        Ok(())
    }

    /// Removes what creations left that were killed a day ago and that is no object; returns how many. A store
    /// that leaves nothing has nothing to do.
    ///
    /// # Errors
    /// The store's.
    fn sweep(&self) -> Result<u64> {
        Ok(0)
    }
}
