//! Clients, who changes the volumes, and who gives the engine its steps.

mod catalogue;
mod client;
mod growth;
mod replication;
mod schedule;

pub(super) use growth::Growing;
pub(crate) use replication::Transfer;
