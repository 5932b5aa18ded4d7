//! Tells damage from other errors, and holds the bits that mark chunks as condemned or damaged.

use std::collections::BTreeSet;

use onefold_core::{Error, Kind};

/// True for the errors that a bad sector or a flipped bit causes.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::Io)
}

/// A bit for each of `chunks` chunks, set for those in `these`.
pub(crate) fn bits_of(these: &BTreeSet<usize>, chunks: usize) -> Vec<u8> {
    let mut bits = vec![0; chunks.div_ceil(8)];
    these.iter().for_each(|n| bits[n / 8] |= 1 << (n % 8));
    bits
}

/// True when chunk `n` is marked in the bits of its container.
#[must_use]
pub(crate) fn is_condemned(bits: &[u8], n: usize) -> bool {
    bits.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
}
