//! FastCDC with a table of its own for each sealed archive: where its streams are cut tells nothing about
//! what is in them to whoever lacks the key.

use onefold_core::key_memory::Table;
use onefold_seal::{Secret, digest};

/// The table.
pub(crate) struct Gear(Table);

impl Gear {
    /// By the archive's key of cuts.
    #[must_use]
    pub(crate) fn new(key: &Secret) -> Gear {
        Gear(Table::of(|byte| {
            let mut word = [0; 8];
            word.copy_from_slice(&digest(key, &[&[byte]])[..8]);
            u64::from_le_bytes(word)
        }))
    }

    /// The length of the chunk that `bytes` begin with: at most all of them. Behind `least` bytes it ends
    /// where the hash of the last 64 bytes has zeroes at its top: one more than `mean` asks for up to
    /// the normal point, and one less from there on.
    pub(super) fn cut(&self, bytes: &[u8], least: usize, normal: usize, mean: usize) -> usize {
        if bytes.len() <= least {
            return bytes.len();
        }
        let bits = mean.ilog2();
        let top = |bits: u32| u64::MAX << (64 - bits);
        let (hard, easy) = (top(bits + 1), top(bits - 1));
        let table: &[u64; 256] = &self.0;
        let mut hash = 0u64;
        for (at, &byte) in bytes.iter().enumerate().skip(least) {
            hash = (hash << 1).wrapping_add(table[usize::from(byte)]);
            if hash & (if at < normal { hard } else { easy }) == 0 {
                return at + 1;
            }
        }
        bytes.len()
    }
}
