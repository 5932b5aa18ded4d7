//! Vocabulary and seams of Onefold.
//!
//! Everything that more than one crate must agree on lives here: units as types, the 4 KiB
//! [`Block`], errors by what the caller should do, fingerprints, block compression, and the traits
//! through which engines reach the world ([`Disk`], [`Files`], [`ObjectStore`], [`Clock`]) and
//! servers reach engines ([`Volume`], [`Exports`]).
//!
//! *Invariant:* this crate performs no I/O and knows no engine and no protocol.

pub mod block;
pub mod changes;
pub mod checksum;
pub mod clock;
pub mod compress;
pub mod disk;
pub mod error;
pub mod files;
pub mod fingerprint;
pub mod hex;
pub mod host_device;
pub mod key_memory;
pub mod letters;
pub mod object;
pub mod tree;
pub mod units;
pub mod volume;

pub use block::{BLOCK_BYTES, Block};
pub use changes::{Change, Changes, Look};
pub use clock::{Clock, CpuContention};
pub use disk::{BlockRef, Class, Disk, Read, Run};
pub use error::{Error, Kind, Result};
pub use files::{File, Files, Hold, Lock, PendingSync};
pub use fingerprint::{Algorithm, Fingerprint, Fingerprinter};
pub use hex::hex_digits;
pub use object::ObjectStore;
pub use units::{Lba, Pba, Timestamp, VolumeId, ZoneId};
pub use volume::{
    Attempt, BlockRead, Exports, Extent, ExtentKind, Replaced, Ticket, Volume, VolumeInfo,
    VolumeLimits,
};
