//! Rights: which requests a connection may make.

use onefold_core::{Error, Hold, Kind, Result};

use crate::wire::Request;

/// The right of who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Look at everything, and change nothing.
    Read = 0,
    /// Everything that the owner of the directory may do.
    Manage = 2,
}

impl Right {
    /// # Errors
    /// `Denied` when the request does more than this right allows.
    pub(crate) fn allows(self, request: &Request<'_>) -> Result<()> {
        let looks = match request {
            Request::Names
            | Request::Open { .. }
            | Request::Close { .. }
            | Request::Unlock { .. }
            | Request::Bytes { .. }
            | Request::Occupied { .. }
            | Request::Read { .. }
            | Request::Alive
            | Request::Free => true,
            // Alone is who changes something.
            Request::Lock { hold, .. } => *hold == Hold::Shared,
            // Readers make durable what they are about to show.
            Request::Sync { .. } | Request::SyncNames | Request::Keeps { .. } => true,
            Request::Create { .. }
            | Request::Remove { .. }
            | Request::Write { .. }
            | Request::SetBytes { .. }
            | Request::Reserve { .. }
            | Request::Punch { .. } => false,
        };
        match looks || self == Right::Manage {
            true => Ok(()),
            false => Err(Error::new(Kind::Denied, "this connection may read, and change nothing")),
        }
    }
}
