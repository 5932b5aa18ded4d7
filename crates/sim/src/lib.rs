//! Deterministic crash and fault simulation of Onefold's real engines.
//!
//! A seed and a commit are one run: the seed gives the [parameters](params), the workload, the
//! schedule of the engine's steps, the faults of the [disk](onefold_testbed::VirtualDisk) and what each power
//! failure leaves of the unflushed writes. The [model] knows what every block may
//! hold; a [`Failure`](checker::Failure) names the [`Checker`](checker::Checker), that is, the
//! invariant that is broken.
//!
//! - [`runner`] runs seeds on worker threads, replays one, and shows that planted bugs are found;
//! - [`exhaust`] tries every crash of a small case;
//! - [`archive`] is the archive engine under simulation, over files instead of a disk;
//! - [`verifier`] reads what is left of a store by the document of its format alone;
//! - [`subject`] is the seam: what the block engine under simulation must offer; [`engine`] is the
//!   one behind it.
//!
//! [`cluster`] simulates the cluster engine in the same spirit, over an object store.
//!
//! *Invariant:* one seed is one thread, or several of which one runs at a time; nothing depends on
//! the wall clock, on the order of a hash map, or on chance from outside.

pub mod archive;
mod audit;
mod catalogue;
pub mod checker;
pub mod cli;
mod client;
pub mod cluster;
pub mod engine;
pub mod exhaust;
pub mod model;
pub mod params;
mod run;
pub mod runner;
mod schedule;
pub mod subject;
pub mod verifier;
