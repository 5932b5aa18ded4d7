//! Containers on the disk: their numbers, the segments that they are appended to, and how their
//! chunks are read.
//!
//! | module | what |
//! |---|---|
//! | [`ids`] | numbers, from ranges that the log reserves |
//! | [`pace`] | how fast background work may read |
//! | [`pack`](mod@pack) | packing: groups, compression, checksums |
//! | [`appender`] | segments that one owner fills |
//! | [`syncs`] | which of an appender's containers are durable |
//! | [`container_reader`] | metadata and groups, read and freed |
//! | [`rewriter`] | chunks copied into new containers |
//! | [`chunk_reader`] | chunks by their addresses, with caches |

mod appender;
mod chunk_reader;
mod container_reader;
mod ids;
mod pace;
mod pack;
mod rewriter;
mod syncs;

pub use self::pace::Pace;
pub(crate) use self::{
    appender::{Appender, class_of, is_all_there},
    chunk_reader::{ChunkReader, addresses},
    container_reader::ContainerReader,
    ids::Ids,
    pack::pack,
    rewriter::Rewriter,
};
