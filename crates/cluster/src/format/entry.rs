//! Entries of the chunk map and pending drops.

use onefold_core::{Result, checksum};

use super::{BLOCK, CHUNK_MAX, Chunk, ChunkId, ObjectId, Reference, Stamp, corrupt};

/// Bytes of an entry's value without sums.
pub const ENTRY_BYTES: usize = 59;

/// Bytes of a sum.
const SUM_BYTES: usize = 8;

/// Blocks of the largest chunk.
const BLOCKS_MAX: usize = (CHUNK_MAX / BLOCK) as usize;

/// Bytes of a pending drop's value.
const PENDING_BYTES: usize = 40;

const FORMAT: u8 = 0x10;
const DIRTY: u8 = 1;
const BASED: u8 = 2;
const SUMMED: u8 = 4;

/// The sums of the blocks of a chunk that stand in the object, in a sealed store: 64 bits of a keyed
/// hash of each, which prove the block and seal it. The sum of a block that is a hole is 0. A plain
/// store has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(Option<Box<[u64; BLOCKS_MAX]>>);

impl Sums {
    /// No sums.
    pub const NONE: Sums = Sums(None);

    /// The sum of a block of the chunk; 0 when it has none.
    #[must_use]
    pub fn get(&self, block: u32) -> u64 {
        self.0.as_ref().and_then(|sums| sums.get(block as usize).copied()).unwrap_or(0)
    }

    /// Sets the sum of a block of the chunk.
    pub(crate) fn set(&mut self, block: u32, sum: u64) {
        let sums = self.0.get_or_insert_default();
        if let Some(place) = sums.get_mut(block as usize) {
            *place = sum;
        }
    }

    /// Those of the blocks of a mask; none of an empty one.
    pub(crate) fn within(mut self, mask: u16) -> Sums {
        if mask == 0 {
            return Sums::NONE;
        }
        let sums = self.0.get_or_insert_default();
        for (block, sum) in sums.iter_mut().enumerate() {
            *sum *= u64::from(mask >> block & 1);
        }
        self
    }
}

/// The chunk that an entry names, and the stamp of its reference there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The chunk.
    pub chunk: Chunk,
    /// The stamp that the entry had when it was dirty.
    pub stamp: Stamp,
}

/// An entry of the chunk map: blocks whose mask bit is set stand in the object, the others come
/// from the base, or are zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Bytes of the chunk.
    pub length: u32,
    /// The chunk must be deduplicated.
    pub dirty: bool,
    /// Blocks that stand in the object.
    pub mask: u16,
    /// The chunk that the other blocks come from.
    pub base: Option<Base>,
    /// The entry's own stamp: no entry has the same one twice.
    pub stamp: Stamp,
    /// The sums of the blocks that stand in the object of a sealed store.
    pub sums: Sums,
}

/// The checksum of an entry's value, with the place that it is stored for.
fn check(object: ObjectId, offset: u32, value: &[u8]) -> [u8; 4] {
    let place = [&object.bytes()[..], &offset.to_be_bytes(), value].concat();
    (checksum::fast(0, &place) as u32).to_le_bytes()
}

impl Entry {
    /// The mask of all blocks of a chunk.
    #[must_use]
    pub fn full_mask(length: u32) -> u16 {
        ((1u32 << length.div_ceil(BLOCK)) - 1) as u16
    }

    /// True when every block of the chunk is in the metadata object.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.mask == Entry::full_mask(self.length)
    }

    /// The reference that keeps its base.
    #[must_use]
    pub fn reference(&self, object: ObjectId, offset: u32) -> Option<(Chunk, Reference)> {
        self.base.map(|base| (base.chunk, Reference { object, offset, stamp: base.stamp }))
    }

    /// The value for a place.
    #[must_use]
    pub fn encode(&self, object: ObjectId, offset: u32) -> Vec<u8> {
        let mut value = Vec::with_capacity(ENTRY_BYTES);
        value.push(
            FORMAT
                | if self.dirty { DIRTY } else { 0 }
                | if self.base.is_some() { BASED } else { 0 }
                | if self.sums.0.is_some() { SUMMED } else { 0 },
        );
        value.extend(&self.length.to_le_bytes()[..3]);
        value.push(self.base.map_or(0, |base| base.chunk.copy));
        value.extend(self.mask.to_le_bytes());
        value.extend(self.base.map_or([0; 32], |base| base.chunk.id.hash));
        value.extend(self.base.map_or(0, |base| base.stamp.0).to_le_bytes());
        value.extend(self.stamp.0.to_le_bytes());
        if let Some(sums) = &self.sums.0 {
            let standing = sums.iter().enumerate().filter(|(block, _)| self.mask >> block & 1 == 1);
            standing.for_each(|(_, sum)| value.extend(sum.to_le_bytes()));
        }
        value.extend(check(object, offset, &value));
        value
    }

    /// The entry of a value.
    ///
    /// # Errors
    /// `Corrupt`, also for a value of another place.
    pub fn decode(object: ObjectId, offset: u32, value: &[u8]) -> Result<Entry> {
        let bad =
            || corrupt(format_args!("the map entry at {offset} of object {object} is damaged"));
        let checked = value.len().checked_sub(4).filter(|_| value.len() >= ENTRY_BYTES);
        let (checked, sum) = checked.map(|at| value.split_at(at)).ok_or_else(bad)?;
        if sum != check(object, offset, checked) {
            return Err(bad());
        }
        let length = u32::from_le_bytes([value[1], value[2], value[3], 0]);
        let number =
            |at: usize| value[at..at + 8].try_into().map(u64::from_le_bytes).map_err(|_| bad());
        if value[0] & !(DIRTY | BASED | SUMMED) != FORMAT || !(1..=CHUNK_MAX).contains(&length) {
            return Err(bad());
        }
        let hash = value[7..39].try_into().map_err(|_| bad())?;
        let chunk = Chunk { id: ChunkId { hash, length }, copy: value[4] };
        let base = if value[0] & BASED == 0 {
            None
        } else {
            Some(Base { chunk, stamp: Stamp(number(39)?) })
        };
        let mask = u16::from_le_bytes([value[5], value[6]]);
        if mask & !Entry::full_mask(length) != 0 {
            return Err(bad());
        }
        let mut sums = Sums::NONE;
        let mut at = ENTRY_BYTES - 4;
        if value[0] & SUMMED != 0 {
            if mask == 0 {
                return Err(bad());
            }
            for block in (0..16).filter(|block| mask >> block & 1 == 1) {
                if at + SUM_BYTES > checked.len() {
                    return Err(bad());
                }
                sums.set(block, number(at)?);
                at += SUM_BYTES;
            }
        }
        if at != checked.len() {
            return Err(bad());
        }
        let (dirty, stamp) = (value[0] & DIRTY != 0, Stamp(number(47)?));
        Ok(Entry { length, dirty, mask, base, stamp, sums })
    }
}

/// The value of a pending drop: the chunk whose reference must go.
#[must_use]
pub fn encode_pending(object: ObjectId, offset: u32, chunk: &Chunk) -> Vec<u8> {
    let mut value = chunk.id.hash.to_vec();
    value.extend(&chunk.id.length.to_le_bytes()[..3]);
    value.push(chunk.copy);
    value.extend(check(object, offset, &value));
    value
}

/// The chunk of a pending drop.
///
/// # Errors
/// `Corrupt`, also for a value of another place.
pub fn decode_pending(object: ObjectId, offset: u32, value: &[u8]) -> Result<Chunk> {
    let bad = || corrupt(format_args!("a pending drop at {offset} of object {object} is damaged"));
    if value.len() != PENDING_BYTES || value[36..] != check(object, offset, &value[..36]) {
        return Err(bad());
    }
    let hash = value[..32].try_into().map_err(|_| bad())?;
    let length = u32::from_le_bytes([value[32], value[33], value[34], 0]);
    if !(1..=CHUNK_MAX).contains(&length) {
        return Err(bad());
    }
    Ok(Chunk { id: ChunkId { hash, length }, copy: value[35] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let chunk = Chunk { id: ChunkId { hash: [7; 32], length: 32768 }, copy: 3 };
        Entry {
            length: 32768,
            dirty: true,
            mask: 0x81,
            base: Some(Base { chunk, stamp: Stamp(9) }),
            stamp: Stamp(1 << 40),
            sums: Sums::NONE,
        }
    }

    #[test]
    fn the_sums_of_standing_blocks_come_back() {
        let object = ObjectId { volume: 5, index: 6 };
        let mut sums = Sums::NONE;
        (0..16).for_each(|block| sums.set(block, 100 + u64::from(block)));
        let summed = Entry { sums: sums.within(0x81), ..entry() };
        let value = summed.encode(object, 0);
        assert_eq!(value.len(), ENTRY_BYTES + 2 * SUM_BYTES);
        let found = Entry::decode(object, 0, &value).unwrap();
        assert_eq!(found, summed);
        assert_eq!([0, 1, 7].map(|block| found.sums.get(block)), [100, 0, 107]);
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 4;
            assert!(Entry::decode(object, 0, &damaged).is_err(), "byte {at}");
            assert!(Entry::decode(object, 0, &value[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn an_entry_comes_back_at_its_place_only() {
        let (object, entry) = (ObjectId { volume: 5, index: 6 }, entry());
        let value = entry.encode(object, 32768);
        assert_eq!(value.len() + super::super::key::entry(32768).len(), 62);
        assert_eq!(Entry::decode(object, 32768, &value).unwrap(), entry);
        assert!(Entry::decode(object, 0, &value).is_err());
        assert!(Entry::decode(ObjectId { volume: 5, index: 7 }, 32768, &value).is_err());
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 4;
            assert!(Entry::decode(object, 32768, &damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_pending_drop_comes_back() {
        let object = ObjectId { volume: 5, index: 6 };
        let chunk = entry().base.unwrap().chunk;
        let value = encode_pending(object, 0, &chunk);
        assert_eq!(decode_pending(object, 0, &value).unwrap(), chunk);
        assert!(
            decode_pending(object, 4096, &value).is_err()
                && decode_pending(object, 0, &value[1..]).is_err()
        );
    }
}
