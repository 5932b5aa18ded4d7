//! Clients, who changes the volumes, and who gives the engine its steps.

mod catalogue;
mod client;
mod replication;
mod schedule;

pub(crate) use replication::Transfer;
