//! The contents of clients' blocks: as they are, compressed in a carrier, or fragments of a pack.

use std::sync::Arc;

use onefold_core::BLOCK_BYTES;
use sha2::Digest;

use super::{
    Held, Reader, number,
    sealed::{CARRIER, PAGE},
    zero,
};

/// The compressed block that a carrier has beside its records.
fn carried(bytes: &[u8; BLOCK_BYTES]) -> Option<&[u8]> {
    let (records, length) = (number::<2>(bytes, 4) as usize, number::<2>(bytes, 6) as usize);
    let end = 80 + 40 * records;
    if records > 100
        || length == 0
        || end + length > BLOCK_BYTES
        || !zero(&bytes[end..BLOCK_BYTES - length])
    {
        return None;
    }
    Some(&bytes[BLOCK_BYTES - length..])
}

/// The kinds of map entries that name fragments.
pub(super) const FRAGMENTS: std::ops::Range<u8> = 128..160;

/// The fragments of a pack: the fingerprint and the compressed bytes of each.
fn fragments(bytes: &[u8; BLOCK_BYTES]) -> Option<Vec<(&[u8], &[u8])>> {
    let count = number::<2>(bytes, 4) as usize;
    let mut at = 48 + 18 * count;
    if count == 0 || count > 32 || bytes[6] != 1 || bytes[7] != 0 || !zero(&bytes[24..32]) {
        return None;
    }
    let mut found = Vec::new();
    for entry in bytes[48..at].chunks_exact(18) {
        let length = number::<2>(entry, 16) as usize;
        found.push((&entry[..16], bytes.get(at..at + length).filter(|bytes| !bytes.is_empty())?));
        at += length;
    }
    zero(&bytes[at..]).then_some(found)
}

/// HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8; 32], bytes: &[u8; BLOCK_BYTES]) -> [u8; 32] {
    let pad = |with: u8| -> Vec<u8> {
        (0..64).map(|n| key.get(n).copied().unwrap_or(0) ^ with).collect()
    };
    let inner = sha2::Sha256::new().chain_update(pad(0x36)).chain_update(bytes).finalize();
    sha2::Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

impl Reader<'_> {
    /// True when these bytes at `at` are a carrier of this store, opened if it is sealed.
    pub(super) fn is_carrier(&self, bytes: &[u8; BLOCK_BYTES], at: u64) -> bool {
        let mut copy = *bytes;
        copy[64..80].fill(0);
        let proof = blake3::keyed_hash(&self.superblock.secret, &copy);
        &bytes[..4] == b"OFc1"
            && bytes[8..16] == self.superblock.id[..8]
            && number::<8>(bytes, 32) == at
            && (self.sealed.is_some() || proof.as_bytes()[..16] == bytes[64..80])
    }

    /// The checksum of the pack at `at`, and how many fragments it has.
    pub(super) fn pack(&self, at: u64) -> Option<([u8; 16], usize)> {
        let bytes = self.block(at);
        let mut copy = bytes.to_vec();
        copy[32..48].fill(0);
        copy.extend_from_slice(&[0; 16]);
        let proof = blake3::keyed_hash(&self.superblock.secret, &copy);
        let is_it = self.sealed.is_none()
            && &bytes[..4] == b"OFk1"
            && bytes[8..16] == self.superblock.id[..8]
            && number::<8>(&bytes, 16) == at
            && proof.as_bytes()[..16] == bytes[32..48];
        is_it.then_some((super::layout::part(&bytes, 32), fragments(&bytes)?.len()))
    }

    /// The content of a fragment of the pack at `at`, which has this prefix there too.
    fn fragment(&self, at: u64, number_of: u8, prefix: u64) -> Option<[u8; BLOCK_BYTES]> {
        self.pack(at)?;
        let block = self.block(at);
        let fragments = fragments(&block)?;
        let (fingerprint, bytes) = fragments.get(usize::from(number_of))?;
        if number::<8>(fingerprint, 0) != prefix {
            return None;
        }
        lz4_flex::block::decompress(bytes, BLOCK_BYTES).ok()?.try_into().ok()
    }

    /// The content of the carrier at `at`.
    fn expanded(&self, at: u64, prefix: u64, by: (u64, usize)) -> Option<[u8; BLOCK_BYTES]> {
        let block = self.metadata(CARRIER, at);
        let payload = carried(&block).filter(|_| self.is_carrier(&block, at))?;
        let opened = match self.sealed {
            Some(sealed) => sealed.payload(by, prefix, at, payload)?,
            None => payload.to_vec(),
        };
        lz4_flex::block::decompress(&opened, BLOCK_BYTES).ok()?.try_into().ok()
    }

    /// The fingerprint of a block's content in a domain, by its data key number `nth`.
    pub(super) fn fingerprint(&self, bytes: &[u8; BLOCK_BYTES], by: (u64, usize)) -> [u8; 16] {
        fn cut(digest: &[u8]) -> [u8; 16] {
            super::layout::part(digest, 0)
        }
        let key = self.sealed.map_or(&self.superblock.secret, |sealed| sealed.fingerprints(by));
        match self.superblock.fingerprint {
            1 => cut(blake3::keyed_hash(key, bytes).as_bytes()),
            2 => cut(&sha2::Sha256::digest(bytes)),
            5 => cut(&hmac(key, bytes)),
            3 => cut(&sha1::Sha1::digest(bytes)),
            _ => cut(&md5::Md5::digest(bytes)),
        }
    }

    /// The content of the block at `at`, which a map of a domain names with this prefix.
    pub(super) fn content(
        &mut self,
        at: u64,
        kind: u8,
        prefix: u64,
        (critical, domain): (bool, u64),
    ) -> Held {
        if let Some((held, (of, _))) = self.contents.get(&(at, kind)).cloned() {
            if of != domain {
                self.problem(format!("block {at} is named in domain {of} and in {domain}"));
            }
            return held;
        }
        let keys = self.sealed.map_or(1, |sealed| sealed.keys_of(domain));
        let by = (0..keys).map(|nth| (domain, nth));
        let found =
            by.clone().find_map(|by| Some((self.look(at, kind, prefix, (critical, by))?, by)));
        let (held, by) = found.unwrap_or_else(|| {
            self.wrong(at, || {
                format!("does not hold what a map names with the prefix {prefix:016x}")
            });
            (Held::Dark, (domain, 0))
        });
        self.contents.insert((at, kind), (held.clone(), by));
        held
    }

    /// A leaf of a map, at `leaf`, names the block at `at`, which was looked at: it may not say that nothing is
    /// under an older data key if this is.
    pub(super) fn compare_mark(&mut self, leaf: u64, at: u64) {
        let known = self.contents.get(&(at, 1)).or_else(|| self.contents.get(&(at, 2)));
        let (Some((_, (domain, nth))), Some(sealed)) = (known, self.sealed) else { return };
        let is = sealed.generation(*domain) - *nth as u64;
        let mark = number::<4>(&self.metadata(PAGE, leaf), 12);
        if mark > is {
            self.problem(format!(
                "leaf {leaf} says that all it names has generation {mark}, and block {at} has {is}"
            ));
        }
    }

    fn look(
        &self,
        at: u64,
        kind: u8,
        prefix: u64,
        (critical, by): (bool, (u64, usize)),
    ) -> Option<Held> {
        let bytes = if FRAGMENTS.contains(&kind) {
            self.fragment(at, kind - FRAGMENTS.start, prefix)
        } else if kind == 2 {
            self.expanded(at, prefix, by)
        } else {
            let mut block = self.block(at);
            let opens = self.sealed.is_none_or(|sealed| sealed.raw(by, prefix, at, &mut block));
            opens.then_some(block)
        };
        let turned = if critical { u64::MAX } else { 0 };
        match bytes {
            Some(bytes)
                if self.weak
                    || number::<8>(&self.fingerprint(&bytes, by), 0) ^ turned == prefix =>
            {
                Some(Held::Data(Arc::new(bytes)))
            }
            _ => None,
        }
    }
}
