//! Deterministic crash and fault simulation of Onefold's real engines.
//!
//! A seed and a commit are one run: the seed gives the parameters, the workload, the schedule of
//! steps, the faults, and what each power failure leaves. A model knows what may be there. A
//! [`Failure`](checker::Failure) names the [`Checker`](checker::Checker), that is, the invariant
//! that is broken.
//!
//! | module | what is simulated |
//! |---|---|
//! | [`block`] | the block engine, over a [disk](onefold_testbed::VirtualDisk) |
//! | [`archive`] | the archive engine, over [files](onefold_testbed::VirtualFiles) |
//! | [`bucket`] | the files of an archive in an object store, over a store with faults |
//! | [`copies`] | two archives, and copies of snapshots from one to the other |
//! | [`cluster`] | the cluster engine, over an object store |
//!
//! Each has `params`, drawn from the seed; `actors`, which do what clients and operators do; a
//! `model` of what may be there; `checks`; and `run`, which is one seed from its beginning to its
//! end. [`front`] has what they share: the command line, seeds, shrinking, planted bugs, and what a
//! run must reach.
//!
//! *Invariant:* one seed is one thread, or several of which one runs at a time; nothing depends on
//! the wall clock, on the order of a hash map, or on chance from outside.

pub mod archive;
pub mod block;
pub mod bucket;
pub mod checker;
pub mod cluster;
pub mod copies;
pub mod front;
