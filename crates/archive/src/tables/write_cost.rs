//! The cost of writing since the archive was made.

use onefold_core::Result;

use crate::format::bytes::{Reader, Writer};

/// The cost of writing since the archive was made: bytes with copies and parity, in whole units of
/// 4 KiB; chunks before compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCost {
    /// By puts and volumes.
    pub upload_bytes: u64,
    /// When chunks that stood replicated were encoded.
    pub encode_bytes: u64,
    /// By merges of containers less than half full.
    pub merge_bytes: u64,
    /// Chunks that were encoded late.
    pub encoded_chunks: u64,
    /// Their bytes.
    pub encoded_chunk_bytes: u64,
    /// Chunks that merges encoded again.
    pub reencoded_chunks: u64,
    /// Their bytes.
    pub reencoded_chunk_bytes: u64,
}

impl WriteCost {
    pub(crate) const BYTES: usize = 56;

    fn all(&mut self) -> [&mut u64; 7] {
        let WriteCost {
            upload_bytes,
            encode_bytes,
            merge_bytes,
            encoded_chunks,
            encoded_chunk_bytes,
            reencoded_chunks,
            reencoded_chunk_bytes,
        } = self;
        [
            upload_bytes,
            encode_bytes,
            merge_bytes,
            encoded_chunks,
            encoded_chunk_bytes,
            reencoded_chunks,
            reencoded_chunk_bytes,
        ]
    }

    pub(crate) fn encode(mut self, w: &mut Writer) {
        self.all().into_iter().for_each(|n| {
            w.u64(*n);
        });
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<WriteCost> {
        let mut write_cost = WriteCost::default();
        for n in write_cost.all() {
            *n = r.u64()?;
        }
        Ok(write_cost)
    }
}
