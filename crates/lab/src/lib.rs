//! Onefold's laboratory: the real engine over devices in virtual time, under workloads and recorded
//! traces.
//!
//! | module | what it gives |
//! |---|---|
//! | [`request`] | what clients ask for: the one form in which everything reaches a replay |
//! | [`trace`], [`record`], [`workload`] | requests recorded, being recorded, and generated |
//! | [`Content`] | blocks made from a hash and a compressed size |
//! | [`subject`] | what is compared: a store of some scheme |
//! | [`device`] | disks whose work takes virtual time |
//! | [`replay`], [`sweep`] | one run, and a grid of runs |
//! | [`crash`] | power failures at every point of a workload |
//! | [`report`] | results as a page |
//! | [`rad`] | placement in stripes by reference counts, and its reliability |
//!
//! *Invariants:* a replay is one thread, sleeps never, and gives the same figures on every machine
//! (but for devices that are real). Equal hashes are equal bytes, and the engine is told nothing
//! that it could not find out from them.

/// The differences between two counts of the same things.
macro_rules! between {
    ($earlier:expr, $later:expr, $counts:ident { $($field:ident),+ $(,)? }) => {
        $counts { $($field: $later.$field - $earlier.$field),+ }
    };
}

pub mod content;
pub mod crash;
pub mod device;
mod medium;
pub mod rad;
pub mod record;
pub mod replay;
pub mod report;
pub mod request;
pub mod subject;
pub mod sweep;
pub mod trace;
pub mod workload;

pub use content::Content;
