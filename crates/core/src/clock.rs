//! Time, as engines may see it.

use std::time::Duration;

/// A monotonic clock. The simulator and the laboratory replace it by virtual time.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary start; never goes back.
    fn now(&self) -> Duration;
}
