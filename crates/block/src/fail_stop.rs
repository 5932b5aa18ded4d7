//! The first failed write or flush stops all writes for good: nobody can know the disk's content
//! after it, so that only recovery at the next opening may go on. Reads go on.

use onefold_core::{Error, Kind, Result};

/// Why no more writes are done, if so.
#[derive(Default)]
pub(crate) struct FailStop {
    reason: Option<Error>,
}

impl FailStop {
    /// Fails when writes were stopped.
    pub(crate) fn check(&self) -> Result<()> {
        self.reason.clone().map_or(Ok(()), Err)
    }

    /// Why writes were stopped.
    pub(crate) fn reason(&self) -> Option<&Error> {
        self.reason.as_ref()
    }

    /// Stops all writes because of `error`. Returns the reason, which is the first one's.
    pub(crate) fn stop(&mut self, error: &Error) -> Error {
        let stopped = || {
            Error::new(
                Kind::Stopped,
                format!("the store takes no more writes until it is opened again: {error}"),
            )
            .caused_by(error.clone())
        };
        self.reason.get_or_insert_with(stopped).clone()
    }

    /// The store is closed: nothing is written any more.
    pub(crate) fn close(&mut self) {
        self.reason = Some(Error::new(Kind::Stopped, "the store is closed"));
    }
}
