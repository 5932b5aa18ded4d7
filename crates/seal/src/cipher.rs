//! The ciphers, by aws-lc-rs: AES-256 in the modes GCM-SIV, GCM and CTR.

use aws_lc_rs::{
    aead::{AES_256_GCM, AES_256_GCM_SIV, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey},
    cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey},
};
use onefold_core::{Error, Kind, Result};

use crate::Secret;

/// Bytes of a tag, which proves what was sealed.
pub const TAG_BYTES: usize = 16;

/// What is sealed and where it stands: it makes the nonce, and is proven by the tag.
///
/// `kind` says what it is, `file` in which file or part of the store it stands, and `number` where in
/// it. A store uses no two kinds for one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind of thing.
    pub kind: u8,
    /// The number of its file.
    pub file: u64,
    /// Its number in the file.
    pub number: u64,
}

impl Place {
    /// The kind, 40 bits of the file and 48 bits of the number. Two places of one nonce differ in what
    /// the tag proves, and GCM-SIV allows that.
    fn nonce(self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[0] = self.kind;
        nonce[1..6].copy_from_slice(&self.file.to_le_bytes()[..5]);
        nonce[6..].copy_from_slice(&self.number.to_le_bytes()[..6]);
        nonce
    }

    /// What the tag proves beside the sealed bytes.
    fn associated(self, more: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(17 + more.len());
        bytes.push(self.kind);
        bytes.extend_from_slice(&self.file.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(more);
        bytes
    }
}

/// A key of AES-256-GCM-SIV (RFC 8452): an equal nonce tells only that equal bytes were sealed under
/// it, with equal associated bytes.
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::SivKey>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::SivKey>();
/// ```
pub struct SivKey {
    key: LessSafeKey,
    #[cfg(feature = "observer")]
    seen: crate::observer::Watched,
}

/// A key of AES-256-GCM, of which no two contents may have one nonce.
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::GcmKey>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::GcmKey>();
/// ```
pub struct GcmKey {
    key: LessSafeKey,
    #[cfg(feature = "observer")]
    seen: crate::observer::Watched,
}

/// A key of AES-256-CTR, for bytes whose hash is their counter: nothing proves them but that hash.
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::CtrKey>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::CtrKey>();
/// ```
pub struct CtrKey {
    key: EncryptingKey,
    #[cfg(feature = "observer")]
    seen: crate::observer::Watched,
}

/// The cipher could not be set up: its library refused.
fn refused() -> Error {
    Error::new(Kind::Io, "the library of ciphers refused to work")
}

fn aead(algorithm: &'static Algorithm, key: &Secret) -> Result<LessSafeKey> {
    Ok(LessSafeKey::new(UnboundKey::new(algorithm, key.expose()).map_err(|_| refused())?))
}

fn seal(
    key: &LessSafeKey,
    nonce: [u8; 12],
    associated: &[u8],
    bytes: &mut [u8],
) -> Result<[u8; TAG_BYTES]> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(associated), bytes);
    let mut proof = [0; TAG_BYTES];
    proof.copy_from_slice(tag.map_err(|_| refused())?.as_ref());
    Ok(proof)
}

fn open(
    key: &LessSafeKey,
    nonce: [u8; 12],
    associated: &[u8],
    bytes: &mut [u8],
    tag: &[u8; TAG_BYTES],
) -> bool {
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.open_in_place_separate_tag(nonce, Aad::from(associated), tag, bytes).is_ok()
}

impl SivKey {
    /// From a working key.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn new(key: &Secret) -> Result<SivKey> {
        Ok(SivKey {
            key: aead(&AES_256_GCM_SIV, key)?,
            #[cfg(feature = "observer")]
            seen: crate::observer::Watched::of(key),
        })
    }

    /// Seals `bytes` for their place, and `associated` with them, which stays as it is; returns the tag.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn seal(&self, place: Place, associated: &[u8], bytes: &mut [u8]) -> Result<[u8; 16]> {
        self.seal_at(place.nonce(), &place.associated(associated), bytes)
    }

    /// Opens what was sealed for this place; false when the tag says that it was not, and then `bytes`
    /// are of no use.
    #[must_use]
    pub fn open(&self, place: Place, associated: &[u8], bytes: &mut [u8], tag: &[u8; 16]) -> bool {
        self.open_at(place.nonce(), &place.associated(associated), bytes, tag)
    }

    /// [`seal`](Self::seal) with a nonce and associated bytes of the caller's.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn seal_at(
        &self,
        nonce: [u8; 12],
        associated: &[u8],
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES]> {
        #[cfg(feature = "observer")]
        self.seen.seals();
        seal(&self.key, nonce, associated, bytes)
    }

    /// [`open`](Self::open) likewise.
    #[must_use]
    pub fn open_at(
        &self,
        nonce: [u8; 12],
        associated: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        open(&self.key, nonce, associated, bytes, tag)
    }
}

impl GcmKey {
    /// From a working key.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn new(key: &Secret) -> Result<GcmKey> {
        Ok(GcmKey {
            key: aead(&AES_256_GCM, key)?,
            #[cfg(feature = "observer")]
            seen: crate::observer::Watched::of(key),
        })
    }

    /// Seals `bytes`. The nonce must never come again with another content.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn seal(
        &self,
        nonce: [u8; 12],
        associated: &[u8],
        bytes: &mut [u8],
    ) -> Result<[u8; TAG_BYTES]> {
        #[cfg(feature = "observer")]
        self.seen.gcm(nonce, associated, bytes);
        seal(&self.key, nonce, associated, bytes)
    }

    /// Opens what was sealed so; false when the tag says that it was not, and then `bytes` are of no
    /// use.
    #[must_use]
    pub fn open(
        &self,
        nonce: [u8; 12],
        associated: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        open(&self.key, nonce, associated, bytes, tag)
    }
}

impl CtrKey {
    /// From a working key.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn new(key: &Secret) -> Result<CtrKey> {
        let unbound = UnboundCipherKey::new(&AES_256, key.expose()).map_err(|_| refused())?;
        Ok(CtrKey {
            key: EncryptingKey::ctr(unbound).map_err(|_| refused())?,
            #[cfg(feature = "observer")]
            seen: crate::observer::Watched::of(key),
        })
    }

    /// Seals `bytes` with the counters from `first` on, one for 16 bytes.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn seal(&self, first: [u8; 16], bytes: &mut [u8]) -> Result<()> {
        #[cfg(feature = "observer")]
        self.seen.ctr(first, bytes);
        self.apply(first, bytes)
    }

    /// Opens them, whatever they are: the caller compares their hash.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn open(&self, first: [u8; 16], bytes: &mut [u8]) -> Result<()> {
        self.apply(first, bytes)
    }

    fn apply(&self, first: [u8; 16], bytes: &mut [u8]) -> Result<()> {
        let context = EncryptionContext::Iv128(first.into());
        self.key.less_safe_encrypt(bytes, context).map(drop).map_err(|_| refused())
    }
}

/// The first counter of a raw block of 4 KiB: 64 bits of its fingerprint's prefix as the map keeps it,
/// 16 zero bits, 40 bits of its address, and 8 zero bits, in which its 256 counters run. So the counters
/// of no two prefixes or addresses overlap.
///
/// `address` has 40 bits.
#[must_use]
pub fn block_counter(prefix: u64, address: u64) -> [u8; 16] {
    ((u128::from(prefix) << 64) | (u128::from(address & ((1 << 40) - 1)) << 8)).to_be_bytes()
}

/// A nonce from chance and from what is sealed: where a cloned machine repeats its random numbers, other
/// content still has another nonce.
#[must_use]
pub fn content_nonce(key: &Secret, parts: &[&[u8]]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce.copy_from_slice(&digest(key, parts)[..12]);
    nonce
}

/// Keyed BLAKE3 of parts, each behind its length.
#[must_use]
pub fn digest(key: &Secret, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key.expose());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { kind: 3, file: 9, number: 77 };

    fn key(byte: u8) -> SivKey {
        SivKey::new(&Secret::take(&mut [byte; 32])).unwrap()
    }

    #[test]
    fn rule_29_what_was_sealed_opens_at_its_place_only() {
        let mut bytes = *b"sealed for one place";
        let tag = key(1).seal(PLACE, b"beside", &mut bytes).unwrap();
        assert_ne!(&bytes, b"sealed for one place");
        let opens = |key: &SivKey, place: Place, beside: &[u8], tag: &[u8; 16]| {
            let mut copy = bytes;
            key.open(place, beside, &mut copy, tag) && copy == *b"sealed for one place"
        };
        assert!(opens(&key(1), PLACE, b"beside", &tag));
        assert!(!opens(&key(2), PLACE, b"beside", &tag));
        assert!(!opens(&key(1), PLACE, b"besides", &tag));
        for other in [
            Place { kind: 4, ..PLACE },
            Place { file: 10, ..PLACE },
            Place { file: PLACE.file | 1 << 40, ..PLACE },
            Place { number: 78, ..PLACE },
            Place { number: PLACE.number | 1 << 48, ..PLACE },
        ] {
            assert!(!opens(&key(1), other, b"beside", &tag), "{other:?}");
        }
        for bit in 0..128 {
            let mut turned = tag;
            turned[bit / 8] ^= 1 << (bit % 8);
            assert!(!opens(&key(1), PLACE, b"beside", &turned), "bit {bit} of the tag");
        }
    }

    #[test]
    fn rule_29_counters_of_blocks_never_overlap() {
        let first = |prefix, address| u128::from_be_bytes(block_counter(prefix, address));
        assert_eq!(first(1, 0), 1 << 64);
        assert_eq!(first(0, 1), 256);
        let last = (1u64 << 40) - 1;
        assert_eq!(first(0, last) + 255, (1 << 48) - 1);
        assert!(first(0, last) + 255 < first(1, 0));
    }

    #[test]
    fn parts_of_a_digest_do_not_run_into_each_other() {
        let key = Secret::take(&mut [5; 32]);
        assert_ne!(digest(&key, &[b"ab", b"c"]), digest(&key, &[b"a", b"bc"]));
        assert_ne!(digest(&key, &[b"ab"]), digest(&key, &[b"ab", b""]));
        assert_ne!(content_nonce(&key, &[b"a"]), content_nonce(&key, &[b"b"]));
    }
}
