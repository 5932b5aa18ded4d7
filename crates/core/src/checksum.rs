//! Checksums of metadata.

/// 64-bit checksum of `bytes`, keyed so that bytes made by a client of one store are not taken for another's. Detects rot, tears and
/// misdirection; where a client could forge it (carriers), [`forgery_proof`] is used instead.
#[must_use]
pub fn fast(key: u64, bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(key, bytes)
}

/// 128-bit keyed BLAKE3 of `bytes`: who does not know the secret can't make it.
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
