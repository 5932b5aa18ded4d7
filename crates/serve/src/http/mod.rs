//! HTTP for the operator: a few pages that only show something, for browsers and Prometheus.
//!
//! `server` accepts clients and gives each a thread, `head` understands what they ask for, and
//! `answer` is what they get. Which pages there are, and what stands on them, decides a [`Site`].
//!
//! *Invariants.* A client can change nothing. It costs a head of at most 8 KiB, one page, and a
//! thread for a few seconds; there are at most [`CONNECTIONS`] of them. Only one page is made at a
//! time, and those of strangers for a fifth of the time, so that clients here leave the processors
//! to those of volumes.

mod answer;
mod head;
mod server;
mod turns;

pub use answer::{Answer, Page};
pub use head::{HEAD_BYTES, Head, Refusal};
pub use server::{CONNECTIONS, Server};

/// The clients of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The user of the server, root, and those whom the operator named, over a UNIX socket.
    Operator,
    /// Everybody who can reach a TCP address.
    Anybody,
}

/// The pages of a server.
pub trait Site: Send + Sync {
    /// The answer to a request for a path. It waits for no disk.
    fn answer(&self, path: &str, audience: Audience) -> Answer;
}
