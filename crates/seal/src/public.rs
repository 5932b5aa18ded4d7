//! Keys with a public half, by aws-lc-rs: Ed25519, which signs, and X25519, which seals for somebody else.

use aws_lc_rs::{
    agreement::{PrivateKey, UnparsedPublicKey as Peer, X25519, agree},
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use onefold_core::{Error, Kind, Result};
use zeroize::Zeroizing;

use crate::Secret;

/// Bytes of a public key.
pub const PUBLIC_BYTES: usize = 32;

/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;

fn refused() -> Error {
    Error::new(Kind::Io, "the library of ciphers refused to work")
}

/// A key that signs by Ed25519 (RFC 8032).
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::SigningKey>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::SigningKey>();
/// ```
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// From its seed.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn new(seed: &Secret) -> Result<SigningKey> {
        Ed25519KeyPair::from_seed_unchecked(seed.expose()).map(SigningKey).map_err(|_| refused())
    }

    /// The public key, by which anybody can tell its signatures.
    #[must_use]
    pub fn public(&self) -> [u8; PUBLIC_BYTES] {
        let mut public = [0; PUBLIC_BYTES];
        public.copy_from_slice(self.0.public_key().as_ref());
        public
    }

    /// Signs a message; the same message gets the same signature.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn sign(&self, message: &[u8]) -> Result<[u8; SIGNATURE_BYTES]> {
        let made = self.0.try_sign(message).map_err(|_| refused())?;
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(made.as_ref());
        Ok(signature)
    }
}

/// True when the owner of this public key signed the message.
#[must_use]
pub fn is_signed(
    public: &[u8; PUBLIC_BYTES],
    message: &[u8],
    signature: &[u8; SIGNATURE_BYTES],
) -> bool {
    UnparsedPublicKey::new(&ED25519, public).verify(message, signature).is_ok()
}

/// A key of X25519 (RFC 7748): who has its public half seals for who has this one.
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::AgreementKey>();
/// ```
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::AgreementKey>();
/// ```
pub struct AgreementKey(PrivateKey);

impl AgreementKey {
    /// From its secret half, of which any 32 bytes are one.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn new(secret: &Secret) -> Result<AgreementKey> {
        PrivateKey::from_private_key(&X25519, secret.expose())
            .map(AgreementKey)
            .map_err(|_| refused())
    }

    /// The public half.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn public(&self) -> Result<[u8; PUBLIC_BYTES]> {
        let made = self.0.compute_public_key().map_err(|_| refused())?;
        let mut public = [0; PUBLIC_BYTES];
        public.copy_from_slice(made.as_ref());
        Ok(public)
    }

    /// The secret that only the owners of this key and of the other one know; `None` for a key that agrees
    /// with all keys on the same secret.
    #[must_use]
    pub fn agree(&self, other: &[u8; PUBLIC_BYTES]) -> Option<Secret> {
        agree(&self.0, Peer::new(&X25519, other), (), |shared| {
            let mut bytes = Zeroizing::new([0; 32]);
            if shared.len() != bytes.len() {
                return Err(());
            }
            bytes.copy_from_slice(shared);
            // Some versions of the library give zeroes for such a key, and no error.
            let is_any = bytes.iter().fold(0, |all, byte| all | byte) != 0;
            let secret = Secret::take(&mut bytes);
            is_any.then_some(secret).ok_or(())
        })
        .ok()
    }
}
