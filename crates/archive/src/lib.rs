//! The archive engine: streams cut into chunks, each stored once, in containers (dedupv1), with
//! garbage collection.
//!
//! | module | what |
//! |---|---|
//! | [`cut`] | cutting streams into chunks |
//! | [`chain`] | the filter chain: is this chunk stored already? |
//! | [`index`] | the chunk index: the auxiliary index in memory, the paged hash table with its runs and filters on the disk |
//! | [`put`] | a stream on its way in |
//! | [`get`] | a stream on its way out |
//! | [`collect`] | usage counts, condemning, merging, freeing |
//! | [`check`] | is all there, and whole? |
//! | [`archive`] | label, snapshot, operations log, locks |
//! | [`tables`], [`catalogue`], [`map`], [`late`] | what the log says, applied; its volumes; their maps; late encoding |
//! | [`log`] | the operations log, read whoever wrote it |
//! | [`heal`] | damaged chunks made whole from other copies |
//! | [`volume`] | backup volumes: writes in memory, drained into containers, and reads |
//! | [`segments`] | where containers are written and read |
//! | [`placement`] | which containers get which code, and when |
//! | [`nodes`] | several directories as one, of which some may be lost |
//! | [`format`](mod@format) | the bytes |
//!
//! *Invariant:* no file, clock or randomness but through the traits; no thread but in [`pipeline`].
//! A process may end at any point, as after a power cut, and what was acknowledged is there.

pub mod archive;
pub mod catalogue;
pub mod chain;
pub mod check;
pub mod collect;
pub mod cut;
pub mod format;
pub mod get;
pub mod heal;
pub mod index;
pub mod late;
mod log;
pub mod map;
mod memory;
pub mod nodes;
pub mod pipeline;
pub mod placement;
pub mod put;
mod segments;
pub mod settings;
pub mod tables;
pub mod volume;

pub use archive::{Archive, Stay};
pub use placement::{Class, Placement, Rad};
pub use settings::{Chunking, Compression, FilterName, Format, PlantedBug, Settings};
