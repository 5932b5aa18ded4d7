//! What a server tells about its clients, for a log that shows later who did what (rule 48 of SECURITY.md).

use crate::nbd::{Peer, Right};

/// Hears of clients. It is called by their threads, before a client gets the answer to what is told.
pub trait Audit: Send + Sync {
    /// A client did something, or was refused.
    fn hear(&self, who: &Who, event: Event<'_>);
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// By what the server knows it.
    pub peer: Peer,
    /// The name of its certificate.
    pub certificate: Option<String>,
}

impl Who {
    /// One that showed no certificate.
    #[must_use]
    pub fn of(peer: Peer) -> Who {
        Who { peer, certificate: None }
    }
}

impl std::fmt::Display for Who {
    /// As the file of rights writes it where it can: `uid:0`, `addr:10.0.0.2`, `certificate:` and its name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.peer, &self.certificate) {
            (_, Some(name)) => write!(f, "certificate:{name}"),
            (Peer::User(uid), _) => write!(f, "uid:{uid}"),
            (Peer::Address(address), _) => write!(f, "addr:{address}"),
            (Peer::Certificate(_), None) => f.write_str("certificate"),
            (Peer::Unknown, _) => f.write_str("unknown"),
        }
    }
}

/// What a client did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// It opened a volume.
    Opened {
        /// The number of its connection.
        connection: u64,
        /// The volume's name.
        volume: &'a str,
        /// Whether it may change it.
        right: Right,
    },
    /// Its connection to a volume ended.
    Closed {
        /// The number of its connection.
        connection: u64,
        /// The volume's name now.
        volume: &'a str,
        /// True when the server ended it: the client lost its right, or gave way to others.
        cut: bool,
    },
    /// It asked for a volume that it has no right to, or that is not there.
    Refused {
        /// The name that it asked for, at most 255 bytes of it.
        volume: &'a str,
    },
    /// It was sent away before it named a volume.
    SentAway {
        /// Why.
        why: &'a str,
    },
    /// It came to the pages, over TLS.
    Pages {
        /// Whether it may see them.
        allowed: bool,
    },
}
