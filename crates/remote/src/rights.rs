//! Rights: which requests a connection may make.

use onefold_core::{Error, Hold, Kind, Result};

use crate::wire::Request;

/// How long a lock may be held by who may only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// For as long as something is read: it holds up nobody who writes.
    Long,
    /// For [`Offer::brief`](crate::Offer::brief): writers wait for it.
    Brief,
}

/// The right of who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Look at everything, and change nothing.
    Read = 0,
    /// Look at everything, and add. The [`Offer`](crate::Offer)'s files know what adding is, and refuse the rest.
    Put = 1,
    /// Everything that the owner of the directory may do.
    Manage = 2,
}

impl Right {
    /// `reader_lock` knows the locks that who reads needs.
    ///
    /// # Errors
    /// `Denied` when the request does more than this right allows.
    pub(crate) fn allows(
        self,
        request: &Request<'_>,
        reader_lock: fn(&str) -> Option<Stay>,
    ) -> Result<()> {
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
            // Alone is who changes something, and a lock that no reader needs holds up who does.
            Request::Lock { hold, name, .. } => {
                *hold == Hold::Shared && reader_lock(name).is_some()
            }
            // Readers make durable what they are about to show.
            Request::Sync { .. } | Request::SyncNames | Request::Keeps { .. } => true,
            Request::Create { .. }
            | Request::Write { .. }
            | Request::SetBytes { .. }
            | Request::Reserve { .. }
            | Request::Punch { .. } => self >= Right::Put,
            Request::Remove { .. } => false,
        };
        let may_lock = self >= Right::Put && matches!(request, Request::Lock { .. });
        let why = match self {
            _ if looks || may_lock || self == Right::Manage => return Ok(()),
            Right::Read => "this connection may read, and change nothing",
            _ => "this connection may add, and take nothing away",
        };
        Err(Error::new(Kind::Denied, why))
    }
}
