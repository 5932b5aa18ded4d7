//! The block engine under simulation: clients and the engine's steps in any order, over a disk that
//! crashes.
//!
//! The [model] knows what every block may hold. [`subject`] is the seam: what the engine under
//! simulation must offer; [`engine`] is the one behind it. [`exhaust`] tries every crash of a small
//! case, and [`checks::verifier`] reads what is left of a store by the document of its format
//! alone.

mod actors;
pub mod checks;
pub mod cli;
pub mod engine;
pub mod exhaust;
pub mod model;
pub mod params;
mod run;
pub mod runner;
pub mod subject;
