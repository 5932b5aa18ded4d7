//! LZ4 of single blocks (ThinDedup III-A) and of whole chunks.

use crate::{BLOCK_BYTES, Block, Error, Kind, Result};

/// Room that [`Lz4::compress`] needs for one block, whatever it holds.
pub const WORST_BYTES: usize = lz4_flex::block::get_maximum_output_size(4096);

/// A compressor with its hash table, so that a thread allocates it once.
pub struct Lz4 {
    table: lz4_flex::block::CompressTable,
    out: Box<[u8; WORST_BYTES]>,
}

impl Default for Lz4 {
    fn default() -> Self {
        Lz4 { table: lz4_flex::block::CompressTable::small(), out: Box::new([0; WORST_BYTES]) }
    }
}

impl Lz4 {
    /// `block` compressed, when it then takes at most `most` bytes.
    pub fn compress(&mut self, block: &Block, most: usize) -> Option<&[u8]> {
        match lz4_flex::block::compress_into_with_table(
            &block.0,
            &mut self.out[..],
            &mut self.table,
        ) {
            Ok(n) if n <= most => Some(&self.out[..n]),
            _ => None,
        }
    }
}

/// Expands what [`Lz4::compress`] made. Hostile bytes are safe.
///
/// # Errors
/// `Corrupt` unless the result is exactly one block.
pub fn expand(compressed: &[u8], into: &mut Block) -> Result<()> {
    match lz4_flex::block::decompress_into(compressed, &mut into.0) {
        Ok(BLOCK_BYTES) => Ok(()),
        Ok(n) => Err(Error::new(Kind::Corrupt, format!("compressed block expands to {n} bytes"))),
        Err(e) => Err(Error::new(Kind::Corrupt, format!("compressed block is damaged: {e}"))),
    }
}

/// `chunk` compressed.
#[must_use]
pub fn pack(chunk: &[u8]) -> Vec<u8> {
    lz4_flex::block::compress(chunk)
}

/// Expands what [`pack`] made of `length` bytes. Hostile bytes are safe.
///
/// # Errors
/// `Corrupt` unless the result is exactly so long.
pub fn unpack(packed: &[u8], length: usize) -> Result<Vec<u8>> {
    match lz4_flex::block::decompress(packed, length) {
        Ok(chunk) if chunk.len() == length => Ok(chunk),
        Ok(chunk) => Err(Error::new(
            Kind::Corrupt,
            format!("compressed chunk expands to {} bytes instead of {length}", chunk.len()),
        )),
        Err(e) => Err(Error::new(Kind::Corrupt, format!("compressed chunk is damaged: {e}"))),
    }
}
