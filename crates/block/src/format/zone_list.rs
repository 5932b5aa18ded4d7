//! The zone list: the zones in which carriers may lie that no checkpoint holds yet. Recovery reads
//! these and no others.
//!
//! Each page has two places, written by turns, at most one version of a page being unflushed at a
//! time. An entry is durable before the first carrier goes into its zone. The bitmap of carriers is
//! filled in when the zone takes no more of them, so that recovery reads only the carriers of it.

use onefold_core::{Block, Pba, Result, ZoneId, checksum};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{
    Identity, page::HEADER_BYTES, record::WindowNumber, sealing::What, zone_bitmap::ZoneBitmap,
};

const MAGIC: u32 = 0x317a_464f; // "OFz1"

/// Where the tag of a sealed page is.
const TAG_AT: usize = 48;

/// Bytes of an entry.
const ENTRY_BYTES: usize = 144;

/// Entries of a page.
pub const PER_PAGE: usize = (4096 - HEADER_BYTES) / ENTRY_BYTES;

/// A listed zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The zone.
    pub zone: ZoneId,
    /// Given when it was opened; carriers of other generations in it are old.
    pub generation: u64,
    /// Where carriers are, once the zone takes no more of them.
    pub carriers: Option<ZoneBitmap>,
}

/// A page of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Raised by each write of the page; the higher of the two places counts.
    pub sequence: u64,
    /// Windows up to this one were durable.
    pub durable: WindowNumber,
    /// Its entries.
    pub entries: [Option<Entry>; PER_PAGE],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: U32,
    page: U32,
    store: U64,
    sequence: U64,
    durable: U64,
    address: U64,
    reserved: [u8; 16],
    checksum: U64,
    entries: [RawEntry; PER_PAGE],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawEntry {
    zone: [u8; 7],
    state: u8,
    generation: U64,
    carriers: [u8; 128],
}

const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES && size_of::<Raw>() == 4096);

const EMPTY: u8 = 0;
const OPEN: u8 = 1;
const FULL: u8 = 2;

impl Page {
    /// A page without entries.
    #[must_use]
    pub fn empty() -> Page {
        Page { sequence: 0, durable: WindowNumber(0), entries: [None; PER_PAGE] }
    }

    /// Its block: page number `page`, for `address`.
    ///
    /// # Errors
    /// `Io`: the library of ciphers refuses.
    pub fn encode(&self, identity: &Identity, page: u32, address: u64) -> Result<Box<Block>> {
        let entries = self.entries.map(|entry| match entry {
            None => {
                RawEntry { zone: [0; 7], state: EMPTY, generation: U64::new(0), carriers: [0; 128] }
            }
            Some(entry) => RawEntry {
                zone: super::record::low_bytes(entry.zone.0),
                state: if entry.carriers.is_some() { FULL } else { OPEN },
                generation: U64::new(entry.generation),
                carriers: entry.carriers.unwrap_or_default().to_bytes(),
            },
        });
        let mut raw = Raw {
            magic: U32::new(MAGIC),
            page: U32::new(page),
            store: U64::new(identity.id),
            sequence: U64::new(self.sequence),
            durable: U64::new(self.durable.0),
            address: U64::new(address),
            reserved: [0; 16],
            checksum: U64::new(0),
            entries,
        };
        let mut block = Block::zeroed();
        if let Some(sealing) = &identity.sealing {
            block.0.copy_from_slice(raw.as_bytes());
            sealing.seal_block(What::ListPage, Pba(address), TAG_AT, &mut block.0)?;
            return Ok(block);
        }
        raw.checksum = U64::new(checksum::fast(identity.key, raw.as_bytes()));
        block.0.copy_from_slice(raw.as_bytes());
        Ok(block)
    }

    /// The page in a block read as page number `page` at `address`.
    #[must_use]
    pub fn decode(identity: &Identity, block: &Block, page: u32, address: u64) -> Option<Page> {
        let mut raw = Raw::read_from_bytes(&block.0).ok()?;
        let mut proven = false;
        if let Some(sealing) = &identity.sealing {
            let mut copy = block.clone();
            proven = sealing.open_block(What::ListPage, Pba(address), TAG_AT, &mut copy.0);
            raw = Raw::read_from_bytes(&copy.0).ok()?;
        }
        let found = std::mem::take(&mut raw.checksum);
        let ours = raw.magic.get() == MAGIC
            && raw.store.get() == identity.id
            && raw.page.get() == page
            && raw.address.get() == address;
        proven |= identity.sealing.is_none()
            && checksum::fast(identity.key, raw.as_bytes()) == found.get();
        if !ours || !proven || raw.durable.get() > WindowNumber::MAX.0 {
            return None;
        }
        let mut entries = [None; PER_PAGE];
        for (entry, raw) in entries.iter_mut().zip(&raw.entries) {
            let carriers = match raw.state {
                EMPTY => continue,
                OPEN => None,
                FULL => Some(ZoneBitmap::from_bytes(&raw.carriers)),
                _ => return None,
            };
            let zone = ZoneId(super::record::from_low_bytes(&raw.zone));
            *entry = Some(Entry { zone, generation: raw.generation.get(), carriers });
        }
        Some(Page {
            sequence: raw.sequence.get(),
            durable: WindowNumber(raw.durable.get()),
            entries,
        })
    }
}

#[cfg(test)]
mod tests {
    use onefold_core::Algorithm;

    use super::*;

    #[test]
    fn a_page_survives_its_encoding_and_notices_any_flipped_bit() {
        let identity = Identity::new([3; 16], [9; 32], Algorithm::Blake3);
        let mut page = Page { sequence: 8, durable: WindowNumber(44), ..Page::empty() };
        page.entries[0] = Some(Entry { zone: ZoneId(1 << 30), generation: 12, carriers: None });
        page.entries[27] = Some(Entry {
            zone: ZoneId(9),
            generation: 13,
            carriers: Some(ZoneBitmap::from_bytes(&[0x55; 128])),
        });
        let mut block = page.encode(&identity, 2, 20).unwrap();
        assert_eq!(Page::decode(&identity, &block, 2, 20), Some(page));
        assert_eq!(Page::decode(&identity, &block, 3, 20), None);
        assert_eq!(Page::decode(&identity, &block, 2, 21), None);
        for bit in 0..4096 * 8 {
            block.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Page::decode(&identity, &block, 2, 20), None, "bit {bit}");
            block.0[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
