//! One bit for each block of a zone.

/// Bits of the largest zone.
const WORDS: usize = 16;

/// A bit for each block of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ZoneBitmap([u64; WORDS]);

impl ZoneBitmap {
    /// Sets the bit of block `n`; true when it was clear.
    pub fn set(&mut self, n: usize) -> bool {
        let (word, bit) = (n / 64, 1 << (n % 64));
        let was_clear = self.0[word] & bit == 0;
        self.0[word] |= bit;
        was_clear
    }

    /// Clears the bit of block `n`; true when it was set.
    pub fn clear(&mut self, n: usize) -> bool {
        let (word, bit) = (n / 64, 1 << (n % 64));
        let was_set = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        was_set
    }

    /// The bit of block `n`.
    #[must_use]
    pub fn get(&self, n: usize) -> bool {
        self.0[n / 64] >> (n % 64) & 1 != 0
    }

    /// Sets the bits that are set in another bitmap.
    pub(crate) fn add(&mut self, other: &ZoneBitmap) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    /// How many bits are set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The set bits in rising order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(w, &word)| {
            std::iter::successors((word != 0).then_some(word), |word| {
                Some(word & (word - 1)).filter(|&rest| rest != 0)
            })
            .map(move |word| w * 64 + word.trailing_zeros() as usize)
        })
    }

    /// The first block from `from` on, below `blocks`, whose bit is `set`; `blocks` when there is
    /// none.
    fn next(&self, from: usize, blocks: usize, set: bool) -> usize {
        let mut at = from;
        while at < blocks {
            let word = if set { self.0[at / 64] } else { !self.0[at / 64] } >> (at % 64);
            if word != 0 {
                return blocks.min(at + word.trailing_zeros() as usize);
            }
            at = (at / 64 + 1) * 64;
        }
        blocks
    }

    /// The first clear bits from `from` on below `blocks`: start and length of their run, of at
    /// most `most`.
    #[must_use]
    pub fn clear_run(&self, from: usize, blocks: usize, most: usize) -> Option<(usize, usize)> {
        let start = self.next(from, blocks, false);
        let end = self.next(start, blocks.min(start.saturating_add(most)), true);
        (start < blocks).then_some((start, end - start))
    }

    /// How many bits are clear from `from` on below `blocks`.
    #[must_use]
    pub fn clear_from(&self, from: usize, blocks: usize) -> usize {
        let mut clear = 0;
        let mut at = from;
        while let Some((start, length)) = self.clear_run(at, blocks, usize::MAX) {
            clear += length;
            at = start + length;
        }
        clear
    }

    /// Length of the longest run of clear bits below `blocks`.
    #[must_use]
    pub fn longest_clear(&self, blocks: usize) -> usize {
        let mut longest = 0;
        let mut at = 0;
        while let Some((start, length)) = self.clear_run(at, blocks, blocks) {
            longest = longest.max(length);
            at = start + length;
        }
        longest
    }

    /// Its bytes on disk.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; WORDS * 8] {
        let mut bytes = [0; WORDS * 8];
        for (at, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The bitmap in 128 bytes; missing ones are clear.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> ZoneBitmap {
        let mut words = [0; WORDS];
        for (word, at) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = at.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        }
        ZoneBitmap(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_clear_bits_are_found() {
        let mut map = ZoneBitmap::default();
        assert_eq!(map.clear_run(0, 16, 100), Some((0, 16)));
        for n in [0, 1, 5, 15] {
            assert!(map.set(n));
            assert!(!map.set(n));
        }
        assert_eq!(map.clear_run(0, 16, 2), Some((2, 2)));
        assert_eq!(map.clear_run(0, 16, 9), Some((2, 3)));
        assert_eq!(map.clear_run(15, 16, 9), None);
        assert_eq!(map.longest_clear(16), 9);
        assert_eq!(map.iter().collect::<Vec<_>>(), [0, 1, 5, 15]);
        assert_eq!(map.count(), 4);
        assert!(map.clear(5) && !map.clear(5));
        assert_eq!(ZoneBitmap::from_bytes(&map.to_bytes()), map);
    }
}
