//! The value of an attempt: which content its reference is for.

use super::{CHUNK_MAX, ChunkId, Stamp};

/// Bytes of the value.
const BYTES: usize = 43;

/// The value of an attempt at a chunk with this content. No two have the same stamp.
pub(crate) fn encode(id: &ChunkId, stamp: Stamp) -> Vec<u8> {
    [&id.hash[..], &id.length.to_le_bytes()[..3], &stamp.0.to_le_bytes()].concat()
}

/// The content that a value stands for.
pub(crate) fn decode(value: &[u8]) -> Option<ChunkId> {
    let length = u32::from_le_bytes([*value.get(32)?, *value.get(33)?, *value.get(34)?, 0]);
    let is_whole = value.len() == BYTES && (1..=CHUNK_MAX).contains(&length);
    is_whole.then(|| value[..32].try_into().ok().map(|hash| ChunkId { hash, length }))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_back_and_others_do_not() {
        let id = ChunkId { hash: [7; 32], length: CHUNK_MAX };
        let value = encode(&id, Stamp(u64::MAX));
        assert_eq!(decode(&value), Some(id));
        assert!((0..value.len()).all(|bytes| decode(&value[..bytes]).is_none()));
        assert_eq!(decode(&encode(&ChunkId { length: 0, ..id }, Stamp(1))), None);
        assert_eq!(decode(&encode(&ChunkId { length: CHUNK_MAX + 1, ..id }, Stamp(1))), None);
    }
}
