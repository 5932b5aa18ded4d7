//! Clients, who changes the volumes, and who gives the engine its steps.

mod catalogue;
mod client;
mod data_keys;
mod domain_limits;
mod domains;
mod growth;
mod keys;
mod quotas;
mod readers;
mod replication;
mod schedule;

pub(crate) use data_keys::Rotations;
pub(crate) use domain_limits::Bounds;
pub(crate) use domains::Tenants;
pub(super) use growth::Growing;
pub(crate) use keys::Secrets;
pub(crate) use replication::Transfer;
