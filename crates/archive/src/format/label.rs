//! The label: what kind of archive this is, and which snapshot and log are true. Two places, written by turns.

use onefold_core::{Error, Kind, Result};

use super::{
    Identity,
    bytes::{Reader, Writer, corrupt},
};
use crate::settings::{Chunking, Compression};

/// Bytes of each place.
pub const LABEL_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"ONEFARCH";
const VERSION: u32 = 1;

/// What a label says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The archive's id.
    pub id: [u8; 16],
    /// Keys fingerprints and checksums.
    pub secret: [u8; 32],
    /// This directory's own id.
    pub node: [u8; 16],
    /// How streams are cut.
    pub chunking: Chunking,
    /// How containers are compressed.
    pub compression: Compression,
    /// Bytes of a segment file.
    pub segment_bytes: u64,
    /// Grows with each label; its last bit names the place.
    pub generation: u64,
    /// The number of the snapshot that counts, and of the log that begins behind it.
    pub snapshot: u64,
}

/// What a place of the label holds.
pub enum Found {
    /// A label.
    Good(Label),
    /// A label that is damaged.
    Bad(Error),
    /// No label.
    Foreign,
}

impl Label {
    /// The identity for checksums.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::new(self.id, &self.secret)
    }

    /// The place of this generation, in bytes.
    #[must_use]
    pub fn place(&self) -> u64 {
        self.generation % 2 * LABEL_BYTES as u64
    }

    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.raw(MAGIC).u32(VERSION).u32(0).raw(&self.id).raw(&self.secret).raw(&self.node);
        let (kind, mean) = self.chunking.code();
        // Node 0 of 1; one data shard, no parity.
        w.u8(kind).u8(self.compression.code()).u8(0).u8(1).u8(1).u8(0).u16(0).u32(mean).u32(0);
        w.u64(self.segment_bytes).u64(self.generation).u64(self.snapshot);
        w.0.resize(LABEL_BYTES - 8, 0);
        let checksum = self.identity().checksum(&w.0);
        w.u64(checksum);
        w.0
    }

    /// What `bytes` hold.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Found {
        if bytes.len() != LABEL_BYTES || !bytes.starts_with(MAGIC) {
            return Found::Foreign;
        }
        Label::decode_whole(bytes).map_or_else(Found::Bad, Found::Good)
    }

    fn decode_whole(bytes: &[u8]) -> Result<Label> {
        let mut r = Reader(&bytes[8..]);
        let version = r.u32()?;
        if version != VERSION {
            return Err(Error::new(Kind::Unsupported, format!("the archive has format {version}; this program knows {VERSION}")));
        }
        r.u32()?;
        let (id, secret, node) = (r.array()?, r.array()?, r.array()?);
        if Identity::new(id, &secret).checksum(&bytes[..LABEL_BYTES - 8]).to_le_bytes() != bytes[LABEL_BYTES - 8..] {
            return Err(corrupt("the label fails its checksum"));
        }
        let (kind, compression) = (r.u8()?, r.u8()?);
        let code = [r.u8()?, r.u8()?, r.u8()?, r.u8()?];
        r.u16()?;
        let mean = r.u32()?;
        r.u32()?;
        if code != [0, 1, 1, 0] {
            return Err(Error::new(Kind::Unsupported, "the archive spreads over several nodes, which this version does not read"));
        }
        Ok(Label {
            id,
            secret,
            node,
            chunking: Chunking::from_code(kind, mean).ok_or_else(|| corrupt("an unknown chunker"))?,
            compression: Compression::from_code(compression).ok_or_else(|| corrupt("an unknown compression"))?,
            segment_bytes: r.u64()?,
            generation: r.u64()?,
            snapshot: r.u64()?,
        })
    }
}

/// The label that counts of the two places.
///
/// # Errors
/// `NotFound` when there is none, `Corrupt` when no place is whole, `Unsupported` when it is too new.
pub fn choose(first: Found, second: Found) -> Result<Label> {
    match (first, second) {
        (Found::Good(a), Found::Good(b)) => Ok(if a.generation > b.generation { a } else { b }),
        (Found::Good(label), _) | (_, Found::Good(label)) => Ok(label),
        (Found::Bad(error), _) | (_, Found::Bad(error)) => Err(error),
        (Found::Foreign, Found::Foreign) => Err(Error::new(Kind::NotFound, "no archive")),
    }
}
