//! Attacks that must fail: one test for each rule of SECURITY.md, with the rule's number in its
//! name (`rule_NN_…`).
//!
//! `cargo xtask test hostile` runs all tests of the workspace whose names begin so. Tests that need
//! a second user, a mount namespace or a loop device are ignored unless the superuser runs that
//! step.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "a test makes what others would make, by its path")]

#[path = "../support/mod.rs"]
mod support;

mod actors;
mod catalogues;
mod certificates;
mod clusters;
mod connections;

mod files;
mod heads;
mod holes;
mod limits;
mod links;
mod logs;
mod losses;
mod medium;
mod mounts;
mod names;
mod pages;
mod places;
mod promises;
mod readers;
mod restores;
mod snapshots;
mod sockets;
mod thin;
mod trees;
