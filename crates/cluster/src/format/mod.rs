//! The bytes of names, keys and values; the tables are in `docs/cluster-format.md`.
//!
//! Keys hold no zero byte, since the clients of some stores end a key there. Keys sort in the order
//! of the offsets and numbers in them.
//!
//! *Invariant:* a decoder takes hostile bytes and gives a typed value or `Corrupt`; it never
//! panics.

pub(crate) mod attempt;
pub mod catalogue;
pub mod entry;
pub mod key;
pub mod moving;
pub mod recut;

use std::fmt;

use onefold_core::{Error, Kind, hex_digits, object::ObjectName};

/// Bytes of a block: one bit of a mask.
pub const BLOCK: u32 = 4096;

/// Most bytes of a chunk: a mask has 16 bits.
pub const CHUNK_MAX: u32 = 16 * BLOCK;

/// Most bytes of a metadata object.
pub const OBJECT_MAX: u32 = 4 << 20;

/// Most entries of a metadata object.
pub const ENTRIES_MAX: usize = 256;

/// Most pending drops of a metadata object.
pub const PENDING_MAX: usize = 256;

/// More keys than a metadata object ever has: flips that were decided while there was room may add
/// to the pending drops, 64 each.
pub(crate) const MAP_PAGE: usize = 900;

/// Made from a session's number and a counter of the session; never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Bits of the counter.
    pub(crate) const COUNTER_BITS: u32 = 40;

    /// The number of the session that made it.
    #[must_use]
    pub fn session(self) -> u64 {
        self.0 >> Stamp::COUNTER_BITS
    }
}

/// A metadata object: a piece of a volume, or of an object that was put. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The volume, or the object that was put; 40 bits.
    pub volume: u64,
    /// The number of the piece; 40 bits.
    pub index: u64,
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.volume, self.index)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A hexadecimal number as names have them: each has one spelling, or what is listed under another
/// one could not be found or removed.
fn hexadecimal(text: &str) -> Option<u64> {
    let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.bytes().all(digit).then(|| u64::from_str_radix(text, 16).ok())?
}

/// One of ten digits.
pub(crate) fn ten_digits(text: &str) -> Option<u64> {
    (text.len() == 10).then(|| hexadecimal(text))?
}

impl ObjectId {
    /// The object's name in the store.
    #[must_use]
    pub fn name(self) -> ObjectName {
        ObjectName::metadata(format!("o.{:010x}.{:010x}", self.volume, self.index))
    }

    /// The object that a name stands for.
    #[must_use]
    pub fn parse(name: &str) -> Option<ObjectId> {
        let (volume, index) = name.strip_prefix("o.")?.split_once('.')?;
        Some(ObjectId { volume: ten_digits(volume)?, index: ten_digits(index)? })
    }

    pub(crate) fn bytes(self) -> [u8; 10] {
        let mut bytes = [0; 10];
        bytes[..5].copy_from_slice(&self.volume.to_be_bytes()[3..]);
        bytes[5..].copy_from_slice(&self.index.to_be_bytes()[3..]);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ObjectId> {
        let number =
            |part: &[u8]| part.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        (bytes.len() == 10)
            .then(|| ObjectId { volume: number(&bytes[..5]), index: number(&bytes[5..]) })
    }
}

/// A chunk: the hash of its bytes and their number. The name is derived from the content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// Keyed hash of the bytes.
    pub hash: [u8; 32],
    /// How many bytes.
    pub length: u32,
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:02x}{:02x}{:02x}{:02x}+{}",
            self.hash[0], self.hash[1], self.hash[2], self.hash[3], self.length
        )
    }
}

/// One of the copies of a chunk; a chunk has one, unless very many refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// The chunk.
    pub id: ChunkId,
    /// The number of the copy.
    pub copy: u8,
}

impl Chunk {
    /// The name of its object; with erasure code also of the object that holds its references.
    #[must_use]
    pub fn name(&self) -> String {
        let hash = hex_digits(self.id.hash);
        format!("c.0.{hash}.{:x}.{:x}", self.id.length, self.copy)
    }

    /// The chunk that a name stands for.
    #[must_use]
    pub fn parse(name: &str) -> Option<Chunk> {
        let mut parts = name.strip_prefix("c.0.")?.split('.');
        let (text, length, copy) = (parts.next()?, parts.next()?, parts.next()?);
        if text.len() != 64 || parts.next().is_some() {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = hexadecimal(text.get(at..at + 2)?)? as u8;
        }
        let plain = |text: &str| {
            let number = hexadecimal(text)?;
            (text.len() == 1 || !text.starts_with('0')).then_some(number)
        };
        let length = u32::try_from(plain(length)?).ok();
        let length = length.filter(|length| (1..=CHUNK_MAX).contains(length))?;
        Some(Chunk { id: ChunkId { hash, length }, copy: u8::try_from(plain(copy)?).ok()? })
    }
}

/// The entry that refers to a chunk, with the stamp that it had when it was dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The metadata object.
    pub object: ObjectId,
    /// The offset of the entry in it.
    pub offset: u32,
    /// The dirty entry's stamp.
    pub stamp: Stamp,
}

pub(crate) fn corrupt(what: impl fmt::Display) -> Error {
    Error::new(Kind::Corrupt, what.to_string())
}

/// Least bytes of a chunk for this average, except for the last chunk of a run.
pub(crate) const fn least_cut(average: u32) -> u32 {
    let blocks = average / BLOCK * 3 / 4;
    if blocks == 0 { BLOCK } else { blocks * BLOCK }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_09_a_name_in_another_spelling_is_none() {
        let object = ObjectId { volume: 0xab, index: 0xc };
        assert_eq!(ObjectId::parse(&object.name().name), Some(object));
        for name in [
            "o.00000000AB.000000000c",
            "o.+0000000ab.000000000c",
            "o.00000000ab.+00000000c",
            "o.0000000ab.000000000c",
        ] {
            assert_eq!(ObjectId::parse(name), None, "{name}");
        }
        let chunk = Chunk { id: ChunkId { hash: [0xab; 32], length: 0xbc }, copy: 10 };
        let hash = "ab".repeat(32);
        assert_eq!(Chunk::parse(&format!("c.0.{hash}.bc.a")), Some(chunk));
        for (hash, rest) in [
            ("AB".repeat(32), "bc.a"),
            ("+a".repeat(32), "bc.a"),
            (hash.clone(), "BC.a"),
            (hash.clone(), "0bc.a"),
            (hash.clone(), "+bc.a"),
            (hash.clone(), "bc.0a"),
            (hash.clone(), "bc."),
            (hash, "100000000000000bc.a"),
        ] {
            assert_eq!(Chunk::parse(&format!("c.0.{hash}.{rest}")), None, "{hash} {rest}");
        }
    }
}
