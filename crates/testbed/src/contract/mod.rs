//! Contracts: what every implementation of a trait must keep, as checks that run on any of them.

pub mod disk;
pub mod files;
pub mod objects;
