//! Onefold as a library: deduplicating storage that a program embeds.
//!
//! A [`Store`] is opened by its path, whichever engine made it. A verb that an engine lacks is an
//! error of kind [`ErrorKind::Unsupported`].
//!
//! | engine | made by | holds |
//! |---|---|---|
//! | block | [`create_block`] | volumes of 4 KiB blocks, each block stored once, inline |
//! | archive | [`create_archive`] | streams and backup volumes as content-defined chunks |
//! | cluster | [`create_cluster`] | volumes and streams in a folder or on Ceph |
//!
//! ```
//! # fn main() -> onefold::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("backups");
//! onefold::create_archive(&path, &onefold::ArchiveFormat::default())?;
//! let store = onefold::Store::open(&path)?;
//! store.put("greeting", &mut &b"hello, hello"[..])?;
//! let mut found = Vec::new();
//! store.get("greeting", &mut found)?;
//! assert_eq!(found, b"hello, hello");
//! store.close()
//! # }
//! ```
//!
//! The [`guide`] has recipes for what programs do with a store.
//!
//! A store that was not closed, because its process ended, recovers when it is opened again;
//! nothing that was flushed is lost. Servers are started with [`Store::serve`]. Engines promise no
//! stable interface of their own; this one is versioned, and at 0.x it may still change.

mod care;
mod closed;
mod create;
pub mod guide;
mod locate;
#[doc(hidden)]
pub mod parts;
mod server;
mod store;
mod streams;
mod volume;

pub use onefold_core::{Error, Extent, ExtentKind, Kind as ErrorKind, Result, VolumeInfo};

pub use self::{
    care::{Findings, Usage},
    closed::{Repair, check, repair},
    create::{ArchiveFormat, BlockFormat, create_archive, create_block, create_cluster},
    locate::{StoreKind, locate},
    server::Server,
    store::{OpenOptions, Store},
    streams::{Put, StreamInfo},
    volume::Volume,
};
