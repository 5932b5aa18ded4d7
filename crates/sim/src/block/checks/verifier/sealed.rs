//! Opening what is sealed, as the document of the format says.

use std::collections::BTreeMap;

use onefold_core::{BLOCK_BYTES, Result};
use onefold_seal::{CtrKey, Keys, Place, Secret, SivKey, Use};

/// Kinds of what is sealed.
const SUPERBLOCK: u8 = 1;
pub(super) const LIST_PAGE: (u8, usize) = (2, 48);
pub(super) const PAGE: (u8, usize) = (3, 48);
pub(super) const CARRIER: (u8, usize) = (4, 64);
const PAYLOAD: u8 = 5;

/// Bytes of a tag.
const TAG: usize = 16;

/// What opens a sealed store.
pub struct Sealed {
    store: SivKey,
    domains: BTreeMap<u64, Domain>,
}

/// What opens data of a domain: by its data key, and by the one before, as long as that is there.
struct Domain {
    generation: u64,
    keys: Vec<DataKeys>,
}

struct DataKeys {
    blocks: CtrKey,
    payloads: SivKey,
    fingerprints: [u8; 32],
}

impl DataKeys {
    fn of(key: &Secret) -> Result<DataKeys> {
        Ok(DataKeys {
            blocks: CtrKey::new(&key.derive(Use::BLOCKS))?,
            payloads: SivKey::new(&key.derive(Use::PAYLOADS))?,
            fingerprints: *key.derive(Use::FINGERPRINTS).expose(),
        })
    }
}

impl Sealed {
    /// By the keys of the store.
    ///
    /// # Errors
    /// The library of ciphers refuses.
    pub fn new(keys: &Keys) -> Result<Sealed> {
        let mut domains = BTreeMap::new();
        for number in keys.domains().iter().map(onefold_seal::Domain::number) {
            let both = keys.domain(number).into_iter().chain(keys.older(number));
            let opens = Domain {
                generation: u64::from(keys.generation(number).unwrap_or(0)),
                keys: both.map(DataKeys::of).collect::<Result<_>>()?,
            };
            domains.insert(u64::from(number), opens);
        }
        Ok(Sealed { store: SivKey::new(&keys.store_key(Use::BLOCK_STORE))?, domains })
    }

    /// The key of the fingerprints of a domain, by its data key number `nth`, the newest first; zeroes when
    /// there is none.
    pub(super) fn fingerprints(&self, (domain, nth): (u64, usize)) -> &[u8; 32] {
        self.keys((domain, nth)).map_or(&[0; 32], |keys| &keys.fingerprints)
    }

    fn keys(&self, (domain, nth): (u64, usize)) -> Option<&DataKeys> {
        self.domains.get(&domain)?.keys.get(nth)
    }

    /// How many data keys a domain has.
    pub(super) fn keys_of(&self, domain: u64) -> usize {
        self.domains.get(&domain).map_or(0, |domain| domain.keys.len())
    }

    /// How often the data key of a domain was changed.
    pub(super) fn generation(&self, domain: u64) -> u64 {
        self.domains.get(&domain).map_or(0, |domain| domain.generation)
    }

    /// A superblock as a plain one would be: no secret, no tag; the checksum stays.
    pub(super) fn superblock(&self, bytes: &[u8], place: u64, sequence: u64) -> Option<Vec<u8>> {
        let mut shown = [&bytes[..104], &bytes[1192..1200]].concat();
        shown[16..24].fill(0);
        let mut hidden = [&bytes[104..1192], &bytes[1200..4080]].concat();
        let tag: [u8; TAG] = bytes[4080..].try_into().ok()?;
        let at = Place { kind: SUPERBLOCK, file: place, number: sequence };
        if !self.store.open(at, &shown, &mut hidden, &tag) {
            return None;
        }
        let (one, other) = hidden.split_at(1088);
        Some([&bytes[..104], one, &bytes[1192..1200], other, &[0; TAG]].concat())
    }

    /// A block of metadata at `at`; the tag stays where it is.
    pub(super) fn metadata(
        &self,
        (kind, tag_at): (u8, usize),
        at: u64,
        bytes: &[u8; BLOCK_BYTES],
    ) -> Option<[u8; BLOCK_BYTES]> {
        let mut rest = [&bytes[..tag_at], &bytes[tag_at + TAG..]].concat();
        let tag: [u8; TAG] = bytes[tag_at..tag_at + TAG].try_into().ok()?;
        let place = Place { kind, file: 0, number: at };
        if !self.store.open(place, &[], &mut rest, &tag) {
            return None;
        }
        [&rest[..tag_at], &tag, &rest[tag_at..]].concat().try_into().ok()
    }

    /// What a carrier carries, still compressed.
    pub(super) fn payload(
        &self,
        by: (u64, usize),
        prefix: u64,
        at: u64,
        sealed: &[u8],
    ) -> Option<Vec<u8>> {
        let (tag, bytes) = sealed.split_first_chunk::<TAG>()?;
        let mut bytes = bytes.to_vec();
        let place = Place { kind: PAYLOAD, file: 0, number: at };
        let key = &self.keys(by)?.payloads;
        key.open(place, &prefix.to_le_bytes(), &mut bytes, tag).then_some(bytes)
    }

    /// A raw block: its first counter is the prefix (64 bits), 16 zeroes, its address (40) and 8
    /// zeroes.
    pub(super) fn raw(
        &self,
        by: (u64, usize),
        prefix: u64,
        at: u64,
        bytes: &mut [u8; BLOCK_BYTES],
    ) -> bool {
        let counter = u128::from(prefix) << 64 | u128::from(at) << 8;
        let key = self.keys(by).map(|keys| &keys.blocks);
        key.is_some_and(|key| key.open(counter.to_be_bytes(), bytes).is_ok())
    }
}
