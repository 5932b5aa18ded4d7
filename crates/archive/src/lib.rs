//! The archive engine: streams cut into chunks, each stored once, in containers (dedupv1), with
//! garbage collection.
//!
//! | module | what |
//! |---|---|
//! | [`chunking`] | cutting streams into chunks |
//! | [`filter_chain`] | the filter chain: is this chunk stored already? |
//! | [`index`] | the chunk index: the auxiliary index in memory, the paged hash table with its runs and filters on the disk |
//! | [`put`] | a stream on its way in |
//! | [`get`] | a stream on its way out |
//! | [`gc`] | usage counts, condemning, merging, freeing |
//! | [`check`] | is all there, and whole? |
//! | [`archive`] | label, snapshot, operations log, locks |
//! | [`tables`], [`catalogue`], [`block_index`](mod@block_index), [`late`] | what the log says, applied; its volumes; their block indexes; late encoding |
//! | [`log`] | the operations log, read whoever wrote it |
//! | [`lost_chunks`] | damaged chunks made whole from other copies |
//! | [`volume`] | backup volumes: writes in memory, written back into containers, and reads |
//! | [`segments`] | where containers are written and read |
//! | [`placement`] | which containers get which code, and when |
//! | [`erasure`] | several directories as one, of which some may be lost |
//! | [`format`](mod@format) | the bytes |
//!
//! *Invariant:* no file, clock or randomness but through the traits; no thread but in [`pipeline`].
//! A process may end at any point, as after a power cut, and what was acknowledged is there.

pub mod archive;
pub mod block_index;
pub mod catalogue;
pub mod check;
pub mod chunking;
pub mod erasure;
pub mod filter_chain;
pub mod format;
pub mod gc;
pub mod get;
pub mod index;
pub mod late;
mod log;
mod memory;
pub mod pipeline;
pub mod placement;
pub mod put;
mod repair;
mod segments;
pub mod settings;
pub mod tables;
pub mod volume;

pub use archive::{Archive, EpochGuard};
pub use placement::{Class, Placement, Rad};
pub use repair::lost_chunks;
pub use settings::{Chunking, Compression, FilterName, Format, PlantedBug, Settings};
