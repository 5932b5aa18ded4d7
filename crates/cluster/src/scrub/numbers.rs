//! A set of the numbers of volumes and put objects. They are given one after the other, so that a bit each
//! is enough: a million names take less than 200 KB.

use std::collections::BTreeMap;

/// Numbers that stand together.
const GROUP: u64 = 512;

/// The set.
#[derive(Default)]
pub(super) struct Numbers(BTreeMap<u64, Box<[u64; 8]>>);

impl Numbers {
    /// Adds a number; false when it was there.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        let (word, bit) = place(number);
        let word = &mut self.0.entry(number / GROUP).or_default()[word];
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.0.get(&(number / GROUP)).is_some_and(|group| group[word] & bit != 0)
    }
}

fn place(number: u64) -> (usize, u64) {
    ((number % GROUP / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_the_set_that_were_added() {
        let mut numbers = Numbers::default();
        let all = [0, 1, 63, 64, 511, 512, 1 << 39, (1 << 40) - 1];
        for number in all {
            assert!(!numbers.contains(number) && numbers.insert(number));
            assert!(!numbers.insert(number));
        }
        assert!((0..1000).all(|number| numbers.contains(number) == all.contains(&number)));
    }
}
