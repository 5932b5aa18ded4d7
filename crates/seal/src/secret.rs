//! 32 secret bytes.

use onefold_core::Result;
use zeroize::{Zeroize, Zeroizing};

use crate::{random::Random, uses::Use};

/// A key. Its bytes are overwritten when it is dropped, and leave it only by [`expose`](Self::expose).
///
/// It can't be printed:
///
/// ```compile_fail
/// fn wants<T: std::fmt::Debug>() {}
/// wants::<onefold_seal::Secret>();
/// ```
///
/// nor copied:
///
/// ```compile_fail
/// fn wants<T: Clone>() {}
/// wants::<onefold_seal::Secret>();
/// ```
///
/// nor stored with other settings:
///
/// ```compile_fail
/// fn wants<T: serde::Serialize>() {}
/// wants::<onefold_seal::Secret>();
/// ```
///
/// while other types can:
///
/// ```
/// fn wants<T: std::fmt::Debug + Clone + serde::Serialize>() {}
/// wants::<String>();
/// ```
pub struct Secret(Box<[u8; 32]>);

impl Secret {
    /// These bytes; the caller's copy is overwritten.
    #[must_use]
    pub fn take(bytes: &mut [u8; 32]) -> Secret {
        // On the heap from the beginning: a move of the value copies no key.
        let mut secret = Secret(Box::new([0; 32]));
        secret.0.copy_from_slice(bytes);
        bytes.zeroize();
        secret
    }

    /// New bytes.
    ///
    /// # Errors
    /// Those of the source.
    pub fn drawn(random: &dyn Random) -> Result<Secret> {
        let mut secret = Secret(Box::new([0; 32]));
        random.fill(&mut *secret.0)?;
        Ok(secret)
    }

    /// The working key for one use. Nobody learns one from another.
    #[must_use]
    pub fn derive(&self, purpose: Use) -> Secret {
        let mut derived = blake3::derive_key(purpose.context(), &*self.0);
        Secret::take(&mut derived)
    }

    /// The same, for each of many things of one use: `of` says which.
    #[must_use]
    pub fn derive_of(&self, purpose: Use, of: &[u8]) -> Secret {
        let mut hasher = blake3::Hasher::new_derive_key(purpose.context());
        hasher.update(&*self.0).update(of);
        let mut derived = *hasher.finalize().as_bytes();
        Secret::take(&mut derived)
    }

    /// The bytes, for what computes with them.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The same key once more, where two owners need it.
    pub(crate) fn again(&self) -> Secret {
        let mut bytes = Zeroizing::new([0; 32]);
        bytes.copy_from_slice(&*self.0);
        Secret::take(&mut bytes)
    }

    /// True when both are the same; takes as long when they are not.
    #[must_use]
    pub fn equals(&self, other: &[u8; 32]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&*self.0, other).is_ok()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
