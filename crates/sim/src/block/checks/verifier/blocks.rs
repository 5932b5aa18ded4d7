//! The contents of clients' blocks: as they are, or compressed in a carrier.

use std::sync::Arc;

use onefold_core::BLOCK_BYTES;
use sha2::Digest;

use super::{Held, Reader, layout::Superblock, number, zero};

/// True when the block at `at` is a carrier of this store.
pub(super) fn is_carrier(bytes: &[u8; BLOCK_BYTES], at: u64, superblock: &Superblock) -> bool {
    let mut copy = *bytes;
    copy[64..80].fill(0);
    &bytes[..4] == b"OFc1"
        && bytes[8..16] == superblock.id[..8]
        && number::<8>(bytes, 32) == at
        && blake3::keyed_hash(&superblock.secret, &copy).as_bytes()[..16] == bytes[64..80]
}

/// The block that a carrier has beside its records.
fn carried(bytes: &[u8; BLOCK_BYTES]) -> Option<[u8; BLOCK_BYTES]> {
    let (records, length) = (number::<2>(bytes, 4) as usize, number::<2>(bytes, 6) as usize);
    let end = 80 + 40 * records;
    if records > 100
        || length == 0
        || end + length > BLOCK_BYTES
        || !zero(&bytes[end..BLOCK_BYTES - length])
    {
        return None;
    }
    let plain = lz4_flex::block::decompress(&bytes[BLOCK_BYTES - length..], BLOCK_BYTES).ok()?;
    plain.try_into().ok()
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
    /// The fingerprint of a block's content.
    pub(super) fn fingerprint(&self, bytes: &[u8; BLOCK_BYTES]) -> [u8; 16] {
        fn cut(digest: &[u8]) -> [u8; 16] {
            super::layout::part(digest, 0)
        }
        match self.superblock.fingerprint {
            1 => cut(blake3::keyed_hash(&self.superblock.secret, bytes).as_bytes()),
            2 => cut(&sha2::Sha256::digest(bytes)),
            5 => cut(&hmac(&self.superblock.secret, bytes)),
            3 => cut(&sha1::Sha1::digest(bytes)),
            _ => cut(&md5::Md5::digest(bytes)),
        }
    }

    /// The content of the block at `at`, which a map names with this prefix.
    pub(super) fn content(&mut self, at: u64, inside: bool, prefix: u64, critical: bool) -> Held {
        if let Some(held) = self.contents.get(&at) {
            return held.clone();
        }
        let held = self.look(at, inside, prefix, critical);
        self.contents.insert(at, held.clone());
        held
    }

    fn look(&mut self, at: u64, inside: bool, prefix: u64, critical: bool) -> Held {
        let block = self.block(at);
        let bytes = if inside {
            carried(&block).filter(|_| is_carrier(&block, at, &self.superblock))
        } else {
            Some(block)
        };
        let turned = if critical { u64::MAX } else { 0 };
        match bytes {
            Some(bytes)
                if self.weak || number::<8>(&self.fingerprint(&bytes), 0) ^ turned == prefix =>
            {
                Held::Data(Arc::new(bytes))
            }
            _ => {
                self.wrong(at, || {
                    format!("does not hold what a map names with the prefix {prefix:016x}")
                });
                Held::Dark
            }
        }
    }
}
