//! The bytes of an archive: `docs/archive-format.md` has the tables.
//!
//! *Invariant:* a decoder takes hostile bytes and returns a typed value or `Corrupt`; it never
//! panics and takes no memory that the bytes do not justify.

pub(crate) mod backup;
pub(crate) mod bytes;
pub(crate) mod care;
pub(crate) mod class;
pub(crate) mod container;
mod content;
pub(crate) mod damage;
pub(crate) mod frame;
pub(crate) mod label;
pub(crate) mod listing;
pub(crate) mod log_reader;
pub(crate) mod names;
pub(crate) mod parameters;
pub(crate) mod recipe;
pub(crate) mod record;
pub(crate) mod tree_node;

use std::fmt;

/// Number of a container, 40 bits; never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ContainerId(pub u64);

impl ContainerId {
    /// Numbers end here: 40 bits.
    pub const END: u64 = 1 << 40;
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContainerId({})", self.0)
    }
}

/// Where a chunk was first stored. Valid for ever: the container table says where that container
/// lies now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Address {
    /// The container.
    pub container: ContainerId,
    /// The place in it.
    pub slot: u16,
}

/// The id and the checksum key that tie bytes to one archive.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Of the archive.
    pub id: [u8; 16],
    /// Seeds the checksums.
    pub key: u64,
}

impl Identity {
    /// The identity of the archive with this id and secret.
    #[must_use]
    pub fn new(id: [u8; 16], secret: &[u8; 32]) -> Identity {
        let mut seed = [0; 8];
        seed.copy_from_slice(&id[..8]);
        Identity { id, key: onefold_core::checksum::fast(u64::from_le_bytes(seed), secret) }
    }

    /// The checksum of `bytes`.
    #[must_use]
    pub fn checksum(&self, bytes: &[u8]) -> u64 {
        onefold_core::checksum::fast(self.key, bytes)
    }

    /// The checksum of `parts` one behind the other.
    #[must_use]
    pub(crate) fn checksum_of(&self, parts: &[&[u8]]) -> u64 {
        onefold_core::checksum::fast_of(self.key, parts)
    }
}
