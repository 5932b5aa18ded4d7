//! The bytes of a store: one module for each kind of block (`docs/format.md` has the tables).
//!
//! Every decoder takes hostile bytes and gives a typed value or a `Corrupt` error. Every block
//! carries a magic, the store's id, its own address and a checksum keyed with the store, so that
//! torn, misdirected and foreign blocks are recognised.

pub mod carrier;
pub mod catalogue;
pub mod choices;
pub mod claim;
pub mod domain_entry;
pub mod geometry;
pub mod in_place;
pub mod leftover;
pub mod pack;
pub mod page;
pub mod record;
pub(crate) mod sealing;
pub mod share;
pub(crate) mod stored;
pub mod superblock;
pub mod zone_bitmap;
pub mod zone_list;

use std::sync::Arc;

use onefold_core::{
    Algorithm, Block, Fingerprint, Fingerprinter, Pba, Result, checksum, key_memory::Key,
};
use onefold_seal::{Keys, Secret, TAG_BYTES};

pub use sealing::FIRST_DOMAIN;
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
    /// Computes fingerprints with the store's algorithm, those of the first domain.
    pub fingerprinter: Fingerprinter,
    /// The same for the other domains that were not erased.
    others: Arc<Vec<(u32, Fingerprinter)>>,
    /// Those of before, of the domains that have two data keys.
    older: Arc<Vec<(u32, Fingerprinter)>>,
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
            others: Arc::default(),
            older: Arc::default(),
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
        let of =
            |(domain, key): (u32, &Secret)| (domain, Fingerprinter::new(algorithm, key.expose()));
        let mut others: Vec<(u32, Fingerprinter)> = sealing.fingerprints().map(of).collect();
        let older = Arc::new(sealing.older_fingerprints().map(of).collect());
        let (_, fingerprinter) = others.remove(0);
        let numbers = sealing.numbers().expose();
        let identity = Identity::of(id, (numbers, numbers), algorithm);
        let others = Arc::new(others);
        Identity { fingerprinter, others, older, sealing: Some(sealing), ..identity }
    }

    /// With fingerprints of which so many bits count.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn shortened(self, bits: u32) -> Identity {
        let short = |(domain, one): &(u32, Fingerprinter)| (*domain, one.clone().shortened(bits));
        let others = Arc::new(self.others.iter().map(short).collect());
        let older = Arc::new(self.older.iter().map(short).collect());
        Identity { fingerprinter: self.fingerprinter.shortened(bits), others, older, ..self }
    }

    /// Computes the fingerprints of a domain.
    ///
    /// # Errors
    /// `Corrupt`: it was erased.
    pub fn fingerprinter_of(&self, domain: u32) -> Result<&Fingerprinter> {
        if domain == FIRST_DOMAIN {
            return Ok(&self.fingerprinter);
        }
        let found = self.others.iter().find(|(number, _)| *number == domain);
        found.map(|(_, one)| one).ok_or_else(|| sealing::erased(domain))
    }

    /// The fingerprints of blocks of these domains. Neighbours of one domain are hashed together.
    ///
    /// # Errors
    /// `Corrupt`: one was erased.
    pub(crate) fn fingerprints(
        &self,
        domains: &[u32],
        mut blocks: &[&Block],
    ) -> Result<Vec<Fingerprint>> {
        let mut fingerprints = Vec::with_capacity(blocks.len());
        for run in domains.chunk_by(|one, next| one == next) {
            let (of_run, rest) = blocks.split_at(run.len());
            fingerprints.extend(self.fingerprinter_of(run[0])?.many(of_run));
            blocks = rest;
        }
        Ok(fingerprints)
    }

    /// True when a domain was not erased.
    pub(crate) fn has_domain(&self, domain: u32) -> bool {
        self.domains().any(|one| one == domain)
    }

    /// The domains that were not erased; the first one comes first.
    pub(crate) fn domains(&self) -> impl Iterator<Item = u32> {
        std::iter::once(FIRST_DOMAIN).chain(self.others.iter().map(|(domain, _)| *domain))
    }

    /// True when a key was erased, of a domain or of its data from before a change, so that there may be
    /// blocks that nobody can read.
    pub(crate) fn has_erased(&self) -> bool {
        let Some(sealing) = &self.sealing else { return false };
        self.domains().count() < sealing.next_domain() as usize || sealing.has_dropped_keys()
    }

    /// True while a domain has two data keys.
    pub(crate) fn has_older(&self) -> bool {
        !self.older.is_empty()
    }

    /// Computes the fingerprints that a domain had before its data key was changed; `None` when it has one key.
    pub(crate) fn older_fingerprinter_of(&self, domain: u32) -> Option<&Fingerprinter> {
        self.older.iter().find(|(number, _)| *number == domain).map(|(_, one)| one)
    }

    /// The generation of the data key of a domain.
    pub(crate) fn generation_of(&self, domain: u32) -> u32 {
        self.sealing.as_ref().map_or(0, |sealing| sealing.generation(domain))
    }

    /// Opens a raw block of a domain, whatever it is: the caller compares its fingerprint. A plain store
    /// has it as it is.
    ///
    /// # Errors
    /// `Corrupt`: the domain was erased. `Io`: the library of ciphers refuses.
    pub(crate) fn open_raw(
        &self,
        domain: u32,
        prefix: u64,
        at: Pba,
        block: &mut Block,
    ) -> Result<()> {
        let sealing = self.sealing.as_ref();
        sealing.map_or(Ok(()), |sealing| sealing.open_raw(domain, prefix, at, block))
    }

    /// Bytes that a compressed block takes in a carrier besides itself.
    pub(crate) fn payload_extra(&self) -> usize {
        if self.sealing.is_some() { TAG_BYTES } else { 0 }
    }
}
