//! Keys.

use super::{ObjectId, Reference, Stamp};

/// The list stamp of a metadata object: there while the object is on the dirty list.
pub const LISTED: &[u8] = b"L";

/// The stamp of the last long discard that reached a metadata object.
pub const DISCARDED: &[u8] = b"T";

/// How the chunks of a piece of a volume are cut by their content, see [`super::recut`].
pub const RECUT: &[u8] = b"R";

/// The copy of an object from the layer below is under way, with the stamp of its references.
pub const COPYING: &[u8] = b"U";

/// An object that layers above may look for is being erased.
pub const ERASED: &[u8] = b"X";

/// The state of the references of a chunk in an erasure-coded pool.
pub const STATE: &[u8] = b"S";

/// The attribute of a chunk object: codec and lengths of the data.
pub(crate) const HEAD: &str = "h";

const PENDING: u8 = b'P';

/// Digits to the base 255, each and one.
fn digits<const N: usize>(mut number: u64) -> [u8; N] {
    let mut key = [0; N];
    for digit in key.iter_mut().rev() {
        *digit = (number % 255) as u8 + 1;
        number /= 255;
    }
    key
}

fn number(key: &[u8]) -> Option<u64> {
    key.iter().try_fold(0u64, |number, digit| {
        number.checked_mul(255)?.checked_add(u64::from(digit.checked_sub(1)?))
    })
}

/// Seven bits a byte, the highest one set.
pub(crate) fn sevens(bytes: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity((bytes.len() * 8).div_ceil(7));
    let (mut have, mut bits) = (0u32, 0u32);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        have += 8;
        while have >= 7 {
            have -= 7;
            key.push(0x80 | (bits >> have & 0x7f) as u8);
        }
    }
    if have > 0 {
        key.push(0x80 | (bits << (7 - have) & 0x7f) as u8);
    }
    key
}

/// The `length` bytes that [`sevens`] was given.
pub(crate) fn unsevens(key: &[u8], length: usize) -> Option<Vec<u8>> {
    if key.len() != (length * 8).div_ceil(7) || key.iter().any(|byte| *byte < 0x80) {
        return None;
    }
    let mut bytes = Vec::with_capacity(length);
    let (mut have, mut bits) = (0u32, 0u32);
    for byte in key {
        bits = bits << 7 | u32::from(byte & 0x7f);
        have += 7;
        if have >= 8 {
            have -= 8;
            bytes.push((bits >> have) as u8);
        }
    }
    bytes.truncate(length);
    // Each key has one spelling: what is decoded from another one could not be removed by its key.
    (bits & ((1 << have) - 1) == 0).then_some(bytes)
}

/// The key of an entry.
#[must_use]
pub fn entry(offset: u32) -> Vec<u8> {
    digits::<3>(offset.into()).to_vec()
}

/// The offset that a key of an entry stands for.
#[must_use]
pub fn offset(key: &[u8]) -> Option<u32> {
    if key.len() == 3 && key[0] < b'L' { number(key).map(|offset| offset as u32) } else { None }
}

/// The key of a pending drop: the entry's offset and the stamp of the reference.
#[must_use]
pub fn pending(offset: u32, stamp: Stamp) -> Vec<u8> {
    [&[PENDING][..], &digits::<3>(offset.into()), &sevens(&stamp.0.to_be_bytes())].concat()
}

/// Decodes the key of a pending drop.
#[must_use]
pub fn parse_pending(key: &[u8]) -> Option<(u32, Stamp)> {
    let rest = key.strip_prefix(&[PENDING])?;
    let (offset, stamp) = rest.split_at_checked(3)?;
    let stamp: [u8; 8] = unsevens(stamp, 8)?.try_into().ok()?;
    Some((number(offset)? as u32, Stamp(u64::from_be_bytes(stamp))))
}

/// The key of a reference: pool, object, offset and stamp.
#[must_use]
pub fn reference(reference: &Reference) -> Vec<u8> {
    let mut bytes = [0; 22];
    bytes[1..11].copy_from_slice(&reference.object.bytes());
    bytes[11..14].copy_from_slice(&reference.offset.to_be_bytes()[1..]);
    bytes[14..].copy_from_slice(&reference.stamp.0.to_be_bytes());
    sevens(&bytes)
}

/// Decodes the key of a reference.
#[must_use]
pub fn parse_reference(key: &[u8]) -> Option<Reference> {
    let bytes = unsevens(key, 22)?;
    if bytes[0] != 0 {
        return None;
    }
    let offset = bytes[11..14].iter().fold(0, |offset, byte| offset << 8 | u32::from(*byte));
    let stamp = Stamp(u64::from_be_bytes(bytes[14..].try_into().ok()?));
    Some(Reference { object: ObjectId::from_bytes(&bytes[1..11])?, offset, stamp })
}

/// The key of an attempt: the session that makes it, and the reference.
#[must_use]
pub fn attempt(session: u64, reference: &Reference) -> Vec<u8> {
    let mut bytes = [0; 25];
    bytes[..3].copy_from_slice(&session.to_be_bytes()[5..]);
    bytes[3..13].copy_from_slice(&reference.object.bytes());
    bytes[13..17].copy_from_slice(&reference.offset.to_be_bytes());
    bytes[17..].copy_from_slice(&reference.stamp.0.to_be_bytes());
    sevens(&bytes)
}

/// The reference that a key of an attempt is about.
#[must_use]
pub fn parse_attempt(key: &[u8]) -> Option<Reference> {
    let bytes = unsevens(key, 25)?;
    let offset = u32::from_be_bytes(bytes[13..17].try_into().ok()?);
    let stamp = Stamp(u64::from_be_bytes(bytes[17..].try_into().ok()?));
    Some(Reference { object: ObjectId::from_bytes(&bytes[3..13])?, offset, stamp })
}

/// The number of the session that made an attempt.
#[must_use]
pub fn session_of_attempt(key: &[u8]) -> Option<u64> {
    let bytes = unsevens(key, 25)?;
    Some(bytes[..3].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// A key of the dirty list: object and list stamp.
#[must_use]
pub fn listed(object: ObjectId, stamp: Stamp) -> Vec<u8> {
    sevens(&[&object.bytes()[..], &stamp.0.to_be_bytes()].concat())
}

/// Decodes a key of the dirty list.
#[must_use]
pub fn parse_listed(key: &[u8]) -> Option<(ObjectId, Stamp)> {
    let bytes = unsevens(key, 18)?;
    Some((
        ObjectId::from_bytes(&bytes[..10])?,
        Stamp(u64::from_be_bytes(bytes[10..].try_into().ok()?)),
    ))
}

/// A key that begins with `tag` and goes on with a number.
#[must_use]
pub fn numbered(tag: u8, number: u64) -> Vec<u8> {
    [&[tag][..], &sevens(&number.to_be_bytes())].concat()
}

/// The number in a key that [`numbered`] made with this tag.
#[must_use]
pub fn parse_numbered(tag: u8, key: &[u8]) -> Option<u64> {
    let bytes: [u8; 8] = unsevens(key.strip_prefix(&[tag])?, 8)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_and_hold_no_zero_byte() {
        let objects =
            [ObjectId { volume: 0, index: 0 }, ObjectId { volume: (1 << 40) - 1, index: 1 << 39 }];
        for (object, (at, stamp)) in objects
            .into_iter()
            .zip([(0, Stamp(0)), (super::super::OBJECT_MAX - 1, Stamp(u64::MAX))])
        {
            let whole = Reference { object, offset: at, stamp };
            let keys = [
                entry(at),
                pending(at, stamp),
                reference(&whole),
                listed(object, stamp),
                numbered(b'B', stamp.0),
            ];
            assert!(keys.iter().all(|key| !key.contains(&0)));
            assert_eq!(offset(&keys[0]), Some(at));
            assert_eq!(parse_pending(&keys[1]), Some((at, stamp)));
            assert_eq!(parse_reference(&keys[2]), Some(whole));
            assert_eq!(parse_listed(&keys[3]), Some((object, stamp)));
            let attempt = attempt((1 << 24) - 1, &whole);
            assert!(
                !attempt.contains(&0)
                    && parse_attempt(&attempt) == Some(whole)
                    && parse_attempt(&keys[2]).is_none()
            );
            assert_eq!(parse_numbered(b'B', &keys[4]), Some(stamp.0));
            assert!(keys[2].len() <= 28);
            assert!(offset(&keys[1]).is_none() && offset(LISTED).is_none());
        }
    }

    #[test]
    fn rule_09_a_key_in_another_spelling_is_none() {
        let object = ObjectId { volume: 5, index: 6 };
        let whole = Reference { object, offset: 4096, stamp: Stamp(7) };
        // Bits behind the number that the key stands for.
        for bit in 0..3 {
            let other = |mut key: Vec<u8>| {
                *key.last_mut().unwrap() ^= 1 << bit;
                key
            };
            assert_eq!(parse_pending(&other(pending(4096, Stamp(7)))), None);
            assert_eq!(parse_numbered(b'D', &other(numbered(b'D', 7))), None);
            assert_eq!(parse_reference(&other(reference(&whole))), None);
            assert_eq!(parse_attempt(&other(attempt(3, &whole))), None);
            assert_eq!(parse_listed(&other(listed(object, Stamp(7)))), None);
        }
    }

    #[test]
    fn keys_sort_like_what_they_name() {
        let offsets = [0u32, 1, 254, 255, 256, 65_025, 4096 * 700];
        assert!(offsets.windows(2).all(|pair| entry(pair[0]) < entry(pair[1])));
        assert!(entry(super::super::OBJECT_MAX) < LISTED.to_vec());
    }
}
