//! FastCDC with a table of its own for each sealed store: whoever lacks the key does not know where a given content
//! would be cut. Lengths of chunks stay what they are: who can store content of his choice, and sees how
//! much is stored, learns where that content was cut.

use onefold_core::key_memory::Table;

use crate::{cipher::digest, secret::Secret};

/// The table.
pub struct Gear(Table);

impl Gear {
    /// By the store's key of cuts.
    #[must_use]
    pub fn new(key: &Secret) -> Gear {
        Gear(Table::of(|byte| {
            let mut word = [0; 8];
            word.copy_from_slice(&digest(key, &[&[byte]])[..8]);
            u64::from_le_bytes(word)
        }))
    }

    /// The length of the chunk that `bytes` begin with: at most all of them. Behind `least` bytes it ends
    /// where the hash of the last 64 bytes has zeroes at its top: one more than `mean` asks for up to
    /// the normal point, and one less from there on.
    #[must_use]
    pub fn cut(&self, bytes: &[u8], least: usize, normal: usize, mean: usize) -> usize {
        if bytes.len() <= least {
            return bytes.len();
        }
        let bits = mean.ilog2();
        let top = |bits: u32| u64::MAX << (64 - bits);
        let normal = normal.clamp(least, bytes.len());
        match self.scan(&bytes[least..normal], top(bits + 1), 0) {
            Ok(length) => least + length,
            Err(hash) => {
                let easy = self.scan(&bytes[normal..], top(bits - 1), hash);
                easy.map_or(bytes.len(), |length| normal + length)
            }
        }
    }

    /// The length up to the first byte behind which the hash has none of the bits of `mask`, or the hash
    /// behind all of `bytes`. Words of four bytes are added up before the hash is shifted, so that
    /// fewer steps wait for each other.
    #[inline(always)]
    fn scan(&self, bytes: &[u8], mask: u64, mut hash: u64) -> Result<usize, u64> {
        let table: &[u64; 256] = &self.0;
        let word = |byte: u8| table[usize::from(byte)];
        let (groups, rest) = bytes.as_chunks::<4>();
        for (n, &[a, b, c, d]) in groups.iter().enumerate() {
            let (a, b) = (word(a), word(b));
            let two = (a << 1).wrapping_add(b);
            let first = (hash << 1).wrapping_add(a);
            let second = (hash << 2).wrapping_add(two);
            let (c, d) = (word(c), word(d));
            let third = (second << 1).wrapping_add(c);
            hash = (hash << 4).wrapping_add((two << 2).wrapping_add((c << 1).wrapping_add(d)));
            for (more, hash) in [first, second, third, hash].into_iter().enumerate() {
                if hash & mask == 0 {
                    return Ok(4 * n + more + 1);
                }
            }
        }
        for (n, &byte) in rest.iter().enumerate() {
            hash = (hash << 1).wrapping_add(word(byte));
            if hash & mask == 0 {
                return Ok(4 * groups.len() + n + 1);
            }
        }
        Err(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte by byte, as sealed archives were cut first.
    fn plainly(gear: &Gear, bytes: &[u8], least: usize, normal: usize, mean: usize) -> usize {
        let bits = mean.ilog2();
        let top = |bits: u32| u64::MAX << (64 - bits);
        let table: &[u64; 256] = &gear.0;
        let mut hash = 0u64;
        for (at, &byte) in bytes.iter().enumerate().skip(least) {
            hash = (hash << 1).wrapping_add(table[usize::from(byte)]);
            if hash & top(if at < normal { bits + 1 } else { bits - 1 }) == 0 {
                return at + 1;
            }
        }
        bytes.len()
    }

    #[test]
    fn four_bytes_at_a_time_are_cut_as_one_by_one() {
        let gear = Gear::new(&Secret::take(&mut [7; 32]));
        let mut state = 1u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let bytes: Vec<u8> = (0..300_000).map(|_| noise() as u8).collect();
        let mut ends = std::collections::BTreeSet::new();
        for _ in 0..3000 {
            let from = noise() as usize % bytes.len();
            let length = noise() as usize % 2000;
            let rest = &bytes[from..bytes.len().min(from + length)];
            let (mean, least) = (64 << (noise() % 4), noise() as usize % 100);
            let normal = mean / 4 * 3;
            let cut = gear.cut(rest, least, normal, mean);
            assert_eq!(
                cut,
                plainly(&gear, rest, least, normal, mean),
                "{from} {length} {least} {mean}"
            );
            ends.insert((cut.wrapping_sub(least) % 4, cut < normal, cut == rest.len()));
        }
        assert!(ends.len() > 12, "{ends:?}");
    }
}
