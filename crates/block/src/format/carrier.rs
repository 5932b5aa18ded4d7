//! Carriers: blocks that hold records, beside a compressed block or alone (ThinDedup II-A).
//!
//! Header (80 bytes), records (40 bytes each), then the compressed block. The checksum covers all
//! 4096 bytes and is made with the store's secret: a client that writes a block that looks like a
//! carrier can't make one that recovery believes.
//!
//! In a sealed store all of it is sealed, and the tag stands in the checksum's place; the compressed
//! block was sealed before, with its own tag in front.

use std::ops::Deref;

use onefold_core::{Block, Error, Kind, Pba, Result, checksum, compress};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    FIRST_DOMAIN, Identity,
    record::{self, Record, WindowNumber},
    sealing::What,
};

const MAGIC: u32 = 0x3163_464f; // "OFc1"

/// Bytes of the header.
pub const HEADER_BYTES: usize = 80;

/// Where the checksum is, or the tag.
const CHECKSUM_AT: usize = 64;

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

/// A compressed block that a carrier carries.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'p> {
    /// Its bytes.
    pub bytes: &'p [u8],
    /// The domain of what it is.
    pub domain: u32,
    /// The prefix of its fingerprint as maps keep it.
    pub prefix: u64,
}

impl Payload<'_> {
    /// Of a carrier that holds records alone.
    pub const NONE: Payload<'static> = Payload { bytes: &[], domain: FIRST_DOMAIN, prefix: 0 };
}

/// Builds a carrier in `into` from its records and its compressed block, which may be empty.
///
/// # Errors
/// `Io`: the library of ciphers refuses. `Corrupt`: the domain was erased.
pub fn encode(
    identity: &Identity,
    header: &Header,
    records: &[Record],
    Payload { bytes: payload, domain, prefix }: Payload<'_>,
    into: &mut Block,
) -> Result<()> {
    let extra = if payload.is_empty() { 0 } else { identity.payload_extra() };
    let payload_bytes = payload.len() + extra;
    assert!(records.len() <= room_beside(payload_bytes), "records and payload fit");
    into.0.fill(0);
    let mut raw = Raw {
        magic: U32::new(MAGIC),
        records: U16::new(records.len() as u16),
        payload: U16::new(payload_bytes as u16),
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
    if let Some(sealing) = &identity.sealing {
        if extra > 0 {
            let sealed = &mut into.0[4096 - payload_bytes..];
            sealing.seal_payload(domain, prefix, header.address, sealed)?;
        }
        return sealing
            .seal_block(What::Carrier, header.address, CHECKSUM_AT, &mut into.0)
            .map(drop);
    }
    raw.checksum = checksum::forgery_proof(&identity.secret, &into.0);
    into.0[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    Ok(())
}

/// The block of a carrier: as it was read, or opened.
enum Opened<'a> {
    AsRead(&'a Block),
    Opened(Box<Block>),
}

impl Deref for Opened<'_> {
    type Target = Block;

    fn deref(&self) -> &Block {
        match self {
            Opened::AsRead(block) => block,
            Opened::Opened(block) => block,
        }
    }
}

/// A carrier as it was read.
pub struct Carrier<'a> {
    /// Its header.
    pub header: Header,
    block: Opened<'a>,
    identity: &'a Identity,
    /// Bytes of its records, and of what it carries.
    records: usize,
    payload: usize,
}

impl<'a> Carrier<'a> {
    /// The carrier in a block that was read at `address`, by its shape alone: magic, store, lengths.
    /// Its content still has to hash to a fingerprint, or its checksum to be compared. One of a sealed
    /// store is proven by its tag.
    #[must_use]
    pub fn shape(identity: &'a Identity, block: &'a Block, address: Pba) -> Option<Carrier<'a>> {
        let Some(sealing) = &identity.sealing else {
            return Carrier::shaped(identity, Opened::AsRead(block));
        };
        let mut opened = Box::new(block.clone());
        if !sealing.open_block(What::Carrier, address, CHECKSUM_AT, &mut opened.0) {
            return None;
        }
        let carrier = Carrier::shaped(identity, Opened::Opened(opened))?;
        (carrier.header.address == address).then_some(carrier)
    }

    fn shaped(identity: &'a Identity, block: Opened<'a>) -> Option<Carrier<'a>> {
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
        Some(Carrier { header, block, identity, records, payload })
    }

    /// The carrier in a block read at `address`, with its checksum compared.
    #[must_use]
    pub fn proven(identity: &'a Identity, block: &'a Block, address: Pba) -> Option<Carrier<'a>> {
        let carrier = Carrier::shape(identity, block, address)?;
        if identity.sealing.is_some() {
            return Some(carrier);
        }
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
        identity: &'a Identity,
        blocks: &'a mut [(&mut Block, Pba)],
    ) -> Vec<(usize, Carrier<'a>)> {
        if identity.sealing.is_some() {
            let opened = blocks.iter().enumerate().filter_map(|(n, (block, address))| {
                Some((n, Carrier::shape(identity, block, *address)?))
            });
            return opened.collect();
        }
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
                Some((n, Carrier::shape(identity, block, *address)?))
                    .filter(|found| found.1.header.address == *address)
            })
            .collect()
    }

    /// Its records. `None` stands for one that can't be read, which a checksum that agrees rules
    /// out.
    pub fn records(&self) -> impl Iterator<Item = Option<Record>> + '_ {
        let (records, _) = self.block.0[HEADER_BYTES..HEADER_BYTES + self.records].as_chunks();
        records.iter().map(Record::decode)
    }

    /// Expands the block that it carries, which is of this domain and has the fingerprint that maps keep
    /// with this prefix. A plain store does not compare it here.
    ///
    /// # Errors
    /// `Corrupt` when there is none, or it is damaged.
    pub fn expand(&self, domain: u32, prefix: u64, into: &mut Block) -> Result<()> {
        if self.payload == 0 {
            return Err(Error::new(Kind::Corrupt, "the carrier holds no block"));
        }
        let payload = &self.block.0[4096 - self.payload..];
        let Some(sealing) = &self.identity.sealing else {
            return compress::expand(payload, into);
        };
        let mut copy = [0; 4096];
        let copy = &mut copy[..payload.len()];
        copy.copy_from_slice(payload);
        let opened = sealing.open_payload(domain, prefix, self.header.address, copy);
        let changed = || Error::new(Kind::Corrupt, "what the carrier holds was changed");
        compress::expand(opened.ok_or_else(changed)?, into)
    }
}

/// True when a block says, but for one flipped bit, that it is a carrier of this store at this
/// address. A block of a sealed store says nothing.
#[must_use]
pub(crate) fn near_carrier(identity: &Identity, block: &Block, address: Pba) -> bool {
    if identity.sealing.is_some() {
        return false;
    }
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
        encode(
            &identity,
            &header,
            &records,
            Payload { bytes: payload, ..Payload::NONE },
            &mut block,
        )
        .unwrap();
        let carrier = Carrier::proven(&identity, &block, Pba(4242)).unwrap();
        assert_eq!(carrier.header, header);
        assert_eq!(carrier.records().collect::<Option<Vec<_>>>().unwrap(), records);
        let mut expanded = Block::zeroed();
        carrier.expand(0, 0, &mut expanded).unwrap();
        assert!(expanded.0 == content.0);
    }

    #[test]
    fn any_flipped_bit_another_place_and_another_secret_are_noticed() {
        let (identity, header, records, _) = example();
        let mut block = Block::zeroed();
        encode(&identity, &header, &records, Payload::NONE, &mut block).unwrap();
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

    #[test]
    fn rule_29_a_sealed_carrier_shows_nothing_and_gives_back_its_records_and_its_block() {
        let (plain, header, records, content) = example();
        let identity = crate::format::sealing::tests::identity();
        let mut lz4 = compress::Lz4::default();
        let payload = lz4.compress(&content, 2000).unwrap().to_vec();
        let (mut block, mut open) = (Block::zeroed(), Block::zeroed());
        let payload = Payload { bytes: &payload, prefix: 9, ..Payload::NONE };
        encode(&identity, &header, &records, payload, &mut block).unwrap();
        encode(&plain, &header, &records, payload, &mut open).unwrap();
        let shows = |sealed: &Block| {
            let parts: std::collections::BTreeSet<_> = open.0.chunks(8).collect();
            sealed.0.windows(8).any(|part| parts.contains(part))
        };
        assert!(!shows(&block));
        let carrier = Carrier::proven(&identity, &block, Pba(4242)).unwrap();
        assert_eq!(carrier.header, header);
        assert_eq!(carrier.records().collect::<Option<Vec<_>>>().unwrap(), records);
        let mut expanded = Block::zeroed();
        carrier.expand(0, 9, &mut expanded).unwrap();
        assert!(expanded.0 == content.0);
        assert!(carrier.expand(0, 8, &mut expanded).is_err(), "another prefix");
        assert!(carrier.expand(1, 9, &mut expanded).is_err(), "another domain");
        assert!(Carrier::proven(&identity, &block, Pba(4243)).is_none());
        for bit in (0..4096 * 8).step_by(61) {
            block.0[bit / 8] ^= 1 << (bit % 8);
            assert!(Carrier::proven(&identity, &block, Pba(4242)).is_none(), "bit {bit}");
            block.0[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
