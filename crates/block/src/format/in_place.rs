//! Leaves that are written in place: two places, versions by turns.
//!
//! Only the body of a page is stored. Each sector of a place ends with a seal of its own: the version that wrote it, and a checksum over
//! which leaf this is, since when, where, and the sector's part of the body. So what a crash tore (sectors of two versions, each whole) differs
//! from what rotted (a sector that is not whole), and nothing of another leaf, or of an earlier life of this one, is believed.
//!
//! Version *v* goes to place *v* mod 2. The newest version of which all sectors are there counts.

use onefold_core::{Block, Error, Kind, Pba, Result, checksum};

use super::{
    Identity,
    page::{HEADER_BYTES, Page, PageId, Pointer},
    record::{from_low_bytes, low_bytes},
};

/// Sectors of a block.
pub const SECTORS: usize = 8;

/// Bytes of the body in a sector; the seal follows.
const PART_BYTES: usize = 504;

const _: () = assert!(PART_BYTES * SECTORS + HEADER_BYTES == 4096);

/// A version number, of which 24 bits are kept: versions that are compared lie close together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Version(pub u32);

impl Version {
    const BITS: u32 = 24;

    /// The version that is `steps` newer.
    #[must_use]
    pub fn plus(self, steps: u32) -> Version {
        Version(self.0.wrapping_add(steps) & ((1 << Version::BITS) - 1))
    }

    /// Its place.
    #[must_use]
    pub fn place(self) -> usize {
        self.0 as usize % 2
    }

    /// True when it is newer than `other`.
    #[must_use]
    pub fn is_newer(self, other: Version) -> bool {
        let steps = self.0.wrapping_sub(other.0) & ((1 << Version::BITS) - 1);
        steps != 0 && steps < 1 << (Version::BITS - 1)
    }
}

/// Where a leaf's versions go.
#[must_use]
pub fn places(pointer: &Pointer) -> [Pba; 2] {
    [pointer.address, pointer.twin]
}

/// The block that holds a version of a leaf.
#[must_use]
pub fn encode(identity: &Identity, id: PageId, pointer: &Pointer, version: Version, page: &Page) -> Box<Block> {
    let mut block = Block::zeroed();
    let parts = page[HEADER_BYTES..].chunks_exact(PART_BYTES);
    for (n, (part, sector)) in parts.zip(block.0.chunks_exact_mut(512)).enumerate() {
        sector[..PART_BYTES].copy_from_slice(part);
        sector[PART_BYTES..].copy_from_slice(&seal(identity, id, pointer, version, n, part));
    }
    block
}

/// Three bytes of version, five of checksum.
fn seal(identity: &Identity, id: PageId, pointer: &Pointer, version: Version, sector: usize, part: &[u8]) -> [u8; 8] {
    let mut what = [0; 56];
    let numbers = [
        identity.id,
        u64::from(id.table as u8),
        u64::from(id.volume),
        id.index,
        places(pointer)[version.place()].0,
        pointer.birth.0 ^ pointer.checksum << 44,
        (sector as u64) << 32 | u64::from(version.0),
    ];
    what.as_chunks_mut::<8>().0.iter_mut().zip(numbers).for_each(|(bytes, number)| *bytes = number.to_le_bytes());
    let checksum = checksum::fast(checksum::fast(identity.key, &what), part);
    let mut seal = [0; 8];
    seal[..3].copy_from_slice(&low_bytes::<3>(u64::from(version.0)));
    seal[3..].copy_from_slice(&low_bytes::<5>(checksum));
    seal
}

/// The versions of a leaf, which its page keeps in memory where others have their header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Versions {
    /// The version that counts.
    pub now: Version,
    /// The version that is written next to the other place: newer than any sector there, so that a torn version and the next one don't mix.
    pub next: Version,
}

impl Versions {
    /// Those that a page in memory keeps.
    #[must_use]
    pub fn of(page: &Page) -> Versions {
        Versions { now: Version(from_low_bytes(&page[..4]) as u32), next: Version(from_low_bytes(&page[4..8]) as u32) }
    }

    /// Lets a page keep them.
    pub fn set(self, page: &mut Page) {
        page[..4].copy_from_slice(&self.now.0.to_le_bytes());
        page[4..8].copy_from_slice(&self.next.0.to_le_bytes());
    }
}

/// Reads a leaf from its two places: its page, with its versions.
///
/// # Errors
/// `Corrupt` when neither version is whole, or when the newer one may be what is damaged.
pub fn decode(identity: &Identity, id: PageId, pointer: &Pointer, blocks: [&Block; 2]) -> Result<Box<Page>> {
    let damaged = |what: &str| {
        let [one, other] = places(pointer);
        Error::new(Kind::Corrupt, format!("leaf at blocks {one} and {other} ({id:?}): {what}"))
    };
    let sectors = [0, 1].map(|place| versions(identity, id, pointer, place, blocks[place]));
    let whole = |place: usize| sectors[place][0].filter(|first| sectors[place].iter().all(|sector| sector == &Some(*first)));
    let version = match (whole(0), whole(1)) {
        (Some(one), Some(other)) if other.is_newer(one) => other,
        (Some(one), _) => one,
        (None, Some(other)) => other,
        (None, None) => return Err(damaged("neither of its two versions is whole")),
    };
    let other = &sectors[1 - version.place()];
    let newest = other.iter().flatten().copied().reduce(|a, b| if b.is_newer(a) { b } else { a });
    // A crash leaves whole sectors. One that is not whole is damage: harmless where all others tell that they are old.
    if other.iter().any(Option::is_none) && newest.is_none_or(|newest| newest.is_newer(version)) {
        return Err(damaged("one of its two versions is damaged, perhaps the newer one"));
    }
    let mut next = version.plus(1);
    if let Some(newest) = newest.filter(|newest| newest.is_newer(version)) {
        next = newest.plus(2);
    }
    let mut page = Box::new([0; 4096]);
    let parts = blocks[version.place()].0.chunks_exact(512);
    page[HEADER_BYTES..].chunks_exact_mut(PART_BYTES).zip(parts).for_each(|(part, sector)| part.copy_from_slice(&sector[..PART_BYTES]));
    Versions { now: version, next }.set(&mut page);
    Ok(page)
}

/// The version of each sector of a place, as far as it is whole.
fn versions(identity: &Identity, id: PageId, pointer: &Pointer, place: usize, block: &Block) -> [Option<Version>; SECTORS] {
    let mut versions = [None; SECTORS];
    for (n, (sector, found)) in block.0.chunks_exact(512).zip(&mut versions).enumerate() {
        let (part, tail) = sector.split_at(PART_BYTES);
        let version = Version(from_low_bytes(&tail[..3]) as u32);
        *found = (version.place() == place && seal(identity, id, pointer, version, n, part) == tail).then_some(version);
    }
    versions
}

#[cfg(test)]
mod tests {
    use onefold_core::Algorithm;

    use super::*;
    use crate::format::{page::Table, record::WindowNumber};

    fn fixture() -> (Identity, PageId, Pointer) {
        let identity = Identity::new([3; 16], [9; 32], Algorithm::Blake3);
        let id = PageId { table: Table::Map, volume: 4, level: 0, index: 17 };
        (identity, id, Pointer { address: Pba(99), twin: Pba(120), birth: WindowNumber(5), checksum: 7 })
    }

    fn filled(byte: u8) -> Page {
        let mut page = [byte; 4096];
        page[..HEADER_BYTES].fill(0);
        page
    }

    #[test]
    fn every_tear_leaves_the_version_before_and_a_version_that_does_not_mix_with_it() {
        let (identity, id, pointer) = fixture();
        let version = |n: u32| encode(&identity, id, &pointer, Version(n), &filled(n as u8));
        let (durable, old, new) = (version(6), version(5), version(7));
        for mask in 0..=255u8 {
            let mut torn = old.clone();
            for n in (0..8).filter(|n| mask >> n & 1 == 1) {
                torn.0[n * 512..(n + 1) * 512].copy_from_slice(&new.0[n * 512..(n + 1) * 512]);
            }
            let page = decode(&identity, id, &pointer, [&durable, &torn]).unwrap();
            let versions = Versions::of(&page);
            let expected = if mask == 255 { (7, 8) } else { (6, if mask == 0 { 7 } else { 9 }) };
            assert_eq!((versions.now.0, versions.next.0), expected, "mask {mask:02x}");
            assert_eq!(page[HEADER_BYTES..], filled(expected.0 as u8)[HEADER_BYTES..]);
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed_unless_it_is_in_an_old_version() {
        let (identity, id, pointer) = fixture();
        let version = |n: u32| encode(&identity, id, &pointer, Version(n), &filled(n as u8));
        let (old, new) = (version(6), version(7));
        for bit in (0..4096 * 8).step_by(7) {
            let mut flipped = new.clone();
            flipped.0[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&identity, id, &pointer, [&old, &flipped]).is_err(), "bit {bit}");
            let mut flipped = old.clone();
            flipped.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&identity, id, &pointer, [&flipped, &new]).map(|page| page[100]).ok(), Some(7), "bit {bit}");
        }
    }

    #[test]
    fn another_life_is_not_believed_and_versions_wrap() {
        let (identity, id, pointer) = fixture();
        let block = encode(&identity, id, &pointer, Version(0), &filled(1));
        for other in
            [Pointer { birth: WindowNumber(6), ..pointer }, Pointer { checksum: 8, ..pointer }, Pointer { address: Pba(98), ..pointer }]
        {
            assert!(decode(&identity, id, &other, [&block, &block]).is_err());
        }
        let last = Version((1 << 24) - 1);
        assert!(last.plus(1).is_newer(last) && !last.is_newer(last.plus(1)));
        let blocks = [encode(&identity, id, &pointer, last.plus(1), &filled(2)), encode(&identity, id, &pointer, last, &filled(1))];
        assert_eq!(decode(&identity, id, &pointer, [&blocks[0], &blocks[1]]).unwrap()[100], 2);
    }
}
