//! The archive engine under simulation: puts, readers, collection and removals, each a process of
//! its own, step by step over files that crash.
//!
//! A model knows the streams. Acknowledged streams must be there, byte for byte, after any crash.
//! A change that was under way may be there or not, and once it was seen it stays.

pub mod cli;
mod heal;
mod rad;
mod run;
mod volumes;

pub use run::{Outcome, Params, run_params, run_seed};
