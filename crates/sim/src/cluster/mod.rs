//! Clients and workers of the cluster engine, interleaved over a simulated object store.
//!
//! A seed gives the parameters, what clients do, which operation is applied next, which replies are
//! lost or late, who is killed, stopped and continued. After every operation that is applied,
//! [`checks`] looks whether a map names a chunk without a reference; once all have calmed down,
//! everything is compared with the [`model`].
//!
//! *Invariant:* nobody runs but who has the baton; nothing depends on the wall clock, on the order
//! of a hash map, or on chance from outside.

mod actors;
mod checks;
pub mod cli;
mod model;
pub mod params;
mod run;
mod store;
mod told;
mod world;

pub use model::Finding;
pub use params::Params;
pub use run::{Outcome, bugs, run_seed};
