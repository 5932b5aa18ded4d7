//! Values of a rename under way, in the shards of the two names.

use onefold_core::Result;

use super::{
    catalogue::{Named, What},
    corrupt,
};

/// Added to the kind of a name's value: it is arriving, or it left.
const MOVING: u8 = 2;

/// Bytes before the other name.
const HEAD_BYTES: usize = 33;

/// Something that is getting another name: under the new name its *arrival*, in the shard of the old
/// name its *departure*. They differ in nothing but the name in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The value of the new name once it is renamed.
    pub named: Named,
    /// The old name, in the arrival; the new one, in the departure.
    pub other: String,
}

impl Moving {
    /// True for the value of a name to which something is arriving.
    pub(crate) fn is_one(value: &[u8]) -> bool {
        value.first().is_some_and(|kind| (1 + MOVING..=2 + MOVING).contains(kind))
    }

    /// The value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = self.named.encode_plain();
        value[0] += MOVING;
        value.extend(self.named.moves.to_le_bytes());
        value.extend(self.other.as_bytes());
        value
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// `Corrupt`: the value is damaged.
    pub fn decode(value: &[u8]) -> Result<Moving> {
        let bad = || corrupt("a name in the catalogue that is being changed is damaged");
        let (head, other) = value.split_at_checked(HEAD_BYTES).ok_or_else(bad)?;
        if !Moving::is_one(head) {
            return Err(bad());
        }
        let mut head = head.to_vec();
        head[0] -= MOVING;
        let (mut named, moves) = Named::decode_plain(&head)?;
        named.moves = u64::from_le_bytes(moves.try_into().map_err(|_| bad())?);
        let other = std::str::from_utf8(other).map_err(|_| bad())?.to_owned();
        let moving = Moving { named, other };
        if moving.other.is_empty()
            || moving.before().is_none()
            || named.what == What::Volume && named.moves > 0
        {
            return Err(bad());
        }
        Ok(moving)
    }

    /// The value of the old name, before it was renamed.
    pub(crate) fn before(&self) -> Option<Named> {
        Some(match self.named.what {
            What::Volume => Named { pieces: self.named.pieces.checked_sub(1)?, ..self.named },
            What::Put => Named { moves: self.named.moves.checked_sub(1)?, ..self.named },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moving_comes_back_and_is_no_name() {
        for (what, pieces, moves) in [(What::Volume, 1, 0), (What::Put, 7, 3)] {
            let named = Named { what, id: 5, bytes: 4096, pieces, moves };
            let moving = Moving { named, other: "öld".into() };
            let value = moving.encode();
            assert_eq!(Moving::decode(&value).unwrap(), moving);
            assert_eq!(moving.before().unwrap().counted().unwrap(), named);
            assert!(Moving::is_one(&value) && Named::decode(&value).is_err());
            assert!(!Moving::is_one(&named.encode()) && Moving::decode(&named.encode()).is_err());
            assert!((0..=33).all(|length| Moving::decode(&value[..length]).is_err()));
        }
        let never = Named { what: What::Put, id: 5, bytes: 6, pieces: 7, moves: 0 };
        assert!(Moving::decode(&Moving { named: never, other: "a".into() }.encode()).is_err());
    }
}
