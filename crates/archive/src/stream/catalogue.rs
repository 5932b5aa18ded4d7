//! Streams removed and renamed.

use onefold_core::{Error, Kind, Result};

use crate::{
    format::record::Record,
    operations_log::Archive,
    tables::{Tables, valid_name},
};

impl Archive {
    /// Removes the stream `name`; durable on return.
    ///
    /// # Errors
    /// `NotFound`, and as for every change.
    pub fn remove(&self, name: &str) -> Result<()> {
        let decide = |tables: &Tables| match tables.streams.contains_key(name) {
            true => Ok(vec![Record::Removed { name: name.to_owned() }]),
            false => Err(no_stream(name)),
        };
        self.commit(true, decide).map(|_| ())
    }

    /// Gives a stream another name; durable on return.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `InvalidInput`, and as for every change.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        valid_name(to)?;
        let decide = |tables: &Tables| {
            if !tables.streams.contains_key(from) {
                return Err(no_stream(from));
            }
            if tables.streams.contains_key(to) {
                return Err(Error::new(Kind::Exists, format!("there is a stream '{to}' already")));
            }
            Ok(vec![Record::Renamed { from: from.to_owned(), to: to.to_owned() }])
        };
        self.commit(true, decide).map(|_| ())
    }
}

/// The error for a name that is not in the catalogue.
pub(crate) fn no_stream(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no stream '{}'", name.escape_debug()))
}
