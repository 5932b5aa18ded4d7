//! Packs: blocks that hold several compressed blocks of clients that lay still.
//!
//! Header (48 bytes), a table with the fingerprint and the length of each fragment, then the
//! fragments one behind the other. The checksum is made with the store's secret, and over 16 bytes
//! more than a block has: so it is no fingerprint of anything that a client can write.
//!
//! All lengths are a stranger's until they are compared: a fragment that leads out of the block, or that the
//! table does not have, is damage.

use onefold_core::{Block, Error, Fingerprint, Kind, Pba, Result, checksum, compress};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{Identity, page::FRAGMENTS_MAX};

const MAGIC: u32 = 0x316b_464f; // "OFk1"

/// The only codec there is.
const LZ4: u8 = 1;

/// Bytes of the header.
const HEADER_BYTES: usize = 48;

/// Where the checksum is.
const CHECKSUM_AT: usize = 32;

/// Bytes of an entry of the table.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// Bytes behind the block that its checksum covers.
const BEHIND: usize = 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: U32,
    fragments: U16,
    codec: u8,
    reserved: u8,
    store: U64,
    address: U64,
    reserved_two: U64,
    checksum: [u8; 16],
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(Raw, checksum) == CHECKSUM_AT);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Entry {
    fingerprint: [u8; 16],
    length: U16,
}

const _: () = assert!(ENTRY_BYTES == 18);

/// The checksum of a pack whose checksum field is zero.
fn checksum_of(identity: &Identity, zeroed: &Block) -> [u8; 16] {
    let mut bytes = [0; 4096 + BEHIND];
    bytes[..4096].copy_from_slice(&zeroed.0);
    checksum::forgery_proof(&identity.secret, &bytes)
}

/// Blocks that are about to become one.
#[derive(Default)]
pub struct Packing {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

impl Packing {
    /// Adds a block with this fingerprint, as maps keep it, that is compressed to these bytes. Returns its number in
    /// the table; `None` when there is no room for it.
    pub fn add(&mut self, fingerprint: &Fingerprint, compressed: &[u8]) -> Option<u8> {
        let table = (self.entries.len() + 1) * ENTRY_BYTES;
        let fits = HEADER_BYTES + table + self.bytes.len() + compressed.len() <= 4096;
        if !fits || compressed.is_empty() || self.entries.len() == FRAGMENTS_MAX {
            return None;
        }
        self.entries
            .push(Entry { fingerprint: fingerprint.0, length: U16::new(compressed.len() as u16) });
        self.bytes.extend_from_slice(compressed);
        Some(self.entries.len() as u8 - 1)
    }

    /// The pack, for this place, and its checksum. Plain stores alone have packs.
    #[must_use]
    pub fn finish(&self, identity: &Identity, address: Pba) -> (Box<Block>, Fingerprint) {
        let mut block = Block::zeroed();
        let mut raw = Raw {
            magic: U32::new(MAGIC),
            fragments: U16::new(self.entries.len() as u16),
            codec: LZ4,
            reserved: 0,
            store: U64::new(identity.id),
            address: U64::new(address.0),
            reserved_two: U64::new(0),
            checksum: [0; 16],
        };
        block.0[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        let table = HEADER_BYTES + self.entries.len() * ENTRY_BYTES;
        block.0[HEADER_BYTES..table].copy_from_slice(self.entries.as_bytes());
        block.0[table..table + self.bytes.len()].copy_from_slice(&self.bytes);
        raw.checksum = checksum_of(identity, &block);
        block.0[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        (block, Fingerprint(raw.checksum))
    }
}

/// A pack as it was read.
pub struct Pack<'a> {
    block: &'a Block,
    entries: &'a [Entry],
    checksum: [u8; 16],
}

impl<'a> Pack<'a> {
    /// The pack in a block that was read at `address`, by its shape alone: magic, store, address, lengths. What
    /// it holds still has to hash to a fingerprint, or its checksum to be compared. A sealed store has none.
    #[must_use]
    pub fn shape(identity: &Identity, block: &'a Block, address: Pba) -> Option<Pack<'a>> {
        let (raw, rest) = Raw::ref_from_prefix(&block.0).ok()?;
        let is_ours = raw.magic.get() == MAGIC
            && raw.store.get() == identity.id
            && raw.address.get() == address.0
            && raw.codec == LZ4
            && identity.sealing.is_none();
        let count = usize::from(raw.fragments.get());
        if !is_ours || count == 0 || count > FRAGMENTS_MAX {
            return None;
        }
        let (entries, fragments) = rest.split_at_checked(count * ENTRY_BYTES)?;
        let entries = <[Entry]>::ref_from_bytes(entries).ok()?;
        let lengths = entries.iter().map(|entry| usize::from(entry.length.get()));
        let all: usize = lengths.sum();
        let has_empty = entries.iter().any(|entry| entry.length.get() == 0);
        (all <= fragments.len() && !has_empty).then_some(Pack {
            block,
            entries,
            checksum: raw.checksum,
        })
    }

    /// The pack in a block that was read at `address`, with its checksum compared.
    #[must_use]
    pub fn proven(identity: &Identity, block: &'a Block, address: Pba) -> Option<Pack<'a>> {
        let pack = Pack::shape(identity, block, address)?;
        let mut zeroed = block.clone();
        zeroed.0[CHECKSUM_AT..HEADER_BYTES].fill(0);
        (checksum_of(identity, &zeroed) == pack.checksum).then_some(pack)
    }

    /// Its checksum, as the table of fingerprints has it.
    #[must_use]
    pub fn checksum(&self) -> Fingerprint {
        Fingerprint(self.checksum)
    }

    /// How many fragments it has, dead ones too.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Never: a pack has a fragment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The fingerprint of a fragment, as its table has it; `None` when it has no such fragment.
    #[must_use]
    pub fn fingerprint(&self, fragment: u8) -> Option<Fingerprint> {
        self.entries.get(usize::from(fragment)).map(|entry| Fingerprint(entry.fingerprint))
    }

    /// The fingerprints of its fragments, by their numbers.
    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> + '_ {
        self.entries.iter().map(|entry| Fingerprint(entry.fingerprint))
    }

    /// The number of the fragment that has this fingerprint.
    pub(crate) fn number_of(&self, fingerprint: &Fingerprint) -> Option<u8> {
        self.fingerprints().zip(0..).find(|(found, _)| found == fingerprint).map(|(_, n)| n)
    }

    /// Expands a fragment. Its fingerprint is not compared.
    ///
    /// # Errors
    /// `Corrupt` when there is none of this number, or it is damaged.
    pub fn expand(&self, fragment: u8, into: &mut Block) -> Result<()> {
        let number = usize::from(fragment);
        let Some(entry) = self.entries.get(number) else {
            let message = format!(
                "the pack has {} fragments, and none of number {fragment}",
                self.entries.len()
            );
            return Err(Error::new(Kind::Corrupt, message));
        };
        let length = |entry: &Entry| usize::from(entry.length.get());
        let before: usize = self.entries[..number].iter().map(length).sum();
        let start = HEADER_BYTES + self.entries.len() * ENTRY_BYTES + before;
        let bytes = self.block.0.get(start..start + length(entry));
        let bytes = bytes.ok_or_else(|| Error::new(Kind::Corrupt, "the fragment is cut off"))?;
        compress::expand(bytes, into)
    }
}

/// True when a block says, but for one flipped bit, that it is a pack of this store at this address.
#[must_use]
pub(crate) fn near_pack(identity: &Identity, block: &Block, address: Pba) -> bool {
    let Ok((raw, _)) = Raw::ref_from_prefix(&block.0) else { return false };
    let bits = (raw.magic.get() ^ MAGIC).count_ones()
        + (raw.store.get() ^ identity.id).count_ones()
        + (raw.address.get() ^ address.0).count_ones();
    bits <= 1 && identity.sealing.is_none()
}

#[cfg(test)]
mod tests {
    use onefold_core::{Algorithm, compress::Lz4};

    use super::*;

    fn identity() -> Identity {
        Identity::new([3; 16], [9; 32], Algorithm::Blake3)
    }

    fn content(n: u8) -> Box<Block> {
        let mut block = Block::zeroed();
        for (at, byte) in block.0.iter_mut().enumerate().take(64 * usize::from(n)) {
            *byte = (at * 7 % 251) as u8 ^ n;
        }
        block
    }

    /// A pack of so many blocks, and their fingerprints.
    fn example(fragments: u8, at: Pba) -> (Box<Block>, Fingerprint, Vec<Fingerprint>) {
        let (identity, mut lz4, mut packing) = (identity(), Lz4::default(), Packing::default());
        let mut all = Vec::new();
        for n in 0..fragments {
            let fingerprint = identity.fingerprinter.one(&content(n));
            let compressed = lz4.compress(&content(n), 4000).unwrap();
            assert_eq!(packing.add(&fingerprint, compressed), Some(n));
            all.push(fingerprint);
        }
        let (block, checksum) = packing.finish(&identity, at);
        (block, checksum, all)
    }

    #[test]
    fn what_was_packed_is_expanded() {
        for fragments in [1, 2, 5] {
            let (block, checksum, all) = example(fragments, Pba(77));
            let pack = Pack::proven(&identity(), &block, Pba(77)).unwrap();
            assert_eq!((pack.len(), pack.checksum()), (usize::from(fragments), checksum));
            let mut into = Block::zeroed();
            for n in 0..fragments {
                pack.expand(n, &mut into).unwrap();
                assert!(into.0 == content(n).0);
                assert_eq!(pack.fingerprint(n), Some(all[usize::from(n)]));
            }
            for beyond in [fragments, 31, 32, 255] {
                assert!(
                    pack.expand(beyond, &mut into).is_err() && pack.fingerprint(beyond).is_none()
                );
            }
        }
        let (block, ..) = example(2, Pba(77));
        assert!(Pack::shape(&identity(), &block, Pba(78)).is_none(), "it lies elsewhere");
    }

    #[test]
    fn a_pack_takes_what_fits_and_no_more_than_its_table_holds() {
        let (fingerprint, mut packing) = (Fingerprint([5; 16]), Packing::default());
        assert_eq!(packing.add(&fingerprint, &[]), None);
        assert_eq!(packing.add(&fingerprint, &[7; 4096 - 48 - 18 + 1]), None);
        assert_eq!(packing.add(&fingerprint, &[7; 4096 - 48 - 18]), Some(0));
        assert_eq!(packing.add(&fingerprint, &[7; 1]), None);
        let (block, _) = packing.finish(&identity(), Pba(1));
        assert!(Pack::proven(&identity(), &block, Pba(1)).is_some());
        let mut many = Packing::default();
        for n in 0..FRAGMENTS_MAX as u8 {
            assert_eq!(many.add(&fingerprint, &[n]), Some(n));
        }
        assert_eq!(many.add(&fingerprint, &[1]), None);
    }

    #[test]
    fn rule_16_lengths_and_numbers_of_a_stranger_lead_nowhere() {
        let (block, ..) = example(4, Pba(9));
        let with = |at: usize, bytes: &[u8]| {
            let mut other = block.clone();
            other.0[at..at + bytes.len()].copy_from_slice(bytes);
            other
        };
        let wrong = [
            with(4, &[0, 0]),
            with(4, &[33, 0]),
            with(4, &[0xff, 0xff]),
            with(6, &[2]),
            with(48 + 16, &[0, 0]),
            with(48 + 16, &[0xff, 0xff]),
            with(48 + 18 + 16, &[0xff, 0x0f]),
        ];
        for other in &wrong {
            assert!(Pack::shape(&identity(), other, Pba(9)).is_none());
        }
        let mut into = Block::zeroed();
        for bit in 0..4096 * 8 {
            let mut other = block.clone();
            other.0[bit / 8] ^= 1 << (bit % 8);
            assert!(Pack::proven(&identity(), &other, Pba(9)).is_none(), "bit {bit}");
            // What has the shape of one is searched without a panic.
            if let Some(pack) = Pack::shape(&identity(), &other, Pba(9)) {
                for n in 0..=255 {
                    let _ = pack.expand(n, &mut into);
                }
            }
        }
    }

    #[test]
    fn rule_18_the_checksum_of_a_pack_is_no_fingerprint_of_a_block() {
        let (mut block, checksum, _) = example(3, Pba(9));
        let identity = identity();
        assert_ne!(identity.fingerprinter.one(&block), checksum);
        block.0[CHECKSUM_AT..HEADER_BYTES].fill(0);
        // A client writes what he read from the disk, with the checksum zero.
        let found = identity.fingerprinter.one(&block);
        assert!(found != checksum && found.unshared() != checksum);
    }
}
