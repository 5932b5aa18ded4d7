//! The longest free run of each idle zone, as far as it is known. A superblock says how many zones
//! there are, and may be a stranger's: memory is taken for those that were looked at.

use std::collections::BTreeMap;

/// Neighbouring zones that are kept together.
const TOGETHER: usize = 4096;

/// A zone that is not known.
const UNKNOWN: u16 = u16::MAX;

/// Lengths by zone.
#[derive(Default)]
pub(super) struct Longest(BTreeMap<u64, Box<[u16; TOGETHER]>>);

impl Longest {
    /// The account of a zone.
    pub(super) fn get(&self, zone: u64) -> Option<u16> {
        let known = self.0.get(&(zone / TOGETHER as u64))?[zone as usize % TOGETHER];
        (known != UNKNOWN).then_some(known)
    }

    /// Learns or forgets it; gives what was known before.
    pub(super) fn set(&mut self, zone: u64, longest: Option<u16>) -> Option<u16> {
        let piece = zone / TOGETHER as u64;
        if longest.is_none() && !self.0.contains_key(&piece) {
            return None;
        }
        let piece = self.0.entry(piece).or_insert_with(|| Box::new([UNKNOWN; TOGETHER]));
        let known = &mut piece[zone as usize % TOGETHER];
        let before = std::mem::replace(known, longest.unwrap_or(UNKNOWN));
        (before != UNKNOWN).then_some(before)
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> u64 {
        (self.0.len() * TOGETHER * 2) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_known_until_it_is_forgotten() {
        let mut longest = Longest::default();
        assert_eq!((longest.set(1 << 35, None), longest.memory()), (None, 0));
        assert_eq!(longest.set(1 << 35, Some(7)), None);
        assert_eq!((longest.get(1 << 35), longest.get((1 << 35) + 1)), (Some(7), None));
        assert_eq!(longest.set(1 << 35, None), Some(7));
        assert_eq!(longest.get(1 << 35), None);
    }
}
