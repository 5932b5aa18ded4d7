//! Several nodes as one: containers in stripes with parity (RAD), log and tables in copies, so that
//! `f = n - k` nodes may be lost.
//!
//! To the engine [`Nodes`] is one directory of files. A segment file is a [`stripe`]: each
//! container is cut into `k` columns, to which `f` of parity are computed, on `n` nodes. All other
//! files have a copy on each of the first `2f + 1` nodes, of which `f + 1` must take every change.
//!
//! *Who is current* is what [`label`]s say. A directory without label, of another archive, of
//! another number, or that missed a change is absent; only [`rebuild`] fills one.
//!
//! *Crash argument:* a change is acknowledged when all nodes that are current have it, and who
//! missed a part of it is no longer named as current by any other
//! ([`confirm`](Redundancy::confirm)). So every current copy has all that was
//! acknowledged; what else a crash left in them may differ, and the first process that changes
//! something makes them equal. Any two groups of `f + 1` copies have one in common: locks and
//! labels of two processes meet there. Locks on other hosts end one by one, so that who writes to a node has its lock
//! on that node too ([`fence`]).

#[cfg(feature = "planted-bugs")]
mod broken;
mod code;
mod copies;
mod fence;
mod index_directory;
mod label;
mod locking;
mod nodes;
mod redundancy;
mod seal;
mod shared;
mod stripe;

pub(crate) use self::{
    copies::copy_all,
    fence::lock_on,
    index_directory::WithIndex,
    label::{CURSOR, NODE},
    redundancy::{ONE_DIRECTORY, OneDirectory, Redundancy},
    stripe::{Repaired, Segment},
};
pub use self::{
    index_directory::IndexDirectory,
    label::{Absent, NodeLabel, View},
    nodes::{Nodes, Spread},
    seal::seal,
};
