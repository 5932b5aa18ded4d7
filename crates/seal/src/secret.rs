//! 32 secret bytes.

use onefold_core::{Result, key_memory::Key};
use zeroize::Zeroize;

use crate::{random::Random, uses::Use};

/// A key, in memory for keys. Its bytes are overwritten when it is dropped, and leave it only by
/// [`expose`](Self::expose).
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
pub struct Secret(Key);

impl Secret {
    /// These bytes; the caller's copy is overwritten.
    #[must_use]
    pub fn take(bytes: &mut [u8; 32]) -> Secret {
        // A move of the value copies no key.
        let secret = Secret(Key::of(bytes));
        bytes.zeroize();
        secret
    }

    /// New bytes.
    ///
    /// # Errors
    /// Those of the source.
    pub fn drawn(random: &dyn Random) -> Result<Secret> {
        let mut secret = Secret(Key::zero());
        random.fill(secret.0.get_mut())?;
        Ok(secret)
    }

    /// The working key for one use. Nobody learns one from another.
    #[must_use]
    pub fn derive(&self, purpose: Use) -> Secret {
        self.derive_of(purpose, &[])
    }

    /// The same, for each of many things of one use: `of` says which.
    #[must_use]
    pub fn derive_of(&self, purpose: Use, of: &[u8]) -> Secret {
        let mut hasher = blake3::Hasher::new_derive_key(purpose.context());
        hasher.update(&*self.0).update(of);
        let mut derived = Secret(Key::zero());
        let mut output = hasher.finalize_xof();
        output.fill(derived.0.get_mut());
        output.zeroize();
        hasher.zeroize();
        derived
    }

    /// The bytes, for what computes with them.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The same key once more, where two owners need it.
    #[must_use]
    pub fn again(&self) -> Secret {
        Secret(Key::of(&self.0))
    }

    /// True when both are the same; takes as long when they are not.
    #[must_use]
    pub fn equals(&self, other: &[u8; 32]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&*self.0, other).is_ok()
    }
}
