//! The leftover table (`leftover = table`): records that found no room in compressed blocks, in
//! pages that are written in place.
//!
//! A page has eight sectors of 512 bytes, each a unit of its own: header (40 bytes) and eleven
//! records, with a checksum keyed with the store and the sector's own place, so that a page torn at
//! any sectors holds nothing but whole sectors of one version or the other. It has two places; a
//! version goes to the one that does not hold the last durable version. All sectors of a version
//! bear its window.

use onefold_core::{Block, Lba, Pba, VolumeId, checksum};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    Identity,
    record::{self, Change, Record, WindowNumber},
};

/// Bytes of a sector: what a disk writes in one piece.
pub const SECTOR_BYTES: usize = 512;

/// Sectors of a page.
pub const SECTORS: usize = 4096 / SECTOR_BYTES;

/// Bytes of a sector's header.
pub const HEADER_BYTES: usize = 40;

/// Records of a sector.
pub const PER_SECTOR: usize = (SECTOR_BYTES - HEADER_BYTES) / record::BYTES;

/// Records of a page.
pub const PER_PAGE: usize = SECTORS * PER_SECTOR;

/// Addresses that share a page: neighbours that are written together cost one page write.
const SPAN: u64 = 64;

const MAGIC: u32 = 0x3174_464f; // "OFt1"

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: U32,
    records: U16,
    sector: U16,
    window: U64,
    durable: U64,
    carriers: U64,
    checksum: U64,
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES && PER_SECTOR == 11);

/// The page, of `pages`, that keeps the leftover record of an address.
#[must_use]
pub fn page_of(volume: VolumeId, lba: Lba, pages: u32) -> u32 {
    (mix((u64::from(volume.0) << 48) ^ (lba.0 / SPAN)) % u64::from(pages)) as u32
}

/// Spreads 64 bits; part of the format.
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let n = (n ^ n >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    n ^ n >> 33
}

/// A sector as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sector {
    /// The window that wrote this version of the page.
    pub window: WindowNumber,
    /// All windows up to this one were durable when it was written.
    pub durable: WindowNumber,
    /// The last window until then that had carriers.
    pub carriers: WindowNumber,
    /// Its records, each of this window or an earlier one.
    pub records: Vec<Record>,
}

/// The header of a version of a page.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The window that writes it.
    pub window: WindowNumber,
    /// All windows up to this one are durable.
    pub durable: WindowNumber,
    /// The last window until now that had carriers.
    pub carriers: WindowNumber,
}

/// Builds the version of a page that is to be written to `at`: its records, in the order in which
/// they fill the sectors.
#[must_use]
pub fn encode(identity: &Identity, at: Pba, header: &Header, records: &[Record]) -> Box<Block> {
    assert!(records.len() <= PER_PAGE, "a page has room for its records");
    let mut block = Block::zeroed();
    // Spread evenly: a torn page loses as little as possible.
    let mut rest = records;
    for (n, sector) in block.0.chunks_exact_mut(SECTOR_BYTES).enumerate() {
        let (part, others) = rest.split_at(rest.len().div_ceil(SECTORS - n));
        rest = others;
        let mut raw = Raw {
            magic: U32::new(MAGIC),
            records: U16::new(part.len() as u16),
            sector: U16::new(n as u16),
            window: U64::new(header.window.0),
            durable: U64::new(header.durable.0),
            carriers: U64::new(header.carriers.0),
            checksum: U64::new(0),
        };
        sector[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        for (record, at) in part.iter().zip(sector[HEADER_BYTES..].chunks_exact_mut(record::BYTES))
        {
            at.copy_from_slice(&record.encode());
        }
        raw.checksum = U64::new(checksum_of(identity, at, sector));
        sector[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    }
    block
}

/// The sectors of the block read from `at`; `None` for those that are not this store's, of this
/// place, and whole.
#[must_use]
pub fn decode(identity: &Identity, at: Pba, block: &Block) -> [Option<Sector>; SECTORS] {
    let mut sectors = block.0.chunks_exact(SECTOR_BYTES).enumerate();
    std::array::from_fn(|_| {
        sectors.next().and_then(|(n, sector)| decode_sector(identity, at, n, sector))
    })
}

fn decode_sector(identity: &Identity, at: Pba, n: usize, sector: &[u8]) -> Option<Sector> {
    let (mut raw, rest) = Raw::read_from_prefix(sector).ok()?;
    let records = usize::from(raw.records.get());
    let [window, durable, carriers] =
        [raw.window, raw.durable, raw.carriers].map(|raw| WindowNumber(raw.get()));
    if raw.magic.get() != MAGIC
        || usize::from(raw.sector.get()) != n
        || records > PER_SECTOR
        || durable > window
        || window > WindowNumber::MAX
    {
        return None;
    }
    let found = std::mem::take(&mut raw.checksum);
    let mut zeroed = [0; SECTOR_BYTES];
    zeroed.copy_from_slice(sector);
    zeroed[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    if checksum_of(identity, at, &zeroed) != found.get() {
        return None;
    }
    let (chunks, _) = rest.as_chunks::<{ record::BYTES }>();
    let records: Option<Vec<Record>> = chunks[..records].iter().map(Record::decode).collect();
    let records = records?;
    let possible = |record: &Record| {
        matches!(record.change, Change::Block { .. })
            && WindowNumber::of(record.timestamp) <= window
    };
    records.iter().all(possible).then_some(Sector { window, durable, carriers, records })
}

/// Over a sector whose checksum field is zero, and its place.
fn checksum_of(identity: &Identity, at: Pba, sector: &[u8]) -> u64 {
    checksum::fast(identity.key ^ mix(at.0), sector)
}

#[cfg(test)]
mod tests {
    use onefold_core::{Algorithm, Fingerprint};

    use super::*;

    const HEADER: Header =
        Header { window: WindowNumber(9), durable: WindowNumber(8), carriers: WindowNumber(3) };

    fn identity() -> Identity {
        Identity::new([1; 16], [2; 32], Algorithm::Blake3)
    }

    fn records(count: u64) -> Vec<Record> {
        (0..count)
            .map(|n| Record {
                volume: VolumeId(1),
                lba: Lba(n),
                change: Change::Block {
                    pba: Pba(100 + n),
                    carried: false,
                    fingerprint: Fingerprint([n as u8; 16]),
                },
                timestamp: WindowNumber(7).timestamp(n),
            })
            .collect()
    }

    #[test]
    fn a_page_survives_its_encoding_at_its_place_only() {
        let page = encode(&identity(), Pba(40), &HEADER, &records(PER_PAGE as u64));
        let sectors = decode(&identity(), Pba(40), &page);
        let found: Vec<Record> =
            sectors.iter().flatten().flat_map(|sector| sector.records.clone()).collect();
        assert_eq!(found, records(PER_PAGE as u64));
        assert!(sectors.iter().flatten().all(|sector| (sector.window, sector.durable) == (WindowNumber(9), WindowNumber(8))));
        assert!(decode(&identity(), Pba(41), &page).iter().all(Option::is_none));
    }

    #[test]
    fn any_flipped_bit_costs_its_sector_and_no_other() {
        let mut page = encode(&identity(), Pba(40), &HEADER, &records(50));
        for bit in 0..4096 * 8 {
            page.0[bit / 8] ^= 1 << (bit % 8);
            let sectors = decode(&identity(), Pba(40), &page);
            assert!(
                sectors
                    .iter()
                    .enumerate()
                    .all(|(n, sector)| sector.is_none() == (n == bit / 8 / SECTOR_BYTES)),
                "bit {bit}"
            );
            page.0[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn sectors_can_not_change_places() {
        let mut page = encode(&identity(), Pba(40), &HEADER, &records(50));
        let (first, second) = page.0.split_at_mut(SECTOR_BYTES);
        first.swap_with_slice(&mut second[..SECTOR_BYTES]);
        assert_eq!(
            decode(&identity(), Pba(40), &page).iter().filter(|sector| sector.is_none()).count(),
            2
        );
    }
}
