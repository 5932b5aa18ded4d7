//! The bytes of an archive: `docs/archive-format.md` has the tables.
//!
//! *Invariant:* a decoder takes hostile bytes and returns a typed value or `Corrupt`; it never
//! panics and takes no memory that the bytes do not justify.

pub(crate) mod backup;
pub(crate) mod bytes;
pub(crate) mod care;
pub(crate) mod class;
pub(crate) mod container;
mod container_id;
mod content;
pub(crate) mod damage;
pub(crate) mod data_keys;
pub(crate) mod domain;
pub(crate) mod frame;
pub(crate) mod label;
pub(crate) mod listing;
pub(crate) mod log_reader;
pub(crate) mod names;
pub(crate) mod padding;
pub(crate) mod parameters;
pub(crate) mod recipe;
pub(crate) mod record;
pub(crate) mod sealing;
pub(crate) mod tree_node;

use std::{fmt, sync::Arc};

use onefold_core::Result;
use onefold_seal::TAG_BYTES;

pub use container_id::ContainerId;
use sealing::{Sealing, What};

/// Bytes of a tag behind what is sealed; the others stand where a plain archive has the checksum.
const TAIL_BYTES: usize = TAG_BYTES / 2;

/// Where a chunk was first stored. Valid for ever: the container table says where that container
/// lies now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Address {
    /// The container.
    pub container: ContainerId,
    /// The place in it.
    pub slot: u16,
}

/// The id and the checksum key that tie bytes to one archive, and what seals it if it is sealed.
#[derive(Clone)]
pub struct Identity {
    /// Of the archive.
    pub id: [u8; 16],
    /// Seeds the checksums.
    pub key: u64,
    /// Seeds those of bytes that stay readable.
    readable: u64,
    sealing: Option<Arc<Sealing>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:02x?})", self.id)
    }
}

impl Identity {
    /// The identity of the plain archive with this id and secret.
    #[must_use]
    pub fn new(id: [u8; 16], secret: &[u8; 32]) -> Identity {
        let mut seed = [0; 8];
        seed.copy_from_slice(&id[..8]);
        let key = onefold_core::checksum::fast(u64::from_le_bytes(seed), secret);
        Identity { id, key, readable: key, sealing: None }
    }

    /// The checksum of `bytes`.
    #[must_use]
    pub fn checksum(&self, bytes: &[u8]) -> u64 {
        onefold_core::checksum::fast(self.key, bytes)
    }

    /// The checksum of `bytes` that a sealed archive leaves readable. It tells rot alone: whoever sees
    /// both could find the seed of the others out.
    pub(crate) fn readable_checksum(&self, bytes: &[u8]) -> u64 {
        onefold_core::checksum::fast(self.readable, bytes)
    }

    /// The checksum of `parts` one behind the other.
    #[must_use]
    pub(crate) fn checksum_of(&self, parts: &[&[u8]]) -> u64 {
        onefold_core::checksum::fast_of(self.key, parts)
    }

    /// The identity of a sealed archive.
    pub(crate) fn sealed(id: [u8; 16], sealing: Arc<Sealing>) -> Identity {
        let readable = Identity::new(id, &[0; 32]).key;
        Identity { id, key: sealing.checksums(), readable, sealing: Some(sealing) }
    }

    /// The ciphers, if the archive is sealed.
    pub(crate) fn sealing(&self) -> Option<&Arc<Sealing>> {
        self.sealing.as_ref()
    }

    /// Bytes that the caller of [`seal`](Self::seal) leaves free at the end.
    pub(crate) fn tail(&self) -> usize {
        if self.sealing.is_some() { TAIL_BYTES } else { 0 }
    }

    /// What a record that names sealed bytes keeps of the half of their tag, so that no others of the same
    /// place are taken for them; 0 in a plain archive.
    pub(crate) fn proof(&self, checksum: u64) -> u64 {
        if self.sealing.is_some() { checksum } else { 0 }
    }

    /// Makes `bytes` as they are written, of which the last [`tail`](Self::tail) ones are free; gives
    /// their checksum, or the half of their tag that stands in its place. Both prove `beside`, too.
    pub(crate) fn seal(
        &self,
        what: What,
        place: (u64, u64),
        beside: &[u8],
        bytes: &mut [u8],
    ) -> Result<u64> {
        let Some(sealing) = &self.sealing else {
            return Ok(self.checksum_of(&[beside, bytes]));
        };
        let (body, tail) = bytes.split_at_mut(bytes.len().saturating_sub(TAIL_BYTES));
        let tag = sealing.seal(what, place, beside, body)?;
        let (first, second) = tag.split_at(TAIL_BYTES);
        tail.copy_from_slice(second);
        let mut checksum = [0; 8];
        checksum.copy_from_slice(first);
        Ok(u64::from_le_bytes(checksum))
    }

    /// Opens bytes that were made so; false when they are others, and then of no use. The free ones are
    /// zero afterwards.
    pub(crate) fn open(
        &self,
        what: What,
        place: (u64, u64),
        beside: &[u8],
        bytes: &mut [u8],
        checksum: u64,
    ) -> bool {
        let Some(sealing) = &self.sealing else {
            return self.checksum_of(&[beside, bytes]) == checksum;
        };
        let Some(end) = bytes.len().checked_sub(TAIL_BYTES) else { return false };
        let (body, tail) = bytes.split_at_mut(end);
        let mut tag = [0; TAG_BYTES];
        tag[..TAIL_BYTES].copy_from_slice(&checksum.to_le_bytes());
        tag[TAIL_BYTES..].copy_from_slice(tail);
        tail.fill(0);
        sealing.open(what, place, beside, body, &tag)
    }
}
