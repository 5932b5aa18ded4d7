//! The hashes that the engine asks for. In a sealed store all of them are keyed, in a plain one only those
//! that name chunks, by the secret of the format.

use std::sync::Arc;

use onefold_core::checksum;

use super::Sealing;
use crate::{
    format::{BLOCK, ObjectId, catalogue::Format, entry::Sums},
    post_processing::cuts::SEED,
};

/// The hashes of a store.
pub(crate) struct Hashing {
    /// The key of the hashes that name the chunks of a plain store.
    secret: [u8; 32],
    /// What seals the store, if it is sealed.
    sealing: Option<Arc<Sealing>>,
}

impl Hashing {
    pub(crate) fn new(format: &Format, sealing: Option<Arc<Sealing>>) -> Hashing {
        Hashing { secret: format.secret, sealing }
    }

    /// Those of a plain store with this secret.
    pub(crate) fn plain(secret: [u8; 32]) -> Hashing {
        Hashing { secret, sealing: None }
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealing.is_some()
    }

    /// The key of the hashes that name chunks.
    pub(crate) fn chunk_secret(&self) -> &[u8; 32] {
        self.sealing.as_ref().map_or(&self.secret, |sealing| sealing.chunk_secret())
    }

    /// The number from which the shard of a name follows.
    pub(crate) fn name_number(&self, name: &str) -> u64 {
        match &self.sealing {
            Some(sealing) => sealing.name_number(name),
            None => checksum::fast(5, name.as_bytes()),
        }
    }

    /// The seed of the cuts of volumes.
    pub(crate) fn cuts(&self) -> u64 {
        self.sealing.as_ref().map_or(SEED, |sealing| sealing.cuts())
    }

    /// The length of the chunk of a stream that `bytes` begin with: between half of `average` and `most`, or all
    /// of them.
    pub(crate) fn first_of_stream(&self, bytes: &[u8], average: u32, most: u32) -> usize {
        let (average, most) = (average as usize, most as usize);
        let least = average / 2;
        match &self.sealing {
            Some(sealing) => {
                let bytes = &bytes[..bytes.len().min(most)];
                sealing.gear().cut(bytes, least, average / 4 * 3, average)
            }
            None => {
                let mut chunks = fastcdc::v2020::FastCDC::new(bytes, least, average, most);
                chunks.next().map_or(bytes.len(), |chunk| chunk.length)
            }
        }
    }

    /// The sum of a block of a metadata object; 0 in a plain store.
    pub(crate) fn sum(&self, object: ObjectId, block: u32, content: &[u8]) -> u64 {
        self.sealing.as_ref().map_or(0, |sealing| sealing.sum(object, block, content))
    }

    /// The bytes and the sums of a chunk that is to stand in a metadata object.
    pub(crate) fn standing(
        &self,
        object: ObjectId,
        offset: u32,
        content: &[u8],
    ) -> (Vec<u8>, Sums) {
        let (mut bytes, mut sums) = (content.to_vec(), Sums::NONE);
        if self.is_sealed() {
            bytes.resize(content.len().next_multiple_of(BLOCK as usize), 0);
            for (block, content) in (0..).zip(bytes.chunks(BLOCK as usize)) {
                sums.set(block, self.sum(object, offset / BLOCK + block, content));
            }
        }
        (bytes, sums)
    }
}
