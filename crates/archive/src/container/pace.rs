//! Work that gives way: before it reads, it asks whether it may go on.

use std::{fmt, sync::Arc};

use onefold_core::Result;

/// Asked before so many bytes are read or written; it may wait, and an error ends the work. No lock
/// on the log is held meanwhile.
type Ask = dyn Fn(u64) -> Result<()> + Send + Sync;

/// How fast background work may go.
#[derive(Clone, Default)]
pub struct Pace(Option<Arc<Ask>>);

impl Pace {
    /// As fast as `ask` lets it.
    pub fn new(ask: impl Fn(u64) -> Result<()> + Send + Sync + 'static) -> Pace {
        Pace(Some(Arc::new(ask)))
    }

    /// Waits until the work may go on, with so many bytes.
    ///
    /// # Errors
    /// Those of who is asked: the work ends.
    pub(crate) fn ask(&self, bytes: u64) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |ask| ask(bytes))
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Pace(asks)" } else { "Pace(free)" })
    }
}
