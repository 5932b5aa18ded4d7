//! Clients, who changes the volumes, and who gives the engine its steps.

mod catalogue;
mod client;
mod growth;
mod schedule;

pub(super) use growth::Growing;
