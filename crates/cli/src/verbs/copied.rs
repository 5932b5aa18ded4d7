//! The requests and results of copies.

use onefold_core::Result;
use onefold_stream::{SendWhat, Totals};
use serde::{Deserialize, Serialize};

/// The content of a stream, as JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    /// Bytes that were sent as data, before compression.
    pub(crate) data_bytes: u64,
    /// Bytes that had been sent before.
    pub(crate) repeated_bytes: u64,
    /// Zeroes.
    pub(crate) zero_bytes: u64,
    /// Holes.
    pub(crate) hole_bytes: u64,
    /// Bytes that the receiver had, of a sender that asked.
    #[serde(default)]
    pub(crate) held_bytes: u64,
    /// Bytes that the sender could not read, and skipped.
    #[serde(default)]
    pub(crate) lost_bytes: u64,
}

impl From<&Totals> for Sent {
    fn from(totals: &Totals) -> Sent {
        Sent {
            data_bytes: totals.data * 4096,
            repeated_bytes: totals.repeats * 4096,
            zero_bytes: totals.zeroes * 4096,
            hole_bytes: totals.holes * 4096,
            held_bytes: totals.held * 4096,
            lost_bytes: totals.lost * 4096,
        }
    }
}

/// The received snapshot, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Received {
    /// The snapshot, like `vm1@monday`.
    pub(crate) name: String,
    /// Its size.
    pub(crate) bytes: u64,
    #[serde(flatten)]
    pub(crate) sent: Sent,
}

impl From<&onefold_cluster::Received> for Received {
    fn from(received: &onefold_cluster::Received) -> Received {
        Received {
            name: received.name.clone(),
            bytes: received.bytes,
            sent: Sent::from(&received.totals),
        }
    }
}

impl From<&onefold_block::Received> for Received {
    fn from(received: &onefold_block::Received) -> Received {
        Received {
            name: received.name.clone(),
            bytes: received.bytes,
            sent: Sent::from(&received.totals),
        }
    }
}

/// The choices of a sender.
pub(crate) fn what(
    snapshot: &str,
    from: &Option<String>,
    resume: &Option<String>,
    skip_damaged: bool,
) -> Result<SendWhat> {
    Ok(SendWhat {
        snapshot: snapshot.to_owned(),
        from: from.clone(),
        resume: resume.as_deref().map(str::parse).transpose()?,
        plain: false,
        skip_damaged,
    })
}
