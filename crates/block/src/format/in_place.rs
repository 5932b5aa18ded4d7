//! Leaves that are written in place: over themselves, sector by sector.
//!
//! Only the body of a page is stored. Each sector ends with a seal of its own: the version that
//! wrote it, and a checksum over which leaf this is, since when, where, and the sector's part of
//! the body. So what a crash tore (sectors of several versions, each whole) differs from what
//! rotted (a sector that is not whole), and nothing of another leaf, or of an earlier life of this
//! one, is believed.
//!
//! A torn leaf is a good one: what may be written when is a matter of single entries
//! (`scheme/ordermerge`), and entries of maps and references do not cross sectors. Of fingerprints,
//! every other boundary cuts one: where the versions on both sides differ it counts as missing.

use onefold_core::{Block, Error, Kind, Result, checksum};

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

    /// The version after this one.
    #[must_use]
    pub fn next(self) -> Version {
        Version(self.0.wrapping_add(1) & ((1 << Version::BITS) - 1))
    }

    /// True when it is newer than `other`.
    #[must_use]
    pub fn is_newer(self, other: Version) -> bool {
        let steps = self.0.wrapping_sub(other.0) & ((1 << Version::BITS) - 1);
        steps != 0 && steps < 1 << (Version::BITS - 1)
    }
}

/// The block that holds a version of a leaf.
#[must_use]
pub fn encode(
    identity: &Identity,
    id: PageId,
    pointer: &Pointer,
    version: Version,
    page: &Page,
) -> Box<Block> {
    let mut block = Block::zeroed();
    let parts = page[HEADER_BYTES..].chunks_exact(PART_BYTES);
    for (n, (part, sector)) in parts.zip(block.0.chunks_exact_mut(512)).enumerate() {
        sector[..PART_BYTES].copy_from_slice(part);
        sector[PART_BYTES..].copy_from_slice(&seal(identity, id, pointer, version, n, part));
    }
    block
}

/// Three bytes of version, five of checksum.
fn seal(
    identity: &Identity,
    id: PageId,
    pointer: &Pointer,
    version: Version,
    sector: usize,
    part: &[u8],
) -> [u8; 8] {
    let mut what = [0; 56];
    let numbers = [
        identity.id,
        u64::from(id.table as u8),
        u64::from(id.volume),
        id.index,
        pointer.address.0,
        pointer.birth.0 ^ pointer.checksum << 44,
        (sector as u64) << 32 | u64::from(version.0),
    ];
    what.as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip(numbers)
        .for_each(|(bytes, number)| *bytes = number.to_le_bytes());
    let checksum = checksum::fast(checksum::fast(identity.key, &what), part);
    let mut seal = [0; 8];
    seal[..3].copy_from_slice(&low_bytes::<3>(u64::from(version.0)));
    seal[3..].copy_from_slice(&low_bytes::<5>(checksum));
    seal
}

/// The newest version in a leaf, which its page keeps in memory where others have their header.
#[must_use]
pub fn version(page: &Page) -> Version {
    Version(from_low_bytes(&page[..4]) as u32)
}

/// Lets a page keep its version.
pub fn set_version(page: &mut Page, version: Version) {
    page[..4].copy_from_slice(&version.0.to_le_bytes());
}

/// The page of a leaf that was read, with its version.
///
/// # Errors
/// `Corrupt` when a sector is not whole.
pub fn decode(
    identity: &Identity,
    id: PageId,
    pointer: &Pointer,
    block: &Block,
) -> Result<Box<Page>> {
    let mut versions = [Version::default(); SECTORS];
    let mut page = Box::new([0; 4096]);
    let parts = page[HEADER_BYTES..].chunks_exact_mut(PART_BYTES).zip(block.0.chunks_exact(512));
    for (n, (part, sector)) in parts.enumerate() {
        let (body, tail) = sector.split_at(PART_BYTES);
        versions[n] = Version(from_low_bytes(&tail[..3]) as u32);
        if seal(identity, id, pointer, versions[n], n, body) != tail {
            return Err(Error::new(
                Kind::Corrupt,
                format!("leaf at block {} ({id:?}): sector {n} is damaged", pointer.address),
            ));
        }
        part.copy_from_slice(body);
    }
    let entry = id.table.entry_bytes();
    for n in (1..SECTORS).filter(|&n| versions[n] != versions[n - 1]) {
        let boundary = n * PART_BYTES;
        if !boundary.is_multiple_of(entry) {
            page[HEADER_BYTES + boundary / entry * entry..][..entry].fill(0);
        }
    }
    let newest =
        versions.into_iter().reduce(|one, other| if other.is_newer(one) { other } else { one });
    set_version(&mut page, newest.unwrap_or_default());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use onefold_core::{Algorithm, Pba};

    use super::*;
    use crate::format::{page::Table, record::WindowNumber};

    fn fixture(table: Table) -> (Identity, PageId, Pointer) {
        let identity = Identity::new([3; 16], [9; 32], Algorithm::Blake3);
        let id = PageId { table, volume: 4, level: 0, index: 17 };
        (
            identity,
            id,
            Pointer { address: Pba(99), in_place: true, birth: WindowNumber(5), checksum: 7 },
        )
    }

    fn filled(byte: u8) -> Page {
        let mut page = [byte; 4096];
        page[..HEADER_BYTES].fill(0);
        page
    }

    #[test]
    fn every_entry_of_a_torn_leaf_is_an_old_one_a_new_one_or_missing() {
        for table in [Table::Map, Table::References, Table::Fingerprints] {
            let (identity, id, pointer) = fixture(table);
            let version = |n: u32| encode(&identity, id, &pointer, Version(n), &filled(n as u8));
            let (old, new) = (version(6), version(7));
            for mask in 0..=255u8 {
                let mut torn = old.clone();
                for n in (0..8).filter(|n| mask >> n & 1 == 1) {
                    torn.0[n * 512..(n + 1) * 512].copy_from_slice(&new.0[n * 512..(n + 1) * 512]);
                }
                let page = decode(&identity, id, &pointer, &torn).unwrap();
                assert_eq!(super::version(&page).0, if mask == 0 { 6 } else { 7 });
                let mut missing = 0;
                for (n, entry) in page[HEADER_BYTES..].chunks_exact(table.entry_bytes()).enumerate()
                {
                    let sectors =
                        [n * entry.len() / PART_BYTES, ((n + 1) * entry.len() - 1) / PART_BYTES];
                    let expected =
                        sectors.map(|sector| if mask >> sector & 1 == 1 { 7 } else { 6 });
                    if expected[0] == expected[1] {
                        assert!(
                            entry.iter().all(|&byte| byte == expected[0]),
                            "mask {mask:02x}, {table:?} {n}"
                        );
                    } else {
                        missing += 1;
                        assert!(
                            entry.iter().all(|&byte| byte == 0),
                            "mask {mask:02x}, {table:?} {n}"
                        );
                    }
                }
                assert!(missing <= if table == Table::Fingerprints { 4 } else { 0 });
            }
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let (identity, id, pointer) = fixture(Table::Map);
        let good = encode(&identity, id, &pointer, Version(7), &filled(7));
        for bit in (0..4096 * 8).step_by(7) {
            let mut flipped = good.clone();
            flipped.0[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&identity, id, &pointer, &flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_life_is_not_believed_and_versions_wrap() {
        let (identity, id, pointer) = fixture(Table::Map);
        let block = encode(&identity, id, &pointer, Version(0), &filled(1));
        for other in [
            Pointer { birth: WindowNumber(6), ..pointer },
            Pointer { checksum: 8, ..pointer },
            Pointer { address: Pba(98), ..pointer },
        ] {
            assert!(decode(&identity, id, &other, &block).is_err());
        }
        let last = Version((1 << 24) - 1);
        assert!(last.next().is_newer(last) && !last.is_newer(last.next()));
    }
}
