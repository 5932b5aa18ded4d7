//! Streams in and out.
//!
//! On its way in a stream is cut and fingerprinted ([`Cutting`]); its chunks are looked up, and new
//! ones get a place ([`Session`]); containers are packed and written ([`StreamWriter`]), and at the
//! end one record says that the stream is there. Each stage is a value with methods that return, so
//! that a simulation can do one after the other; [`pipeline`] gives them threads. The streams of
//! one process share its [`Ingest`].
//!
//! In an archive that [gathers](crate::Rad::gathers) a session keeps new chunks until it has enough of
//! them to be sorted by their counts, and tells its stream's recipe or tree of the places then.
//!
//! On its way out a [`Reader`] walks the recipe of the stream, chunk by chunk.
//!
//! *Crash argument:* chunks and recipe are durable before the record that names them. Every 64 MiB
//! the containers so far are made durable and listed as unfinished, so that a repeat after a kill
//! finds them. Chunks that a session took as duplicates can't be freed before the session ends:
//! it stays in its epoch.

mod batch;
#[cfg(feature = "planted-bugs")]
mod broken;
mod by_counts;
mod catalogue;
mod filling;
mod gathered;
mod imports;
mod in_order;
mod ingest;
mod pipeline;
mod presence;
mod reader;
mod session;
mod stream_writer;
mod trial;

pub use self::{
    batch::{Batch, Cutting},
    ingest::Ingest,
    pipeline::{Feeder, Gauge, Report, Request, put, put_on},
    presence::StoredChunk,
    reader::{Content, Reader, Verify},
    session::{Session, Writing},
    stream_writer::{Ended, StreamWriter},
    trial::Growth,
};
pub(crate) use self::{
    filling::{Block, Filling},
    imports::Ported,
    in_order::{Given, Results},
    pipeline::{Blocks, Item, Staged, buffers, cut_beside, staged},
    presence::Presence,
    session::{PieceWriter, Sink, Target},
    stream_writer::{Remap, Remaps, in_another},
    trial::Trial,
};
