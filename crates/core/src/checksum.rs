//! Checksums of metadata.

use crate::{Algorithm, Block, Fingerprinter};

/// 64-bit checksum of `bytes`, keyed so that bytes made by a client of one store do not pass as
/// those of another. Detects rot, tears and misdirection. Where a client could forge the checksum
/// (carriers), [`forgery_proof`] is used instead.
#[must_use]
pub fn fast(key: u64, bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(key, bytes)
}

/// [`fast`] of `parts` one behind the other, without a copy of them.
#[must_use]
pub fn fast_of(key: u64, parts: &[&[u8]]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = twox_hash::XxHash3_64::with_seed(key);
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// 128-bit keyed BLAKE3 of `bytes`: nobody can compute it without the secret.
#[must_use]
pub fn forgery_proof(secret: &[u8; 32], bytes: &[u8]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::keyed_hash(secret, bytes).as_bytes()[..16]);
    short
}

/// 256-bit keyed BLAKE3 of `bytes`: names a chunk whose bytes are never compared.
#[must_use]
pub fn chunk_name(secret: &[u8; 32], bytes: &[u8]) -> [u8; 32] {
    *blake3::keyed_hash(secret, bytes).as_bytes()
}

/// A key for another purpose, made of a secret: nobody learns one from the other. `purpose` is a
/// sentence that no other use of this function has.
#[must_use]
pub fn derived_key(purpose: &str, secret: &[u8]) -> [u8; 32] {
    blake3::derive_key(purpose, secret)
}

/// [`forgery_proof`] of many blocks, in their order; about twice as fast.
#[must_use]
pub fn forgery_proofs(secret: &[u8; 32], blocks: &[&Block]) -> Vec<[u8; 16]> {
    Fingerprinter::new(Algorithm::Blake3, secret)
        .many(blocks)
        .into_iter()
        .map(|fingerprint| fingerprint.0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_parts_is_that_of_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|n| ((n * n) >> 3) as u8).collect();
        for cut in [0, 1, 16, 240, 1024, 4999, 5000] {
            let (one, other) = bytes.split_at(cut);
            assert_eq!(fast_of(7, &[one, &[], other]), fast(7, &bytes), "{cut}");
            assert_eq!(fast_of(7, &[one]), fast(7, one), "{cut}");
        }
    }

    #[test]
    fn many_proofs_are_those_of_each() {
        let mut blocks = Block::zeroed_vec(21);
        blocks.iter_mut().zip(0..).for_each(|(block, n)| block.0[4000] = n);
        let singly: Vec<[u8; 16]> =
            blocks.iter().map(|block| forgery_proof(&[7; 32], &block.0)).collect();
        assert_eq!(forgery_proofs(&[7; 32], &blocks.iter().collect::<Vec<_>>()), singly);
    }
}
