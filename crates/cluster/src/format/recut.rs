//! The *re-cut* key: a piece of a volume whose chunks are cut by their content has it from the
//! beginning.
//!
//! A worker that moves cuts first sets the key to the range and a new stamp, which its references
//! carry. The operation that swaps the entries sets the key to no range and another new stamp.
//! Writes compare the key, because a re-cut removes and adds entries. Without the key an absent
//! entry would be a value that comes back.

use std::ops::Range;

use onefold_core::Result;

use super::{OBJECT_MAX, Stamp, corrupt};

/// Bytes of the value.
const BYTES: usize = 16;

/// A re-cut under way, or, with an empty range, the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recut {
    /// The range that is cut anew; empty when no re-cut is under way.
    pub range: Range<u32>,
    /// The stamp of its references; no value has it twice.
    pub stamp: Stamp,
}

impl Recut {
    /// Nothing is under way.
    #[must_use]
    pub fn none(stamp: Stamp) -> Recut {
        Recut { range: 0..0, stamp }
    }

    /// The value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [
            &self.range.start.to_le_bytes()[..],
            &self.range.end.to_le_bytes(),
            &self.stamp.0.to_le_bytes(),
        ]
        .concat()
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// `Corrupt`: the value is damaged.
    pub fn decode(value: &[u8]) -> Result<Recut> {
        let bad = || corrupt("a re-cut key is damaged");
        let value: &[u8; BYTES] = value.try_into().map_err(|_| bad())?;
        let number = |at: usize| {
            u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]])
        };
        let stamp = Stamp(u64::from(number(8)) | u64::from(number(12)) << 32);
        let range = number(0)..number(4);
        if range.start > range.end || range.end > OBJECT_MAX {
            Err(bad())
        } else {
            Ok(Recut { range, stamp })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recut_comes_back_and_nonsense_does_not() {
        for recut in [
            Recut::none(Stamp(u64::MAX - 1)),
            Recut { range: 4096..OBJECT_MAX, stamp: Stamp(7 << 40 | 3) },
        ] {
            let value = recut.encode();
            assert_eq!(Recut::decode(&value).unwrap(), recut);
            assert!((0..BYTES).all(|length| Recut::decode(&value[..length]).is_err()));
        }
        assert!(Recut::decode(&[0xff; BYTES]).is_err());
        let backwards = [&[1, 0, 0, 0][..], &[0; 12]].concat();
        assert!(Recut::decode(&backwards).is_err());
    }
}
