//! Offers: the fingerprints of blocks that a sender would send, and the proof that the receiver has one.
//!
//! | bytes | payload of an offer |
//! |---|---|
//! | 4 | how many runs, from 1 to 4,096 |
//! | 12 each | a run: its first block 8, how many 4 |
//! | 16 each | the fingerprints of these blocks, one behind the other; zero where the sender has none: the block is missing |
//!
//! The payload of a held frame is keyed BLAKE3 of what its blocks hold, whose key is the proof of the
//! frame before: the chain of a stream covers what was not sent, too.

use onefold_core::{Fingerprint, checksum};

use crate::from_low_bytes;

/// Blocks of an offer at most.
pub const OFFER_BLOCKS_MAX: u64 = 65_536;

/// Runs of an offer at most.
pub const OFFER_RUNS_MAX: usize = 4096;

const RUN_BYTES: usize = 12;
const FINGERPRINT_BYTES: usize = 16;

/// Bytes of its payload at most.
pub(crate) const OFFER_BYTES_MAX: usize =
    4 + OFFER_RUNS_MAX * RUN_BYTES + OFFER_BLOCKS_MAX as usize * FINGERPRINT_BYTES;

/// Blocks that a sender would send, by their fingerprints.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Offer {
    /// First block and number of blocks of each run; they rise and do not meet.
    pub runs: Vec<(u64, u64)>,
    /// The fingerprints of all these blocks. One of zeroes stands for none.
    pub fingerprints: Vec<Fingerprint>,
}

impl Offer {
    /// The first block.
    pub(crate) fn first(&self) -> u64 {
        self.runs.first().map_or(0, |run| run.0)
    }

    /// The blocks, in the order of their fingerprints.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(|&(first, blocks)| first..first + blocks)
    }

    /// True when the runs rise, do not meet, and lie between two blocks.
    pub(crate) fn lies_in(&self, from: u64, end: u64) -> bool {
        let mut at = from;
        self.runs.iter().all(|&(first, blocks)| {
            let next = first.checked_add(blocks);
            let fits = first >= at && blocks > 0 && next.is_some_and(|next| next <= end);
            at = next.unwrap_or(u64::MAX);
            fits
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.runs.len() as u32).to_le_bytes().to_vec();
        for (first, blocks) in &self.runs {
            bytes.extend_from_slice(&first.to_le_bytes());
            bytes.extend_from_slice(&(*blocks as u32).to_le_bytes());
        }
        self.fingerprints.iter().for_each(|one| bytes.extend_from_slice(&one.0));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Offer> {
        let (count, rest) = bytes.split_at_checked(4)?;
        let count = from_low_bytes(count) as usize;
        if !(1..=OFFER_RUNS_MAX).contains(&count) {
            return None;
        }
        let (runs, rest) = rest.split_at_checked(count * RUN_BYTES)?;
        let run = |run: &[u8]| (from_low_bytes(&run[..8]), from_low_bytes(&run[8..]));
        let runs: Vec<(u64, u64)> = runs.chunks_exact(RUN_BYTES).map(run).collect();
        let blocks: u64 = runs.iter().map(|run| run.1).sum();
        let (fingerprints, rest) = rest.as_chunks::<FINGERPRINT_BYTES>();
        let whole = rest.is_empty() && fingerprints.len() as u64 == blocks;
        (whole && blocks <= OFFER_BLOCKS_MAX).then(|| Offer {
            runs,
            fingerprints: fingerprints.iter().map(|&one| Fingerprint(one)).collect(),
        })
    }
}

/// The proof of what blocks hold that were not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldProof {
    /// The proof of the frame before.
    pub(crate) key: [u8; 32],
    pub(crate) digest: [u8; 32],
}

impl HeldProof {
    pub(crate) fn of(key: [u8; 32], data: &[u8]) -> HeldProof {
        HeldProof { key, digest: checksum::chunk_name(&key, data) }
    }

    /// True when the blocks hold this.
    #[must_use]
    pub fn proves(&self, data: &[u8]) -> bool {
        *self == HeldProof::of(self.key, data)
    }
}
