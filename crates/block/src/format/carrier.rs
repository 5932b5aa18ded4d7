//! Carriers: blocks that hold records, beside a compressed block or alone (ThinDedup II-A).
//!
//! Header (80 bytes), records (40 bytes each), then the compressed block. The checksum covers all
//! 4096 bytes and is made with the store's secret: a client that writes a block that looks like a
//! carrier can't make one that recovery believes.

use onefold_core::{Block, Error, Kind, Pba, Result, checksum, compress};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    Identity,
    record::{self, Record, WindowNumber},
};

const MAGIC: u32 = 0x3163_464f; // "OFc1"

/// Bytes of the header.
pub const HEADER_BYTES: usize = 80;

/// Records in a carrier without a compressed block.
pub const RECORDS_MAX: usize = (4096 - HEADER_BYTES) / record::BYTES;

/// Records that fit beside `payload` compressed bytes.
#[must_use]
pub fn room_beside(payload: usize) -> usize {
    (4096 - HEADER_BYTES).saturating_sub(payload) / record::BYTES
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: U32,
    records: U16,
    payload: U16,
    store: U64,
    epoch: U32,
    position: U16,
    carriers: U16,
    generation: U64,
    address: U64,
    window: U64,
    durable: U64,
    before: U64,
    checksum: [u8; 16],
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

/// The header of a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The store's epoch, which each recovery raises.
    pub epoch: u32,
    /// Generation of the zone that it lies in.
    pub generation: u64,
    /// Its own address.
    pub address: Pba,
    /// The window that its records belong to.
    pub window: WindowNumber,
    /// The window with carriers before that one: `window - 1` unless windows keep all their
    /// records in the leftover table.
    pub before: WindowNumber,
    /// Its place among the carriers of the window, from 0.
    pub position: u16,
    /// Carriers of the window.
    pub carriers: u16,
    /// All windows up to this one were durable when it was written.
    pub durable: WindowNumber,
}

/// Builds a carrier in `into` from its records and its compressed block, which may be empty.
pub fn encode(
    identity: &Identity,
    header: &Header,
    records: &[Record],
    payload: &[u8],
    into: &mut Block,
) {
    assert!(records.len() <= room_beside(payload.len()), "records and payload fit");
    into.0.fill(0);
    let mut raw = Raw {
        magic: U32::new(MAGIC),
        records: U16::new(records.len() as u16),
        payload: U16::new(payload.len() as u16),
        store: U64::new(identity.id),
        epoch: U32::new(header.epoch),
        position: U16::new(header.position),
        carriers: U16::new(header.carriers),
        generation: U64::new(header.generation),
        address: U64::new(header.address.0),
        window: U64::new(header.window.0),
        durable: U64::new(header.durable.0),
        before: U64::new(header.before.0),
        checksum: [0; 16],
    };
    into.0[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    for (record, at) in records.iter().zip(into.0[HEADER_BYTES..].chunks_exact_mut(record::BYTES)) {
        at.copy_from_slice(&record.encode());
    }
    into.0[4096 - payload.len()..].copy_from_slice(payload);
    raw.checksum = checksum::forgery_proof(&identity.secret, &into.0);
    into.0[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
}

/// A carrier as it was read.
pub struct Carrier<'a> {
    /// Its header.
    pub header: Header,
    records: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Carrier<'a> {
    /// The carrier in a block, by its shape alone: magic, store, lengths. Its content still has to
    /// hash to a fingerprint, or its checksum to be compared.
    #[must_use]
    pub fn shape(identity: &Identity, block: &'a Block) -> Option<Carrier<'a>> {
        let (raw, rest) = Raw::ref_from_prefix(&block.0).ok()?;
        if raw.magic.get() != MAGIC || raw.store.get() != identity.id {
            return None;
        }
        let records = usize::from(raw.records.get()) * record::BYTES;
        let payload = usize::from(raw.payload.get());
        if records + payload > rest.len()
            || raw.position.get() >= raw.carriers.get()
            || raw.window.get() > WindowNumber::MAX.0
        {
            return None;
        }
        let header = Header {
            epoch: raw.epoch.get(),
            generation: raw.generation.get(),
            address: Pba(raw.address.get()),
            window: WindowNumber(raw.window.get()),
            before: WindowNumber(raw.before.get()),
            position: raw.position.get(),
            carriers: raw.carriers.get(),
            durable: WindowNumber(raw.durable.get()),
        };
        Some(Carrier { header, records: &rest[..records], payload: &rest[rest.len() - payload..] })
    }

    /// The carrier in a block read at `address`, with its checksum compared.
    #[must_use]
    pub fn proven(identity: &Identity, block: &'a Block, address: Pba) -> Option<Carrier<'a>> {
        let carrier = Carrier::shape(identity, block)?;
        let mut zeroed = block.clone();
        let (raw, _) = Raw::mut_from_prefix(&mut zeroed.0).ok()?;
        let found = std::mem::take(&mut raw.checksum);
        (carrier.header.address == address
            && checksum::forgery_proof(&identity.secret, &zeroed.0) == found)
            .then_some(carrier)
    }

    /// The carriers among some blocks, each with the address that it was read at, by
    /// [`proven`](Self::proven), with their places among them. Hashed together; the checksums
    /// in the blocks are gone after that.
    #[must_use]
    pub fn proven_among(
        identity: &Identity,
        blocks: &'a mut [(&mut Block, Pba)],
    ) -> Vec<(usize, Carrier<'a>)> {
        let mut told = Vec::with_capacity(blocks.len());
        for (block, _) in blocks.iter_mut() {
            told.push(
                Raw::mut_from_prefix(&mut block.0)
                    .map_or([0; 16], |(raw, _)| std::mem::take(&mut raw.checksum)),
            );
        }
        let contents: Vec<&Block> = blocks.iter().map(|(block, _)| &**block).collect();
        let proofs = checksum::forgery_proofs(&identity.secret, &contents);
        let whole = told.into_iter().zip(proofs).map(|(told, proof)| told == proof);
        let places = blocks
            .iter()
            .enumerate()
            .zip(whole)
            .filter(|(_, whole)| *whole)
            .map(|(place, _)| place);
        places
            .filter_map(|(n, (block, address))| {
                Some((n, Carrier::shape(identity, block)?))
                    .filter(|found| found.1.header.address == *address)
            })
            .collect()
    }

    /// Its records. `None` stands for one that can't be read, which a checksum that agrees rules
    /// out.
    pub fn records(&self) -> impl Iterator<Item = Option<Record>> + 'a {
        let (records, _) = self.records.as_chunks();
        records.iter().map(Record::decode)
    }

    /// Expands the block that it carries.
    ///
    /// # Errors
    /// `Corrupt` when there is none, or it is damaged.
    pub fn expand(&self, into: &mut Block) -> Result<()> {
        if self.payload.is_empty() {
            return Err(Error::new(Kind::Corrupt, "the carrier holds no block"));
        }
        compress::expand(self.payload, into)
    }
}

/// True when a block says, but for one flipped bit, that it is a carrier of this store at this
/// address.
#[must_use]
pub(crate) fn near_carrier(identity: &Identity, block: &Block, address: Pba) -> bool {
    let Ok((raw, _)) = Raw::ref_from_prefix(&block.0) else { return false };
    let bits = (raw.magic.get() ^ MAGIC).count_ones()
        + (raw.store.get() ^ identity.id).count_ones()
        + (raw.address.get() ^ address.0).count_ones();
    bits <= 1
}

#[cfg(test)]
mod tests {
    use onefold_core::{Algorithm, Lba, VolumeId};

    use super::*;
    use crate::format::record::Change;

    fn example() -> (Identity, Header, Vec<Record>, Block) {
        let identity = Identity::new([3; 16], [9; 32], Algorithm::Blake3);
        let window = WindowNumber(12);
        let header = Header {
            epoch: 2,
            generation: 7,
            address: Pba(4242),
            window,
            before: WindowNumber(11),
            position: 0,
            carriers: 1,
            durable: WindowNumber(11),
        };
        let records = (0..5)
            .map(|n| Record {
                volume: VolumeId(1),
                lba: Lba(n),
                change: Change::Range { blocks: n + 1, keep: false },
                timestamp: window.timestamp(n),
            })
            .collect();
        (identity, header, records, Block([b'x'; 4096]))
    }

    #[test]
    fn a_carrier_gives_back_its_records_and_its_block() {
        let (identity, header, records, content) = example();
        let mut lz4 = compress::Lz4::default();
        let payload = lz4.compress(&content, 2000).unwrap();
        let mut block = Block::zeroed();
        encode(&identity, &header, &records, payload, &mut block);
        let carrier = Carrier::proven(&identity, &block, Pba(4242)).unwrap();
        assert_eq!(carrier.header, header);
        assert_eq!(carrier.records().collect::<Option<Vec<_>>>().unwrap(), records);
        let mut expanded = Block::zeroed();
        carrier.expand(&mut expanded).unwrap();
        assert!(expanded.0 == content.0);
    }

    #[test]
    fn any_flipped_bit_another_place_and_another_secret_are_noticed() {
        let (identity, header, records, _) = example();
        let mut block = Block::zeroed();
        encode(&identity, &header, &records, &[], &mut block);
        assert!(Carrier::proven(&identity, &block, Pba(4243)).is_none());
        let foreign = Identity::new([3; 16], [8; 32], Algorithm::Blake3);
        assert!(Carrier::proven(&foreign, &block, Pba(4242)).is_none());
        let (mut here, mut there, mut torn) =
            ((*block).clone(), (*block).clone(), (*block).clone());
        torn.0[4095] ^= 1;
        let mut blocks = [(&mut there, Pba(4243)), (&mut here, Pba(4242)), (&mut torn, Pba(4242))];
        let found = Carrier::proven_among(&identity, &mut blocks);
        assert_eq!(
            found.iter().map(|(n, carrier)| (*n, carrier.header)).collect::<Vec<_>>(),
            [(1, header)]
        );
        for bit in 0..4096 * 8 {
            block.0[bit / 8] ^= 1 << (bit % 8);
            assert!(Carrier::proven(&identity, &block, Pba(4242)).is_none(), "bit {bit}");
            block.0[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
