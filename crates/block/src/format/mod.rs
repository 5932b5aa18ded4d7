//! The bytes of a store: one module for each kind of block (`docs/format.md` has the tables).
//!
//! Every decoder takes hostile bytes and gives a typed value or a `Corrupt` error. Every block
//! carries a magic, the store's id, its own address and a checksum keyed with the store, so that
//! torn, misdirected and foreign blocks are recognised.

pub mod carrier;
pub mod catalogue;
pub mod choices;
pub mod claim;
pub mod geometry;
pub mod in_place;
pub mod leftover;
pub mod page;
pub mod record;
pub(crate) mod sealing;
pub mod share;
pub(crate) mod stream;
pub mod superblock;
pub mod zone_bitmap;
pub mod zone_list;

use std::sync::Arc;

use onefold_core::{Algorithm, Fingerprinter, Result, checksum, key_memory::Key};
use onefold_seal::{Keys, TAG_BYTES};

use sealing::Sealing;

/// Version of the format that this program writes and reads.
pub const VERSION: u32 = 1;

/// Version of stores whose fingerprints are keyed SHA-256, which programs that know version 1 only
/// would call damaged; all else is the same.
pub const VERSION_KEYED: u32 = 2;

/// Version of stores whose maps share pages, as snapshots and clones make them do. A store gets it
/// with the first of them, and says in its superblock which features a reader must know.
pub const VERSION_FEATURES: u32 = 3;

/// The marks that make blocks of one store differ from blocks of any other: its id, and keys drawn
/// from its secret.
#[derive(Clone)]
pub struct Identity {
    /// First half of the store's id, repeated in every metadata block.
    pub id: u64,
    /// Seed of the fast checksums.
    pub key: u64,
    /// The secret, from which carriers' checksums and keyed fingerprints are made.
    pub secret: Arc<Key>,
    /// Computes fingerprints with the store's algorithm.
    pub fingerprinter: Fingerprinter,
    /// What seals the store, if it is sealed.
    pub(crate) sealing: Option<Arc<Sealing>>,
}

impl Identity {
    /// The identity that a store's id, secret and algorithm give.
    #[must_use]
    pub fn new(id: [u8; 16], secret: [u8; 32], algorithm: Algorithm) -> Identity {
        Identity::of(id, (&secret, &secret), algorithm)
    }

    /// With the secret and the key of fingerprints.
    fn of(
        id: [u8; 16],
        (secret, fingerprints): (&[u8; 32], &[u8; 32]),
        algorithm: Algorithm,
    ) -> Identity {
        let [a, b, c, d, e, f, g, h, ..] = id;
        let id = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Identity {
            id,
            key: checksum::fast(id, secret),
            secret: Arc::new(Key::of(secret)),
            fingerprinter: Fingerprinter::new(algorithm, fingerprints),
            sealing: None,
        }
    }

    /// The identity of the sealed store with these keys.
    ///
    /// # Errors
    /// `Denied`: its domain was erased. `Io`: the library of ciphers refuses.
    pub fn by_keys(keys: &Keys, algorithm: Algorithm) -> Result<Identity> {
        let sealing = Sealing::new(keys, sealing::Flaws::default())?;
        Ok(Identity::sealed(*keys.id(), Arc::new(sealing), algorithm))
    }

    /// The identity of a sealed store.
    pub(crate) fn sealed(id: [u8; 16], sealing: Arc<Sealing>, algorithm: Algorithm) -> Identity {
        let keys = (sealing.numbers().expose(), sealing.fingerprints().expose());
        let identity = Identity::of(id, keys, algorithm);
        Identity { sealing: Some(sealing), ..identity }
    }

    /// Bytes that a compressed block takes in a carrier besides itself.
    pub(crate) fn payload_extra(&self) -> usize {
        if self.sealing.is_some() { TAG_BYTES } else { 0 }
    }
}
