//! The archive engine under simulation: puts, readers, collection and removals, each a process of
//! its own, step by step over files that crash.
//!
//! A model knows the streams. Acknowledged streams must be there, byte for byte, after any crash.
//! A change that was under way may be there or not, and once it was seen it stays.

mod actors;
mod checks;
pub mod cli;
mod model;
pub mod params;
mod run;

pub use params::Params;
pub use run::{Outcome, run_params, run_seed};
