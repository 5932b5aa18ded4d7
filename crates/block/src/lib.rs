//! The block engine: inline deduplication of 4 KiB blocks in which every flush survives a crash.
//!
//! [`Engine`] is the engine without threads, whose steps the simulator schedules; [`Store`] is the
//! engine at work, with group commit and background checkpoints; [`StoreExports`] offers its
//! volumes to servers.

pub mod check;
pub mod claim;
mod counters;
pub mod engine;
pub mod format;
mod hash;
#[doc(hidden)]
pub mod hot;
mod index;
mod overlay;
pub mod place;
mod reached;
mod scheme;
mod settings;
mod store;
mod table;
mod window;

pub use counters::Counts;
pub use engine::{CheckpointStep, Engine, Filled, Leisure};
pub use format::catalogue::{CRITICAL_MAX, Critical};
pub use reached::Branch;
pub use settings::{Format, Limits, MEMORY_MIN, Persistence, PlantedBug, Settings};
pub use store::{BlockVolume, Status, Store, StoreExports, VolumeStatus};
