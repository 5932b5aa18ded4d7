//! Protocols under which Onefold's volumes are served.
//!
//! A server sees only the traits [`Exports`](onefold_core::Exports) and
//! [`Volume`](onefold_core::Volume); which engine stands behind them it does not know. Concurrency
//! lives here: one thread for each connection, or ring of a device, and the engines take calls from all
//! of them.
//!
//! Beside them stands [`http`], which shows an operator how the server is doing.
//!
//! *Invariant:* a client, whatever it sends, costs at most its own connection.

pub mod audit;
mod batch;
mod brief;
mod client_fd;
mod farewell;
pub mod http;
mod listener;
pub mod nbd;
mod system;
pub mod tls;
pub mod vhost;
