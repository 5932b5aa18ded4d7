//! Network Block Device: the fixed newstyle handshake and the transmission phase, with simple,
//! structured and extended replies.
//!
//! A connection passes through the files in this order: `server` accepts it from a listener,
//! `line` encrypts it if need be, `handshake` agrees with the client on a volume and a `wire`
//! dialect, and `session` takes the requests that arrived together as one batch: `command` checks
//! each, `reads` and `status` answer from the volume, `durable` waits for what must be on disk, and
//! `reply` sends the answers of the batch at once.
//!
//! *Invariants.* Every limit is checked before memory is taken for what it limits. A request is
//! answered once, or the connection ends. An answer without error to FLUSH, or to a request with
//! FUA, is sent only after the volume said that the data is durable.

mod ahead;
mod aside;
pub(crate) mod buffers;
mod command;
pub(crate) mod durable;
pub(crate) mod durations;
mod ending;
mod handshake;
mod inbox;
mod limited;
pub mod limits;
mod line;
mod pace;
mod reads;
mod reply;
mod rights;
mod sequence;
mod server;
pub(crate) mod session;
pub(crate) mod shares;
pub(crate) mod socket;
pub(crate) mod statistics;
mod status;
pub(crate) mod turns;
mod wire;

pub use durations::{Durations, Operations};
pub use ending::Ending;
pub use limits::Limits;
pub use rights::{Peer, Right, Rights};
pub use server::{Server, Watch};
pub(crate) use server::{too_many, wait_for_end};
pub use session::session_over;
pub use statistics::Statistics;

pub use crate::listener::Reach;
