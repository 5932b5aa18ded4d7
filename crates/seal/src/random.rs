//! Chance, as whoever opens a store gives it.

use onefold_core::Result;

/// A source of random bytes: the system's, or in simulations a seed's.
pub trait Random: Send + Sync {
    /// Fills `into`.
    ///
    /// # Errors
    /// The errors of the system.
    fn fill(&self, into: &mut [u8]) -> Result<()>;
}

/// An array of random bytes.
pub(crate) fn drawn<const N: usize>(random: &dyn Random) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    random.fill(&mut bytes)?;
    Ok(bytes)
}
