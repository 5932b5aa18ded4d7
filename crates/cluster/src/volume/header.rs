//! The header of a volume: keys of one object.
//!
//! | key | value |
//! |---|---|
//! | `o` | the owner: its identity for fencing, and whether it closed in order |
//! | `B` and a number | 512 bits: the objects that are there |
//! | `D` and a number | a long discard: first object, last object and one, cursor |
//! | `d` | the number of the last long discard, compared by the next |
//! | `i` | a stamp of the owner, while it may make references for entries that it has not written yet |
//! | `C` and a number | a stamp: an object and a chunk of it that is kept though it is clean |
//! | `H` and a number | a dirty chunk that is read often: until when it is not deduplicated |

use std::{collections::BTreeMap, ops::Range};

use onefold_core::object::{Change, Guard, ObjectName, ReadPart, Refusal, Write};

use crate::{
    format::{Stamp, corrupt, key},
    session::Session,
};

pub(crate) const OWNER: &[u8] = b"o";
pub(crate) const INLINE: &[u8] = b"i";
pub(super) const LAST_DISCARD: &[u8] = b"d";
pub(super) const BITS: u8 = b'B';
pub(super) const DISCARD: u8 = b'D';
pub(super) const CACHED: u8 = b'C';
pub(super) const HOT: u8 = b'H';

/// Objects of a key of the bitmap.
pub(crate) const GROUP: u64 = 512;

/// Bytes of such a value.
const GROUP_BYTES: usize = GROUP as usize / 8;

/// The lock of the owner.
pub(crate) const LOCK: &str = "owner";

/// The name of a volume's header.
pub(crate) fn name(volume: u64) -> ObjectName {
    ObjectName::metadata(format!("v.{volume:010x}"))
}

/// Which objects are there. A set bit and no object is damage; a clear one says nothing while the
/// volume is in use.
#[derive(Clone, Default)]
pub(crate) struct Bits(pub(super) BTreeMap<u64, Vec<u8>>);

impl Bits {
    pub(crate) fn has(&self, index: u64) -> bool {
        let at = (index % GROUP) as usize;
        self.0.get(&(index / GROUP)).is_some_and(|group| group[at / 8] >> (at % 8) & 1 == 1)
    }

    /// All objects whose bit is set.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> + '_ {
        self.from(0)
    }

    /// The first object of a range whose bit is set.
    pub(super) fn first(&self, range: Range<u64>) -> Option<u64> {
        self.from(range.start)
            .find(|index| *index >= range.start)
            .filter(|index| *index < range.end)
    }

    /// All objects whose bit is set, from the group of `first` on.
    fn from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let of = |(group, bits): (&u64, &Vec<u8>)| {
            let (group, bits) = (*group, bits.clone());
            (0..GROUP)
                .filter(move |at| bits[*at as usize / 8] >> (at % 8) & 1 == 1)
                .map(move |at| group * GROUP + at)
        };
        self.0.range(first / GROUP..).flat_map(of)
    }

    /// Takes over what a header's keys say.
    pub(super) fn learn(&mut self, key: &[u8], value: &[u8]) -> Result<bool, Refusal> {
        let Some(group) = key::parse_numbered(BITS, key) else { return Ok(false) };
        if value.len() != GROUP_BYTES {
            return Err(Refusal::Failed(corrupt("the bitmap of a volume is damaged")));
        }
        self.0.insert(group, value.to_vec());
        Ok(true)
    }
}

/// A long discard that has not reached all its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Discard {
    /// Its number in the volume; objects note the last that reached them.
    pub(super) stamp: Stamp,
    /// The first object.
    pub(super) from: u64,
    /// The last object and one.
    pub(super) to: u64,
    /// The first object that it has not reached.
    pub(super) cursor: u64,
}

/// The last long discard of a volume.
#[derive(Default)]
pub(crate) struct LastDiscard {
    /// Its number.
    pub(super) number: u64,
    /// The next one, when it is not known whether it is recorded. Until it is, nothing may be
    /// written: it could come over what is newer.
    pub(super) doubt: Option<Discard>,
}

impl Discard {
    pub(super) fn key(&self) -> Vec<u8> {
        key::numbered(DISCARD, self.stamp.0)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        [self.from, self.to, self.cursor].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    pub(super) fn decode(key: &[u8], value: &[u8]) -> Result<Option<Discard>, Refusal> {
        let Some(stamp) = key::parse_numbered(DISCARD, key) else { return Ok(None) };
        let bad = || Refusal::Failed(corrupt("a discard of a volume is damaged"));
        let number = |at: usize| -> Result<u64, Refusal> {
            Ok(u64::from_le_bytes(
                value.get(at..at + 8).ok_or_else(bad)?.try_into().map_err(|_| bad())?,
            ))
        };
        Ok(Some(Discard {
            stamp: Stamp(stamp),
            from: number(0)?,
            to: number(8)?,
            cursor: number(16)?,
        }))
    }

    /// True when it is still to reach an object.
    pub(super) fn covers(&self, index: u64, discarded: Stamp) -> bool {
        (self.cursor.max(self.from)..self.to).contains(&index) && discarded < self.stamp
    }
}

impl Session {
    /// Sets or clears the bit of an object; only the owner of the volume does.
    pub(crate) fn change_bit(
        &self,
        volume: u64,
        bits: &mut Bits,
        index: u64,
        there: bool,
    ) -> Result<(), Refusal> {
        let (group, at) = (index / GROUP, (index % GROUP) as usize);
        let key = key::numbered(BITS, group);
        for _ in 0..8 {
            if bits.has(index) == there {
                return Ok(());
            }
            let old = bits.0.get(&group).cloned().unwrap_or_default();
            let mut new = if old.is_empty() { vec![0; GROUP_BYTES] } else { old.clone() };
            if there {
                new[at / 8] |= 1 << (at % 8);
            } else {
                new[at / 8] &= !(1 << (at % 8));
            }
            let op = Write {
                object: name(volume),
                guards: vec![Guard::Exists, Guard::Omap(key.clone(), old)],
                changes: vec![Change::SetOmap(vec![(key.clone(), new.clone())])],
            };
            match self.until_answered(&op) {
                Ok(_) => {
                    bits.0.insert(group, new);
                }
                // Our own operation, whose reply was lost.
                Err(Refusal::Mismatch) => {
                    let answer =
                        self.read_one(&name(volume), vec![ReadPart::Keys(vec![key.clone()])])?;
                    let value = answer
                        .pairs(0)
                        .0
                        .first()
                        .map(|(_, value)| value.clone())
                        .unwrap_or_default();
                    bits.learn(&key, &value)?;
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Unknown)
    }

    /// The bitmap of a volume.
    pub(crate) fn read_bits(&self, volume: u64) -> Result<Bits, Refusal> {
        let mut bits = Bits::default();
        for (key, value) in self.all_keys(&name(volume), Vec::new())? {
            bits.learn(&key, &value)?;
        }
        Ok(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_again() {
        let mut bits = Bits::default();
        let mut group = vec![0; GROUP_BYTES];
        group[1] = 0b100;
        assert!(bits.learn(&key::numbered(BITS, 3), &group).unwrap());
        assert!(
            !bits.learn(OWNER, b"x").unwrap() && bits.learn(&key::numbered(BITS, 3), b"x").is_err()
        );
        assert_eq!(bits.all().collect::<Vec<_>>(), [3 * GROUP + 10]);
        assert!(bits.has(3 * GROUP + 10) && !bits.has(10));
        let at = 3 * GROUP + 10;
        assert_eq!(
            [0..at + 1, at..at + 1, at + 1..at + 9, 0..at].map(|range| bits.first(range)),
            [Some(at), Some(at), None, None]
        );
    }
}
