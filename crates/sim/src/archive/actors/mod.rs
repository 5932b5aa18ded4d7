//! The processes of a run: each verb is a move of one of them.

mod collector;
pub(crate) mod data_keys;
pub(crate) mod domains;
pub(super) mod heads;
pub(super) mod index_disk;
pub(crate) mod keys;
mod late_counts;
mod names;
mod nodes;
mod old_condemnation;
pub(super) mod put_back;
pub(super) mod repair;
mod replay;
mod restores;
pub(super) mod server;
pub(crate) mod snapshots;
mod streams;
pub(crate) mod upgrades;
