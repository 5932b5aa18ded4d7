//! Backup volumes: writes gather in memory, and are written back into containers when somebody asks
//! for durability.
//!
//! | module | what |
//! |---|---|
//! | [`layer`] | what was written and is not written back: blocks of 128 KiB with the sectors that are there, and ranges of zeroes |
//! | [`write`](self::write) | writes, trims, zeroes; how much may be in memory |
//! | [`write_back`](self::write_back) | chunks, containers, mappings, one frame of the log; FLUSH |
//! | [`mapper`] | cut chunks to the mappings of blocks |
//! | [`read`](self::read) | layers over mappings |
//! | [`serve`] | the same as a [`onefold_core::Volume`], for servers |
//!
//! A block's content is its mapping, below what is being written back, below what was written
//! since. A write-back takes all of a volume's upper layer at once; runs of neighbouring blocks are
//! chunked across their borders, and each block gets a mapping of its own, which is a piece in a
//! container of recipes.
//!
//! *Crash argument:* containers with chunks and mappings are durable before the one frame that
//! names the mappings, for all blocks of the write-back: each block changes as a whole, and what a
//! FLUSH covers is there when it is answered. Changes that were not written back are lost, as a
//! disk's cache is.
//!
//! *Locks:* in the order `writing_back`, a volume's `order`, `state`. None of them is held by a read while it
//! reads the disk.

mod catalogue;
mod layer;
mod mapped;
mod mapper;
mod read;
mod serve;
mod volumes;
mod write;
mod write_back;

#[cfg(feature = "planted-bugs")]
pub use self::mapped::containers_of_volume;
pub(crate) use self::mapped::{Mapped, chunks_of};
pub use self::{
    catalogue::{create_volume_in, volume_bytes},
    serve::ArchiveExports,
    volumes::{Loss, VolumeCounts, Volumes},
};
