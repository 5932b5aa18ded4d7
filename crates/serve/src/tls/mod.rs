//! TLS with certificates on both sides: who a client is, and how its bytes travel.
//!
//! [`Credentials`] are the files of a directory; `session` is one connection of TLS, which sees bytes
//! and no sockets; `identity` says how a certificate is called in a list of rights; an [`Authority`]
//! makes certificates for those who have none.
//!
//! *Invariants.* TLS 1.3 only; a client without a certificate of the authority is not let in; no
//! session is resumed and no data is taken before the handshake ends, so that each connection proves
//! anew who it is. A client that sends records without data, as updates of keys are, pays for them by
//! waiting.

mod authority;
mod credentials;
mod identity;
mod session;

pub use authority::{Authority, Holder, Made};
pub use credentials::{CA, CA_LIST, Credentials, SERVER_CERTIFICATE, SERVER_KEY};
pub use identity::{CLIENT, Identity};
pub(crate) use session::{Proof, TlsSession};
