//! The files of an archive that lies in an object store: a bucket, or a directory that stands for one.
//!
//! [`BucketFiles`] is [`Files`](onefold_core::Files) over [`Objects`], so that the archive engine works on
//! a bucket as on a directory. Bytes of files are in *packs*, objects that are created once. A sync makes
//! all durable by one *frame* of a *log*: the object `log/N`, created once too. The frames from the first one
//! on, or those since a *table*, say which files there are and where their bytes lie
//! ([decision 102](../../../docs/decisions/0102-an-archives-files-in-a-bucket.md)).
//!
//! | module | what |
//! |---|---|
//! | `objects`, `stores` | what an object store does; memory, directory, S3 |
//! | `format`, `decoders` | the bytes of frames and names, and what decodes them |
//! | `state` | what the frames say, applied |
//! | `log` | finding the end, reading, and appending a frame until it is known whose it is |
//! | `view` | the state as of the end of the log |
//! | `shared`, `commit`, `uploads`, `reads` | what an open bucket has; a frame from what changed; packs on their way; ranges of packs |
//! | `kept` | what a host keeps of packs and tables for its next process |
//! | `files` | files, and locks of this process |
//! | `writer` | joining, the lease, fencing, leaving |
//! | `collect`, `verify` | deleting what nothing names; the listing compared with the state |
//! | `probe` | whether a store keeps its word on creating once |
//! | `rules` | the rules that steps keep, each with the planted bug that breaks it |
//!
//! *Invariant:* nothing is overwritten but leases. A frame counts at one number or never. A fenced writer
//! changes nothing: its next frame has a name that is taken.
//!
//! *Invariant:* an object goes only when a frame of the log no longer names it, and no frame names it again.
//!
//! *Crash argument:* packs are created before the frame that names them. A crash between leaves objects of a
//! writer that has ended, which [`collect`](Bucket::collect) finds by their owner. A frame that was sent and
//! not answered is there or not, as after a power cut; it may come late, and then finds its name free, or
//! changes nothing.
//!
//! *Trust:* a bucket is somebody else's machine. Lengths are bounded before memory is taken, and the engine
//! believes no byte of a file before its checksum or its seal.

mod collect;
mod commit;
mod decoders;
mod files;
mod format;
mod kept;
mod log;
mod objects;
mod pace;
mod probe;
mod reads;
mod rules;
mod settings;
mod shared;
mod state;
mod stores;
mod uploads;
mod verify;
mod view;
mod writer;

pub use collect::Collected;
pub use decoders::decoders;
pub use files::BucketFiles;
pub use format::Frame;
pub use kept::Keep;
pub use log::Log;
pub use objects::{Body, Created, Listed, Objects};
pub use pace::{Pace, SystemPace};
pub use probe::probe;
pub use rules::Rule;
pub use settings::{Known, Settings, Who};
pub use state::State;
#[cfg(feature = "s3")]
pub use stores::s3::S3;
pub use stores::{directory::DirectoryObjects, memory::MemoryObjects};
pub use verify::Difference;
pub use writer::Bucket;
